"""What a fine-tuning run decides before its first step: task, examples, length, epochs, learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from litebert.data.batches import Example, epoch_batches, steps_per_epoch
from litebert.data.tables import TableOptions
from litebert.data.windows import Window
from litebert.device import pick_device, training_precision, uses_bf16_for_inference
from litebert.errors import ConfigError, DataError
from litebert.files import atomic_write
from litebert.inference import Model
from litebert.loading import load
from litebert.model import Albert, AlbertConfig
from litebert.tasks import TASKS, TrainableTask
from litebert.train.optimizers import warmup_linear
from litebert.train.options import Strategies
from litebert.train.save_schedule import SaveSchedule
from litebert.train.strategies import strategies_for_model
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.frozen_encoder import MAX_STATES_BYTES, states_bytes, with_states
from litebert.trainers.initial_model import checked_length, default_learning_rate, load_trainable
from litebert.trainers.trainer import content_settings
from litebert.trainers.validation_split import split

MAX_EPOCHS, EXAMPLES_TO_SEE = 20, 50_000
"""By default so many epochs that this many examples are seen, within limits."""
CONSISTENCY_DROPOUT = 0.1
"""Dropout of losses that compare two forward passes, unless the user sets it."""
RESUMABLE_CHANGES = {"out", "resume", "device", "cuda_graphs", "save_every", "seeds", "search"}
"""Settings that may differ when a run is resumed."""


@dataclass
class TrainingTask:
    """A task and what it is trained on; a run has one, and more with --mix."""

    task: TrainableTask[Any, Any]
    records: list[Any]
    examples: list[Example]
    seed: int

    def __post_init__(self) -> None:
        self._lengths = np.array([0 if self.task.needs_random_batches else example.length for example in self.examples])
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    def batch(self, step: int, batch_size: int) -> list[Example]:
        """The examples of a step."""
        epoch, within = divmod(step, steps_per_epoch(len(self.examples), batch_size))
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, epoch_batches(self._lengths, batch_size, self.seed, epoch)
        return [self.examples[i] for i in self._batches[within]]


@dataclass(kw_only=True)
class FinetuningSetup:
    """Data, initial model and schedule of a run."""

    config: FinetuneConfig
    device: torch.device
    source: TableOptions
    """How files are read; it lists the rows that were skipped."""
    initial_model: Model
    length: int
    """Tokens per window."""
    tasks: list[TrainingTask]
    """The task to learn, then the auxiliary ones of --mix."""
    held_out: list[Any]
    """Records of the validation split."""
    held_out_examples: list[Example]
    test: list[Any]
    """Records of the test file."""
    metric: str
    learning_rate: float
    epochs: int
    model_config: AlbertConfig
    strategies: Strategies
    save_schedule: SaveSchedule
    settings: dict[str, str] = field(default_factory=dict)
    """What must not change before a run is resumed."""

    @property
    def task(self) -> TrainableTask[Any, Any]:
        return self.tasks[0].task

    @property
    def epoch_steps(self) -> int:
        return steps_per_epoch(len(self.tasks[0].examples), self.config.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.epoch_steps

    @cached_property
    def uses_bf16(self) -> bool:
        return training_precision(self.config.precision, self.device) == "bf16"

    def new_model(self) -> Model:
        """The model before the first step, with new heads where it has none for a task."""
        config, initial = self.config, self.initial_model
        torch.manual_seed(config.seed)
        known_heads = dict(initial.albert.heads.items())
        heads = {one.task.head_name: one.task.initial_head(self.model_config, known_heads) for one in self.tasks}
        albert = Albert(self.model_config, heads)
        albert.encoder.load_state_dict(initial.encoder.state_dict(), strict=not config.lora)
        if config.lora or config.freeze_encoder:
            for name, parameter in albert.encoder.named_parameters():
                parameter.requires_grad_(name.startswith(("adapters", "pooler")))
        return Model(albert.to(self.device), initial.tokenizer, self.task, self.length)

    def left_out(self) -> list[str]:
        """The rows and examples that are not trained on, with reasons."""
        return [*self.source.skipped, *(line for one in self.tasks for line in getattr(one.task, "left_out", []))]

    def introduction(self) -> list[str]:
        """What a user wants to know before the first step."""
        config, main = self.config, self.tasks[0]
        lines = [
            f"{config.task}: {len(main.records):,} training examples, {len(self.held_out):,} validation examples; "
            f"{self.epochs} epochs of {self.epoch_steps:,} steps, learning rate {self.learning_rate:.2g}, "
            f"on {self.device}",
            *self._length_statistics(),
        ]
        former = self.initial_model.task
        if former is not None and former.name not in ("mask", "", "similarity"):
            lines.append(f"{config.model} was trained for {former.name}: its head is replaced by a new one")
        for auxiliary, mixed in zip(self.tasks[1:], config.mix, strict=True):
            path = mixed.partition("=")[2]
            lines.append(f"auxiliary task {auxiliary.task.name}: {len(auxiliary.records):,} examples of {path}")
        if config.dropout is None and (config.r_drop or needs_dropout(self.tasks)):
            why = "r_drop" if config.r_drop else "simcse"
            lines.append(f"{why}: dropout is {CONSISTENCY_DROPOUT} in this run, because two forward passes must differ")
        return lines + main.task.remarks(main.records)

    def _length_statistics(self) -> list[str]:
        lengths = np.array([_uncut_length(example) for example in self.tasks[0].examples])
        median, most = np.percentile(lengths, [50, 95])
        examples = [*self.tasks[0].examples, *self.held_out_examples]
        windows = ", and longer texts are split into windows" if any(map(_is_cut, examples)) else ""
        lines = [
            f"tokens per example: median {median:.0f}, 95 % have at most {most:.0f}, longest {lengths.max():,}; the "
            f"model reads {self.length} at once{windows}"
        ]
        if gaps := sum(map(_has_gaps, examples)):
            lines.append(f"{gaps:,} texts are so long that only parts of them are read")
        return lines


def prepare_finetuning(config: FinetuneConfig, split_seed: int | None = None) -> FinetuningSetup:
    """Read the files, load the initial model, and check that they fit together.

    `split_seed` is the seed of the validation split, by default the run's.
    """
    source = TableOptions.parse(config.columns, config.skip_bad)
    task, records = _learned_task(config.task, config.train, source, **config.task_options())
    if config.valid is None:
        records, held_out = split(records, task, config.seed if split_seed is None else split_seed, config.train)
    else:
        held_out = type(task).read(config.valid, source)
    test = [] if config.test is None else type(task).read(config.test, source)
    for path, read in ((config.valid, held_out), (config.test, test)):
        if path is not None and not read:
            raise DataError(f"{path}: no example can be read, the last because: {source.skipped[-1]}")
        task.check(read)  # an unknown label is found before training, not after
    initial_model = load_trainable(config.model)
    length = checked_length(config.length, initial_model)
    tasks = [training_task(config, task, records, source, initial_model, length)]
    for number, mixed in enumerate(config.mix, start=1):
        own_source = TableOptions(skip_bad=config.skip_bad, skipped=source.skipped)
        auxiliary, mixed_records = _auxiliary_task(mixed, own_source)
        tasks.append(training_task(config, auxiliary, mixed_records, source, initial_model, length, number))
    examples = len(tasks[0].examples)
    learning_rate = default_learning_rate(initial_model) if config.learning_rate is None else config.learning_rate
    model_config = _model_config(config, initial_model, needs_dropout(tasks))
    setup = FinetuningSetup(
        config=config, device=pick_device(config.device), source=source, initial_model=initial_model, length=length,
        tasks=tasks, held_out=held_out, held_out_examples=task.features(held_out, initial_model.tokenizer, length),
        test=test, metric=config.metric or task.metric_for(held_out), learning_rate=learning_rate,
        epochs=config.epochs or min(MAX_EPOCHS, max(task.min_epochs, -(-EXAMPLES_TO_SEE // examples))),
        model_config=model_config,
        strategies=strategies_for_model(config, model_config.num_hidden_layers, model_config.initializer_range),
        save_schedule=SaveSchedule.parse(config.save_every, steps_per_epoch(examples, config.batch_size)),
        settings=settings_for_resume(config),
    )  # fmt: skip
    warmup_linear(learning_rate, setup.steps)  # refuses an impossible rate before anything is written
    task.head_depths(model_config)  # refuses depths that this encoder does not have
    return setup


def training_task(
    config: FinetuneConfig,
    task: TrainableTask[Any, Any],
    records: list[Any],
    source: TableOptions,
    model: Model,
    length: int,
    number: int = 0,
) -> TrainingTask:
    """A task with its examples; `number` counts the auxiliary ones."""
    examples = task.training_examples(records, task.features(records, model.tokenizer, length))
    if not examples:
        reasons = [*source.skipped, *getattr(task, "left_out", ["there is none"])]
        raise DataError(f"{config.train}: no training example is left, the first because: {reasons[0]}")
    if number:
        task.head_name = f"mix_{number}"  # type: ignore[misc]  # two tasks of one kind have two heads
    return TrainingTask(task, records, examples, config.seed + number)


def write_left_out(setup: FinetuningSetup) -> list[str]:
    """skipped.txt: what is not trained on; and a line about it."""
    lines, path = setup.left_out(), setup.config.out / "skipped.txt"
    if not lines:
        return []
    atomic_write(path, "\n".join(lines) + "\n")
    return [f"{len(lines):,} left out, the first: {lines[0]}; all are listed in {path}"]


def precompute_states(setup: FinetuningSetup, console: Console) -> None:
    """Keep the hidden states of a frozen encoder, if they fit into memory; else they are computed at every step."""
    model = setup.initial_model.to(setup.device)
    examples_by_depths = [(one.task.head_depths(model.config), one.examples) for one in setup.tasks]
    depths = examples_by_depths[0][0]
    examples_by_depths.append((depths, setup.held_out_examples))
    size = sum(states_bytes(examples, depths, model.config.hidden_size) for depths, examples in examples_by_depths)
    if size > MAX_STATES_BYTES:
        console.print(f"{size / 1e9:.0f} GB of hidden states are too many to keep; they are computed at every step")
        return
    model.bf16 = setup.uses_bf16
    for one, (own_depths, examples) in zip(setup.tasks, examples_by_depths, strict=False):
        one.examples = with_states(model, examples, own_depths, console)
    setup.held_out_examples = with_states(model, setup.held_out_examples, depths, console)


def needs_dropout(tasks: Sequence[TrainingTask]) -> bool:
    return any(one.task.needs_dropout for one in tasks)


def evaluate_saved(
    config: FinetuneConfig, records: Sequence[Any], device: torch.device
) -> tuple[dict[str, float], dict[str, float]]:
    """The metrics of the model in --out on these records, and those of the baseline."""
    model = load(config.out).to(device)
    model.bf16 = validates_in_bf16(config, device)
    task: Any = model.task
    return task.metrics(records, model.answer_records(records)), task.baseline(records)


def validates_in_bf16(config: FinetuneConfig, device: torch.device) -> bool:
    """As the model will be used, and in float32 where that was requested."""
    return uses_bf16_for_inference("fp32" if config.precision == "fp32" else "auto", device)


def settings_for_resume(config: FinetuneConfig) -> dict[str, str]:
    """What must be the same when a run is resumed: the settings, and the content of the files."""
    own = [(config.task, path) for path in (config.train, config.valid, config.test) if path is not None]
    mixed = [(name, Path(path)) for name, _, path in (given.partition("=") for given in config.mix)]
    source = TableOptions.parse(config.columns)
    files = [file for task, path in (*own, *mixed) for file in TASKS[task].input_files(path, source)]
    files += [config.target_tokenizer] if config.target_tokenizer is not None else []
    settings = asdict(config)
    settings |= {f"decoder_{name}": value for name, value in settings.pop("decoder").items()}
    return (
        {name: str(value) for name, value in settings.items() if name not in RESUMABLE_CHANGES}
        | content_settings(files)
        | {"precision": training_precision(config.precision, pick_device(config.device))}
    )


def _learned_task(
    name: str, path: Path, source: TableOptions, **options: Any
) -> tuple[TrainableTask[Any, Any], list[Any]]:
    """A task and the records it learns from."""
    task_class: type[TrainableTask[Any, Any]] = TASKS[name]  # type: ignore[assignment]
    records = task_class.read(path, source)
    try:
        return task_class.learn_from(records, **options), records
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _auxiliary_task(mixed: str, source: TableOptions) -> tuple[TrainableTask[Any, Any], list[Any]]:
    """The task and the records of an entry of --mix, such as tag=train.conll."""
    name, _, path = mixed.partition("=")
    if name not in TASKS or not issubclass(TASKS[name], TrainableTask) or not path:
        raise ConfigError(f"mix={mixed!r} must be a task and a file, such as tag=train.conll")
    if name == "translate":
        raise ConfigError(f"mix={mixed!r}: translate cannot be an auxiliary task; give it as --task")
    return _learned_task(name, Path(path), source)


def _model_config(config: FinetuneConfig, initial_model: Model, simcse: bool) -> AlbertConfig:
    """The architecture of the model that is trained."""
    changes: dict[str, Any] = {}
    dropout = CONSISTENCY_DROPOUT if config.dropout is None and (config.r_drop or simcse) else config.dropout
    if simcse and (dropout == 0 or config.freeze_encoder):
        off = "freeze_encoder reads without it" if config.freeze_encoder else "dropout=0"
        raise ConfigError(f"simcse compares two readings that dropout makes different, and {off}; leave it out")
    if dropout is not None:
        changes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if config.lora:
        changes |= {"lora_rank": config.lora}
    rank = initial_model.config.lora_rank
    if config.lora and rank not in (0, config.lora):
        raise ConfigError(f"lora={config.lora}, but {config.model} has adapters of rank {rank}; give that, or 0")
    return replace(initial_model.config, **changes)


def _uncut_length(example: Example) -> int:
    """Tokens of the uncut sequence; of several options the longest."""
    windows = [sequence for sequence in example.sequences if isinstance(sequence, Window)]
    whole = [len(window.ids) - (window.end - window.start) + window.total for window in windows]
    return max(whole, default=example.length)


def _is_cut(example: Example) -> bool:
    """Is one of its sequences a window of a longer text?"""
    windows = [sequence for sequence in example.sequences if isinstance(sequence, Window)]
    return any(window.start or window.end < window.total for window in windows)


def _has_gaps(example: Example) -> bool:
    """Is there a stretch of the text that no window covers?"""
    windows = [sequence for sequence in example.sequences if isinstance(sequence, Window)]
    stretches = sorted({(window.start, window.end) for window in windows})
    return any(later[0] > former[1] for former, later in pairwise(stretches))
