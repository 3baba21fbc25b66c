"""What a run keeps and shows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from litebert.train.log import RunLog, counting, read_metrics
from litebert.train.loop import Step
from tests.conftest import peer


def quiet() -> Console:
    return Console(file=io.StringIO())


def step(done: int, total: int = 10, loss: float = 1.0, stopping: bool = False) -> Step:
    return Step(done, total, {"loss": loss}, learning_rate=0.5, seconds=0.25, stopping=stopping)


def log_steps(out: Path, numbers: range, start: int = 0, **settings: Any) -> None:
    with RunLog(out, quiet(), "run", start=start, **settings) as log:
        for number in numbers:
            log(step(number, loss=number / 2))


def lines_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_every_step_is_a_line(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 4))
    assert lines_of(tmp_path) == [{"step": n, "loss": n / 2, "learning_rate": 0.5, "seconds": 0.25} for n in (1, 2, 3)]


def test_a_line_is_on_disk_as_soon_as_its_step_is_done(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        log(step(1))
        assert len(lines_of(tmp_path)) == 1


def test_a_resumed_run_keeps_one_line_per_step(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 6))
    log_steps(tmp_path, range(4, 8), start=3)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_line_cut_short_by_a_crash_is_dropped(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    log_steps(tmp_path, range(3, 4), start=2)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3]


def test_a_run_that_starts_again_forgets_the_former(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 6))
    log_steps(tmp_path, range(1, 3), start=0)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2]


def test_tokens_per_second_are_reported_where_they_are_known(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 2), tokens_per_step=1000)
    assert lines_of(tmp_path)[0]["tokens_per_second"] == pytest.approx(4000)


def test_metrics_come_back_as_columns(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 4))
    columns = read_metrics(tmp_path)
    assert columns["step"] == [1, 2, 3]
    assert columns["loss"] == [0.5, 1.0, 1.5]


def test_tensorboard_reads_the_same_figures(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 4))
    accumulator = peer("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_without_a_terminal_a_tenth_of_the_steps_is_told(tmp_path: Path) -> None:
    console = quiet()
    with RunLog(tmp_path, console, "pretrain") as log:
        for number in range(1, 41):
            log(step(number, total=40))
    told = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[2] for line in told] == [f"{n}/40" for n in range(4, 41, 4)]
    assert all("loss 1.000" in line for line in told)


def test_the_step_at_which_a_run_stops_is_told(tmp_path: Path) -> None:
    console = quiet()
    with RunLog(tmp_path, console, "pretrain") as log:
        log(step(3, total=1000, stopping=True))
    assert "step 3/1000" in console.file.getvalue()  # type: ignore[attr-defined]


def test_on_a_terminal_a_bar_shows_rate_and_loss(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with RunLog(tmp_path, console, "pretrain", tokens_per_step=1000) as log:
        log(step(3))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3/10" in shown
    assert "loss 1.000" in shown
    assert "tokens per second 4,000" in shown


def test_counting_shows_the_share_of_the_bytes() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with counting(console, "reading", total=200) as progress:
        progress.advance(progress.task_ids[0], 50)
    assert "25%" in console.file.getvalue()  # type: ignore[attr-defined]
