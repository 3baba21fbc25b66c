"""Comparisons on episodes for people: tables in the terminal, and a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from litebert.data.episodes import EpisodeFile, EpisodeShape
from litebert.files import write_json
from litebert.measure.html_report import Report
from litebert.measure.score_plots import Score

MARGIN_CAPTION = "With 95 % confidence intervals over episodes of these classes."
Result = Mapping[str, Any]
"""A row of evaluation.json."""


def print_comparison(console: Console, content: Mapping[str, Any]) -> None:
    for title, results in _by_shape(content):
        table = Table(title=title, caption=_caption(results))
        for number, name in enumerate(_columns(results)):
            table.add_column(name, justify="right" if number > 1 else "left", overflow="fold")
        for result in results:
            table.add_row(*map(escape, _cells(result)))
        console.print(table)


def write_comparison(out: Path, content: Mapping[str, Any], episodes: Sequence[EpisodeFile]) -> str:
    """Episodes, evaluation.json and, with matplotlib, report.html; returns a line that says where they are."""
    for number, stored in enumerate(episodes, start=1):
        stored.write(out / (f"episodes-{number}.jsonl" if len(episodes) > 1 else "episodes.jsonl"))
    write_json(out / "evaluation.json", content)
    if find_spec("matplotlib") is None:
        return f"results in {out / 'evaluation.json'}; for plots: pip install 'litebert[train]'"
    files = ", ".join(content["data"])
    report = Report("Learning from a few examples", f"{content['episodes']:,} episodes from {files}")
    for way, group in groupby(content["rows"], key=lambda result: result["way"]):
        same_way = [result for result in group if result["shot"][0] == result["shot"][1]]
        _draw_shots(report, EpisodeShape(way).name.split()[0], same_way)
    for title, results in _by_shape(content):
        report.heading(title)
        report.table(_columns(results), [_cells(result) for result in results])
        report.text(_caption(results))
        models = list(dict.fromkeys(result["model"] for result in results))
        report.legend([name or "without a model" for name in models])
        scores = [
            Score(result["method"], models.index(result["model"]), result["seconds"], result["accuracy"],
                  result["margin"])
            for result in results
        ]  # fmt: skip
        report.scores(scores, MARGIN_CAPTION, "seconds per episode", "accuracy")
    report.write(out / "report.html")
    return f"look at {out / 'report.html'}"


def _by_shape(content: Mapping[str, Any]) -> Iterator[tuple[str, list[Result]]]:
    """A title and the results, for each shape of episodes."""
    for shape, group in groupby(content["rows"], key=lambda result: result["shape"]):
        results = list(group)
        episodes, folds = len(results[0]["by_episode"]), len(results[0]["folds"])
        files = f"{folds} folds" if folds > 1 else " and ".join(content["data"])
        yield f"{shape}, {episodes:,} episodes from {files}", results


def _columns(results: Sequence[Result]) -> list[str]:
    reference = next(result for result in results if result["reference"])
    folds = ["each fold, %"] if len(reference["folds"]) > 1 else []
    return ["model", "method", "accuracy, %", f"difference to {reference['method']}", *folds, "seconds"]


def _cells(result: Result) -> list[str]:
    accuracy = _percent(result["accuracy"], result["margin"], result["spread"])
    better = "" if result["reference"] else _percent(
        result["better"], result["better_margin"], result["better_spread"], "+"
    )  # fmt: skip
    folds = [" ".join(f"{100 * mean:.1f}" for mean in result["folds"])] if len(result["folds"]) > 1 else []
    return [result["model"], result["method"], accuracy, better, *folds, f"{result['seconds']:.3f}"]


def _percent(value: float, margin: float, spread: float | None, sign: str = "") -> str:
    deviation = "" if spread is None else f", sd\N{NO-BREAK SPACE}{100 * spread:.1f}"
    return f"{100 * value:{sign}.1f} ± {100 * margin:.1f}{deviation}"


def _caption(results: Sequence[Result]) -> str:
    interval = "±: 95 % confidence interval over episodes of these classes; "
    if len(results[0]["folds"]) == 1:
        return interval + "other classes differ more"
    return interval + "sd: standard deviation of the folds' means, including the chance of the episodes"


def _draw_shots(report: Report, way: str, results: Sequence[Result]) -> None:
    """Accuracy over the number of shots, where there are several."""
    if len({result["shape"] for result in results}) < 2:
        return
    models = {result["model"] for result in results if result["model"]}
    names = [
        ", ".join(filter(None, (result["method"], result["model"] if len(models) > 1 else ""))) for result in results
    ]
    order = list(dict.fromkeys(names))
    scores = [
        Score(name, order.index(name), result["shot"][0], result["accuracy"], result["margin"])
        for name, result in zip(names, results, strict=True)
    ]
    report.heading(f"{way} with more examples")
    report.growth(scores, MARGIN_CAPTION, "examples of each class", "accuracy")
