"""The chapters of docs/ideas: their code runs and prints what they show, their figures are there and can be drawn."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
ENGLISH = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("ideas/*.md"))}
CHINESE = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("zh/ideas/*.md"))}
CHAPTERS = [name for name in ENGLISH if name != "index.md"]
PAGES = [DOCS / "ideas" / name for name in CHAPTERS] + [DOCS / "zh" / "ideas" / name for name in CHAPTERS]
MOST_BYTES = 100_000


def samples(text: str) -> list[tuple[str, str]]:
    """Each block of Python, and the block after it: what it prints."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(code, blocks[at + 1][1]) for at, (language, code) in enumerate(blocks) if language == "python"]


def figures_in(text: str) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", text)


def numbers_in(text: str) -> set[str]:
    """Those with a point: of whole numbers some are words in one language and figures in the other."""
    return set(re.findall(r"\d+\.\d+", text))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("figures")


def test_both_languages_have_the_same_chapters() -> None:
    assert list(ENGLISH) == list(CHINESE)
    assert len(CHAPTERS) == 8


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_languages_show_the_same_figures_and_numbers(name: str) -> None:
    english, chinese = ENGLISH[name], CHINESE[name]
    assert [Path(path).name for path in figures_in(english)] == [Path(path).name for path in figures_in(chinese)]
    of_text = [re.sub(r"^```python\n.*?^```\n+^```\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
               for text in (english, chinese)]  # fmt: skip
    assert numbers_in(of_text[0]) == numbers_in(of_text[1])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_the_code_of_a_chapter_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = samples(path.read_text(encoding="utf-8"))
    assert found
    if path.parent.parent.name == "zh":
        found = [sample for sample in found if sample not in samples(ENGLISH[path.name])]
    for code, shown in found:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, path.name, "exec"), {})
        assert said.getvalue().split() == shown.split()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_chapter_has_a_figure_that_is_there_and_small(path: Path, figures: ModuleType) -> None:
    named = [path.parent.joinpath(figure).resolve() for figure in figures_in(path.read_text(encoding="utf-8"))]
    assert f"{path.stem}.svg" in {figure.name for figure in named}
    for figure in named:
        assert figure.stat().st_size < MOST_BYTES
        assert figure.stem in figures.FIGURES


class MadeUpTraining:
    unigram_loss = 4.5

    def __call__(self, name: str, rate: float, seed: int) -> tuple[float, dict[str, float]]:
        return (math.nan, {}) if rate > 0.05 else (4 - rate, {"a": 0.5, "b": 2.0})


def made_up() -> dict[str, object]:
    """What is slow to compute, in the shapes of what is computed."""
    rng = np.random.default_rng(0)
    said = rng.normal(size=(4, 30, 6)) * np.arange(1, 5)[:, None, None]
    return {
        "rotations": lambda deepest: (list(rng.uniform(5, 40, deepest)), list(rng.uniform(0, 1, deepest))),
        "order_probabilities": lambda depths, cuts=(): rng.uniform(size=(len(depths), 30, 5, 2)),
        "mlm_accuracy": lambda depths, kind, seeds: (rng.uniform(size=len(depths)), 100),
        "class_accuracy": lambda depths, shots, draws: rng.uniform(size=(len(depths), draws)),
        "few_shot_scores": lambda shots, draws, asked: rng.uniform(size=(2, len(shots), draws)),
        "elastic_scores": lambda folder: (said, [3, 6, 9, 12], [0] * 30),
        "TinyTraining": MadeUpTraining,
        "run_lengths": lambda kind, rate, seeds: Counter({1: 5, 2: 3, 3: 2, 5: 1}),
    }


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_figure_is_drawn_and_its_numbers_told(
    name: str, figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, stand_in in made_up().items():
        monkeypatch.setattr(figures, part, stand_in)
    chapter = name.removesuffix(".md")
    assert figures.draw(chapter, tmp_path)
    drawn = (tmp_path / f"{chapter}.svg").read_text(encoding="utf-8")
    assert drawn.rstrip().endswith("</svg>")
    assert "<dc:date>" not in drawn


def test_what_is_drawn_twice_is_the_same_file(figures: ModuleType, tmp_path: Path) -> None:
    for folder in ("once", "twice"):
        figures.draw("factorised-embedding", tmp_path / folder)
    assert (tmp_path / "once/factorised-embedding.svg").read_bytes() == (
        tmp_path / "twice/factorised-embedding.svg"
    ).read_bytes()


def test_words_are_counted_where_they_are_hidden(figures: ModuleType) -> None:
    data = importlib.import_module("figure_data")
    assert len(data.passages()) == 30
    assert {len(sentences) for sentences in data.passages()} == {6}
    single = data.run_lengths("word", 0.02, 2)
    assert single[1] / single.total() > 0.9
    assert max(data.run_lengths("ngram", 0.02, 2)) >= 3
