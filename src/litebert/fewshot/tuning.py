"""`litebert.adapt`: few-shot classification, with tuning of the encoder if there is time and it helps.

Tier instant trains nothing: ridge regression on the features of the frozen encoder. Tiers fast and full tune the
encoder first. Two-fold cross-validation decides which is used: each half of the examples is classified by what was
tuned on the other half. Leave-one-out on the examples that a model was tuned on would flatter it.

Shapes: N examples, M of them held out, C classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from litebert.errors import ConfigError
from litebert.fewshot.adapt import MAX_MISTAKES, MAX_UNLABELLED, Adapted, adapt_frozen, evenly_spaced, fit_adapted
from litebert.fewshot.contrastive import (
    BATCH_SIZE,
    TunedTier,
    num_steps,
    num_trained_passes,
    sample_batch,
    tune_encoder,
)
from litebert.fewshot.feature_sets import Background, default_depth, readable_names
from litebert.fewshot.head import FeatureView
from litebert.fewshot.ridge import calibrate_scale, smoothed_cross_entropy, stratified_halves
from litebert.fewshot.support_set import LeaveOneOutReport, SupportSet, Tier, Tuning
from litebert.fewshot.task import familiarity
from litebert.inference.model import Model
from litebert.tasks.text import TextInput

BeginProgress = Callable[[str, int], Callable[[], None]]
TIERS: tuple[TunedTier, ...] = ("fast", "full")
MIN_EXAMPLES_PER_CLASS = 4
"""On average; half of fewer are too few to tune on."""
READS_PER_TIER = 4
"""How often all examples are read for a tier: both halves, tuned and not, the final fit, and the states it stores."""
TRAINING_COST = 3
"""Of a trained pass, in passes of inference: forward and backward."""
GPU_SPEEDUP_PRIOR = 8
"""On a GPU training steps may be so much faster than the time of reading a few texts, which is mostly latency,
suggests: a guess over the budget by less than this factor is measured."""


@dataclass(frozen=True)
class HeldOutScores:
    """The scores of examples by models that were not tuned on them."""

    examples: np.ndarray
    """(M,) which examples."""
    scores: np.ndarray
    """(M, C), calibrated."""
    scale: float
    """The factor of the calibration."""
    familiar: np.ndarray
    """(M,)."""
    truth: np.ndarray
    """(M,)."""

    @property
    def losses(self) -> np.ndarray:
        return smoothed_cross_entropy(self.scores, self.truth)

    @property
    def accuracy(self) -> float:
        return float((self.scores.argmax(1) == self.truth).mean())


def adapt(
    model: Model,
    texts: Sequence[str | tuple[str, str]],
    labels: Sequence[Any],
    *,
    budget_s: float = 10.0,
    unlabelled: Sequence[str] = (),
    label_names: bool | None = None,
    skip_conflicts: bool = False,
    places: Sequence[str] = (),
    advance: Callable[[int], None] = lambda count: None,
    begin: BeginProgress = lambda title, steps: lambda: None,
) -> Adapted:
    """A classifier from a handful of labelled texts, or pairs of them, in about `budget_s` seconds.

    The examples are read once at least. If there is time for more, the encoder is tuned to them, and the tuned one is
    used if it is better on held-out examples. An adapted model gets the examples in addition and is not tuned again.

    `unlabelled`: texts of the same kind, whose mean is subtracted. `label_names`: use the names of the classes as
    examples; None: if that helps. `skip_conflicts`: leave out texts with two labels. `places`: where the examples
    stand, for errors. `advance` is called with the number of windows that were read, `begin` with the title and the
    number of steps of a longer task; it returns a function that is called after each step.
    """
    if not 0 <= budget_s < math.inf:
        raise ConfigError(f"budget_s={budget_s} must be 0 or more seconds; 0 reads the examples and tunes nothing")
    began = time.perf_counter()
    instant = adapt_frozen(
        model, texts, labels, unlabelled=unlabelled, label_names=label_names, skip_conflicts=skip_conflicts,
        places=places, advance=advance,
    )  # fmt: skip
    enough = instant.evidence.examples >= MIN_EXAMPLES_PER_CLASS * instant.evidence.classes
    if instant.tuning is not None or not enough or instant.base.answers_in_int8:
        return instant
    selection = TierSelection(instant, evenly_spaced(unlabelled, MAX_UNLABELLED), begin)
    adapted = selection.select(began, budget_s)
    seconds, results = time.perf_counter() - began, tuple(selection.results)
    adapted.evidence = replace(adapted.evidence, seconds=seconds, tier_results=results)
    return adapted


def adapt_with_tier(instant: Adapted, tier: TunedTier) -> Adapted:
    """Tune the encoder of a few-shot classifier by a tier, however long it takes and whether or not it helps."""
    selection = TierSelection(instant)
    return selection.fit(tier, selection.held_out_scores(tier))


def is_better(before: HeldOutScores, after: HeldOutScores) -> bool:
    """Whether the loss is lower by more than one standard error of the difference."""
    gain = before.losses - after.losses
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5)


@dataclass(frozen=True)
class _Fold:
    support: SupportSet
    """One half of the examples."""
    held_out: np.ndarray
    """(M,) the other half, without those that are the only one of their class."""
    instant: Adapted
    """The untuned classifier of this half."""


class TierSelection:
    """Compares the tiers by two-fold cross-validation."""

    def __init__(
        self, instant: Adapted, unlabelled: Sequence[str] = (), begin: BeginProgress = lambda title, steps: lambda: None
    ) -> None:
        self.instant, self.unlabelled, self.begin = instant, unlabelled, begin
        self.step_done: Callable[[], None] = lambda: None
        self.base, self.labels = instant.base, instant.labels
        # a tuned encoder makes other features than those that the background was computed from
        background = Background.empty(self.base, instant.support.records[0].text_b is not None)
        self.support = replace(instant.support, background=background, remarks=instant.evidence.remarks)
        self.classes = _classes(self.support, self.labels)
        self.results: list[tuple[Tier, float | None, float]] = []

    def select(self, began: float, budget_s: float) -> Adapted:
        """The best tier that there is time for."""
        best: TunedTier | None = None
        best_scores: HeldOutScores | None = None
        for tier in TIERS:
            now = time.perf_counter()
            seconds, left = self._estimate(tier, began + budget_s - now), began + budget_s - time.perf_counter()
            if seconds > left:
                self.results.append((tier, None, time.perf_counter() - began + seconds))
                continue
            steps = 2 * num_steps(len(self.classes) // 2)
            self.step_done = self.begin(f"tier {tier}, about {seconds:.0f} s", steps)
            if best_scores is None:
                best_scores = self.held_out_scores("instant")
                self.results.insert(0, ("instant", best_scores.accuracy, self.instant.evidence.seconds))
            scores = self.held_out_scores(tier)
            self.results.append((tier, scores.accuracy, time.perf_counter() - now))
            if is_better(best_scores, scores):
                best, best_scores = tier, scores
        if best is None or best_scores is None:
            return self.instant
        self.step_done = self.begin(f"tier {best}, all examples", num_steps(len(self.classes)))
        return self.fit(best, best_scores)

    def fit(self, tier: TunedTier, held_out: HeldOutScores) -> Adapted:
        """Tune on all examples. The kernel is exponential only if it was in both folds."""
        report, first = self.instant.evidence, self._folds[0].instant.evidence
        if report.exponential and not all(fold.instant.evidence.exponential for fold in self._folds):
            report = replace(report, exponential=False, ridge=first.ridge)
        return self._tune(tier, self.support, report, held_out)

    def _estimate(self, tier: TunedTier, left: float) -> float:
        """The seconds of a tier: a guess if it is far over the budget, else by the second of two training steps."""
        total, reading = len(self.classes), self.instant.evidence.seconds
        steps = num_steps(total) + 2 * num_steps(total // 2)
        depth = self._depth(self.instant.evidence)
        work = TRAINING_COST * num_trained_passes(tier, depth) / self.base.config.num_hidden_layers
        guess = reading * (steps * min(BATCH_SIZE, total) / total * work + READS_PER_TIER)
        if guess > GPU_SPEEDUP_PRIOR * left:
            return guess
        step_seconds: list[float] = []
        batch = sample_batch(self.classes, 0, 0)
        tune_encoder(
            self.base, [self.support.records[number] for number in batch], self.classes[batch], tier, depth, steps=2,
            hooks=[lambda step: step_seconds.append(step.seconds)],
        )  # fmt: skip
        return step_seconds[-1] * steps + reading * READS_PER_TIER

    @cached_property
    def _folds(self) -> list[_Fold]:
        only = np.flatnonzero(np.bincount(self.classes)[self.classes] == 1)
        folds = []
        for halves in stratified_halves(self.classes, 1):
            for learned, held_out in (halves, halves[::-1]):
                records = tuple(self.support.records[number] for number in np.union1d(learned, only))
                support = replace(self.support, records=records, remarks=())
                instant = fit_adapted(self.base, support, evaluate=False)
                folds.append(_Fold(support, np.setdiff1d(held_out, only), instant))
        return folds

    def held_out_scores(self, tier: Tier) -> HeldOutScores:
        """The scores of each half by what was tuned on the other."""
        examples = np.concatenate([fold.held_out for fold in self._folds])
        scores, familiar = [], []
        for fold in self._folds:
            model = fold.instant
            if tier != "instant":
                model = self._tune(tier, fold.support, fold.instant.evidence)
            scores.append(model.scores_of([self.support.records[number] for number in fold.held_out]))
            familiar.append(familiarity(scores[-1], model.levels))
        truth = self.classes[examples]
        scale = calibrate_scale(np.concatenate(scores), truth)
        return HeldOutScores(examples, np.concatenate(scores) * scale, scale, np.concatenate(familiar), truth)

    def _tune(
        self, tier: TunedTier, support: SupportSet, report: LeaveOneOutReport, held_out: HeldOutScores | None = None
    ) -> Adapted:
        """Tune on these examples and fit by the features chosen before, plus the depth that was tuned, which counts
        twice if it was among them."""
        names = readable_names(self.labels, report.label_names)
        records = [*support.records, *(TextInput(name) for name in names.values())]
        owners = np.concatenate([_classes(support, self.labels), np.array(list(names), dtype=int)])
        depth = self._depth(report)
        model, adapters = tune_encoder(self.base, records, owners, tier, depth, hooks=[lambda step: self.step_done()])
        depths = tuple(sorted([*report.depths, depth]))
        views: tuple[FeatureView, ...] = tuple(dict.fromkeys(("whole", *report.views)))  # "whole" is what was tuned
        features = replace(report.features, depths=depths, views=views)
        tuning = Tuning(tier, features, report.label_names, report.ridge)
        if held_out is not None:
            tuning = replace(
                tuning, scale=held_out.scale, familiar=tuple(held_out.familiar.tolist()), accuracy=held_out.accuracy,
                mistakes=self._mistakes(held_out), examples=len(support.records),
            )  # fmt: skip
        return fit_adapted(model, support, self.unlabelled if held_out else (), tuning=tuning, adapters=adapters)

    def _depth(self, report: LeaveOneOutReport) -> int:
        """How many passes are tuned: the deepest feature, or the default if that is deeper. More would cost more and do
        no better (docs/log.md)."""
        return max((default_depth(self.base.config.num_hidden_layers), *report.depths))

    def _mistakes(self, held_out: HeldOutScores) -> tuple[tuple[str, str, str], ...]:
        predictions, truth = held_out.scores.argmax(1), held_out.truth
        worst = [place for place in np.argsort(-held_out.losses) if predictions[place] != truth[place]]
        records = self.support.records
        return tuple(
            (records[held_out.examples[place]].shown, self.labels[truth[place]], self.labels[predictions[place]])
            for place in worst[:MAX_MISTAKES]
        )


def _classes(support: SupportSet, labels: Sequence[str]) -> np.ndarray:
    return np.array([labels.index(str(record.label)) for record in support.records])
