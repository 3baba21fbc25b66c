"""Fine-tuning on labelled examples of a task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from litebert.console import make_console, say
from litebert.data.batches import Batch, Example, collate
from litebert.device import limit_shape_caches
from litebert.errors import ConfigError, require_extra
from litebert.files import write_json
from litebert.inference import Model
from litebert.model import Albert
from litebert.model.backends.cuda_graphs import is_launch_bound
from litebert.run_folder import write_run
from litebert.tasks.objective import objective
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.guard import CollapseDetector
from litebert.train.loop import Step
from litebert.train.mixout import Mixout
from litebert.train.optimizers import ParameterOptions, adamw, warmup_linear
from litebert.train.strategies import gradient_attenuator, parameter_options, project, unfreeze, weight_hook
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning_setup import (
    FinetuningSetup,
    evaluate_saved,
    precompute_states,
    prepare_finetuning,
    validates_in_bf16,
    write_left_out,
)
from litebert.trainers.trainer import EarlyStopError, Trainer

RETRY_RATE = 1 / 3
"""Factor of the learning rate when training collapsed and starts again."""
RETRY_FOLDER = "checkpoints-again"
MIN_EXAMPLES_TO_JUDGE = 20
"""Of fewer, a single answer is worth more than five points."""
GRAPH_LENGTH_MULTIPLE = 8
"""Lengths are rounded up to a multiple of this for CUDA graphs, so that few graphs are needed."""


@dataclass(frozen=True)
class FinetuningResult:
    metric: str
    metrics: dict[str, float]
    """Of the best epoch, on the validation examples."""
    epoch: int
    seconds: float
    test: dict[str, float]
    """On the test examples, if there are any."""
    baseline: dict[str, float]
    """Of the baseline, which ignores the text, on the test examples or else on the validation examples."""
    rate: float
    """Peak learning rate of the attempt that counts."""
    collapsed: str | None
    """Evidence that nothing was learned, if so."""
    decisive: dict[str, str]
    """The settings and the hashes of the files."""
    before: float | None = None
    """The metric on the validation examples before the first step, for tasks that need no trained head."""


def finetune(
    config: FinetuneConfig, console: Console | None = None, *, split_seed: int | None = None
) -> FinetuningResult | None:
    """Fine-tune and save a model. Returns None when a stop was requested before the last step.

    `split_seed` is the seed of the validation split, by default the run's: runs that are compared share a split.
    """
    limit_shape_caches()
    console = console or make_console()
    began = time.perf_counter()
    require_extra("sklearn.metrics", "train")  # at the start, not after the first epoch
    setup = prepare_finetuning(config, split_seed)
    write_run(config.out, "finetune", config)
    say(console, *setup.introduction(), *write_left_out(setup))
    if config.freeze_encoder:
        precompute_states(setup, console)
    trainer = train_with_retry(setup, console)
    if trainer is None:
        return None
    seconds = time.perf_counter() - began
    if setup.test:
        test, baseline = evaluate_saved(config, setup.test, setup.device)
    else:
        test, baseline = {}, setup.task.baseline(setup.held_out)
    result = FinetuningResult(
        setup.metric, trainer.best, trainer.best_epoch, seconds, test, baseline, trainer.learning_rate,
        trainer.collapsed, setup.settings, trainer.initial_score,
    )  # fmt: skip
    write_json(config.out / "finished.json", asdict(result))
    say(console, *warnings_of(setup, result), *scores_of(setup, result))
    return result


def train_with_retry(setup: FinetuningSetup, console: Console) -> FinetuningTrainer | None:
    """Train, and once more with a lower learning rate if the first attempt collapsed; None when it was stopped."""
    config, reason = setup.config, None
    if not (config.resume and (config.out / RETRY_FOLDER / "latest").is_file()):
        trainer = FinetuningTrainer(setup, console, setup.learning_rate)
        trainer.check_metric()
        if not trainer.run():
            return None
        if trainer.collapsed is None:
            return trainer
        lower = setup.learning_rate * RETRY_RATE
        reason = f"collapsed: {trainer.collapsed}; beginning again with a third of the rate, {lower:.2g}"
        del trainer  # and its model
    retry = FinetuningTrainer(setup, console, setup.learning_rate * RETRY_RATE, is_retry=True, retry_reason=reason)
    retry.check_metric()
    return retry if retry.run() else None


def warnings_of(setup: FinetuningSetup, result: FinetuningResult) -> list[str]:
    """What the user should know about a model that learned little."""
    lines, metric = [], result.metric
    judged, scores = (setup.test, result.test) if result.test else (setup.held_out, result.metrics)
    # of a test of one class not every metric is known
    is_judged = len(judged) >= MIN_EXAMPLES_TO_JUDGE and metric in result.baseline
    if (is_judged and scores[metric] <= result.baseline[metric]) or result.collapsed is not None:
        few_shot = ", or litebert adapt, which is made for few examples" if setup.task.name == "classify" else ""
        lines.append(
            "this model does not beat the baseline, which ignores the text; it needs more --epochs, a higher "
            f"--learning-rate, more examples, a model that was pre-trained on more text{few_shot}"
        )
    if result.before is not None and result.metrics[metric] < result.before:
        lines.append(
            f"this model is worse than what it began with ({metric} {result.before:.3f} before): give a lower "
            f"--learning-rate, such as {result.rate / 5:.0e}, or more examples"
        )
    return lines


def scores_of(setup: FinetuningSetup, result: FinetuningResult) -> list[str]:
    """The scores of the best epoch, and on the test file if there is one."""
    baseline = f" (baseline: {listed(result.baseline)})" if result.baseline else ""
    where = f"on {len(setup.held_out):,} held-out examples" + ("" if result.test else baseline)
    lines = [f"best epoch {result.epoch}: {listed(result.metrics)} {where}"]
    if result.test:
        lines.append(f"{setup.config.test}: {listed(result.test)}{baseline}")
    return lines


def listed(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())


@dataclass(frozen=True)
class MicroBatch:
    """Examples of one of the tasks."""

    task_index: int
    batch: Batch
    share: float
    """Fraction of its task's batch, the weight of its loss."""
    fits_graph: bool

    def tensors(self) -> dict[str, Tensor]:
        return self.batch.tensors()

    def setting(self) -> Hashable:
        return self.task_index, self.share, self.batch.examples


