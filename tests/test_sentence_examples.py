"""The scripts of examples/ that teach sentence vectors."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors

import litebert
from litebert.inference import Model
from tests.conftest import PROSE
from tests.test_examples import run, sts_of


def test_short_texts_are_capped_once_each_and_none_of_those_excluded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"{line} {number}" for number, line in enumerate(PROSE)))
    long = "One sentence stands here. " * 12
    (tmp_path / "b.txt").write_text(f"This one is not allowed!\nThis one is kept.\nthis one is kept\nno\n\n{long}\n")
    (tmp_path / "excluded.txt").write_text("this one is NOT allowed\n")
    sources = [f"{tmp_path / 'a.txt'}:5", f"{tmp_path / 'b.txt'}:100:1"]
    done = run(
        "builtin/short_texts.py", *sources, "--out", tmp_path, "--exclude", tmp_path / "excluded.txt", "--parts", 2
    )
    assert done.returncode == 0, done.stderr
    parts = [lzma.decompress((tmp_path / f"texts-{part}.txt.xz").read_bytes()).decode().splitlines() for part in (1, 2)]
    texts = [text for part in parts for text in part]
    assert abs(len(parts[0]) - len(parts[1])) <= 1
    assert sum(text.lower().startswith("this one is") for text in texts) == 1
    assert long.strip() in texts
    assert "no" not in texts
    assert len([line for line in done.stdout.splitlines() if line.startswith("5 texts")]) == 1


def teacher_in(folder: Path, seed: int, hidden: int, further: str = "more") -> Path:
    """A small BERT that has learned nothing, with a vocabulary of words."""
    transformers = pytest.importorskip("transformers")
    words = sorted({word for line in PROSE for word in line.lower().split()})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, further]
    tokenizer = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(names)}, "[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(names), hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_two_teachers_are_learned_at_three_depths_and_learning_goes_on(model: Model, tmp_path: Path) -> None:
    texts = [f"{line} {number}" for number, line in enumerate(PROSE)]
    (tmp_path / "texts.txt.xz").write_bytes(lzma.compress("\n".join(texts).encode()))
    model.save(tmp_path / "start")
    arguments: list[object] = ["--texts", tmp_path / "texts.txt.xz", "--out", tmp_path / "out"]
    arguments += ["--teacher", f"{teacher_in(tmp_path / 'one', 0, 16)},mean,1"]
    arguments += ["--teacher", f"{teacher_in(tmp_path / 'two', 1, 24)},cls,0.5,the: "]
    arguments += ["--pairs", sts_of(tmp_path) / "dev.tsv"]
    arguments += ["--dimensions", 12, "--batch-size", 8, "--max-length", 32]
    done = run("builtin/distill_sentences.py", "--model", tmp_path / "start", *arguments, "--steps", 6)
    assert done.returncode == 0, done.stderr
    assert "12 of 40 components" in done.stdout
    assert done.stdout.splitlines()[-1].count("0.") >= 3
    taught = litebert.load(tmp_path / "out" / "model")
    assert (taught.passes, taught.dimensions) == (6, 12)
    assert np.linalg.norm(taught.embed(texts[:4]), axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    again = run("builtin/distill_sentences.py", "--model", tmp_path / "out" / "model", *arguments, "--steps", 1)
    assert again.returncode == 0, again.stderr
    assert "components" not in again.stdout  # the targets of the first run stay


def test_teachers_of_two_vocabularies_are_refused(model: Model, tmp_path: Path) -> None:
    one, two = teacher_in(tmp_path / "one", 0, 16), teacher_in(tmp_path / "two", 0, 16, "other")
    model.save(tmp_path / "start")
    done = run(
        "builtin/distill_sentences.py", "--model", tmp_path / "start", "--texts", tmp_path / "none.xz",
        "--teacher", f"{one},mean,1", "--teacher", f"{two},mean,1", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 1
    assert "another vocabulary" in done.stderr
