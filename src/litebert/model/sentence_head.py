"""Vectors of sentences: what is taken of the tokens' hidden states, and what comes after it.

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
from litebert.model.heads import exact

Pooling = Literal["mean", "cls", "max"]
"""What stands for a text: the mean of its tokens, the first of them, or the largest of each number."""


@dataclass(frozen=True)
class SentenceMap:
    """How vectors are made, as data: what is pooled and a linear map of it. sentence-transformers calls the map Dense,
    and what the tokens count WordWeights."""

    weight: np.ndarray
    """(D, H)"""
    bias: np.ndarray
    """(D,)"""
    tokens: np.ndarray | None = None
    """(V,) how much each token counts in the mean; by default all count alike."""
    pooling: Pooling = "mean"
    passes: int = 1
    """The mean of the hidden states after so many last passes is pooled."""
    of_length_one: bool = False
    """sentence-transformers calls it Normalize."""

    @classmethod
    def plain(cls, hidden: int, pooling: Pooling = "mean", passes: int = 1) -> SentenceMap:
        """What is pooled, as it is."""
        return cls(np.eye(hidden, dtype=np.float32), np.zeros(hidden, np.float32), None, pooling, passes)

    @property
    def is_mean(self) -> bool:
        """Of the last states, weighted or not."""
        return self.pooling == "mean" and self.passes == 1

    def __call__(self, means: np.ndarray) -> np.ndarray:  # (N, H) -> (N, D)
        # by torch: numpy's own threads, waiting busily for more, would take the cores from torch's for the next text
        given = (torch.from_numpy(np.asarray(one, dtype=np.float32)) for one in (means, self.weight, self.bias))
        found = F.linear(*given)
        return (F.normalize(found, dim=1) if self.of_length_one else found).numpy()


def unit(vectors: np.ndarray) -> np.ndarray:  # (N, D)
    """Each of length 1."""
    found: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return found


def weighted_mean(states: Tensor, weights: Tensor) -> Tensor:  # (N, L, H), (N, L) -> (N, H)
    """In which the states count as the weights say; 0 where nothing counts."""
    return (states.float() * (weights / weights.sum(1, keepdim=True).clamp(min=1e-9))[..., None]).sum(1)


class SentenceHead(nn.Module):
    """The same as what learns and computes: hidden states in, one vector per text out."""

    name = "sentence"
    """Where it stands in `Albert.heads`."""

    def __init__(self, made: SentenceMap) -> None:
        super().__init__()
        self.pooling, self.passes, self.of_length_one = made.pooling, made.passes, made.of_length_one
        self.is_mean = made.is_mean
        self.linear = nn.Linear(made.weight.shape[1], made.weight.shape[0], device="meta").to_empty(device="cpu")
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(made.weight))
            self.linear.bias.copy_(torch.from_numpy(made.bias))
        self.tokens: Tensor | None
        self.register_buffer("tokens", None if made.tokens is None else torch.from_numpy(made.tokens).float())

    def forward(self, states: Tensor, ids: Tensor, real: Tensor) -> Tensor:  # (N, L, H), (N, L) twice -> (N, D)
        found = exact(self.linear, pooled(states, ids, real, self.pooling, self.tokens))
        return F.normalize(found, dim=1) if self.of_length_one else found

    def as_map(self) -> SentenceMap:
        weight, bias = (one.detach().float().cpu().numpy() for one in (self.linear.weight, self.linear.bias))
        tokens = None if self.tokens is None else self.tokens.cpu().numpy()
        return SentenceMap(weight, bias, tokens, self.pooling, self.passes, self.of_length_one)


def pooled(
    states: Tensor, ids: Tensor, real: Tensor, pooling: Pooling = "mean", tokens: Tensor | None = None
) -> Tensor:  # (N, L, H), (N, L) twice -> (N, H)
    """What stands for each text. `tokens`, (V,), says what each counts in a mean, by default alike."""
    if pooling == "cls":
        return states[:, 0].float()
    if pooling == "max":
        return states.float().masked_fill(~real[..., None].bool(), -torch.inf).amax(1)
    return weighted_mean(states, real.float() if tokens is None else tokens[ids] * real)


def whitened(means: np.ndarray, size: int | None = None) -> SentenceMap:
    """The map after which vectors of such texts have mean 0, and no direction stands out.

    Means of hidden states lie in a narrow cone and differ mostly in a few directions that say little about the meaning;
    cosines tell more when all count alike (Su et al. 2021). `size` keeps the strongest directions alone.
    """
    count, hidden = means.shape
    size = hidden if size is None else size
    if not 1 <= size <= hidden:
        raise DataError(f"size={size} must lie between 1 and the {hidden} of the vectors")
    if count < 2 * hidden:
        raise DataError(f"{count} texts are too few to say how {hidden} numbers vary; give {2 * hidden} or more")
    middle = means.mean(axis=0, dtype=np.float64)
    spread, directions = np.linalg.eigh(np.cov((means - middle).T))
    strongest = np.argsort(-spread, kind="stable")[:size]
    # what hardly varies is not blown up
    scale = np.sqrt(np.maximum(spread[strongest], 1e-6 * spread.max()))
    weight = (directions[:, strongest] / scale).T
    return SentenceMap(weight.astype(np.float32), (-weight @ middle).astype(np.float32))
