"""Plots as SVG that follow the light or dark theme of the page around them."""

from __future__ import annotations

import html
import io
import itertools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litebert.errors import ConfigError, require_extra

Series = tuple[Sequence[float], Sequence[float]]
"""Steps and values."""

COLOURS = {
    "ink": ("#1f2933", "#e4e9ef"),
    "quiet": ("#5b6875", "#9aa7b4"),
    "line": ("#dde3ea", "#2f3944"),
    "paper": ("#ffffff", "#161b21"),
    "run0": ("#2563a8", "#6aa9ec"),
    "run1": ("#b94f14", "#f0985a"),
    "run2": ("#2f7d4f", "#6fc48f"),
    "run3": ("#7a4fb5", "#b89be8"),
    "run4": ("#b83a6b", "#ec7fa8"),
    "run5": ("#14808a", "#5cc5cf"),
}
"""Each on a light page and on a dark one. A run keeps its colour through all drawings."""
RUN_COLOURS = 6
DASHES: tuple[tuple[Any, str], ...] = (("-", "solid"), ((0, (5, 2)), "dashed"), ((0, (1.5, 1.5)), "dotted"))
"""For a drawing and for a page: a seventh run has the first one's colour, dashed."""
SI_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MAX_CURVE_POINTS = 400  # of a curve; a screen shows no more, and a page of a million steps would not open
MIN_LABEL_GAP = 0.085  # between two labels, as a share of a subplot's height
LEFT, RIGHT, BOTTOM, TOP = 0.45, 0.7, 0.25, 0.1  # inches around a subplot, the same for all, so that they line up


@dataclass(frozen=True)
class RunCurve:
    """One run in a subplot."""

    name: str
    number: int
    """The run's place in the list: decides its colour."""
    training: Series | None = None
    validation: Series | None = None


@dataclass(frozen=True)
class Subplot:
    """One metric of one or several runs over their steps."""

    title: str
    lines: Sequence[RunCurve]
    percent: bool = False
    """Values are fractions: 0.5 is written 50%."""
    from_zero: bool = False
    exact: bool = False
    """Values without noise: plotted without a running mean."""
    stairs: bool = False
    """Step function: no slope between values."""
    marks: Sequence[float] = ()
    """Steps of events, drawn as vertical lines."""


def colour_name(number: int) -> str:
    return f"run{number % RUN_COLOURS}"


def dash_style(number: int) -> tuple[Any, str]:
    return DASHES[number // RUN_COLOURS % len(DASHES)]


def draw_subplot(subplot: Subplot, width: float = 3.7, height: float = 2.1) -> str:
    """Every step faint, a running mean on top, validations as rings, the last values written at the end."""
    figure, axes = new_figure(width, height)
    figure.subplots_adjust(LEFT / width, BOTTOM / height, 1 - RIGHT / width, 1 - TOP / height)
    seen: list[float] = []
    ends: list[tuple[float, str, str]] = []
    for line in subplot.lines:
        colour = COLOURS[colour_name(line.number)][0]
        how = {"color": colour, "linestyle": dash_style(line.number)[0]}
        last = []
        if line.training is not None:
            steps, values = _finite(line.training)
            if not subplot.exact:
                axes.plot(*downsample_extremes(steps, values), color=colour, alpha=0.22, linewidth=0.7)
                values = running_mean(values)
            axes.plot(
                *downsample(steps, values), linewidth=1.8, drawstyle="steps-post" if subplot.stairs else None, **how
            )
            seen += values
            last.append((values[-1], format_compact(values[-1], subplot.percent, not subplot.exact), colour))
        if line.validation is not None:
            steps, values = _finite(line.validation)
            ring = {"marker": "o", "markersize": 4.5, "markerfacecolor": COLOURS["paper"][0], "markeredgewidth": 1.3}
            axes.plot(*downsample(steps, values), linewidth=0.8, **ring, **how)
            seen += values
            last.append((values[-1], f"○ {format_compact(values[-1], subplot.percent, not subplot.exact)}", colour))
        ends += last if len(subplot.lines) == 1 else last[-1:]  # with several runs, the figure that decides
    for mark in subplot.marks:
        axes.axvline(mark, color=COLOURS["quiet"][0], linewidth=0.7, linestyle=(0, (1, 2)))
    _limits(axes, subplot, seen)
    _label_ends(axes, ends)
    return to_svg(figure, subplot.title)


def draw_confusion(labels: Sequence[str], counts: Sequence[Sequence[int]], caption: str) -> str:
    """Rows are true labels, columns predicted labels."""
    size = 1.2 + 0.42 * len(labels)
    figure, axes = new_figure(size + 0.5, size)
    from matplotlib.patches import Rectangle

    darkest = max(max(row) for row in counts) or 1
    for row, cells in enumerate(counts):
        for column, count in enumerate(cells):
            square = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(square, 1, 1, color=COLOURS["run0"][0], alpha=count / darkest, linewidth=0))
            if count:
                ink = COLOURS["paper" if count > darkest / 2 else "ink"][0]
                axes.text(column, row, str(count), ha="center", va="center", color=ink)
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # "$5" is a price
    axes.set(xlim=(-0.5, len(labels) - 0.5), ylim=(len(labels) - 0.5, -0.5), xlabel="answer", ylabel="truth")
    axes.grid(visible=False)
    return to_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)