class FinetuningTrainer(Trainer[MicroBatch]):
    """One attempt at fine-tuning; a second one follows where the first collapses."""

    command = "finetune"
    memory_hint = ", or a smaller --length"
    retired_settings = {"step_temperature": "1.0"}  # noqa: RUF012

    def __init__(
        self,
        setup: FinetuningSetup,
        console: Console,
        learning_rate: float,
        *,
        is_retry: bool = False,
        retry_reason: str | None = None,
    ) -> None:
        config, task = setup.config, setup.task
        self.inference_model = setup.new_model()
        self.albert = self.inference_model.albert
        optimizer = adamw(
            self.albert, weight_decay=config.weight_decay, parameter_options=parameter_options_of(setup, self.albert)
        )
        if setup.strategies.bounds == "project":
            optimizer.register_step_post_hook(project)
        super().__init__(
            config,
            console,
            model=self.albert,
            optimizer=optimizer,
            schedule=warmup_linear(learning_rate, setup.steps),
            steps=setup.steps,
            device=setup.device,
            settings=setup.settings,
            save_schedule=setup.save_schedule,
        )
        self.config: FinetuneConfig = config
        self.setup, self.learning_rate = setup, learning_rate
        self.is_retry, self.retry_reason = is_retry, retry_reason
        if is_retry:
            self.checkpoint_folder = RETRY_FOLDER
        encoder = self.albert.encoder
        self.mixout = Mixout(dict(encoder.named_parameters()), config.mixout) if config.mixout else None
        prior = task.constant_answer_loss(setup.tasks[0].examples)
        self.collapse = None if prior is None else CollapseDetector(prior, setup.steps)
        self.baseline = task.baseline(setup.held_out).get(setup.metric, -math.inf)
        self.initial_score: float | None = None
        self.best: dict[str, float] = {}
        self.best_epoch = self.improved_epoch = 0
        """Of equal epochs the best is the last; the score last improved in the first."""
        if setup.device.type == "cuda" and config.cuda_graphs and self.can_record():
            self.graphs = StepGraphs([parameter for parameter in self.albert.parameters() if parameter.requires_grad])

    def can_record(self) -> bool:
        """Is a step the same whatever its number, and computed without waiting for a value from the device?"""
        config = self.config
        varies = config.mixout or self.setup.strategies.unfreeze_steps
        waits = (
            config.crf
            or config.head == "lstm"
            or config.adversarial != "none"
            or config.task in ("similarity", "translate")
        )
        selects = config.r_drop and config.task == "tag"  # the tokens to compare, by their labels
        copies = config.class_weights  # from the host, at every step
        return not (varies or waits or selects or copies)

    @property
    def collapsed(self) -> str | None:
        """Evidence that nothing was learned, if so."""
        return None if self.collapse is None else self.collapse.verdict

    # batches and loss

    def micro_batches(self, step: int) -> list[MicroBatch]:
        strategies, encoder = self.setup.strategies, self.albert.encoder
        if step == 0 or strategies.unfreeze_steps or encoder.weight_at is None:
            self._install_weight_hook(step)
        unfreeze(self.optimizer, step)
        if self.mixout is not None:
            self.mixout.forget()
        batches: list[MicroBatch] = []
        for index, task in enumerate(self.setup.tasks):
            examples = task.batch(step, self.config.batch_size)
            for part in (examples[start :: self.splits] for start in range(min(self.splits, len(examples)))):
                columns = None if batches else self._graph_columns(part)  # graphs cannot add to gradients
                batch = collate(part, self.inference_model.tokenizer.pad_id, columns).to(self.device)
                batches.append(MicroBatch(index, batch, len(part) / len(examples), columns is not None))
        return batches

    def _graph_columns(self, examples: Sequence[Example]) -> int | None:
        """The padded length of a batch that is small enough for a graph."""
        config = self.albert.config
        longest = max(example.length for example in examples)
        columns = min(-(-longest // GRAPH_LENGTH_MULTIPLE) * GRAPH_LENGTH_MULTIPLE, self.setup.length)
        tokens = columns * sum(len(example.sequences) for example in examples)
        small = is_launch_bound(config, tokens, config.num_hidden_layers)
        return columns if self.graphs is not None and small else None

    def _install_weight_hook(self, step: int) -> None:
        """The hook through which a pass sees its weights, where a strategy needs one."""
        hook, mixout = weight_hook(self.setup.strategies, self.albert.encoder.depths_of, step), self.mixout
        if mixout is None:
            self.albert.encoder.weight_at = hook
            return

        def mixed(name: str, weight: Tensor, depth: int, passes: int) -> Tensor:
            weight = mixout(name, weight)
            return weight if hook is None else hook(name, weight, depth, passes)

        self.albert.encoder.weight_at = mixed

    def can_replay(self, batch: MicroBatch) -> bool:
        return batch.fits_graph

    def loss(self, batch: MicroBatch) -> dict[str, Tensor]:
        task, config = self.setup.tasks[batch.task_index].task, self.config
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.setup.uses_bf16):
            figures = objective(task, self.albert, batch.batch, r_drop=config.r_drop, adversarial=config.adversarial)
        # auxiliary tasks are not reported; they only add to the loss
        is_reported = batch.task_index == 0
        return {name: value * batch.share for name, value in figures.items() if name == "loss" or is_reported}

    def attenuate(self) -> Callable[[float], float] | None:
        return gradient_attenuator(self.setup.strategies, self.albert.parameters())

    def micro_batch_size(self) -> int:
        return -(-self.config.batch_size // self.splits)

    # before and after a step

    def check_metric(self) -> None:
        """A requested metric that does not exist is refused before anything is learned."""
        if self.config.metric is not None:
            self.measure()

    def is_over(self, start: int) -> bool:
        return self._epochs_waited(start) is not None

    def before_first_step(self) -> None:
        setup = self.setup
        if self.retry_reason is not None:
            self.say(self.retry_reason)
        if setup.task.needs_random_batches:
            self.initial_score = self.measure()[setup.metric]
            self.say(f"before the first step: {setup.metric} {self.initial_score:.3f}")

    def after_step(self, step: Step) -> None:
        if step.metrics:
            step = self._without_redundant_loss(step)
            if self.collapsed is not None and not self.is_retry:
                raise EarlyStopError
        self.report(step)
        if step.done % self.setup.epoch_steps == 0:
            self._validate(step.done)
        self.save(step)
        waited = self._epochs_waited(step.done)
        if waited is not None:
            self.say(f"no better score for {waited} epochs: stopping (--patience)")
            raise EarlyStopError

    def _without_redundant_loss(self, step: Step) -> Step:
        """The task's own loss, which the collapse detector hears, is reported where it is not the whole loss."""
        metrics = dict(step.metrics)
        task_loss = metrics.pop("task_loss")
        if self.collapse is not None:
            self.collapse.update(step.done, task_loss)
        return replace(step, metrics=metrics if task_loss == metrics["loss"] else metrics | {"task_loss": task_loss})

    def _validate(self, done: int) -> None:
        epoch, metrics = done // self.setup.epoch_steps, self.measure()
        self.report_validation(done, metrics)
        gain = metrics[self.setup.metric] - self.best.get(self.setup.metric, -math.inf)
        if gain > 0:
            self.improved_epoch = epoch
        if gain >= 0:  # of equal epochs the one that was trained longer
            self.best, self.best_epoch = metrics, epoch
            self._model_to_save().save(self.config.out)

    def measure(self) -> dict[str, float]:
        """The metrics on the validation examples."""
        setup, task = self.setup, self.setup.task
        self.inference_model.bf16 = validates_in_bf16(self.config, setup.device)
        batch_size = max(1, self.config.batch_size // self.splits) if self.splits > 1 else None  # memory ran out before
        scores = self.inference_model.score_examples(task, setup.held_out_examples, batch_size)
        task.tune(setup.held_out, setup.held_out_examples, scores)
        answers = [task.answer(*args) for args in zip(setup.held_out, setup.held_out_examples, scores, strict=True)]
        metrics = task.metrics(setup.held_out, answers)
        if setup.metric not in metrics:
            raise ConfigError(f"metric={setup.metric!r} is none of {', '.join(metrics)}; choose one of them")
        return metrics

    def _model_to_save(self) -> Model:
        """The final model, without the heads of auxiliary tasks."""
        name = self.setup.task.head_name
        task, head = self.setup.task.for_saving(self.albert.heads[name])
        with torch.device("meta"):  # the encoder is replaced at once
            albert = Albert(self.albert.config)
        albert.encoder, albert.heads[name] = self.albert.encoder, head
        return Model(albert, self.inference_model.tokenizer, task, self.inference_model.max_length)

    def _epochs_waited(self, done: int) -> int | None:
        """Epochs without improvement, if they exhaust the patience. Patience begins above the baseline."""
        waited = done // self.setup.epoch_steps - self.improved_epoch
        has_learned = self.best.get(self.setup.metric, -math.inf) > self.baseline
        enough = self.config.patience and has_learned and waited >= self.config.patience and done < self.setup.steps
        return waited if enough else None

    def state(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "collapse": None if self.collapse is None else self.collapse.state(),
            "best_epoch": self.best_epoch,
            "improved": self.improved_epoch,
            "before": self.initial_score,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_epoch, self.improved_epoch = state["best"], state["best_epoch"], state["improved"]
        self.initial_score = state.get("before")
        if self.collapse is not None and state["collapse"] is not None:
            self.collapse.load_state(state["collapse"])


def parameter_options_of(setup: FinetuningSetup, albert: Albert) -> dict[str, ParameterOptions]:
    """How the optimizer treats each parameter, by the strategies and by the tasks' heads."""
    depths = {f"encoder.{name}": users for name, users in albert.encoder.depths_of().items()}
    head_rates = {f"heads.{one.task.head_name}.": one.task.head_learning_rate_factor for one in setup.tasks}
    return {
        name: replace(
            options,
            scale=options.scale * next((rate for head, rate in head_rates.items() if name.startswith(head)), 1.0),
        )
        for name, options in parameter_options(setup.strategies, albert, depths).items()
    }
