"""`litebert report`: a page with the summary, curves, events and settings of one or several training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from litebert.errors import ConfigError
from litebert.files import read_json, write_json
from litebert.measure.html_report import Report
from litebert.measure.plots import RunCurve, Subplot
from litebert.train.log import VALIDATION, Curve, Event, is_share, read_events, read_metrics, shown

METRIC_TITLES = {
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
"""Subplots, in this order; other metrics follow."""
NOT_PLOTTED = ("seconds", "tokens", "perplexity")  # perplexity is the exponential of the MLM loss
SUMMARY_SHARE = 0.05
"""Share of the steps, at the end of the run, that training metrics in the summary are the mean of."""


@dataclass(frozen=True)
class TrainingRun:
    """The content of a run's folder."""

    name: str
    curves: dict[str, Curve]
    events: list[Event]
    about: dict[str, Any]
    """The contents of run.json."""
    parameters: int | None

    @property
    def steps(self) -> int:
        return max(curve.steps[-1] for curve in self.curves.values())


def write_report(runs: Sequence[Path], out: Path) -> str:
    """Write the page, or without matplotlib a JSON file, and return a line that says where it is."""
    read = [_read(folder, name) for folder, name in zip(runs, _names(runs), strict=True)]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        path = out.with_suffix(".json")
        write_json(path, {"runs": [_as_json(run) for run in read]})
        return f"metrics in {path}; for plots install matplotlib: pip install 'litebert[train]'"
    _make_page(read).write(out)
    return f"report in {out}"


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or all of it where the last parts are the same."""
    names = [folder.resolve().name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    return [name.encode("utf-8", "replace").decode("utf-8") for name in names]  # file names may be no valid UTF-8


def _read(folder: Path, name: str) -> TrainingRun:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give the --out of a litebert pretrain or finetune")
    if not (folder / "metrics.jsonl").is_file():
        raise ConfigError(f"{folder}: has no metrics.jsonl; give the --out of a litebert pretrain or finetune")
    curves = read_metrics(folder)
    if not curves:
        raise ConfigError(f"{folder / 'metrics.jsonl'}: holds no steps; train first, then report")
    about = read_json(folder / "run.json") if (folder / "run.json").is_file() else {}
    return TrainingRun(name, curves, read_events(folder), about, _parameters(folder))


def _parameters(folder: Path) -> int | None:
    """Number of parameters, from the header of the model's file, or of the last checkpoint while the run goes on."""
    checkpoints = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    for file in (place / "model.safetensors" for place in (folder, *checkpoints)):
        try:
            with safe_open(file, framework="np") as tensors:
                return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except (OSError, SafetensorError):  # absent, or being written: the report leaves it out
            continue
    return None


def _as_json(run: TrainingRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "steps": run.steps,
        "parameters": run.parameters,
        "settings": run.about.get("config", {}),
        "last": {name: curve.values[-1] for name, curve in run.curves.items()},
        "curves": {name: {"steps": curve.steps, "values": curve.values} for name, curve in run.curves.items()},
        "events": [{"step": event.step, "event": event.text} for event in run.events],
    }


def _make_page(runs: Sequence[TrainingRun]) -> Report:
    """The page of one run, or of several side by side."""
    single = len(runs) == 1
    first = runs[0]
    command = first.about.get("command", "run")
    title = f"{command}: {first.name}" if single else "Runs side by side"
    report = Report(title, f"litebert {first.about.get('litebert', '')}".strip())
    names = [run.name for run in runs]
    header = [] if single else ["", *names]
    report.table(header, [[label, *(value(run) for run in runs)] for label, value in _summary(runs)])
    report.heading("Curves")
    if not single:
        report.legend(names)
    report.text("Over steps: every step faint, a running mean as a line, validations as rings.")
    report.panels(_subplots(runs))
    events = [[run.name, event.step, event.text] for run in runs for event in run.events]
    if events:
        report.heading("Events")
        report.table(["step", "event"] if single else ["run", "step", "event"], [row[single:] for row in events])
    _settings(report, runs)
    return report


