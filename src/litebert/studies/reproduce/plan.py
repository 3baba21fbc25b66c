"""What all cells of `litebert reproduce` have in common: text, size, tokens, and what is asked of every model."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litebert.commands import prepare, pretrain, tokenizer
from litebert.data.shards import Shards
from litebert.data.tables import TableOptions
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import atomic_path, atomic_write, file_sha256, read_json, read_toml, write_json
from litebert.studies.demo.data import TICKETS, collect_prose
from litebert.studies.reproduce.variants import Cell
from litebert.tasks import TASKS

if TYPE_CHECKING:
    from litebert.commands.reproduce import Config

PROXY_HIDDEN = 384
PROSE_BYTES, VOCABULARY, HELD_OUT = 3_000_000, 4000, 0.05
BUDGETS = {"minutes": 10_000_000, "hour": 100_000_000, "paper": 125_000 * 4096 * 512}
"""Tokens of a cell. With --proxy on one H200 all tables with two seeds are then meant to take some ten minutes and
about an hour; the paper's is 125,000 steps of 4096 sequences of 512."""
UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}
OF_TASK = ("task", "train", "test", "metric", "columns")
ABLE = ("classify", "regress")
SHUFFLE = 0


@dataclass(frozen=True)
class Scale:
    """What is usual with one's own text, and without."""

    hidden_size: int
    layers: int
    length: int
    batch_size: int
    budget: str
    rows: int
    """Held-out sequences that every model is asked about."""
    pairs: int
    """Sequences from which a probe learns."""


USUAL = Scale(768, 12, 128, 256, "minutes", 2048, 4096)
DEMONSTRATION = Scale(128, 6, 64, 32, "300k", 512, 1024)
"""On text of this machine, in minutes on two cores."""


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
    """The same for all cells."""

    data: Path
    made_up: bool
    """Is it a demonstration, without text of the user's own?"""
    common: dict[str, Any]
    """Settings of `litebert pretrain` that cells may change."""
    fixed: dict[str, Any]
    """Those that they may not."""
    rows: int
    pairs: int
    tasks: tuple[TaskFiles, ...]
    task_epochs: int
    few_shot: Path
    columns: tuple[str, ...]
    shots: int

    @property
    def tokens(self) -> int:
        """Of a cell, in whole steps."""
        return int(self.fixed["steps"] * self.fixed["batch_size"] * self.fixed["length"])

    def settings(self, cell: Cell, seed: int, out: Path, **changes: Any) -> pretrain.Config:
        """Of the run that makes a cell's model."""
        steps = self.fixed["steps"]
        told = self.common | self.fixed | dict(cell.changes) | {"validate_every": steps, "seed": seed} | changes
        return pretrain.Config(data=self.data, out=out, preset="base", validation_rows=64, **told)


def plan_of(config: Config, device: str) -> Plan:
    """From the command's settings; makes the text and the tables of tasks that are not there yet."""
    usual = DEMONSTRATION if config.data is None else USUAL
    length, batch_size = config.length or usual.length, config.batch_size or usual.batch_size
    tokens = tokens_of(config.budget or usual.budget)
    steps = tokens // (length * batch_size)
    if steps < 2:
        raise ConfigError(
            f"budget={config.budget}: {tokens:,} tokens are not two steps of {batch_size} × {length}; raise --budget, "
            "or lower --batch-size"
        )
    hidden_size = config.hidden_size or (PROXY_HIDDEN if config.proxy else usual.hidden_size)
    return Plan(
        data=_demonstration(config.out / "data") if config.data is None else config.data,
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
        tasks=tuple(_task(path, config.out / "tasks", config.task_examples) for path in config.tasks),
        task_epochs=config.task_epochs,
        few_shot=config.few_shot or TICKETS["en"],
        columns=config.columns,
        shots=config.shots,
    )  # fmt: skip


def tokens_of(budget: str) -> int:
    """From a name, or a number such as 50_000_000 or 50M."""
    if budget in BUDGETS:
        return BUDGETS[budget]
    number, unit = (budget[:-1], UNITS[budget[-1]]) if budget[-1:] in UNITS else (budget, 1)
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError) as error:
        names = ", ".join(BUDGETS)
        raise ConfigError(f"budget={budget!r} must be a number of tokens, such as 50M, or one of {names}") from error


def keep_plan(plan: Plan, out: Path) -> None:
    """Write plan.json, or refuse one that is not what the cells in --out were made with."""
    shards = Shards(plan.data)
    if shards.held_out.tokens < 2 * plan.fixed["length"]:
        raise ConfigError(
            f"{plan.data}: holds {shards.held_out.tokens} tokens out, too few to measure on; prepare it with more, "
            "such as litebert prepare --held-out 0.01"
        )
    told = asdict(plan) | {"content of --data": shards.index.digest[:12], "few_shot": file_sha256(plan.few_shot)[:12]}
    told["fixed"] = {name: value for name, value in plan.fixed.items() if name != "device"}
    told["tasks"] = {
        task.name: [task.task, task.metric, file_sha256(task.train)[:12], file_sha256(task.test)[:12]]
        for task in plan.tasks
    }
    told |= told.pop("common") | told.pop("fixed") | {"columns": list(plan.columns)}
    told.pop("data")
    path = out / "plan.json"
    if path.is_file():
        before = read_json(path)
        changed = [
            f"{name} (was {before.get(name)}, is {told[name]})" for name in told if before.get(name) != told[name]
        ]
        if changed:
            raise CheckpointError(
                f"{out}: its cells were made with other settings: {', '.join(changed)}; use another --out"
            )
    else:
        write_json(path, told)


def _demonstration(folder: Path) -> Path:
    """Shards of the documentation on this machine."""
    prose, words, shards = (folder / name for name in ("prose.txt", "tokenizer", "shards"))
    if not prose.is_file():
        atomic_write(prose, "\n\n".join(collect_prose(PROSE_BYTES, SHUFFLE)) + "\n")
    if not (words / "tokenizer.json").is_file():
        tokenizer.run(tokenizer.Config(out=words, input=(prose,), vocab_size=VOCABULARY))
    if not (shards / "index.json").is_file():
        prepare.run(prepare.Config(input=(prose,), tokenizer=words, out=shards, held_out=HELD_OUT))
    return shards


def _task(path: Path, out: Path, most: int) -> TaskFiles:
    """From a settings file of `litebert finetune`; its examples are written down once, `most` of them to learn from."""
    told = read_toml(path)
    kind = told.get("task", "classify")
    if kind not in ABLE or "train" not in told or "test" not in told:
        raise ConfigError(f"{path}: must name a task ({' or '.join(ABLE)}), a train file and a test file")
    columns = told.get("columns", [])
    files = {name: out / path.stem / f"{name}.csv" for name in ("train", "test")}
    for name, file in files.items():
        if not file.is_file():
            task: Any = TASKS[kind]
            records = task.read(Path(told[name]), TableOptions.parse(tuple(columns), True))
            if not records:
                raise DataError(f"{told[name]}: no example can be read; {path} names it")
            if name == "train":
                records = random.Random(SHUFFLE).sample(records, min(most, len(records)))
            _write_examples(file, records)
    return TaskFiles(path.stem, kind, files["train"], files["test"], told.get("metric"))


def _write_examples(path: Path, records: Sequence[Any]) -> None:
    pairs = records[0].text_b is not None
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text_a", "text_b", "label"] if pairs else ["text", "label"])
        for record in records:
            writer.writerow([record.text, *([record.text_b] if pairs else []), record.label])
