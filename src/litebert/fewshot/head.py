"""A kernel classifier as a head: the similarity of a text to each support example, times a matrix of weights.

A text is compared by several features: mean hidden states after some passes (frequency-weighted), its tokens and
bigrams, and its character n-grams; the last two are hashed into buckets.

Shapes: S sequences, L columns, H hidden, V vocabulary, M means (a depth and a view each), G n-grams of a token,
P lexical features (tokens, then n-grams), F features, N examples, K non-zero lexical features, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.model.albert import Encoder
from litebert.model.sentence_head import weighted_mean

TOKEN_BUCKETS = 8192
"""Tokens and bigrams are hashed into so many features."""
OVERLAP_FEATURES = 2
"""Of a pair of texts: the overlap of their tokens, as a point on the unit circle."""
NGRAM_BUCKETS = 4096
"""Character n-grams are hashed into so many features."""
NGRAM_SIZES = (2, 3, 4)
"""The space before a word is a character too."""
MAX_TOKEN_CHARACTERS = 20
"""Longer tokens are cut for their n-grams."""
MIN_FREQUENCY = 1e-6
HASH_MULTIPLIER = -7_046_029_254_386_353_131
"""Fibonacci hashing: 2⁶⁴ divided by the golden ratio, as a signed number; the high bits of products are the hash."""
SIF_CONSTANT = 1e-3
"""Smooth inverse frequency (Arora et al. 2017): a token of frequency p has the weight a / (a + p) in a mean."""


FeatureView = Literal["whole", "apart"]
"""The mean over the whole input, or the absolute difference of the means of a pair's two texts."""


