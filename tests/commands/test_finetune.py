"""Fine-tuning through the command line: every task, every strategy, sweeps, and what survives a kill -9."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import litebert as package
from litebert.inference import Model
from litebert.studies.demo.data import write_questions, write_tagged
from litebert.tasks import TASKS
from litebert.tasks.answer import AnswerOutput
from litebert.tasks.choose import ChooseOutput
from litebert.tasks.classify import ClassifyOutput
from litebert.tasks.multilabel import MultilabelOutput
from litebert.tasks.regress import RegressOutput
from litebert.tasks.similarity import SimilarOutput
from litebert.tasks.tag import TagOutput
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import UNUSUAL, WORDS, litebert, make_examples, once, write_csv
from tests.commands.finetuning import (
    EXAMPLES,
    FILES,
    command,
    finished,
    logged,
    small_examples,
    small_start,
    taught_once,
    weights,
    write_choices,
    write_jsonl,
)
from tests.conftest import peer

LONG = " ".join(example["text"] for example in make_examples(67))  # 402 words


@pytest.fixture(scope="session")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_examples(tmp_path_factory)


@pytest.fixture(scope="session")
def plain(start: Path, examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without any flag, for others to be compared with."""
    return taught_once(tmp_path_factory, "small-plain", start, examples)


# --- every task -------------------------------------------------------------------------------------------------------


OUTPUTS = {
    "classify": ClassifyOutput,
    "multilabel": MultilabelOutput,
    "regress": RegressOutput,
    "tag": TagOutput,
    "answer": AnswerOutput,
    "choose": ChooseOutput,
    "similarity": SimilarOutput,
}
ASKED: dict[str, list[Any]] = {
    "answer": [{"question": "where to", "context": "the parcel went to oslo"}],
    "choose": [{"question": "which one", "options": ["rain", "eggs", "train"]}],
    "similarity": [["the rain", "eggs and butter"], {"text_a": "a train", "text_b": "the bridge"}],
}


