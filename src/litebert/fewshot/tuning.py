"""How much a model should learn from a handful of examples, by what that brings and how long it takes.

Tier instant learns nothing: one equation on what the model says. Tiers fast and full tune the model before that. Which
is used is decided by examples that were not tuned on: half of them are learned, the others asked, and the other way
round. Nothing that a tuned model says of its own examples counts, left out of the equation or not.

Shapes: N examples, M of them asked, C classes.
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
from litebert.fewshot.adapt import MOST_UNLABELLED, SHOWN, Adapted, evenly, solved
from litebert.fewshot.adapt import adapt as adapt_instantly
from litebert.fewshot.contrastive import BATCH, TunedTier, batch_at, learning_passes, steps_for, tune
from litebert.fewshot.feature_sets import Around, readable, usual_depth
from litebert.fewshot.head import View
from litebert.fewshot.ridge import best_scale, halves, losses_of
from litebert.fewshot.support_set import Evidence, Given, Tier, Tuning
from litebert.fewshot.task import familiarity
from litebert.inference import Model
from litebert.tasks.text import TextInput

Begin = Callable[[str, int], Callable[[], None]]
TIERS: tuple[TunedTier, ...] = ("fast", "full")
FEWEST = 4
"""Examples per class, on average, below which half of them are too few to tune on."""
READINGS = 4
"""How often all examples are read for a tier: both ways by halves, tuned and not, at the end, and for what is kept."""
WORK = 3
"""Of a pass that learns, in passes that are read: forward and backward."""
HOPE = 8
"""A GPU may be so much faster at steps than a handful of texts, for which it mostly waits, lets one think."""


@dataclass(frozen=True)
class Asked:
    """What was said of examples by models that had not seen them."""

    numbers: np.ndarray
    """(M,) which examples."""
    scores: np.ndarray
    """(M, C), so that their softmax suits."""
    scale: float
    """By which they were multiplied for that."""
    familiar: np.ndarray
    """(M,)."""
    truth: np.ndarray
    """(M,)."""

    @property
    def losses(self) -> np.ndarray:
        return losses_of(self.scores, self.truth)

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
    begin: Begin = lambda title, steps: lambda: None,
) -> Adapted:
    """A classifier from a handful of labelled texts, or pairs of them, in about `budget_s` seconds.

    Reading them once is the least that it takes. Where there is time for more, the model is tuned to them, if examples
    that it was not tuned on say that this is better. An adapted model gets more examples and is not tuned again.
    `unlabelled` texts say what is usual. `label_names`: let the names of the classes count as examples; None: if that
    helps. `skip_conflicts`: leave out texts that have two labels. `places` say where examples stand, for errors;
    `advance` hears how many windows of texts are read, and `begin` what takes so many steps, each of which is reported
    to what it returns.
    """
    if not 0 <= budget_s < math.inf:
        raise ConfigError(f"budget_s={budget_s} must be 0 or more seconds; 0 reads the examples and tunes nothing")
    began = time.perf_counter()
    instant = adapt_instantly(
        model, texts, labels, unlabelled=unlabelled, label_names=label_names, skip_conflicts=skip_conflicts,
        places=places, advance=advance,
    )  # fmt: skip
    enough = instant.evidence.examples >= FEWEST * instant.evidence.classes
    if instant.tuning is not None or not enough or instant.base.answers_in_int8:
        return instant
    contest = _Contest(instant, evenly(unlabelled, MOST_UNLABELLED), begin)
    found = contest.winner(began, budget_s)
    found.evidence = replace(found.evidence, seconds=time.perf_counter() - began, tried=tuple(contest.tried))
    return found


def tuned(instant: Adapted, tier: TunedTier) -> Adapted:
    """What a tier makes of the examples of an adapted model, however long it takes and whatever it brings."""
    contest = _Contest(instant)
    return contest.made(tier, contest.asked(tier))


def is_better(before: Asked, after: Asked) -> bool:
    """By more than chance would usually have it: one standard error of the difference."""
    gain = before.losses - after.losses
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5)


@dataclass(frozen=True)
class _Half:
    """Of the examples."""

    learned: Given
    asked: np.ndarray
    """(M,) which of all examples the other half are, without those that are the only one of their class."""
    instant: Adapted
    """What the untuned model makes of what is learned."""


class _Contest:
    """Tiers against each other."""

    def __init__(
        self, instant: Adapted, unlabelled: Sequence[str] = (), begin: Begin = lambda title, steps: lambda: None
    ) -> None:
        self.instant, self.unlabelled, self.begin = instant, unlabelled, begin
        self.stepped: Callable[[], None] = lambda: None
        self.base, self.labels = instant.base, instant.labels
        nothing = Around.none(self.base, instant.given.records[0].text_b is not None)  # is known of how tuned ones read
        self.given = replace(instant.given, around=nothing, remarks=instant.evidence.remarks)
        self.classes = _classes(self.given, self.labels)
        self.tried: list[tuple[Tier, float | None, float]] = []

    def winner(self, began: float, budget_s: float) -> Adapted:
        """The best of those that there is time for."""
        best: TunedTier | None = None
        asked: Asked | None = None
        for tier in TIERS:
            here = time.perf_counter()
            seconds, left = self._seconds(tier, began + budget_s - here), began + budget_s - time.perf_counter()
            if seconds > left:
                self.tried.append((tier, None, time.perf_counter() - began + seconds))
                continue
            steps = 2 * steps_for(len(self.classes) // 2)
            self.stepped = self.begin(f"tier {tier}, about {seconds:.0f} s", steps)
            if asked is None:
                asked = self.asked("instant")
                self.tried.insert(0, ("instant", asked.accuracy, self.instant.evidence.seconds))
            other = self.asked(tier)
            self.tried.append((tier, other.accuracy, time.perf_counter() - here))
            if is_better(asked, other):
                best, asked = tier, other
        if best is None or asked is None:
            return self.instant
        self.stepped = self.begin(f"tier {best}, all examples", steps_for(len(self.classes)))
        return self.made(best, asked)

    def made(self, tier: TunedTier, asked: Asked) -> Adapted:
        """Of all examples. Likeness is bent only if it was in what was asked."""
        before, half = self.instant.evidence, self._halves[0].instant.evidence
        if before.bent and not all(one.instant.evidence.bent for one in self._halves):
            before = replace(before, bent=False, ridge=half.ridge)
        return self._tuned(tier, self.given, before, asked)

    def _seconds(self, tier: TunedTier, left: float) -> float:
        """That a tier takes: by two steps, of which the second counts, since the first also warms up."""
        total, reading = len(self.classes), self.instant.evidence.seconds
        steps = steps_for(total) + 2 * steps_for(total // 2)
        depth = self._depth(self.instant.evidence)
        work = WORK * learning_passes(tier, depth) / self.base.config.num_hidden_layers
        guess = reading * (steps * min(BATCH, total) / total * work + READINGS)
        if guess > HOPE * left:
            return guess
        taken: list[float] = []
        some = batch_at(self.classes, 0, 0)
        tune(
            self.base, [self.given.records[number] for number in some], self.classes[some], tier, depth, steps=2,
            hooks=[lambda step: taken.append(step.seconds)],
        )  # fmt: skip
        return taken[-1] * steps + reading * READINGS

    @cached_property
    def _halves(self) -> list[_Half]:
        single = np.flatnonzero(np.bincount(self.classes)[self.classes] == 1)
        found = []
        for both in halves(self.classes, 1):
            for learned, asked in (both, both[::-1]):
                records = tuple(self.given.records[number] for number in np.union1d(learned, single))
                given = replace(self.given, records=records, remarks=())
                found.append(_Half(given, np.setdiff1d(asked, single), solved(self.base, given, judged=False)))
        return found

    def asked(self, tier: Tier) -> Asked:
        """Models that know one half, about the other."""
        numbers = np.concatenate([half.asked for half in self._halves])
        scores, familiar = [], []
        for half in self._halves:
            before = half.instant.evidence
            model = half.instant if tier == "instant" else self._tuned(tier, half.learned, before)
            scores.append(model.scores_of([self.given.records[number] for number in half.asked]))
            familiar.append(familiarity(scores[-1], model.levels))
        truth = self.classes[numbers]
        scale = best_scale(np.concatenate(scores), truth)
        return Asked(numbers, np.concatenate(scores) * scale, scale, np.concatenate(familiar), truth)

    def _tuned(self, tier: TunedTier, given: Given, before: Evidence, asked: Asked | None = None) -> Adapted:
        """Tuned on these examples, and looked at from the sides that were best before, and after the passes tuned: if
        that was a side, it now counts twice."""
        names = readable(self.labels, before.label_names)
        records = [*given.records, *(TextInput(name) for name in names.values())]
        owners = np.concatenate([_classes(given, self.labels), np.array(list(names), dtype=int)])
        depth = self._depth(before)
        model, adapters = tune(self.base, records, owners, tier, depth, hooks=[lambda step: self.stepped()])
        depths = tuple(sorted([*before.depths, depth]))
        views: tuple[View, ...] = tuple(dict.fromkeys(("whole", *before.views)))  # what was tuned must be seen
        tuning = Tuning(tier, replace(before.sides, depths=depths, views=views), before.label_names, before.ridge)
        if asked is not None:
            tuning = replace(
                tuning, scale=asked.scale, familiar=tuple(asked.familiar.tolist()), accuracy=asked.accuracy,
                mistakes=self._mistakes(asked), examples=len(given.records),
            )  # fmt: skip
        return solved(model, given, self.unlabelled if asked else (), tuning=tuning, adapters=adapters)

    def _depth(self, before: Evidence) -> int:
        """How many passes are tuned: as many as told best before, and no fewer than are usual. More would cost more to
        learn, and each answer more to read, and tell no better (docs/log.md)."""
        return max((usual_depth(self.base.config.num_hidden_layers), *before.depths))

    def _mistakes(self, asked: Asked) -> tuple[tuple[str, str, str], ...]:
        told = asked.scores.argmax(1)
        worst = [place for place in np.argsort(-asked.losses) if told[place] != asked.truth[place]]
        return tuple(
            (self.given.records[asked.numbers[place]].shown, self.labels[asked.truth[place]], self.labels[told[place]])
            for place in worst[:SHOWN]
        )


def _classes(given: Given, labels: Sequence[str]) -> np.ndarray:
    return np.array([labels.index(str(record.label)) for record in given.records])
