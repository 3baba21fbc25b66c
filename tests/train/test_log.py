"""What a run keeps and shows."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from litebert.console import progress_bar
from litebert.errors import DataError
from litebert.train import log as log_module
from litebert.train.log import Curve, Event, RunLog, read_events, read_metrics
from litebert.train.loop import Step
from tests.conftest import peer


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


def terminal(width: int = 300) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def text_of(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def step(done: int, total: int = 10, stopping: bool = False, seconds: float = 0.25, **metrics: float) -> Step:
    return Step(done, total, metrics or {"loss": 1.0}, learning_rate=0.5, seconds=seconds, stopping=stopping)


def log_steps(out: Path, numbers: range, start: int = 0, **settings: Any) -> None:
    with RunLog(out, quiet(), "run", start=start, **settings) as log:
        for number in numbers:
            log(step(number, loss=number / 2))


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def scalars(out: Path, name: str) -> list[tuple[int, float]]:
    accumulator = peer("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


# --- the file ---------------------------------------------------------------------------------------------------------


def test_every_step_is_a_line(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 4))
    assert lines_of(tmp_path) == [{"step": n, "loss": n / 2, "learning_rate": 0.5, "seconds": 0.25} for n in (1, 2, 3)]


def test_a_validation_is_a_line_of_its_own(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        log(step(1))
        log.validation(1, {"loss": 2.5, "perplexity": 12.0})
    assert lines_of(tmp_path)[1] == {"step": 1, "validation_loss": 2.5, "validation_perplexity": 12.0}


def test_what_is_said_is_a_line_with_the_step_at_which_it_was(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run", start=3) as log:
        log.say("hello")
        log(step(4))
        log.say("depth 3 → 6")
    assert read_events(tmp_path) == [Event(3, "hello"), Event(4, "depth 3 → 6")]


def test_lines_reach_the_disk_at_most_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now[0])
    on_disk = []
    with RunLog(tmp_path, quiet(), "run") as log:
        for number in range(1, 10):
            log(step(number))
            on_disk.append(len(lines_of(tmp_path)))
            now[0] += 0.125
    assert on_disk == [1, 1, 1, 1, 5, 5, 5, 5, 9]


@pytest.mark.parametrize("call", ["flush", "stop", "say", "leave"])
def test_lines_are_on_disk_when_it_matters(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module.time, "monotonic", lambda: 100.0)  # no time passes
    with RunLog(tmp_path, quiet(), "run") as log:
        log(step(1))
        log(step(2))
        assert len(lines_of(tmp_path)) == 1
        if call == "flush":
            log.flush()
        elif call == "stop":
            log(step(3, stopping=True))
        elif call == "say":
            log.say("x")
        if call != "leave":
            assert [line["step"] for line in lines_of(tmp_path)][:2] == [1, 2]
    assert [line["step"] for line in lines_of(tmp_path)][:2] == [1, 2]


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(DataError, match=r"metrics.jsonl: cannot be written \(No space left.*go on with --resume"),
        RunLog(tmp_path, quiet(), "run") as log,
    ):
        log(step(1))


def test_a_resumed_run_keeps_one_line_per_step(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 6))
    log_steps(tmp_path, range(4, 8), start=3)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_resumed_run_forgets_validations_it_will_repeat_and_remembers_what_happened(tmp_path: Path) -> None:
    for start in (0, 2):
        with RunLog(tmp_path, quiet(), "run", start=start) as log:
            for number in range(start + 1, 5):
                log(step(number))
                log.validation(number, {"loss": number + start / 10})
            log.say("went back to step 2")
    assert read_metrics(tmp_path)["validation_loss"] == Curve([1, 2, 3, 4], [1.0, 2.0, 3.2, 4.2])
    assert read_events(tmp_path) == [Event(4, "went back to step 2")]


@pytest.mark.parametrize("rest", ['{"step": 3, "lo', "\x00\x00", "[3]", '{"loss": 1}', ""])
def test_a_line_cut_short_by_a_crash_is_dropped(tmp_path: Path, rest: str) -> None:
    log_steps(tmp_path, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(rest)
    assert read_metrics(tmp_path)["loss"].steps == [1, 2]
    log_steps(tmp_path, range(3, 4), start=2)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3]


def test_a_run_that_starts_again_forgets_the_former(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        log(step(9))
        log.say("something")
    log_steps(tmp_path, range(1, 3), start=0)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2]


def test_tokens_and_their_rate_are_reported_where_they_are_known(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 2), tokens_per_step=1000)
    assert lines_of(tmp_path)[0]["tokens"] == 1000
    assert lines_of(tmp_path)[0]["tokens_per_second"] == 4000


def test_tokens_that_a_step_counted_come_before_the_expected_number(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run", tokens_per_step=1000) as log:
        log(step(1, loss=1.0, tokens=500))
        log(step(2, loss=1.0, seconds=0.0))  # a clock may be coarse
    assert [line.get("tokens_per_second") for line in lines_of(tmp_path)] == [2000, None]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_metrics_come_back_each_with_its_own_steps(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        for number in (1, 2, 3, 4):
            log(step(number, loss=number / 2, **({"order_accuracy": 0.5} if number != 3 else {})))
            if number % 2 == 0:
                log.validation(number, {"loss": number * 10.0})
        log.say("done")
    columns = read_metrics(tmp_path)
    assert columns["loss"] == Curve([1, 2, 3, 4], [0.5, 1.0, 1.5, 2.0])
    assert columns["order_accuracy"].steps == [1, 2, 4]
    assert columns["validation_loss"] == Curve([2, 4], [20.0, 40.0])
    assert set(columns) == {"loss", "order_accuracy", "learning_rate", "seconds", "validation_loss"}


def test_where_a_run_went_back_the_second_time_counts(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        for number, loss in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 4.0), (3, 5.0)):
            log(step(number, loss=loss))
    assert read_metrics(tmp_path)["loss"] == Curve([1, 2, 3], [1.0, 4.0, 5.0])


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def test_tensorboard_reads_the_same_figures(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        for number in (1, 2, 3):
            log(step(number, loss=number / 2))
        log.validation(3, {"accuracy": 0.75})
    assert scalars(tmp_path, "loss") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert scalars(tmp_path, "validation_accuracy") == [(3, 0.75)]


def test_tensorboard_shows_a_resumed_step_once(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 6))
    log_steps(tmp_path, range(4, 8), start=3)
    assert [number for number, _ in scalars(tmp_path, "loss")] == [1, 2, 3, 4, 5, 6, 7]


def test_without_tensorboard_the_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    log_steps(tmp_path, range(1, 3))
    assert len(lines_of(tmp_path)) == 2
    assert not (tmp_path / "tensorboard").exists()


# --- without a terminal -----------------------------------------------------------------------------------------------


def test_without_a_terminal_a_tenth_of_the_steps_is_told(tmp_path: Path) -> None:
    console = quiet()
    with RunLog(tmp_path, console, "pretrain") as log:
        for number in range(1, 41):
            log(step(number, total=40))
    told = text_of(console).splitlines()
    assert [line.split()[2] for line in told] == [f"{n}/40" for n in range(4, 41, 4)]
    assert all("loss 1.000" in line for line in told)


def test_without_a_terminal_validations_and_notices_are_told(tmp_path: Path) -> None:
    console = quiet()
    with RunLog(tmp_path, console, "pretrain") as log:
        log.validation(5, {"perplexity": 23.1, "mlm_accuracy": 0.432})
        log.say("[red] is not markup")
    assert text_of(console) == (
        "pretrain: validation at step 5: perplexity 23.100  mlm accuracy 43.2%\n[red] is not markup\n"
    )


def test_without_a_terminal_it_is_told_how_long_it_will_take(tmp_path: Path) -> None:
    console = quiet()
    with RunLog(tmp_path, console, "pretrain") as log:
        for done in range(1, 101):
            log(step(done, total=1000, seconds=0.5))
    assert text_of(console).rstrip().endswith("7:30 min left")  # 900 steps of half a second


def test_the_step_at_which_a_run_stops_is_told(tmp_path: Path) -> None:
    console = quiet()
    with RunLog(tmp_path, console, "pretrain") as log:
        log(step(3, total=1000, stopping=True))
    assert "step 3/1000" in text_of(console)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def last_shown(log: RunLog) -> str:
    console = terminal()
    console.print(log._display())
    return text_of(console)


def test_on_a_terminal_the_figures_stand_below_a_bar(tmp_path: Path) -> None:
    console = terminal()
    with RunLog(tmp_path, console, "pretrain", tokens_per_step=1000) as log:
        log(step(3, loss=1.0, mlm_accuracy=0.4, order_accuracy=0.75, depth=6, flop_utilisation=0.43))
        log.validation(3, {"perplexity": 12.5, "mlm_accuracy": 0.41})
    shown = text_of(console)
    assert "3/10" in shown
    assert (
        "loss 1.000  mlm accuracy 40.0%  order accuracy 75.0%  depth 6  of peak FLOP/s 43.0%  "
        "learning rate 5.00e-01  tokens/s 4,000" in shown
    )
    assert "validation at step 3: perplexity 12.500  mlm accuracy 41.0%" in shown
    assert "seconds" not in shown


def test_on_a_narrow_terminal_every_figure_is_still_seen(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None, soft_wrap=True)
    with RunLog(tmp_path, console, "pretrain", tokens_per_step=1000) as log:
        log(step(3, loss=1.0, mlm_accuracy=0.4, order_accuracy=0.75, depth=6))
    shown = " ".join(text_of(console).split())
    for figure in ("loss 1.000", "mlm accuracy 40.0%", "order accuracy 75.0%", "depth 6", "tokens/s 4,000"):
        assert figure in shown


def test_notices_and_warnings_stand_above_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(stderr=True, force_terminal=True, width=100, color_system=None)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with RunLog(tmp_path, console, "pretrain") as log:
        log(step(3))
        log.say("the loss has not moved")
        print("careful", file=sys.stderr)  # as the command line shows warnings
    shown = stream.getvalue()
    assert 0 < shown.index("the loss has not moved") < shown.rindex("pretrain")
    assert 0 < shown.index("careful") < shown.rindex("pretrain")


def test_figures_are_means_of_recent_steps_but_rates_weigh_time_and_depth_is_the_latest(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run", tokens_per_step=100) as log:
        for number in range(1, 200):
            log(step(number, loss=9.0, depth=3))
        for number in range(200, 249):
            log(step(number, loss=1.0, depth=3, seconds=0.5))
        log(step(249, loss=2.0, depth=6, seconds=25.5))
        shown = last_shown(log)
    assert "loss 1.020  depth 6" in shown
    assert "tokens/s 100" in shown


def test_the_time_left_of_a_resumed_run_counts_its_own_steps_only(tmp_path: Path) -> None:
    with RunLog(tmp_path, terminal(), "run", start=1000) as log:
        assert log._progress.tasks[0].completed == 1000
        log(step(1001, total=2000))
        assert "1001/2000" in last_shown(log)


def test_a_figure_that_is_no_number_is_shown_as_it_is(tmp_path: Path) -> None:
    with RunLog(tmp_path, quiet(), "run") as log:
        log(step(1, loss=float("nan"), perplexity=float("inf")))
        assert "loss nan  perplexity inf" in last_shown(log)
    assert read_metrics(tmp_path)["perplexity"].values == [float("inf")]


def test_a_progress_bar_shows_the_share_of_the_bytes() -> None:
    console = terminal()
    with progress_bar(console, "reading", total=200) as progress:
        progress.advance(progress.task_ids[0], 50)
    assert "25%" in text_of(console)
