"""One self-contained HTML page: headings, tables and plots, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from litebert.errors import ConfigError, require_extra
from litebert.files import atomic_write

INK, ACCENT, SOFT = "#1f2933", "#2563a8", "#9db8d6"
_STYLE = f"""
body {{ font: 16px/1.55 system-ui, sans-serif; color: {INK}; max-width: 46rem; margin: 2.5rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; margin-bottom: .2rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; margin: .8rem 0; }}
th, td {{ text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #dde3ea; vertical-align: top; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
img {{ max-width: 100%; height: auto; }} .note {{ color: #5b6875; }}
"""


class Report:
    """Collects sections and writes them as one page."""

    def __init__(self, title: str, summary: str) -> None:
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="note">{html.escape(summary)}</p>']

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
        self._parts.append(f"<table><tr>{head}</tr>{body}</table>")

    def curves(self, steps: Sequence[float], curves: Mapping[str, Sequence[float]], label: str, caption: str) -> None:
        """Figures over steps: every step faint, a running mean on top."""
        figure, axes = _figure(7, 3.4)
        for (name, values), colour in zip(curves.items(), (ACCENT, "#c2571a", "#4b7f3a"), strict=False):
            axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(steps, _running_mean(values), color=colour, linewidth=2, label=name)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
        if len(curves) > 1:
            axes.legend(frameon=False)
        self._image(figure, caption)

    def confusion(self, labels: Sequence[str], counts: Sequence[Sequence[int]], caption: str) -> None:
        """Rows are the truth, columns the answers."""
        size = 1.2 + 0.42 * len(labels)
        figure, axes = _figure(size + 0.5, size)
        axes.imshow(counts, cmap="Blues")
        darkest = max(max(row) for row in counts) or 1
        for row, cells in enumerate(counts):
            for column, count in enumerate(cells):
                if count:
                    axes.text(
                        column, row, count, ha="center", va="center", color="white" if count > darkest / 2 else INK
                    )
        axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right")
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xlabel("answer")
        axes.set_ylabel("truth")
        self._image(figure, caption)

    def write(self, path: Path) -> None:
        page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self._title)}</title>'
        page += f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><body>'
        atomic_write(path, page + "\n".join(self._parts) + "</body></html>\n")

    def _image(self, figure: Any, caption: str) -> None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=144, bbox_inches="tight")
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        width = round(figure.get_figwidth() * 96)  # pixels: the file is finer, for sharp screens
        self._parts.append(f'<img alt="{html.escape(caption)}" width="{width}" src="data:image/png;base64,{data}">')
        self._parts.append(f'<p class="note">{html.escape(caption)}</p>')


def _figure(width: float, height: float) -> tuple[Any, Any]:
    require_extra("matplotlib", "train")
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _running_mean(values: Sequence[float], share: float = 0.05) -> list[float]:
    """The mean over the latest twentieth of the run."""
    if not values:
        raise ConfigError("nothing to draw: the run has no steps")
    width = max(1, int(len(values) * share))
    return [
        sum(values[max(0, i - width + 1) : i + 1]) / len(values[max(0, i - width + 1) : i + 1])
        for i in range(len(values))
    ]


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)):
        return (
            f'<td class="number">{value:,.3f}</td>'
            if isinstance(value, float)
            else f'<td class="number">{value:,}</td>'
        )
    return f"<td>{html.escape(str(value))}</td>"
