"""A head that is solved for, not trained: how alike a text and each example look from several sides, and one matrix.

Shapes: S sequences, L columns, H hidden, V vocabulary, M means (a depth and a view each), P pieces (of tokens, then of
characters), R runs of characters in a token, F features, N examples, K of their pieces that are not 0, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.model.albert import Encoder
from litebert.model.sentence_head import weighted_mean

PIECES = 8192
"""Places for tokens and pairs of neighbours, which share them by chance."""
SHARED = 2
"""Places for what two texts share."""
LETTERS = 4096
"""Places for runs of characters."""
RUNS = (2, 3, 4)
"""How long these are; a space before a word is a character too."""
LONGEST = 20
"""Characters of a token that are looked at."""
RAREST = 1e-6
GOLDEN = -7_046_029_254_386_353_131
"""2⁶⁴ divided by the golden ratio, as a signed number: the high bits of products with it are spread evenly."""
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
        spelling: Tensor | None = None,
    ) -> None:
        """Room for so many examples, and so many pieces of them that are not 0. With `spelling` characters count."""
        super().__init__()
        self.depths, self.views, self.pieces, self.bent = tuple(depths), tuple(views), pieces, bent
        self.frequency: Tensor
        """(V,) how likely each token is."""
        self.centre: Tensor
        """(M, H) what the means have in common."""
        self.spelling: Tensor | None
        """(V, R) the places of the runs of characters in each token, as `spelled` says; not saved, since the tokenizer
        knows."""
        self.surprise: Tensor
        """(LETTERS,) how large runs of characters count."""
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
        self.register_buffer("spelling", spelling, persistent=False)
        if spelling is not None:
            self.register_buffer("surprise", torch.ones(LETTERS))
        self.register_buffer("rows", torch.zeros(examples, means * hidden_size))
        self.register_buffer("owners", torch.zeros(kept, dtype=torch.int32))
        self.register_buffer("places", torch.zeros(kept, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(kept))
        self.register_buffer("weights", torch.zeros(examples, num_classes))

    @property
    def written(self) -> int:
        """P, what there is beside the means."""
        return self.pieces + LETTERS * (self.spelling is not None)

    def remember(self, rows: Tensor, weights: Tensor) -> None:  # (N, F), (N, C)
        """The features of the examples, and what likeness to each counts for every class."""
        means, pieces = rows.split([self.rows.shape[1], self.written], dim=1)
        owners, places = pieces.nonzero(as_tuple=True)
        self.rows, self.weights, self.values = means.contiguous(), weights, pieces[owners, places]
        self.owners, self.places = owners.int(), places.int()

    def check(self) -> None:
        """That what was loaded points at nothing that is not there."""
        for numbers, end in ((self.owners, len(self.rows)), (self.places, self.written)):
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
        if self.spelling is not None and not bool((self.surprise >= 0).all()):
            raise ValueError("a surprise is below 0")

    def forward(self, means: Tensor, *writing: Tensor) -> Tensor:  # (S, M, H), (S, places) each -> (S, C)
        with torch.autocast(means.device.type, enabled=False):
            return self.alike(means, *writing) @ self.weights

    def alike(self, means: Tensor, *writing: Tensor) -> Tensor:  # (S, M, H), (S, places) each -> (S, N)
        """How alike each of the examples is."""
        with torch.autocast(means.device.type, enabled=False):
            rows = features_of(means - self.centre, *writing)
            own, pieces = rows.split([self.rows.shape[1], self.written], dim=1)
            return likeness(own @ self.rows.T + self._in_common(pieces), self.bent)

    def _in_common(self, pieces: Tensor) -> Tensor:  # (S, P) -> (S, N)
        """Products with the pieces of the examples."""
        if torch.compiler.is_exporting():  # a graph has no sparse matrices
            products = pieces[:, self.places.long()] * self.values  # (S, K)
            none = torch.zeros(pieces.shape[0], len(self.rows), device=pieces.device)
            return none.scatter_add(1, self.owners.long().expand_as(products), products)
        known = torch.sparse_coo_tensor(
            torch.stack([self.owners, self.places]), self.values, (len(self.rows), self.written),
            check_invariants=False, is_coalesced=True,
        )  # fmt: skip
        return torch.sparse.mm(known, pieces.T).T

    def read(self, encoder: Encoder, ids: Tensor, real: Tensor, type_ids: Tensor) -> list[Tensor]:
        """(S, M, H), and where they count tokens and characters, (S, places) each: what `forward` takes."""
        found = [means_of(encoder, self.depths, self.views, self.frequency, ids, real, type_ids)]
        if self.pieces:
            found.append(pieces_of(ids, real, type_ids, self.frequency, self.pieces))
        if self.spelling is not None:
            found.append(letters_of(ids, real, self.spelling, self.surprise))
        return found


def likeness(cosines: Tensor, bent: bool) -> Tensor:
    """0 for what has nothing in common, 1 for what is equal; bent, less than the cosine in between, so that what is
    nearly equal counts more than much that is a little alike."""
    return torch.expm1(cosines) / math.expm1(1) if bent else cosines


def features_of(means: Tensor, *writing: Tensor) -> Tensor:  # (S, M, H), (S, places) each -> (S, F)
    """Side by side, each of one length, so that all have the same say."""
    sides = [*means.float().unbind(1), *writing]
    return torch.cat([F.normalize(side, dim=1) for side in sides], dim=1) / len(sides) ** 0.5


def means_of(
    encoder: Encoder, depths: Sequence[int], views: Sequence[View], frequency: Tensor, ids: Tensor, real: Tensor,
    type_ids: Tensor,
) -> Tensor:  # (S, M, H)  # fmt: skip
    """The mean hidden states after each of these passes, in each of these views."""
    if not depths:
        return torch.zeros(ids.shape[0], 0, encoder.config.hidden_size, device=ids.device)
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
    # rolled, not cut: what is one column shorter would be no graph for texts of any length
    pairs = (singles * 31 + ids.roll(-1, 1) + 1) % 2_147_483_647
    not_last = torch.arange(ids.shape[1], device=ids.device) < ids.shape[1] - 1
    both = (surprise + surprise.roll(-1, 1)) / 2 * (real & real.roll(-1, 1) & not_last)
    code, size = torch.cat([singles, pairs], 1), torch.cat([surprise, both], 1)
    sign = torch.where(code // PIECES % 2 == 0, 1.0, -1.0)
    return torch.zeros(ids.shape[0], PIECES, device=ids.device).scatter_add(1, code % PIECES, size * sign)


def letters_of(ids: Tensor, real: Tensor, spelling: Tensor, surprise: Tensor) -> Tensor:  # (S, L) -> (S, LETTERS)
    """Which runs of characters the tokens have, the rare ones larger: words that are spelled alike mean alike."""
    places = spelling[ids].long()  # (S, L, R)
    there = real[..., None].expand_as(places).float()
    counts = torch.zeros(ids.shape[0], LETTERS + 1, device=ids.device)
    return counts.scatter_add(1, places.flatten(1), there.flatten(1))[:, :LETTERS] * surprise


def spelled(words: Sequence[str]) -> Tensor:  # (V, R)
    """At which place each run of 2 to 4 characters of each word stands, and LETTERS where there are no more."""
    words = [word[:LONGEST] for word in words]
    width = max(RUNS[-1], *map(len, words))
    letters = "".join(word.ljust(width, "\0") for word in words).encode("utf-32-le")
    codes = torch.frombuffer(bytearray(letters), dtype=torch.int32).view(-1, width).long()
    found = []
    for size in RUNS:
        runs = codes.unfold(1, size, 1)  # (V, width - size + 1, size)
        code = torch.full(runs.shape[:2], size)
        for place in range(size):
            code = code * 1_000_003 + runs[..., place]
        mixed = code * GOLDEN >> 64 - LETTERS.bit_length() & LETTERS - 1
        found.append(torch.where(runs[..., -1] > 0, mixed, LETTERS))
    return torch.cat(found, 1).short()


def surprise_of(spelling: Tensor, frequency: Tensor) -> Tensor:  # (V, R), (V,) -> (LETTERS,)
    """How seldom a token has a run of characters of this place."""
    likely = frequency[:, None].expand(spelling.shape)
    total = torch.zeros(LETTERS + 1).scatter_add(0, spelling.flatten().long(), likely.flatten())
    return -total[:LETTERS].clamp(RAREST, 1).log()
