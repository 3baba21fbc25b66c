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
SCALES = np.exp(np.linspace(0.0, 6.0, 61))


@dataclass(frozen=True)
class Solution:
    """Scores of a text are its likeness to each example times `weights`; probabilities their softmax."""

    weights: np.ndarray
    """(N, C)."""
    left_out: np.ndarray
    """(M, C) scores of examples by what is solved without them; those that are the only one of their class are not
    among them."""
    truth: np.ndarray
    """(M,) their classes."""
    loss: float
    """Of their probabilities, in nats; infinite where there are none."""

    @property
    def accuracy(self) -> float | None:
        return float((self.left_out.argmax(1) == self.truth).mean()) if len(self.truth) else None


def solve(likeness: np.ndarray, owners: np.ndarray, count: int, names: int = 0, usual: bool = False) -> Solution:
    """Ridge regression on the classes from how alike examples are, (N, N), 1 where they are equal.

    The penalty (or `usual`: the usual one) and the scale suit examples left out best. The last `names` examples are
    names of classes, and are never left out. All classes count alike, however many examples they have; without the
    correction for that, a class would look worse whenever one of its own is left out.
    """
    sizes = np.bincount(owners, minlength=count)
    targets = np.eye(count)[owners] / sizes[owners, None] * sizes.mean()  # (N, C)
    known = np.flatnonzero(sizes[owners[: len(owners) - names]] > 1)
    truth = owners[known]
    best: Solution | None = None
    for ridge in RIDGES if len(known) and not usual else (USUAL_RIDGE,):
        inverse = np.linalg.inv(likeness + ridge * np.eye(len(likeness)))
        weights = inverse @ targets
        left_out = targets[known] - weights[known] / inverse[known, known][:, None]
        left_out[np.arange(len(known)), truth] *= sizes[truth] / (sizes[truth] - 1)
        scale, loss = _best_scale(left_out, truth) if len(known) else (USUAL_SCALE, math.inf)
        if best is None or loss < best.loss:
            best = Solution(weights * scale, left_out * scale, truth, loss)
    assert best is not None
    return best


def _best_scale(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    losses = [float(_losses(scores * scale, truth).mean()) for scale in SCALES]
    best = int(np.argmin(losses))
    return float(SCALES[best]), losses[best]


def _losses(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
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
