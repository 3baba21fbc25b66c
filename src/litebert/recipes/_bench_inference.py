"""`litebert bench infer`: vectors of texts, many and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from litebert.model import Albert
from litebert.recipes._bench_cases import Arena, Case, Measured, dtype_of, forward_operations, forward_traffic
from litebert.recipes.bench import OURS

AT_ONCE = {"cuda": 256, "cpu": 8}
SINGLE = (16, 64, 128)  # lengths of texts that come one at a time


def cases(arena: Arena) -> Iterator[Case]:
    config, rows = arena.config, arena.config.batch_size or AT_ONCE[arena.device.type]
    albert = Albert(arena.shape)
    if arena.model is not None:
        albert.encoder.load_state_dict(arena.model.encoder.state_dict())
    dtype = dtype_of(arena.bf16(training=False))
    encoders: dict[str, Callable[[Tensor, Tensor | None], Any]] = {
        who: partial(_asked, call.eval()) for who, (_, call) in arena.peers(albert, "AlbertModel", dtype).items()
    }
    encoders[OURS] = albert.to(arena.device, dtype).eval().encoder
    albert.encoder.use_eight(arena.precision(training=False) == "fp8")
    for length in config.length:
        yield _case(arena, encoders, f"{rows} texts of {length}", [[length] * rows])
    groups = arena.groups(rows, rows * max(config.length))  # as many tokens at once
    lengths = [length for group in groups for length in group]
    yield _case(arena, encoders, f"{len(lengths)} texts of {min(lengths)} to {max(lengths)}", groups)
    for length in (length for length in SINGLE if length <= arena.shape.max_position_embeddings):
        yield _case(arena, encoders, f"one text of {length}", [[length]])


def _case(
    arena: Arena,
    encoders: dict[str, Callable[[Tensor, Tensor | None], Any]],
    name: str,
    groups: Sequence[Sequence[int]],
) -> Case:
    given, dtype = [arena.texts(group) for group in groups], dtype_of(arena.bf16(training=False))

    @torch.inference_mode()
    def read(encode: Callable[[Tensor, Tensor | None], Any]) -> None:
        for ids, real in given:
            encode(ids, real)

    def measure() -> dict[str, Measured]:
        lengths = [length for group in groups for length in group]
        timings = arena.timed(name, {who: partial(read, encode) for who, encode in encoders.items()})
        operations = forward_operations(arena.shape, lengths)
        traffic = sum(forward_traffic(arena.shape, sum(group), dtype.itemsize) for group in groups)
        return {who: Measured(timing, sum(lengths), operations, traffic) for who, timing in timings.items()}

    return Case(name, dtype, measure)


def _asked(model: Any, ids: Tensor, real: Tensor | None) -> Any:
    return model(input_ids=ids, attention_mask=real)