class FewShotHead(nn.Module):
    """Compares a text with the support examples; one score per class."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        depths: Sequence[int],
        num_token_features: int,
        num_classes: int,
        views: Sequence[FeatureView] = ("whole",),
        exponential: bool = False,
        num_examples: int = 0,
        num_nonzero: int = 0,
        token_ngrams: Tensor | None = None,
    ) -> None:
        """An empty head for so many examples with so many non-zero lexical features. Character n-grams are used if
        `token_ngrams` is given."""
        super().__init__()
        self.depths, self.views = tuple(depths), tuple(views)
        self.num_token_features, self.exponential = num_token_features, exponential
        self.frequency: Tensor
        """(V,) the probability of each token."""
        self.centre: Tensor
        """(M, H) the mean that is subtracted from the means."""
        self.token_ngrams: Tensor | None
        """(V, G) the buckets of each token's n-grams, of `hash_ngrams`; not saved, since the tokenizer decides them."""
        self.ngram_idf: Tensor
        """(NGRAM_BUCKETS,) the weight of n-grams."""
        self.rows: Tensor
        """(N, M·H) the means of the examples, as `concatenate` returns them."""
        self.example_index: Tensor
        """(K,) the examples of the non-zero lexical features."""
        self.feature_index: Tensor
        """(K,) which features these are."""
        self.values: Tensor
        """(K,) their values."""
        self.weights: Tensor
        """(N, C)."""
        means = len(self.depths) * len(self.views)
        self.register_buffer("frequency", torch.full((vocab_size,), 1 / vocab_size))
        self.register_buffer("centre", torch.zeros(means, hidden_size))
        self.register_buffer("token_ngrams", token_ngrams, persistent=False)
        if token_ngrams is not None:
            self.register_buffer("ngram_idf", torch.ones(NGRAM_BUCKETS))
        self.register_buffer("rows", torch.zeros(num_examples, means * hidden_size))
        self.register_buffer("example_index", torch.zeros(num_nonzero, dtype=torch.int32))
        self.register_buffer("feature_index", torch.zeros(num_nonzero, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(num_nonzero))
        self.register_buffer("weights", torch.zeros(num_examples, num_classes))

    @property
    def num_lexical(self) -> int:
        """P, the features beside the means."""
        return self.num_token_features + NGRAM_BUCKETS * (self.token_ngrams is not None)

    def set_tables(self, frequency: Tensor, ngram_idf: Tensor, centre: np.ndarray) -> None:
        """Store the token frequencies, the weights of n-grams if they are used, and the centre."""
        self.frequency.copy_(frequency)
        if self.token_ngrams is not None:
            self.ngram_idf.copy_(ngram_idf)
        self.centre.copy_(torch.from_numpy(centre))

    def set_examples(self, rows: Tensor, weights: Tensor) -> None:  # (N, F), (N, C)
        """Store the features of the examples and the weights."""
        means, lexical = rows.split([self.rows.shape[1], self.num_lexical], dim=1)
        examples, features = lexical.nonzero(as_tuple=True)
        self.rows, self.weights, self.values = means.contiguous(), weights, lexical[examples, features]
        self.example_index, self.feature_index = examples.int(), features.int()

    def check(self) -> None:
        """Refuse loaded tensors that cannot be right."""
        for indices, end in ((self.example_index, len(self.rows)), (self.feature_index, self.num_lexical)):
            if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < end:
                raise ValueError(f"an index is not between 0 and {end}")
        if bool((self.example_index.diff() < 0).any()):
            raise ValueError("the order of the examples is not ascending")
        if not all(bool(torch.isfinite(value).all()) for value in self.buffers()):
            raise ValueError("a value is not finite")
        if any(
            value.numel() and float(value.abs().max()) > 1.001 for value in (self.rows, self.values, self.frequency)
        ):
            raise ValueError("a feature or a frequency is not below 1")
        if not bool((self.frequency > 0).all()):
            raise ValueError("a frequency is not above 0")
        if self.token_ngrams is not None and not bool((self.ngram_idf >= 0).all()):
            raise ValueError("the weight of an n-gram is below 0")

    def forward(self, means: Tensor, *lexical: Tensor) -> Tensor:  # (S, M, H), (S, features) each -> (S, C)
        with torch.autocast(means.device.type, enabled=False):
            return self.similarities(means, *lexical) @ self.weights

    def similarities(self, means: Tensor, *lexical: Tensor) -> Tensor:  # (S, M, H), (S, features) each -> (S, N)
        """The kernel of each text and each example."""
        with torch.autocast(means.device.type, enabled=False):
            rows = concatenate(means - self.centre, *lexical)
            dense, sparse = rows.split([self.rows.shape[1], self.num_lexical], dim=1)
            return kernel(dense @ self.rows.T + self._lexical_products(sparse), self.exponential)

    def _lexical_products(self, lexical: Tensor) -> Tensor:  # (S, P) -> (S, N)
        """Products with the sparse lexical features of the examples."""
        if torch.compiler.is_exporting():  # a graph has no sparse matrices
            products = lexical[:, self.feature_index.long()] * self.values  # (S, K)
            zeros = torch.zeros(lexical.shape[0], len(self.rows), device=lexical.device)
            return zeros.scatter_add(1, self.example_index.long().expand_as(products), products)
        examples = torch.sparse_coo_tensor(
            torch.stack([self.example_index, self.feature_index]), self.values, (len(self.rows), self.num_lexical),
            check_invariants=False, is_coalesced=True,
        )  # fmt: skip
        return torch.sparse.mm(examples, lexical.T).T

    def features(self, encoder: Encoder, ids: Tensor, real: Tensor, type_ids: Tensor) -> list[Tensor]:
        """What `forward` takes: the means, (S, M, H), and the lexical features in use, (S, features) each."""
        features = [mean_states(encoder, self.depths, self.views, self.frequency, ids, real, type_ids)]
        if self.num_token_features:
            features.append(token_features(ids, real, type_ids, self.frequency, self.num_token_features))
        if self.token_ngrams is not None:
            features.append(ngram_features(ids, real, self.token_ngrams, self.ngram_idf))
        return features


def kernel(cosines: Tensor, exponential: bool) -> Tensor:
    """The similarity that the classifier uses, 0 for orthogonal and 1 for equal: the cosine, or an exponential of it,
    with which near neighbours count more."""
    return torch.expm1(cosines) / math.expm1(1) if exponential else cosines


def concatenate(means: Tensor, *lexical: Tensor) -> Tensor:  # (S, M, H), (S, features) each -> (S, F)
    """All features side by side, each normalized, so that they have equal weight."""
    features = [*means.float().unbind(1), *lexical]
    return torch.cat([F.normalize(feature, dim=1) for feature in features], dim=1) / len(features) ** 0.5


def mean_states(
    encoder: Encoder, depths: Sequence[int], views: Sequence[FeatureView], frequency: Tensor, ids: Tensor,
    real: Tensor, type_ids: Tensor,
) -> Tensor:  # (S, M, H)  # fmt: skip
    """The mean hidden states after each of these passes, in each view."""
    if not depths:
        return torch.zeros(ids.shape[0], 0, encoder.config.hidden_size, device=ids.device)
    states = encoder.hidden_states_at(depths, ids, real, type_ids)
    return torch.stack([_view(view, state, frequency[ids], real, type_ids) for state in states for view in views], 1)


def _view(view: FeatureView, states: Tensor, frequency: Tensor, real: Tensor, type_ids: Tensor) -> Tensor:  # (S, H)
    if view == "whole":
        return sif_mean(states, frequency, real)
    first, second = (sif_mean(states, frequency, real & (type_ids == segment)) for segment in (0, 1))
    return (first - second).abs()


def sif_mean(states: Tensor, frequency: Tensor, real: Tensor) -> Tensor:  # (S, L, H), (S, L), (S, L) -> (S, H)
    """The mean of the tokens' states, weighted by smooth inverse frequency."""
    return weighted_mean(states, SIF_CONSTANT / (SIF_CONSTANT + frequency) * real)


def token_features(
    ids: Tensor, real: Tensor, type_ids: Tensor, frequency: Tensor, num_features: int
) -> Tensor:  # (S, num_features)
    """The hashed tokens of a text; or of a pair, OVERLAP_FEATURES."""
    if num_features != OVERLAP_FEATURES:
        return hash_tokens(ids, real, frequency)
    first, second = (hash_tokens(ids, real & (type_ids == segment), frequency) for segment in (0, 1))
    overlap = F.cosine_similarity(first, second)
    return torch.stack([overlap, (1 - overlap.square()).clamp(min=0).sqrt()], dim=1)


def hash_tokens(ids: Tensor, real: Tensor, frequency: Tensor) -> Tensor:  # (S, L) -> (S, TOKEN_BUCKETS)
    """Tokens and bigrams, hashed with a sign and weighted by their information, -log p."""
    information = -frequency[ids].log() * real
    unigrams = (ids + 1) * 1_000_003 % 2_147_483_647
    # rolled, not cut: a tensor one column shorter cannot be exported for any length
    bigrams = (unigrams * 31 + ids.roll(-1, 1) + 1) % 2_147_483_647
    not_last = torch.arange(ids.shape[1], device=ids.device) < ids.shape[1] - 1
    both = (information + information.roll(-1, 1)) / 2 * (real & real.roll(-1, 1) & not_last)
    code, size = torch.cat([unigrams, bigrams], 1), torch.cat([information, both], 1)
    sign = torch.where(code // TOKEN_BUCKETS % 2 == 0, 1.0, -1.0)
    buckets = torch.zeros(ids.shape[0], TOKEN_BUCKETS, device=ids.device)
    return buckets.scatter_add(1, code % TOKEN_BUCKETS, size * sign)


def ngram_features(
    ids: Tensor, real: Tensor, token_ngrams: Tensor, ngram_idf: Tensor
) -> Tensor:  # (S, L) -> (S, NGRAM_BUCKETS)
    """Counts of the character n-grams of the tokens, weighted."""
    buckets = token_ngrams[ids].long()  # (S, L, G)
    ones = real[..., None].expand_as(buckets).float()
    counts = torch.zeros(ids.shape[0], NGRAM_BUCKETS + 1, device=ids.device)
    return counts.scatter_add(1, buckets.flatten(1), ones.flatten(1))[:, :NGRAM_BUCKETS] * ngram_idf


def hash_ngrams(words: Sequence[str]) -> Tensor:  # (V, G)
    """The bucket of each character n-gram of each word; NGRAM_BUCKETS where there are no more."""
    words = [word[:MAX_TOKEN_CHARACTERS] for word in words]
    width = max(NGRAM_SIZES[-1], *map(len, words))
    characters = "".join(word.ljust(width, "\0") for word in words).encode("utf-32-le")
    codes = torch.frombuffer(bytearray(characters), dtype=torch.int32).view(-1, width).long()
    buckets = []
    for size in NGRAM_SIZES:
        ngrams = codes.unfold(1, size, 1)  # (V, width - size + 1, size)
        code = torch.full(ngrams.shape[:2], size)
        for place in range(size):
            code = code * 1_000_003 + ngrams[..., place]
        hashed = code * HASH_MULTIPLIER >> 64 - NGRAM_BUCKETS.bit_length() & NGRAM_BUCKETS - 1
        buckets.append(torch.where(ngrams[..., -1] > 0, hashed, NGRAM_BUCKETS))
    return torch.cat(buckets, 1).short()


def ngram_idf(token_ngrams: Tensor, frequency: Tensor) -> Tensor:  # (V, G), (V,) -> (NGRAM_BUCKETS,)
    """The information of each bucket, -log of the probability that a token has such an n-gram."""
    probability = frequency[:, None].expand(token_ngrams.shape)
    total = torch.zeros(NGRAM_BUCKETS + 1).scatter_add(0, token_ngrams.flatten().long(), probability.flatten())
    return -total[:NGRAM_BUCKETS].clamp(MIN_FREQUENCY, 1).log()
