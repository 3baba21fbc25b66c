"""What users get wrong: one line that names file, line, value, rule and remedy; exit code 2; nothing left behind."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import torch

from litebert.cli import main
from tests.commands.conftest import QUICK, Flow, litebert
from tests.conftest import PROSE

GOOD = "text,label\n" + "the rain fell,weather\nthe eggs and butter,food\n" * 6
CORPUS = "\n".join(PROSE[:20]).encode()
TUNE = "finetune --model {pretrained} --train FILE --out out --epochs 1 --length 12"
TRAIN = "pretrain --data {shards} --out out --preset tiny --steps 2 --batch-size 2 --length 16"
TOKENIZE = "tokenizer --input FILE --out out --vocab-size 100"
PREPARE = "prepare --input FILE --tokenizer {tokenizer} --out out"
EVALUATE = "evaluate --model {classifier} --data FILE"
MISSING = ("No such file", "check the path")
NO_FOLDER = ("is not a folder", "choose another --out")
PREDICT = "predict --model {classifier} --input FILE --output out"


@dataclass(frozen=True)
class Mistake:
    """A command that cannot work, the file it stumbles over, and what the answer must say."""

    name: str
    command: str
    says: tuple[str, ...]
    file: str = "good.csv"
    content: str | bytes = GOOD
    more: dict[str, str] = field(default_factory=dict)
    """Further files."""


def table(name: str, content: str | bytes, *says: str, file: str = "t.csv") -> Mistake:
    return Mistake(name, TUNE, (file, *says), file, content)


def corpus(name: str, content: bytes, *says: str, file: str = "c.txt") -> list[Mistake]:
    return [
        Mistake(f"{name}, {command.split()[0]}", command, (file, *says), file, content)
        for command in (TOKENIZE, TOKENIZE + " --kind wordpiece", PREPARE)
    ]


def setting(command: str, flags: str, *says: str) -> Mistake:
    return Mistake(f"{command.split()[0]} {flags}", f"{command} {flags}", says)


MISTAKES = [
    # tables
    Mistake("a table that is not there", TUNE.replace("FILE", "nope.csv"), ("nope.csv", *MISSING)),
    Mistake("a folder as a table", TUNE.replace("FILE", "d.csv"), ("d.csv", "is a folder"), "d.csv/x"),
    table("another name for the text", "phrase,label\na,b\n", "line 2", "'text'", "phrase, label", "--columns"),
    table("another name for label", "text,kind\na,b\n", "line 2", "no column 'label'", "text, kind", "rename one"),
    table("an empty table", "", "holds no examples", "header line"),
    table("a table of one header", "text,label\n", "holds no examples", "at least one row"),
    table("an empty label", "text,label\na,x\nb,\n", "line 3", "no value in column 'label'", "--skip-bad"),
    table("a list of labels", '{"text": "a", "label": ["x"]}', "line 1", "['x']", "one class name", file="t.jsonl"),
    table("a number as text", '{"text": 7, "label": "x"}', "line 1", "no text in column 'text'", file="t.jsonl"),
    table("latin-1 in a table", "text,label\ncaf\u00e9,x\n".encode("latin-1"), "line 2", "0xe9", "not UTF-8", "iconv"),
    table("a ragged row", "text,label\na,x\nb,y,z\n", "line 3", "3 fields", "header has 2", "quote"),
    table("an unclosed quote", 'text,label\na,x\n"b,y\nc,x\n', "line 3", "check the quotes"),
    table("a broken JSON line", '{"text": "a"}\n{"text"\n', "line 2", "not JSON", "one JSON object", file="t.jsonl"),
    table("a JSON line without names", '["a", "x"]\n', "line 1", '["a", "x"]', "not a JSON object", file="t.jsonl"),
    table("a repeated column", "text,label,text\na,x,b\n", "line 1", "'text' appears twice", "its own name"),
    table("a spreadsheet", b"PK\x03\x04", "unknown format '.xlsx'", "*.csv", file="t.xlsx"),
    table("a table that is no gzip", GOOD, "Not a gzipped file", "compress it again", file="t.csv.gz"),
    table("a table cut short", gzip.compress(GOOD.encode())[:-9], "ended before", "compress it again", file="t.csv.gz"),
    table("a table that is no xz", GOOD, "cannot be read", "compress it again", file="t.csv.xz"),
    table("a table that is no zstd", GOOD, "cannot be read", "compress it again", file="t.csv.zst"),
    table("a table that is no Parquet", GOOD, "not readable as Parquet", "write it again", file="t.parquet"),
    table("a single class", "text,label\na,x\nb,x\nc,x\n", "1 class", "(x)", "needs 2", "add examples"),
    table("too few to split", "text,label\na,x\nb,y\n", "2 examples are too few", "--valid"),
    Mistake(
        "a label that training lacks", TUNE + " --valid v.csv",
        ("v.csv, line 3", "'snow'", "food, weather", "correct it"), more={"v.csv": "text,label\na,food\nb,snow\n"},
    ),
    Mistake(
        "a label the model never learned", EVALUATE, ("t.csv, line 2", "'snow'", "food, travel, weather", "correct it"),
        "t.csv", "text,label\na,snow\n",
    ),
    Mistake("no data to evaluate on", EVALUATE.replace("FILE", "nope.csv"), ("nope.csv", *MISSING)),
    # corpora
    *corpus("latin-1 in a corpus", CORPUS + b"\ncaf\xe9\n", "line 21", "0xe9", "not UTF-8", "iconv"),
    *corpus("an empty corpus", b"", "no text", "give files that hold text"),
    *corpus("a corpus of blank lines", b"\n \n\n", "no text", "give files that hold text"),
    *corpus("a corpus that is no gzip", CORPUS, "Not a gzipped file", "damaged", file="c.txt.gz"),
    *corpus("a corpus cut short", lzma.compress(CORPUS)[:-9], "ended before", "damaged", file="c.txt.xz"),
    *corpus("a corpus that is no zstd", CORPUS, "cannot be read", "damaged", file="c.txt.zst"),
    Mistake("no such corpus", PREPARE.replace("FILE", "nope.txt"), ("nope.txt: no such file", "give text files")),
    Mistake("a folder as a corpus", TOKENIZE.replace("FILE", "d"), ("d: is a folder", "without text files"), "d/x"),
    setting("tokenizer --out out", "", "--input FILES", "--import-from FILE"),
    setting("tokenizer --out out", "--import-from good.csv/x", "good.csv/x", "tokenizer.json"),
    setting(TOKENIZE, "--vocab-size 3", "vocab_size=3", "between 64 and"),
    setting("prepare --tokenizer {tokenizer} --out out --input", "", "--input names no files", "at least one"),
    Mistake(
        "a folder without a tokenizer", PREPARE.replace("{tokenizer}", "d"), ("d: holds none of", "litebert tokenizer"),
        "d/x", "text",
    ),
    # models
    setting(TUNE.replace("{pretrained}", "./nope"), "", "./nope: no such folder", "check the path"),
    setting(TUNE.replace("{pretrained}", "{tokenizer}"), "", "has no config.json", "give a folder"),
    setting(EVALUATE.replace("{classifier}", "{pretrained}"), "", "not fine-tuned", "litebert finetune"),
    Mistake(
        "nothing to fill", PREDICT.replace("{classifier}", "{pretrained}"), ("p.txt, line 2", "'no gap'", "put [MASK]"),
        "p.txt", "a [MASK]\nno gap\n",
    ),
    # what is to be answered
    Mistake("nothing to answer", PREDICT.replace("FILE", "nope.txt"), ("nope.txt", *MISSING)),
    Mistake("half a JSON object", PREDICT, ("p.txt, line 2", "not one", "fix it"), "p.txt", "rain\n{half\n"),
    Mistake("a row without text", PREDICT, ("p.csv, line 2", "(columns: a, b)", "rename"), "p.csv", "a,b\n1,2\n"),
    Mistake("latin-1 in a text", PREDICT, ("p.txt, line 2", "0xe9", "iconv"), "p.txt", b"rain\ncaf\xe9\n"),
    setting(PREDICT, "--output good.csv/x", "good.csv/x: cannot be written", "check free space and permissions"),
    # settings
    setting(TUNE, "--length 513", "length=513", "512 or less"),
    setting(TRAIN, "--length 513", "length=513", "512 or less"),
    setting(TUNE, "--length 4", "length=4", "8 or more"),
    setting(TRAIN, "--length 4", "length=4", "at least 16"),
    setting(TUNE, "--epochs 0", "epochs=0", "at least 1"),
    setting(TUNE, "--batch-size 0", "batch_size=0", "at least 1"),
    setting(TRAIN, "--batch-size 0", "batch_size=0", "at least 1"),
    setting(EVALUATE, "--batch-size 0", "batch_size=0", "at least 1"),
    setting(PREDICT, "--batch-size 0", "batch_size=0", "at least 1"),
    setting(TRAIN, "--steps 0", "steps=0", "at least 1"),
    setting(TRAIN, "--save-every 0", "save_every='0'", "10min"),
    setting(TRAIN, "--mask-rate 1.5", "mask_rate=1.5", "not above 0.8"),
    setting(TRAIN, "--learning-rate 0", "learning_rate=0.0", "above 0"),
    setting(TUNE, "--learning-rate -1", "learning_rate=-1.0", "above 0"),
    setting(TUNE, "--seed -1", "seed=-1", "between 0 and"),
    setting(TRAIN, f"--seed {1 << 32}", f"seed={1 << 32}", "between 0 and"),
    setting(TOKENIZE, "--seed -1", "seed=-1", "between 0 and"),
    setting("demo --out out", "--epochs 0", "epochs=0", "at least 1"),
    setting("demo --out out", "--lang zh --steps 5", "steps is for --lang en", "leave it out"),
    # where the results go
    setting(TUNE, "--out good.csv", "good.csv: cannot hold", *NO_FOLDER),
    setting(TRAIN, "--out good.csv/x", "good.csv/x: cannot hold", *NO_FOLDER),
    setting(TOKENIZE, "--out good.csv", "good.csv: cannot hold", *NO_FOLDER),
    setting(PREPARE, "--out good.csv/x", "good.csv/x: cannot hold", *NO_FOLDER),
    setting("demo", "--out good.csv", "good.csv: cannot hold", *NO_FOLDER),
]  # fmt: skip


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def complaint(capsys: pytest.CaptureFixture[str], flow: Flow, command: str) -> str:
    """Run a command that must fail, and return the one line it says."""
    capsys.readouterr()
    places = {name: str(path) for name, path in asdict(flow).items()}
    assert main(command.format(**places).split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("litebert: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_gets_one_line_with_the_way_out_and_leaves_nothing(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mistake: Mistake
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {mistake.file: mistake.content, **mistake.more}.items():
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    before = listing(tmp_path)
    line = complaint(capsys, flow, mistake.command.replace("FILE", mistake.file))
    for part in mistake.says:
        assert part in line
    assert listing(tmp_path) == before
    assert not Path("out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", [TUNE, TRAIN, EVALUATE, PREDICT], ids=lambda command: command.split()[0])
def test_a_gpu_that_is_not_there_is_named_with_the_way_out(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = complaint(capsys, flow, command.replace("FILE", str(flow.examples)) + " --device cuda")
    assert "device=cuda, but torch sees no GPU here; use --device cpu" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "holds"),
    [
        ("tokenizer --input {corpus} --out {tokenizer}", "finished tokenizer"),
        ("prepare --input {corpus} --tokenizer {tokenizer} --out {shards}", "finished shards"),
        ("pretrain --data {shards} --out {pretrained}", "finished model"),
        ("finetune --model {pretrained} --train {examples} --out {classifier}", "fine-tuned model"),
        (
            "finetune --model {pretrained} --train {examples} --out {pretrained}",
            "run of litebert pretrain",
        ),
    ],
)
def test_finished_results_are_never_overwritten(
    flow: Flow, capsys: pytest.CaptureFixture[str], command: str, holds: str
) -> None:
    out = command.split("--out ")[1].split()[0].format(**asdict(flow))
    before = listing(Path(out))
    line = complaint(capsys, flow, command)
    assert f"{out}" in line
    assert re.search(rf"already holds (an? )?{holds}", line)
    assert "choose another --out" in line
    assert listing(Path(out)) == before


def test_finetune_does_not_overwrite_the_model_it_starts_from(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As downloaded: a model without checkpoints beside it."""
    model = tmp_path / "model"
    shutil.copytree(flow.pretrained, model, ignore=shutil.ignore_patterns("checkpoints", "run.json"))
    before = listing(model)
    line = complaint(capsys, flow, f"finetune --model {model} --train {flow.examples} --out {model}")
    assert f"{model} already holds a finished model" in line
    assert listing(model) == before


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "unfinished": (lambda folder: (folder / "index.json").unlink(), "has no index.json"),
    "a missing file": (lambda folder: (folder / "shard-00000.bits").unlink(), "shard-00000.bits: named in"),
    "a file cut in a token": (lambda folder: os.truncate(folder / "shard-00000.ids", 101), "00000.ids: cannot be read"),
    "a file cut between tokens": (lambda folder: os.truncate(folder / "shard-00000.ids", 100), "more ids than bits"),
    "another tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "a broken index": (lambda folder: (folder / "index.json").write_text("{"), "index.json: not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_refused_before_training(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(flow.shards, "broken")
    harm, says = DAMAGE[damage]
    harm(Path("broken"))
    line = complaint(capsys, flow, TRAIN.replace("{shards}", "broken"))
    assert "broken" in line
    assert says in line
    assert "again" in line or "make one with: litebert prepare" in line
    assert not Path("out").exists()


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write anywhere")
    line = complaint(capsys, flow, f"tokenizer --input {flow.corpus} --out {locked / 'tok'} --vocab-size 100")
    assert f"{locked / 'tok'}: cannot hold the results (you may not write there); choose another --out" in line


def test_latin_1_on_standard_input_is_reported_with_its_line(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    line = complaint(capsys, flow, "predict --model {classifier}")
    assert "standard input, line 1: byte 0xe9 is not UTF-8; convert it first, with: iconv" in line


def test_an_empty_label_is_no_mistake_where_it_is_to_be_found(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.csv").write_text("text,label\nthe rain and thunder,\n")
    assert litebert("predict", "--model", flow.classifier, "--input", tmp_path / "p.csv") == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("food", "travel", "weather")


def test_a_flipped_bit_in_the_shards_is_found_before_training(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    shutil.copytree(flow.shards, shards)
    ids = bytearray((shards / "shard-00000.ids").read_bytes())
    ids[0] ^= 1
    (shards / "shard-00000.ids").write_bytes(ids)
    capsys.readouterr()
    assert litebert("pretrain", "--data", shards, "--out", tmp_path / "out", "--preset", "tiny") == 2
    assert "shard-00000.ids: damaged" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_class_names_that_look_like_markup_are_shown_as_they_are(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = tmp_path / "t.csv"
    examples.write_text(flow.examples.read_text().replace("food", "[/bug]"))
    out = tmp_path / "ft"
    command = ("--model", flow.pretrained, "--train", examples, "--out", out, "--length", 12, "--device", "cpu")
    assert litebert("finetune", *command, "--epochs", 1) == 0
    assert litebert("evaluate", "--model", out, "--data", examples) == 0
    assert "[/bug]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--input", "a.txt", "--fold-punctuation"), "--fold-punctuation is for an imported vocab.txt"),
        (("--import-from", "tokenizer.json", "--no-lowercase"), "leave out --no-lowercase"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(
    flags: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert("tokenizer", *flags, "--out", tmp_path / "tok") == 2
    assert complaint in capsys.readouterr().err


def test_a_loss_that_explodes_says_what_to_do(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    arguments = ("--model", flow.pretrained, "--train", flow.examples, "--out", tmp_path, *QUICK)
    assert litebert("finetune", *arguments, "--epochs", 3, "--learning-rate", 1e30) == 2
    said = capsys.readouterr().err
    assert re.search(r"step \d+: loss nan, and 5 of the last", said)
    assert "lower --learning-rate" in said