@dataclass(frozen=True)
class Point:
    """The mean of a bin: position, value and number of values."""

    x: float
    y: float
    count: int


def draw_points(points: Sequence[Point], caption: str, x_label: str, y_label: str, *, diagonal: bool = False) -> str:
    """Fractions over bins; larger dots stand for more values. The diagonal marks perfect calibration."""
    figure, axes = new_figure(3.7, 2.5)
    colour, most = COLOURS["run0"][0], max(point.count for point in points)
    if diagonal:
        axes.plot([0, 1], [0, 1], color=COLOURS["quiet"][0], linewidth=0.8, linestyle=(0, (4, 3)))
    axes.plot([point.x for point in points], [point.y for point in points], color=colour, linewidth=1.2)
    sizes = [12 + 110 * point.count / most for point in points]
    axes.scatter(
        [point.x for point in points], [point.y for point in points], s=sizes, color=colour, zorder=3, clip_on=False
    )
    axes.set(ylim=(-0.04, 1.04), xlabel=x_label, ylabel=y_label)
    if diagonal:
        axes.set_xlim(-0.04, 1.04)
    return to_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)


def draw_tradeoff(
    lines: Mapping[str, Sequence[tuple[float, float, str]]], caption: str, x_label: str, y_label: str
) -> str:
    """A trade-off: a line of points (x, y, annotation) for each method."""
    figure, axes = new_figure(5.2, 3.0)
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[colour_name(number)][0]
        xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
        axes.plot(
            xs, ys, color=colour, marker="o", markersize=4.5, linewidth=1.4, linestyle=dash_style(number)[0], label=name
        )
        for x, y, words in points:
            side = {"xytext": (0, 6), "va": "bottom"} if number == 0 else {"xytext": (0, -6), "va": "top"}
            axes.annotate(words, (x, y), textcoords="offset points", ha="center", fontsize=7.5, color=colour, **side)
    axes.margins(0.09, 0.22)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.legend(frameon=False, fontsize=8, labelcolor=COLOURS["ink"][0], loc="best")
    return to_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)


def draw_bars(groups: Mapping[str, Mapping[str, float]], names: Sequence[str], caption: str, unit: str) -> str:
    """Groups of horizontal bars with their values; `names` decides their colours."""
    bars = sum(len(group) for group in groups.values())
    figure, axes = new_figure(5.6, 0.5 + 0.24 * bars + 0.16 * len(groups))
    most = max(value for group in groups.values() for value in group.values())
    at, ticks = 0.0, []
    for group in groups.values():
        first = at
        for name, value in group.items():
            axes.barh(at, value, height=0.86, color=COLOURS[colour_name(names.index(name))][0])
            axes.text(
                value + most * 0.012, at, format_compact(value), va="center", fontsize=8.5, color=COLOURS["ink"][0]
            )
            at += 1
        ticks.append((first + at - 1) / 2)
        at += 0.7
    axes.set_yticks(ticks, list(groups))
    axes.set(ylim=(at - 1.1, -0.6), xlim=(0, most * 1.1), xlabel=unit)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return to_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)