def _summary(runs: Sequence[TrainingRun]) -> list[tuple[str, Callable[[TrainingRun], str]]]:
    """Rows of a table: a label and how a run fills it."""

    def total(name: str) -> Callable[[TrainingRun], float]:
        return lambda run: sum(run.curves[name].values) if name in run.curves else 0

    def last(name: str) -> Callable[[TrainingRun], str]:
        return lambda run: shown(name, _last(run.curves[name], name)) if name in run.curves else "–"

    tokens, seconds = total("tokens"), total("seconds")
    rows: list[tuple[str, Callable[[TrainingRun], str]]] = [
        ("steps", lambda run: f"{run.steps:,}"),
        ("tokens", lambda run: f"{tokens(run):,.0f}" if tokens(run) else "–"),
        ("time in steps", lambda run: _duration(seconds(run))),
        (
            "tokens per second",
            lambda run: f"{tokens(run) / seconds(run):,.0f}" if tokens(run) and seconds(run) else "–",
        ),
        ("parameters", lambda run: f"{run.parameters:,}" if run.parameters else "–"),
    ]
    names = {name for run in runs for name in run.curves}
    measured = [name for name in _ordered(names) if name.startswith(VALIDATION)]
    trained = [name for name in ("loss", "mlm_accuracy", "order_accuracy") if name in names]
    rows += [(f"{_title(name)}, last steps", last(name)) for name in trained]
    rows += [(f"validation {_title(name.removeprefix(VALIDATION))}", last(name)) for name in measured]
    return [row for row in rows if any(row[1](run) != "–" for run in runs)]


def _last(curve: Curve, name: str) -> float:
    count = 1 if name.startswith(VALIDATION) else max(1, int(len(curve.values) * SUMMARY_SHARE))
    return sum(curve.values[-count:]) / count


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _title(name: str) -> str:
    return METRIC_TITLES.get(name, name.replace("_", " "))


def _ordered(names: set[str]) -> list[str]:
    known = [name for title in METRIC_TITLES for name in (title, VALIDATION + title) if name in names]
    return known + sorted(names - set(known))


def _subplots(runs: Sequence[TrainingRun]) -> list[Subplot]:
    names = {name.removeprefix(VALIDATION) for run in runs for name in run.curves} - set(NOT_PLOTTED)
    marks = [event.step for event in runs[0].events] if len(runs) == 1 else []
    subplots = []
    for name in _ordered(names):
        lines = [
            RunCurve(run.name, number, _finite_curve(run, name), _finite_curve(run, VALIDATION + name))
            for number, run in enumerate(runs)
        ]
        lines = [line for line in lines if line.training or line.validation]
        if not lines:
            continue
        subplots.append(
            Subplot(
                _title(name),
                lines,
                percent=is_share(name),
                from_zero=name in ("learning_rate", "tokens_per_second", "depth", "flop_utilisation"),
                exact=name in ("depth", "learning_rate"),
                stairs=name == "depth",
                marks=marks if name == "loss" else (),
            )
        )
    return subplots


def _finite_curve(run: TrainingRun, name: str) -> Curve | None:
    curve = run.curves.get(name)
    return curve if curve and any(map(math.isfinite, curve.values)) else None


def _settings(report: Report, runs: Sequence[TrainingRun]) -> None:
    """The settings of a run; of several, first those that differ."""
    settings = [_flatten(run.about) for run in runs]
    keys = list(dict.fromkeys(key for values in settings for key in values))
    if not keys:
        return
    names = [run.name for run in runs]
    rows = [[key, *(values.get(key, "–") for values in settings)] for key in keys]
    report.heading("Settings")
    if len(runs) == 1:
        report.table([], rows)
        return
    differing = [row for row in rows if len(set(row[1:])) > 1]
    report.table(["", *names], differing)
    report.table(["", *names], rows, folded="all settings")


def _flatten(about: dict[str, Any]) -> dict[str, str]:
    settings = {key.replace("_", " "): str(value) for key, value in about.get("config", {}).items()}
    versions = {key: about[key] for key in ("litebert", "git_commit", "python", "platform") if about.get(key)}
    versions |= {name: number for name, number in about.get("packages", {}).items() if number}
    return settings | {key.replace("_", " "): str(value) for key, value in versions.items()}
