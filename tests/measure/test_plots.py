"""Drawings: what they show, and that they take the page's colours."""

from __future__ import annotations

import itertools
import math
import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.errors import ConfigError
from litebert.measure.plots import (
    COLOURS,
    MachineLimits,
    Point,
    RooflinePoint,
    RunCurve,
    Subplot,
    downsample,
    downsample_extremes,
    draw_confusion,
    draw_points,
    draw_roofline,
    draw_subplot,
    format_compact,
    running_mean,
)

STEPS = list(range(1, 101))
FALLING = [10 - step / 20 for step in STEPS]
HOSTILE = "<script>alert(\"x\")</script> & 'more' $5_x^"


def texts(drawing: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


def paths(drawing: str, colour: str) -> list[str]:
    return re.findall(rf'<path d="([^"]+)"[^>]*style="fill: none; [^"]*stroke: var\(--{colour}\)', drawing)


# --- panels -----------------------------------------------------------------------------------------------------------


def test_a_drawing_has_no_colour_of_its_own() -> None:
    drawing = draw_subplot(Subplot("loss", [RunCurve("a", 0, (STEPS, FALLING), ([50, 100], [8.0, 6.0]))], marks=[40]))
    drawing += draw_confusion(["a", "b"], [[3, 1], [0, 2]], "caption")
    assert not re.findall(r"#[0-9a-fA-F]{6}\b(?!\d)", re.sub(r'(url\(|href=")#\w+', "", drawing))
    assert {*re.findall(r"var\(--(\w+)\)", drawing)} <= set(COLOURS)


def test_every_run_has_its_colour_and_the_seventh_is_dashed() -> None:
    lines = [RunCurve(str(number), number, (STEPS, FALLING)) for number in range(7)]
    drawing = draw_subplot(Subplot("loss", lines))
    for number in range(6):
        assert f"stroke: var(--run{number})" in drawing
    assert drawing.count("stroke-dasharray") == 1


def test_the_last_values_are_written_at_the_end() -> None:
    drawing = draw_subplot(Subplot("loss", [RunCurve("a", 0, (STEPS, FALLING), ([50, 100], [8.0, 6.125]))]))
    assert texts(drawing)[-2:] == ["5.02", "○ 6.12"]


def test_with_several_runs_the_validation_is_what_is_written() -> None:
    lines = [RunCurve("a", 0, (STEPS, FALLING), ([100], [6.0])), RunCurve("b", 1, (STEPS, FALLING))]
    assert sorted(texts(draw_subplot(Subplot("loss", lines)))[-2:]) == ["5.02", "○ 6.00"]


@pytest.mark.parametrize("count", [2, 5, 9])
def test_labels_do_not_touch(count: int) -> None:
    lines = [RunCurve(str(number), number, (STEPS, FALLING)) for number in range(count)]
    drawing = draw_subplot(Subplot("loss", lines))
    heights = sorted(float(y) for y in re.findall(r'font-weight: 700[^>]* y="([\d.]+)"', drawing))
    assert len(heights) == count
    assert all(b - a > 9 for a, b in itertools.pairwise(heights))  # the letters are 8.5 high


def test_shares_are_written_in_percent() -> None:
    drawing = draw_subplot(Subplot("accuracy", [RunCurve("a", 0, (STEPS, [0.5] * 100))], percent=True))
    assert texts(drawing)[-1] == "50.0%"
    assert all(text.endswith("%") for text in texts(drawing) if "." in text)


def test_a_panel_from_zero_starts_there() -> None:
    values = [900.0 + step for step in STEPS]
    labels = [
        texts(draw_subplot(Subplot("rate", [RunCurve("a", 0, (STEPS, values))], from_zero=zero)))
        for zero in (True, False)
    ]
    assert "0" in labels[0]
    assert "0" not in labels[1]


def test_exact_values_are_drawn_once_and_others_twice() -> None:
    noisy = [step % 2 * 1.0 for step in STEPS]
    assert len(paths(draw_subplot(Subplot("x", [RunCurve("a", 0, (STEPS, noisy))])), "run0")) == 2
    assert len(paths(draw_subplot(Subplot("x", [RunCurve("a", 0, (STEPS, noisy))], exact=True)), "run0")) == 1


def test_stairs_have_no_slopes() -> None:
    depths = [3.0] * 50 + [6.0] * 50
    corners = {}
    for stairs in (True, False):
        drawing = draw_subplot(Subplot("depth", [RunCurve("a", 0, (STEPS, depths))], exact=True, stairs=stairs))
        points = [
            tuple(map(float, point)) for point in re.findall(r"[ML] ([\d.]+) ([\d.]+)", paths(drawing, "run0")[0])
        ]
        corners[stairs] = all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(points))
    assert corners == {True: True, False: False}


