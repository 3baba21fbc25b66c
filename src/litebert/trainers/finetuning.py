"""A fine-tuning run: its parts, what the loop asks of them, and what happens after a step. `finetune` has the
settings."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from litebert.console import make_console
from litebert.data.batches import Batch, Example, collate
from litebert.errors import ConfigError, require_extra
from litebert.files import write_json
from litebert.inference import Model
from litebert.model import Albert
from litebert.model.backends.cuda_graphs import is_launch_bound
from litebert.tasks.objective import objective
from litebert.train.checkpointing import Checkpoints
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.guard import Collapse, Guard
from litebert.train.log import RunLog
from litebert.train.loop import Step, train
from litebert.train.mixout import Mixout
from litebert.train.optimizers import adamw, warmup_linear
from litebert.train.strategies import attenuation, project, tune, unfreeze, weight_at
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning_plan import Plan, validates_in_bf16

if TYPE_CHECKING:
    from torch import Tensor


LOWER = 1 / 3  # of the rate, when a run that collapsed begins again
LEAST_TO_JUDGE = 20  # examples: of fewer, a single answer is worth more than five points
COLUMN_MULTIPLE = 8  # to which lengths are rounded up for graphs, so that few are needed


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    metric: str
    metrics: dict[str, float]
    """Of the best epoch, on the validation examples."""
    epoch: int
    seconds: float
    test: dict[str, float]
    """On the test examples, where some were given."""
    baseline: dict[str, float]
    """What an answer without reading gets on those, or on the validation examples."""
    rate: float
    """The highest, of the attempt that counts."""
    collapsed: str | None
    """What says that nothing was learned, if so."""
    decisive: dict[str, str]
    """The settings and the content of the files that this was made with."""
    before: float | None = None
    """The metric on the validation examples before the first step, of tasks that a model can do untaught."""


class EnoughError(Exception):
    """A hook has seen enough: the run is over, or begins again."""


def finetune(config: FinetuneConfig, console: Console | None = None, *, split_seed: int | None = None) -> Result | None:
    """Fine-tune and save a model. Returns None when a stop was requested before the last step.

    `split_seed` is the seed of the validation split, by default the run's: runs that are compared share a split.
    """
    console = console or make_console()
    began = time.perf_counter()
    require_extra("sklearn.metrics", "train")  # at the start, not after the first epoch
    plan = Plan(config, console, config.seed if split_seed is None else split_seed)
    why = None
    for attempt, rate in enumerate((plan.rate, plan.rate * LOWER)):
        if attempt == 0 and config.resume and (config.out / "checkpoints-again" / "latest").is_file():
            continue  # the run that is resumed had begun again already
        run = Attempt(plan, rate, last=attempt == 1)
        if config.metric is not None:
            run.measure()  # refuses a metric that does not exist before anything is learned
        if not run(why):
            return None
        if run.collapsed is None:
            break
        why = f"collapsed: {run.collapsed}; beginning again with a third of the rate, {rate * LOWER:.2g}"
    seconds = time.perf_counter() - began
    test, baseline = plan.measure_best()
    result = Result(
        plan.metric, run.best, run.best_epoch, seconds, test, baseline, rate, run.collapsed, plan.decisive, run.before
    )
    write_json(config.out / "finished.json", asdict(result))
    judged, scores = (plan.tested, test) if test else (plan.held_out, run.best)
    known = len(judged) >= LEAST_TO_JUDGE and plan.metric in baseline  # of a test of one class not every metric is
    failed = known and scores[plan.metric] <= baseline[plan.metric]
    if failed or run.collapsed is not None:
        fewer = ", or litebert adapt, which is made for few examples" if plan.task.name == "classify" else ""
        console.print(
            "this model is no better than one that answers without reading; it needs more --epochs, a higher "
            f"--learning-rate, more examples, a model that has read more text{fewer}",
            highlight=False,
            markup=False,
        )
    if run.before is not None and run.best[plan.metric] < run.before:
        console.print(
            f"this model is worse than what it began with ({plan.metric} {run.before:.3f} before): give a lower "
            f"--learning-rate, such as {rate / 5:.0e}, or more examples",
            highlight=False,
            markup=False,
        )
    without = f" (without reading: {_told(baseline)})" if baseline else ""
    where = f"on {len(plan.held_out):,} held-out examples" + ("" if test else without)
    console.print(f"best epoch {run.best_epoch}: {_told(run.best)} {where}", highlight=False, markup=False)
    if test:
        console.print(f"{config.test}: {_told(test)}{without}", highlight=False, markup=False)
    return result


def _told(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())


@dataclass(frozen=True)
class Piece:
    """Some examples of a lesson."""

    lesson: int
    batch: Batch
    share: float
    """Which part of its lesson's batch it is."""
    fits_graph: bool

    def tensors(self) -> dict[str, Tensor]:
        return self.batch.tensors()

    def setting(self) -> Hashable:
        return self.lesson, self.share, self.batch.examples