@dataclass(frozen=True)
class MachineLimits:
    """Peak memory bandwidth and peak rates of a machine."""

    bytes_per_second: float
    operations_per_second: Mapping[str, float]
    """By data type."""


@dataclass(frozen=True)
class RooflinePoint:
    """A measurement in a roofline plot."""

    who: str
    mark: str
    """Annotation."""
    intensity: float
    """Operations per byte."""
    operations_per_second: float


def draw_roofline(works: Sequence[RooflinePoint], names: Sequence[str], roof: MachineLimits, caption: str) -> str:
    """Operations per second over operations per byte, below the limits of the machine. `names` decides the colours."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = new_figure(5.6, 3.2)
    quiet, ridges = COLOURS["quiet"][0], [high / roof.bytes_per_second for high in roof.operations_per_second.values()]
    left, right = (end(*ridges, *(work.intensity for work in works)) for end in (min, max))
    left, right = left / 2, right * 3
    for (dtype, high), ridge in zip(roof.operations_per_second.items(), ridges, strict=True):
        edge = ((left, left * roof.bytes_per_second), (ridge, high), (right, high))
        axes.plot(*zip(*edge, strict=True), color=quiet, linewidth=1.2)
        axes.text(
            right, high * 1.1, f"{dtype}: {format_compact(high)}", ha="right", va="bottom", fontsize=8, color=quiet
        )
    for work in works:
        colour = COLOURS[colour_name(names.index(work.who))][0]
        axes.scatter(work.intensity, work.operations_per_second, s=26, color=colour, zorder=3)
        where = (work.intensity * 1.06, work.operations_per_second)
        axes.text(*where, work.mark, fontsize=7.5, color=colour, va="center")
    low = min(work.operations_per_second for work in works) / 2
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, max(roof.operations_per_second.values()) * 2.5),
             xlabel="operations per byte", ylabel="operations per second")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if axis is axes.xaxis else (1,), numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    return to_svg(figure, caption, bbox_inches="tight", pad_inches=0.03)


def running_mean(values: Sequence[float], share: float = 0.03) -> list[float]:
    """Centred running mean over a fraction of the run."""
    reach = int(len(values) * share / 2)
    sums = [0.0, *itertools.accumulate(values)]
    edges = [(max(0, at - reach), min(len(values), at + reach + 1)) for at in range(len(values))]
    return [(sums[last] - sums[first]) / (last - first) for first, last in edges]


def downsample_extremes(
    steps: Sequence[float], values: Sequence[float], points: int = MAX_CURVE_POINTS
) -> tuple[list[float], list[float]]:
    """Minimum and maximum of every interval: few points, and no peak is lost."""
    if len(steps) <= points:
        return list(steps), list(values)
    chosen: list[int] = []
    for stretch in range(points // 2):
        first, last = (len(steps) * edge // (points // 2) for edge in (stretch, stretch + 1))
        chosen += sorted({pick(range(first, last), key=lambda at: values[at]) for pick in (min, max)})
    return [steps[at] for at in chosen], [values[at] for at in chosen]


def downsample(
    steps: Sequence[float], values: Sequence[float], points: int = MAX_CURVE_POINTS
) -> tuple[list[float], list[float]]:
    """Every n-th point and the last, for curves that are smooth."""
    stride = -(-len(steps) // points)
    chosen = [*range(0, len(steps) - 1, stride), len(steps) - 1]
    return [steps[at] for at in chosen], [values[at] for at in chosen]


def format_compact(value: float, percent: bool = False, padded: bool = False) -> str:
    """A short number for a label: 512k, 3.41, 3e-4, 41.2%. Padded, 82% is written 82.0%."""
    if percent:
        return f"{value:.1%}" if padded else f"{value:.1%}".replace(".0%", "%")
    if value and abs(value) < 0.01:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    unit, letter = next((pair for pair in SI_PREFIXES if abs(value) >= 0.9995 * pair[0]), (1.0, ""))  # 999.9 is 1k
    number = f"{value / unit:#.3g}".rstrip(".") if padded else f"{value / unit:.3g}"
    return number + letter


def _finite(series: Series) -> tuple[list[float], list[float]]:
    points = [(step, value) for step, value in zip(*series, strict=True) if math.isfinite(value)]
    if not points:
        raise ConfigError("nothing to draw: the run has no steps")
    return [step for step, _ in points], [value for _, value in points]


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    figure, (axes,) = new_figures(width, height, 1)
    return figure, axes


def new_figures(width: float, height: float, columns: int) -> tuple[Any, Sequence[Any]]:
    """Several plots side by side."""
    require_extra("matplotlib", "train")
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=(width, height))
    side_by_side = figure.subplots(1, columns, squeeze=False)[0]
    for axes in side_by_side:
        style_axes(axes)
    return figure, side_by_side


def style_axes(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"][0])
    axes.tick_params(length=0, labelsize=8.5, labelcolor=COLOURS["quiet"][0])
    axes.grid(axis="y", color=COLOURS["line"][0], linewidth=0.7)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=COLOURS["quiet"][0], size=8.5)


def _limits(axes: Any, subplot: Subplot, values: Sequence[float]) -> None:
    """Fit the y axis to running means and validations, so that outliers do not flatten them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    bottom = 0.0 if subplot.from_zero and low >= 0 else low - margin
    top = high + margin
    axes.set_ylim((max(0.0, bottom), min(1.0, top) if high < 1 else top) if subplot.percent else (bottom, top))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=subplot.stairs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value, subplot.percent)))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value)))
    axes.margins(x=0.01)


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the last values at the right, spread where they would overlap."""
    ends = sorted(ends)
    for place, (_, text, colour) in zip(spread_labels(axes, [value for value, _, _ in ends]), ends, strict=True):
        label = {"fontsize": 8.5, "fontweight": "bold", "color": colour, "va": "center"}
        axes.text(1.03, place, text, transform=axes.transAxes, **label)


def spread_labels(axes: Any, values: Sequence[float], gap: float = MIN_LABEL_GAP) -> list[float]:
    """Positions of labels, lowest first, with a minimum gap, as fractions of the height."""
    low, high = axes.get_ylim()
    places = [(value - low) / (high - low) for value in values]
    for at in range(1, len(places)):
        places[at] = max(places[at], places[at - 1] + gap)
    ceiling = 1.0
    for at in reversed(range(len(places))):
        places[at] = min(places[at], ceiling)
        ceiling = places[at] - gap
    return places


def to_svg(figure: Any, title: str, **layout: Any) -> str:
    """The plot as an SVG element with the fonts and colours of the page."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    nothing: Mapping[str, None] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": title}),  # text as text: sharp, and read out to the blind
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's page has one for it
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing, **layout)
    drawing = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    box = re.search(r'viewBox="([^"]+)"', drawing)
    assert box is not None
    width = round(float(box[1].split()[2]) * 96 / 72)
    opening = f'<svg role="img" aria-label="{html.escape(title)}" viewBox="{box[1]}" style="max-width: {width}px">'
    drawing = opening + drawing[drawing.index(">") + 1 :]
    drawing = re.sub(
        r"<defs>\s*<style.*?</defs>", "", drawing, count=1, flags=re.DOTALL
    )  # it would rule the whole page
    drawing = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"', "", drawing)  # a page may hold no name twice
    drawing = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", drawing)
    drawing = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", drawing)
    for name, (light, _) in COLOURS.items():
        drawing = drawing.replace(light, f"var(--{name})")
    return drawing
