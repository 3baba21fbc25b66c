"""The scripts of examples/."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import litebert
from litebert.cli import main, parse
from litebert.data.shards import Shards
from litebert.inference import Model
from litebert.model.sentence_head import SentenceMap, unit
from litebert.tasks import Answer, Similarity
from tests.conftest import PROSE, missing
from tests.interop.test_huggingface import random_model

EXAMPLES = Path(__file__).parent.parent / "examples"
SENTENCES = [f"{' '.join(text.split()[:5])} {number}." for number, text in enumerate(PROSE)]
DOCUMENTS = [SENTENCES[start : start + 8] for start in range(0, len(SENTENCES), 8)]


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


SCRIPTS = {
    "make.sh": ["corpus", "tasks", "out"],
    "make-zh.sh": ["zh.txt", "tasks", "out"],
    "measure.sh": ["litebert-base-en", "shards", "tasks", "out"],
    "measure-zh.sh": ["litebert-small-zh", "shards", "tasks", "out"],
}


def said_by(script: str, folder: Path) -> list[list[str]]:
    """The commands that a script gives, with stand-ins that do nothing for the programs it calls."""
    (folder / "bin").mkdir()
    (folder / "zh.txt").write_text("一\n", encoding="utf-8")
    for program in ("litebert", "python", "opencc"):
        (folder / "bin" / program).write_text(f'#!/bin/sh\necho "{program} $*" >> said\n')
        (folder / "bin" / program).chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(EXAMPLES / "builtin" / script), *SCRIPTS[script]]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in (folder / "said").read_text().splitlines()]


@pytest.mark.parametrize("script", SCRIPTS)
def test_litebert_knows_every_flag_that_a_script_gives_it(script: str, tmp_path: Path) -> None:
    said = said_by(script, tmp_path)
    ours = [words[1:] for words in said if words[0] == "litebert"]
    assert ours
    for recipe, *flags in ours:
        parse(import_module(f"litebert.commands.{recipe}").Config, recipe, flags)
    for other in (words[1] for words in said if words[0] == "python" and words[1] != "-c"):
        assert Path(other).is_file()


def test_what_is_made_is_not_made_again_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    for done in ("simplified.txt", "tokenizer/tokenizer.json", "shards/index.json", "pretrained/checkpoints/latest"):
        (tmp_path / "out" / done).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / done).touch()
    said = said_by("make-zh.sh", tmp_path)
    assert [words[:2] for words in said] == [
        ["python", str(EXAMPLES / "builtin" / "evaluation_texts.py")],
        ["litebert", "pretrain"],
        ["python", "-c"],
    ]
    assert said[1][-1] == "--resume"


def test_texts_of_test_sets_are_gathered_from_every_kind_of_file(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    (tasks / "train").mkdir(parents=True)
    for name, content in {
        "test.csv": 'label,text\nbilling,"charged twice, she said"\n',
        "dev.tsv": 'a "quote never closes\tsecond cell\n',
        "a.json": '{"q": "in json", "tokens": ["one", "by", "one"]}\n{"q": "after it"}',
        "eng.testa": "EU NNP\nwins VB\n\nIt PRP\n",
        "seq.in": "plain line\n",
        "constraints-dev.txt": "not for learning\n",
        "train.tsv": "learned\n",
        "train/x.txt": "too\n",
        ".hidden": "not this\n",
    }.items():
        (tasks / name).write_text(content)
    (tasks / "test.de.gz").write_bytes(gzip.compress(b"packed line\n"))
    done = run("builtin/evaluation_texts.py", tasks, "--out", tmp_path / "out.txt")
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "out.txt").read_text().splitlines()) == {
        "label", "text", "billing", "charged twice, she said", 'a "quote never closes', "second cell", "in json", "one",
        "by", "one by one", "after it", "EU wins", "It", "plain line", "not for learning", "packed line",
    }  # fmt: skip


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        done = run("builtin/evaluation_texts.py", folder, "--out", tmp_path / "out.txt")
        assert (done.returncode, "no text found there" in done.stderr) == (2, True)
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    assert "unpack it" in run("builtin/evaluation_texts.py", tmp_path, "--out", tmp_path / "out.txt").stderr


def sts_of(folder: Path) -> Path:
    """Pairs of the same sentence, and of two."""
    texts = [sentence for document in DOCUMENTS for sentence in document]
    rows = ["index\tsentence1\tsentence2\tscore"]
    rows += [f"{n}\t{texts[n % 20]}\t{texts[n % 20 if n % 2 else -1]}\t{5 * (n % 2)}" for n in range(200)]
    (folder / "sts").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / "sts" / name).write_text("\n".join(rows))
    return folder / "sts"


def test_a_model_learns_which_sentences_belong_together(model: Model, tmp_path: Path) -> None:
    shards_of(model, tmp_path)
    model.save(tmp_path / "model")
    arguments = ["--data", tmp_path / "shards", "--sts", sts_of(tmp_path), "--pairs", 64, "--sizes", 8]
    arguments += ["--steps", 6, "--batch-size", 8, "--half"]
    done = run("builtin/embeddings.py", "--model", tmp_path / "model", "--out", tmp_path / "out", *arguments)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    ways = ("all tokens alike", "rare tokens first", "rare tokens far first")
    tried = [f"{way}, {kind}" for way in ways for kind in ("no map", "whitened, 8", "learned")]
    assert [line.split(":")[0] for line in told] == [*["learned"] * 3, *tried, "taken", "saved", "saved"]
    best = max(
        tried,
        key=lambda one: next(
            float(line.split("Spearman ")[1].split()[0]) for line in told if line.startswith(f"{one}:")
        ),
    )
    taught = litebert.load(tmp_path / "out")
    assert f"taken: {best}" in told
    assert taught.sentence_map is not None
    assert (taught.sentence_map.tokens is None) == best.startswith("all")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    with safe_open(tmp_path / "out" / "2_Dense" / "model.safetensors", "pt") as file:
        assert file.get_tensor("linear.weight").dtype == torch.float16


def test_a_map_is_learned_that_hears_the_meaning_under_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "builtin"))
    embeddings = import_module("embeddings")
    chance, meaning = np.random.default_rng(0), np.zeros((400, 16), np.float32)
    meaning[:, :4] = chance.normal(size=(400, 4))
    loud = [0.1] * 4 + [3.0] * 12  # what is said beside it is louder, and other each time
    once, again, after = ((meaning + loud * chance.normal(size=meaning.shape)).astype(np.float32) for _ in range(3))
    options = Namespace(steps=200, batch_size=64, learning_rate=1e-2)
    mapped = embeddings.learned(once, again, after, options)

    def found(one: np.ndarray, other: np.ndarray) -> float:
        one, other = (means / np.linalg.norm(means, axis=1, keepdims=True) for means in (one, other))
        return float(np.mean((one @ other.T).argmax(axis=1) == np.arange(len(one))))

    assert found(once, again) < 0.1
    assert found(mapped(once), mapped(again)) > 0.6


def test_pairs_are_neighbours_of_one_document(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "builtin"))
    shards = shards_of(model, tmp_path)
    following = {pair for document in DOCUMENTS for pair in pairwise(as_read(model, text) for text in document)}
    pairs = import_module("embeddings").pairs_of(shards, 1000)
    assert 20 < len(pairs) == len(set(pairs))
    assert set(pairs) <= following


def test_what_a_model_knows_of_held_out_documents(model: Model, tmp_path: Path) -> None:
    shards_of(model, tmp_path)
    model.save(tmp_path / "model")
    arguments = ["--data", tmp_path / "shards", "--length", 64, "--text", tmp_path / "held-out.txt"]
    done = run("builtin/held_out.py", "--model", tmp_path / "model", *arguments)
    assert done.returncode == 0, done.stderr
    figures = r"tokens right [\d.]+% \(all hidden\), [\d.]+% \(as in the paper\); order right [\d.]+% of [1-9]\d* pairs"
    assert re.fullmatch(f"length 64: {figures}\n", done.stdout)
    written = (tmp_path / "held-out.txt").read_text().strip().split("\n\n")
    whole = {" ".join(as_read(model, text) for text in document) for document in DOCUMENTS}
    assert len(written) > 1
    assert {document.replace("\n", " ") for document in written} < whole


def test_questions_without_an_answer_are_left_out(tmp_path: Path) -> None:
    def file(name: str, *answers: list[dict[str, object]]) -> Path:
        asked = [{"id": f"{name}{n}", "question": "who?", "answers": some} for n, some in enumerate(answers)]
        content = {"data": [{"title": name, "paragraphs": [{"context": "Ann did.", "qas": asked}]}]}
        (tmp_path / name).write_text(json.dumps(content))
        return tmp_path / name

    answer: list[dict[str, object]] = [{"text": "Ann", "answer_start": 0}]
    done = run("builtin/squad.py", file("a", answer, []), file("b", answer), "--out", tmp_path / "new" / "c.json")
    assert done.returncode == 0, done.stderr
    assert "2 questions" in done.stdout
    records = Answer.read(tmp_path / "new" / "c.json")
    assert [record.answers[0].text for record in records] == ["Ann", "Ann"]


def require_keras() -> None:
    if find_spec("keras") is None:  # to import it here would want TensorFlow
        missing("keras")


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 4}, {"sharing": "none", "hidden_act": "gelu"}],
)
def test_keras_computes_what_litebert_does(changes: dict[str, Any], model: Model, tmp_path: Path) -> None:
    require_keras()
    config = replace(model.config, **changes)
    random_model(config, model.tokenizer).save(tmp_path)
    done = run("keras_albert.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"on torch, \d+ tokens: differs by (\S+)\n", done.stdout)[1]) <= 1e-5  # type: ignore[index]


def test_the_example_in_keras_refuses_what_it_does_not_compute(model: Model, tmp_path: Path) -> None:
    require_keras()
    random_model(replace(model.config, depth_embedding=True), model.tokenizer).save(tmp_path)
    done = run("keras_albert.py", tmp_path)
    assert (done.returncode, "more than a plain ALBERT" in done.stderr) == (1, True)


def shards_of(model: Model, tmp_path: Path) -> Shards:
    """Of documents that were made up, some held out."""
    (tmp_path / "text.txt").write_text("\n\n".join(map("\n".join, DOCUMENTS)))
    model.tokenizer.save(tmp_path / "tok")
    files = ["--input", str(tmp_path / "text.txt"), "--tokenizer", str(tmp_path / "tok"), "--held-out", "0.2"]
    assert main(["prepare", *files, "--out", str(tmp_path / "shards")]) == 0
    return Shards(tmp_path / "shards")


def as_read(model: Model, text: str) -> str:
    return model.tokenizer.decode(model.tokenizer.encode([text])[0].ids)


def test_all_weights_learn_which_sentences_follow_each_other(model: Model, tmp_path: Path) -> None:
    shards_of(model, tmp_path)
    model.save(tmp_path / "model")
    arguments = ["--data", tmp_path / "shards", "--sts", sts_of(tmp_path)]
    arguments += ["--steps", 100, "--batch-size", 16, "--passes", 1, "--looks", 2, "--learning-rate", 0.01, "--half"]
    done = run("builtin/sentences.py", "--model", tmp_path / "model", "--out", tmp_path / "out", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "result.json").read_text())["found"]
    assert list(found)[:3] == ["before", "step 50", "step 100"]
    assert found["train"] == max(value for name, value in found.items() if name.startswith("1 "))
    taught = litebert.load(tmp_path / "out")
    assert (taught.config.num_hidden_layers, model.config.num_hidden_layers) == (1, 3)
    assert not np.allclose(
        taught.encoder.word_embeddings.weight.detach(), model.encoder.word_embeddings.weight.detach()
    )
    known = [pair for document in DOCUMENTS for pair in pairwise(document)]

    def nearer(one: Model) -> float:
        """Neighbours than any two."""
        first, second = (unit(one.embed([pair[side] for pair in known])) for side in (0, 1))
        alike = first @ second.T
        return float(alike.diagonal().mean() - alike.mean())

    assert nearer(taught) > 2 * nearer(model)


def test_a_batch_pairs_sentences_with_the_next_of_their_document(model: Model, tmp_path: Path, sentences: Any) -> None:
    shards = shards_of(model, tmp_path)
    left, right = sentences.Pool.of(shards).pairs(50, np.random.default_rng(0))
    assert (left[:, 1] == right[:, 0]).all()
    ids = np.concatenate(shards.training.ids)
    read = [[model.tokenizer.decode(ids[start:end].tolist()) for start, end in side.tolist()] for side in (left, right)]
    following = {pair for document in DOCUMENTS for pair in pairwise(as_read(model, text) for text in document)}
    assert 5 < len(set(zip(*read, strict=True)) & following) == len(set(zip(*read, strict=True)))


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that trains sentence vectors without labels."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "builtin"))
    return import_module("sentences")


def test_vectors_are_made_the_way_that_the_pairs_like_best(model: Model, tmp_path: Path, sentences: Any) -> None:
    pairs = Similarity.read(sts_of(tmp_path) / "train.tsv")
    model.sentence_map = SentenceMap.plain(model.config.hidden_size)
    before = sentences.correlation(model, pairs)
    found = sentences.settled(model, SENTENCES, pairs)
    # cosines of a sentence with itself are 1 but for rounding, which orders them
    assert found["1 mapped, own 0.0"] == pytest.approx(before, abs=0.03)
    assert found["train"] == max(found.values()) > before
    assert sentences.correlation(model, pairs) == pytest.approx(found["train"], abs=0.03)