class Attempt:
    """One way through the plan."""

    def __init__(self, plan: Plan, rate: float, last: bool) -> None:
        self.plan, self.config, self.last = plan, plan.config, last
        self.model = plan.model()
        self.albert = self.model.albert
        self.strategies = plan.strategies
        depths = {f"encoder.{name}": users for name, users in self.albert.encoder.depths_of().items()}
        tuning = tune(self.strategies, self.albert, depths)
        for name, tuned in tuning.items():
            head_learning_rate_factor = next(
                (
                    x.task.head_learning_rate_factor
                    for x in plan.lessons
                    if name.startswith(f"heads.{x.task.head_name}.")
                ),
                1.0,
            )
            tuning[name] = replace(tuned, scale=tuned.scale * head_learning_rate_factor)
        self.optimizer = adamw(self.albert, weight_decay=self.config.weight_decay, tuning=tuning)
        if self.strategies.bounds == "project":
            self.optimizer.register_step_post_hook(project)
        self.schedule = warmup_linear(rate, plan.steps)
        self.mixout = (
            Mixout(dict(self.albert.encoder.named_parameters()), self.config.mixout) if self.config.mixout else None
        )
        self.guard = Guard({"model": self.albert, "optimizer": self.optimizer}, spike=math.inf)
        prior = plan.task.constant_answer_loss(plan.lessons[0].examples)
        self.collapse = None if prior is None else Collapse(prior, plan.steps)
        self.before: float | None = None
        self.best: dict[str, float] = {}
        self.best_epoch = self.improved = 0
        self.floor = plan.task.baseline(plan.held_out).get(plan.metric, -math.inf)
        parameters = [parameter for parameter in self.albert.parameters() if parameter.requires_grad]
        graphs = plan.device.type == "cuda" and self.config.cuda_graphs and self._can_be_recorded()
        self.graphs = StepGraphs(parameters) if graphs else None
        self.pieces = 1
        """Micro-batches that a batch is cut into; more when memory runs out."""

    def __call__(self, why: str | None) -> bool:
        """True when it ended by itself. `why` there had to be another attempt stands in the log."""
        plan, config = self.plan, self.config
        folder = config.out / ("checkpoints-again" if self.last else "checkpoints")
        stateful: dict[str, Any] = {"model": self.albert, "optimizer": self.optimizer}
        with Checkpoints(folder, stateful) as self.checkpoints:
            start = self.checkpoints.load_latest(plan.decisive) if config.resume else 0
            if start:
                self._restore(self.checkpoints.state)
                if self._waited(start) is not None:  # it had seen enough already
                    return True
                plan.console.print(f"going on from step {start:,}", highlight=False)
            with RunLog(config.out, plan.console, "finetune", start=start) as self.log:
                if why is not None and not start:
                    self.log.say(why)
                if plan.task.needs_random_batches and not start:
                    self.before = self.measure()[plan.metric]
                    self.log.say(f"before the first step: {plan.metric} {self.before:.3f}")
                try:
                    return train(
                        self.albert,
                        self._recorded_loss,
                        self._batches,
                        self.optimizer,
                        self.schedule,
                        steps=plan.steps,
                        start=start,
                        seed=config.seed,
                        guard=self.guard,
                        hooks=[self._notice, self.log, self._validate, self._save],
                        on_trouble=self.log.say,
                        on_full_memory=self._halve,
                        attenuate=attenuation(self.strategies, self.albert.parameters()),
                    )
                except EnoughError:
                    return True
                except torch.OutOfMemoryError as error:
                    rows = config.batch_size
                    raise ConfigError(
                        f"out of memory with {rows} examples at once; try --batch-size {max(1, rows // 2)}, or a "
                        "smaller --length, in another --out"
                    ) from error

    @property
    def collapsed(self) -> str | None:
        """What says that nothing was learned."""
        return None if self.collapse is None else self.collapse.verdict

    def _can_be_recorded(self) -> bool:
        """Is a step the same whatever its number, and computed without asking the device for a value?"""
        config = self.config
        varies = config.mixout or self.strategies.unfreeze_steps
        asks = (
            config.crf
            or config.head == "lstm"
            or config.adversarial != "none"
            or config.task in ("similarity", "translate")
        )
        picks = config.r_drop and config.task == "tag"  # the tokens to compare, by what they are
        copies = config.class_weights  # from the host, at every step
        return not (varies or asks or picks or copies)

    def _batches(self, step: int) -> list[Piece]:
        strategies, encoder = self.strategies, self.albert.encoder
        if step == 0 or strategies.unfreeze_steps or encoder.weight_at is None:
            self._see_weights(step)
        unfreeze(self.optimizer, step)
        if self.mixout is not None:
            self.mixout.forget()
        made: list[Piece] = []
        for number, lesson in enumerate(self.plan.lessons):
            examples = lesson.batch(step, self.config.batch_size)
            for some in (examples[start :: self.pieces] for start in range(min(self.pieces, len(examples)))):
                columns = None if made else self._columns(some)  # what comes later is added to, which no graph can
                batch = collate(some, self.model.tokenizer.pad_id, columns).to(self.plan.device)
                made.append(Piece(number, batch, len(some) / len(examples), columns is not None))
        return made

    def _columns(self, examples: Sequence[Example]) -> int | None:
        """Of a batch that is small enough for a graph."""
        config = self.albert.config
        longest = max(example.length for example in examples)
        columns = min(-(-longest // COLUMN_MULTIPLE) * COLUMN_MULTIPLE, self.plan.length)
        tokens = columns * sum(len(example.sequences) for example in examples)
        small = is_launch_bound(config, tokens, config.num_hidden_layers)
        return columns if self.graphs is not None and small else None

    def _halve(self) -> bool:
        """Out of memory: take half as many examples at once, and as many in all."""
        rows = -(-self.config.batch_size // self.pieces)
        if rows < 2:
            return False
        self.pieces *= 2
        self.graphs = None
        torch.cuda.empty_cache()
        self.log.say(f"out of memory with {rows} examples at once: going on with {-(-rows // 2)}, as many per step")
        return True

    def _see_weights(self, step: int) -> None:
        """Install the hook through which a pass sees its weights, where a strategy needs one."""
        hook = weight_at(self.strategies, self.albert.encoder.depths_of, step)
        mixout = self.mixout
        if mixout is None:
            self.albert.encoder.weight_at = hook
            return

        def mixed(name: str, weight: Tensor, depth: int, passes: int) -> Tensor:
            weight = mixout(name, weight)
            return weight if hook is None else hook(name, weight, depth, passes)

        self.albert.encoder.weight_at = mixed

    def _recorded_loss(self, piece: Piece) -> Mapping[str, Tensor]:
        return self._loss(piece) if self.graphs is None or not piece.fits_graph else self.graphs(self._loss, piece)

    def _loss(self, piece: Piece) -> dict[str, Tensor]:
        task, config = self.plan.lessons[piece.lesson].task, self.config
        with torch.autocast(self.plan.device.type, torch.bfloat16, enabled=self.plan.bf16):
            found = objective(task, self.albert, piece.batch, r_drop=config.r_drop, adversarial=config.adversarial)
        # of tasks that only help, nothing is told but that they add to the loss
        return {name: value * piece.share for name, value in found.items() if name == "loss" or piece.lesson == 0}

    # what happens after a step

    def _notice(self, step: Step) -> None:
        if not step.metrics:
            return
        own = step.metrics.pop("task_loss")
        if own != step.metrics["loss"]:
            step.metrics["task_loss"] = own
        if self.collapse is None:
            return
        self.collapse.notice(step.done, own)
        if self.collapse.verdict is not None and not self.last:
            raise EnoughError

    def _validate(self, step: Step) -> None:
        plan = self.plan
        if step.done % plan.epoch_steps:
            return
        epoch = step.done // plan.epoch_steps
        metrics = self.measure()
        self.log.validation(step.done, metrics)
        better = metrics[plan.metric] - self.best.get(plan.metric, -math.inf)
        if better > 0:
            self.improved = epoch
        if better >= 0:  # of equals the one that has learned longer
            self.best, self.best_epoch = metrics, epoch
            self._saved_model().save(self.config.out)

    def measure(self) -> dict[str, float]:
        """The scores on the held-out examples."""
        plan = self.plan
        self.model.bf16 = validates_in_bf16(self.config, plan.device)
        few = max(1, self.config.batch_size // self.pieces) if self.pieces > 1 else None  # memory has run out before
        found = self.model.score_examples(plan.task, plan.questions, few)
        plan.task.tune(plan.held_out, plan.questions, found)
        answers = [plan.task.answer(*three) for three in zip(plan.held_out, plan.questions, found, strict=True)]
        metrics = plan.task.metrics(plan.held_out, answers)
        if plan.metric not in metrics:
            raise ConfigError(f"metric={plan.metric!r} is none of {', '.join(metrics)}; choose one of them")
        return metrics

    def _saved_model(self) -> Model:
        """The model as it is finished, without the heads of tasks that only helped."""
        name = self.plan.task.head_name
        task, head = self.plan.task.for_saving(self.albert.heads[name])
        with torch.device("meta"):  # it is replaced at once
            albert = Albert(self.albert.config)
        albert.encoder, albert.heads[name] = self.albert.encoder, head
        return Model(albert, self.model.tokenizer, task, self.model.max_length)

    def _save(self, step: Step) -> None:
        if step.stopping or self.plan.saving.due(step.done):
            self.log.flush()
            self.checkpoints.save(step.done, self.plan.decisive, state=self._state())
        waited = self._waited(step.done)
        if waited is not None:
            self.log.say(f"no better score for {waited} epochs: stopping (--patience)")
            raise EnoughError

    def _waited(self, done: int) -> int | None:
        """For how many epochs nothing has become better, if that is enough. Before anything is learned nothing is."""
        waited = done // self.plan.epoch_steps - self.improved
        learned = self.best.get(self.plan.metric, -math.inf) > self.floor
        enough = self.config.patience and learned and waited >= self.config.patience and done < self.plan.steps
        return waited if enough else None

    def _state(self) -> dict[str, Any]:
        collapse = None if self.collapse is None else self.collapse.state()
        epochs = {"best_epoch": self.best_epoch, "improved": self.improved, "before": self.before}
        return {"best": self.best, "collapse": collapse, "guard": self.guard.state()} | epochs

    def _restore(self, state: dict[str, Any]) -> None:
        self.best, self.best_epoch, self.improved = state["best"], state["best_epoch"], state["improved"]
        self.before = state.get("before")
        self.guard.restore(state["guard"])
        if self.collapse is not None and state["collapse"] is not None:
            self.collapse.restore(state["collapse"])
