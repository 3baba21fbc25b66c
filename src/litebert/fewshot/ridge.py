"""Kernel ridge regression on the classes, with closed-form leave-one-out scores.

Shapes: N examples, C classes, M examples that are left out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RIDGE_PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""A small penalty trusts single examples, a large one the mean of each class."""
DEFAULT_RIDGE, DEFAULT_SCALE = 1.0, 20.0
"""Where nothing can be left out: every class has one example."""
SCALES = np.exp(np.linspace(-3.0, 5.0, 81))
"""In units of the standard deviation of the scores."""


@dataclass(frozen=True)
class RidgeFit:
    """The scores of a text are its kernel with each example times `weights`; probabilities are their softmax."""

    weights: np.ndarray
    """(N, C)."""
    left_out_scores: np.ndarray
    """(M, C) the scores of each example by the fit without it."""
    left_out: np.ndarray
    """(M,) which examples these are: all whose class has another example, not counting its name."""
    truth: np.ndarray
    """(M,) their classes."""
    losses: np.ndarray
    """(M,) their cross-entropy, in nats."""
    ridge: float
    """The penalty."""
    scale: float
    """The factor in the weights and the scores."""

    @property
    def loss(self) -> float:
        """The mean; infinite where nothing can be left out."""
        return float(self.losses.mean()) if len(self.losses) else math.inf


def fit_ridge(
    kernel: np.ndarray, owners: np.ndarray, num_classes: int, num_names: int = 0, coarse: bool = False,
    ridge: float = 0.0,
) -> RidgeFit:  # fmt: skip
    """Fit the kernel, (N, N), of examples to their classes, `owners`.

    The penalty (unless it is given, or is the default with `coarse`) and the scale minimize the leave-one-out loss. The
    last `num_names` examples are names of classes, and are never left out. Classes are balanced, and a name weighs as
    much in a class of two as in one of ten; otherwise a class would change when one of its examples is left out.
    """
    real = len(owners) - num_names
    sizes = np.bincount(owners[:real], minlength=num_classes)
    one_hot = np.eye(num_classes)[owners]
    by_example, by_name = one_hot / sizes[owners, None] * sizes.mean(), one_hot.copy()  # (N, C)
    by_example[real:], by_name[:real] = 0.0, 0.0
    left_out = np.flatnonzero(sizes[owners[:real]] > 1)
    truth = owners[left_out]
    best: RidgeFit | None = None
    for penalty in RIDGE_PENALTIES if len(left_out) and not coarse and not ridge else (ridge or DEFAULT_RIDGE,):
        inverse = np.linalg.inv(kernel + penalty * np.eye(len(kernel)))
        own = inverse[left_out, left_out][:, None]
        weights = inverse @ by_example
        scores = by_example[left_out] - weights[left_out] / own
        scores[np.arange(len(left_out)), truth] *= sizes[truth] / (sizes[truth] - 1)
        if num_names:
            name_weights = inverse @ by_name
            weights, scores = weights + name_weights, scores - name_weights[left_out] / own
        scale = calibrate_scale(scores, truth, coarse) if len(left_out) else DEFAULT_SCALE
        losses = smoothed_cross_entropy(scores * scale, truth)
        if best is None or losses.mean() < best.loss:
            best = RidgeFit(weights * scale, scores * scale, left_out, truth, losses, penalty, scale)
    assert best is not None
    return best


def calibrate_scale(scores: np.ndarray, truth: np.ndarray, coarse: bool = False) -> float:
    """The factor of the scores with the lowest cross-entropy: temperature scaling."""
    scales = (SCALES[::4] if coarse else SCALES) / max(1e-9, float(scores.std()))
    return float(min(scales, key=lambda scale: float(smoothed_cross_entropy(scores * scale, truth).mean())))


def smoothed_cross_entropy(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:  # (M, C), (M,) -> (M,)
    """With label smoothing of 1 / (1 + M), as if one more example had gone to any class: no certainty after a few."""
    smoothing = 1 / (1 + len(truth))
    largest = scores.max(1, keepdims=True)
    log_total = np.log(np.exp(scores - largest).sum(1)) + largest[:, 0]
    target = (1 - smoothing) * scores[np.arange(len(truth)), truth] + smoothing * scores.mean(1)
    losses: np.ndarray = log_total - target
    return losses


def stratified_halves(classes: np.ndarray, times: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random halves of the examples, so many times, with half of every class in each."""
    rng = np.random.default_rng(seed)
    for _ in range(times):
        order = rng.permutation(len(classes))
        order = order[np.argsort(classes[order], kind="stable")]
        rank = np.arange(len(order)) - np.searchsorted(classes[order], classes[order])
        sizes = np.bincount(classes)[classes[order]]
        yield order[rank < sizes / 2], order[rank >= sizes / 2]
