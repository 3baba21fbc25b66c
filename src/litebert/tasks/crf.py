"""Tag sequences: schemes, validity, Viterbi decoding, span probabilities and a linear-chain CRF.

Shapes: S sequences, L columns, W words, C tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from litebert.data.batches import IGNORE_INDEX
from litebert.model import AlbertConfig, HeadKind, TokenHead

Scheme = Literal["bio", "bioes", "plain"]
"""The prefixes of tags: B and I; B, I, E and S (a single word); or none, so that each word is a span."""
PREFIXES = {"bio": "BI", "bioes": "BIES"}
PREFIX_SYNONYMS = {"M": "I", "L": "E", "U": "S"}  # of BMES and BILOU
OUTSIDE = ("O", "")
FORBIDDEN_SCORE = -1e4  # in training: an infinite score would give NaN gradients
LEARNING_RATE_FACTOR = 100.0
"""The CRF's scores are its parameters times this, since the encoder's learning rate is too small for them."""

TagParts = tuple[str, str]
"""A prefix and a type: ("B", "PER")."""
WordRange = tuple[int, int, str]
"""The first word of a span, its end (exclusive), and its type."""


def parse_tag(tag: str) -> TagParts:
    """Prefix and type of a tag. One without a prefix is a span of one word."""
    prefix, dash, kind = tag.partition("-")
    prefix = PREFIX_SYNONYMS.get(prefix, prefix)
    if dash and kind and prefix in ("B", "I", "E", "S"):
        return prefix, kind
    return OUTSIDE if tag == "O" else ("S", tag)


def is_prefixed(tag: str) -> bool:
    return parse_tag(tag)[1] not in ("", tag)


def word_ranges(tags: Sequence[str]) -> list[WordRange]:
    """The spans of any tag sequence, valid or not, by the rule of conlleval, for IOB1, IOB2 and BIOES."""
    ranges: list[WordRange] = []
    begun: tuple[int, str] | None = None
    for number, tag in enumerate([*tags, "O"]):
        prefix, kind = parse_tag(tag)
        goes_on = begun is not None and prefix in ("I", "E") and kind == begun[1]
        if begun is not None and not goes_on:
            ranges.append((begun[0], number, begun[1]))
            begun = None
        if begun is None and prefix != "O":
            begun = number, kind
        if begun is not None and prefix in ("E", "S"):
            ranges.append((begun[0], number + 1, begun[1]))
            begun = None
    return ranges


def tags_of_spans(count: int, ranges: Sequence[WordRange], scheme: Scheme) -> list[TagParts]:
    """The tags of `count` words with these spans."""
    parts = [OUTSIDE] * count
    for first, end, kind in ranges:
        prefixes = ["S"] * (end - first)
        if scheme == "bio" or (scheme == "bioes" and end - first > 1):
            prefixes = ["B", *"I" * (end - first - 1)]
        if scheme == "bioes" and end - first > 1:
            prefixes[-1] = "E"
        parts[first:end] = [(prefix, kind) for prefix in prefixes]
    return parts


def may_follow(left: TagParts, right: TagParts, scheme: Scheme) -> bool:
    is_open = left[0] in ("B", "I")
    if right[0] in ("I", "E"):
        return is_open and left[1] == right[1]
    return not is_open or scheme != "bioes"


@dataclass(frozen=True)
class TransitionScores:
    """Scores of tag transitions, added to the scores of the words."""

    transitions: np.ndarray
    """(C, C) from, to."""
    start: np.ndarray
    """(C,) of the first word's tag."""
    end: np.ndarray
    """(C,) of the last word's tag."""

    def __add__(self, other: TransitionScores) -> TransitionScores:
        return TransitionScores(self.transitions + other.transitions, self.start + other.start, self.end + other.end)


def transition_rules(tags: Sequence[str], scheme: Scheme) -> TransitionScores:
    """0 for valid transitions, minus infinity for the others."""
    parts = [parse_tag(tag) for tag in tags]
    allowed = np.array([[may_follow(left, right, scheme) for right in parts] for left in parts])
    first = np.array([may_follow(OUTSIDE, part, scheme) for part in parts])
    last = np.array([may_follow(part, OUTSIDE, scheme) for part in parts])
    return TransitionScores(*(np.where(values, 0.0, -np.inf) for values in (allowed, first, last)))


