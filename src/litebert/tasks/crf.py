"""Sequences of tags: what they mean, which of them are valid, which is the likeliest, and how likely one is.

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
"""How tags mark where a span begins: B and I; B, I, E and S for one word alone; or not, so that each word is a span."""
PREFIXES = {"bio": "BI", "bioes": "BIES"}
SYNONYMS = {"M": "I", "L": "E", "U": "S"}  # BMES and BILOU are BIOES in other letters
OUTSIDE = ("O", "")
FORBIDDEN = -1e4  # in training, where an infinite score would give gradients that are not numbers
SPEED = 100.0
"""The CRF's scores are this many times its parameters: an encoder's learning rate is too small to move them by what
decides between tags."""

Part = tuple[str, str]
"""A prefix and a type: ("B", "PER")."""
Range = tuple[int, int, str]
"""The first word of a span, the first after it, and its type."""


def part_of(tag: str) -> Part:
    """What a tag says. One without prefix marks a span of one word."""
    prefix, dash, kind = tag.partition("-")
    prefix = SYNONYMS.get(prefix, prefix)
    if dash and kind and prefix in ("B", "I", "E", "S"):
        return prefix, kind
    return OUTSIDE if tag == "O" else ("S", tag)


def is_prefixed(tag: str) -> bool:
    return part_of(tag)[1] not in ("", tag)


def ranges_of(tags: Sequence[str]) -> list[Range]:
    """The spans of any sequence, valid or not, as conlleval reads it: the same rule serves IOB1, IOB2 and BIOES."""
    ranges: list[Range] = []
    begun: tuple[int, str] | None = None
    for number, tag in enumerate([*tags, "O"]):
        prefix, kind = part_of(tag)
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


def parts_of(count: int, ranges: Sequence[Range], scheme: Scheme) -> list[Part]:
    """The tags of so many words that mark these spans."""
    parts = [OUTSIDE] * count
    for first, end, kind in ranges:
        prefixes = ["S"] * (end - first)
        if scheme == "bio" or (scheme == "bioes" and end - first > 1):
            prefixes = ["B", *"I" * (end - first - 1)]
        if scheme == "bioes" and end - first > 1:
            prefixes[-1] = "E"
        parts[first:end] = [(prefix, kind) for prefix in prefixes]
    return parts


def may_follow(left: Part, right: Part, scheme: Scheme) -> bool:
    is_open = left[0] in ("B", "I")
    if right[0] in ("I", "E"):
        return is_open and left[1] == right[1]
    return not is_open or scheme != "bioes"


@dataclass(frozen=True)
class Chain:
    """What one tag after the other is worth, on top of what each word says."""

    transitions: np.ndarray
    """(C, C) from, to."""
    start: np.ndarray
    """(C,) for the first word."""
    end: np.ndarray
    """(C,) for the last."""

    def __add__(self, other: Chain) -> Chain:
        return Chain(self.transitions + other.transitions, self.start + other.start, self.end + other.end)


def rules_of(tags: Sequence[str], scheme: Scheme) -> Chain:
    """0 for what may follow, minus infinity for what may not."""
    parts = [part_of(tag) for tag in tags]
    allowed = np.array([[may_follow(left, right, scheme) for right in parts] for left in parts])
    first = np.array([may_follow(OUTSIDE, part, scheme) for part in parts])
    last = np.array([may_follow(part, OUTSIDE, scheme) for part in parts])
    return Chain(*(np.where(values, 0.0, -np.inf) for values in (allowed, first, last)))


def best_path(emissions: np.ndarray, chain: Chain) -> list[int]:  # (W, C)
    """The tags with the largest sum of scores (Viterbi)."""
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
    emissions: np.ndarray, chain: Chain, path: Sequence[int], ranges: Sequence[Range], continuing: np.ndarray
) -> list[float]:
    """For each span of a path, how likely exactly its words have exactly its tags, among all sequences that the chain
    allows. `continuing` (C, C) is True where the right tag makes the span of the left one longer."""
    if not ranges:
        return []
    before, after = _log_forward(emissions, chain), _log_backward(emissions, chain)
    total = np.logaddexp.reduce(before[-1] + chain.end)
    ended = np.where(continuing, -np.inf, chain.transitions)
    found = []
    for first, end, _ in ranges:
        tags = path[first:end]
        inside = sum(chain.transitions[pair] for pair in pairwise(tags))
        inside += emissions[range(first + 1, end), tags[1:]].sum()
        rest = (
            chain.end[tags[-1]]
            if end == len(emissions)
            else np.logaddexp.reduce(ended[tags[-1]] + emissions[end] + after[end])
        )
        found.append(float(np.exp(min(0.0, before[first, tags[0]] + inside + rest - total))))
    return found


def _log_forward(emissions: np.ndarray, chain: Chain) -> np.ndarray:  # (W, C)
    """What all beginnings up to a word with a tag are worth."""
    values = emissions + 0.0
    values[0] += chain.start
    for word in range(1, len(values)):
        values[word] += np.logaddexp.reduce(values[word - 1][:, None] + chain.transitions)
    return values


def _log_backward(emissions: np.ndarray, chain: Chain) -> np.ndarray:  # (W, C)
    """What all ends after a word with a tag are worth."""
    values = np.zeros_like(emissions) + chain.end
    for word in range(len(values) - 2, -1, -1):
        values[word] = np.logaddexp.reduce(chain.transitions + emissions[word + 1] + values[word + 1], axis=1)
    return values


class CrfHead(TokenHead):
    """Scores of every token, and of every pair of neighbouring tags: a linear-chain conditional random field."""

    def __init__(self, config: AlbertConfig, num_outputs: int, kind: HeadKind = "linear", dropout: float = 0.0) -> None:
        super().__init__(config, num_outputs, kind, dropout)
        self.transitions = nn.Parameter(torch.zeros(num_outputs, num_outputs))
        self.start = nn.Parameter(torch.zeros(num_outputs))
        self.end = nn.Parameter(torch.zeros(num_outputs))

    def chain(self, rules: Chain) -> dict[str, Tensor]:
        """Transitions, start and end with what the rules forbid made worthless."""
        given = {"transitions": self.transitions, "start": self.start, "end": self.end}
        return {
            name: (SPEED * values.float()).masked_fill(
                torch.from_numpy(np.isneginf(getattr(rules, name))).to(values.device), FORBIDDEN
            )
            for name, values in given.items()
        }


def log_likelihood(scores: Tensor, targets: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:  # (S,)
    """How likely the tags of the labelled columns are, those in between being left out; 0 where there are none.

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
