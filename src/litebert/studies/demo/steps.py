"""What the tours of all languages do: say where they are, measure, compare, ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litebert.commands import evaluate

if TYPE_CHECKING:
    from rich.console import Console

COMMONEST = "always the commonest class"


def say(console: Console, number: int, of: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}/{of}[/bold cyan] [bold]{text}[/bold]")


def measured(model: Path, data: Path) -> evaluate.Evaluation:
    return evaluate.evaluate(evaluate.Config(model=(str(model),), data=(data,), device="cpu"), str(model), data)


def baselines(train: Path, test: Path) -> tuple[float, float]:
    """Accuracy of the commonest class, and of a bag of words or characters."""
    from litebert.measure.baselines import bag_of_words, majority
    from litebert.tasks import Classify

    seen, unseen = Classify.read(train), Classify.read(test)
    labels, truth = [str(x.label) for x in seen], [str(x.label) for x in unseen]
    return majority(labels, truth), bag_of_words([x.text for x in seen], labels, [x.text for x in unseen], truth)


def accuracies(scores: Mapping[str, float]) -> Any:
    """A table with the best in bold."""
    from rich.table import Table

    table = Table()
    table.add_column("method")
    table.add_column("accuracy", justify="right")
    best = max(scores.values())
    for name, value in scores.items():
        table.add_row(name, f"[bold]{value:.3f}[/bold]" if value == best else f"{value:.3f}")
    return table


def ask(console: Console, folder: Path, texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Texts with their answers, which are shown."""
    from litebert.loading import load

    answers = list(zip(texts, load(folder).predict(list(texts)), strict=True))
    for text, answer in answers:
        console.print(f"{text!r}  →  [bold]{answer.label}[/bold] ({answer.probability:.0%})", highlight=False)
    return answers
