"""A meta-training run: its classes, what the loop asks of it, and what happens after a step. `meta_train` has the
settings."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from rich.console import Console

from litebert.console import make_console
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
from litebert.device import pick_device, training_precision
from litebert.errors import ConfigError
from litebert.files import file_sha256, write_json
from litebert.inference import Model
from litebert.meta.algorithms import episode_accuracies, episode_loss
from litebert.meta.learner import EpisodeTexts, Learner
from litebert.meta.tables import Kind, Table, seen_classes
from litebert.model import Albert
from litebert.run_folder import write_run
from litebert.train.checkpointing import Checkpoints
from litebert.train.guard import Guard
from litebert.train.log import RunLog
from litebert.train.loop import Step, train
from litebert.train.optimizers import Tuning, adamw, warmup_linear
from litebert.train.save_schedule import SaveEvery
from litebert.trainers.initial_model import checked_length, default_learning_rate, load_trainable
from litebert.trainers.meta_train_config import MetaTrainConfig

if TYPE_CHECKING:
    from torch import Tensor


OWN_RATE = 0.01
"""Of the scale and of the inner rates, which are logarithms."""
WEIGHT_DECAY = 0.01
TEST_EPISODES = 600
"""That are written for who wants to know."""
FLAG = {"train": "--data", "valid": "--valid", "test": "--test"}
PURPOSE = {"train": "learn from", "valid": "choose by", "test": "test on"}
UNDECISIVE = {"out", "resume", "device", "save_every"}
"""Settings that may differ when a run is resumed."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    accuracy: float
    """Of the best step, on questions about classes that were not learned from."""
    start: float
    """The same before the first step."""
    step: int
    seconds: float


@dataclass(frozen=True)
class Part:
    """Classes for one purpose."""

    table: Table
    pool: ClassRows
    ids: list[list[int]]
    """The tokens of all texts of the table."""


def meta_train(config: MetaTrainConfig, console: Console | None = None) -> Result | None:
    """Teach and save a model; None when a stop was asked for before the end."""
    console = console or make_console()
    began = time.perf_counter()
    run = Run(config, console)
    if not run():
        return None
    result = Result(run.best, run.start, run.best_step, time.perf_counter() - began)
    write_json(config.out / "finished.json", asdict(result))
    line = (
        f"questions about classes to choose by: {run.start:.1%} right before, {run.best:.1%} after the best step, "
        f"{run.best_step:,}, which they chose"
    )
    console.print(line, highlight=False, markup=False)
    if run.best <= run.start:
        console.print(
            "this model is no better than the one it began with; it needs more --steps, another --learning-rate or "
            "more classes",
            highlight=False,
            markup=False,
        )
    return result


