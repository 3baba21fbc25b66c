"""Sentence vectors: pooling of hidden states, and the linear map after it.

Shapes: N texts, L columns, H hidden, V vocabulary, D of the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.errors import DataError
from litebert.model.heads import float32_linear

Pooling = Literal["mean", "cls", "max"]
"""The mean over tokens, the first token, or the maximum over tokens."""


@dataclass(frozen=True)
class SentenceMap:
    """Pooling and linear map as data. sentence-transformers calls the map Dense, and token weights WordWeights."""

    weight: np.ndarray
    """(D, H)"""
    bias: np.ndarray
    """(D,)"""
    tokens: np.ndarray | None = None
    """(V,) the weight of each token in the mean; uniform by default."""
    pooling: Pooling = "mean"
    passes: int = 1
    """Pool the mean of the hidden states after this many last passes."""
    of_length_one: bool = False
    """sentence-transformers calls it Normalize."""

    @classmethod
    def plain(cls, hidden: int, pooling: Pooling = "mean", passes: int = 1) -> SentenceMap:
        """Pooling alone."""
        return cls(np.eye(hidden, dtype=np.float32), np.zeros(hidden, np.float32), None, pooling, passes)

    @property
    def is_mean(self) -> bool:
        """Whether it is a mean of the last states, weighted or not."""
        return self.pooling == "mean" and self.passes == 1

    def __call__(self, means: np.ndarray) -> np.ndarray:  # (N, H) -> (N, D)
        # by torch: numpy's own threads, waiting busily for more, would take the cores from torch's for the next text
        inputs = (torch.from_numpy(np.asarray(array, dtype=np.float32)) for array in (means, self.weight, self.bias))
        vectors = F.linear(*inputs)
        return (F.normalize(vectors, dim=1) if self.of_length_one else vectors).numpy()


def unit(vectors: np.ndarray) -> np.ndarray:  # (N, D)
    """Each of length 1."""
    normalized: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return normalized


def weighted_mean(states: Tensor, weights: Tensor) -> Tensor:  # (N, L, H), (N, L) -> (N, H)
    """The weighted mean of the states; 0 where all weights are 0."""
    return (states.float() * (weights / weights.sum(1, keepdim=True).clamp(min=1e-9))[..., None]).sum(1)


class SentenceHead(nn.Module):
    """A `SentenceMap` as a module that can be trained: hidden states in, one vector per text out."""

    name = "sentence"
    """Its key in `Albert.heads`."""

    def __init__(self, settings: SentenceMap) -> None:
        super().__init__()
        self.pooling, self.passes, self.of_length_one = settings.pooling, settings.passes, settings.of_length_one
        self.is_mean = settings.is_mean
        self.linear = nn.Linear(settings.weight.shape[1], settings.weight.shape[0], device="meta").to_empty(
            device="cpu"
        )
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(settings.weight))
            self.linear.bias.copy_(torch.from_numpy(settings.bias))
        self.tokens: Tensor | None
        self.register_buffer("tokens", None if settings.tokens is None else torch.from_numpy(settings.tokens).float())

    def forward(self, states: Tensor, ids: Tensor, real: Tensor) -> Tensor:  # (N, L, H), (N, L) twice -> (N, D)
        vectors = float32_linear(self.linear, pooled(states, ids, real, self.pooling, self.tokens))
        return F.normalize(vectors, dim=1) if self.of_length_one else vectors

    def as_map(self) -> SentenceMap:
        weight, bias = (array.detach().float().cpu().numpy() for array in (self.linear.weight, self.linear.bias))
        tokens = None if self.tokens is None else self.tokens.cpu().numpy()
        return SentenceMap(weight, bias, tokens, self.pooling, self.passes, self.of_length_one)


def pooled(
    states: Tensor, ids: Tensor, real: Tensor, pooling: Pooling = "mean", tokens: Tensor | None = None
) -> Tensor:  # (N, L, H), (N, L) twice -> (N, H)
    """Pooled states. `tokens`, (V,), are weights of a mean, uniform by default."""
    if pooling == "cls":
        return states[:, 0].float()
    if pooling == "max":
        return states.float().masked_fill(~real[..., None].bool(), -torch.inf).amax(1)
    return weighted_mean(states, real.float() if tokens is None else tokens[ids] * real)


def whitened(means: np.ndarray, size: int | None = None) -> SentenceMap:
    """Whitening: the map after which vectors of such texts have mean 0 and equal variance in every direction.

    Means of hidden states lie in a narrow cone and differ mostly in a few directions that say little about the meaning;
    cosines are better when all have the same weight (Su et al. 2021). `size` keeps the directions of largest variance.
    """
    count, hidden = means.shape
    size = hidden if size is None else size
    if not 1 <= size <= hidden:
        raise DataError(f"size={size} must lie between 1 and the {hidden} of the vectors")
    if count < 2 * hidden:
        raise DataError(f"{count} texts are too few to say how {hidden} numbers vary; give {2 * hidden} or more")
    mean = means.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(np.cov((means - mean).T))
    order = np.argsort(-variances, kind="stable")[:size]
    # directions of almost no variance are not amplified
    scale = np.sqrt(np.maximum(variances[order], 1e-6 * variances.max()))
    weight = (directions[:, order] / scale).T
    return SentenceMap(weight.astype(np.float32), (-weight @ mean).astype(np.float32))
