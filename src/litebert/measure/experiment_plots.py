"""Drawings of experiments: what every variant reached with each seed, beside what somebody else has published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from litebert.files import atomic_write
from litebert.measure.plots import COLOURS, colour_of, compact, dash_of, new_figures

WIDTH = 7.4  # inches
INK, QUIET, LINE, PAPER = (COLOURS[name][0] for name in ("ink", "quiet", "line", "paper"))
OURS, THEIRS = COLOURS["run0"][0], COLOURS["run1"][0]


@dataclass(frozen=True)
class Rung:
    """A variant."""

    label: str
    values: Sequence[float]
    """Of our runs, one for each seed; none where it was not run."""
    published: float | None = None


def ladder(rungs: Sequence[Rung], ours: str, theirs: str, level: float | None = None, shares: bool = True) -> Any:
    """One line for every variant: our seeds as dots and their mean as a bar; at the right what was published, if
    anything was. `level` is a value to hold them against."""
    published = any(rung.published is not None for rung in rungs)
    figure, axes = new_figures(WIDTH, 0.75 + 0.27 * len(rungs), 2 if published else 1)
    for panel in axes:
        panel.grid(visible=False)
        panel.set_ylim(len(rungs) - 0.4, -0.6)
        panel.set_yticks([])
        for y in range(len(rungs)):
            panel.axhline(y, color=LINE, linewidth=0.7, zorder=0)
    axes[0].set_yticks(range(len(rungs)), [rung.label for rung in rungs])
    for label in axes[0].get_yticklabels():
        label.set(color=INK, parse_math=False)
    if level is not None:
        axes[0].axvline(level, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
    for y, rung in enumerate(rungs):
        if rung.values:
            _rung(axes[0], y, rung.values, shares)
        else:
            axes[0].text(0.5, y, "not run", transform=axes[0].get_yaxis_transform(), color=QUIET, fontsize=8,
                         ha="center", va="center")  # fmt: skip
        if rung.published is not None:
            axes[1].plot(rung.published, y, "D", color=THEIRS, markersize=5, zorder=3)
            _beside(axes[1], rung.published, y, f"{rung.published:.1f}", THEIRS)
    axes[0].set_xlabel(ours)
    _percent(axes[0], shares)
    for panel in axes:
        panel.margins(x=0.16)
    if published:
        axes[1].set_xlabel(theirs)
        figure.subplots_adjust(wspace=0.08)
    return figure


def _rung(axes: Any, y: int, values: Sequence[float], shares: bool) -> None:
    axes.plot(values, [y] * len(values), "o", color=OURS, alpha=0.35, markersize=6, markeredgewidth=0, zorder=2)
    axes.plot([mean(values)] * 2, [y - 0.3, y + 0.3], color=OURS, linewidth=2.4, zorder=3, solid_capstyle="round")
    _beside(axes, max(values), y, compact(mean(values), percent=shares, padded=True), OURS)


def _beside(axes: Any, x: float, y: float, text: str, colour: str) -> None:
    axes.annotate(text, (x, y), (7, 0), textcoords="offset points", va="center", fontsize=8, color=colour)


@dataclass(frozen=True)
class Arm:
    """Variants that differ in a number: where they stand, and what our seeds or somebody else reached there."""

    name: str
    places: Sequence[float]
    values: Sequence[Sequence[float]]


def arms(ours: Sequence[Arm], theirs: Sequence[Arm], x_label: str, y_labels: tuple[str, str]) -> Any:
    """Lines over a number whose steps are factors; `theirs`, in percent, at the right."""
    figure, axes = new_figures(WIDTH, 2.9, 2 if theirs else 1)
    for panel, several, shares in zip(axes, (ours, theirs), (True, False), strict=False):
        for number, arm in enumerate(several):
            colour, dash = (COLOURS[colour_of(number)][0] if shares else THEIRS), dash_of(0 if shares else number)[0]
            drawn = [(x, found) for x, found in zip(arm.places, arm.values, strict=True) if found]
            panel.plot([x for x, _ in drawn], [mean(found) for _, found in drawn], color=colour, linewidth=1.8,
                       linestyle=dash, marker="o" if shares else "D", markersize=4.5, label=arm.name)  # fmt: skip
            for x, found in drawn:
                panel.plot([x] * len(found), found, "o", color=colour, alpha=0.3, markersize=5, markeredgewidth=0)
        places = sorted({x for arm in several for x in arm.places})
        panel.set_xscale("log")
        panel.set_xticks(places, [f"{x:g}" for x in places])
        panel.minorticks_off()
        panel.set_xlabel(x_label)
        panel.margins(x=0.08, y=0.12)
        if len(several) > 1:
            panel.legend(frameon=False, fontsize=8, labelcolor=INK, loc="best")
    for panel, label in zip(axes, y_labels, strict=False):
        panel.set_ylabel(label)
    _percent(axes[0], True, vertical=True)
    figure.subplots_adjust(wspace=0.3)
    return figure


def passes(moves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Any:
    """How far every pass moves the states of tokens, and by which angle it turns them, for several models."""
    figure, axes = new_figures(WIDTH, 2.8, 2)
    for panel, part, label in zip(axes, (0, 1), ("distance between in and out", "angle, degrees"), strict=True):
        for number, (name, moved) in enumerate(moves.items()):
            panel.plot(range(1, len(moved[part]) + 1), moved[part], color=COLOURS[colour_of(number)][0], linewidth=1.8,
                       linestyle=dash_of(number)[0], marker="o", markersize=3.5, label=name)  # fmt: skip
        panel.set(xlabel="pass", ylabel=label)
        panel.set_ylim(bottom=0)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.margins(x=0.04)
    axes[0].legend(frameon=False, fontsize=8, labelcolor=INK, loc="best")
    figure.subplots_adjust(wspace=0.25)
    return figure


def save(figure: Any, path: Path) -> None:
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
    axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, percent=shares)))
