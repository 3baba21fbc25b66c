"""Measure a taught model on labelled examples.

Example:
  litebert evaluate --model runs/finetune --data test.csv
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from litebert.errors import ConfigError
from litebert.recipes._shared import check_numbers, make_console


@dataclass(frozen=True)
class Config:
    model: str
    """Folder that `litebert finetune` wrote."""
    data: Path
    """Labelled examples the model has not seen."""
    batch_size: int = 32
    """Examples at a time."""
    json: bool = False
    """Print JSON instead of a table."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size")


@dataclass(frozen=True)
class Evaluation:
    """Scores, and what stands behind them."""

    metrics: dict[str, float]
    examples: int
    labels: list[str]
    confusion: list[list[int]]
    """Rows are the truth, columns the answers."""
    commonest: float
    """Accuracy of always answering with the commonest class of these examples: what a useful model must beat."""


def run(config: Config) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    result = evaluate(config)
    if config.json:
        print(json.dumps(asdict(result), ensure_ascii=False))
        return
    console = Console()
    console.print(f"{config.model} on {config.data}, {result.examples} examples", highlight=False, markup=False)
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in result.metrics.items():
        table.add_row(name, f"{value:.4f}")
    table.add_row("accuracy of the commonest class alone", f"{result.commonest:.4f}")
    console.print(table)
    if len(result.labels) <= 12:
        grid = Table(title="rows: the truth, columns: the answers")
        grid.add_column("")
        for label in result.labels:
            grid.add_column(escape(label), justify="right")
        for label, row in zip(result.labels, result.confusion, strict=True):
            grid.add_row(escape(label), *(str(n) if n else "·" for n in row))
        console.print(grid)


def evaluate(config: Config) -> Evaluation:
    """The evaluation as data."""
    from collections import Counter

    from litebert.predict import load
    from litebert.tasks import Classify
    from litebert.train.runtime import pick_device

    model = load(config.model).to(pick_device(config.device))
    task: Any = model.task
    if not isinstance(task, Classify):
        raise ConfigError(f"{config.model} was not taught a task that can be evaluated; run litebert finetune first")
    examples = task.read(config.data)
    task.targets(examples)  # refuses a label the model has never seen
    make_console().print(f"evaluating {len(examples):,} examples", highlight=False, markup=False)
    answers = model.answer_records(examples, config.batch_size)
    pairs = Counter((example.label, answer.label) for example, answer in zip(examples, answers, strict=True))
    confusion = [[pairs[truth, answer] for answer in task.labels] for truth in task.labels]
    commonest = max(sum(row) for row in confusion) / len(examples)
    return Evaluation(task.metrics(examples, answers), len(examples), task.labels, confusion, commonest)
