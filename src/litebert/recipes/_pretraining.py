"""A pre-training run: its parts, what the loop asks of them, and what happens after a step. `pretrain` has the
settings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import Tensor

from litebert.data.prefetch import Prefetch
from litebert.data.pretraining import PretrainingBatch
from litebert.errors import CheckpointError, ConfigError
from litebert.predict import Model
from litebert.recipes._pretraining_parts import Parts
from litebert.recipes._shared import write_run
from litebert.tasks import Mask
from litebert.tasks.pretraining import flops_per_token, stack_layers
from litebert.train.checkpointing import Checkpoints
from litebert.train.distributed import WholeModel, WholeOptimizer
from litebert.train.guard import Guard, Plateau
from litebert.train.log import RunLog
from litebert.train.loop import Step, train
from litebert.train.runtime import Ranks, peak_flops, stop_on_signal
from litebert.train.strategies import attenuate, unfreeze, weight_at
from litebert.train.weights import MasterWeights

if TYPE_CHECKING:
    from litebert.recipes.pretrain import Config

Piece = tuple[PretrainingBatch, int, int, Tensor, Tensor]


def pretrain(config: Config, console: Console, ranks: Ranks, device: torch.device) -> bool:
    """Train, and save the model; False when a stop was asked for before the end."""
    run = Run(config, console, ranks, device)
    whole = config.parallel == "fsdp" and ranks.world > 1
    stateful: dict[str, Any] = {
        "model": WholeModel(run.parts.objective) if whole else run.parts.albert,
        "optimizer": WholeOptimizer(run.parts.objective, run.parts.optimizer) if whole else run.parts.optimizer,
    }
    if run.parts.average is not None:
        stateful["average"] = run.parts.average
    with Checkpoints(config.out / "checkpoints", stateful, writes=run.leads) as checkpoints:
        start = checkpoints.load_latest(run.parts.decisive) if config.resume else 0
        finished = run(checkpoints, start)
    if finished:
        run.finish(stateful["model"])
    return finished


class Run:
    """What changes while a run goes on."""

    def __init__(self, config: Config, console: Console, ranks: Ranks, device: torch.device) -> None:
        self.config, self.console, self.device = config, console, device
        self.parts = Parts(config, ranks, device)
        self.ranks = self.parts.ranks
        self.leads = ranks.rank == 0
        self.guard = Guard(self.parts.albert, self.parts.optimizer)
        self.plateau = Plateau(self.parts.unigram, config.steps)
        self.saving = SaveEvery.parse(config.save_every, self.parts.epoch_steps)
        self.pieces = self.parts.pieces
        """Micro-batches per step and rank; more when memory runs out."""
        self.prefetch = Prefetch(self._make_batches, config.workers)
        self.log: RunLog | None = None
        self.depth = 0
        """Passes of the step under way."""
        self.asked = False
        """Does it have pairs of segments?"""
        self.score: float | None = None
        """Of the validation after the last step, if there was one."""
        self.done = 0

    def __call__(self, checkpoints: Checkpoints, start: int) -> bool:
        self.checkpoints, self.done = checkpoints, start
        if start:
            self.guard.restore(checkpoints.state["guard"])
        if self.leads:
            write_run(self.config.out, "pretrain", self.config)
            for line in self.parts.introduction(start):
                self.console.print(line, highlight=False, markup=False)
        log = RunLog(self.config.out, self.console, "pretrain", start=start) if self.leads else nullcontext()
        # When a process is lost, torchrun tells the others to stop: that must not stop them from saving.
        with log as self.log, stop_on_signal():
            try:
                return self._train(start)
            except torch.OutOfMemoryError as error:
                raise self._memory_full() from error
            except RuntimeError as error:
                if self.ranks.world == 1:
                    raise
                raise self._rank_lost(error) from error
            finally:
                self.prefetch.close()

    def _train(self, start: int) -> bool:
        parts = self.parts
        return train(
            parts.albert,
            lambda piece: self._measure(*piece),
            self._batches,
            parts.optimizer,
            parts.rate,
            steps=self.config.steps,
            start=start,
            seed=self.config.seed,
            clip_norm=self.config.clip_norm,
            hooks=[self._annotate, self._deepen, self._validate, self._report, self._save],
            guard=self.guard,
            on_trouble=self._say,
            on_full_memory=self._halve,
            attenuate=lambda norm: attenuate(parts.strategies, parts.albert.parameters(), norm),
            ranks=self.ranks,
        )

    def finish(self, model: Any) -> None:
        """Write the model folder; with an average, that is the model."""
        parts = self.parts
        if isinstance(parts.optimizer, MasterWeights):
            parts.optimizer.release()
        with parts.average.applied() if parts.average is not None else nullcontext():
            state = model.state_dict()  # of a sharded model every rank must ask for it
            if self.leads:
                state = {name.removeprefix("albert."): value for name, value in state.items()}
                albert = parts.new_model()
                albert.load_state_dict(state)
                Model(albert.eval(), parts.shards.tokenizer, Mask(), self.config.length).save(self.config.out)

    # what the loop asks for

    def _make_batches(self, step: int) -> list[PretrainingBatch]:
        """This rank's micro-batches of a step; threads call it."""
        shares = self.ranks.world * self.pieces
        mine = range(self.ranks.rank * self.pieces, (self.ranks.rank + 1) * self.pieces)
        batches = [self.parts.data.batch(step, share, shares) for share in mine]
        return [batch.pinned() for batch in batches] if self.device.type == "cuda" else batches

    def _batches(self, step: int) -> list[Piece]:
        parts = self.parts
        if parts.strategies.unfreeze_steps:
            parts.albert.encoder.weight_at = weight_at(parts.strategies, parts.albert.encoder.depths_of, step)
            unfreeze(parts.optimizer, step)
        batches = self.prefetch(step)
        depth, length = parts.depth_at(step), parts.data.stage(step).length
        self.depth = depth
        counts = _counts(batches)
        self.asked = counts[1] > 0
        masked, paired = self.ranks.total(torch.tensor(counts, device=self.device)).clamp(min=1)
        return [(batch.to(self.device), depth, length, masked, paired) for batch in batches]

    def _measure(
        self, batch: PretrainingBatch, depth: int, longest: int, masked: Tensor, paired: Tensor
    ) -> dict[str, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.parts.precision == "bf16"):
            measured: dict[str, Tensor] = self.parts.call(batch, depth, longest, masked, paired)
        # also sums over micro-batches and ranks
        tokens = masked.new_tensor([len(batch.input_ids), batch.padding])
        return measured | {"tokens": tokens[0] - tokens[1], "padding": tokens[1]}

    def _halve(self) -> bool:
        """Out of memory: take half as many sequences at once, and the same number in all."""
        rows = self.config.batch_size // self.pieces
        if rows < 2 or self.ranks.world > 1:  # the other ranks are already waiting for this step's gradients
            return False
        self.pieces *= 2
        self.prefetch.forget()
        torch.cuda.empty_cache()
        self._say(
            f"out of memory with {rows} sequences at once: going on with {rows // 2}, still {self.config.batch_size} "
            f"per step (--micro-batch {rows // 2} begins like that)"
        )
        return True

    # what happens after a step

    def _annotate(self, step: Step) -> None:
        if not step.metrics:  # it was left out
            return
        figures = step.metrics
        figures["depth"] = self.depth
        figures["padding"] /= figures["tokens"] + figures["padding"]
        if not self.asked:
            figures.pop("order_accuracy")
        peak = peak_flops(self.device, self.parts.precision)
        if peak is not None:
            length = self.parts.data.stage(step.done - 1).length
            flops = flops_per_token(self.parts.shape, self.depth, length, self.config.mask_rate) * figures["tokens"]
            figures["flop_utilisation"] = flops / step.seconds / (peak * self.ranks.world)
        if advice := self.plateau.notice(figures["mlm_loss"]):
            self._say(advice)
        if self.parts.average is not None:
            self.parts.average.update(step.done)

    def _deepen(self, step: Step) -> None:
        if step.done < step.total:
            before, after = self.parts.depth_at(step.done - 1), self.parts.depth_at(step.done)
            if after != before:
                stack_layers(self.parts.albert, self.parts.optimizer, before, after)
                self.guard.expect_jump()
                if self.parts.average is not None:
                    self.parts.average.restart()
                self._say(f"step {step.done}: from {before} to {after} passes")

    def _validate(self, step: Step) -> None:
        self.score = None
        every = self.config.validate_every or max(1, step.total // 20)
        if self.parts.held_out is None or (step.done % every and step.done != step.total):
            return
        figures = self._validation(self.parts.depth_at(min(step.done, step.total - 1)))
        self.score = figures["loss"]
        if self.log is not None:
            self.log.validation(step.done, figures)

    @torch.no_grad()
    def _validation(self, depth: int) -> dict[str, float]:
        """Figures on held-out documents: the same sequences and masks every time, with the averaged weights if any."""
        parts, one = self.parts, torch.ones((), device=self.device)
        assert parts.held_out is not None
        total: dict[str, Tensor] = {}
        parts.objective.eval()
        with parts.average.applied() if parts.average is not None else nullcontext():
            for number in range(parts.validation_batches):
                batch = parts.held_out.batch(number, self.ranks.rank, self.ranks.world)
                sums = self._measure(batch.to(self.device), depth, self.config.length, one, one)
                masked, paired = _counts([batch])
                sums |= {"masked": one * masked, "paired": one * paired}
                total = {name: total.get(name, 0.0) + value for name, value in sums.items()}
        parts.objective.train()
        figures = self.ranks.total(torch.stack([value.float() for value in total.values()])).tolist()
        found = dict(zip(total, figures, strict=True))
        loss = found["mlm_loss"] / found["masked"]
        shares = {"loss": loss, "perplexity": math.exp(loss), "mlm_accuracy": found["mlm_accuracy"] / found["masked"]}
        if found["paired"]:
            shares["order_accuracy"] = found["order_accuracy"] / found["paired"]
        return shares

    def _report(self, step: Step) -> None:
        if self.log is not None:
            self.log(step)

    def _save(self, step: Step) -> None:
        self.done = step.done
        if self.ranks.any(step.stopping or self.saving.due(step.done)):
            if self.log is not None:
                self.log.flush()
            self._checkpoint()

    def _checkpoint(self) -> None:
        self.checkpoints.save(self.done, self.parts.decisive, state={"guard": self.guard.state()}, score=self.score)

    def _say(self, text: str) -> None:
        if self.log is not None:
            self.log.say(text)

    def _memory_full(self) -> ConfigError:
        rows = self.config.batch_size // (self.ranks.world * self.pieces)
        smaller = f"--micro-batch {rows // 2}" if rows > 1 else "--gradient-checkpointing or a shorter --length"
        return ConfigError(f"out of memory with {rows} sequences at once; start it again with {smaller}")

    def _rank_lost(self, error: BaseException) -> CheckpointError:
        """Another process is gone. Nobody has updated since the last step, so this one can still save it."""
        if self.leads and self.config.parallel == "ddp":
            self._checkpoint()
            self.checkpoints.wait()
        return CheckpointError(
            f"another process of this run ended ({str(error).splitlines()[0]}); "
            f"it can go on after step {self.done}: start it again with --resume"
        )


def _counts(batches: Iterable[PretrainingBatch]) -> list[float]:
    """Hidden tokens and pairs of segments."""
    batches = list(batches)
    return [float(sum(len(b.labels) for b in batches)), float(sum(len(b.first) for b in batches))]


@dataclass
class SaveEvery:
    """When to write a checkpoint: after so many steps, or after so many seconds."""

    steps: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._last = time.monotonic()

    @staticmethod
    def parse(text: str, epoch_steps: int) -> SaveEvery:
        """From "500", "10min" or "1epoch"."""
        units = {"": 1.0, "min": 60.0, "epoch": float(epoch_steps), "epochs": float(epoch_steps)}
        digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text.strip()[len(digits) :].strip()
        try:
            value = float(digits) * units[unit]
        except (ValueError, KeyError):
            value = 0.0
        if not 0 < value < math.inf:
            raise ConfigError(f'save_every={text!r} cannot be read; write steps ("500"), "10min" or "1epoch"')
        return SaveEvery(seconds=value) if unit == "min" else SaveEvery(steps=max(1, round(value)))

    def due(self, done: int) -> bool:
        if self.steps:
            return done % self.steps == 0
        now = time.monotonic()
        due = now - self._last >= self.seconds
        self._last = now if due else self._last
        return due
