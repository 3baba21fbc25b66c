"""What a run shows and keeps: a live display, metrics.jsonl, TensorBoard.

A line of metrics.jsonl is one of
  {"step": 7, "loss": 3.1, ...}               a step
  {"step": 7, "validation_loss": 3.2, ...}    a validation after it
  {"step": 7, "event": "..."}                 something that happened then
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress import MofNCompleteColumn
from rich.text import Text

from litebert.console import make_progress
from litebert.errors import DataError
from litebert.files import atomic_path
from litebert.train.loop import Step

DISPLAY_WINDOW = 50  # steps that the figures on the display are the mean of; the files keep every step as it was
FLUSH_SECONDS = 0.5
VALIDATION = "validation_"
NOT_DISPLAYED = ("seconds", "tokens")
LATEST_ONLY = ("depth", "learning_rate")  # of these the latest is shown: their mean is a value they never had
DISPLAY_NAMES = {"tokens_per_second": "tokens/s", "flop_utilisation": "of peak FLOP/s"}


class Curve(NamedTuple):
    """One figure over the steps at which it was measured."""

    steps: list[int]
    values: list[float]


class Event(NamedTuple):
    """Something that happened: the depth grew, a batch was left out."""

    step: int
    text: str


class RunLog:
    """A hook that reports every step. Use as a context manager."""

    def __init__(self, out: Path, console: Console, title: str, *, tokens_per_step: int = 0, start: int = 0) -> None:
        self.console, self.title, self.tokens_per_step = console, title, tokens_per_step
        out.mkdir(parents=True, exist_ok=True)
        self._path = out / "metrics.jsonl"
        _drop_after(self._path, start)
        self._board = _event_writer(out / "tensorboard", start)
        self._lines: list[str] = []
        self._flushed = -math.inf
        self._done, self._total = start, 0
        self._recent: deque[dict[str, float]] = deque(maxlen=DISPLAY_WINDOW)
        self._validated = ""
        self._progress = make_progress(console, MofNCompleteColumn())
        self._task = self._progress.add_task(title, total=None, completed=start)
        self._live = Live(get_renderable=self._display, console=console, refresh_per_second=4)

    def __enter__(self) -> RunLog:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        try:
            self.flush()
        finally:
            if self._board is not None:
                self._board.close()

    def __call__(self, step: Step) -> None:
        figures = step.metrics | {"learning_rate": step.learning_rate, "seconds": step.seconds}
        if self.tokens_per_step:
            figures.setdefault("tokens", self.tokens_per_step)
        if "tokens" in figures and step.seconds > 0:
            figures["tokens_per_second"] = figures["tokens"] / step.seconds
        self._done, self._total = step.done, step.total
        self._recent.append(figures)
        self._keep(step.done, figures)
        if step.stopping:
            self.flush()
        tenth = max(1, step.total // 10)
        if not self.console.is_terminal and (step.done % tenth == 0 or step.stopping):
            self._print(f"{self.title}: step {step.done}/{step.total}  {self._figures()}{self._left(step)}")

    def _left(self, step: Step) -> str:
        """How long it will still take, by the pace of late."""
        seconds = sum(figures["seconds"] for figures in self._recent) / len(self._recent) * (step.total - step.done)
        minutes, seconds = divmod(round(seconds), 60)
        return "" if step.stopping else f"  {minutes}:{seconds:02} min left"

    def validation(self, step: int, figures: Mapping[str, float]) -> None:
        """Report what the model is worth after a step, on text that it does not learn from."""
        self._keep(step, {VALIDATION + name: value for name, value in figures.items()})
        self._validated = f"validation at step {step:,}: " + _listed(figures)
        if not self.console.is_terminal:
            self._print(f"{self.title}: {self._validated}")

    def say(self, text: str) -> None:
        """Tell something that happened: above the display, and in the log."""
        self._lines.append(json.dumps({"step": self._done, "event": text}, ensure_ascii=False))
        self.flush()
        self._print(text)

    def flush(self) -> None:
        """Bring what was reported so far to disk. It happens by itself, at most twice a second: steps can be short."""
        lines, self._lines = self._lines, []
        self._flushed = time.monotonic()
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))
        except OSError as error:
            raise DataError(
                f"{self._path}: cannot be written ({error.strerror}); free some space, then go on with --resume"
            ) from error

    def _keep(self, step: int, figures: Mapping[str, float]) -> None:
        self._lines.append(json.dumps({"step": step, **figures}))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()
        if self._board is not None:
            self._board.add_event(_board_event(step, figures))

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def _display(self) -> Group:
        """The bar, the training's figures, the last validation's. Asked for by the display's thread, not by a step."""
        self._progress.update(self._task, completed=self._done, total=self._total or None)
        told = [line for line in (self._figures(), self._validated) if line]
        lines = [Text(f"  {line}", no_wrap=False, overflow="fold") for line in told]  # on any width all is seen
        return Group(self._progress, *lines)

    def _figures(self) -> str:
        recent = list(self._recent)  # in one go: steps come in while the display's thread reads
        names = {name: None for figures in recent for name in figures if name not in NOT_DISPLAYED}
        means = {}
        for name in names:
            values = [figures[name] for figures in recent if name in figures]
            means[name] = values[-1] if name in LATEST_ONLY else sum(values) / len(values)
        timed = [figures for figures in recent if "tokens_per_second" in figures]
        if timed:  # a slow step weighs as much as it takes
            means["tokens_per_second"] = sum(f["tokens"] for f in timed) / sum(f["seconds"] for f in timed)
        return _listed(means)