def viterbi(emissions: np.ndarray, chain: TransitionScores) -> list[int]:  # (W, C)
    """The tag sequence with the largest score."""
    best = emissions[0] + chain.start
    came_from = np.zeros(emissions.shape, dtype=np.int64)
    for word in range(1, len(emissions)):
        reached = best[:, None] + chain.transitions  # (C, C)
        came_from[word] = reached.argmax(0)
        best = reached.max(0) + emissions[word]
    path = [int((best + chain.end).argmax())]
    for word in range(len(emissions) - 1, 0, -1):
        path.append(int(came_from[word, path[-1]]))
    return path[::-1]


def range_probabilities(
    emissions: np.ndarray,
    chain: TransitionScores,
    path: Sequence[int],
    ranges: Sequence[WordRange],
    continuing: np.ndarray,
) -> list[float]:
    """The marginal probability of each span of a path, over all valid sequences. `continuing` (C, C) is True where the
    right tag continues the span of the left one."""
    if not ranges:
        return []
    before, after = _log_forward(emissions, chain), _log_backward(emissions, chain)
    total = np.logaddexp.reduce(before[-1] + chain.end)
    ended = np.where(continuing, -np.inf, chain.transitions)
    probabilities = []
    for first, end, _ in ranges:
        tags = path[first:end]
        inside = sum(chain.transitions[pair] for pair in pairwise(tags))
        inside += emissions[range(first + 1, end), tags[1:]].sum()
        rest = (
            chain.end[tags[-1]]
            if end == len(emissions)
            else np.logaddexp.reduce(ended[tags[-1]] + emissions[end] + after[end])
        )
        probabilities.append(float(np.exp(min(0.0, before[first, tags[0]] + inside + rest - total))))
    return probabilities


def _log_forward(emissions: np.ndarray, chain: TransitionScores) -> np.ndarray:  # (W, C)
    """Forward log-scores of each word and tag."""
    values = emissions + 0.0
    values[0] += chain.start
    for word in range(1, len(values)):
        values[word] += np.logaddexp.reduce(values[word - 1][:, None] + chain.transitions)
    return values


def _log_backward(emissions: np.ndarray, chain: TransitionScores) -> np.ndarray:  # (W, C)
    """Backward log-scores of each word and tag."""
    values = np.zeros_like(emissions) + chain.end
    for word in range(len(values) - 2, -1, -1):
        values[word] = np.logaddexp.reduce(chain.transitions + emissions[word + 1] + values[word + 1], axis=1)
    return values


class CrfHead(TokenHead):
    """A linear-chain conditional random field: scores of tokens and of tag transitions."""

    def __init__(self, config: AlbertConfig, num_outputs: int, kind: HeadKind = "linear", dropout: float = 0.0) -> None:
        super().__init__(config, num_outputs, kind, dropout)
        self.transitions = nn.Parameter(torch.zeros(num_outputs, num_outputs))
        self.start = nn.Parameter(torch.zeros(num_outputs))
        self.end = nn.Parameter(torch.zeros(num_outputs))

    def chain(self, rules: TransitionScores) -> dict[str, Tensor]:
        """Transitions, start and end, with the invalid ones masked."""
        parameters = {"transitions": self.transitions, "start": self.start, "end": self.end}
        return {
            name: (LEARNING_RATE_FACTOR * values.float()).masked_fill(
                torch.from_numpy(np.isneginf(getattr(rules, name))).to(values.device), FORBIDDEN_SCORE
            )
            for name, values in parameters.items()
        }


def log_likelihood(scores: Tensor, targets: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:  # (S,)
    """The log-likelihood of the tags of the labelled columns, without the columns between; 0 if there are none.

    `scores` are (S, L, C), `targets` (S, L) with IGNORED, `transitions` (C, C), `start` and `end` (C,).
    """
    labelled = targets != IGNORE_INDEX
    counts = labelled.sum(1)
    order = (~labelled).long().argsort(dim=1, stable=True)[:, : max(1, int(counts.max()))]  # (S, W) labelled ones first
    emissions = scores.float().gather(1, order[..., None].expand(-1, -1, scores.shape[-1]))  # (S, W, C)
    real = torch.arange(order.shape[1], device=scores.device) < counts[:, None]  # (S, W)
    tags = targets.gather(1, order).masked_fill(~real, 0)
    last = tags.gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0]
    gold = (emissions.gather(2, tags[..., None])[..., 0] * real).sum(1) + start[tags[:, 0]] + end[last]
    gold = gold + (transitions[tags[:, :-1], tags[:, 1:]] * real[:, 1:]).sum(1)
    reached = start + emissions[:, 0]  # (S, C)
    for word in range(1, order.shape[1]):
        further = (reached[:, :, None] + transitions).logsumexp(1) + emissions[:, word]
        reached = torch.where(real[:, word, None], further, reached)
    return (gold - (reached + end).logsumexp(1)) * (counts > 0)
