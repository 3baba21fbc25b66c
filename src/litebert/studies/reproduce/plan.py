"""What all variants of `litebert reproduce` share: text, model size, tokens, and evaluation tasks."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from litebert.console import make_console
from litebert.data.preparation import prepare_shards
from litebert.data.prepare import CorpusConfig
from litebert.data.shards import Shards
from litebert.data.tables import TableOptions
from litebert.data.vocabulary import train_vocabulary
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import atomic_path, atomic_write, file_sha256, read_json, read_toml, write_json
from litebert.studies.demo.data import TICKETS, collect_prose
from litebert.studies.reproduce.config import ReproduceConfig
from litebert.studies.reproduce.variants import ModelVariant
from litebert.tasks import TASKS
from litebert.tokenizer import Tokenizer
from litebert.trainers.pretrain_config import PretrainConfig

PROXY_HIDDEN = 384
PROSE_BYTES, VOCAB_SIZE, HELD_OUT_SHARE = 3_000_000, 4000, 0.05
BUDGETS = {"minutes": 10_000_000, "hour": 100_000_000, "paper": 125_000 * 4096 * 512}
"""Tokens of a cell. With --proxy on one H200 all tables with two seeds are then meant to take some ten minutes and
about an hour; the paper's is 125,000 steps of 4096 sequences of 512."""
TOKEN_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}
OF_TASK = ("task", "train", "test", "metric", "columns")
SUPPORTED_TASKS = ("classify", "regress")
SAMPLE_SEED = 0


@dataclass(frozen=True)
class Defaults:
    """Default settings, with and without --data."""

    hidden_size: int
    layers: int
    length: int
    batch_size: int
    budget: str
    rows: int
    """Held-out sequences for evaluation."""
    pairs: int
    """Training sequences of probes."""


DEFAULTS = Defaults(768, 12, 128, 256, "minutes", 2048, 4096)
DEMO_DEFAULTS = Defaults(128, 6, 64, 32, "300k", 512, 1024)
"""For text on this machine: minutes on two cores."""


@dataclass(frozen=True)
class TaskFiles:
    """A downstream task."""

    name: str
    task: str
    train: Path
    test: Path
    metric: str | None


@dataclass(frozen=True)
class Plan:
    """What all variants share."""

    data: Path
    made_up: bool
    """Is it a demo, without --data?"""
    common: dict[str, Any]
    """Settings of `litebert pretrain` that variants may change."""
    fixed: dict[str, Any]
    """Settings that they may not change."""
    rows: int
    pairs: int
    tasks: tuple[TaskFiles, ...]
    task_epochs: int
    few_shot: Path
    columns: tuple[str, ...]
    shots: int

    @property
    def tokens(self) -> int:
        """Training tokens of a variant, in whole steps."""
        return int(self.fixed["steps"] * self.fixed["batch_size"] * self.fixed["length"])

    def settings(self, cell: ModelVariant, seed: int, out: Path, **changes: Any) -> PretrainConfig:
        """Pre-training settings of a variant."""
        steps = self.fixed["steps"]
        settings = self.common | self.fixed | dict(cell.changes) | {"validate_every": steps, "seed": seed} | changes
        return PretrainConfig(data=self.data, out=out, preset="base", validation_rows=64, **settings)


def make_plan(config: ReproduceConfig, device: str) -> Plan:
    """Make the plan from the settings; prepares missing shards and task files."""
    usual = DEMO_DEFAULTS if config.data is None else DEFAULTS
    length, batch_size = config.length or usual.length, config.batch_size or usual.batch_size
    tokens = parse_budget(config.budget or usual.budget)
    steps = tokens // (length * batch_size)
    if steps < 2:
        raise ConfigError(
            f"budget={config.budget}: {tokens:,} tokens are not two steps of {batch_size} × {length}; raise --budget, "
            "or lower --batch-size"
        )
    hidden_size = config.hidden_size or (PROXY_HIDDEN if config.proxy else usual.hidden_size)
    return Plan(
        data=_prepare_demo_data(config.out / "data") if config.data is None else config.data,
        made_up=config.data is None,
        common={
            "hidden_size": hidden_size, "layers": config.layers or usual.layers, "sharing": "all",
            "embedding_size": min(128, hidden_size), "sentences": "order", "mask": "ngram", "mask_rate": 0.15,
            "optimizer": config.optimizer,
        },
        fixed={"steps": steps, "batch_size": batch_size, "length": length, "depth_ramp": config.depth_ramp,
               "precision": config.precision, "device": device},
        rows=config.rows or usual.rows,
        pairs=2 * (config.rows or usual.rows) if config.rows else usual.pairs,
        tasks=tuple(_prepare_task(path, config.out / "tasks", config.task_examples) for path in config.tasks),
        task_epochs=config.task_epochs,
        few_shot=config.few_shot or TICKETS["en"],
        columns=config.columns,
        shots=config.shots,
    )  # fmt: skip


