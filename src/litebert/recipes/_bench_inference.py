"""`litebert bench infer`: vectors of texts, many and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from litebert.model import Albert, Encoder
from litebert.recipes._bench_cases import Arena, Case, Measured, dtype_of, forward_operations, forward_traffic
from litebert.recipes.bench import OURS

AT_ONCE = {"cuda": 256, "cpu": 8}
SINGLE = (16, 64, 128)  # lengths of texts that come one at a time

Encode = Callable[[Tensor, Tensor | None, int], Any]
"""Gets ids, which of them are real, and how many."""


def cases(arena: Arena) -> Iterator[Case]:
    config, rows = arena.config, arena.config.batch_size or AT_ONCE[arena.device.type]
    albert = Albert(arena.shape)
    if arena.model is not None:
        albert.encoder.load_state_dict(arena.model.encoder.state_dict())
    dtype = dtype_of(arena.bf16(training=False))
    fixed, varying = (
        {who: partial(_asked, call.eval()) for who, (_, call) in found.items()}
        for found in (
            arena.peers(albert, "AlbertModel", dtype, mode="reduce-overhead"),  # CUDA graphs, as ours
            arena.peers(albert, "AlbertModel", dtype),
        )
    )
    fixed[OURS] = varying[OURS] = partial(_encoded, albert.to(arena.device, dtype).eval().encoder)
    albert.encoder.use_eight(arena.precision(training=False) == "fp8")
    for length in config.length:
        yield _case(arena, fixed, f"{rows} texts of {length}", [[length] * rows])
    groups = arena.groups(rows, rows * max(config.length))  # as many tokens at once
    lengths = [length for group in groups for length in group]
    yield _case(arena, varying, f"{len(lengths)} texts of {min(lengths)} to {max(lengths)}", groups)
    for length in (length for length in SINGLE if length <= arena.shape.max_position_embeddings):
        yield _case(arena, fixed, f"one text of {length}", [[length]])


def _case(
    arena: Arena,
    encoders: Mapping[str, Encode],
    name: str,
    groups: Sequence[Sequence[int]],
) -> Case:
    given, dtype = [arena.texts(group) for group in groups], dtype_of(arena.bf16(training=False))

    @torch.inference_mode()
    def read(encode: Encode) -> None:
        for (ids, real), group in zip(given, groups, strict=True):
            encode(ids, real, sum(group))

    def measure() -> dict[str, Measured]:
        lengths = [length for group in groups for length in group]
        timings = arena.timed(name, {who: partial(read, encode) for who, encode in encoders.items()})
        operations = forward_operations(arena.shape, lengths)
        traffic = sum(forward_traffic(arena.shape, sum(group), dtype.itemsize) for group in groups)
        return {who: Measured(timing, sum(lengths), operations, traffic) for who, timing in timings.items()}

    return Case(name, dtype, measure)


def _asked(model: Any, ids: Tensor, real: Tensor | None, _: int) -> Any:
    return model(input_ids=ids, attention_mask=real)


def _encoded(encoder: Encoder, ids: Tensor, real: Tensor | None, tokens: int) -> Tensor:
    return encoder(ids, real, tokens=tokens)
