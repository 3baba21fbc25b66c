"""One bad step must not ruin a run: see it, go back to a good state, leave that batch out."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from litebert.errors import ConfigError
from litebert.train.checkpointing import Stateful

SPIKE = 2.0  # nats over the running mean; deepening a model costs about one
MEMORY = 0.98  # of the running mean
PATIENCE = 200  # steps at least before a loss that does not fall is worth a word
WINDOW = 200  # steps within which `retries` bad ones are too many


class Guard:
    """Watches the loss; holds the last good state of everything that training changes in memory."""

    def __init__(
        self, parts: Mapping[str, Stateful], *, every: int = 100, retries: int = 5, spike: float = SPIKE
    ) -> None:
        """`parts`: the model, its optimizer, an average of its weights. `spike`: how far over the running mean a loss
        is no longer believed; small batches and squared errors jump by nature, so there it is infinite."""
        self.parts, self.every, self.retries, self.spike = dict(parts), every, retries, spike
        self.skipped: list[int] = []
        self.done: int | None = None
        """Steps whose update is in the weights; None while one is being made."""
        self._mean: float | None = None
        self._step = -1
        self._held: Any = None

    def state(self) -> dict[str, Any]:
        """What a resumed run must know to decide the same."""
        return {"skipped": self.skipped, "mean": self._mean}

    def restore(self, state: dict[str, Any]) -> None:
        self.skipped, self._mean = list(state["skipped"]), state["mean"]

    def expect_jump(self) -> None:
        """Something has changed, so the losses so far say nothing about the next ones."""
        self._mean = None

    def remember(self, step: int) -> None:
        """Before step `step`: keep a copy of everything, now and then."""
        if self._held is None or (step % self.every == 0 and step != self._step):
            self._step = step
            states = {name: copy.deepcopy(part.state_dict()) for name, part in self.parts.items()}
            self._held = (states, self._mean)

    def problem(self, loss: float, gradient_norm: float) -> str | None:
        """What is wrong with this step, or None; a good one enters the running mean."""
        if not math.isfinite(loss):
            return f"loss {loss}"
        if not math.isfinite(gradient_norm):
            return f"gradient norm {gradient_norm}"
        if self._mean is not None and loss > self._mean + self.spike:
            return f"loss {loss:.2f}, where {self._mean:.2f} was usual"
        self._mean = loss if self._mean is None else MEMORY * self._mean + (1 - MEMORY) * loss
        return None

    def go_back(self, step: int, problem: str) -> int:
        """Restore the last good state, leave `step` out from now on, and say from which step to go on."""
        states, self._mean = self._held
        for name, part in self.parts.items():
            part.load_state_dict(copy.deepcopy(states[name]))
        self.done = self._step
        recent = [bad for bad in self.skipped if bad > step - WINDOW]
        if len(recent) >= self.retries:
            raise ConfigError(
                f"step {step + 1}: {problem}, and {len(recent)} of the last {WINDOW} steps were already left out; "
                "the run does not recover: start it again with a lower --learning-rate, in another --out"
            )
        self.skipped.append(step)
        return self._step


class Plateau:
    """Notices that a model has stopped learning while it still knows little more than how frequent words are."""

    def __init__(self, unigram: float, steps: int, remedy: str) -> None:
        """`unigram` is the loss of a model that knows just that."""
        self.unigram, self.window, self.remedy = unigram, max(PATIENCE, steps // 10), remedy
        self._sums = [0.0, 0.0]
        self._seen = 0
        self._said = False

    def start_anew(self) -> None:
        """The model is another one now: compare from here on."""
        self._sums, self._seen = [0.0, 0.0], 0

    def notice(self, loss: float) -> str | None:
        """Hear the loss of every step; the advice, once, when two windows in a row were the same."""
        self._sums[1] += loss / self.window
        self._seen += 1
        if self._seen % self.window:
            return None
        before, now = self._sums
        self._sums = [now, 0.0]
        stuck = self._seen >= 2 * self.window and now > before - 0.02 and now > 0.8 * self.unigram
        if not stuck or self._said:
            return None
        self._said = True
        return (
            f"stuck: the loss on masked tokens stays at {now:.2f}, where word frequencies alone give "
            f"{self.unigram:.2f}; {self.remedy}"
        )


class Collapse:
    """Hears the loss of every step of a fine-tuning run and says when it has stayed where it starts: at the prior.

    That is the loss of a model that gives every example the same answer. Too high a rate brings deep encoders there,
    and they do not come back.
    """

    def __init__(self, prior: float, steps: int) -> None:
        self.prior, self.window, self.first = prior, max(50, steps // 10), max(100, round(0.4 * steps))
        self.verdict: str | None = None
        """What is wrong, by the last steps that were looked at; None when all is well."""
        self._sum, self._seen = 0.0, 0

    def state(self) -> dict[str, Any]:
        """What a resumed run must know to decide the same."""
        return {"sum": self._sum, "seen": self._seen, "verdict": self.verdict}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sum, self._seen, self.verdict = state["sum"], state["seen"], state["verdict"]

    def notice(self, done: int, loss: float) -> None:
        """Hear the loss of step `done`."""
        self._sum += loss
        self._seen += 1
        if self._seen < self.window:
            return
        mean, self._sum, self._seen = self._sum / self._seen, 0.0, 0
        self.verdict = None
        if done >= self.first and mean > 0.98 * self.prior:
            self.verdict = (
                f"the loss of the last {self.window} steps is {mean:.3f}, "
                f"where the same answer for all gives {self.prior:.3f}"
            )
