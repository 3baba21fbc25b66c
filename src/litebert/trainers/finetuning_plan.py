"""What a fine-tuning run decides before its first step: task, examples, length, epochs, rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
from litebert.files import atomic_write, file_sha256
from litebert.inference import Model
from litebert.loading import load
from litebert.model import Albert, AlbertConfig
from litebert.run_folder import write_run
from litebert.tasks import TASKS, TrainableTask
from litebert.train.optimizers import warmup_linear
from litebert.train.save_schedule import SaveEvery
from litebert.train.strategies import fitted
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.frozen_encoder import STATES_LIMIT_BYTES, bytes_of, read_once
from litebert.trainers.initial_model import checked_length, default_learning_rate, load_trainable

UNDECISIVE = {"out", "resume", "device", "cuda_graphs", "save_every", "seeds", "search"}
"""Settings that may differ when a run is resumed."""


@dataclass
class Lesson:
    """One task and what it learns from; a run has one, and more with --mix."""

    task: TrainableTask[Any, Any]
    records: list[Any]
    examples: list[Example]
    seed: int

    def __post_init__(self) -> None:
        self._lengths = np.array([0 if self.task.needs_random_batches else example.length for example in self.examples])
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    def batch(self, step: int, batch_size: int) -> list[Example]:
        """What it learns from at a step."""
        epoch, within = divmod(step, steps_per_epoch(len(self.examples), batch_size))
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, epoch_batches(self._lengths, batch_size, self.seed, epoch)
        return [self.examples[i] for i in self._batches[within]]


class Plan:
    """Everything that is decided before the first step."""

    def __init__(self, config: FinetuneConfig, console: Console, split_seed: int) -> None:
        self.config, self.console = config, console
        self.device = pick_device(config.device)
        self.bf16 = training_precision(config.precision, pick_device(config.device)) == "bf16"
        self.source = TableOptions.parse(config.columns, config.skip_bad)
        self.task, records = _learned(config.task, config.train, self.source, **config.task_options())
        self.held_out: list[Any]
        if config.valid is None:
            records, self.held_out = split(records, self.task, split_seed, config.train)
        else:
            self.held_out = type(self.task).read(config.valid, self.source)
        self.tested: list[Any] = [] if config.test is None else type(self.task).read(config.test, self.source)
        for given, some in ((config.valid, self.held_out), (config.test, self.tested)):
            if given is not None and not some:
                raise DataError(f"{given}: no example can be read, the last because: {self.source.skipped[-1]}")
            self.task.check(some)  # a label that training has not seen is found before training, not after
        self.start_from = load_trainable(config.model)
        self.length = checked_length(config.length, self.start_from)
        self.lessons = [self._lesson(self.task, records, 0)]
        for number, mixed in enumerate(config.mix, start=1):
            name, _, path = mixed.partition("=")
            if name not in TASKS or not issubclass(TASKS[name], TrainableTask) or not path:
                raise ConfigError(f"mix={mixed!r} must be a task and a file, such as tag=train.conll")
            if name == "translate":
                raise ConfigError(f"mix={mixed!r}: translate is not learned beside another task; give it as --task")
            options = TableOptions(skip_bad=config.skip_bad, skipped=self.source.skipped)
            self.lessons.append(self._lesson(*_learned(name, Path(path), options), number))
        self.questions = self.task.features(self.held_out, self.start_from.tokenizer, self.length)

        examples = len(self.lessons[0].examples)
        self.epochs = config.epochs or min(20, max(self.task.min_epochs, -(-50_000 // examples)))
        self.epoch_steps = steps_per_epoch(examples, config.batch_size)
        self.steps = self.epochs * self.epoch_steps
        self.rate = default_learning_rate(self.start_from) if config.learning_rate is None else config.learning_rate
        warmup_linear(self.rate, self.steps)  # refuses what is no rate, before anything is written
        self.saving = SaveEvery.parse(config.save_every, self.epoch_steps)
        self.metric = config.metric or self.task.metric_for(self.held_out)
        self.decisive = decisive_of(config)
        self.shape = self._checked_shape()
        self.task.head_depths(self.shape)  # refuses those that this encoder does not have
        self.strategies = fitted(config, self.shape.num_hidden_layers, self.shape.initializer_range)
        write_run(config.out, "finetune", config)
        self._introduce()
        if config.freeze_encoder:
            self._read_once()

    def measure_best(self) -> tuple[dict[str, float], dict[str, float]]:
        """The metrics of the model in --out on the test examples, and those of an answer without reading on them, or
        on the held-out ones where there is no test."""
        if not self.tested:
            return {}, self.task.baseline(self.held_out)
        return measured(self.config, self.tested, self.device)

    @property
    def _needs_dropout(self) -> bool:
        return any(lesson.task.needs_dropout for lesson in self.lessons)

    def _checked_shape(self) -> AlbertConfig:
        """The shape of the model that is to learn."""
        config = self.config
        changes: dict[str, Any] = {}
        two_readings = config.r_drop or self._needs_dropout
        dropout = 0.1 if config.dropout is None and two_readings else config.dropout
        if self._needs_dropout and (dropout == 0 or config.freeze_encoder):
            off = "freeze_encoder reads without it" if config.freeze_encoder else "dropout=0"
            raise ConfigError(f"simcse compares two readings that dropout makes different, and {off}; leave it out")
        if dropout is not None:
            changes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        if config.lora:
            changes |= {"lora_rank": config.lora}
        before = self.start_from.config.lora_rank
        if config.lora and before not in (0, config.lora):
            raise ConfigError(f"lora={config.lora}, but {config.model} has changes of rank {before}; give that, or 0")
        return replace(self.start_from.config, **changes)

    def model(self) -> Model:
        """The model that is to learn, as it is before the first step."""
        config, shape = self.config, self.shape
        torch.manual_seed(config.seed)
        before = dict(self.start_from.albert.heads.items())
        heads = {lesson.task.head_name: lesson.task.initial_head(shape, before) for lesson in self.lessons}
        albert = Albert(shape, heads)
        albert.encoder.load_state_dict(self.start_from.encoder.state_dict(), strict=not config.lora)
        if config.lora or config.freeze_encoder:
            for name, parameter in albert.encoder.named_parameters():
                parameter.requires_grad_(name.startswith(("adapters", "pooler")))
        return Model(albert.to(self.device), self.start_from.tokenizer, self.task, self.length)

    def _read_once(self) -> None:
        """Keep what the encoder says, if there is room for it; else it is asked again at every step."""
        model = self.start_from.to(self.device)
        asked = [(lesson.task.head_depths(model.config), lesson.examples) for lesson in self.lessons]
        asked.append((asked[0][0], self.questions))
        weight = sum(bytes_of(examples, depths, model.config.hidden_size) for depths, examples in asked)
        if weight > STATES_LIMIT_BYTES:
            self.console.print(f"{weight / 1e9:.0f} GB of hidden states are too many to keep; they are read every time")
            return
        model.bf16 = self.bf16
        for lesson, (depths, examples) in zip(self.lessons, asked, strict=False):
            lesson.examples = read_once(model, examples, depths, self.console)
        self.questions = read_once(model, self.questions, asked[0][0], self.console)

    def _lesson(self, task: TrainableTask[Any, Any], records: list[Any], number: int) -> Lesson:
        examples = task.training_examples(records, task.features(records, self.start_from.tokenizer, self.length))
        if not examples:
            reasons = [*self.source.skipped, *getattr(task, "left_out", ["there is none"])]
            raise DataError(f"{self.config.train}: no example is left to learn from, the first because: {reasons[0]}")
        if number:
            task.head_name = f"mix_{number}"  # type: ignore[misc]  # two tasks of one kind have two heads
        return Lesson(task, records, examples, self.config.seed + number)

    def _introduce(self) -> None:
        say = lambda text: self.console.print(text, highlight=False, markup=False)  # noqa: E731
        config, lesson = self.config, self.lessons[0]
        say(
            f"{config.task}: {len(lesson.records):,} examples to learn from, {len(self.held_out):,} to choose by; "
            f"{self.epochs} epochs of {self.epoch_steps:,} steps, rate {self.rate:.2g}, on {self.device}"
        )
        lengths = np.array([_tokens(example) for example in lesson.examples])
        half, most = np.percentile(lengths, [50, 95])
        texts = [*lesson.examples, *self.questions]
        long, gaps = any(map(_is_cut, texts)), sum(map(_has_gaps, texts))
        say(
            f"tokens per example: half have {half:.0f} or fewer, 95 % {most:.0f}, the longest {lengths.max():,}; "
            f"the model reads {self.length} at once" + (", and longer texts are read in windows" if long else "")
        )
        if gaps:
            say(f"{gaps:,} texts are so long that only parts of them are read")
        before = self.start_from.task
        if before is not None and before.name not in ("mask", "", "similarity"):
            say(f"{config.model} was taught {before.name}: its head is replaced by a new one")
        for other, given in zip(self.lessons[1:], config.mix, strict=True):
            say(f"beside it, {other.task.name}: {len(other.records):,} examples of {given.partition('=')[2]}")
        if (config.r_drop or self._needs_dropout) and config.dropout is None:
            why = "r_drop" if config.r_drop else "simcse"
            say(f"{why}: dropout is 0.1 in this run, because two readings must differ")
        for remark in lesson.task.remarks(lesson.records):
            say(remark)
        left_out = [*self.source.skipped, *(line for one in self.lessons for line in getattr(one.task, "left_out", []))]
        if left_out:
            atomic_write(config.out / "skipped.txt", "\n".join(left_out) + "\n")
            say(f"{len(left_out):,} left out, the first: {left_out[0]}; all are listed in {config.out / 'skipped.txt'}")


def _tokens(example: Example) -> int:
    """How long its sequence would be if nothing were cut; of several options the longest."""
    windows = [sequence for sequence in example.sequences if isinstance(sequence, Window)]
    whole = [len(window.ids) - (window.end - window.start) + window.total for window in windows]
    return max(whole, default=example.length)


def _is_cut(example: Example) -> bool:
    """Is one of its sequences a stretch of a text, and not all of it?"""
    windows = [sequence for sequence in example.sequences if isinstance(sequence, Window)]
    return any(window.start or window.end < window.total for window in windows)


def _has_gaps(example: Example) -> bool:
    """Is there a stretch of the text that none of the windows shows?"""
    windows = [sequence for sequence in example.sequences if isinstance(sequence, Window)]
    stretches = sorted({(window.start, window.end) for window in windows})
    return any(later[0] > former[1] for former, later in pairwise(stretches))


def measured(
    config: FinetuneConfig, records: Sequence[Any], device: torch.device
) -> tuple[dict[str, float], dict[str, float]]:
    """What the model that was made gets on these records, and what an answer without reading gets."""
    model = load(config.out).to(device)
    model.bf16 = validates_in_bf16(config, device)
    task: Any = model.task
    return task.metrics(records, model.answer_records(records)), task.baseline(records)


def decisive_of(config: FinetuneConfig) -> dict[str, str]:
    """What must be the same when a run is resumed: the settings, and the content of the files."""
    own = [(config.task, path) for path in (config.train, config.valid, config.test) if path is not None]
    mixed = [(name, Path(path)) for name, _, path in (given.partition("=") for given in config.mix)]
    options = TableOptions.parse(config.columns)
    files = [file for task, path in (*own, *mixed) for file in TASKS[task].input_files(path, options)]
    files += [config.target_tokenizer] if config.target_tokenizer is not None else []
    contents = {f"content of {path}": _hash(path) for path in files}
    settings = asdict(config)
    settings |= {f"decoder_{name}": value for name, value in settings.pop("decoder").items()}
    return (
        {name: str(value) for name, value in settings.items() if name not in UNDECISIVE}
        | contents
        | {"precision": training_precision(config.precision, pick_device(config.device))}
    )


def validates_in_bf16(config: FinetuneConfig, device: torch.device) -> bool:
    """As those who use the model will ask it, and in float32 where that is asked for."""
    return uses_bf16_for_inference("fp32" if config.precision == "fp32" else "auto", device)


def split(records: Sequence[Any], task: TrainableTask[Any, Any], seed: int, path: Path) -> tuple[list[Any], list[Any]]:
    """Split a tenth off to choose by: of every class its share, and a class is never taken as a whole.

    What belongs together, such as the questions about one passage, stays together.
    """
    if len(records) < 3:
        raise DataError(f"{path}: {len(records)} examples are too few to split; give more, or a --valid file")
    together: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        group = task.group(record)
        together.setdefault(str(number) if group is None else f"group {group}", []).append(number)
    groups = list(together.values())
    if len(groups) < 3:
        groups = [[number] for number in range(len(records))]
    random = np.random.default_rng(seed)
    strata: dict[str, list[list[int]]] = {}
    for place in random.permutation(len(groups)).tolist():
        strata.setdefault(task.stratum(records[groups[place][0]]), []).append(groups[place])
    held_out: set[int] = set()
    # every tenth of a row in which the strata stand one after the other: the small ones too get their share
    place = int(random.integers(10)) if len(groups) >= 10 else len(groups) - 1
    for stratum in sorted(strata.values(), key=len, reverse=True):
        taken = stratum[place::10][: max(0, len(stratum) - 1)]
        held_out.update(number for group in taken for number in group)
        place = (place - len(stratum)) % 10
    if not held_out:  # only single ones: one of them can be spared where nothing else can
        held_out.update(max(strata.values(), key=len)[0])
    order = random.permutation(len(records)).tolist()
    return [records[i] for i in order if i not in held_out], [records[i] for i in order if i in held_out]


def _learned(name: str, path: Path, source: TableOptions, **options: Any) -> tuple[TrainableTask[Any, Any], list[Any]]:
    """A task and the records it learns from."""
    task_class: type[TrainableTask[Any, Any]] = TASKS[name]  # type: ignore[assignment]
    records = task_class.read(path, source)
    try:
        return task_class.learn_from(records, **options), records
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _hash(path: Path) -> str:
    if path.is_dir():
        return " ".join(file_sha256(file) for file in sorted(path.rglob("*")) if file.is_file())
    return file_sha256(path)