@pytest.fixture(scope="module", params=list(FILES))
def taught(request: pytest.FixtureRequest, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A task, and a folder with files of it and a model that was taught it."""
    task = request.param

    def build(folder: Path) -> None:
        train, valid, test = (FILES[task](folder / name, seed) for seed, name in enumerate(("train", "valid", "test")))
        flags = ("--task", task, "--valid", valid, "--test", test, "--epochs", 3, "--learning-rate", 2e-3)
        assert litebert(*command(start, train, folder / "out", *flags)) == 0

    return task, once(tmp_path_factory, f"taught-{task}", build)


def evaluated(capsys: pytest.CaptureFixture[str], model: Path, data: Path) -> dict[str, Any]:
    capsys.readouterr()
    assert litebert("evaluate", "--model", model, "--data", data, "--json") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_every_task_is_in_these_tests() -> None:
    elsewhere = {"mask", "translate"}  # which pre-training teaches; which `test_translate.py` is about
    assert set(FILES) == set(OUTPUTS) == set(TASKS) - elsewhere


def test_a_finished_run_says_what_it_came_to(taught: tuple[str, Path]) -> None:
    found = finished(taught[1] / "out")
    names = {"metric", "metrics", "epoch", "seconds", "test", "baseline", "rate", "collapsed", "decisive", "before"}
    assert set(found) == names
    assert (found["before"] is None) == (taught[0] != "similarity")
    assert found["metric"] == TASKS[taught[0]].metric  # type: ignore[attr-defined]
    assert found["metric"] in found["metrics"]
    assert 1 <= found["epoch"] <= 3
    assert found["baseline"]


def test_the_best_epoch_is_what_is_saved(taught: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    task, folder = taught
    found = finished(folder / "out")
    scores = logged(folder / "out", f"validation_{found['metric']}")
    assert max(scores.values()) == found["metrics"][found["metric"]]
    assert scores[found["epoch"] * max(scores) // 3] == max(scores.values())
    measured = evaluated(capsys, folder / "out", next(folder.glob("valid.*")))
    assert measured["task"] == task
    assert measured["metrics"] == pytest.approx(found["metrics"], rel=1e-3)


def test_the_test_file_gets_what_evaluate_says_of_it(
    taught: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = finished(taught[1] / "out")
    measured = evaluated(capsys, taught[1] / "out", next(taught[1].glob("test.*")))
    assert found["test"] == pytest.approx(measured["metrics"], rel=1e-4)
    assert found["baseline"] == measured["baseline"]


def test_the_saved_folder_answers_with_records_of_its_task(taught: tuple[str, Path], tmp_path: Path) -> None:
    task, folder = taught
    asked = ASKED.get(task, ["the rain", "eggs and butter"])
    answers = package.load(folder / "out").predict(asked)
    assert [type(answer) for answer in answers] == [OUTPUTS[task]] * len(asked)
    (tmp_path / "in.txt").write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in asked))
    out = tmp_path / "out.jsonl"
    assert litebert("predict", "--model", folder / "out", "--input", tmp_path / "in.txt", "--output", out) == 0
    names = {field.name for field in fields(OUTPUTS[task]) if field.metadata.get("serialized", True)}
    assert [set(json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()] == [names] * len(asked)


def write_long(task: str, path: Path) -> Path:
    """Examples of which every second one has a text of 400 words."""
    if task == "tag":
        lines = [f"{word} {'B-food' if word in WORDS['food'] else 'O'}" for word in LONG.split()]
        path.write_text("\n".join([*lines[:20], "", *lines, "", *lines[20:40]]) + "\n")
    elif task == "answer":
        story = LONG + " . it will be sent to oslo ."
        asked = [{"question": "where to", "context": text, "answer": "oslo"} for text in (story, story[-40:])]
        write_jsonl(path, [*asked, asked[0] | {"question": LONG}] * 2)
    elif task == "choose":
        row = {"question": "which one", "options": ["rain", LONG], "label": 0}
        write_jsonl(path, [row, row | {"text": LONG}] * 3)
    else:
        both: dict[str, list[Any]] = {"classify": ["a", "b"], "multilabel": [["a"], ["b", "a"]], "regress": [1, 2]}
        labels = both[task]
        rows = [{"text": text, "label": labels[n]} for n, text in enumerate(("the rain", LONG))]
        pair = {"text": LONG, "text_b": LONG, "label": labels[0]}
        write_jsonl(path, [*rows, pair] * 3)
    return path


@pytest.mark.parametrize("task", [task for task in FILES if task != "similarity"])  # whose vectors are of one window
def test_long_texts_are_read_in_windows_in_every_task(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    assert len(LONG.split()) > 400
    train = write_long(task, tmp_path / ("t.conll" if task == "tag" else "t.jsonl"))
    flags = ("--task", task, "--valid", train, "--epochs", 1, "--batch-size", 32)
    assert litebert(*command(start, train, tmp_path / "out", *flags)) == 0
    assert "longer texts are split into windows" in capsys.readouterr().err
    assert evaluated(capsys, tmp_path / "out", train)["examples"] > 0


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "columns"),
    [("sentence,kind\n", ("text=sentence", "label=kind")), ("", ("text=1", "label=2"))],
    ids=["by name", "by number"],
)
def test_columns_say_what_stands_where(
    start: Path, examples: Path, plain: Path, tmp_path: Path, header: str, columns: tuple[str, ...]
) -> None:
    train = tmp_path / "t.csv"
    train.write_text(header + examples.read_text().partition("\n")[2])
    assert litebert(*command(start, train, tmp_path / "out", "--columns", *columns)) == 0
    assert weights(tmp_path / "out") == weights(plain)


def with_bad_rows(examples: Path, path: Path) -> Path:
    header, *rows = examples.read_text().splitlines()
    path.write_text("\n".join([header, rows[0], "no label here,", *rows[1:], "one,two,three"]) + "\n")
    return path


def test_bad_rows_can_be_left_out_and_are_listed(
    start: Path, examples: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, out = with_bad_rows(examples, tmp_path / "t.csv"), tmp_path / "out"
    assert litebert(*command(start, train, out, "--skip-bad")) == 0
    assert f"2 left out, the first: {train}, line {EXAMPLES + 3}" in capsys.readouterr().err
    listed = (out / "skipped.txt").read_text().splitlines()
    assert sorted(line.partition(": ")[0] for line in listed) == [f"{train}, line {n}" for n in (EXAMPLES + 3, 3)]
    assert weights(out) == weights(plain)


def test_bad_rows_of_a_mixed_task_are_listed_too(start: Path, examples: Path, tmp_path: Path) -> None:
    other = with_bad_rows(examples, tmp_path / "other.csv")
    flags = ("--mix", f"classify={other}", "--skip-bad", "--epochs", 1)
    assert litebert(*command(start, examples, tmp_path / "out", *flags)) == 0
    assert f"{other}, line 3" in (tmp_path / "out" / "skipped.txt").read_text()


def test_the_length_of_a_taught_model_is_that_of_the_one_it_came_from(start: Path, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "t.csv", [{"text": word, "label": word} for word in ("rain", "eggs", "butter") * 4])
    flags = ("--model", start, "--train", train, "--epochs", 1, "--batch-size", 8, "--device", "cpu")
    assert litebert("finetune", *flags, "--out", tmp_path / "out") == 0
    assert package.load(tmp_path / "out").max_length == package.load(start).max_length


# --- strategies -------------------------------------------------------------------------------------------------------

STRATEGIES: list[tuple[object, ...]] = [
    ("--layer-decay-rate", 0.5), ("--depth-factors", 1, 0, 1), ("--scale-embedding", 0.1), ("--unfreeze-steps", 4),
    ("--weight-decay", 0.5), ("--cold-factor", 1),
    ("--bounds", "project", "--bound-max", 0.02), ("--squash", "tanh", "--squash-temperature", 1e-4),
    ("--r-drop", 1), ("--adversarial", "freelb"), ("--adversarial", "smart"),
    ("--lora", 2), ("--mixout", 0.5), ("--head", "mlp"), ("--head", "cnn"), ("--head", "lstm"), ("--class-weights",),
    ("--label-smoothing", 0.2), ("--dropout", 0.3), ("--precision", UNUSUAL),
]  # fmt: skip


@pytest.mark.parametrize("flags", STRATEGIES, ids=lambda flags: " ".join(map(str, flags)))
def test_every_strategy_changes_what_is_learned_and_saves_a_whole_model(
    start: Path, examples: Path, plain: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path, plain))
    encoder = [name for name in theirs if name.startswith("albert.")]
    assert encoder
    assert not all(torch.equal(ours[name], theirs[name]) for name in encoder)
    assert len(package.load(tmp_path).predict(["the rain", "eggs and butter"])) == 2


@pytest.mark.parametrize(
    ("flags", "without"),
    [
        (("--r-drop", 1), ("--dropout", 0.1)),
        (("--layer-weight-decay", 0.5, "--weight-decay", 0.5), ("--weight-decay", 0.5)),
    ],
    ids=lambda flags: flags[0],
)
def test_a_strategy_does_more_than_what_it_brings_along(
    start: Path, examples: Path, tmp_path: Path, flags: tuple[object, ...], without: tuple[object, ...]
) -> None:
    for name, given in {"with": flags, "without": without}.items():
        assert litebert(*command(start, examples, tmp_path / name, *given)) == 0
    assert weights(tmp_path / "with") != weights(tmp_path / "without")


def test_a_crf_is_learned_with_its_tags(start: Path, tmp_path: Path) -> None:
    train = write_tagged(tmp_path / "t.conll", 16, "0")
    for name, flags in {"with": ("--crf",), "without": ()}.items():
        assert litebert(*command(start, train, tmp_path / name, "--task", "tag", *flags)) == 0
    assert set(load_file(tmp_path / "with" / "model.safetensors")) > set(
        load_file(tmp_path / "without" / "model.safetensors")
    )
    assert package.load(tmp_path / "with").task.crf  # type: ignore[union-attr]


def test_lora_leaves_the_encoder_as_it_was(start: Path, examples: Path, tmp_path: Path) -> None:
    flags = ("--lora", 2, "--learning-rate", 1e-2, "--weight-decay", 0.5)
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    before, after = (package.load(folder).encoder.state_dict() for folder in (start, tmp_path))
    new = {"adapters.down", "adapters.up"}
    assert after.keys() - before.keys() == new
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("pooler") for name in changed)
    assert after["adapters.up"].abs().max() > 0  # it starts at 0


@pytest.mark.parametrize("flags", [("--lora", 2), ("--mixout", 0.5), ("--layer-decay-rate", 0.5), ("--head", "lstm")])
def test_a_loaded_model_answers_as_the_one_that_learned(
    start: Path, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[object, ...]
) -> None:
    texts, said, save = [example["text"] for example in make_examples(9, seed=1)], [], Model.save

    def asked(self: Model, path: str | Path) -> None:
        said.append(self.predict(texts))
        save(self, path)

    monkeypatch.setattr(Model, "save", asked)
    assert litebert(*command(start, examples, tmp_path, *flags, "--learning-rate", 5e-3)) == 0
    for before, after in zip(said[-1], package.load(tmp_path).predict(texts), strict=True):
        assert after.probabilities == pytest.approx(before.probabilities, abs=1e-6)


def test_lora_of_another_rank_than_the_model_has_is_refused(
    start: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*command(start, examples, tmp_path / "first", "--lora", 2, "--epochs", 1)) == 0
    capsys.readouterr()
    assert litebert(*command(tmp_path / "first", examples, tmp_path / "second", "--lora", 4)) == 2
    assert "lora=4" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()


# --- more than one task -----------------------------------------------------------------------------------------------


def test_a_mixed_task_helps_and_leaves_no_head_behind(
    start: Path, examples: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tagged(tmp_path / "other.conll", 16, "0")
    assert litebert(*command(start, examples, tmp_path / "out", "--mix", f"tag={other}")) == 0
    assert f"auxiliary task tag: 16 examples of {other}" in capsys.readouterr().err
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", plain))
    assert ours.keys() == theirs.keys()
    encoder = [name for name in ours if name.startswith("albert.encoder")]
    assert encoder
    assert not any(torch.equal(ours[name], theirs[name]) for name in encoder)
    transformers = peer("transformers")
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("the rain", return_tensors="pt")
    with torch.inference_mode():
        expected = model.eval()(**inputs).logits.softmax(-1)[0].tolist()
    (answer,) = package.load(tmp_path / "out").predict(["the rain"])
    assert list(answer.probabilities.values()) == pytest.approx(expected, abs=1e-5)


def test_a_mixed_task_of_the_same_kind_has_its_own_head(start: Path, examples: Path, tmp_path: Path) -> None:
    other = write_csv(
        tmp_path / "o.csv", [{"text": word, "label": word} for word in ["rain", "eggs", "train", "map"] * 3]
    )
    assert litebert(*command(start, examples, tmp_path / "out", "--mix", f"classify={other}")) == 0
    assert package.load(tmp_path / "out").task.labels == sorted(WORDS)  # type: ignore[union-attr]


def test_the_head_of_a_taught_model_is_replaced(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_tagged(tmp_path / "t.conll", 16, "0")
    assert litebert(*command(plain, train, tmp_path / "out", "--task", "tag")) == 0
    assert f"{plain} was trained for classify: its head is replaced by a new one" in capsys.readouterr().err
    assert package.load(tmp_path / "out").task.name == "tag"  # type: ignore[union-attr]


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "a mix without a file": (("--mix", "tag="), ("mix='tag='", "tag=train.conll")),
    "a mix of no task": (("--mix", "pretrain=FILE"), ("mix='pretrain=", "must be a task and a file")),
    "a mix of a task that cannot be taught": (("--mix", "mask=FILE"), ("mix='mask=", "must be a task and a file")),
    "a mixed file that is not there": (("--mix", "tag=nope.conll"), ("nope.conll", "check the path")),
    "joint classification": (("--head", "joint"), ("head='joint'",)),
    "convolutions for questions": (("--task", "answer", "--train", "QUESTIONS", "--head", "cnn"), ("head='cnn'",)),
    "another head to choose": (("--task", "choose", "--train", "CHOICES", "--head", "mlp"), ("head='mlp'", "linear")),
    "seeds and a search": (("--seeds", 2, "--search", 2), ("seeds and search are two runs",)),
    "two readings that are one": (("--r-drop", 1, "--dropout", 0), ("r_drop", "dropout=0; leave it out")),
    "two that read several times": (("--r-drop", 1, "--adversarial", "freelb"), ("r_drop and freelb",)),
    "an empty valid file": (("--valid", "EMPTY"), ("empty.csv", "holds no examples")),
    "an unreadable test file": (("--test", "UNREADABLE", "--skip-bad"), ("unreadable.csv", "no example can be read")),
    "factors for other passes": (("--depth-factors", 1, 1), ("depth_factors has 2 numbers for 3 passes",)),
    "no smoothing": (("--label-smoothing", 1), ("label_smoothing=1.0", "below 1")),
    "a view of the bounds": (("--bounds", "view"), ("bounds=view", "--bounds project")),
    "a tag that training lacks": (
        ("--task", "tag", "--train", "TAGGED", "--valid", "TAGS"), ("tags.conll, line 3", "'animal'", "correct it")
    ),
    "a label that training lacks": (
        ("--task", "multilabel", "--valid", "LABELS"), ("labels.csv, line 3", "'snow'", "correct it")
    ),
    "a crf without tags": (("--crf",), ("crf",)),
    "class weights of numbers": (("--task", "regress", "--train", "NUMBERS", "--class-weights"), ("class_weights",)),
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, examples: Path) -> dict[str, str]:
    contents = {
        "EMPTY": ("empty.csv", "text,label\n"),
        "UNREADABLE": ("unreadable.csv", "text,label\na,\n"),
        "TAGS": ("tags.conll", "a O\n\nthe O\nlamb B-animal\n"),
        "LABELS": ("labels.csv", "text,label\na,food\nb,snow|food\n"),
        "NUMBERS": ("numbers.csv", "text,label\n" + "a,1\nb,2\n" * 6),
    }
    for name, content in contents.values():
        (tmp_path / name).write_text(content)
    made = {
        "FILE": examples,
        "TAGGED": write_tagged(tmp_path / "tagged.conll", 16, "0"),
        "QUESTIONS": write_questions(tmp_path / "q.json", 4, "0"),
        "CHOICES": write_choices(tmp_path / "c", 0),
    }
    written = {key: tmp_path / name for key, (name, _) in contents.items()}
    return {key: str(path) for key, path in (made | written).items()}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_nothing(
    start: Path, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: str
) -> None:
    flags, says = MISTAKES[mistake]
    given = [files.get(str(flag), str(flag).replace("FILE", files["FILE"])) for flag in flags]
    capsys.readouterr()
    assert litebert(*command(start, Path(files["FILE"]), tmp_path / "out", *given)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    for part in says:
        assert part in said.err
    assert said.err.startswith("litebert: ")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_message_names_no_file_that_was_not_written(
    start: Path, examples: Path, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--valid", files["UNREADABLE"], "--skip-bad")
    capsys.readouterr()
    assert litebert(*command(start, examples, tmp_path / "out", *flags)) == 2
    assert ("skipped.txt" in capsys.readouterr().err) == (tmp_path / "out" / "skipped.txt").exists()


def test_a_run_that_is_finished_is_not_begun_again(
    start: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*command(start, examples, tmp_path, "--epochs", 1)) == 0
    before = weights(tmp_path)
    assert litebert(*command(start, examples, tmp_path, "--epochs", 1, "--resume")) == 0
    assert "is finished: nothing to resume" in capsys.readouterr().err
    assert weights(tmp_path) == before


def test_what_to_run_next_names_the_columns(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = tmp_path / "t.csv"
    train.write_text("what it says,kind\n" + "rain,weather\nbutter,food\n" * 9, encoding="utf-8")
    columns = ("--columns", "text=what it says", "label=kind")
    assert litebert(*command(start, train, tmp_path / "out", "--test", train, "--epochs", 1, *columns)) == 0
    shown = capsys.readouterr().err
    assert f"--data {train} --columns 'text=what it says' label=kind" in shown


def test_a_row_without_text_is_refused(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = tmp_path / "t.csv"
    train.write_text("text,label\nrain,weather\n ,food\n", encoding="utf-8")
    assert litebert(*command(start, train, tmp_path / "out")) == 2
    assert f"{train}, line 3: no text in column 'text'; fill it in, or leave such rows out" in capsys.readouterr().err
