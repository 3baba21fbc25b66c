"""A model in eight bits, and what that costs.

Shapes: B sequences of L columns, H hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from litebert.data.batches import Batch, Example, batches_by_length, collate
from litebert.errors import ConfigError, DataError
from litebert.fewshot import Adapted
from litebert.inference import Model
from litebert.interop.weights import LARGE
from litebert.model.backends.int8 import disable_int8, enable_int8, record_ranges
from litebert.model.backends.onednn_int8 import ActivationRanges
from litebert.model.quantize import quantize_per_row

MOST = 256
"""Examples that ranges are taken from, and as many others that the loss is measured on."""
BATCH = 16


@dataclass(frozen=True)
class Loss:
    """How far hidden states are off, as a share of their length."""

    by_pass: list[float]
    """After each pass."""


def quantized(
    model: Model, examples: Sequence[Example] = (), advance: Callable[[int], None] = lambda count: None
) -> Model:
    """The model with weights of eight bits, which computes from them; the given one stays as it is.

    By the examples it is known between what numbers the inputs of products lie, for where oneDNN multiplies; without
    them that is looked at in every answer.
    """
    if isinstance(model, Adapted):
        raise ConfigError("an adapted model reads by another; quantize that one, then adapt it to the same examples")
    if model.device.type != "cpu":
        raise ConfigError(
            f"the model is on {model.device}, and eight bits are for CPUs; bring it there: model.to('cpu')"
        )
    ranges = _ranges(model, examples[:MOST], advance) if examples else ActivationRanges()
    albert = copy.deepcopy(model.albert).eval()
    disable_int8(albert.encoder)
    with torch.no_grad():
        for name, weight in albert.named_parameters():
            matrices = 3 if name.endswith("qkv.weight") else 1  # as they are saved
            if weight.dim() == 2 and weight.numel() > matrices * LARGE:
                whole, scale = quantize_per_row(weight)
                weight.copy_(whole * scale[:, None])
    found = Model(albert, model.tokenizer, model.task, model.max_length, model.sentence_map)
    found.int8, found.source = ranges, model.source
    enable_int8(albert.encoder, ranges)
    return found


def loss_of(
    model: Model, small: Model, examples: Sequence[Example], advance: Callable[[int], None] = lambda count: None
) -> Loss:
    """What the smaller one loses on these."""
    if not examples:
        raise DataError("no example to measure on; give some that the ranges were not taken from")
    depths = range(1, model.config.num_hidden_layers + 1)
    off = torch.zeros(len(depths), dtype=torch.float64)
    length = torch.zeros_like(off)
    for batch in _batches(model, examples[:MOST]):
        given = batch.input_ids, batch.real, batch.token_type_ids
        with torch.inference_mode():
            before = model.encoder.hidden_states_at(depths, *given)
            with small.answering():
                after = small.encoder.hidden_states_at(depths, *given)
            for number, (was, now) in enumerate(zip(before, after, strict=True)):
                off[number] += (now - was)[batch.real].double().square().sum()
                length[number] += was[batch.real].double().square().sum()
        advance(len(batch.input_ids))
    return Loss((off / length).sqrt().tolist())


def _ranges(model: Model, examples: Sequence[Example], advance: Callable[[int], None]) -> ActivationRanges:
    with record_ranges(model.encoder) as ranges, torch.inference_mode():
        for batch in _batches(model, examples):
            model.encoder(batch.input_ids, batch.real, batch.token_type_ids)
            advance(len(batch.input_ids))
    return ranges


def _batches(model: Model, examples: Sequence[Example]) -> list[Batch]:
    alone = [Example([sequence]) for example in examples for sequence in example.sequences[:1]]
    groups = batches_by_length([example.length for example in alone], BATCH, min_length_ratio=1.0)  # padding has no say
    return [collate([alone[i] for i in group], model.tokenizer.pad_id).to(model.device) for group in groups]
