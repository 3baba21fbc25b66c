"""Losses for sentence vectors: CoSENT, multiple negatives ranking, supervised contrastive.

Shapes: B examples, C candidates, D of the vectors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE = 20.0
"""The factor of cosines, as in sentence-transformers: a temperature of 0.05."""


def cosent(cosines: Tensor, truth: Tensor) -> Tensor:  # (B,), (B,)
    """log(1 + Σ exp(λ(cos_j − cos_i))) over all pairs of pairs of which i is the more alike (CoSENT, Su 2022): only the
    order counts, as it does for Spearman's correlation."""
    cosines = SCALE * cosines
    off = cosines[None, :] - cosines[:, None]
    wrong_way = truth[:, None] > truth[None, :]
    off = off.masked_fill(~wrong_way, -torch.inf).flatten()
    return torch.logsumexp(torch.cat([off.new_zeros(1), off]), 0)


def multiple_negatives_ranking(anchors: Tensor, candidates: Tensor, same: Tensor) -> Tensor:  # (B, D), (C, D), (B, C)
    """Multiple negatives ranking: cross-entropy of each anchor's own candidate, the one of the same number, among all.

    `same` marks candidates that are the anchor itself, or also positive: they are no negatives.
    """
    own = torch.eye(len(anchors), len(candidates), dtype=torch.bool, device=anchors.device)
    scores = (SCALE * anchors @ candidates.T).masked_fill(same & ~own, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(anchors), device=anchors.device))


def supervised_contrastive(vectors: Tensor, owners: Tensor, temperature: float) -> Tensor:  # (B, D) of length 1, (B,)
    """Supervised contrastive loss (Khosla et al. 2020)."""
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    log_probability = (vectors @ vectors.T / temperature).masked_fill(itself, -torch.inf).log_softmax(1)
    same = (owners[:, None] == owners) & ~itself
    counts = same.sum(1)
    losses = -log_probability.where(same, 0.0).sum(1) / counts.clamp(min=1)
    return losses.sum() / (counts > 0).sum().clamp(min=1)
