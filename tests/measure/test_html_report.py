"""The report: one page, safe to open, nothing fetched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from litebert.measure.html_report import Report
from litebert.measure.plots import COLOURS, Point, RunCurve, Subplot

HOSTILE = "<script>alert(\"x\")</script> & 'more'"


def page_of(report: Report, tmp_path: Path) -> str:
    report.write(tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_a_user_gives_becomes_markup(tmp_path: Path) -> None:
    report = Report(HOSTILE, HOSTILE)
    report.heading(HOSTILE)
    report.text(HOSTILE)
    report.table([HOSTILE], [[HOSTILE]])
    report.table([HOSTILE], [[HOSTILE]], folded=HOSTILE)
    report.legend([HOSTILE])
    report.panels([Subplot(HOSTILE, [RunCurve(HOSTILE, 0, ([1, 2], [1.0, 2.0]))])])
    report.curves({HOSTILE: ([1, 2], [1.0, 2.0])}, HOSTILE + '" onload="alert(1)')
    report.points([Point(0.5, 0.5, 1)], HOSTILE + '" onload="alert(1)', HOSTILE, HOSTILE)
    page = page_of(report, tmp_path)
    assert "<script" not in page
    assert '" onload="' not in page
    # title twice, summary, heading, text, five in tables, legend, panel twice, caption twice, points twice and two axes
    assert page.count("&lt;script&gt;") == 19


def test_drawings_are_part_of_the_page(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.curves({"loss": ([1, 2, 3], [3.0, 2.0, 1.0]), "other": ([1, 3], [1.0, 1.0])}, "Loss by step.")
    report.confusion(["a", "b"], [[3, 1], [0, 2]], "Truth and answers.")
    report.points([Point(0.5, 0.4, 3)], "Sure and right.", "sure", "right", diagonal=True)
    page = page_of(report, tmp_path)
    captions = ["Loss by step.", "Truth and answers.", "Sure and right."]
    assert re.findall(r'<svg role="img" aria-label="([^"]+)"', page) == captions
    assert re.findall(r"<figcaption>([^<]+)", page) == captions


def test_no_name_is_given_twice(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.panels([Subplot(name, [RunCurve("a", 0, ([1, 2], [1.0, 2.0]), ([2], [1.5]))]) for name in ("one", "two")])
    for caption in ("sure", "long"):
        report.points([Point(0.5, 0.4, 3), Point(0.9, 0.8, 1)], caption, "x", "y")
    names = re.findall(r'\bid="([^"]+)"', page_of(report, tmp_path))
    assert names
    assert len(names) == len(set(names))


def test_a_legend_is_shown_where_there_are_several_curves(tmp_path: Path) -> None:
    for count in (1, 2):
        report = Report("title", "summary")
        report.curves({f"run {number}": ([1, 2], [1.0, 2.0]) for number in range(count)}, "caption")
        assert page_of(report, tmp_path).count("<li>") == (0 if count == 1 else 2)


def test_every_colour_is_there_for_light_and_for_dark(tmp_path: Path) -> None:
    page = page_of(Report("title", "summary"), tmp_path)
    light, dark = page.split("prefers-color-scheme: dark")
    for name, (on_light, on_dark) in COLOURS.items():
        assert f"--{name}: {on_light};" in light
        assert f"--{name}: {on_dark};" in dark


def contrast(one: str, other: str) -> float:
    """As the web's accessibility guidelines define it."""

    def luminance(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", [name for name in COLOURS if name not in ("paper", "line")])
def test_what_is_written_can_be_read(name: str, theme: int) -> None:
    assert contrast(COLOURS[name][theme], COLOURS["paper"][theme]) >= 4.5


def test_nothing_is_fetched_from_anywhere(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.table(["a"], [["b"]])
    report.confusion(["a", "b"], [[0, 0], [0, 0]], "Nothing yet.")
    report.curves({"loss": ([1, 2, 3], [3.0, 2.0, 1.0])}, "caption")
    page = page_of(report, tmp_path)
    assert not re.search(r"https?:|//|url\((?!#)|href=\"(?!#)|@import|<link|<script|<iframe|<img", page)


def test_a_table_shows_text_and_numbers(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.table(["method", "accuracy", "examples"], [["ours", 0.98765, 12345]])
    page = page_of(report, tmp_path)
    assert "<tr><th>method</th><th>accuracy</th><th>examples</th></tr>" in page
    assert '<td>ours</td><td class="number">0.988</td><td class="number">12,345</td>' in page


def test_a_table_without_a_header_has_none(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.table([], [["a", True]])
    page = page_of(report, tmp_path)
    assert "<th>" not in page
    assert "<td>a</td><td>True</td>" in page


def test_a_folded_table_hides_behind_its_line(tmp_path: Path) -> None:
    report = Report("title", "summary")
    report.table(["a"], [["b"]], folded="all settings")
    assert "<details><summary>all settings</summary>" in page_of(report, tmp_path)


def test_a_page_replaces_the_former_one_whole(tmp_path: Path) -> None:
    page_of(Report("first", "summary"), tmp_path)
    page = page_of(Report("second", "summary"), tmp_path)
    assert "first" not in page
    assert page.endswith("</body></html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