def test_marks_are_lines_across() -> None:
    line = RunCurve("a", 0, (STEPS, FALLING))
    assert not paths(draw_subplot(Subplot("loss", [line])), "quiet")
    assert len(paths(draw_subplot(Subplot("loss", [line], marks=[30, 60])), "quiet")) == 2


def test_numbers_that_are_none_are_left_out() -> None:
    values = [math.nan if step == 7 else math.inf if step == 9 else 1.0 * step for step in STEPS]
    drawing = draw_subplot(Subplot("loss", [RunCurve("a", 0, (STEPS, values))]))
    assert "nan" not in drawing
    assert "inf" not in drawing


def test_one_wild_step_does_not_flatten_the_curve() -> None:
    wild = [*FALLING[:50], 1e6, *FALLING[51:]]
    assert not any(
        text.endswith("M") for text in texts(draw_subplot(Subplot("loss", [RunCurve("a", 0, (STEPS, wild))])))
    )


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_a_run_without_steps_cannot_be_drawn(values: list[float]) -> None:
    with pytest.raises(ConfigError, match="the run has no steps"):
        draw_subplot(Subplot("loss", [RunCurve("a", 0, (range(len(values)), values))]))


@pytest.mark.parametrize("values", [[1.0], [0.0], [2.0, 2.0], [-1.0, 1.0]])
def test_few_or_equal_values_can_be_drawn(values: list[float]) -> None:
    assert draw_subplot(Subplot("loss", [RunCurve("a", 0, (range(len(values)), values))])).endswith("</svg>\n")


def test_a_long_run_makes_a_small_drawing() -> None:
    steps = range(200_000)
    drawing = draw_subplot(Subplot("loss", [RunCurve("a", 0, (steps, [math.sin(step) for step in steps]))]))
    assert len(drawing) < 40_000


def test_titles_and_labels_are_text() -> None:
    drawing = draw_subplot(Subplot(HOSTILE, [RunCurve(HOSTILE, 0, (STEPS, FALLING))]))
    drawing += draw_confusion([HOSTILE, "$a_b$"], [[3, 1], [0, 2]], HOSTILE)
    assert "<script" not in drawing
    assert "$a_b$" in drawing  # not taken for a formula


def test_names_in_scripts_that_matplotlib_has_no_letters_for_are_drawn_by_the_page() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert texts(draw_confusion(["账单", "物流"], [[3, 1], [0, 2]], "caption"))[:2] == ["账单", "物流"]


# --- what is drawn of a curve -----------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_a_running_mean_stays_between_the_extremes(values: list[float]) -> None:
    means = running_mean(values)
    assert len(means) == len(values)
    assert all(min(values) - 1e-3 <= mean <= max(values) + 1e-3 for mean in means)


def test_a_running_mean_is_the_mean_of_the_neighbours() -> None:
    values = [float(number * number) for number in range(200)]
    means = running_mean(values)  # three on either side
    assert means[100] == pytest.approx(sum(values[97:104]) / 7)
    assert means[0] == pytest.approx(sum(values[:4]) / 4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(2, 40))
def test_thinning_keeps_the_extremes_and_the_order(values: list[float], points: int) -> None:
    steps, kept = downsample_extremes(range(len(values)), values, points)
    assert len(steps) <= max(points, 2)
    assert steps == sorted(steps)
    assert [values[int(step)] for step in steps] == kept
    assert {min(values), max(values)} <= set(kept)


@given(st.integers(1, 300), st.integers(1, 40))
def test_sampling_keeps_both_ends(count: int, points: int) -> None:
    steps, values = downsample(range(count), [float(step) for step in range(count)], points)
    assert (steps[0], steps[-1]) == (0, count - 1)
    assert len(steps) <= points + 1
    assert values == steps


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3.4142, "3.41"), (12, "12"), (0.05, "0.05"), (3e-4, "3e-4"), (-2.5e-5, "-2.5e-5"), (1500, "1.5k"),
     (512_034, "512k"), (2.5e6, "2.5M"), (7e9, "7G"),
     (999.9, "1k"), (999_700, "1M")],
)  # fmt: skip
def test_numbers_fit_a_label(value: float, text: str) -> None:
    assert format_compact(value) == text


@pytest.mark.parametrize(("value", "percent", "text"), [(4, False, "4.00"), (512, False, "512"), (0.82, True, "82.0%")])
def test_padded_numbers_are_as_long_as_their_neighbours(value: float, percent: bool, text: str) -> None:
    assert format_compact(value, percent, padded=True) == text
    assert format_compact(value, percent) == text.replace(".00", "").replace(".0", "")


# --- confusion --------------------------------------------------------------------------------------------------------


