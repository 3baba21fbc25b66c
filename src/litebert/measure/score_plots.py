"""Drawings of what somebody reached, within a margin, against what it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from litebert.measure.plots import COLOURS, as_svg, colour_of, compact, dash_of, moved_apart, new_figure

LEAST_SECONDS = 1e-3  # what is cheaper stands here: next to nothing would push all others together
CROWD = 10.0  # times as much: of what lies nearer the names would run into the next dots
HEIGHT = 3.2  # inches
NAME_POINTS = 11.0  # the height of a name and some space


@dataclass(frozen=True)
class Score:
    """What somebody reached, within a margin, and what it took."""

    name: str
    number: int
    """Decides its colour."""
    cost: float
    """Seconds, or examples."""
    value: float
    margin: float


class End(NamedTuple):
    """What a name stands for."""

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
    crowds: list[list[End]] = []
    for score in sorted(scores, key=lambda score: score.cost):
        end = End(
            score.name, max(score.cost, LEAST_SECONDS), score.value, {"color": COLOURS[colour_of(score.number)][0]}
        )
        axes.errorbar(end.x, end.y, yerr=score.margin, fmt="o", markersize=5, elinewidth=1.2, **end.how)
        if not crowds or end.x >= CROWD * crowds[-1][-1].x:
            crowds.append([])
        crowds[-1].append(end)
    left, right = axes.get_xlim()
    for crowd in crowds:
        _name(axes, crowd, crowd[-1].x * (right / left) ** 0.03, axes.get_xaxis_transform())
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g} s" if value >= 1 else f"{1000 * value:g} ms")
    )
    return _finished(figure, axes, caption)


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
        how = {"color": COLOURS[colour_of(number)][0], "linestyle": dash_of(number)[0]}
        axes.errorbar(places, values, margins, marker="o", markersize=3, capsize=2, elinewidth=1, **how)
        ends.append(End(line[-1].name, places[-1], values[-1], how))
    _name(axes, ends, 1.1, axes.transAxes)
    costs = sorted({score.cost for score in scores})
    axes.set_xticks(costs, [compact(cost) for cost in costs])
    return _finished(figure, axes, caption)


def _name(axes: Any, ends: Sequence[End], x: float, transform: Any) -> None:
    """Names one below the other at `x`, each with a thin line to what it names."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    ends = sorted(ends, key=lambda end: end.y)
    for end, y in zip(ends, moved_apart(axes, [end.y for end in ends], NAME_POINTS / height), strict=True):
        leader = {"arrowstyle": "-", "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3, **end.how}
        axes.annotate(end.name, (end.x, end.y), (x, y), textcoords=transform, va="center", fontsize=8.5,
                      color=end.how["color"], arrowprops=leader, parse_math=False)  # fmt: skip


def _finished(figure: Any, axes: Any, caption: str) -> str:
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, percent=True)))
    axes.minorticks_off()
    return as_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)