class Run:
    """What changes while a run goes on."""

    def __init__(self, config: MetaTrainConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.device = pick_device(config.device)
        self.shape = EpisodeShape.parse(config.episodes)
        self.model = load_trainable(config.model).to(self.device)
        self.length = checked_length(config.length, self.model)
        self.parts = self._parts()
        self.valid = self._drawn("valid", self.shape.episodes)
        self.learner = Learner(
            self.model.encoder, config.algorithm, config.distance, config.inner_steps, config.inner_rate,
            self.model.sentence_map,
        ).to(self.device)  # fmt: skip
        self.learner.bf16 = training_precision(config.precision, self.device) == "bf16"
        rate = default_learning_rate(self.model) if config.learning_rate is None else config.learning_rate
        self.schedule = warmup_linear(rate, config.steps)
        own = {name: Tuning(scale=OWN_RATE / rate) for name, _ in self.learner.named_parameters() if "log_" in name}
        self.optimizer = adamw(self.learner, weight_decay=WEIGHT_DECAY, tuning=own)
        self.stateful: dict[str, Any] = {"model": self.learner, "optimizer": self.optimizer}
        self.guard = Guard(self.stateful, spike=math.inf)
        self.saving = SaveEvery.parse(config.save_every, config.steps)
        self.every = config.validate_every or max(1, config.steps // 10)
        files = [path for path in (config.data, config.valid, config.test) if path is not None]
        self.decisive = {name: str(value) for name, value in asdict(config).items() if name not in UNDECISIVE}
        self.decisive |= {f"content of {path}": file_sha256(path) for path in files}
        self.decisive |= {"precision": "bf16" if self.learner.bf16 else "fp32"}
        self.best, self.best_step, self.start = -1.0, 0, -1.0

    def _parts(self) -> dict[str, Part]:
        """Classes to learn from, to choose by and, where there are any, to test on."""
        config, tokenizer = self.config, self.model.tokenizer
        options = TableOptions.parse(config.columns, config.skip_bad)
        given = {"train": config.data, "valid": config.valid, "test": config.test}
        mask = tokenizer.specials["mask"]
        tables = {part: Table.read(path, options, mask) for part, path in given.items() if path is not None}
        pools = {part: table.pool for part, table in tables.items()}
        if config.valid is None:
            pools = split_classes(tables["train"].pool, config.seed)
            tables = dict.fromkeys(pools, tables["train"])
        named = {part if given[part] is None else f"{FLAG[part]} {given[part]}": pool for part, pool in pools.items()}
        check_disjoint_classes(named)
        before = {f"what {config.model} learned from": seen_classes(self.model, tables["train"].kind)}
        for name, pool in list(named.items())[1:]:  # more may be learned from what was learned from before
            check_disjoint_classes(before | {name: pool})
        encoded = {
            table.path: [one.ids for one in tokenizer.encode(table.texts, max_length=self.length)]
            for table in tables.values()
        }
        found = {}
        for part, table in tables.items():
            where = str(table.path) if len(encoded) > 1 else f"{table.path}, the classes of {part}"
            found[part] = Part(table, classes_with_enough_rows(pools[part], self.shape, where), encoded[table.path])
        if options.skipped:
            self._say(f"{len(options.skipped):,} rows left out, the first: {options.skipped[0]}")
        if few := sum(len(pools[part]) - len(found[part].pool) for part in found):
            self._say(
                f"{few:,} classes have fewer than {self.shape.examples_per_class} different examples and are left out"
            )
        return found

    def _drawn(self, part: str, count: int) -> list[Episode]:
        return [draw_episode(self.parts[part].pool, self.shape, self.config.seed, number) for number in range(count)]

    def __call__(self) -> bool:
        """True when all steps were done."""
        config = self.config
        with Checkpoints(config.out / "checkpoints", self.stateful) as self.checkpoints:
            start = self.checkpoints.load_latest(self.decisive) if config.resume else 0
            if start:
                state = self.checkpoints.state
                self.best, self.best_step, self.start = state["best"], state["best_step"], state["start"]
                self.guard.restore(state["guard"])
                self._say(f"going on from step {start:,}")
            self._introduce()
            with RunLog(config.out, self.console, "meta-train", start=start) as self.log:
                if not start:
                    self.start = self._measure()
                    self.log.validation(0, {"accuracy": self.start})
                try:
                    return train(
                        self.learner, self._loss, self._episodes, self.optimizer, self.schedule, steps=config.steps,
                        start=start, seed=config.seed, guard=self.guard, hooks=[self.log, self._validate, self._save],
                        on_trouble=self.log.say,
                    )  # fmt: skip
                except torch.OutOfMemoryError as error:
                    raise ConfigError(
                        f"out of memory with episodes of {self.shape.way[1] * self.shape.examples_per_class} texts; "
                        "ask for fewer with --episodes, or for a smaller --length, in another --out"
                    ) from error

    def _introduce(self) -> None:
        """Say and write down what is about to happen."""
        config = self.config
        write_run(config.out, "meta-train", config)
        if "test" in self.parts:
            drawn = self._drawn("test", TEST_EPISODES)
            EpisodeFile(self.parts["test"].table.path, config.columns, drawn).write(config.out / "test.jsonl")
        counts = ", ".join(f"{len(part.pool):,} to {PURPOSE[name]}" for name, part in self.parts.items())
        self._say(f"{config.algorithm}: classes {counts}; {config.steps:,} steps on {self.device}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    # what the loop asks for

    def _episodes(self, step: int) -> list[EpisodeTexts]:
        part, size = self.parts["train"], self.config.batch_size
        numbers = range(step * size, (step + 1) * size)
        return [self._read(part, draw_episode(part.pool, self.shape, self.config.seed, number)) for number in numbers]

    def _read(self, part: Part, episode: Episode) -> EpisodeTexts:
        return EpisodeTexts.of(episode, part.ids, self.device)

    def _loss(self, questions: EpisodeTexts) -> dict[str, Tensor]:
        return episode_loss(self.learner, questions, 1 / self.config.batch_size)

    # what happens after a step

    def _validate(self, step: Step) -> None:
        if step.done % self.every and step.done != step.total:
            return
        accuracy = self._measure()
        self.log.validation(step.done, {"accuracy": accuracy})
        if accuracy >= self.best:  # of equals the one that has learned longer
            self.best, self.best_step = accuracy, step.done
            self._save_model()

    def _measure(self) -> float:
        """The accuracy on the episodes of classes to choose by."""
        part = self.parts["valid"]
        return float(np.mean(episode_accuracies(self.learner, self.valid, part.ids, self.device)))

    def _save_model(self) -> None:
        """Without heads: what they were taught was taught to another encoder."""
        out = self.config.out
        with torch.device("meta"):  # it is replaced at once
            albert = Albert(self.model.config)
        albert.encoder = self.learner.encoder
        seen = {kind: set(seen_classes(self.model, kind)) for kind in get_args(Kind)}
        for part in (self.parts[name] for name in ("train", "valid")):
            seen[part.table.kind] |= set(part.pool)
        content = self.learner.settings() | {name: sorted(some) for name, some in seen.items()}
        write_json(out / "meta.json", content)  # before what it is about
        Model(albert, self.model.tokenizer, None, self.length, self.model.sentence_map).save(out)

    def _save(self, step: Step) -> None:
        if step.stopping or self.saving.due(step.done):
            self.log.flush()
            state = {"best": self.best, "best_step": self.best_step, "start": self.start, "guard": self.guard.state()}
            self.checkpoints.save(step.done, self.decisive, state=state)
