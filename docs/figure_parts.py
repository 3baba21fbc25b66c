"""Shared parts of the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from litebert.measure.plots import COLOURS, style_axes

INK, QUIET, PAPER = (COLOURS[name][0] for name in ("ink", "quiet", "paper"))
RUNS = [COLOURS[f"run{number}"][0] for number in range(6)]
DASHED = (0, (4, 3))


def panels(height: float, *widths: float, above: float = 0.0) -> tuple[Any, list[Any]]:
    """Drawings side by side in the style of litebert's reports; the first one `above` the others, so high."""
    figure: Any = Figure(figsize=(7.6, height), layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    heights = [above, height - above] if above else [height]
    grid = figure.add_gridspec(len(heights), len(widths), width_ratios=widths, height_ratios=heights)
    axes = [figure.add_subplot(grid[0, :])] if above else []
    axes += [figure.add_subplot(grid[-1, column]) for column in range(len(widths))]
    for one in axes:
        style_axes(one)
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


def questions(axes: Any) -> None:
    """NSP and SOP: A and B are neighbours, X is from another document."""
    axes.axis("off")
    axes.set(xlim=(0, 10), ylim=(6.5, -0.7))
    rows = ((0, "no objective", "A B", ""), (1.6, "NSP", "A B", "follows"), (2.7, "", "A X", "random text"),
            (4.3, "SOP", "A B", "in order"), (5.4, "", "B A", "swapped"))  # fmt: skip
    colours = {"A": RUNS[0], "B": RUNS[2], "X": RUNS[1]}
    for y, name, segments, answer in rows:
        axes.text(0, y, name, fontsize=9, color=INK, va="center", fontweight="bold")
        for at, segment in enumerate(segments.split()):
            axes.barh(y, 1.7, left=3.6 + 1.9 * at, height=0.85, color=colours[segment])
            axes.text(4.45 + 1.9 * at, y, segment, color=PAPER, ha="center", va="center", fontsize=9)
        axes.text(7.6, y, answer, fontsize=8.5, color=QUIET, va="center")


def sentence(axes: Any, row: int, name: str, tokens: Sequence[str], hidden: Sequence[bool] | np.ndarray) -> None:
    """One row of three: a sentence in tokens, some of them masked."""
    axes.axis("off")
    axes.set(xlim=(-9, 104), ylim=(2.6, -0.6))
    axes.text(-9, row, name, fontsize=9, color=INK, va="center", fontweight="bold")
    at = 0.0
    for token, is_hidden in zip(tokens, hidden, strict=True):
        shown = token.removeprefix("▁")
        width = 1.02 * len(shown) + 0.5
        at += 0.9 if token.startswith("▁") else 0.15
        axes.barh(row, width, left=at, height=0.72, color=RUNS[0] if is_hidden else PAPER)
        words = {"fontsize": 8, "ha": "center", "va": "center"}
        axes.text(at + width / 2, row, shown, color=PAPER if is_hidden else INK, **words)
        at += width


def as_card(svg: str, margin: int = 8) -> str:
    """The drawing with some white around it: on a dark page nothing should touch the edge."""
    size = re.search(r'width="[\d.]+pt" height="[\d.]+pt" viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    width, height = (float(side) + 2 * margin for side in size.groups())
    box = f'width="{width:g}pt" height="{height:g}pt" viewBox="{-margin} {-margin} {width:g} {height:g}"'
    opening, rest = svg.replace(size[0], box).split(" <defs>", 1)
    paper = f'<rect x="{-margin}" y="{-margin}" width="{width:g}" height="{height:g}" fill="{PAPER}"/>'
    return f"{opening} {paper}\n <defs>{rest}"
