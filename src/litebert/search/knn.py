"""Exact k-nearest-neighbour search by cosine, block by block, over float32 or int8 vectors.

Shapes: Q queries, N vectors, D dimensions, K results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from litebert.model.sentence_head import unit

Storage = Literal["float32", "int8"]
"""How vectors are stored: four bytes for each dimension, or one."""
BLOCK_SIZE = 1 << 12
"""Vectors scored at once: their float32 copy stays in the CPU's cache."""


@dataclass(frozen=True)
class Hit:
    """One search result."""

    index: int
    text: str
    score: float
    """The cosine of the query and the text."""


def truncate(vectors: np.ndarray, size: int | None) -> np.ndarray:  # (N, D) -> (N, size)
    """The first `size` dimensions, normalized again: for models trained with Matryoshka sizes."""
    return unit(vectors[:, :size])


def quantize(vectors: np.ndarray, storage: Storage) -> np.ndarray:  # (N, D)
    """Vectors as they are stored. In int8 each is scaled to use the whole range: cosines ignore the length."""
    if storage == "float32":
        return np.ascontiguousarray(unit(vectors), dtype=np.float32)
    largest = np.abs(vectors).max(axis=1, keepdims=True).clip(1e-12)
    return np.rint(vectors * (127 / largest)).astype(np.int8)


def nearest(
    queries: np.ndarray, parts: Iterable[np.ndarray], top: int, storage: Storage = "float32"
) -> tuple[np.ndarray, np.ndarray]:  # (Q, K) twice
    """Scores and positions of the vectors nearest to each query, best first; positions count through the parts."""
    queries = np.ascontiguousarray(unit(queries), dtype=np.float32)
    best_scores = np.empty((len(queries), 0), np.float32)
    best_positions = np.empty((len(queries), 0), np.int64)
    offset, buffer = 0, torch.empty(BLOCK_SIZE if storage == "int8" else 0, queries.shape[1])
    for part in parts:
        for start in range(0, len(part), BLOCK_SIZE):
            block = np.ascontiguousarray(part[start : start + BLOCK_SIZE])
            scores, positions = _top_of_block(queries, block, top, storage, buffer)
            best_scores = np.concatenate([best_scores, scores], axis=1)
            best_positions = np.concatenate([best_positions, positions + offset + start], axis=1)
            order = np.argsort(-best_scores, axis=1, kind="stable")[:, :top]
            best_scores = np.take_along_axis(best_scores, order, axis=1)
            best_positions = np.take_along_axis(best_positions, order, axis=1)
        offset += len(part)
    return best_scores, best_positions


def search_vectors(queries: np.ndarray, vectors: np.ndarray, texts: Sequence[str], top: int) -> list[list[Hit]]:
    """The texts whose vectors, (N, D), are nearest to each query, (Q, D)."""
    scores, positions = nearest(queries, [quantize(vectors, "float32")] if len(texts) else [], top)
    return hits_of(scores, positions, texts)


def hits_of(scores: np.ndarray, positions: np.ndarray, texts: Sequence[str]) -> list[list[Hit]]:  # (Q, K) twice
    return [
        [Hit(index, texts[index], float(score)) for score, index in zip(row, indices, strict=True)]
        for row, indices in zip(scores, positions.tolist(), strict=True)
    ]


def _top_of_block(
    queries: np.ndarray, block: np.ndarray, top: int, storage: Storage, buffer: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """The best of one block, in any order. int8 vectors are widened into `buffer`: fresh memory would cost more than
    the product."""
    # by torch: numpy's threads wait busily, and would take the cores that torch needs for the next text
    vectors = torch.from_numpy(block)
    vectors = buffer[: len(block)].copy_(vectors) if storage == "int8" else vectors
    scores = torch.from_numpy(queries) @ vectors.T
    if storage == "int8":
        scores /= vectors.norm(dim=1).clamp(min=1e-12)
    best = scores.topk(min(top, len(block)), dim=1)
    return best.values.numpy(), best.indices.numpy()
