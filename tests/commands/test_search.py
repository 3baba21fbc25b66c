"""`litebert embed`, `litebert search` and similarity through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litebert as library
from litebert.search.index import Index
from litebert.tasks import Similarity
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import litebert, make_examples, write_csv
from tests.commands.finetuning import command, finished, small_start, write_jsonl
from tests.conftest import PROSE, peer


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def pairs(path: Path, seed: int, count: int = 24) -> Path:
    """Two texts are alike if they are of one class."""
    examples = make_examples(count, seed)
    both = zip(examples[::2], examples[1::2], strict=True)
    rows = [{"text_a": a["text"], "text_b": b["text"], "label": float(a["label"] == b["label"])} for a, b in both]
    rows += [{"text_a": a["text"], "text_b": a["text"], "label": 1.0} for a in examples[:4]]
    return write_jsonl(path, rows)


def test_embed_writes_what_embed_gives(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join([PROSE[0], "", PROSE[1]]) + "\n", encoding="utf-8")
    assert litebert("embed", "--model", start, "--input", texts, "--output", tmp_path / "v.npy") == 0
    wanted = library.load(start).embed(PROSE[:2])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, atol=1e-5)
    capsys.readouterr()
    assert litebert("embed", "--model", start, "--input", texts, "--size", 8, "--storage", "int8") == 0
    rows = np.array(lines(capsys.readouterr().out))
    assert rows.shape == (2, 8)
    assert np.abs(rows).max(axis=1).tolist() == [127, 127]
    table = write_csv(tmp_path / "t.csv", [{"question": PROSE[0], "n": "1"}])
    flags = ("--columns", "text=question", "--storage", "binary", "--output", tmp_path / "b.npy")
    assert litebert("embed", "--model", start, "--input", table, *flags) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.packbits(wanted[:1] > 0, axis=1))


def test_search_builds_adds_and_answers(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, some in (("a.txt", PROSE[:5]), ("b.txt", PROSE[5:9])):
        (tmp_path / name).write_text("\n".join(some) + "\n", encoding="utf-8")
    index = ("search", "--index", tmp_path / "index")
    assert litebert(*index, "--model", start, "--add", tmp_path / "a.txt", "--storage", "int8") == 0
    assert litebert(*index, "--add", tmp_path / "b.txt", "--query", PROSE[7], "--top", 2) == 0
    (answer,) = lines(capsys.readouterr().out)
    assert answer["query"] == PROSE[7]
    assert answer["results"][0]["index"] == 7
    assert answer["results"][0]["text"] == PROSE[7]
    assert answer["results"][0]["score"] == pytest.approx(1, abs=0.01)
    assert len(answer["results"]) == 2
    (tmp_path / "q.txt").write_text("\n".join(PROSE[2:4]), encoding="utf-8")
    assert litebert(*index, "--input", tmp_path / "q.txt", "--top", 1) == 0
    assert [one["results"][0]["index"] for one in lines(capsys.readouterr().out)] == [2, 3]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("search", "--index", "{}/none", "--query", "x"), "is no index"),
        (("search", "--index", "{}/none"), "nothing to do: give --add"),
        (("search", "--index", "{}/none", "--add", "{}/absent.txt"), "absent.txt: no such file"),
        (("search", "--index", "{}/none", "--query", "x", "--top", "0"), "top=0 must be at least 1"),
        (("embed", "--output", "vectors.csv"), "must end in .npy"),
        (("embed", "--size", "0"), "size=0 must be at least 1"),
        (("embed", "--input", "{}/absent.txt"), "absent.txt"),
        (("finetune", "--task", "classify", "--loss", "simcse", "--train", "t", "--out", "o"), "loss is for --task"),
    ],
)
def test_mistakes_give_one_line(
    flags: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*(flag.format(tmp_path) for flag in flags)) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_exact_does_without_the_graph_that_approximate_made(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("usearch")
    (tmp_path / "a.txt").write_text("\n".join(PROSE[:5]), encoding="utf-8")
    index = ("search", "--index", tmp_path / "index")
    assert litebert(*index, "--model", start, "--add", tmp_path / "a.txt", "--approximate", "--query", PROSE[3]) == 0
    assert lines(capsys.readouterr().out)[0]["results"][0]["index"] == 3
    (graph,) = (tmp_path / "index").glob("*.usearch")
    graph.write_bytes(b"no graph")
    assert litebert(*index, "--query", PROSE[3]) == 2
    err = capsys.readouterr().err
    assert f"{graph.name}: is damaged" in err
    assert len(err.strip().splitlines()) == 1
    assert litebert(*index, "--query", PROSE[3], "--exact") == 0
    assert lines(capsys.readouterr().out)[0]["results"][0]["index"] == 3


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--add", "{}/a.txt", "{}/absent.txt"), "absent.txt: no such file"),
        (("--add", "{}/a.txt", "{}/bad.csv"), "no column 'text'"),
        (("--add", "{}/empty.txt"), "empty.txt: no text;"),
        (("--add", "{}/blank.csv"), "blank.csv: no text to add"),
        (("--add", "{}/a.txt", "--input", "{}/absent.txt"), "absent.txt"),
    ],
)
def test_a_command_that_fails_changes_nothing(
    flags: tuple[str, ...], complaint: str, old: bool, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(PROSE[:5]), encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    write_csv(tmp_path / "bad.csv", [{"wrong": "1", "columns": "2"}])
    write_csv(tmp_path / "blank.csv", [{"text": " ", "n": "2"}])
    index = ("search", "--index", tmp_path / "index", "--model", start)
    if old:
        assert litebert(*index, "--add", tmp_path / "a.txt") == 0
    capsys.readouterr()
    assert litebert(*index, *(flag.format(tmp_path) for flag in flags)) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    if old:
        assert len(Index.open(tmp_path / "index")) == 5
    else:
        assert not (tmp_path / "index").exists()
        assert litebert(*index, "--add", tmp_path / "a.txt", "--size", 8) == 0


def test_settings_of_an_index_stay(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("\n".join(PROSE[:5]), encoding="utf-8")
    index = ("search", "--index", tmp_path / "index", "--add", tmp_path / "a.txt")
    assert litebert(*index, "--model", start, "--size", 8) == 0
    assert litebert(*index, "--size", 16) == 2
    assert "size is decided when an index is made" in capsys.readouterr().err


def test_finetune_evaluate_and_predict(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = pairs(tmp_path / "train.jsonl", 0, 60), pairs(tmp_path / "test.jsonl", 1)
    flags = ("--task", "similarity", "--test", test, "--epochs", 6, "--learning-rate", 2e-3, "--sizes", 8)
    assert litebert(*command(start, train, tmp_path / "out", *flags)) == 0
    capsys.readouterr()
    assert litebert("evaluate", "--model", tmp_path / "out", "--data", test, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "accuracy"
    assert found["metrics"] == pytest.approx(finished(tmp_path / "out")["test"])
    assert "accuracy, 8" in found["metrics"]
    model = library.load(tmp_path / "out")
    assert isinstance(model.task, Similarity)
    assert model.task.threshold != 0.5  # it was tuned and kept
    question = tmp_path / "question.jsonl"
    question.write_text(json.dumps(["rain on the roof", "thunder"]) + "\n", encoding="utf-8")
    assert litebert("predict", "--model", tmp_path / "out", "--input", test) == 0
    answers = lines(capsys.readouterr().out)
    assert set(answers[0]) == {"score"}
    texts = json.loads(test.read_text(encoding="utf-8").splitlines()[0])
    assert answers[0]["score"] == pytest.approx(model.similarity(texts["text_a"], texts["text_b"]), abs=1e-5)
    assert litebert("evaluate", "--model", tmp_path / "out", "--data", test, "--out", tmp_path / "page") == 0
    assert "vectors" not in (tmp_path / "page" / "answers.jsonl").read_text(encoding="utf-8")


def test_a_run_says_whether_it_made_things_worse(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, valid = pairs(tmp_path / "train.jsonl", 0, 60), pairs(tmp_path / "valid.jsonl", 1)
    flags = ("--task", "similarity", "--valid", valid)
    assert litebert(*command(start, train, tmp_path / "out", *flags, "--epochs", 6, "--learning-rate", 2e-3)) == 0
    assert "worse" not in capsys.readouterr().err
    taught = finished(tmp_path / "out")
    assert taught["before"] <= taught["metrics"][taught["metric"]]
    assert (
        litebert(*command(tmp_path / "out", train, tmp_path / "worse", *flags, "--epochs", 1, "--learning-rate", 1))
        == 0
    )
    said = capsys.readouterr().err
    assert finished(tmp_path / "worse")["before"] == pytest.approx(taught["metrics"][taught["metric"]], abs=0.05)
    assert "worse than what it began with" in said
    assert "such as 2e-01" in said


def test_an_index_is_not_made_among_other_things(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("rain on the roof\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text("{}")
    flags = ("--index", tmp_path / "models", "--model", start, "--add", tmp_path / "texts.txt")
    assert litebert("search", *flags) == 2
    assert "holds other files (config.json)" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "models").iterdir()] == ["config.json"]


def test_any_model_can_be_asked_for_similarity(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text_a": PROSE[i], "text_b": PROSE[i + 1], "score": str(i)} for i in range(5)]
    data = write_csv(tmp_path / "sts.csv", rows)
    assert litebert("evaluate", "--model", start, "--task", "similarity", "--data", data, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    model = library.load(start)
    cosines = [model.similarity(row["text_a"], row["text_b"]) for row in rows]
    order = np.argsort(np.argsort(cosines))
    assert found["metrics"]["spearman"] == pytest.approx(np.corrcoef(order, range(5))[0, 1], abs=1e-6)


def test_simcse_sets_dropout_and_refuses_to_go_without(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(PROSE[:11]), encoding="utf-8")
    run = command(start, plain, tmp_path / "out", "--task", "similarity", "--epochs", 1)
    assert litebert(*run, "--dropout", 0) == 2
    assert "dropout=0" in capsys.readouterr().err
    assert litebert(*run, "--freeze-encoder") == 2
    assert "freeze_encoder reads without it" in capsys.readouterr().err
    train = pairs(tmp_path / "train.jsonl", 0)
    mixed = command(start, train, tmp_path / "mixed", "--task", "similarity", "--mix", f"similarity={plain}")
    assert litebert(*mixed, "--dropout", 0) == 2
    assert "dropout=0" in capsys.readouterr().err
    assert litebert(*run) == 0
    assert "simcse: dropout is 0.1 in this run" in capsys.readouterr().err
    assert library.load(tmp_path / "out").config.hidden_dropout_prob == 0.1
    assert "spread" in finished(tmp_path / "out")["metrics"]


@pytest.mark.parametrize("flags", [("--pooling", "max"), ("--last-passes", 2)])
def test_pooling_and_passes_are_kept(flags: tuple[object, ...], start: Path, tmp_path: Path) -> None:
    train = pairs(tmp_path / "train.jsonl", 0)
    assert litebert(*command(start, train, tmp_path / "out", "--task", "similarity", "--epochs", 1, *flags)) == 0
    after = library.load(tmp_path / "out").sentence_map
    assert after is not None
    assert (after.pooling, after.passes) == (("max", 1) if "max" in flags else ("mean", 2))
