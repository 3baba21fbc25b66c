"""Pre-training on shards: masked tokens and sentence order."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from litebert.console import make_console
from litebert.data.batches import IGNORE_INDEX
from litebert.data.prefetch import Prefetcher
from litebert.data.pretraining import PretrainingBatch
from litebert.device import limit_shape_caches, peak_flops, pick_device
from litebert.errors import CheckpointError, ConfigError, LitebertError
from litebert.inference import Model
from litebert.model.backends import fp8_disabled
from litebert.tasks import Mask
from litebert.tasks.pretraining import flops_per_token, stack_layers
from litebert.train.averaging import MasterWeights
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.distributed import GatheredModelState, GatheredOptimizerState
from litebert.train.guard import MAX_LOSS_JUMP, PlateauDetector
from litebert.train.loop import Hook, Step
from litebert.train.ranks import SINGLE_PROCESS, Ranks
from litebert.train.save_schedule import SaveSchedule
from litebert.train.strategies import gradient_attenuator, unfreeze, weight_hook
from litebert.trainers.pretrain_config import DEPTH_RAMP, PretrainConfig
from litebert.trainers.pretraining_setup import PretrainingSetup, prepare_pretraining
from litebert.trainers.trainer import Trainer

VALIDATIONS, MIN_VALIDATION_STEPS = 20, 50
"""Validations per run unless the user sets their interval, and the fewest steps between two."""
GRAPH_MEMORY_FACTOR = 2.5
"""Graphs are recorded while the device has this many times the memory of a step: a recorded step keeps its memory, and
one of another size needs as much beside it."""


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
    limit_shape_caches()
    setup = prepare_pretraining(config, ranks, device or pick_device(config.device))
    trainer = PretrainingTrainer(setup, console or make_console(), hooks)
    finished = trainer.run()
    if finished:
        trainer.save_model()
    return finished


@dataclass(frozen=True)
class MicroBatch:
    batch: PretrainingBatch
    depth: int
    """Passes."""
    length: int
    """Tokens of the longest sequence."""
    counts: Tensor
    """Its masked tokens, sentence pairs, tokens and padding."""
    totals: Tensor
    """The same of the whole step, over all ranks."""

    def tensors(self) -> dict[str, Tensor]:
        return {**self.batch.tensors(), "counts": self.counts, "totals": self.totals}

    def setting(self) -> Hashable:
        return self.depth, self.length


class PretrainingTrainer(Trainer[MicroBatch]):
    command = "pretrain"
    unit = "sequences"
    retired_settings = {"step_temperature": 1.0}  # noqa: RUF012

    def __init__(self, setup: PretrainingSetup, console: Console, hooks: Sequence[Hook] = ()) -> None:
        config = setup.config
        super().__init__(
            config,
            console,
            model=setup.albert,
            optimizer=setup.optimizer,
            schedule=setup.schedule,
            steps=config.steps,
            device=setup.device,
            settings=setup.settings(),
            save_schedule=SaveSchedule.parse(config.save_every, setup.epoch_steps),
            average=setup.average,
            max_loss_jump=MAX_LOSS_JUMP,
            ranks=setup.ranks,
        )
        self.config: PretrainConfig = config
        self.setup, self.hooks, self.data = setup, hooks, setup.corpus.training
        self.clip_norm, self.splits = config.clip_norm, setup.initial_splits
        if config.parallel == "fsdp" and self.ranks.world_size > 1:
            self.stateful |= {
                "model": GatheredModelState(setup.objective),
                "optimizer": GatheredOptimizerState(setup.objective, setup.optimizer),
            }
        ramp = "" if setup.depth_ramp.stages else f' or a ramp of depth (--depth-ramp "{DEPTH_RAMP}")'
        advice = f"try a higher --learning-rate, more --steps{ramp}, in another --out"
        self.plateau = PlateauDetector(setup.corpus.unigram_loss, config.steps, advice)
        self.batch_queue = Prefetcher(self._make_batches, config.workers)
        self.graphs = self._new_graphs()
        self.best_loss = math.inf
        """Of the validations at full depth."""

    def _new_graphs(self) -> StepGraphs | None:
        """On one GPU, unless weights are seen through a hook that changes from pass to pass or step to step."""
        setup = self.setup
        varies = setup.albert.encoder.weight_at is not None or setup.strategies.unfreeze_steps
        if not self.config.cuda_graphs or self.device.type != "cuda" or self.ranks.world_size > 1 or varies:
            return None
        return StepGraphs([parameter for parameter in setup.albert.parameters() if parameter.requires_grad])

    def introduction(self) -> list[str]:
        return self.setup.introduction()

    def state(self) -> dict[str, Any]:
        return {"best": self.best_loss if math.isfinite(self.best_loss) else None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best_loss = state["best"] or math.inf

    def close(self) -> None:
        self.batch_queue.close()

    def save_model(self) -> None:
        """Write the model folder; with a moving average of the weights, the average is the model."""
        setup = self.setup
        if isinstance(setup.optimizer, MasterWeights):
            setup.optimizer.release()
        with setup.average.applied() if setup.average is not None else nullcontext():
            state = self.stateful["model"].state_dict()  # all ranks must ask for the state of a sharded model
            if self.is_main:
                albert = setup.new_model()
                albert.load_state_dict({name.removeprefix("albert."): value for name, value in state.items()})
                Model(albert.eval(), setup.corpus.shards.tokenizer, Mask(), self.config.length).save(self.config.out)

    # batches and loss

    def _make_batches(self, step: int) -> list[tuple[PretrainingBatch, Tensor]]:
        """This rank's micro-batches of a step, and their counts; called from threads."""
        splits, rank, world_size = self._splits_at(step), self.ranks.rank, self.ranks.world_size
        shares = range(rank * splits, (rank + 1) * splits)
        batches = [self.data.batch(step, share, world_size * splits) for share in shares]
        if self.device.type == "cuda":
            longest, pad_id = self.data.stage(step).length, self.setup.corpus.shards.tokenizer.pad_id
            batches = [batch.padded_to_buckets(longest, pad_id).pin_memory() for batch in batches]
        return [(batch, torch.tensor(batch_counts(batch))) for batch in batches]

    def _splits_at(self, step: int) -> int:
        """Micro-batches per rank: none of them is empty, also where a ramp makes the batch small."""
        return max(1, min(self.splits, self.data.stage(step).batch_size // self.ranks.world_size))

    def micro_batch_size(self) -> int:
        return self.data.stage(self.done).batch_size // (self.ranks.world_size * self._splits_at(self.done))

    def prefetch(self, step: int) -> None:
        self.batch_queue.schedule(step)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        setup = self.setup
        if setup.strategies.unfreeze_steps:
            setup.albert.encoder.weight_at = weight_hook(setup.strategies, setup.albert.encoder.depths_of, step)
            unfreeze(setup.optimizer, step)
        batches = self.batch_queue(step)
        counts = [own.to(self.device, non_blocking=True) for _, own in batches]
        totals = self.ranks.sum(torch.stack(counts).sum(dim=0)).clamp(min=1)
        depth, length = setup.depth_at(step), self.data.stage(step).length
        return [
            MicroBatch(batch.to(self.device), depth, length, own, totals)
            for (batch, _), own in zip(batches, counts, strict=True)
        ]

    def loss(self, batch: MicroBatch) -> dict[str, Tensor]:
        masked, paired = batch.totals[:2]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.setup.precision in ("bf16", "fp8")):
            figures: dict[str, Tensor] = self.setup.compute(batch.batch, batch.depth, batch.length, masked, paired)
        return figures | dict(zip(("masked", "paired", "tokens", "padding"), batch.counts, strict=True))

    def can_replay(self, batch: MicroBatch) -> bool:
        if self.splits > 1:
            return False
        if self.device.type != "cuda":
            return True
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return GRAPH_MEMORY_FACTOR * torch.cuda.max_memory_allocated(self.device) < memory

    def attenuate(self) -> Callable[[float], float] | None:
        return gradient_attenuator(self.setup.strategies, self.setup.albert.parameters())

    def reduce_memory(self) -> bool:
        self.batch_queue.clear()
        return super().reduce_memory()

    # after a step

    def after_step(self, step: Step) -> None:
        step = replace(step, metrics=self._reported(step))
        if step.metrics and self.setup.average is not None:
            self.setup.average.update(step.done)
        if step.done < step.total:
            self._grow_depth(step.done)
        score = self._validate(step)
        self.report(step)
        self.save(step, score)
        for hook in self.hooks:
            hook(step)

    def _reported(self, step: Step) -> dict[str, float]:
        """The sums of a step as the log shows them; empty for a step that was skipped."""
        figures = dict(step.metrics)
        if not figures:
            return figures
        depth = figures["depth"] = self.setup.depth_at(step.done - 1)
        figures["padding"] /= figures["tokens"] + figures["padding"]
        if not figures.pop("paired"):
            figures.pop("order_accuracy")
        figures.pop("masked")
        peak = peak_flops(self.device, self.setup.precision)
        if peak is not None:
            length = self.data.stage(step.done - 1).length
            flops = flops_per_token(self.setup.model_config, int(depth), length, self.config.mask_rate)
            available = step.seconds * peak * self.ranks.world_size
            figures["flop_utilisation"] = flops * figures["tokens"] / available
        if advice := self.plateau.update(figures["mlm_loss"]):
            self.say(advice)
        return figures

    def _grow_depth(self, done: int) -> None:
        """At a stage of the depth ramp, the model gets more layers before the next step."""
        setup, before, after = self.setup, self.setup.depth_at(done - 1), self.setup.depth_at(done)
        if after == before:
            return
        stack_layers(setup.albert, setup.optimizer, before, after)
        self.graphs = self.graphs and self.graphs.emptied()  # those of fewer passes are never replayed again
        self.guard.reset_mean()
        self.plateau.reset()
        if setup.average is not None:
            setup.average.restart()
        self.say(f"step {done}: from {before} to {after} passes")

    def _validate(self, step: Step) -> float | None:
        """Validate if it is due; the loss if it is the best so far."""
        every = self.config.validate_every or max(MIN_VALIDATION_STEPS, step.total // VALIDATIONS)
        if self.setup.corpus.held_out is None or (step.done % every and step.done != step.total):
            return None
        depth = self.setup.depth_at(min(step.done, step.total - 1))
        figures = self._validation_figures(depth)
        self.report_validation(step.done, figures)
        if depth < self.setup.model_config.num_hidden_layers or figures["loss"] >= self.best_loss:
            return None
        self.best_loss = figures["loss"]
        return self.best_loss

    @torch.no_grad()
    def _validation_figures(self, depth: int) -> dict[str, float]:
        """Figures on held-out documents: always the same sequences and masks, with the averaged weights if any."""
        setup, ones = self.setup, torch.ones(4, device=self.device)
        corpus = setup.corpus
        assert corpus.held_out is not None
        total: dict[str, Tensor] = {}
        averaged = setup.average.applied() if setup.average is not None else nullcontext()
        setup.objective.eval()
        try:
            with fp8_disabled(setup.albert.encoder), averaged:  # as the model will be used
                for number in range(corpus.validation_batches):
                    batch = corpus.held_out.batch(number, self.ranks.rank, self.ranks.world_size)
                    counts = torch.tensor(batch_counts(batch), device=self.device)
                    sums = self.loss(MicroBatch(batch.to(self.device), depth, self.config.length, counts, ones))
                    total = {name: total.get(name, 0.0) + value for name, value in sums.items()}
        finally:
            setup.objective.train()
        sums_on_host = self.ranks.sum(torch.stack([value.float() for value in total.values()])).tolist()
        return validation_means(dict(zip(total, sums_on_host, strict=True)))

    # errors

    def explain(self, error: RuntimeError) -> LitebertError | None:
        if isinstance(error, torch.OutOfMemoryError):
            size = self.micro_batch_size()
            last = "a smaller --length" if self.setup.precision == "fp8" else "--gradient-checkpointing"
            smaller = f"--micro-batch {size // 2}" if size > 1 else last
            return ConfigError(f"out of memory with {size} sequences at once; {self._rescue()} and {smaller}")
        if self.ranks.world_size == 1:
            return None
        # with several processes the usual error is that another one is gone
        return CheckpointError(f"{str(error).splitlines()[0]}; {self._rescue()}")

    def _rescue(self) -> str:
        """Save what an error has left whole, and say how to go on.

        Before the update of a step the weights are those of the step before, which was reported in full.
        """
        if self.is_main and self.config.parallel == "ddp" and self.done and self.guard.done == self.done:
            self.save_checkpoint()
            self.checkpoints.wait()
        latest = self.config.out / "checkpoints" / "latest"
        where = latest.read_text().strip() if latest.is_file() else "the beginning"
        return f"the run can go on from {where}: start it again with --resume"


def batch_counts(batch: PretrainingBatch) -> list[float]:
    """Masked tokens, sentence pairs, tokens, padding."""
    masked, paired = (int((labels != IGNORE_INDEX).sum()) for labels in (batch.labels, batch.swapped))
    tokens = len(batch.input_ids) - batch.padding
    return [float(count) for count in (masked, paired, tokens, batch.padding)]


def validation_means(sums: Mapping[str, float]) -> dict[str, float]:
    mlm_loss = sums["mlm_loss"] / sums["masked"]
    # what the objective added to it is the weighted loss of the pairs
    order_loss = (sums["loss"] - sums["mlm_loss"]) / max(1.0, sums["paired"])
    means = {
        "loss": mlm_loss + order_loss,
        "mlm_loss": mlm_loss,
        "perplexity": math.exp(min(mlm_loss, 700.0)),
        "mlm_accuracy": sums["mlm_accuracy"] / sums["masked"],
    }
    if sums["paired"]:
        means["order_accuracy"] = sums["order_accuracy"] / sums["paired"]
    return means
