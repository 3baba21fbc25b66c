"""Plots of scores with confidence intervals over their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from litebert.measure.plots import COLOURS, colour_name, dash_style, format_compact, new_figure, spread_labels, to_svg

MIN_COST = 1e-3  # what is cheaper stands here: next to nothing would push all others together
GROUP_RATIO = 10.0  # times as much: of what lies nearer the names would run into the next dots
HEIGHT = 3.2  # inches
NAME_POINTS = 11.0  # the height of a name and some space


@dataclass(frozen=True)
class Score:
    """A score with its margin, and what it cost."""

    name: str
    number: int
    """Index of its colour."""
    cost: float
    """Seconds, or number of examples."""
    value: float
    margin: float


class CurveEnd(NamedTuple):
    """The labelled end of a curve."""

    name: str
    x: float
    y: float
    how: dict[str, Any]
    """It is drawn."""


def draw_scores(scores: Sequence[Score], caption: str, x_label: str, y_label: str) -> str:
    """Shares upwards with their margins, time to the right, ten times as much from line to line."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, axes = new_figure(5.6, HEIGHT)
    axes.set(xscale="log", xlabel=x_label, ylabel=y_label)
    axes.margins(x=0.25)
    crowds: list[list[CurveEnd]] = []
    for score in sorted(scores, key=lambda score: score.cost):
        end = CurveEnd(
            score.name, max(score.cost, MIN_COST), score.value, {"color": COLOURS[colour_name(score.number)][0]}
        )
        axes.errorbar(end.x, end.y, yerr=score.margin, fmt="o", markersize=5, elinewidth=1.2, **end.how)
        if not crowds or end.x >= GROUP_RATIO * crowds[-1][-1].x:
            crowds.append([])
        crowds[-1].append(end)
    left, right = axes.get_xlim()
    for crowd in crowds:
        _label(axes, crowd, crowd[-1].x * (right / left) ** 0.03, axes.get_xaxis_transform())
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g} s" if value >= 1 else f"{1000 * value:g} ms")
    )
    return _finish(figure, axes, caption)


def draw_growth(scores: Sequence[Score], caption: str, x_label: str, y_label: str) -> str:
    """Shares upwards with their margins, examples to the right; scores of one number are a line, named at its end."""
    lines: dict[int, list[Score]] = {}
    for score in sorted(scores, key=lambda score: score.cost):
        lines.setdefault(score.number, []).append(score)
    figure, axes = new_figure(5.6, max(HEIGHT, 0.26 * len(lines)))
    axes.set(xscale="log", xlabel=x_label, ylabel=y_label)
    ends = []
    for number, line in lines.items():
        places = [score.cost * 1.012 ** (number - len(lines) / 2) for score in line]  # margins would hide each other
        values, margins = [score.value for score in line], [score.margin for score in line]
        how = {"color": COLOURS[colour_name(number)][0], "linestyle": dash_style(number)[0]}
        axes.errorbar(places, values, margins, marker="o", markersize=3, capsize=2, elinewidth=1, **how)
        ends.append(CurveEnd(line[-1].name, places[-1], values[-1], how))
    _label(axes, ends, 1.1, axes.transAxes)
    costs = sorted({score.cost for score in scores})
    axes.set_xticks(costs, [format_compact(cost) for cost in costs])
    return _finish(figure, axes, caption)


def _label(axes: Any, ends: Sequence[CurveEnd], x: float, transform: Any) -> None:
    """Names one below the other at `x`, each with a thin line to what it names."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    ends = sorted(ends, key=lambda end: end.y)
    for end, y in zip(ends, spread_labels(axes, [end.y for end in ends], NAME_POINTS / height), strict=True):
        leader = {"arrowstyle": "-", "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3, **end.how}
        axes.annotate(end.name, (end.x, end.y), (x, y), textcoords=transform, va="center", fontsize=8.5,
                      color=end.how["color"], arrowprops=leader, parse_math=False)  # fmt: skip


def _finish(figure: Any, axes: Any, caption: str) -> str:
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value, percent=True)))
    axes.minorticks_off()
    return to_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)
