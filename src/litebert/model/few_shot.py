"""A head that is solved for, not trained: how alike a text and each example look from several sides, and one matrix.

Shapes: S sequences, L columns, H hidden, V vocabulary, M means (a depth and a view each), P pieces, F features,
N examples, K of their pieces that are not 0, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.model.albert import Encoder
from litebert.model.sentences import weighted_mean

PIECES = 8192
"""Places for tokens and pairs of neighbours, which share them by chance."""
SHARED = 2
"""Places for what two texts share."""
COMMON = 1e-3
"""A token this frequent counts half in a mean."""


View = Literal["whole", "apart"]
"""The mean of all that is read, or how far those of the two texts of a pair lie apart."""


class FewShotHead(nn.Module):
    """Means of hidden states after some passes, rare tokens first, beside the tokens themselves, and how alike those of
    the examples are; a score per class."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        depths: Sequence[int],
        pieces: int,
        num_classes: int,
        views: Sequence[View] = ("whole",),
        bent: bool = False,
        examples: int = 0,
        kept: int = 0,
    ) -> None:
        """Room for so many examples, and so many pieces of them that are not 0."""
        super().__init__()
        self.depths, self.views, self.pieces, self.bent = tuple(depths), tuple(views), pieces, bent
        self.frequency: Tensor
        """(V,) how likely each token is."""
        self.centre: Tensor
        """(M, H) what the means have in common."""
        self.rows: Tensor
        """(N, M·H) the means of the examples, as `features_of` gives them."""
        self.owners: Tensor
        """(K,) the examples of the pieces that are not 0."""
        self.places: Tensor
        """(K,) which pieces these are."""
        self.values: Tensor
        """(K,) what they are."""
        self.weights: Tensor
        """(N, C)."""
        means = len(self.depths) * len(self.views)
        self.register_buffer("frequency", torch.full((vocab_size,), 1 / vocab_size))
        self.register_buffer("centre", torch.zeros(means, hidden_size))
        self.register_buffer("rows", torch.zeros(examples, means * hidden_size))
        self.register_buffer("owners", torch.zeros(kept, dtype=torch.int32))
        self.register_buffer("places", torch.zeros(kept, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(kept))
        self.register_buffer("weights", torch.zeros(examples, num_classes))

    def remember(self, rows: Tensor, weights: Tensor) -> None:  # (N, F), (N, C)
        """The features of the examples, and what likeness to each counts for every class."""
        means, pieces = rows.split([self.rows.shape[1], self.pieces], dim=1)
        owners, places = pieces.nonzero(as_tuple=True)
        self.rows, self.weights, self.values = means.contiguous(), weights, pieces[owners, places]
        self.owners, self.places = owners.int(), places.int()

    def check(self) -> None:
        """That what was loaded points at nothing that is not there."""
        for numbers, end in ((self.owners, len(self.rows)), (self.places, self.pieces)):
            if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
                raise ValueError(f"a number is not between 0 and {end}")
        if bool((self.owners.diff() < 0).any()):
            raise ValueError("the order of the examples is not kept")
        if not all(bool(torch.isfinite(value).all()) for value in self.buffers()):
            raise ValueError("a value is not a number")
        if any(
            value.numel() and float(value.abs().max()) > 1.001 for value in (self.rows, self.values, self.frequency)
        ):
            raise ValueError("a feature or a frequency is not below 1")
        if not bool((self.frequency > 0).all()):
            raise ValueError("a frequency is not above 0")

    def forward(self, means: Tensor, tokens: Tensor | None) -> Tensor:  # (S, M, H), (S, P) -> (S, C)
        with torch.autocast(means.device.type, enabled=False):
            return self.alike(means, tokens) @ self.weights

    def alike(self, means: Tensor, tokens: Tensor | None) -> Tensor:  # (S, M, H), (S, P) -> (S, N)
        """How alike each of the examples is."""
        with torch.autocast(means.device.type, enabled=False):
            rows = features_of(means - self.centre, tokens if self.pieces else None)
            own, pieces = rows.split([self.rows.shape[1], self.pieces], dim=1)
            known = torch.sparse_coo_tensor(
                torch.stack([self.owners, self.places]), self.values, (len(self.rows), self.pieces),
                check_invariants=False, is_coalesced=True,
            )  # fmt: skip
            cosines = own @ self.rows.T + torch.sparse.mm(known, pieces.T).T
            return likeness(cosines, self.bent)

    def read(self, encoder: Encoder, ids: Tensor, real: Tensor, type_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """(S, M, H) and (S, P): what `forward` takes."""
        means = means_of(encoder, self.depths, self.views, self.frequency, ids, real, type_ids)
        return means, pieces_of(ids, real, type_ids, self.frequency, self.pieces) if self.pieces else None


def likeness(cosines: Tensor, bent: bool) -> Tensor:
    """0 for what has nothing in common, 1 for what is equal; bent, less than the cosine in between, so that what is
    nearly equal counts more than much that is a little alike."""
    return torch.expm1(cosines) / math.expm1(1) if bent else cosines


def features_of(means: Tensor, tokens: Tensor | None) -> Tensor:  # (S, M, H), (S, P) -> (S, F)
    """Side by side, each of one length, so that all have the same say."""
    sides = [*means.float().unbind(1), *([] if tokens is None else [tokens])]
    return torch.cat([F.normalize(side, dim=1) for side in sides], dim=1) / len(sides) ** 0.5


def means_of(
    encoder: Encoder, depths: Sequence[int], views: Sequence[View], frequency: Tensor, ids: Tensor, real: Tensor,
    type_ids: Tensor,
) -> Tensor:  # (S, M, H)  # fmt: skip
    """The mean hidden states after each of these passes, in each of these views."""
    if not depths:
        return torch.zeros(len(ids), 0, encoder.config.hidden_size, device=ids.device)
    states = encoder.after_passes(depths, ids, real, type_ids)
    return torch.stack([_viewed(view, state, frequency[ids], real, type_ids) for state in states for view in views], 1)


def _viewed(view: View, states: Tensor, frequency: Tensor, real: Tensor, type_ids: Tensor) -> Tensor:  # (S, H)
    if view == "whole":
        return mean_of(states, frequency, real)
    first, second = (mean_of(states, frequency, real & (type_ids == number)) for number in (0, 1))
    return (first - second).abs()


def mean_of(states: Tensor, frequency: Tensor, real: Tensor) -> Tensor:  # (S, L, H), (S, L), (S, L) -> (S, H)
    """The mean of tokens' states; of two tokens the rarer counts more."""
    return weighted_mean(states, COMMON / (COMMON + frequency) * real)


def pieces_of(ids: Tensor, real: Tensor, type_ids: Tensor, frequency: Tensor, pieces: int) -> Tensor:  # (S, P)
    """The tokens themselves; or, for two pieces, how much of a pair of texts is the same, as a place on a circle."""
    if pieces != SHARED:
        return tokens_of(ids, real, frequency)
    first, second = (tokens_of(ids, real & (type_ids == number), frequency) for number in (0, 1))
    share = F.cosine_similarity(first, second)
    return torch.stack([share, (1 - share.square()).clamp(min=0).sqrt()], dim=1)


def tokens_of(ids: Tensor, real: Tensor, frequency: Tensor) -> Tensor:  # (S, L) -> (S, P)
    """Which tokens and pairs of neighbours there are, each at a place that its ids decide, the rare ones larger."""
    surprise = -frequency[ids].log() * real
    singles = (ids + 1) * 1_000_003 % 2_147_483_647
    pairs = (singles[:, :-1] * 31 + ids[:, 1:] + 1) % 2_147_483_647
    both = (surprise[:, :-1] + surprise[:, 1:]) / 2 * (real[:, :-1] & real[:, 1:])
    code, size = torch.cat([singles, pairs], 1), torch.cat([surprise, both], 1)
    sign = torch.where(code // PIECES % 2 == 0, 1.0, -1.0)
    return torch.zeros(len(ids), PIECES, device=ids.device).scatter_add(1, code % PIECES, size * sign)
