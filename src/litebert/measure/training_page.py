"""The page that `litebert report` writes: a summary, curves, what happened, settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from litebert.measure.html_report import Report
from litebert.measure.plots import Line, Panel
from litebert.train.log import VALIDATION, Curve, Event, is_share, shown

TITLES = {
    "loss": "loss",
    "mlm_accuracy": "masked tokens right",
    "order_accuracy": "sentence order right",
    "accuracy": "accuracy",
    "learning_rate": "learning rate",
    "depth": "depth (passes of the shared layer)",
    "tokens_per_second": "tokens per second",
    "flop_utilisation": "share of the device's peak FLOP/s",
    "gradient_norm": "norm of the gradients",
}
"""The panels, in this order; figures that are not here follow."""
UNDRAWN = ("seconds", "tokens", "perplexity")  # the last is the loss of masked tokens, told another way
LAST_STEPS = 0.05  # share of the run that the summary's figures of training are the mean of


@dataclass(frozen=True)
class Run:
    """What a run's folder tells."""

    name: str
    curves: dict[str, Curve]
    events: list[Event]
    about: dict[str, Any]
    """The contents of run.json."""
    parameters: int | None

    @property
    def steps(self) -> int:
        return max(curve.steps[-1] for curve in self.curves.values())


def page_of(runs: Sequence[Run]) -> Report:
    """The page of one run, or of several side by side."""
    alone = len(runs) == 1
    first = runs[0]
    command = first.about.get("command", "run")
    title = f"{command}: {first.name}" if alone else "Runs side by side"
    report = Report(title, f"litebert {first.about.get('litebert', '')}".strip())
    names = [one.name for one in runs]
    header = [] if alone else ["", *names]
    report.table(header, [[label, *(value(one) for one in runs)] for label, value in _summary(runs)])
    report.heading("Curves")
    if not alone:
        report.legend(names)
    report.text("Over steps: every step faint, a running mean as a line, validations as rings.")
    report.panels(_panels(runs))
    events = [[one.name, event.step, event.text] for one in runs for event in one.events]
    if events:
        report.heading("What happened")
        report.table(["step", "event"] if alone else ["run", "step", "event"], [row[alone:] for row in events])
    _settings(report, runs)
    return report


def _summary(runs: Sequence[Run]) -> list[tuple[str, Callable[[Run], str]]]:
    """Rows of a table: a label and how a run fills it."""

    def total(name: str) -> Callable[[Run], float]:
        return lambda one: sum(one.curves[name].values) if name in one.curves else 0

    def last(name: str) -> Callable[[Run], str]:
        return lambda one: shown(name, _last(one.curves[name], name)) if name in one.curves else "–"

    tokens, seconds = total("tokens"), total("seconds")
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("steps", lambda one: f"{one.steps:,}"),
        ("tokens", lambda one: f"{tokens(one):,.0f}" if tokens(one) else "–"),
        ("time in steps", lambda one: _duration(seconds(one))),
        (
            "tokens per second",
            lambda one: f"{tokens(one) / seconds(one):,.0f}" if tokens(one) and seconds(one) else "–",
        ),
        ("parameters", lambda one: f"{one.parameters:,}" if one.parameters else "–"),
    ]
    names = {name for one in runs for name in one.curves}
    measured = [name for name in _ordered(names) if name.startswith(VALIDATION)]
    trained = [name for name in ("loss", "mlm_accuracy", "order_accuracy") if name in names]
    rows += [(f"{_title(name)}, last steps", last(name)) for name in trained]
    rows += [(f"validation {_title(name.removeprefix(VALIDATION))}", last(name)) for name in measured]
    return [row for row in rows if any(row[1](one) != "–" for one in runs)]


def _last(curve: Curve, name: str) -> float:
    count = 1 if name.startswith(VALIDATION) else max(1, int(len(curve.values) * LAST_STEPS))
    return sum(curve.values[-count:]) / count


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _ordered(names: set[str]) -> list[str]:
    known = [name for title in TITLES for name in (title, VALIDATION + title) if name in names]
    return known + sorted(names - set(known))


def _panels(runs: Sequence[Run]) -> list[Panel]:
    names = {name.removeprefix(VALIDATION) for one in runs for name in one.curves} - set(UNDRAWN)
    marks = [event.step for event in runs[0].events] if len(runs) == 1 else []
    panels = []
    for name in _ordered(names):
        lines = [
            Line(one.name, number, _drawable(one, name), _drawable(one, VALIDATION + name))
            for number, one in enumerate(runs)
        ]
        lines = [line for line in lines if line.training or line.validation]
        if not lines:
            continue
        panels.append(
            Panel(
                _title(name),
                lines,
                percent=is_share(name),
                from_zero=name in ("learning_rate", "tokens_per_second", "depth", "flop_utilisation"),
                exact=name in ("depth", "learning_rate"),
                stairs=name == "depth",
                marks=marks if name == "loss" else (),
            )
        )
    return panels


def _drawable(one: Run, name: str) -> Curve | None:
    curve = one.curves.get(name)
    return curve if curve and any(map(math.isfinite, curve.values)) else None


def _settings(report: Report, runs: Sequence[Run]) -> None:
    """What the runs were told; of several, first what they were told differently."""
    told = [_told(one.about) for one in runs]
    keys = list(dict.fromkeys(key for one in told for key in one))
    if not keys:
        return
    names = [one.name for one in runs]
    rows = [[key, *(one.get(key, "–") for one in told)] for key in keys]
    report.heading("Settings")
    if len(runs) == 1:
        report.table([], rows)
        return
    differing = [row for row in rows if len(set(row[1:])) > 1]
    report.table(["", *names], differing)
    report.table(["", *names], rows, folded="all settings")


def _told(about: dict[str, Any]) -> dict[str, str]:
    settings = {key.replace("_", " "): str(value) for key, value in about.get("config", {}).items()}
    versions = {key: about[key] for key in ("litebert", "git_commit", "python", "platform") if about.get(key)}
    versions |= {name: number for name, number in about.get("packages", {}).items() if number}
    return settings | {key.replace("_", " "): str(value) for key, value in versions.items()}
