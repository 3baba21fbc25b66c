"""An encoder that does not learn says the same of a text in every epoch: it is asked once."""

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

STATES_LIMIT_BYTES = 8 << 30
BATCH_SIZE = 64


def bytes_of(examples: Sequence[Example], depths: Sequence[int], hidden_size: int) -> int:
    """What their states weigh in bfloat16."""
    tokens = sum(len(sequence.ids) for example in examples for sequence in example.sequences)
    return 2 * tokens * len(depths) * hidden_size


@torch.inference_mode()
def read_once(model: Model, examples: Sequence[Example], depths: Sequence[int], console: Console) -> list[Example]:
    """The same examples, with what the encoder says of them after each of these numbers of passes, on the CPU."""
    owners = [(number, row) for number, example in enumerate(examples) for row in range(len(example.sequences))]
    alone = [Example([examples[number].sequences[row]]) for number, row in owners]
    states: list[list[Tensor]] = [[] for _ in examples]
    found: list[Tensor] = [torch.empty(0)] * len(owners)
    title = f"the encoder reads {len(examples):,} texts, once"
    with model.answering(), progress_bar(console, title, len(owners)) as bar:
        for indices in batches_by_length([example.length for example in alone], BATCH_SIZE):
            batch = collate([alone[index] for index in indices], model.tokenizer.pad_id).to(model.device)
            rows = states_after(model.encoder, batch, depths).to("cpu", torch.bfloat16)
            for index, row in zip(indices, rows, strict=True):
                found[index] = row[: alone[index].length].clone()  # a view would keep the padding in memory
            bar.advance(bar.task_ids[0], len(indices))
    for (number, _), one in zip(owners, found, strict=True):
        states[number].append(one)
    return [replace(example, states=some) for example, some in zip(examples, states, strict=True)]
