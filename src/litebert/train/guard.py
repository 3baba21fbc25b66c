"""Watching a run: bad steps are rolled back and skipped, and a run that does not learn is reported."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from litebert.errors import ConfigError
from litebert.train.checkpointing import Stateful

MAX_LOSS_JUMP = 2.0
"""Nats above the running mean; a step of the depth ramp costs about one."""
MEAN_DECAY = 0.98
"""Of the running mean of the loss."""
MIN_PLATEAU_STEPS = 200
SKIPPED_STEPS_WINDOW = 200
"""Steps within which `max_skipped` bad ones end the run."""


class StepGuard:
    """Checks every step, and keeps a snapshot of everything that training changes to roll back to."""

    def __init__(
        self,
        stateful: Mapping[str, Stateful],
        *,
        snapshot_every: int = 100,
        max_skipped: int = 5,
        max_loss_jump: float = MAX_LOSS_JUMP,
    ) -> None:
        """`stateful`: the model, its optimizer, an average of its weights. A loss that is `max_loss_jump` above the
        running mean is a bad step; the losses of small batches and squared errors jump by nature: there it is infinite.
        """
        self.stateful, self.snapshot_every, self.max_skipped = dict(stateful), snapshot_every, max_skipped
        self.max_loss_jump = max_loss_jump
        self.skipped: list[int] = []
        self.done: int | None = None
        """Steps whose update is in the weights; None while one is being made."""
        self._mean: float | None = None
        self._snapshot_step = -1
        self._snapshot: Any = None

    def state(self) -> dict[str, Any]:
        """What a resumed run must know to decide the same."""
        return {"skipped": self.skipped, "mean": self._mean}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.skipped, self._mean = list(state["skipped"]), state["mean"]

    def reset_mean(self) -> None:
        """The model has changed, so former losses say nothing about the next ones."""
        self._mean = None

    def snapshot_if_due(self, step: int) -> None:
        """Call before every step."""
        if self._snapshot is None or (step % self.snapshot_every == 0 and step != self._snapshot_step):
            self._snapshot_step = step
            states = {name: copy.deepcopy(part.state_dict()) for name, part in self.stateful.items()}
            self._snapshot = (states, self._mean)

    def problem_of(self, loss: float, gradient_norm: float) -> str | None:
        """What is wrong with this step, or None; the loss of a good one enters the running mean."""
        if not math.isfinite(loss):
            return f"loss {loss}"
        if not math.isfinite(gradient_norm):
            return f"gradient norm {gradient_norm}"
        if self._mean is not None and loss > self._mean + self.max_loss_jump:
            return f"loss {loss:.2f}, where {self._mean:.2f} was usual"
        self._mean = loss if self._mean is None else MEAN_DECAY * self._mean + (1 - MEAN_DECAY) * loss
        return None

    def roll_back(self, step: int, problem: str) -> int:
        """Restore the snapshot, skip `step` from now on, and return the step to continue from."""
        states, self._mean = self._snapshot
        for name, part in self.stateful.items():
            part.load_state_dict(copy.deepcopy(states[name]))
        self.done = self._snapshot_step
        recent = [bad for bad in self.skipped if bad > step - SKIPPED_STEPS_WINDOW]
        if len(recent) >= self.max_skipped:
            raise ConfigError(
                f"step {step + 1}: {problem}, and {len(recent)} of the last {SKIPPED_STEPS_WINDOW} steps were already "
                "skipped; the run does not recover: start it again with a lower --learning-rate, in another --out"
            )
        self.skipped.append(step)
        return self._snapshot_step


class PlateauDetector:
    """Reports a pre-training run that has stopped learning while it knows little more than token frequencies."""

    def __init__(self, unigram_loss: float, steps: int, remedy: str) -> None:
        """`unigram_loss` is the loss of a model that knows only these."""
        self.unigram_loss, self.window, self.remedy = unigram_loss, max(MIN_PLATEAU_STEPS, steps // 10), remedy
        self._window_means = [0.0, 0.0]
        self._steps = 0
        self._reported = False

    def reset(self) -> None:
        """The model has changed: compare from here on."""
        self._window_means, self._steps = [0.0, 0.0], 0

    def update(self, loss: float) -> str | None:
        """Takes the loss of every step; returns the advice, once, when two windows in a row had the same mean."""
        self._window_means[1] += loss / self.window
        self._steps += 1
        if self._steps % self.window:
            return None
        before, now = self._window_means
        self._window_means = [now, 0.0]
        stuck = self._steps >= 2 * self.window and now > before - 0.02 and now > 0.8 * self.unigram_loss
        if not stuck or self._reported:
            return None
        self._reported = True
        return (
            f"stuck: the loss on masked tokens stays at {now:.2f}, where token frequencies alone give "
            f"{self.unigram_loss:.2f}; {self.remedy}"
        )


class CollapseDetector:
    """Detects a fine-tuning run whose loss stays at the prior: the model gives every example the same answer.

    Too high a learning rate brings deep encoders there, and they do not recover.
    """

    def __init__(self, prior_loss: float, steps: int) -> None:
        self.prior_loss, self.window, self.first_step = prior_loss, max(50, steps // 10), max(100, round(0.4 * steps))
        self.verdict: str | None = None
        """The evidence, by the last window; None when all is well."""
        self._sum, self._count = 0.0, 0

    def state(self) -> dict[str, Any]:
        """What a resumed run must know to decide the same."""
        return {"sum": self._sum, "seen": self._count, "verdict": self.verdict}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._sum, self._count, self.verdict = state["sum"], state["seen"], state["verdict"]

    def update(self, done: int, loss: float) -> None:
        """Takes the loss of step `done`."""
        self._sum += loss
        self._count += 1
        if self._count < self.window:
            return
        mean, self._sum, self._count = self._sum / self._count, 0.0, 0
        self.verdict = None
        if done >= self.first_step and mean > 0.98 * self.prior_loss:
            self.verdict = (
                f"the loss of the last {self.window} steps is {mean:.3f}, "
                f"where the same answer for all gives {self.prior_loss:.3f}"
            )
