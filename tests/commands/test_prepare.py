"""`litebert prepare` as its users meet it: flags, kills, parts, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from litebert.data.shards import Shards
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import litebert
from tests.conftest import PROSE


@dataclass(frozen=True)
class Flow:
    """A small corpus and what was made of it."""

    corpus: Path
    tokenizer: Path
    shards: Path


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Flow:
    folder = tmp_path_factory.mktemp("flow")
    made = Flow(*(folder / name for name in ("corpus.txt", "tok", "shards")))
    made.corpus.write_text("\n\n".join(PROSE[:9] * 2), encoding="utf-8")
    tokenizer.save(made.tokenizer)
    assert litebert("prepare", "--input", made.corpus, "--tokenizer", made.tokenizer, "--out", made.shards) == 0
    return made


def test_lines_of_test_sets_are_left_out(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["the harbour was quiet and the boats lay on the mud until the evening tide came in", *PROSE[:3]]
    (tmp_path / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "tests.tsv.txt").write_text("THE HARBOUR was quiet; and the boats lay on the mud until evening\n")
    given = ("--input", tmp_path / "corpus.txt", "--tokenizer", flow.tokenizer, "--held-out", 0)
    assert litebert("prepare", *given, "--out", tmp_path / "all") == 0
    one = (*given, "--exclude", tmp_path / "tests.tsv.txt")
    assert litebert("prepare", *one, "--out", tmp_path / "one") == 0
    (tmp_path / "tests.tsv.txt").write_text("the boats lay on the mud until the evening tide came in\n")
    capsys.readouterr()
    assert litebert("prepare", *one, "--out", tmp_path / "other") == 0
    assert "excluded: 1 lines" in capsys.readouterr().err
    every, kept, same = (Shards(tmp_path / name) for name in ("all", "one", "other"))
    assert (every.index.excluded, kept.index.excluded, same.index.excluded) == (0, 0, 1)  # "the evening" is another run
    assert every.index.tokens == kept.index.tokens > same.index.tokens
    assert "harbour" not in same.tokenizer.decode(same.training.ids[0].tolist())
    (tmp_path / "tests.tsv.txt").write_text("too short\n")
    assert litebert("prepare", *one, "--out", tmp_path / "none") == 2
    assert "has 8 words, so nothing would be left out" in capsys.readouterr().err


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """All that must be equal: everything but the record of the command."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "run.json"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few megabytes: enough to be interrupted."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    lines = (f"Document {number}.\n" + "\n".join(PROSE[:11] * 2) for number in range(3_000))
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


def command(corpus: Path, flow: Flow, out: Path, *more: str) -> list[str]:
    flags = ["--input", corpus, "--tokenizer", flow.tokenizer, "--out", out, "--shard-tokens", 200_000, *more]
    return ["prepare", *map(str, flags)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path, flow: Flow) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "shards"
    assert litebert(*command(corpus, flow, out)) == 0
    return shard_bytes(out)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stopped_run_continues_with_the_same_bytes(
    tmp_path: Path, corpus: Path, flow: Flow, whole: dict[str, bytes], workers: str, how: signal.Signals, code: int
) -> None:
    out = tmp_path / "shards"
    run = command(corpus, flow, out, "--workers", workers)
    process = subprocess.Popen(
        [sys.executable, "-m", "litebert", *run],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 60
    while not (out / "journal.json").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said
    assert not (out / "index.json").exists()
    assert litebert(*run) == 0
    assert shard_bytes(out) == whole


def test_workers_end_with_a_killed_parent(tmp_path: Path, corpus: Path, flow: Flow) -> None:
    run = command(corpus, flow, tmp_path / "shards", "--workers", "2")
    process = subprocess.Popen([sys.executable, "-m", "litebert", *run], stderr=subprocess.DEVNULL)
    children: list[int] = []
    deadline = time.monotonic() + 60
    while len(children) < 3 and process.poll() is None and time.monotonic() < deadline:
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        time.sleep(0.01)
    process.kill()
    process.wait()
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_the_closing_lines_say_what_was_made_and_what_comes_next(
    tmp_path: Path, flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shards"
    assert litebert("prepare", "--input", flow.corpus, "--tokenizer", flow.tokenizer, "--out", out) == 0
    said = capsys.readouterr().err
    index = Shards(out).index
    for part in (f"{index.tokens:,} tokens", f"{index.documents:,} documents", "MB/s", "9 duplicates dropped"):
        assert part in said
    assert "held out: none, the corpus is too small" in said
    assert f"next: litebert pretrain --data {out}" in said


def test_a_vocabulary_of_another_language_is_noticed(
    tmp_path: Path, flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ru.txt").write_text("Смотритель маяка каждое утро записывал погоду.", encoding="utf-8")
    out = tmp_path / "shards"
    assert litebert("prepare", "--input", tmp_path, "--tokenizer", flow.tokenizer, "--out", out) == 0
    assert "of the tokens are unknown to this vocabulary; train one" in capsys.readouterr().err


def test_parts_are_merged_and_inspected(tmp_path: Path, flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [tmp_path / "part-1", tmp_path / "part-2"]
    for number, part in enumerate(parts, start=1):
        assert litebert(
            "prepare", "--input", flow.corpus, "--tokenizer", flow.tokenizer, "--out", part, "--part", f"{number}/2"
        ) == 0  # fmt: skip
    assert litebert("prepare", "--merge", *parts, "--out", tmp_path / "shards") == 0
    assert "documents occur in more than one part" in capsys.readouterr().err
    assert litebert("prepare", "--inspect", tmp_path / "shards") == 0
    assert "tokens per sentence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--inspect {shards} --merge {shards}", "are three different jobs; give one"),
        ("--inspect {shards} --input {corpus}", "are three different jobs; give one"),
        ("--merge {shards}", "--out is missing"),
        ("--input {corpus} --out out", "--tokenizer is missing; make one with: litebert tokenizer"),
        ("--input {corpus} --tokenizer {tokenizer} --out out --part 3", "part='3' must be written i/n"),
        (
            "--input {corpus} --tokenizer {tokenizer} --out out --part 3/2",
            "part 3/2: the number must lie between 1 and 2",
        ),
        ("--input {corpus} --tokenizer {tokenizer} --out out --workers 0", "workers=0 must be at least 1"),
        ("--input {corpus} --tokenizer {tokenizer} --out out --encoding x", "encoding='x' is unknown"),
        ("--input {corpus} --tokenizer {tokenizer} --out out --language English", "must be a language code"),
        ("--inspect {tokenizer}", "has no index.json"),
        ("--merge {tokenizer} --out out", "has no index.json"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    tmp_path: Path, flow: Flow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: str,
    complaint: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    filled = flags.format(shards=flow.shards, corpus=flow.corpus, tokenizer=flow.tokenizer)
    assert litebert("prepare", *filled.split()) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_tokenizer_command_reads_the_same_inputs(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_bytes("\n".join(PROSE).encode("utf-16"))
    (folder / "b.jsonl").write_text('{"body": "A record of its own."}\n', encoding="utf-8")
    flags = ("--vocab-size", 120, "--text-column", "body")
    assert litebert("tokenizer", "--input", folder, "--out", tmp_path / "tok", *flags) == 0


def test_ray_gives_the_same_bytes(tmp_path: Path, corpus: Path, flow: Flow, whole: dict[str, bytes]) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    assert litebert(*command(corpus, flow, tmp_path / "shards", "--engine", "ray", "--workers", "2")) == 0
    assert shard_bytes(tmp_path / "shards") == whole
