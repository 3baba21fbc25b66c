"""`litebert evaluate --episodes`: ways to learn from a few examples, on the same small tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from litebert.files import read_json
from litebert.recipes import _episode_methods, _episodes
from litebert.recipes.evaluate import Method
from litebert.tokenizer import Tokenizer
from tests.recipes.conftest import litebert, write_csv
from tests.recipes.finetuning import small_start
from tests.recipes.meta_training import WORDS, make_rows, meta_trained, table_of_classes

SOME = ("--episodes", "3-way", "2-shot", "3-queries", "6-episodes")


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table_of_classes(tmp_path_factory)


@pytest.fixture(scope="module")
def trained(start: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return meta_trained(tmp_path_factory, start, data)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that nobody has learned from."""
    rows = [row | {"label": row["label"].replace("about", "on")} for row in make_rows(WORDS[:5], seed=1)]
    return write_csv(tmp_path_factory.mktemp("others") / "others.csv", rows)


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert litebert("evaluate", "--device", "cpu", "--json", *arguments) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_every_method_is_asked_about_the_same_episodes(
    start: Path, trained: Path, others: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_episode_methods, "FINETUNE_STEPS", 2)
    asked = [method for method in get_args(Method) if method != "setfit"]
    found = figures(capsys, "--model", start, trained, "--data", others, *SOME, "--methods", *asked)
    rows = {(row["model"], row["method"]): row for row in found["rows"]}
    both = ("probe", "prototypes", "adapt", "finetune")
    assert set(rows) == {
        ("", "majority"), ("", "words"), (str(trained), "meta"),
        *((str(model), method) for model in (start, trained) for method in both),
    }  # fmt: skip
    assert all(len(row["by_episode"]) == 6 and row["seconds"] > 0 for row in rows.values())
    assert rows["", "majority"]["accuracy"] == pytest.approx(1 / 3)
    assert rows["", "words"]["accuracy"] > 0.6  # every class has a word of its own
    assert rows[str(start), "adapt"]["accuracy"] > 0.5
    assert [row["method"] for row in found["rows"] if row["reference"]] == ["prototypes"]


def test_differences_are_those_from_the_first_models_prototypes(
    start: Path, others: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--model", start, "--data", others, *SOME)
    rows = figures(capsys, *given, "--methods", "majority", "prototypes", "words")["rows"]
    majority, words, frozen = rows
    assert (frozen["method"], frozen["better"], frozen["better_margin"]) == ("prototypes", 0, 0)
    pairs = zip(words["by_episode"], frozen["by_episode"], strict=True)
    assert words["better"] == pytest.approx(sum(a - b for a, b in pairs) / 6)
    assert words["better_margin"] > 0
    alone = figures(capsys, *given, "--methods", "words", "majority")["rows"]
    assert [row["reference"] for row in alone] == [True, False]
    assert alone[1]["by_episode"] == words["by_episode"]
    assert majority["margin"] == 0


def test_a_seed_decides_what_is_drawn(start: Path, others: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--model", start, "--data", others, *SOME, "--methods", "prototypes")
    one, same, other = (
        figures(capsys, *given, "--seed", seed)["rows"][0]["by_episode"] for seed in (0, 0, 1)
    )  # fmt: skip
    assert one == same != other


def test_what_was_drawn_is_kept_and_can_be_asked_again(
    start: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, given = tmp_path / "out", ("--model", start, "--methods", "prototypes", "words")
    found = figures(capsys, *given, "--data", others, *SOME, "--out", out)
    again = figures(capsys, *given, "--episodes", out / "episodes.jsonl")
    assert [row["by_episode"] for row in found["rows"]] == [row["by_episode"] for row in again["rows"]]
    assert read_json(out / "evaluation.json")["rows"] == found["rows"]
    page = (out / "report.html").read_text(encoding="utf-8")
    for part in ("better than prototypes by", "time for an episode", ">words</text>", "<svg"):
        assert part in page


def test_without_matplotlib_the_figures_are_kept_all_the_same(
    start: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_episodes, "find_spec", lambda name: None)
    given = ("--model", start, "--data", others, *SOME, "--methods", "words", "--out", tmp_path / "out")
    assert litebert("evaluate", *given) == 0
    assert "to have them drawn: pip install" in capsys.readouterr().err
    assert read_json(tmp_path / "out" / "evaluation.json")["episodes"] == 6
    assert not (tmp_path / "out" / "report.html").exists()


def test_people_get_a_table(
    start: Path, others: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert litebert("evaluate", "--model", start, "--data", others, *SOME, "--methods", "words", "prototypes") == 0
    shown = capsys.readouterr().out
    for part in ("6 episodes from", "better than prototypes by", "words", "seconds", "other classes differ more"):
        assert part in shown


def test_classes_that_a_model_learned_from_are_refused(
    start: Path, trained: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("evaluate", "--model", start, trained, "--data", data, *SOME) == 2
    assert f"are in what {trained} learned from and in {data}: 'about " in capsys.readouterr().err
    given = ("--model", trained, "--episodes", trained / "test.jsonl", "--methods", "prototypes")
    assert figures(capsys, *given)["episodes"] == 600


def test_setfit_is_asked_for_by_name(start: Path, others: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        import setfit  # noqa: F401
    except ImportError:
        assert litebert("evaluate", "--model", start, "--data", others, *SOME, "--methods", "setfit") == 2
        assert "setfit is not installed" in capsys.readouterr().err
        return
    pytest.skip("it is installed here, and a run takes minutes")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--episodes", "nope.jsonl"), "nope.jsonl: cannot be read (No such file"),
        (("--episodes", "a.jsonl", "b.jsonl"), "episodes=a.jsonl b.jsonl must be one file"),
        (("--episodes", "5-way"), "episodes=5-way are drawn from labelled texts; give --data too"),
        ((), "give at least one --model and one --data file"),
    ],
)
def test_mistakes_are_named(
    flags: tuple[str, ...], problem: str, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("evaluate", "--model", start, *flags) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--episodes", "6-way", "1-shot", "2-queries"), "5 of 5 classes have the 3 different"),
        (("--episodes", "5-way"), "0 of 5 classes have the 16 different"),
        (("--episodes", "2-way", "1-shot", "1-queries", "1-episodes"), "1 episode says nothing about others"),
        ((*SOME, "--methods", "meta"), "no method is left to compare"),
        ((*SOME, "--data", "a.csv", "b.csv"), "2 --data files: episodes are drawn from one"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    flags: tuple[str, ...], problem: str, start: Path, others: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("evaluate", "--model", start, "--data", others, *flags) == 2
    assert problem in capsys.readouterr().err


def test_an_adapted_model_is_refused(
    start: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("adapt", "--model", start, "--examples", others, "--out", tmp_path / "adapted") == 0
    assert litebert("evaluate", "--model", tmp_path / "adapted", "--data", others, *SOME) == 2
    assert "has its classes already; give the model that it was adapted from" in capsys.readouterr().err
