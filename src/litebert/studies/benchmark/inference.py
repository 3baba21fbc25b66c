"""`litebert bench infer`: vectors of texts, many and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from litebert.commands.bench import OURS
from litebert.model import Albert, Encoder
from litebert.model.backends import enable_fp8
from litebert.studies.benchmark.harness import Arena, Case, Measured, dtype_of, forward_operations, forward_traffic

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
    enable_fp8(albert.encoder, arena.precision(training=False) == "fp8")
    for length in config.length:
        yield _case(arena, fixed, f"{rows} texts of {length}", [arena.made_up([length] * rows)])
    groups = arena.groups(rows, rows * max(config.length))  # as many tokens at once
    lengths = [len(text) for group in groups for text in group]
    yield _case(arena, varying, f"{len(lengths)} texts of {min(lengths)} to {max(lengths)}", groups)
    for length in (length for length in SINGLE if length <= arena.shape.max_position_embeddings):
        yield _case(arena, fixed, f"one text of {length}", [arena.made_up([length])])


def _case(
    arena: Arena,
    encoders: Mapping[str, Encode],
    name: str,
    groups: Sequence[Sequence[Sequence[int]]],
) -> Case:
    lengths, dtype = [[len(text) for text in group] for group in groups], dtype_of(arena.bf16(training=False))
    given = [(*arena.batch_of(group), sum(sizes)) for group, sizes in zip(groups, lengths, strict=True)]

    @torch.inference_mode()
    def read(encode: Encode) -> None:
        for batch in given:
            encode(*batch)

    def measure() -> dict[str, Measured]:
        timings = arena.timed(name, {who: partial(read, encode) for who, encode in encoders.items()})
        operations = sum(forward_operations(arena.shape, sizes) for sizes in lengths)
        tokens = [sum(sizes) for sizes in lengths]
        traffic = sum(forward_traffic(arena.shape, count, dtype.itemsize) for count in tokens)
        return {who: Measured(timing, sum(tokens), operations, traffic) for who, timing in timings.items()}

    return Case(name, dtype, measure)


def _asked(model: Any, ids: Tensor, real: Tensor | None, _: int) -> Any:
    return model(input_ids=ids, attention_mask=real)


def _encoded(encoder: Encoder, ids: Tensor, real: Tensor | None, tokens: int) -> Tensor:
    return encoder(ids, real, tokens=tokens)
