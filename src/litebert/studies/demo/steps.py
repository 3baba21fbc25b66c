"""What the demos of all languages share: step titles, evaluation, baselines, tables, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from litebert.inference.evaluation import Evaluation

MAJORITY = "majority baseline"


def print_step(console: Console, number: int, of: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}/{of}[/bold cyan] [bold]{text}[/bold]")


def evaluate_folder(folder: Path, data: Path) -> Evaluation:
    """Evaluate a saved model on a file, on the CPU."""
    from litebert.inference.evaluation import evaluate
    from litebert.loading import load

    return evaluate(load(folder), str(folder), data)


def baselines(train: Path, test: Path) -> tuple[float, float]:
    """Accuracy of the majority class, and of a bag of words or characters."""
    from litebert.measure.baselines import bag_of_words, majority
    from litebert.tasks import Classify

    train_records, test_records = Classify.read(train), Classify.read(test)
    labels, truth = [str(x.label) for x in train_records], [str(x.label) for x in test_records]
    return majority(labels, truth), bag_of_words(
        [x.text for x in train_records], labels, [x.text for x in test_records], truth
    )


def accuracy_table(scores: Mapping[str, float]) -> Any:
    """A table with the best in bold."""
    from rich.table import Table

    table = Table()
    table.add_column("method")
    table.add_column("accuracy", justify="right")
    best = max(scores.values())
    for name, value in scores.items():
        table.add_row(name, f"[bold]{value:.3f}[/bold]" if value == best else f"{value:.3f}")
    return table


def predict_and_print(console: Console, folder: Path, texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Texts with their predictions, which are printed."""
    from litebert.loading import load

    answers = list(zip(texts, load(folder).predict(list(texts)), strict=True))
    for text, answer in answers:
        console.print(f"{text!r}  →  [bold]{answer.label}[/bold] ({answer.probability:.0%})", highlight=False)
    return answers
