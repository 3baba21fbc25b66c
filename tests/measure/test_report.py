"""The report: one page, safe to open, nothing fetched."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from litebert.errors import ConfigError
from litebert.measure.report import Report

HOSTILE = "<script>alert(\"x\")</script> & 'more'"


def page_of(report: Report, tmp_path: Path) -> str:
    report.write(tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_a_user_gives_becomes_markup(tmp_path: Path) -> None:
    report = Report(HOSTILE, HOSTILE)
    report.heading(HOSTILE)
    report.text(HOSTILE)
    report.table([HOSTILE], [[HOSTILE]])
    report.curves([1, 2], {HOSTILE: [1.0, 2.0]}, HOSTILE, HOSTILE + '" onload="alert(1)')
    page = page_of(report, tmp_path)
    assert "<script" not in page
    assert '" onload="' not in page
    assert page.count("&lt;script&gt;") == 9  # title twice, summary, heading, text, two cells, caption twice


def test_images_are_embedded_as_png(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.curves([1, 2, 3], {"loss": [3.0, 2.0, 1.0], "other": [1.0, 1.0, 1.0]}, "loss", "Loss by step.")
    report.confusion(["a", "b"], [[3, 1], [0, 2]], "Truth and answers.")
    page = page_of(report, tmp_path)
    images = re.findall(r'<img alt="([^"]+)" width="\d+" src="data:image/png;base64,([^"]+)">', page)
    assert [caption for caption, _ in images] == ["Loss by step.", "Truth and answers."]
    assert all(base64.b64decode(data).startswith(b"\x89PNG\r\n\x1a\n") for _, data in images)


def test_nothing_is_fetched_from_anywhere(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.table(["a"], [["b"]])
    report.confusion(["a", "b"], [[0, 0], [0, 0]], "Nothing yet.")
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "", page_of(report, tmp_path))
    assert not re.search(r"https?:|//|url\(|@import|<link|<script|<iframe", page)


def test_a_table_shows_text_and_numbers(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.table(["method", "accuracy", "examples"], [["ours", 0.98765, 12345]])
    page = page_of(report, tmp_path)
    assert "<tr><th>method</th><th>accuracy</th><th>examples</th></tr>" in page
    assert '<td>ours</td><td class="number">0.988</td><td class="number">12,345</td>' in page


def test_a_run_without_steps_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match="the run has no steps"):
        Report("title", "summary").curves([], {"loss": []}, "loss", "caption")


def test_a_page_replaces_the_former_one_whole(tmp_path: Path) -> None:
    page_of(Report("first", "summary"), tmp_path)
    page = page_of(Report("second", "summary"), tmp_path)
    assert "first" not in page
    assert page.endswith("</body></html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
