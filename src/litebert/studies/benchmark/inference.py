"""`litebert bench infer`: hidden states of texts, in batches and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from litebert.model import Albert, Encoder
from litebert.model.backends import enable_fp8
from litebert.studies.benchmark.harness import (
    OURS,
    BenchmarkCase,
    Harness,
    Measurement,
    dtype_of,
    forward_bytes,
    forward_flops,
)

BATCH_SIZES = {"cuda": 256, "cpu": 8}
SINGLE_LENGTHS = (16, 64, 128)  # lengths of texts that come one at a time

Encode = Callable[[Tensor, Tensor | None, int], Any]
"""Takes ids, a mask, and the number of tokens."""


def cases(harness: Harness) -> Iterator[BenchmarkCase]:
    config, rows = harness.config, harness.config.batch_size or BATCH_SIZES[harness.device.type]
    albert = Albert(harness.shape)
    if harness.model is not None:
        albert.encoder.load_state_dict(harness.model.encoder.state_dict())
    dtype = dtype_of(harness.bf16(training=False))
    fixed, varying = (
        {who: partial(_call_transformers, call.eval()) for who, (_, call) in models.items()}
        for models in (
            harness.peers(albert, "AlbertModel", dtype, mode="reduce-overhead"),  # CUDA graphs, as ours
            harness.peers(albert, "AlbertModel", dtype),
        )
    )
    fixed[OURS] = varying[OURS] = partial(_call_encoder, albert.to(harness.device, dtype).eval().encoder)
    enable_fp8(albert.encoder, harness.precision(training=False) == "fp8")
    for length in config.length:
        yield _case(harness, fixed, f"{rows} texts of {length}", [harness.random_ids([length] * rows)])
    groups = harness.groups(rows, rows * max(config.length))  # as many tokens at once
    lengths = [len(text) for group in groups for text in group]
    yield _case(harness, varying, f"{len(lengths)} texts of {min(lengths)} to {max(lengths)}", groups)
    for length in (length for length in SINGLE_LENGTHS if length <= harness.shape.max_position_embeddings):
        yield _case(harness, fixed, f"one text of {length}", [harness.random_ids([length])])


def _case(
    harness: Harness,
    encoders: Mapping[str, Encode],
    name: str,
    groups: Sequence[Sequence[Sequence[int]]],
) -> BenchmarkCase:
    lengths, dtype = [[len(text) for text in group] for group in groups], dtype_of(harness.bf16(training=False))
    batches = [(*harness.batch_of(group), sum(sizes)) for group, sizes in zip(groups, lengths, strict=True)]

    @torch.inference_mode()
    def read(encode: Encode) -> None:
        for batch in batches:
            encode(*batch)

    def measure() -> dict[str, Measurement]:
        timings = harness.timed(name, {who: partial(read, encode) for who, encode in encoders.items()})
        operations = sum(forward_flops(harness.shape, sizes) for sizes in lengths)
        tokens = [sum(sizes) for sizes in lengths]
        traffic = sum(forward_bytes(harness.shape, count, dtype.itemsize) for count in tokens)
        return {who: Measurement(timing, sum(tokens), operations, traffic) for who, timing in timings.items()}

    return BenchmarkCase(name, dtype, measure)


def _call_transformers(model: Any, ids: Tensor, real: Tensor | None, _: int) -> Any:
    return model(input_ids=ids, attention_mask=real)


def _call_encoder(encoder: Encoder, ids: Tensor, real: Tensor | None, tokens: int) -> Tensor:
    return encoder(ids, real, tokens=tokens)
