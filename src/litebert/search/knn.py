"""Which vectors are nearest to a query: numbers in 32 bits, in eight, or their signs alone; exactly, block by block.

Shapes: Q queries, N vectors, D numbers of each, K results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from litebert.model.sentence_head import unit

Storage = Literal["float32", "int8", "binary"]
"""How vectors are kept: four bytes for a number, one, or one bit."""
BLOCK = 1 << 12  # vectors that are looked at at once: what they become in 32 bits stays in the CPU's cache
CANDIDATES = 8
"""Times as many as are asked for are found by signs alone, and ordered by what the query's numbers say."""


@dataclass(frozen=True)
class Hit:
    """A text that was found."""

    index: int
    text: str
    score: float
    """The cosine; from signs alone, an estimate of it."""


def shortened(vectors: np.ndarray, size: int | None) -> np.ndarray:  # (N, D) -> (N, size)
    """The first numbers alone, of length 1 again: what a model that learned such sizes can be asked for."""
    return unit(vectors[:, :size])


def packed(vectors: np.ndarray, storage: Storage) -> np.ndarray:
    """Vectors as they are kept: (N, D) of 32 or 8 bits, or (N, D / 8) bytes of signs. In eight bits each is as long as
    makes the best of them: cosines do not ask for lengths."""
    if storage == "float32":
        return np.ascontiguousarray(unit(vectors), dtype=np.float32)
    if storage == "binary":
        return np.packbits(vectors > 0, axis=1)
    largest = np.abs(vectors).max(axis=1, keepdims=True).clip(1e-12)
    return np.rint(vectors * (127 / largest)).astype(np.int8)


def nearest(
    queries: np.ndarray, parts: Iterable[np.ndarray], top: int, storage: Storage = "float32"
) -> tuple[np.ndarray, np.ndarray]:  # (Q, K) twice
    """Scores and places of the vectors that are nearest to each query, best first; places count through the parts."""
    queries = np.ascontiguousarray(unit(queries), dtype=np.float32)
    best_scores = np.empty((len(queries), 0), np.float32)
    best_places = np.empty((len(queries), 0), np.int64)
    before, wide = 0, torch.empty(BLOCK if storage == "int8" else 0, queries.shape[1])
    for part in parts:
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            scores, places = _best_of(queries, np.ascontiguousarray(block), top, storage, wide)
            best_scores = np.concatenate([best_scores, scores], axis=1)
            best_places = np.concatenate([best_places, places + before + start], axis=1)
            order = np.argsort(-best_scores, axis=1, kind="stable")[:, :top]
            best_scores = np.take_along_axis(best_scores, order, axis=1)
            best_places = np.take_along_axis(best_places, order, axis=1)
        before += len(part)
    return best_scores, best_places


def hits_among(queries: np.ndarray, vectors: np.ndarray, texts: Sequence[str], top: int) -> list[list[Hit]]:
    """The texts whose vectors, (N, D), are nearest to each query, (Q, D)."""
    scores, places = nearest(queries, [packed(vectors, "float32")] if len(texts) else [], top)
    return [
        [Hit(int(place), texts[place], float(score)) for score, place in zip(row, at, strict=True)]
        for row, at in zip(scores, places.tolist(), strict=True)
    ]


def _best_of(
    queries: np.ndarray, block: np.ndarray, top: int, storage: Storage, wide: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Of one block, in any order. `wide` is room for what eight bits become: new memory would cost more than the
    product does."""
    if storage == "binary":
        return _best_by_signs(queries, block, top)
    # by torch: numpy's threads, waiting busily, would take the cores from torch's for the next text
    vectors = torch.from_numpy(block)
    vectors = wide[: len(block)].copy_(vectors) if storage == "int8" else vectors
    scores = torch.from_numpy(queries) @ vectors.T
    if storage == "int8":
        scores /= vectors.norm(dim=1).clamp(min=1e-12)
    found = scores.topk(min(top, len(block)), dim=1)
    return found.values.numpy(), found.indices.numpy()


def _best_by_signs(queries: np.ndarray, block: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of which fewest signs differ, ordered by the cosine of the query and the signs."""
    size = queries.shape[1]
    wanted, count = np.packbits(queries > 0, axis=1), min(CANDIDATES * top, len(block))
    found_scores, found_places = [], []
    for query, bits in zip(queries, wanted, strict=True):
        different = _ones(block ^ bits)
        places = np.argpartition(different, count - 1)[:count]
        signs = np.unpackbits(block[places], axis=1, count=size).astype(np.float32) * 2 - 1
        scores = signs @ query / np.sqrt(size)
        order = np.argsort(-scores, kind="stable")[: min(top, count)]
        found_scores.append(scores[order])
        found_places.append(places[order])
    return np.stack(found_scores).astype(np.float32), np.stack(found_places)


def _ones(rows: np.ndarray) -> np.ndarray:  # (N, bytes) -> (N,)
    """How many bits of each row are 1."""
    if rows.shape[1] % 8 == 0 and hasattr(np, "bitwise_count"):  # which numpy 1 has not
        counts: np.ndarray = np.bitwise_count(rows.view(np.uint64)).sum(axis=1, dtype=np.int64)
        return counts
    return _BITS[rows].sum(axis=1, dtype=np.int64)


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
