"""What somebody reached, drawn."""

from __future__ import annotations

import itertools
import re

from litebert.measure.score_plots import Score, draw_growth, draw_scores
from tests.measure.test_plots import paths, texts


def places(drawing: str) -> dict[str, tuple[float, float]]:
    """Where texts stand, to the right and downwards."""
    found = re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)</text>', drawing)
    return {text: (float(x), float(y)) for x, y, text in found}


def test_scores_stand_by_their_time_with_their_names_and_margins() -> None:
    scores = [Score("slow_$5_x^", 0, 10.0, 0.9, 0.02), Score("quick", 1, 1e-9, 0.5, 0.1)]
    drawing = draw_scores(scores, "caption", "time", "right")
    assert {"slow_$5_x^", "quick", "time", "right", "1 ms", "10 s"} <= set(texts(drawing))
    assert paths(drawing, "run0")
    assert paths(drawing, "run1")


def test_names_of_scores_that_lie_together_are_moved_apart() -> None:
    scores = [Score("one", 0, 1.0, 0.5, 0.1), Score("two", 1, 1.1, 0.501, 0.1), Score("slow", 1, 100.0, 0.5, 0.1)]
    drawing = draw_scores(scores, "caption", "time", "right")
    height = {name: y for name, (_, y) in places(drawing).items()}
    assert height["one"] - height["two"] > 8
    assert height["one"] == height["slow"]


def test_names_stand_beside_all_dots_of_a_crowd() -> None:
    scores = [Score("one", 0, 1.0, 0.5, 0.1), Score("two", 0, 5.0, 0.9, 0.1), Score("slow", 0, 1000.0, 0.5, 0.1)]
    where = places(draw_scores(scores, "caption", "time", "right"))
    assert where["one"][0] == where["two"][0] < where["slow"][0]
    assert where["two"][1] < where["one"][1]


def test_what_grows_is_a_line_with_margins_and_a_name() -> None:
    scores = [
        Score(name, number, cost, 0.5 + 0.1 * number + 0.02 * cost, 0.03)
        for cost in (5, 1, 10)
        for number, name in enumerate(("words_$5_x^", "adapt"))
    ]
    drawing = draw_growth(scores, "caption", "examples", "right")
    assert {"words_$5_x^", "adapt", "1", "5", "10", "examples", "right"} <= set(texts(drawing))
    for colour in ("run0", "run1"):
        margins = [path for path in paths(drawing, colour) if re.fullmatch(r"M ([\d.]+) [\d.]+ \nL \1 [\d.]+ \n", path)]
        assert len(margins) == 3
        (line,) = (path for path in paths(drawing, colour) if path.count("L") == 2)
        points = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", line)]
        assert points == sorted(points)  # from the few to the many
        assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    where = places(drawing)
    assert where["adapt"][1] < where["words_$5_x^"][1]  # the better one above


def test_names_of_many_lines_do_not_lie_on_each_other() -> None:
    scores = [Score(f"line {number}", number, cost, 0.5, 0.0) for number in range(15) for cost in (1, 2)]
    drawing = draw_growth(scores, "caption", "examples", "right")
    heights = sorted(y for name, (_, y) in places(drawing).items() if name.startswith("line"))
    assert len(heights) == 15
    assert min(high - low for low, high in itertools.pairwise(heights)) > 9
