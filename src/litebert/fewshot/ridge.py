"""A classifier by one equation, and what it would have said of each of its examples without having seen it.

Shapes: N examples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Small ones trust single examples, large ones the middle of each class."""
USUAL_RIDGE, USUAL_SCALE = 1.0, 20.0
"""Where nothing can be left out: every class has one example."""
SCALES = np.exp(np.linspace(-3.0, 5.0, 81))
"""In units of how far scores spread."""


@dataclass(frozen=True)
class Solution:
    """Scores of a text are its likeness to each example times `weights`; probabilities their softmax."""

    weights: np.ndarray
    """(N, C)."""
    left_out: np.ndarray
    """(M, C) scores of examples by what is solved without them."""
    asked: np.ndarray
    """(M,) which examples these are; not those that are the only one of their class, whatever it is called."""
    truth: np.ndarray
    """(M,) their classes."""
    losses: np.ndarray
    """(M,) of their probabilities, in nats."""
    ridge: float
    """The penalty."""
    scale: float
    """That is in the weights and the scores."""

    @property
    def loss(self) -> float:
        """Infinite where nothing can be left out."""
        return float(self.losses.mean()) if len(self.losses) else math.inf


def solve(
    likeness: np.ndarray, owners: np.ndarray, count: int, names: int = 0, roughly: bool = False, ridge: float = 0.0
) -> Solution:
    """Ridge regression on the classes from how alike examples are, (N, N), 1 where they are equal.

    The penalty (unless one is given, or `roughly`, with the usual one) and the scale suit examples left out best. The
    last `names` examples are names of classes, and are never left out. All classes count alike, however many examples
    they have, and a name counts as much in a class of two as in one of ten; else a class would change whenever one of
    its own is left out.
    """
    real = len(owners) - names
    sizes = np.bincount(owners[:real], minlength=count)
    one_hot = np.eye(count)[owners]
    by_example, by_name = one_hot / sizes[owners, None] * sizes.mean(), one_hot.copy()  # (N, C)
    by_example[real:], by_name[:real] = 0.0, 0.0
    known = np.flatnonzero(sizes[owners[:real]] > 1)
    truth = owners[known]
    best: Solution | None = None
    for penalty in RIDGES if len(known) and not roughly and not ridge else (ridge or USUAL_RIDGE,):
        inverse = np.linalg.inv(likeness + penalty * np.eye(len(likeness)))
        own = inverse[known, known][:, None]
        weights = inverse @ by_example
        left_out = by_example[known] - weights[known] / own
        left_out[np.arange(len(known)), truth] *= sizes[truth] / (sizes[truth] - 1)
        if names:
            named = inverse @ by_name
            weights, left_out = weights + named, left_out - named[known] / own
        scale = best_scale(left_out, truth, roughly) if len(known) else USUAL_SCALE
        losses = losses_of(left_out * scale, truth)
        if best is None or losses.mean() < best.loss:
            best = Solution(weights * scale, left_out * scale, known, truth, losses, penalty, scale)
    assert best is not None
    return best


def best_scale(scores: np.ndarray, truth: np.ndarray, roughly: bool = False) -> float:
    """With which probabilities suit best."""
    scales = (SCALES[::4] if roughly else SCALES) / max(1e-9, float(scores.std()))
    return float(min(scales, key=lambda scale: float(losses_of(scores * scale, truth).mean())))


def losses_of(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """As if one more example had gone to any of the classes: nobody is sure of everything after a handful."""
    doubt = 1 / (1 + len(truth))
    top = scores.max(1, keepdims=True)
    total = np.log(np.exp(scores - top).sum(1)) + top[:, 0]
    hoped = (1 - doubt) * scores[np.arange(len(truth)), truth] + doubt * scores.mean(1)
    found: np.ndarray = total - hoped
    return found


def halves(classes: np.ndarray, times: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Half of every class and the other half, so many times."""
    chance = np.random.default_rng(seed)
    for _ in range(times):
        order = chance.permutation(len(classes))
        order = order[np.argsort(classes[order], kind="stable")]
        place = np.arange(len(order)) - np.searchsorted(classes[order], classes[order])
        sizes = np.bincount(classes)[classes[order]]
        yield order[place < sizes / 2], order[place >= sizes / 2]
