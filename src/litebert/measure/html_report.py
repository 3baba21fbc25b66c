"""A self-contained HTML page of headings, tables and plots, without external resources."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litebert.files import atomic_write
from litebert.measure.plots import (
    COLOURS,
    MachineLimits,
    Point,
    RooflinePoint,
    RunCurve,
    Series,
    Subplot,
    colour_name,
    dash_style,
    draw_bars,
    draw_confusion,
    draw_points,
    draw_roofline,
    draw_subplot,
)
from litebert.measure.score_plots import Score, draw_growth, draw_scores

_LIGHT, _DARK = (
    "; ".join(f"--{name}: {colours[theme]}" for name, colours in COLOURS.items()) + ";" for theme in (0, 1)
)
_STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
body {{ font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 50rem; margin: 2.5rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; margin-bottom: .2rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.15rem; margin: 2.4rem 0 .6rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .8rem 0; }}
th, td {{ text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
th {{ font-weight: 600; }} td {{ overflow-wrap: break-word; }}
.many {{ font-size: .86rem; position: relative; left: 50%; transform: translateX(-50%);
  width: max-content; min-width: 100%; max-width: calc(100vw - 2rem); }}
.many th, .many td {{ padding-right: .7rem; }}
td.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
.note, figcaption, summary {{ color: var(--quiet); }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.6rem 2rem; }}
figure {{ margin: 1.2rem 0; }} .panels figure {{ margin: 0; }}
.panels figcaption {{ color: var(--ink); font-weight: 600; margin-bottom: .3rem; }}
svg {{ display: block; width: 100%; height: auto; }} svg * {{ stroke-linejoin: round; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; padding: 0; list-style: none; }}
.legend i {{ display: inline-block; width: 1.4rem; border-top: .2rem solid;
  margin-right: .5rem; vertical-align: .25rem; }}
"""
WIDE_TABLE_COLUMNS = 6
"""Tables with more columns than this are set smaller."""


class Report:
    """Collects sections and writes them as one page."""

    def __init__(self, title: str, summary: str) -> None:
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="note">{html.escape(summary)}</p>']

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]], *, folded: str = "") -> None:
        """With `folded`, the table is collapsed below that line."""
        head = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>" if header else ""
        body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
        columns = max(map(len, rows), default=0)
        table = f'<div class="wide{" many" if columns > WIDE_TABLE_COLUMNS else ""}"><table>{head}{body}</table></div>'
        if folded:
            table = f"<details><summary>{html.escape(folded)}</summary>{table}</details>"
        self._parts.append(table)

    def legend(self, names: Sequence[str]) -> None:
        """Colours of the runs."""
        items = (
            f'<li><i style="border-color: var(--{colour_name(number)}); border-style: {dash_style(number)[1]}"></i>'
            f"{html.escape(name)}</li>"
            for number, name in enumerate(names)
        )
        self._parts.append(f'<ul class="legend">{"".join(items)}</ul>')

    def panels(self, panels: Sequence[Subplot]) -> None:
        """Small plots side by side; below each other on a phone."""
        drawn = (
            f"<figure><figcaption>{html.escape(panel.title)}</figcaption>{draw_subplot(panel)}</figure>"
            for panel in panels
        )
        self._parts.append(f'<div class="panels">{"".join(drawn)}</div>')

    def curves(self, curves: Mapping[str, Series], caption: str) -> None:
        """Metrics over steps in one wide plot."""
        lines = [RunCurve(name, number, training=curve) for number, (name, curve) in enumerate(curves.items())]
        if len(curves) > 1:
            self.legend(list(curves))
        self.drawing(draw_subplot(Subplot(caption, lines), width=7, height=3), caption)

    def confusion(self, labels: Sequence[str], counts: Sequence[Sequence[int]], caption: str) -> None:
        """Rows are true labels, columns predicted labels."""
        self.drawing(draw_confusion(labels, counts, caption), caption)

    def points(
        self, points: Sequence[Point], caption: str, x_label: str, y_label: str, *, diagonal: bool = False
    ) -> None:
        """Binned means, as dots."""
        self.drawing(draw_points(points, caption, x_label, y_label, diagonal=diagonal), caption)

    def scores(self, scores: Sequence[Score], caption: str, x_label: str, y_label: str) -> None:
        """Scores over cost."""
        self.drawing(draw_scores(scores, caption, x_label, y_label), caption)

    def growth(self, scores: Sequence[Score], caption: str, x_label: str, y_label: str) -> None:
        """Scores over the number of examples; scores of one number are a line."""
        self.drawing(draw_growth(scores, caption, x_label, y_label), caption)

    def bars(self, groups: Mapping[str, Mapping[str, float]], caption: str, unit: str) -> None:
        """Bars for the same names in every group."""
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        self.legend(names)
        self.drawing(draw_bars(groups, names, caption, unit), caption)

    def roofline(self, works: Sequence[RooflinePoint], roof: MachineLimits, caption: str) -> None:
        """Operations per second over operations per byte, below the limits of the machine."""
        names = list(dict.fromkeys(work.who for work in works))
        self.legend(names)
        self.drawing(draw_roofline(works, names, roof, caption), caption)

    def drawing(self, drawing: str, caption: str) -> None:
        """An SVG, such as `as_svg` makes."""
        self._parts.append(f"<figure>{drawing}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def write(self, path: Path) -> None:
        page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self._title)}</title>'
        page += f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style><body>'
        atomic_write(path, page + "\n".join(self._parts) + "</body></html>\n")


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{html.escape(str(value))}</td>"
    return f'<td class="number">{value:,.3f}</td>' if isinstance(value, float) else f'<td class="number">{value:,}</td>'
