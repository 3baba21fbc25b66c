"""`litebert evaluate --episodes`: ways to learn from a few examples, on the same small tasks."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, get_args

import pytest

from litebert.commands.evaluate import Method
from litebert.files import read_json
from litebert.studies.episodes import methods, report
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import litebert, write_csv
from tests.commands.finetuning import small_start
from tests.commands.meta_training import WORDS, make_rows, meta_trained, table_of_classes

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
def two_folds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Classes that nobody has learned from; the second fold's have other examples, of which some are mislabelled."""
    rows = [
        [row | {"label": row["label"].replace("about", name)} for row in make_rows(words, seed=1)]
        for name, words in (("on", WORDS[:5]), ("of", WORDS[5:10]))
    ]
    for row, other in zip(rows[1][::3], rows[1][8::3], strict=False):
        row["text"] = other["text"] + " again"
    folder = tmp_path_factory.mktemp("folds")
    return [write_csv(folder / f"fold{number}.csv", some) for number, some in enumerate(rows, start=1)]


@pytest.fixture(scope="module")
def others(two_folds: list[Path]) -> Path:
    """The first of them."""
    return two_folds[0]


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert litebert("evaluate", "--device", "cpu", "--json", *arguments) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_every_method_is_asked_about_the_same_episodes(
    start: Path, trained: Path, others: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "FINETUNE_STEPS", 2)
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
    for part in ("difference to prototypes", "seconds per episode", ">words</text>", "<svg"):
        assert part in page
    assert "with more examples" not in page


def test_folds_have_a_mean_each_and_differ_by_their_standard_deviation(
    start: Path, two_folds: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--model", start, *SOME, "--methods", "words", "prototypes")
    words, frozen = figures(capsys, *given, "--data", *two_folds)["rows"]
    single = [figures(capsys, *given, "--data", fold)["rows"] for fold in two_folds]
    assert words["by_episode"] == [right for rows in single for right in rows[0]["by_episode"]]
    assert words["folds"] == [rows[0]["accuracy"] for rows in single]
    assert words["folds"][0] > words["folds"][1]
    assert words["spread"] == pytest.approx(statistics.stdev(words["folds"]))
    assert words["better_folds"] == pytest.approx([rows[0]["better"] for rows in single])
    assert words["better_spread"] == pytest.approx(statistics.stdev(words["better_folds"]))
    assert words["margin"] == pytest.approx(1.96 * statistics.stdev(words["by_episode"]) / 12**0.5)
    assert frozen["better_spread"] == 0
    assert single[0][0]["spread"] is None


def test_files_with_other_shots_are_never_averaged(
    start: Path, two_folds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = ("--model", start, "--methods", "words", "prototypes"), tmp_path / "out"
    drawn = ("--episodes", "3-way", "4-shot", "1-shot", "3-queries", "6-episodes", "--data", *two_folds)
    found = figures(capsys, *given, *drawn, "--out", out)
    assert [(row["shape"], row["method"]) for row in found["rows"]] == [
        (shape, method) for shape in ("3-way 1-shot", "3-way 4-shot") for method in ("words", "prototypes")
    ]
    assert all(len(row["folds"]) == 2 and len(row["by_episode"]) == 12 for row in found["rows"])
    assert [row["reference"] for row in found["rows"]] == [False, True] * 2
    one, _, four, _ = found["rows"]
    assert one["accuracy"] < four["accuracy"]
    assert found["episodes"] == 24
    files = [out / f"episodes-{number}.jsonl" for number in (1, 2, 3, 4)]  # both of the first fold, then of the other
    again = figures(capsys, *given, "--episodes", *files)
    assert [row["by_episode"] for row in again["rows"]] == [row["by_episode"] for row in found["rows"]]
    first = figures(capsys, *given, "--episodes", files[0], files[1])
    assert [row["spread"] for row in first["rows"]] == [None] * 4
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("3-way with more examples") == page.count("examples of each class</text>") == 1
    assert page.count("seconds per episode</text>") == 2
    for row in found["rows"]:
        assert " ".join(f"{100 * mean:.1f}" for mean in row["folds"]) in page
        assert (
            f"{100 * row['accuracy']:.1f} ± {100 * row['margin']:.1f}, sd\N{NO-BREAK SPACE}{100 * row['spread']:.1f}"
            in page
        )


def test_relations_of_fewrel_make_episodes(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_rows(WORDS[:3])
    content = {
        row["label"]: [
            {"tokens": one["text"].split() * 6, "h": ["", "", [[0]]], "t": ["", "", [[5]]]}
            for one in rows if one["label"] == row["label"]
        ]
        for row in rows
    }  # fmt: skip
    path = tmp_path / "val_wiki.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    (row,) = figures(capsys, "--model", start, *SOME, "--data", path, "--methods", "words")["rows"]
    assert row["accuracy"] > 0.6


def test_people_see_each_fold(
    start: Path, two_folds: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    given = ("evaluate", "--model", start, *SOME, "5-shot", "--data", *two_folds, "--methods", "words")
    assert litebert(*given) == 0
    shown = capsys.readouterr().out
    for part in (
        "3-way 2-shot, 12 episodes from 2 folds",
        "3-way 5-shot, 12",
        ", sd\N{NO-BREAK SPACE}",
        "each fold, %",
        "deviation",
    ):
        assert part in shown


def test_without_matplotlib_the_figures_are_kept_all_the_same(
    start: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    given = ("--model", start, "--data", others, *SOME, "--methods", "words", "--out", tmp_path / "out")
    assert litebert("evaluate", *given) == 0
    assert "for plots: pip install" in capsys.readouterr().err
    assert read_json(tmp_path / "out" / "evaluation.json")["episodes"] == 6
    assert not (tmp_path / "out" / "report.html").exists()


def test_people_get_a_table(
    start: Path, others: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert litebert("evaluate", "--model", start, "--data", others, *SOME, "--methods", "words", "prototypes") == 0
    shown = capsys.readouterr().out
    for part in ("6 episodes from", "difference to prototypes", "words", "seconds", "other classes differ more"):
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
        (("--episodes", "a.jsonl", "a.jsonl"), "a.jsonl is given twice and would count twice"),
        (("--episodes", "a.jsonl", "--data", "b.csv", "c.csv"), "files of episodes know theirs; give one, or none"),
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
        ((*SOME, "--data", "a.csv", "a.csv"), "a.csv is given twice and would count twice"),
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
