"""The answer of /inside: attention maps of every pass, and what the model would predict after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from litebert.data.batches import Example
from litebert.errors import DataError
from litebert.fewshot import Adapted
from litebert.inference import Model
from litebert.inference.records import as_record
from litebert.model.attention_maps import attention_maps
from litebert.serve.limits import ApiError
from litebert.tasks import Mask, Task

MAX_TOKENS = 64
DECIMALS = 3


def inspect_text(model: Model, text: str) -> dict[str, Any]:
    """Tokens, the attention of every head in every pass, and the prediction after each pass."""
    encoding = model.tokenizer.encode([text])[0]
    if len(encoding.ids) > MAX_TOKENS:
        raise ApiError(
            400, f"text: {len(encoding.ids)} tokens; /inside shows up to {MAX_TOKENS}: shorten it", param="text"
        )
    with model.answering(), torch.inference_mode():
        maps = attention_maps(model.encoder, torch.tensor(encoding.ids, device=model.device))
    return {
        "tokens": encoding.tokens, "depths": len(maps), "heads": model.config.num_attention_heads,
        "attention": [[_rounded(head) for head in heads] for heads in maps],
        "by_depth": predictions_by_depth(model, text),
    }  # fmt: skip


def predictions_by_depth(model: Model, text: str) -> list[dict[str, Any]]:
    """The prediction from the hidden states after each pass; empty if the model makes none for a text alone."""
    task = model.task
    if task is None or task.has_fixed_depths or isinstance(model, Adapted):
        return []
    examples = _examples_of(model, task, text)
    if not examples:
        return []
    reader = Model(model.albert, model.tokenizer, task, model.max_length)  # without early exit
    reader.bf16 = model.bf16
    states = [_states_by_depth(model, example) for example in examples]
    record, predictions = task.parse(text, "text"), []
    for depth in range(1, model.passes + 1):
        at_depth = [
            replace(example, states=[sequence[:, depth - 1 : depth] for sequence in sequences])
            for example, sequences in zip(examples, states, strict=True)
        ]
        scores = reader.score_examples(task, at_depth)
        predictions.append({"depth": depth, "answer": as_record(task.answer(record, at_depth[0], scores[0]))})
    return predictions


def _examples_of(model: Model, task: Task[Any, Any], text: str) -> Sequence[Example]:
    """The text as the task reads it; nothing if it needs more than this text."""
    if isinstance(task, Mask) and model.tokenizer.specials["mask"] not in text:
        return []
    try:
        return task.features([task.parse(text, "text")], model.tokenizer, model.max_length)
    except DataError:
        return []


def _states_by_depth(model: Model, example: Example) -> list[Tensor]:  # (L, passes, H) for each sequence
    states = []
    for sequence in example.sequences:
        ids, types = (torch.tensor([row], device=model.device) for row in (sequence.ids, sequence.type_ids))
        with model.answering(), torch.inference_mode():
            by_depth = model.encoder.hidden_states_at(range(1, model.passes + 1), ids, None, types)
        states.append(torch.cat(by_depth).transpose(0, 1).cpu())
    return states


def _rounded(rows: Tensor) -> list[list[float]]:
    return [[round(value, DECIMALS) for value in row] for row in rows.tolist()]