def parse_budget(budget: str) -> int:
    """Tokens of a named budget, or of a number such as 50_000_000 or 50M."""
    if budget in BUDGETS:
        return BUDGETS[budget]
    number, unit = (budget[:-1], TOKEN_UNITS[budget[-1]]) if budget[-1:] in TOKEN_UNITS else (budget, 1)
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError) as error:
        names = ", ".join(BUDGETS)
        raise ConfigError(f"budget={budget!r} must be a number of tokens, such as 50M, or one of {names}") from error


def save_plan(plan: Plan, out: Path) -> None:
    """Write plan.json, or refuse --out if its runs were made with other settings."""
    shards = Shards(plan.data)
    if shards.held_out.tokens < 2 * plan.fixed["length"]:
        raise ConfigError(
            f"{plan.data}: holds {shards.held_out.tokens} tokens out, too few to measure on; prepare it with more, "
            "such as litebert prepare --held-out 0.01"
        )
    content = asdict(plan) | {
        "content of --data": shards.index.digest[:12],
        "few_shot": file_sha256(plan.few_shot)[:12],
    }
    content["fixed"] = {name: value for name, value in plan.fixed.items() if name != "device"}
    content["tasks"] = {
        task.name: [task.task, task.metric, file_sha256(task.train)[:12], file_sha256(task.test)[:12]]
        for task in plan.tasks
    }
    content |= content.pop("common") | content.pop("fixed") | {"columns": list(plan.columns)}
    content.pop("data")
    path = out / "plan.json"
    if path.is_file():
        before = read_json(path)
        changed = [
            f"{name} (was {before.get(name)}, is {content[name]})"
            for name in content
            if before.get(name) != content[name]
        ]
        if changed:
            raise CheckpointError(
                f"{out}: its cells were made with other settings: {', '.join(changed)}; use another --out"
            )
    else:
        write_json(path, content)


def _prepare_demo_data(folder: Path) -> Path:
    """Shards of documentation that is installed on this machine."""
    prose, words, shards = (folder / name for name in ("prose.txt", "tokenizer", "shards"))
    if not prose.is_file():
        atomic_write(prose, "\n\n".join(collect_prose(PROSE_BYTES, SAMPLE_SEED)) + "\n")
    console = make_console()
    if not (words / "tokenizer.json").is_file():
        train_vocabulary([prose], VOCAB_SIZE, console).save(words)
    if not (shards / "index.json").is_file():
        corpus = CorpusConfig((prose,), held_out=HELD_OUT_SHARE)
        prepare_shards(corpus, Tokenizer.load(words), shards, console)
    return shards


def _prepare_task(path: Path, out: Path, max_examples: int) -> TaskFiles:
    """From a settings file of `litebert finetune`; its examples are written once, up to `max_examples` for
    training."""
    settings = read_toml(path)
    kind = settings.get("task", "classify")
    if kind not in SUPPORTED_TASKS or "train" not in settings or "test" not in settings:
        raise ConfigError(f"{path}: must name a task ({' or '.join(SUPPORTED_TASKS)}), a train file and a test file")
    columns = settings.get("columns", [])
    files = {name: out / path.stem / f"{name}.csv" for name in ("train", "test")}
    for name, file in files.items():
        if not file.is_file():
            task: Any = TASKS[kind]
            records = task.read(Path(settings[name]), TableOptions.parse(tuple(columns), True))
            if not records:
                raise DataError(f"{settings[name]}: no example can be read; {path} names it")
            if name == "train":
                records = random.Random(SAMPLE_SEED).sample(records, min(max_examples, len(records)))
            _write_examples(file, records)
    return TaskFiles(path.stem, kind, files["train"], files["test"], settings.get("metric"))


def _write_examples(path: Path, records: Sequence[Any]) -> None:
    pairs = records[0].text_b is not None
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text_a", "text_b", "label"] if pairs else ["text", "label"])
        for record in records:
            writer.writerow([record.text, *([record.text_b] if pairs else []), record.label])
