"""One picture of several runs of `litebert bench --out`: throughput, single texts and the roofline.

python bench/draw_speed.py runs/infer/bench.json runs/pretrain/bench.json --out speed.svg
python bench/draw_speed.py docs/images/speed-h200.json --out docs/images/speed-h200.svg
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from litebert.measure.plots import COLOURS, colour_name, format_compact

PANELS = {
    "encode": "embedding, tokens per second",
    "pretrain": "pre-training, tokens per second",
    "finetune": "fine-tuning, tokens per second",
    "single": "embedding one text, milliseconds",
}
INK, QUIET, PALE = (COLOURS[name][0] for name in ("ink", "quiet", "line"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="bench.json files of one machine, or lists of them")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in options.results]
    runs = [run for content in contents for run in (content if isinstance(content, list) else [content])]
    rows = [row | {"case": named(row["case"], run)} for run in runs for row in run["rows"]]
    names = list(dict.fromkeys(row["who"] for row in rows))
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    panels = figure.subplot_mosaic([["encode", "finetune"], ["pretrain", "finetune"], ["single", "roof"]],
                                   height_ratios=(2.2, 2, 3.4))  # fmt: skip
    for panel, title in PANELS.items():
        figures = "milliseconds" if panel == "single" else "tokens_per_second"
        bars(panels[panel], [row for row in rows if panel_of(row["case"]) == panel], names, figures, title)
    roofline(panels["roof"], rows, names, runs)
    handles = [panels["encode"].barh(0, 0, color=colour(number)).patches[0] for number in range(len(names))]
    figure.legend(handles, names, loc="outside upper left", ncols=len(names), frameon=False, fontsize=9)
    figure.savefig(options.out, metadata={"Date": None})
    print(f"{options.out}: {runs[0]['machine']}, torch {runs[0]['torch']}, transformers {runs[0]['transformers']}")


def named(case: str, run: dict[str, Any]) -> str:
    """The case, for fine-tuning with the name of the data set."""
    data = run["settings"]["data"]
    return case if data is None or panel_of(case) != "finetune" else f"{case}, {Path(data).stem}"


def panel_of(case: str) -> str:
    beginnings = {"one ": "single", "fine-tuning": "finetune", "pre-training": "pretrain"}
    return next((panel for beginning, panel in beginnings.items() if case.startswith(beginning)), "encode")


def bars(axes: Any, rows: list[dict[str, Any]], names: list[str], figure: str, title: str) -> None:
    cases = list(dict.fromkeys(row["case"] for row in rows))
    most, at, ticks = max((row[figure] for row in rows), default=1.0), 0.0, []
    for case in cases:
        group = [row for row in rows if row["case"] == case]
        for row in group:
            axes.barh(at, row[figure], height=0.86, color=colour(names.index(row["who"])))
            axes.text(row[figure] + most * 0.015, at, format_compact(row[figure]), va="center", fontsize=8, color=INK)
            at += 1
        ticks.append(at - 1 - (len(group) - 1) / 2)
        at += 0.7
    # the panel's title has the kind of work
    axes.set_yticks(ticks, [textwrap.fill(re.sub("^(fine-tuning|pre-training), ", "", case), 22) for case in cases])
    axes.set(ylim=(at - 1.1, -0.6), xlim=(0, most * 1.2), xticks=[])
    tidy(axes, title)


def roofline(axes: Any, rows: list[dict[str, Any]], names: list[str], runs: list[dict[str, Any]]) -> None:
    matmul = max(rate for run in runs for rate in run["matmul_operations_per_second"].values())
    copied = max(run["copy_bytes_per_second"] for run in runs)
    for row in rows:
        axes.scatter(row["intensity"], row["operations_per_second"], s=24, color=colour(names.index(row["who"])))
    low, high = min(row["intensity"] for row in rows) / 2, max(row["intensity"] for row in rows) * 3
    axes.plot([low, matmul / copied, high], [low * copied, matmul, matmul], color=QUIET, linewidth=1.2)
    axes.text(
        high, matmul * 1.15, f"a large matrix product: {format_compact(matmul)}", ha="right", fontsize=8, color=QUIET
    )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(None, matmul * 3), xlabel="operations per byte")
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    tidy(axes, "roofline: operations per second")


def tidy(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    axes.xaxis.label.set(color=QUIET, size=8)


def colour(number: int) -> str:
    return COLOURS[colour_name(number)][0]


if __name__ == "__main__":
    main()
