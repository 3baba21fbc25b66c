"""Vectors of sentences: how much each token counts in the mean, and what comes after it.

Shapes: N texts, L columns, H hidden, V vocabulary, D of the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.errors import DataError


@dataclass(frozen=True)
class SentenceMap:
    """A linear map of the mean; sentence-transformers calls it Dense, and what the tokens count WordWeights."""

    weight: np.ndarray
    """(D, H)"""
    bias: np.ndarray
    """(D,)"""
    tokens: np.ndarray | None = None
    """(V,) how much each token counts in the mean; by default all count alike."""

    def __call__(self, means: np.ndarray) -> np.ndarray:  # (N, H) -> (N, D)
        # by torch: numpy's own threads, waiting busily for more, would take the cores from torch's for the next text
        given = (torch.from_numpy(np.asarray(one, dtype=np.float32)) for one in (means, self.weight, self.bias))
        return F.linear(*given).numpy()


def weighted_mean(states: Tensor, weights: Tensor) -> Tensor:  # (N, L, H), (N, L) -> (N, H)
    """In which the states count as the weights say; 0 where nothing counts."""
    return (states.float() * (weights / weights.sum(1, keepdim=True).clamp(min=1e-9))[..., None]).sum(1)


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
