"""Plots of experiments: the scores of every variant and seed, beside published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from litebert.files import atomic_write
from litebert.measure.plots import COLOURS, colour_name, dash_style, format_compact, new_figures

FIGURE_WIDTH = 7.4  # inches
INK, QUIET, LINE, PAPER = (COLOURS[name][0] for name in ("ink", "quiet", "line", "paper"))
OUR_COLOUR, PAPER_COLOUR = COLOURS["run0"][0], COLOURS["run1"][0]


@dataclass(frozen=True)
class VariantScores:
    """A row of `plot_variants`."""

    label: str
    values: Sequence[float]
    """Scores of our runs, one for each seed; empty where there is no run."""
    published: float | None = None


def plot_variants(
    variants: Sequence[VariantScores], ours: str, theirs: str, level: float | None = None, shares: bool = True
) -> Any:
    """One row for every variant: a dot for each of our seeds and a bar for their mean; at the right the published
    value, if there is any. `level` is a reference value, drawn as a dashed line."""
    published = any(variant.published is not None for variant in variants)
    figure, axes = new_figures(FIGURE_WIDTH, 0.75 + 0.27 * len(variants), 2 if published else 1)
    for panel in axes:
        panel.grid(visible=False)
        panel.set_ylim(len(variants) - 0.4, -0.6)
        panel.set_yticks([])
        for y in range(len(variants)):
            panel.axhline(y, color=LINE, linewidth=0.7, zorder=0)
    axes[0].set_yticks(range(len(variants)), [variant.label for variant in variants])
    for label in axes[0].get_yticklabels():
        label.set(color=INK, parse_math=False)
    if level is not None:
        axes[0].axvline(level, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
    for y, variant in enumerate(variants):
        if variant.values:
            _draw_variant(axes[0], y, variant.values, shares)
        else:
            axes[0].text(0.5, y, "not run", transform=axes[0].get_yaxis_transform(), color=QUIET, fontsize=8,
                         ha="center", va="center")  # fmt: skip
        if variant.published is not None:
            axes[1].plot(variant.published, y, "D", color=PAPER_COLOUR, markersize=5, zorder=3)
            _annotate(axes[1], variant.published, y, f"{variant.published:.1f}", PAPER_COLOUR)
    axes[0].set_xlabel(ours)
    _percent(axes[0], shares)
    for panel in axes:
        panel.margins(x=0.16)
    if published:
        axes[1].set_xlabel(theirs)
        figure.subplots_adjust(wspace=0.08)
    return figure


def _draw_variant(axes: Any, y: int, values: Sequence[float], shares: bool) -> None:
    axes.plot(values, [y] * len(values), "o", color=OUR_COLOUR, alpha=0.35, markersize=6, markeredgewidth=0, zorder=2)
    axes.plot([mean(values)] * 2, [y - 0.3, y + 0.3], color=OUR_COLOUR, linewidth=2.4, zorder=3, solid_capstyle="round")
    _annotate(axes, max(values), y, format_compact(mean(values), percent=shares, padded=True), OUR_COLOUR)


def _annotate(axes: Any, x: float, y: float, text: str, colour: str) -> None:
    axes.annotate(text, (x, y), (7, 0), textcoords="offset points", va="center", fontsize=8, color=colour)


@dataclass(frozen=True)
class Series:
    """Variants that differ in one number: its values, and what our seeds or the paper reached at each of them."""

    name: str
    places: Sequence[float]
    values: Sequence[Sequence[float]]


def plot_series(ours: Sequence[Series], theirs: Sequence[Series], x_label: str, y_labels: tuple[str, str]) -> Any:
    """Lines over a number on a logarithmic axis; `theirs`, in percent, at the right."""
    figure, axes = new_figures(FIGURE_WIDTH, 2.9, 2 if theirs else 1)
    for panel, series, shares in zip(axes, (ours, theirs), (True, False), strict=False):
        for number, line in enumerate(series):
            colour = COLOURS[colour_name(number)][0] if shares else PAPER_COLOUR
            dash = dash_style(0 if shares else number)[0]
            drawn = [(x, values) for x, values in zip(line.places, line.values, strict=True) if values]
            panel.plot([x for x, _ in drawn], [mean(values) for _, values in drawn], color=colour, linewidth=1.8,
                       linestyle=dash, marker="o" if shares else "D", markersize=4.5, label=line.name)  # fmt: skip
            for x, values in drawn:
                panel.plot([x] * len(values), values, "o", color=colour, alpha=0.3, markersize=5, markeredgewidth=0)
        places = sorted({x for line in series for x in line.places})
        panel.set_xscale("log")
        panel.set_xticks(places, [f"{x:g}" for x in places])
        panel.minorticks_off()
        panel.set_xlabel(x_label)
        panel.margins(x=0.08, y=0.12)
        if len(series) > 1:
            panel.legend(frameon=False, fontsize=8, labelcolor=INK, loc="best")
    for panel, label in zip(axes, y_labels, strict=False):
        panel.set_ylabel(label)
    _percent(axes[0], True, vertical=True)
    figure.subplots_adjust(wspace=0.3)
    return figure


def plot_passes(moves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Any:
    """Distance and angle between the hidden states before and after every pass, for several models."""
    figure, axes = new_figures(FIGURE_WIDTH, 2.8, 2)
    for panel, part, label in zip(axes, (0, 1), ("distance between in and out", "angle, degrees"), strict=True):
        for number, (name, moved) in enumerate(moves.items()):
            colour, dash = COLOURS[colour_name(number)][0], dash_style(number)[0]
            panel.plot(range(1, len(moved[part]) + 1), moved[part], color=colour, linewidth=1.8, linestyle=dash,
                       marker="o", markersize=3.5, label=name)  # fmt: skip
        panel.set(xlabel="pass", ylabel=label)
        panel.set_ylim(bottom=0)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.margins(x=0.04)
    axes[0].legend(frameon=False, fontsize=8, labelcolor=INK, loc="best")
    figure.subplots_adjust(wspace=0.25)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """As path.svg, and as path.png on white."""
    import io

    from matplotlib import rc_context

    for kind in ("svg", "png"):
        drawn = io.BytesIO()
        undated = {"Date": None} if kind == "svg" else {"Software": None}
        with rc_context({"svg.hashsalt": path.name}):
            figure.savefig(drawn, format=kind, dpi=180, facecolor=PAPER, bbox_inches="tight", metadata=undated)
        atomic_write(path.with_name(f"{path.name}.{kind}"), drawn.getvalue())


def _percent(axes: Any, shares: bool, vertical: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.yaxis if vertical else axes.xaxis
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value, percent=shares)))
