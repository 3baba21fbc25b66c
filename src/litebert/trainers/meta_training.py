"""Meta-training: learn, on many small tasks, to learn new classes from a few examples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from litebert.console import make_console, say
from litebert.data.episodes import (
    ClassRows,
    Episode,
    EpisodeFile,
    EpisodeShape,
    check_disjoint_classes,
    classes_with_enough_rows,
    draw_episode,
    split_classes,
)
from litebert.data.tables import TableOptions
from litebert.device import limit_shape_caches, pick_device, training_precision
from litebert.files import write_json
from litebert.inference import Model
from litebert.meta.algorithms import episode_accuracies, episode_loss
from litebert.meta.learner import EpisodeTexts, Learner
from litebert.meta.tables import Kind, Table, seen_classes
from litebert.model import Albert
from litebert.train.loop import Step
from litebert.train.optimizers import ParameterOptions, adamw, warmup_linear
from litebert.train.save_schedule import SaveSchedule
from litebert.trainers.initial_model import checked_length, default_learning_rate, load_trainable
from litebert.trainers.meta_train_config import MetaTrainConfig
from litebert.trainers.trainer import Trainer, content_settings

LOGARITHM_RATE = 0.01
"""Learning rate of the scale and of the inner rates, which are logarithms."""
WEIGHT_DECAY = 0.01
TEST_EPISODES = 600
"""Written to test.jsonl."""
FLAGS = {"train": "--data", "valid": "--valid", "test": "--test"}
PART_NAMES = {"train": "training", "valid": "validation", "test": "test"}
RESUMABLE_CHANGES = {"out", "resume", "device", "save_every"}
"""Settings that may differ when a run is resumed."""


@dataclass(frozen=True)
class MetaTrainingResult:
    accuracy: float
    """Of the best step, on validation classes."""
    start: float
    """The same before the first step."""
    step: int
    seconds: float


@dataclass(frozen=True)
class ClassSplit:
    """Classes for training, validation or test."""

    table: Table
    classes: ClassRows
    ids: list[list[int]]
    """The tokens of all texts of the table."""


@dataclass(kw_only=True)
class MetaTrainingSetup:
    """Model and classes of a run."""

    config: MetaTrainConfig
    device: torch.device
    model: Model
    length: int
    shape: EpisodeShape
    splits: dict[str, ClassSplit]
    remarks: list[str]
    """What was left out of the data."""

    @property
    def precision(self) -> str:
        return training_precision(self.config.precision, self.device)

    def episode(self, part: str, number: int) -> Episode:
        return draw_episode(self.splits[part].classes, self.shape, self.config.seed, number)

    def settings(self) -> dict[str, str]:
        """What must not change before a run is resumed."""
        config = self.config
        settings = {name: str(value) for name, value in asdict(config).items() if name not in RESUMABLE_CHANGES}
        files = [path for path in (config.data, config.valid, config.test) if path is not None]
        return settings | content_settings(files) | {"precision": self.precision}


def meta_train(config: MetaTrainConfig, console: Console | None = None) -> MetaTrainingResult | None:
    """Train and save a model. Returns None when a stop was requested before the last step."""
    limit_shape_caches()
    console = console or make_console()
    began = time.perf_counter()
    setup = prepare_meta_training(config)
    say(console, *setup.remarks)
    trainer = MetaTrainer(setup, console)
    if not trainer.run():
        return None
    result = MetaTrainingResult(trainer.best, trainer.initial_accuracy, trainer.best_step, time.perf_counter() - began)
    write_json(config.out / "finished.json", asdict(result))
    say(
        console,
        f"accuracy on validation classes: {result.start:.1%} before training, {result.accuracy:.1%} after the best "
        f"step, {result.step:,}",
    )
    if result.accuracy <= result.start:
        advice = "it needs more --steps, another --learning-rate or more classes"
        say(console, f"this model is no better than the one it began with; {advice}")
    return result


def prepare_meta_training(config: MetaTrainConfig) -> MetaTrainingSetup:
    """Load the model, read the tables and split their classes."""
    device, shape = pick_device(config.device), EpisodeShape.parse(config.episodes)
    model = load_trainable(config.model).to(device)
    length = checked_length(config.length, model)
    options = TableOptions.parse(config.columns, config.skip_bad)
    paths = {"train": config.data, "valid": config.valid, "test": config.test}
    mask = model.tokenizer.specials["mask"]
    tables = {part: Table.read(path, options, mask) for part, path in paths.items() if path is not None}
    classes = {part: table.pool for part, table in tables.items()}
    if config.valid is None:
        classes = split_classes(tables["train"].pool, config.seed)
        tables = dict.fromkeys(classes, tables["train"])
    named = {part if paths[part] is None else f"{FLAGS[part]} {paths[part]}": rows for part, rows in classes.items()}
    check_disjoint_classes(named)
    known = {f"what {config.model} learned from": seen_classes(model, tables["train"].kind)}
    for name, rows in list(named.items())[1:]:  # classes that the model has learned from may be trained on again
        check_disjoint_classes(known | {name: rows})
    encoded = {
        table.path: [encoding.ids for encoding in model.tokenizer.encode(table.texts, max_length=length)]
        for table in tables.values()
    }
    splits = {}
    for part, table in tables.items():
        where = str(table.path) if len(encoded) > 1 else f"{table.path}, the classes of {part}"
        splits[part] = ClassSplit(table, classes_with_enough_rows(classes[part], shape, where), encoded[table.path])
    remarks = []
    if options.skipped:
        remarks.append(f"{len(options.skipped):,} rows left out, the first: {options.skipped[0]}")
    if small := sum(len(classes[part]) - len(splits[part].classes) for part in splits):
        remarks.append(
            f"{small:,} classes have fewer than {shape.examples_per_class} different examples and are left out"
        )
    return MetaTrainingSetup(
        config=config, device=device, model=model, length=length, shape=shape, splits=splits, remarks=remarks
    )


class MetaTrainer(Trainer[EpisodeTexts]):
    """A micro-batch is an episode."""

    command = "meta-train"

    def __init__(self, setup: MetaTrainingSetup, console: Console) -> None:
        config, model = setup.config, setup.model
        learner = Learner(
            model.encoder, config.algorithm, config.distance, config.inner_steps, config.inner_rate, model.sentence_map
        ).to(setup.device)
        learner.bf16 = setup.precision == "bf16"
        rate = default_learning_rate(model) if config.learning_rate is None else config.learning_rate
        schedule = warmup_linear(rate, config.steps)  # refuses an impossible rate
        logarithms = [name for name, _ in learner.named_parameters() if "log_" in name]
        options = {name: ParameterOptions(scale=LOGARITHM_RATE / rate) for name in logarithms}
        super().__init__(
            config,
            console,
            model=learner,
            optimizer=adamw(learner, weight_decay=WEIGHT_DECAY, parameter_options=options),
            schedule=schedule,
            steps=config.steps,
            device=setup.device,
            settings=setup.settings(),
            save_schedule=SaveSchedule.parse(config.save_every, config.steps),
        )
        self.config: MetaTrainConfig = config
        self.setup, self.learner = setup, learner
        self.validate_every = config.validate_every or max(1, config.steps // 10)
        self.best, self.best_step, self.initial_accuracy = -1.0, 0, -1.0
        self._validation_episodes: list[Episode] | None = None

    def introduction(self) -> list[str]:
        setup = self.setup
        counts = ", ".join(f"{len(split.classes):,} {PART_NAMES[part]}" for part, split in setup.splits.items())
        return [f"{self.config.algorithm}: {counts} classes; {self.config.steps:,} steps on {self.device}"]

    def write_run_files(self) -> None:
        super().write_run_files()
        if "test" in self.setup.splits:
            episodes = [self.setup.episode("test", number) for number in range(TEST_EPISODES)]
            table = self.setup.splits["test"].table
            EpisodeFile(table.path, self.config.columns, episodes).write(self.config.out / "test.jsonl")

    def micro_batches(self, step: int) -> list[EpisodeTexts]:
        size, ids = self.config.batch_size, self.setup.splits["train"].ids
        numbers = range(step * size, (step + 1) * size)
        return [EpisodeTexts.of(self.setup.episode("train", number), ids, self.device) for number in numbers]

    def loss(self, batch: EpisodeTexts) -> dict[str, Tensor]:
        return episode_loss(self.learner, batch, 1 / self.config.batch_size)

    def memory_advice(self) -> str:
        texts = self.setup.shape.way[1] * self.setup.shape.examples_per_class
        return (
            f"out of memory with episodes of {texts} texts; ask for fewer with --episodes, or for a smaller --length, "
            "in another --out"
        )

    def before_first_step(self) -> None:
        self.initial_accuracy = self.measure()
        self.report_validation(0, {"accuracy": self.initial_accuracy})

    def after_step(self, step: Step) -> None:
        self.report(step)
        if step.done % self.validate_every == 0 or step.done == step.total:
            self._validate(step.done)
        self.save(step)

    def _validate(self, done: int) -> None:
        accuracy = self.measure()
        self.report_validation(done, {"accuracy": accuracy})
        if accuracy >= self.best:  # of equal steps the one that was trained longer
            self.best, self.best_step = accuracy, done
            self._save_model()

    def measure(self) -> float:
        """Accuracy on episodes of validation classes."""
        setup = self.setup
        if self._validation_episodes is None:
            self._validation_episodes = [setup.episode("valid", number) for number in range(setup.shape.episodes)]
        ids = setup.splits["valid"].ids
        return float(np.mean(episode_accuracies(self.learner, self._validation_episodes, ids, self.device)))

    def _save_model(self) -> None:
        """Without heads: they were trained with another encoder."""
        setup, out = self.setup, self.config.out
        with torch.device("meta"):  # the encoder is replaced at once
            albert = Albert(setup.model.config)
        albert.encoder = self.learner.encoder
        seen = {kind: set(seen_classes(setup.model, kind)) for kind in get_args(Kind)}
        for split in (setup.splits["train"], setup.splits["valid"]):
            seen[split.table.kind] |= set(split.classes)
        content = self.learner.settings() | {name: sorted(classes) for name, classes in seen.items()}
        write_json(out / "meta.json", content)  # before the model that it describes
        Model(albert, setup.model.tokenizer, None, setup.length, setup.model.sentence_map).save(out)

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "start": self.initial_accuracy}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_step, self.initial_accuracy = state["best"], state["best_step"], state["start"]
