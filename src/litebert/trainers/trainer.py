"""What every training run needs: the loop with a log, checkpoints, resume, a guard, smaller micro-batches when memory
runs out, and a clean stop. Each trainer adds its model, its batches, its loss and what it does after a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from rich.console import Console
from torch import Tensor, nn

from litebert.console import say
from litebert.errors import CheckpointError, ConfigError, LitebertError
from litebert.files import file_sha256
from litebert.run_folder import write_run
from litebert.train.averaging import Average
from litebert.train.checkpointing import Checkpoints, Stateful
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.guard import StepGuard
from litebert.train.log import RunLog
from litebert.train.loop import Step, train
from litebert.train.optimizers import Schedule
from litebert.train.ranks import SINGLE_PROCESS, Ranks
from litebert.train.save_schedule import SaveSchedule
from litebert.train.signals import stop_on_signal

AnyBatch = TypeVar("AnyBatch")


class TrainingConfig(Protocol):
    """The settings that every trainer has."""

    @property
    def out(self) -> Path: ...
    @property
    def seed(self) -> int: ...
    @property
    def resume(self) -> bool: ...


class EarlyStopError(Exception):
    """Raised after a step to end training before the last one."""


class Trainer(ABC, Generic[AnyBatch]):
    """A training run. `run` trains; the other methods say what a subclass trains on, and how it is validated."""

    command: ClassVar[str]
    """Names the run in run.json and in the log."""
    unit: ClassVar[str] = "examples"
    """What a micro-batch consists of, for messages."""
    memory_hint: ClassVar[str] = ""
    """What else to try when memory runs out."""
    checkpoint_folder = "checkpoints"
    retired_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that only former versions had, at their defaults: runs of these versions can still be resumed."""
    clip_norm = 1.0
    graphs: StepGraphs | None = None
    """Recorded steps, on a GPU."""

    def __init__(
        self,
        config: TrainingConfig,
        console: Console,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        steps: int,
        device: torch.device,
        settings: Mapping[str, Any],
        save_schedule: SaveSchedule,
        average: Average | None = None,
        max_loss_jump: float = math.inf,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        """`settings` must be the same when the run is resumed. `max_loss_jump`: see `StepGuard`."""
        self.config, self.console, self.device, self.ranks = config, console, device, ranks
        self.model, self.optimizer, self.schedule, self.steps = model, optimizer, schedule, steps
        self.settings, self.save_schedule = settings, save_schedule
        self.stateful: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
        if average is not None:
            self.stateful["average"] = average
        self.guard = StepGuard(self.stateful, max_loss_jump=max_loss_jump)
        self.is_main = ranks.rank == 0
        self.splits = 1
        """Micro-batches per step and rank; doubled when memory runs out."""
        self.done = 0
        """Steps whose update is in the weights."""
        self.log: RunLog | None = None

    # what a subclass says

    @abstractmethod
    def micro_batches(self, step: int) -> Sequence[AnyBatch]:
        """What a step trains on, a pure function of the step."""

    @abstractmethod
    def loss(self, batch: AnyBatch) -> Mapping[str, Tensor]:
        """The loss, and figures that add up over micro-batches and ranks."""

    @abstractmethod
    def after_step(self, step: Step) -> None:
        """Report, validate and save."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a resumed run must know beside model and optimizer, as JSON."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None: ...

    def introduction(self) -> list[str]:
        """What the user wants to know before the first step."""
        return []

    def write_run_files(self) -> None:
        """run.json, and what else describes the run."""
        write_run(self.config.out, self.command, self.config)

    def before_first_step(self) -> None:
        """Validate what training starts from; not called when a run is resumed."""

    def is_over(self, start: int) -> bool:
        """Had the resumed run stopped early already?"""
        return False

    def attenuate(self) -> Callable[[float], float] | None:
        """What changes gradients by their norm; see `train`."""
        return None

    def prefetch(self, step: int) -> None:
        """Prepare the batches of a coming step while the device computes."""

    def micro_batch_size(self) -> int:
        """The largest number of `unit` in a micro-batch."""
        return 1

    def memory_advice(self) -> str:
        """What to try when memory has run out."""
        size = self.micro_batch_size()
        smaller = f"--batch-size {max(1, size // 2)}{self.memory_hint}"
        return f"out of memory with {size} {self.unit} at once; try {smaller}, in another --out"

    # the run

    def run(self) -> bool:
        """Train. Returns False when a stop was requested before the last step."""
        config, folder = self.config, self.config.out / self.checkpoint_folder
        with Checkpoints(folder, self.stateful, writes=self.is_main) as self.checkpoints:
            start = self.done = self._resume() if config.resume else 0
            if start and self.is_over(start):
                return True
            if self.is_main:
                self.write_run_files()
                say(self.console, *self.introduction(), *([f"resuming from step {start:,}"] if start else []))
            log = RunLog(config.out, self.console, self.command, start=start) if self.is_main else nullcontext()
            # torchrun tells the other processes to stop when one is lost: that must not stop them from saving
            with log as self.log, stop_on_signal():
                try:
                    if not start:
                        self.before_first_step()
                    return self._train(start)
                except EarlyStopError:
                    return True
                except RuntimeError as error:
                    if (explained := self.explain(error)) is None:
                        raise
                    raise explained from error
                finally:
                    self.close()

    def explain(self, error: RuntimeError) -> LitebertError | None:
        """The error that the user sees, or None for one that is not expected."""
        return ConfigError(self.memory_advice()) if isinstance(error, torch.OutOfMemoryError) else None

    def close(self) -> None:
        """Release what the run holds beside memory."""

    def _resume(self) -> int:
        start = self.checkpoints.load_latest({**self.retired_settings, **self.settings})
        if not self.ranks.agree(start):
            raise CheckpointError(
                f"{self.config.out}: the processes found different checkpoints there; all machines must see the same "
                "--out"
            )
        if start:
            self.guard.load_state(self.checkpoints.state["guard"])
            self.load_state(self.checkpoints.state)
        return start

    def _train(self, start: int) -> bool:
        return train(
            self.model,
            self._loss,
            self.micro_batches,
            self.optimizer,
            self.schedule,
            steps=self.steps,
            start=start,
            seed=self.config.seed,
            clip_norm=self.clip_norm,
            hooks=[self.after_step],
            guard=self.guard,
            on_skipped_step=self.say,
            on_out_of_memory=self.reduce_memory,
            attenuate=self.attenuate(),
            prefetch=self.prefetch,
            ranks=self.ranks,
        )

    def _loss(self, batch: AnyBatch) -> Mapping[str, Tensor]:
        if self.graphs is None or not self.can_replay(batch):
            return self.loss(batch)
        return self.graphs(self.loss, batch)  # type: ignore[type-var]

    def can_replay(self, batch: AnyBatch) -> bool:
        """May this micro-batch be computed by a recorded graph?"""
        return True

    def reduce_memory(self) -> bool:
        """Out of memory: drop recorded graphs, then halve the micro-batches; a step trains on as many as before."""
        if self.graphs is not None and self.graphs.replays:  # their memory may be enough
            self.graphs = None
            torch.cuda.empty_cache()
            self.say("out of memory: going on without recorded steps (--no-cuda-graphs begins like that)")
            return True
        size = self.micro_batch_size()
        if size < 2 or self.ranks.world_size > 1:  # the other ranks already wait for this step's gradients
            return False
        self.splits *= 2
        self.graphs = None
        torch.cuda.empty_cache()
        self.say(f"out of memory with {size} {self.unit} at once: going on with {-(-size // 2)}, as many per step")
        return True

    # for `after_step`

    def say(self, text: str) -> None:
        """Report an event, on the console and in the log."""
        if self.log is not None:
            self.log.say(text)

    def report(self, step: Step) -> None:
        if self.log is not None:
            self.log(step)

    def report_validation(self, done: int, figures: Mapping[str, float]) -> None:
        if self.log is not None:
            self.log.validation(done, figures)

    def save(self, step: Step, score: float | None = None) -> None:
        """Write a checkpoint if one is due; one with a score, the lowest being the best, is always due."""
        self.done = step.done
        if step.stopping or score is not None or self._is_save_due(step.done):
            if self.log is not None:
                self.log.flush()
            self.save_checkpoint(score)

    def save_checkpoint(self, score: float | None = None) -> None:
        state = self.state() | {"guard": self.guard.state()}
        self.checkpoints.save(self.done, self.settings, state=state, score=score)

    def _is_save_due(self, done: int) -> bool:
        """Steps are the same on all ranks; time is decided by the first one, and asking it costs an exchange."""
        if self.save_schedule.steps or self.ranks.world_size == 1:
            return self.save_schedule.due(done)
        return done % 10 == 0 and self.ranks.any(self.is_main and self.save_schedule.due(done))


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of every file in a folder."""
    if path.is_dir():
        return " ".join(file_sha256(file) for file in sorted(path.rglob("*")) if file.is_file())
    return file_sha256(path)


def content_settings(files: Sequence[Path]) -> dict[str, str]:
    """The content of files as settings: they must not change before a run is resumed."""
    return {f"content of {path}": content_hash(path) for path in files}
