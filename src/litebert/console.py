"""The terminal: a console for reports, progress bars, and lines that say what is being done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


def make_console() -> Console:
    """Reports go to standard error: standard output is for results."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)


def say(console: Console, *lines: str) -> None:
    """Print lines as they are, without rich's colours and markup."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def status(console: Console, message: str) -> Iterator[None]:
    """Show a message while the block runs. It disappears afterwards in a terminal and stays in a log file."""
    if console.is_terminal:
        with console.status(message):
            yield
    else:
        say(console, message)
        yield


@contextmanager
def progress_bar(console: Console, title: str, total: int | None) -> Iterator[Progress]:
    """A progress bar over bytes or sequences; `total` is None where it is not known."""
    from rich.progress import TextColumn

    with make_progress(console, TextColumn("{task.percentage:>3.0f}%")) as progress:
        progress.add_task(title, total=total)
        yield progress


def make_progress(console: Console, count: ProgressColumn) -> Progress:
    """The columns that every progress bar has, with `count` in the middle."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        count,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=300,  # seconds: a validation in between must not make the time left jump
    )
