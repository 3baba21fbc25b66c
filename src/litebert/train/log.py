"""What a run shows and keeps: a progress bar, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from litebert.train.loop import Step

SMOOTHING = 0.95  # of the figures on the bar; the files keep every step as it was


class RunLog:
    """A hook that reports every step. Use as a context manager."""

    def __init__(self, out: Path, console: Console, title: str, *, tokens_per_step: int = 0, start: int = 0) -> None:
        self.console, self.title, self.tokens_per_step = console, title, tokens_per_step
        out.mkdir(parents=True, exist_ok=True)
        self._path = out / "metrics.jsonl"
        _drop_after(self._path, start)
        self._smooth: dict[str, float] = {}
        self._board = _summary_writer(out / "tensorboard", start)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=None, figures="")

    def __enter__(self) -> RunLog:
        self._file = self._path.open("a", encoding="utf-8")
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __call__(self, step: Step) -> None:
        figures = step.metrics | {"learning_rate": step.learning_rate, "seconds": step.seconds}
        if self.tokens_per_step:
            figures["tokens_per_second"] = self.tokens_per_step / step.seconds
        self._file.write(json.dumps({"step": step.done} | figures) + "\n")
        self._file.flush()
        for name, value in figures.items():
            old = self._smooth.get(name, value)
            self._smooth[name] = SMOOTHING * old + (1 - SMOOTHING) * value
            if self._board is not None:
                self._board.add_scalar(name, value, step.done)
        line = self._line()
        self._progress.update(self._task, completed=step.done, total=step.total, figures=line)
        tenth = max(1, step.total // 10)
        if not self.console.is_terminal and (step.done % tenth == 0 or step.stopping):
            self.console.print(f"{self.title}: step {step.done}/{step.total}  {line}", highlight=False, markup=False)

    def _line(self) -> str:
        hidden = {"learning_rate", "seconds"}
        parts = []
        for name, value in self._smooth.items():
            if name not in hidden:
                parts.append(
                    f"{name.replace('_', ' ')} {value:,.0f}"
                    if value >= 100
                    else f"{name.replace('_', ' ')} {value:.3f}"
                )
        return "  ".join(parts)


def read_metrics(out: Path) -> dict[str, list[float]]:
    """The columns of a run's metrics.jsonl."""
    columns: dict[str, list[float]] = defaultdict(list)
    with (out / "metrics.jsonl").open(encoding="utf-8") as file:
        for line in file:
            for name, value in json.loads(line).items():
                columns[name].append(value)
    return dict(columns)


@contextmanager
def counting(console: Console, title: str, total: int) -> Iterator[Progress]:
    """A plain progress bar over bytes, for reading files."""
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task(title, total=total)
        yield progress


def _drop_after(path: Path, start: int) -> None:
    """A resumed run repeats the steps after its checkpoint; the log keeps one line for each."""
    if not path.exists():
        return
    lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if _step_of(line) <= start]
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a crash
        return float("inf")


def _summary_writer(folder: Path, start: int) -> Any:
    """TensorBoard's writer, or None where TensorBoard is not installed: metrics.jsonl holds the same figures."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=start)
