"""The hidden states of an encoder that is not trained: they are the same in every epoch, and computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from rich.console import Console
from torch import Tensor

from litebert.console import progress_bar
from litebert.data.batches import Example, batches_by_length, collate
from litebert.inference import Model
from litebert.tasks.base import states_after

MAX_STATES_BYTES = 8 << 30
BATCH_SIZE = 64


def states_bytes(examples: Sequence[Example], depths: Sequence[int], hidden_size: int) -> int:
    """The size of their hidden states in bfloat16."""
    tokens = sum(len(sequence.ids) for example in examples for sequence in example.sequences)
    return 2 * tokens * len(depths) * hidden_size


@torch.inference_mode()
def with_states(model: Model, examples: Sequence[Example], depths: Sequence[int], console: Console) -> list[Example]:
    """The same examples with their hidden states at these depths, on the CPU."""
    owners = [(number, row) for number, example in enumerate(examples) for row in range(len(example.sequences))]
    sequences = [Example([examples[number].sequences[row]]) for number, row in owners]
    states_by_sequence: list[Tensor] = [torch.empty(0)] * len(owners)
    title = f"computing the hidden states of {len(examples):,} texts"
    with model.answering(), progress_bar(console, title, len(owners)) as bar:
        for indices in batches_by_length([sequence.length for sequence in sequences], BATCH_SIZE):
            batch = collate([sequences[index] for index in indices], model.tokenizer.pad_id).to(model.device)
            rows = states_after(model.encoder, batch, depths).to("cpu", torch.bfloat16)
            for index, row in zip(indices, rows, strict=True):
                states_by_sequence[index] = row[: sequences[index].length].clone()  # a view would keep the padding
            bar.advance(bar.task_ids[0], len(indices))
    states_by_example: list[list[Tensor]] = [[] for _ in examples]
    for (number, _), states in zip(owners, states_by_sequence, strict=True):
        states_by_example[number].append(states)
    return [replace(example, states=own) for example, own in zip(examples, states_by_example, strict=True)]