def test_a_confusion_matrix_shows_counts_and_shades() -> None:
    drawing = draw_confusion(["cat", "dog"], [[30, 1], [0, 20]], "Truth and answers.")
    assert {"cat", "dog", "30", "1", "20", "truth", "answer"} == set(texts(drawing))
    assert "opacity: 0.67" in drawing  # 20 of 30
    assert 'aria-label="Truth and answers."' in drawing


# --- points -----------------------------------------------------------------------------------------------------------

POINTS = [Point(0.2, 0.1, 5), Point(0.5, 0.6, 1), Point(0.9, 0.9, 20)]


def dots(drawing: str) -> list[tuple[float, float, float]]:
    """Where the dots stand, and how wide they are."""
    found = []
    for outline in re.findall(r'<path d="([^"]+)" style="fill: var\(--run0\)', drawing):
        xs, ys = zip(*((float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", outline)), strict=True)
        found.append(((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, max(xs) - min(xs)))
    return found


def test_points_are_drawn_where_they_are_and_the_larger_the_more_stand_behind() -> None:
    drawing = draw_points(POINTS, "How sure, how right.", "sure", "right")
    found = dots(drawing)
    assert len(found) == len(POINTS)
    scale = (found[2][0] - found[0][0]) / 0.7  # of x
    assert found[1][0] - found[0][0] == pytest.approx(0.3 * scale, abs=0.1)
    height = (found[0][1] - found[2][1]) / 0.8  # of y, which grows downwards
    assert found[0][1] - found[1][1] == pytest.approx(0.5 * height, abs=0.1)
    assert found[1][2] < found[0][2] < found[2][2]
    assert {"sure", "right"} <= set(texts(drawing))
    assert 'aria-label="How sure, how right."' in drawing


def test_the_diagonal_is_drawn_where_it_is_asked_for() -> None:
    assert not paths(draw_points(POINTS, "caption", "x", "y"), "quiet")
    drawing = draw_points(POINTS, "caption", "x", "y", diagonal=True)
    (diagonal,) = paths(drawing, "quiet")
    (x0, y0), (x1, y1) = ((float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", diagonal))
    at = dots(drawing)[2]  # 0.9, 0.9 stands on it
    assert (at[0] - x0) / (x1 - x0) == pytest.approx(0.9, abs=0.01)
    assert (at[1] - y0) / (y1 - y0) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("points", [POINTS[:1], [Point(0.0, 0.0, 1), Point(1.0, 1.0, 1)], [Point(250.0, 1.0, 7)]])
def test_few_points_and_those_at_the_edges_can_be_drawn(points: list[Point]) -> None:
    drawing = draw_points(points, "caption", "x", "y")
    drawn = dots(drawing) or re.findall(r'<use [^>]*style="fill: var\(--run0\)', drawing)  # one shape, used again
    assert len(drawn) == len(points)


def test_points_have_no_colour_of_their_own() -> None:
    drawing = draw_points(POINTS, "caption", "x", "y", diagonal=True)
    assert not re.findall(r"#[0-9a-fA-F]{6}\b(?!\d)", re.sub(r'(url\(|href=")#\w+', "", drawing))
    assert {*re.findall(r"var\(--(\w+)\)", drawing)} <= set(COLOURS)


def test_a_roof_rises_with_the_bytes_and_is_flat_above_the_ridge() -> None:
    roof = MachineLimits(
        bytes_per_second=1e12, operations_per_second={"bfloat16": 1e14}
    )  # they meet at 100 operations per byte
    works = [
        RooflinePoint("theirs", "1", 10.0, 1e12),
        RooflinePoint("ours", "1", 10.0, 1e13),
        RooflinePoint("ours", "2", 1000.0, 1e14),
    ]
    drawing = draw_roofline(works, ["theirs", "ours"], roof, "How far.")
    (outline,) = paths(drawing, "quiet")
    (x0, y0), (x1, y1), (x2, y2) = ((float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", outline))
    assert x0 < x1 < x2
    assert y0 > y1 == y2
    assert (x1 - x0) / (x2 - x0) == pytest.approx(math.log(100 / 5) / math.log(3000 / 5), abs=0.01)
    assert {"operations per byte", "operations per second", "bfloat16: 100T", "2"} <= set(texts(drawing))
    assert {"run0", "run1"} <= {*re.findall(r"var\(--(\w+)\)", drawing)}


def test_every_type_has_its_roof() -> None:
    roof = MachineLimits(1e12, {"bfloat16": 1e14, "float32": 1e13})
    drawing = draw_roofline([RooflinePoint("ours", "1", 10.0, 1e12)], ["ours"], roof, "How far.")
    assert len(paths(drawing, "quiet")) == 2
