"""From raw text to answers through the command line, and back after an interruption."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import litebert as package
from litebert.data.shards import DOCUMENT_START, Shards
from litebert.tasks import Classify
from litebert.trainers.validation_split import split
from tests.commands.conftest import EXAMPLES, QUICK, SMALL, WORDS, Flow, litebert, make_examples, once, write_csv
from tests.conftest import PROSE, peer


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def steps_of(folder: Path) -> list[int]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "loss" in line]


def ask(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode("utf-8"))))


def answers_in(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# --- the stages -------------------------------------------------------------------------------------------------------


def test_prepare_keeps_every_document_and_token(flow: Flow) -> None:
    shards = Shards(flow.shards)
    documents = list(dict.fromkeys(tuple(PROSE[at : at + 5]) for at in range(0, len(PROSE), 5)))  # each once
    wanted = [[number for ids in shards.tokenizer.encode_ids(lines) for number in ids] for lines in documents]
    found = []
    for stream in (shards.training, shards.held_out):
        for ids, bits in zip(stream.ids, stream.bits, strict=True):
            found += [part.tolist() for part in np.split(ids, np.flatnonzero(bits & DOCUMENT_START)[1:])]
    assert sorted(found) == sorted(wanted)
    assert shards.index.documents == len(documents)
    assert shards.index.duplicates == -(-len(PROSE) // 5) - len(documents)


def test_a_pretrained_folder_holds_model_log_and_origin(flow: Flow) -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "run.json", "tensorboard"} <= {
        path.name for path in flow.pretrained.iterdir()
    }
    assert steps_of(flow.pretrained) == [1, 2, 3, 4]


def test_evaluate_prints_its_scores_as_json(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("evaluate", "--model", flow.classifier, "--data", flow.examples, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["accuracy"] > 0.9
    assert result["labels"] == sorted(WORDS)
    assert [sum(row) for row in result["confusion"]] == [EXAMPLES // 3] * 3
    assert sum(result["confusion"][i][i] for i in range(3)) / EXAMPLES == result["metrics"]["accuracy"]


def test_evaluate_prints_a_table_by_default(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("evaluate", "--model", flow.classifier, "--data", flow.examples) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    assert all(label in shown for label in WORDS)


INPUTS: dict[str, Callable[[list[str]], bytes]] = {
    "a.txt": lambda texts: "\n".join(texts).encode(),
    "a.txt.gz": lambda texts: gzip.compress("\n".join(texts).encode()),
    "a.csv": lambda texts: "\n".join(["text,label", *(f"{text}," for text in texts)]).encode(),
    "a.jsonl": lambda texts: "\n".join(json.dumps({"text": text}) for text in texts).encode(),
    "-": lambda texts: "\r\n".join([texts[0], *(json.dumps({"text": text}) for text in texts[1:])]).encode(),
}


@pytest.mark.parametrize("source", INPUTS)
def test_predict_reads_every_kind_of_input(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    examples = make_examples(7)
    content = INPUTS[source]([example["text"] for example in examples])
    monkeypatch.chdir(tmp_path)
    if source == "-":
        ask(content.decode(), monkeypatch)
    else:
        Path(source).write_bytes(content)
    assert litebert("predict", "--model", flow.classifier, "--input", source, "--batch-size", 3) == 0
    answers = answers_in(capsys.readouterr().out)
    assert [answer["label"] for answer in answers] == [example["label"] for example in examples]


def test_a_blank_line_gets_null_so_that_answers_keep_step_with_lines(
    flow: Flow, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("the rain\n\nthe eggs\n   \n", monkeypatch)
    assert litebert("predict", "--model", flow.classifier, "--batch-size", 1) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer is None for answer in answers] == [False, True, False, True]


def test_evaluate_shows_what_the_commonest_class_alone_would_score(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("text,label\na,food\nb,food\nc,food\nd,travel\n")
    assert litebert("evaluate", "--model", flow.classifier, "--data", tmp_path / "t.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["baseline"] == {"accuracy": 0.75, "mcc": 0.0}


def test_predict_writes_to_a_file_what_it_would_print(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("predict", "--model", flow.classifier, "--input", flow.examples) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "new" / "answers.jsonl"
    assert litebert("predict", "--model", flow.classifier, "--input", flow.examples, "--output", out) == 0
    assert out.read_text(encoding="utf-8") == printed
    assert capsys.readouterr().out == ""


def test_an_answer_is_a_label_and_what_every_class_got(
    flow: Flow, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("rain and thunder", monkeypatch)
    assert litebert("predict", "--model", flow.classifier) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"label", "probability", "probabilities"}
    assert answer["probability"] == answer["probabilities"][answer["label"]] == max(answer["probabilities"].values())


def test_predict_fills_masks_with_a_pretrained_model(
    flow: Flow, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("the [MASK] opened at five\n[MASK] and [MASK]\n", monkeypatch)
    assert litebert("predict", "--model", flow.pretrained) == 0
    first, second = answers_in(capsys.readouterr().out)
    assert [len(fills) for fills in first["masks"]] == [5]  # type: ignore[attr-defined]
    assert [len(fills) for fills in second["masks"]] == [5, 5]  # type: ignore[attr-defined]


# --- what can be taught -----------------------------------------------------------------------------------------------


def as_jsonl(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    peer("pyarrow.parquet").write_table(peer("pyarrow").Table.from_pylist(rows), path)


TABLES: dict[str, Callable[[Path, list[dict[str, str]]], object]] = {
    "t.tsv": lambda path, rows: write_csv(path, rows, delimiter="\t"),
    "t.jsonl": lambda path, rows: path.write_text(as_jsonl(rows)),
    "t.parquet": as_parquet,
    "t.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(as_jsonl(rows).encode())),
}


def finetune(flow: Flow, train: Path, out: Path, *changes: object) -> int:
    """A short fine-tuning."""
    return litebert(
        "finetune", "--model", flow.pretrained, "--train", train, "--out", out, "--epochs", 1, *QUICK, *changes
    )


@pytest.fixture(scope="module")
def from_csv(flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        assert finetune(flow, flow.examples, folder / "out") == 0

    return once(tmp_path_factory, "from-csv", build) / "out"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_format_teaches_the_same(flow: Flow, from_csv: Path, tmp_path: Path, name: str) -> None:
    TABLES[name](tmp_path / name, make_examples(EXAMPLES))
    out = tmp_path / "out"
    assert finetune(flow, tmp_path / name, out) == 0
    assert weights(out) == weights(from_csv)


@pytest.mark.parametrize(
    "change",
    [("--epochs", 2), ("--batch-size", 5), ("--length", 8), ("--learning-rate", 1e-2), ("--seed", 1)],
    ids=lambda change: change[0],
)
def test_every_setting_of_finetune_changes_what_is_learned(
    flow: Flow, from_csv: Path, tmp_path: Path, change: tuple[str, float]
) -> None:
    assert finetune(flow, flow.examples, tmp_path, *change) == 0
    assert weights(tmp_path) != weights(from_csv)


@pytest.mark.parametrize(
    "change",
    [
        ("--batch-size", 3),
        ("--length", 20),
        ("--learning-rate", 1e-2),
        ("--mask-rate", 0.5),
        ("--seed", 1),
        ("--preset", "small"),
        ("--steps", 5),
    ],
    ids=lambda change: change[0],
)
def test_every_setting_of_pretrain_changes_what_is_learned(
    flow: Flow, tmp_path: Path, change: tuple[str, object]
) -> None:
    assert litebert("pretrain", "--data", flow.shards, "--out", tmp_path, "--steps", 4, *SMALL, *change) == 0
    assert weights(tmp_path) != weights(flow.pretrained)


def test_the_same_settings_give_the_same_weights(flow: Flow, tmp_path: Path) -> None:
    assert litebert("pretrain", "--data", flow.shards, "--out", tmp_path, "--steps", 4, *SMALL) == 0
    assert weights(tmp_path) == weights(flow.pretrained)


def test_pairs_are_told_apart_by_their_second_text(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [{"text_a": "every morning", "text_b": x["text"], "label": x["label"]} for x in make_examples(EXAMPLES)]
    table = write_csv(tmp_path / "pairs.csv", pairs)
    assert litebert(
        "finetune", "--model", flow.pretrained, "--train", table, "--valid", table, "--out", tmp_path / "out",
        "--epochs", 10, *QUICK, "--length", 20, "--learning-rate", 5e-4,
    ) == 0  # fmt: skip
    ask("".join(json.dumps({k: pair[k] for k in ("text_a", "text_b")}) + "\n" for pair in pairs), monkeypatch)
    capsys.readouterr()
    assert litebert("predict", "--model", tmp_path / "out") == 0
    answers = [answer["label"] for answer in answers_in(capsys.readouterr().out)]
    assert sum(answer == pair["label"] for answer, pair in zip(answers, pairs, strict=True)) > 0.9 * EXAMPLES


def test_the_best_epoch_is_kept_not_the_last(flow: Flow, tmp_path: Path) -> None:
    """The examples to choose by are labelled against the training: the more is learned, the worse the score."""
    against = dict(zip(WORDS, [*list(WORDS)[1:], next(iter(WORDS))], strict=True))
    examples = [example | {"label": against[example["label"]]} for example in make_examples(EXAMPLES)]
    valid = write_csv(tmp_path / "valid.csv", examples)
    settings = ("--valid", valid, "--epochs", 8, "--learning-rate", 5e-4)
    assert finetune(flow, flow.examples, tmp_path / "out", *settings) == 0
    finished = json.loads((tmp_path / "out" / "finished.json").read_text())
    assert finished["epoch"] < 8
    answers = package.load(tmp_path / "out").predict([example["text"] for example in examples])
    right = sum(answer.label == example["label"] for answer, example in zip(answers, examples, strict=True))
    assert right / EXAMPLES == pytest.approx(finished["metrics"]["accuracy"])
    assert right > 0


# --- stopping and going on --------------------------------------------------------------------------------------------


def interrupt(out: Path, *arguments: object) -> tuple[int, str]:
    """Run a command in a process of its own and press Ctrl-C once its first step is logged: exit code, report."""
    process = subprocess.Popen(
        [sys.executable, "-m", "litebert", *map(str, arguments), "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    log = out / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, report = process.communicate(timeout=120)
    return process.returncode, report


def commands(flow: Flow) -> dict[str, tuple[object, ...]]:
    return {
        "pretrain": ("pretrain", "--data", flow.shards, "--steps", 20, "--save-every", 1000, *SMALL),
        "finetune": ("finetune", "--model", flow.pretrained, "--train", flow.examples, "--epochs", 3, *QUICK[2:],
                     "--batch-size", 2),
    }  # fmt: skip


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_an_interrupted_run_goes_on_to_the_same_bits(flow: Flow, tmp_path: Path, command: str) -> None:
    arguments = commands(flow)[command]
    code, report = interrupt(tmp_path / "stopped", *arguments)
    assert code == 130
    assert "--resume" in report
    assert "Traceback" not in report
    done = steps_of(tmp_path / "stopped")[-1]
    assert (tmp_path / "stopped" / "checkpoints" / "latest").read_text() == f"step-{done:08d}\n"
    assert not (tmp_path / "stopped" / ("config.json" if command == "pretrain" else "finished.json")).exists()

    logged = (tmp_path / "stopped" / "metrics.jsonl").read_text()
    assert litebert(*arguments, "--out", tmp_path / "stopped", "--resume") == 0
    assert (tmp_path / "stopped" / "metrics.jsonl").read_text().startswith(logged)  # no step was run again
    assert litebert(*arguments, "--out", tmp_path / "whole") == 0
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert steps_of(tmp_path / "stopped") == steps_of(tmp_path / "whole")
    last = (tmp_path / "whole" / "checkpoints" / "latest").read_text().strip()
    assert weights(tmp_path / "stopped" / "checkpoints" / last) == weights(tmp_path / "whole" / "checkpoints" / last)


@pytest.fixture
def killed(flow: Flow, tmp_path: Path) -> Path:
    """A pre-training that was killed after its last checkpoint, before the model was written."""
    out = tmp_path / "killed"
    assert litebert("pretrain", "--data", flow.shards, "--out", out, "--steps", 4, "--save-every", 2, *SMALL) == 0
    (out / "config.json").unlink()
    (out / "model.safetensors").unlink()
    return out


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    flow: Flow, killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = killed / "checkpoints" / "step-00000004" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x7f")
    command = ("pretrain", "--data", flow.shards, "--out", killed, "--steps", 4, "--save-every", 2, *SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # the tests turn our warnings into errors; a user sees them
        assert litebert(*command, "--resume") == 0
    said = capsys.readouterr().err
    assert "litebert: warning: checkpoint step-00000004 is damaged" in said
    assert "from step 2" in said
    assert weights(killed) == weights(flow.pretrained)
    assert steps_of(killed) == [1, 2, 3, 4]


def test_a_resume_with_other_settings_is_refused_with_the_difference(
    flow: Flow, killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command = ("pretrain", "--data", flow.shards, "--out", killed, "--steps", 4, *SMALL, "--resume")
    assert litebert(*command, "--learning-rate", 0.01) == 2
    complaint = capsys.readouterr().err
    assert "learning_rate (was None, is 0.01)" in complaint
    assert complaint.count("\n") == 1


def test_a_resume_on_other_text_is_refused(
    flow: Flow, killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("another text altogether\n\nand one more\n")
    shards = tmp_path / "shards"
    assert litebert("prepare", "--input", other, "--tokenizer", flow.tokenizer, "--out", shards) == 0
    capsys.readouterr()
    assert litebert("pretrain", "--data", shards, "--out", killed, "--steps", 4, *SMALL, "--resume") == 2
    assert "made with other settings: content of --data (was" in capsys.readouterr().err


def test_a_resume_on_other_examples_is_refused(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = tmp_path / "t.csv"
    examples.write_text(flow.examples.read_text())
    command = ("finetune", "--model", flow.pretrained, "--train", examples, "--out", tmp_path / "ft", *QUICK)
    assert litebert(*command, "--epochs", 1) == 0
    (tmp_path / "ft" / "finished.json").unlink()
    examples.write_text(flow.examples.read_text().replace("food", "fool"))
    capsys.readouterr()
    assert litebert(*command, "--epochs", 1, "--resume") == 2
    assert f"content of {examples}" in capsys.readouterr().err


def test_without_a_valid_file_every_class_is_learned_from(flow: Flow, tmp_path: Path) -> None:
    examples = tmp_path / "t.csv"
    examples.write_text(flow.examples.read_text() + "the moon,rare\n")
    for seed in range(3):
        out = tmp_path / str(seed)
        command = ("finetune", "--model", flow.pretrained, "--train", examples, "--out", out, *QUICK)
        assert litebert(*command, "--epochs", 1, "--seed", seed) == 0
        records = Classify.read(examples)
        task = Classify.learn_from(records)
        learned, held_out = split(records, task, seed, examples)
        assert {record.label for record in learned} == set(task.labels)
        assert len(learned) + len(held_out) == len(records)
        assert held_out


def test_a_run_that_could_be_resumed_is_not_overwritten(
    flow: Flow, killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("pretrain", "--data", flow.shards, "--out", killed, "--steps", 4, *SMALL) == 2
    assert "which --resume continues" in capsys.readouterr().err
    assert steps_of(killed) == [1, 2, 3, 4]


# --- the guided tour --------------------------------------------------------------------------------------------------

TOUR = ("demo", "--steps", 3, "--epochs", 1, "--prose-bytes", 60_000)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tour through a folder in which a former one broke off."""

    def build(folder: Path) -> None:
        assert litebert(*TOUR, "--vocab-size", 5, "--out", folder) == 2
        (folder / "of-the-former-tour.txt").write_text("old")
        with warnings.catch_warnings():  # so little prose, another on every machine, may lack some characters
            warnings.filterwarnings("ignore", message=".* are unknown to this vocabulary")
            assert litebert(*TOUR, "--vocab-size", 300, "--out", folder) == 0

    return once(tmp_path_factory, "tour", build)


def test_the_tour_ends_with_a_report_of_two_pictures(tour: Path) -> None:
    page = (tour / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<svg role="img" aria-label="[^"]+"', page)) == 2
    assert "bag of words" in page


def test_a_tour_replaces_the_former_one(tour: Path) -> None:
    assert not (tour / "of-the-former-tour.txt").exists()


def test_the_classifier_of_the_tour_answers_the_same_in_transformers(tour: Path) -> None:
    transformers, torch = peer("transformers"), peer("torch")
    texts = ["where is my parcel", "please refund me"]
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tour / "classifier").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(tour / "classifier")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        probabilities = theirs(**inputs).logits.softmax(-1)
    for answer, row in zip(package.load(tour / "classifier").predict(texts), probabilities, strict=True):
        assert [answer.probabilities[theirs.config.id2label[i]] for i in range(6)] == pytest.approx(
            row.tolist(), abs=1e-5
        )


def test_the_tour_refuses_a_folder_it_did_not_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert litebert(*TOUR, "--out", tmp_path) == 2
    assert f"{tmp_path} holds something that this demo did not make; choose another --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
