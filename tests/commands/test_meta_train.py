"""`litebert meta-train`: many classes in, a model that learns new ones faster out."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import get_args

import pytest
import torch

import litebert as package
from litebert.data.episodes import EpisodeFile
from litebert.files import read_json
from litebert.meta.settings import Algorithm
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import UNUSUAL, litebert, write_csv
from tests.commands.finetuning import finished, logged, small_start, weights
from tests.commands.meta_training import WORDS, command, make_rows, meta_trained, table_of_classes


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table_of_classes(tmp_path_factory)


@pytest.fixture(scope="module")
def trained(start: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return meta_trained(tmp_path_factory, start, data)


def labels_of(data: Path, episodes: Path) -> set[str]:
    """The classes that episodes ask about."""
    labels = [line.rpartition(",")[2] for line in data.read_text(encoding="utf-8").splitlines()[1:]]
    return {labels[row] for episode in EpisodeFile.read(episodes).episodes for rows in episode.rows() for row in rows}


def test_the_result_is_a_model_like_any_other(trained: Path, tmp_path: Path) -> None:
    model = package.load(trained)
    assert model.task is None
    assert model.embed(["the rain"]).shape == (1, model.config.hidden_size)
    few = write_csv(tmp_path / "few.csv", make_rows(WORDS[:2]))
    assert litebert("adapt", "--model", trained, "--examples", few, "--out", tmp_path / "adapted") == 0
    assert package.load(tmp_path / "adapted").predict(["the rain"])[0].label in ("about rain", "about butter")


def test_what_is_learned_from_chosen_by_and_tested_on_are_different_classes(trained: Path, data: Path) -> None:
    tested = labels_of(data, trained / "test.jsonl")
    seen = set(read_json(trained / "meta.json")["classes"])
    assert len(seen) == 12
    assert len(tested) == 3
    assert not tested & seen


def test_validations_choose_the_best_step(trained: Path) -> None:
    scores = logged(trained, "validation_accuracy")
    assert list(scores) == [0, 3, 6]
    best = finished(trained)
    assert best["start"] == scores.pop(0)
    assert (best["accuracy"], best["step"]) == max((score, step) for step, score in scores.items())
    assert {"loss", "accuracy", "gradient_norm", "learning_rate"} <= set(
        json.loads((trained / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[1])
    )


def test_it_says_what_it_does_and_what_comes_next(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*command(start, data, tmp_path / "out")) == 0
    told = capsys.readouterr().err
    for part in (
        "proto: 9 training, 3 validation, 3 test classes; 6 steps on cpu",
        "accuracy on validation classes: ",
        f"next: litebert evaluate --model {start} {tmp_path / 'out'} --episodes",
    ):  # fmt: skip
        assert part in told
    assert read_json(tmp_path / "out" / "run.json")["command"] == "meta-train"
    assert litebert(*command(start, data, tmp_path / "out")) == 2
    assert "already holds a meta-trained model" in capsys.readouterr().err
    assert litebert(*command(start, data, tmp_path / "out"), "--resume") == 0
    assert "nothing to resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ("--distance", "squared"),
        ("--episodes", "3-way", "1-shot", "2-queries", "5-episodes"),
        ("--batch-size", 1),
        ("--length", 8),
        ("--learning-rate", 2e-3),
        ("--steps", 5),
        ("--validate-every", 5, "--steps", 5),
        ("--seed", 1),
        ("--precision", UNUSUAL),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_every_setting_changes_what_is_learned(
    flags: tuple[object, ...], start: Path, data: Path, trained: Path, tmp_path: Path
) -> None:
    assert litebert(*command(start, data, tmp_path, *flags)) == 0
    assert weights(tmp_path) != weights(trained)


def test_every_algorithm_learns_something_else(start: Path, data: Path, tmp_path: Path) -> None:
    for algorithm in get_args(Algorithm):
        assert litebert(*command(start, data, tmp_path / algorithm, "--algorithm", algorithm, "--steps", 2)) == 0
        assert read_json(tmp_path / algorithm / "meta.json")["algorithm"] == algorithm
    assert len({weights(tmp_path / algorithm) for algorithm in get_args(Algorithm)}) == len(get_args(Algorithm))


def test_settings_of_inner_steps_change_what_is_learned(start: Path, data: Path, tmp_path: Path) -> None:
    found = set()
    for number, flags in enumerate([(), ("--inner-steps", 1), ("--inner-rate", 0.02)]):
        out = tmp_path / str(number)
        assert litebert(*command(start, data, out, "--algorithm", "anil", "--steps", 3, *flags)) == 0
        found.add(weights(out))
    assert len(found) == 3


def test_the_same_settings_give_the_same_weights(start: Path, data: Path, trained: Path, tmp_path: Path) -> None:
    assert litebert(*command(start, data, tmp_path / "out")) == 0
    assert weights(tmp_path / "out") == weights(trained)


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_for_each_purpose_must_not_share_a_class(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, valid, test = (
        write_csv(tmp_path / f"{name}.csv", make_rows(words))
        for name, words in (("train", WORDS[:5]), ("valid", WORDS[5:8]), ("test", WORDS[7:11]))
    )
    given = command(start, train, tmp_path / "out", "--valid", valid)
    assert litebert(*given, "--test", test) == 2
    assert f"1 class(es) are in --valid {valid} and in --test {test}: 'about thunder'" in capsys.readouterr().err
    assert litebert(*command(start, train, tmp_path / "out", "--valid", train)) == 2
    assert f"5 class(es) are in --data {train} and in --valid {train}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert litebert(*given) == 0
    assert not (tmp_path / "out" / "test.jsonl").exists()
    assert set(read_json(tmp_path / "out" / "meta.json")["classes"]) == {f"about {word}" for word in WORDS[:8]}


def test_what_was_learned_from_before_counts_too(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*command(trained, data, tmp_path / "out", "--seed", 1)) == 2
    assert f"are in what {trained} learned from and in valid: 'about " in capsys.readouterr().err
    train, valid = (
        write_csv(tmp_path / f"{name}.csv", [row | {"label": f"{name} {row['label']}"} for row in make_rows(WORDS[:3])])
        for name in ("train", "valid")
    )
    assert litebert(*command(trained, train, tmp_path / "out", "--valid", valid)) == 0
    before, after = (set(read_json(out / "meta.json")["classes"]) for out in (trained, tmp_path / "out"))
    assert before < after
    assert len(after) == len(before) + 6


def test_all_of_a_test_file_may_be_asked_about(start: Path, tmp_path: Path) -> None:
    train, valid, test = (
        write_csv(tmp_path / f"{name}.csv", make_rows(words))
        for name, words in (("train", WORDS[:5]), ("valid", WORDS[5:8]), ("test", WORDS[8:11]))
    )
    assert litebert(*command(start, train, tmp_path / "out", "--valid", valid, "--test", test)) == 0
    assert labels_of(test, tmp_path / "out" / "test.jsonl") == {f"about {word}" for word in WORDS[8:11]}


def test_plain_text_gives_tasks_without_labels(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of fifteen words three are tested on; fillers stand in too many lines."""
    lines = [row["text"] for row in make_rows()] + [f"{number} is so" for number in range(100)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "out"
    assert litebert(*command(start, tmp_path / "text.txt", out, "--algorithm", "anil")) == 0
    assert "9 training, 3 validation, 3 test classes" in capsys.readouterr().err
    meta = read_json(out / "meta.json")
    assert (len(meta["words"]), meta["classes"]) == (12, [])  # words are nobody's labels
    given = ("--model", out, "--episodes", out / "test.jsonl", "--methods", "prototypes", "--json")
    assert litebert("evaluate", *given) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 600


def test_columns_and_bad_rows_are_as_everywhere(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"said": row["text"], "kind": row["label"]} for row in make_rows()]
    data = write_csv(tmp_path / "few.csv", [*rows, {"said": "", "kind": "about rain"}])
    given = command(start, data, tmp_path / "out", "--columns", "text=said", "label=kind")
    assert litebert(*given) == 2
    assert "no text in column 'text'" in capsys.readouterr().err
    assert litebert(*given, "--skip-bad") == 0
    assert "1 rows left out" in capsys.readouterr().err
    assert EpisodeFile.read(tmp_path / "out" / "test.jsonl").columns == ("text=said", "label=kind")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--episodes", "4-way", "1-shot", "2-queries"), "the classes of valid: 3 of 3 classes have the 3 different"),
        (("--episodes", "2-way", "7-shot", "2-queries"), "the classes of train: 0 of 9 classes have the 9 different"),
        (("--episodes", "lots"), "episodes='lots' cannot be read"),
        (("--test", "t.csv"), "test=t.csv goes with --valid"),
        (("--length", 65), "length=65 must fit the model: 8 or more, and 64 or less"),
        (("--inner-rate", 0), "inner_rate=0.0 must be above 0"),
        (("--inner-steps", 0), "inner_steps=0 must be at least 1"),
        (("--learning-rate", 0), "learning_rate=0.0 must be above 0"),
        (("--save-every", "often"), "save_every='often' cannot be read"),
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(
    flags: tuple[object, ...], problem: str, start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*command(start, data, tmp_path / "out", *flags)) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pairs_are_refused(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_csv(tmp_path / "pairs.csv", [{"text_a": "rain", "text_b": "snow", "label": "a"}])
    assert litebert(*command(start, data, tmp_path / "out")) == 2
    assert "line 2: a pair of texts; episodes are of single ones" in capsys.readouterr().err


# --- resume -----------------------------------------------------------------------------------------------------------

LONG = ("--steps", 48, "--save-every", 2, "--validate-every", 8, "--batch-size", 1, "--algorithm", "anil")


def run_alone(*arguments: object) -> None:
    with Path(os.devnull).open("w") as quiet, contextlib.redirect_stderr(quiet):
        torch.set_num_threads(1)
        os._exit(litebert(*arguments))


@pytest.fixture(scope="module")
def untouched(start: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("untouched") / "whole"
    assert litebert(*command(start, data, out, *LONG)) == 0
    return out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_run_that_was_ended_resumes_to_the_same_bits(
    number: int, code: int, start: Path, data: Path, untouched: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = multiprocessing.get_context("fork").Process(target=run_alone, args=command(start, data, out, *LONG))
    process.start()
    latest = out / "checkpoints" / "latest"
    while not latest.exists() or latest.read_text() < "step-00000010":  # after the first validation
        assert process.is_alive()
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == code
    assert not (out / "finished.json").exists()
    assert litebert(*command(start, data, out, *LONG), "--resume") == 0
    assert weights(out) == weights(untouched)
    assert read_json(out / "meta.json") == read_json(untouched / "meta.json")
    assert logged(out, "loss") == logged(untouched, "loss")
    assert {**finished(out), "seconds": 0} == {**finished(untouched), "seconds": 0}


def test_a_run_is_not_resumed_with_other_settings_or_data(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = write_csv(tmp_path / "few.csv", make_rows()), tmp_path / "out"
    assert litebert(*command(start, data, out, "--save-every", 2)) == 0
    (out / "finished.json").unlink()
    assert litebert(*command(start, data, out, "--save-every", 2), "--resume", "--seed", 1) == 2
    assert "seed" in capsys.readouterr().err
    write_csv(data, make_rows(seed=1))
    assert litebert(*command(start, data, out, "--save-every", 2), "--resume") == 2
    assert "content of" in capsys.readouterr().err