def _listed(figures: Mapping[str, float]) -> str:
    names = {name: DISPLAY_NAMES.get(name, name.replace("_", " ")) for name in figures}
    return "  ".join(f"{names[name]} {shown(name, figures[name])}" for name in figures)


def is_share(name: str) -> bool:
    """Is this a part of a whole, to be written in percent?"""
    return name.endswith(("accuracy", "utilisation"))


def shown(name: str, value: float) -> str:
    if is_share(name):
        return f"{value:.1%}"
    if name == "learning_rate":
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 or name == "depth" else f"{value:.3f}"


def read_metrics(out: Path) -> dict[str, Curve]:
    """The figures of a run, each over its own steps. Where the run went back, what it did the second time counts."""
    curves: dict[str, Curve] = defaultdict(lambda: Curve([], []))
    for line in _lines_of(out / "metrics.jsonl"):
        step = line.pop("step")
        for name, value in line.items():
            if isinstance(value, (int, float)):
                steps, values = curves[name]
                while steps and steps[-1] >= step:
                    steps.pop()
                    values.pop()
                steps.append(step)
                values.append(value)
    return dict(curves)


def read_events(out: Path) -> list[Event]:
    """What happened, in order; what a resumed run repeated, once."""
    lines = _lines_of(out / "metrics.jsonl")
    return list(dict.fromkeys(Event(line["step"], str(line["event"])) for line in lines if "event" in line))


def _drop_after(path: Path, start: int) -> None:
    """A resumed run repeats the steps after its checkpoint; the log keeps one line for each, and what happened."""
    if not path.is_file():
        return
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in _lines_of(path):
            if line["step"] <= start or (start and "event" in line):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that are whole: a crash may have cut one short."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                content = json.loads(line)
            except ValueError:
                continue
            if isinstance(content, dict) and isinstance(content.get("step"), int):
                yield content


def _event_writer(folder: Path, start: int) -> Any:
    """TensorBoard's writer, or None where TensorBoard is not installed: metrics.jsonl holds the same figures."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event as BoardEvent
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    writer = EventFileWriter(str(folder), max_queue_size=1000, flush_secs=5)
    again = SessionLog(status=SessionLog.START)  # what a former run wrote from this step on no longer counts
    writer.add_event(BoardEvent(step=start + 1, wall_time=time.time(), session_log=again))
    return writer


def _board_event(step: int, figures: Mapping[str, float]) -> Any:
    """All figures of a step in one: a tenth of the time that one for each takes."""
    from tensorboard.compat.proto.event_pb2 import Event as BoardEvent
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
    return BoardEvent(step=step, wall_time=time.time(), summary=Summary(value=values))
