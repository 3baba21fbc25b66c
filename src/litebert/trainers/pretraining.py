"""A pre-training run: its parts, what the loop asks of them, and what happens after a step. `pretrain` has the
settings."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from litebert.console import make_console
from litebert.data.batches import IGNORE_INDEX
from litebert.data.prefetch import Prefetcher
from litebert.data.pretraining import PretrainingBatch
from litebert.device import peak_flops, pick_device
from litebert.errors import CheckpointError, ConfigError
from litebert.inference import Model
from litebert.model.backends import fp8_disabled
from litebert.run_folder import write_run
from litebert.tasks import Mask
from litebert.tasks.pretraining import flops_per_token, stack_layers
from litebert.train.averaging import MasterWeights
from litebert.train.checkpointing import Checkpoints
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.distributed import WholeModel, WholeOptimizer
from litebert.train.guard import Guard, Plateau
from litebert.train.log import RunLog
from litebert.train.loop import Hook, Step, train
from litebert.train.ranks import SINGLE_PROCESS, Ranks
from litebert.train.save_schedule import SaveEvery
from litebert.train.signals import stop_on_signal
from litebert.train.strategies import attenuation, unfreeze, weight_at
from litebert.trainers.pretrain_config import DEPTH_RAMP, PretrainConfig
from litebert.trainers.pretraining_plan import Parts


@dataclass(frozen=True)
class Piece:
    """A micro-batch."""

    batch: PretrainingBatch
    depth: int
    """Passes."""
    longest: int
    counts: Tensor
    """Its hidden tokens, pairs, tokens and padding."""
    totals: Tensor
    """The same of the whole step."""

    def tensors(self) -> dict[str, Tensor]:
        return {**self.batch.tensors(), "counts": self.counts, "totals": self.totals}

    def setting(self) -> Hashable:
        return self.depth, self.longest


def pretrain(
    config: PretrainConfig,
    console: Console | None = None,
    *,
    ranks: Ranks = SINGLE_PROCESS,
    device: torch.device | None = None,
    hooks: Sequence[Hook] = (),
) -> bool:
    """Train and save a model. Returns False when a stop was requested before the last step.

    `hooks` are called after every step, when it is logged and saved.
    """
    run = Run(config, console or make_console(), ranks, device or pick_device(config.device), hooks)
    whole = config.parallel == "fsdp" and ranks.world_size > 1
    stateful: dict[str, Any] = {
        "model": WholeModel(run.parts.objective) if whole else run.parts.albert,
        "optimizer": WholeOptimizer(run.parts.objective, run.parts.optimizer) if whole else run.parts.optimizer,
    }
    if run.parts.average is not None:
        stateful["average"] = run.parts.average
    with Checkpoints(config.out / "checkpoints", stateful, writes=run.leads) as checkpoints:
        start = checkpoints.load_latest(run.parts.decisive) if config.resume else 0
        if not run.ranks.agree(start):
            raise CheckpointError(
                f"{config.out}: the processes found different checkpoints there; all machines must see the same --out"
            )
        finished = run(checkpoints, start)
    if finished:
        run.finish(stateful["model"])
    return finished


class Run:
    """What changes while a run goes on."""

    def __init__(
        self, config: PretrainConfig, console: Console, ranks: Ranks, device: torch.device, hooks: Sequence[Hook] = ()
    ) -> None:
        self.config, self.console, self.device, self.hooks = config, console, device, hooks
        self.parts = Parts(config, ranks, device)
        self.ranks = self.parts.ranks
        self.leads = ranks.rank == 0
        parts: dict[str, Any] = {"model": self.parts.albert, "optimizer": self.parts.optimizer}
        self.guard = Guard(parts | ({"average": self.parts.average} if self.parts.average is not None else {}))
        ramp = "" if self.parts.depth_ramp.stages else f' or a ramp of depth (--depth-ramp "{DEPTH_RAMP}")'
        self.plateau = Plateau(
            self.parts.unigram, config.steps, f"try a higher --learning-rate, more --steps{ramp}, in another --out"
        )
        self.saving = SaveEvery.parse(config.save_every, self.parts.epoch_steps)
        self.pieces = self.parts.pieces
        """Micro-batches per step and rank; more when memory runs out."""
        self.prefetch = Prefetcher(self._make_batches, config.workers)
        parameters = [parameter for parameter in self.parts.albert.parameters() if parameter.requires_grad]
        varies = self.parts.albert.encoder.weight_at is not None or self.parts.strategies.unfreeze_steps
        records = config.cuda_graphs and device.type == "cuda" and ranks.world_size == 1 and not varies
        self.graphs = StepGraphs(parameters) if records else None
        self.log: RunLog | None = None
        self.depth = 0
        """Passes of the step under way."""
        self.score: float | None = None
        """Of the validation after the last step, if it was the best so far."""
        self.best = math.inf
        self.done = 0

    def __call__(self, checkpoints: Checkpoints, start: int) -> bool:
        self.checkpoints, self.done = checkpoints, start
        if start:
            self.guard.restore(checkpoints.state["guard"])
            self.best = checkpoints.state["best"] or math.inf
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
                if self.ranks.world_size == 1:
                    raise
                # of all errors here the usual one is that another process is gone
                raise CheckpointError(f"{str(error).splitlines()[0]}; {self._rescue()}") from error
            finally:
                self.prefetch.close()

    def _train(self, start: int) -> bool:
        parts = self.parts
        return train(
            parts.albert,
            self._recorded_measure,
            self._batches,
            parts.optimizer,
            parts.rate,
            steps=self.config.steps,
            start=start,
            seed=self.config.seed,
            clip_norm=self.config.clip_norm,
            hooks=[self._annotate, self._deepen, self._validate, self._report, self._save, *self.hooks],
            guard=self.guard,
            on_trouble=self._say,
            on_full_memory=self._halve,
            attenuate=attenuation(parts.strategies, parts.albert.parameters()),
            # threads that make batches while the host has work for a GPU would keep both waiting
            meanwhile=self.prefetch.schedule,
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

    def _make_batches(self, step: int) -> list[tuple[PretrainingBatch, Tensor]]:
        """This rank's micro-batches of a step and what they count; threads call it."""
        pieces = self._pieces_at(step)
        mine = range(self.ranks.rank * pieces, (self.ranks.rank + 1) * pieces)
        batches = [self.parts.data.batch(step, share, self.ranks.world_size * pieces) for share in mine]
        if self.device.type == "cuda":
            longest, pad_id = self.parts.data.stage(step).length, self.parts.shards.tokenizer.pad_id
            batches = [batch.padded_to_buckets(longest, pad_id).pin_memory() for batch in batches]
        return [(batch, torch.tensor(_counts(batch))) for batch in batches]

    def _pieces_at(self, step: int) -> int:
        """Micro-batches per rank: none of them empty, also where a ramp makes the batch small."""
        return max(1, min(self.pieces, self.parts.data.stage(step).batch_size // self.ranks.world_size))

    def _batches(self, step: int) -> list[Piece]:
        parts = self.parts
        if parts.strategies.unfreeze_steps:
            parts.albert.encoder.weight_at = weight_at(parts.strategies, parts.albert.encoder.depths_of, step)
            unfreeze(parts.optimizer, step)
        made = self.prefetch(step)
        self.depth, length = parts.depth_at(step), parts.data.stage(step).length
        counts = [counted.to(self.device, non_blocking=True) for _, counted in made]
        totals = self.ranks.sum(torch.stack(counts).sum(dim=0)).clamp(min=1)
        return [
            Piece(batch.to(self.device), self.depth, length, own, totals)
            for (batch, _), own in zip(made, counts, strict=True)
        ]

    def _recorded_measure(self, piece: Piece) -> Mapping[str, Tensor]:
        if self.graphs is None or self.pieces > 1 or not self._has_room():
            return self._measure(piece)
        return self.graphs(self._measure, piece)

    def _has_room(self) -> bool:
        """A recorded step keeps its memory, and one of another size needs as much beside it."""
        if self.device.type != "cuda":
            return True
        most = torch.cuda.get_device_properties(self.device).total_memory
        return 2.5 * torch.cuda.max_memory_allocated(self.device) < most

    def _measure(self, piece: Piece) -> dict[str, Tensor]:
        """Figures that add up over micro-batches and ranks."""
        masked, paired = piece.totals[:2]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.parts.precision in ("bf16", "fp8")):
            measured: dict[str, Tensor] = self.parts.call(piece.batch, piece.depth, piece.longest, masked, paired)
        return measured | dict(zip(("masked", "paired", "tokens", "padding"), piece.counts, strict=True))

    def _halve(self) -> bool:
        """Out of memory: do without graphs, or take half as many sequences at once, and the same number in all."""
        if self.graphs is not None and self.graphs.replays:  # what they hold may be enough
            self.graphs = None
            torch.cuda.empty_cache()
            self._say("out of memory: going on without recorded steps (--no-cuda-graphs begins like that)")
            return True
        rows = self._rows()
        if rows < 2 or self.ranks.world_size > 1:  # the other ranks are already waiting for this step's gradients
            return False
        self.pieces *= 2
        self.prefetch.clear()
        torch.cuda.empty_cache()
        self._say(
            f"out of memory with {rows} sequences at once: going on with {rows // 2}, as many per step as before "
            f"(--micro-batch {rows // 2} begins like that)"
        )
        return True

    def _rows(self) -> int:
        """Sequences at once."""
        step = self.done
        return self.parts.data.stage(step).batch_size // (self.ranks.world_size * self._pieces_at(step))

    # what happens after a step

    def _annotate(self, step: Step) -> None:
        if not step.metrics:  # it was left out
            return
        figures = step.metrics
        figures["depth"] = self.depth
        figures["padding"] /= figures["tokens"] + figures["padding"]
        if not figures.pop("paired"):
            figures.pop("order_accuracy")
        figures.pop("masked")
        peak = peak_flops(self.device, self.parts.precision)
        if peak is not None:
            length = self.parts.data.stage(step.done - 1).length
            flops = flops_per_token(self.parts.shape, self.depth, length, self.config.mask_rate) * figures["tokens"]
            figures["flop_utilisation"] = flops / step.seconds / (peak * self.ranks.world_size)
        if advice := self.plateau.notice(figures["mlm_loss"]):
            self._say(advice)
        if self.parts.average is not None:
            self.parts.average.update(step.done)

    def _deepen(self, step: Step) -> None:
        if step.done < step.total:
            before, after = self.parts.depth_at(step.done - 1), self.parts.depth_at(step.done)
            if after != before:
                stack_layers(self.parts.albert, self.parts.optimizer, before, after)
                self.graphs = self.graphs and self.graphs.emptied()  # those of fewer passes are never asked for again
                self.guard.expect_jump()
                self.plateau.start_anew()
                if self.parts.average is not None:
                    self.parts.average.restart()
                self._say(f"step {step.done}: from {before} to {after} passes")

    def _validate(self, step: Step) -> None:
        self.score = None
        every = self.config.validate_every or max(50, step.total // 20)
        if self.parts.held_out is None or (step.done % every and step.done != step.total):
            return
        depth = self.parts.depth_at(min(step.done, step.total - 1))
        figures = self._validation(depth)
        if depth == self.parts.shape.num_hidden_layers and figures["loss"] < self.best:
            self.score = self.best = figures["loss"]
        if self.log is not None:
            self.log.validation(step.done, figures)

    @torch.no_grad()
    def _validation(self, depth: int) -> dict[str, float]:
        """Figures on held-out documents: the same sequences and masks every time, with the averaged weights if any."""
        parts, ones = self.parts, torch.ones(4, device=self.device)
        assert parts.held_out is not None
        total: dict[str, Tensor] = {}
        averaged = parts.average.applied() if parts.average is not None else nullcontext()
        parts.objective.eval()
        try:
            with fp8_disabled(parts.albert.encoder), averaged:  # as the model will be used
                for number in range(parts.validation_batches):
                    batch = parts.held_out.batch(number, self.ranks.rank, self.ranks.world_size)
                    counts = torch.tensor(_counts(batch), device=self.device)
                    sums = self._measure(Piece(batch.to(self.device), depth, self.config.length, counts, ones))
                    total = {name: total.get(name, 0.0) + value for name, value in sums.items()}
        finally:
            parts.objective.train()
        figures = self.ranks.sum(torch.stack([value.float() for value in total.values()])).tolist()
        found = dict(zip(total, figures, strict=True))
        mlm_loss = found["mlm_loss"] / found["masked"]
        # what the objective added to it is the weighted loss of the pairs
        order_loss = (found["loss"] - found["mlm_loss"]) / max(1.0, found["paired"])
        shares = {
            "loss": mlm_loss + order_loss,
            "mlm_loss": mlm_loss,
            "perplexity": math.exp(min(mlm_loss, 700.0)),
            "mlm_accuracy": found["mlm_accuracy"] / found["masked"],
        }
        if found["paired"]:
            shares["order_accuracy"] = found["order_accuracy"] / found["paired"]
        return shares

    def _report(self, step: Step) -> None:
        if self.log is not None:
            self.log(step)

    def _save(self, step: Step) -> None:
        self.done = step.done
        if step.stopping or self.score is not None or self._due(step.done):
            if self.log is not None:
                self.log.flush()
            self._checkpoint()

    def _due(self, done: int) -> bool:
        """Steps are the same for all ranks; of time the first one decides, and to ask it costs an exchange."""
        if self.saving.steps or self.ranks.world_size == 1:
            return self.saving.due(done)
        return done % 10 == 0 and self.ranks.any(self.leads and self.saving.due(done))

    def _checkpoint(self) -> None:
        best = self.best if math.isfinite(self.best) else None
        state = {"guard": self.guard.state(), "best": best}
        self.checkpoints.save(self.done, self.parts.decisive, state=state, score=self.score)

    def _say(self, text: str) -> None:
        if self.log is not None:
            self.log.say(text)

    def _memory_full(self) -> ConfigError:
        rows = self._rows()
        last = "a smaller --length" if self.parts.precision == "fp8" else "--gradient-checkpointing"
        smaller = f"--micro-batch {rows // 2}" if rows > 1 else last
        return ConfigError(f"out of memory with {rows} sequences at once; {self._rescue()} and {smaller}")

    def _rescue(self) -> str:
        """Save what an error has left whole, and say how to go on.

        Before the update of a step the weights are those of the step before, and its hooks have all run.
        """
        if self.leads and self.config.parallel == "ddp" and self.done and self.guard.done == self.done:
            self._checkpoint()
            self.checkpoints.wait()
        latest = self.config.out / "checkpoints" / "latest"
        where = latest.read_text().strip() if latest.is_file() else "the beginning"
        return f"the run can go on from {where}: start it again with --resume"


def _counts(batch: PretrainingBatch) -> list[float]:
    """Hidden tokens, pairs of segments, tokens, padding."""
    masked, paired = (int((asked != IGNORE_INDEX).sum()) for asked in (batch.labels, batch.swapped))
    tokens = len(batch.input_ids) - batch.padding
    return [float(count) for count in (masked, paired, tokens, batch.padding)]
