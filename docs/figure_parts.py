"""What the drawings of figures.py have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from litebert.measure.curves import COLOURS, style

INK, QUIET, PAPER = (COLOURS[name][0] for name in ("ink", "quiet", "paper"))
RUNS = [COLOURS[f"run{number}"][0] for number in range(6)]
DASHED = (0, (4, 3))


def panels(height: float, *widths: float, above: float = 0.0) -> tuple[Any, list[Any]]:
    """Drawings side by side in the style of litebert's reports; the first one `above` the others, so high."""
    figure = Figure(figsize=(7.6, height), layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    grid = figure.add_gridspec(2, len(widths), width_ratios=widths, height_ratios=[above, height - above])
    axes = [figure.add_subplot(grid[0, :])] if above else []
    axes += [figure.add_subplot(grid[1 if above else slice(None), column]) for column in range(len(widths))]
    for one in axes:
        style(one)
    return figure, axes


def titled(axes: Any, title: str, x_label: str = "", y_label: str = "") -> None:
    axes.set_title(title, fontsize=9.5, color=INK, loc="left")
    axes.set(xlabel=x_label, ylabel=y_label)


def percent(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def legend(axes: Any, **where: Any) -> None:
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, **where)


def curve(axes: Any, xs: Sequence[float], ys: Sequence[float] | np.ndarray, number: int, name: str = "") -> None:
    axes.plot(xs, ys, color=RUNS[number], linewidth=1.8, marker="o", markersize=3.5, label=name)


def band(axes: Any, xs: Sequence[float], draws: np.ndarray, number: int, name: str) -> None:
    """The mean of every row, and one standard deviation on each side."""
    mean, spread = draws.mean(1), draws.std(1, ddof=1)
    axes.fill_between(xs, mean - spread, mean + spread, color=RUNS[number], alpha=0.16, linewidth=0)
    curve(axes, xs, mean, number, name)
