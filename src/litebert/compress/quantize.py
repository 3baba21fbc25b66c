"""Quantize a model to int8, and measure the error.

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
from litebert.interop.weights import MIN_QUANTIZED_SIZE
from litebert.model.backends.int8 import disable_int8, enable_int8, record_ranges
from litebert.model.backends.onednn_int8 import ActivationRanges
from litebert.model.quantize import quantize_per_row

MAX_EXAMPLES = 256
"""Examples for calibration, and as many others for the error."""
BATCH_SIZE = 16


@dataclass(frozen=True)
class QuantizationError:
    """Relative error of hidden states."""

    by_pass: list[float]
    """After each pass."""


def quantize_model(
    model: Model, examples: Sequence[Example] = (), advance: Callable[[int], None] = lambda count: None
) -> Model:
    """A copy of the model with int8 weights and computation.

    The examples calibrate the ranges of activations, which oneDNN uses; without them ranges are computed for every
    input.
    """
    if isinstance(model, Adapted):
        raise ConfigError("an adapted model reads by another; quantize that one, then adapt it to the same examples")
    if model.device.type != "cpu":
        raise ConfigError(
            f"the model is on {model.device}, and eight bits are for CPUs; bring it there: model.to('cpu')"
        )
    ranges = _calibrate(model, examples[:MAX_EXAMPLES], advance) if examples else ActivationRanges()
    albert = copy.deepcopy(model.albert).eval()
    disable_int8(albert.encoder)
    with torch.no_grad():
        for name, weight in albert.named_parameters():
            matrices = 3 if name.endswith("qkv.weight") else 1  # as they are saved
            if weight.dim() == 2 and weight.numel() > matrices * MIN_QUANTIZED_SIZE:
                whole, scale = quantize_per_row(weight)
                weight.copy_(whole * scale[:, None])
    quantized = Model(albert, model.tokenizer, model.task, model.max_length, model.sentence_map)
    quantized.int8, quantized.source = ranges, model.source
    enable_int8(albert.encoder, ranges)
    return quantized


def measure_error(
    model: Model, small: Model, examples: Sequence[Example], advance: Callable[[int], None] = lambda count: None
) -> QuantizationError:
    """Relative error of the hidden states of `small` after each pass."""
    if not examples:
        raise DataError("no example to measure on; give some that the ranges were not taken from")
    depths = range(1, model.config.num_hidden_layers + 1)
    squared_error = torch.zeros(len(depths), dtype=torch.float64)
    squared_norm = torch.zeros_like(squared_error)
    for batch in _batches(model, examples[:MAX_EXAMPLES]):
        inputs = batch.input_ids, batch.real, batch.token_type_ids
        with torch.inference_mode():
            before = model.encoder.hidden_states_at(depths, *inputs)
            with small.answering():
                after = small.encoder.hidden_states_at(depths, *inputs)
            for number, (before_states, after_states) in enumerate(zip(before, after, strict=True)):
                squared_error[number] += (after_states - before_states)[batch.real].double().square().sum()
                squared_norm[number] += before_states[batch.real].double().square().sum()
        advance(len(batch.input_ids))
    return QuantizationError((squared_error / squared_norm).sqrt().tolist())


def _calibrate(model: Model, examples: Sequence[Example], advance: Callable[[int], None]) -> ActivationRanges:
    with record_ranges(model.encoder) as ranges, torch.inference_mode():
        for batch in _batches(model, examples):
            model.encoder(batch.input_ids, batch.real, batch.token_type_ids)
            advance(len(batch.input_ids))
    return ranges


def _batches(model: Model, examples: Sequence[Example]) -> list[Batch]:
    alone = [Example([sequence]) for example in examples for sequence in example.sequences[:1]]
    groups = batches_by_length(
        [example.length for example in alone], BATCH_SIZE, min_length_ratio=1.0
    )  # padding has no say
    return [collate([alone[i] for i in group], model.tokenizer.pad_id).to(model.device) for group in groups]
