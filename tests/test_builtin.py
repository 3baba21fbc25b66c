"""The models that come with litebert."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert import builtin
from litebert.cli import main
from litebert.inference import Model
from tests.conftest import PROSE

SIZE_LIMIT = {"litebert-base-en": 27.5e6, "litebert-sentences-en": 27.5e6, "litebert-small-zh": 10.5e6}
"""Bytes of a folder: it travels with every installation."""
CLOZE = {
    "Paris is the [MASK] of France.": {"capital"},
    "He was born in 1920 and [MASK] in 1985.": {"died"},
    "They got married and had two [MASK].": {"children", "sons", "daughters", "kids"},
    "She opened the [MASK] and walked into the house.": {"door", "gate"},
    "The battle was fought between the French [MASK] and the British army.": {"army", "troops", "forces", "Army"},
    "The book was first [MASK] in 1987 by Oxford University Press.": {"published"},
    "The river flows into the Atlantic [MASK].": {"Ocean", "ocean"},
    "He studied law at the University [MASK] Oxford.": {"of", "at"},
}
CHINESE_CLOZE = {
    "他们结婚后生了两个[MASK]。": {"孩子", "女儿", "儿子", "子女"},
    "该书于1987年由商务印书馆[MASK]。": {"出版", "发行"},
    "他于1920年出生于上海，1985年在北京[MASK]。": {"去世", "逝世", "病逝"},
    "这部电影由他[MASK]。": {"执导", "导演", "主演", "编剧", "制作", "创作"},
}
STRANGERS = [
    ("A man is playing a guitar.", "Someone plays an instrument.", "Shares fell by 3 percent on Friday."),
    ("The cat sleeps on the sofa.", "A kitten is lying on the couch.", "How do I change my PIN?"),
    ("How can I learn to cook?", "What is the best way to become a good cook?", "Why is the sky blue?"),
    ("The parliament passed a new tax law.", "Lawmakers approved a tax bill.", "A woman is slicing an onion."),
]
"""A text, one that means nearly the same, and one that does not."""


@pytest.fixture(scope="module", params=list(builtin.FOLDERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def english() -> Model:
    return litebert.load(builtin.DEFAULT)


@pytest.fixture(scope="module")
def sentences() -> Model:
    return litebert.load(builtin.SENTENCES)


def test_the_default_is_one_of_them() -> None:
    assert {builtin.DEFAULT, builtin.SENTENCES} <= set(builtin.FOLDERS)
    for other in ("nobody/nothing", "..", f"./x/{builtin.DEFAULT}", "__init__.py"):
        assert builtin.folder_of(other) == Path(other)


def test_each_is_small_and_has_a_card(name: str) -> None:
    folder = builtin.folder_of(name)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < SIZE_LIMIT[name]
    card = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("## Data", "## Training", "## Scores", "## Limits", "## Make it yourself"):
        assert part in card
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


def test_it_loads_without_network_wherever_one_stands(tmp_path: Path) -> None:
    code = (
        "import litebert\n"
        f"print(litebert.load({builtin.DEFAULT!r}).fill_mask('Paris is the [MASK] of France.', top=1)[0].text)"
    )
    closed = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "nothing"), "no_proxy": "*"}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=closed, capture_output=True, text=True)
    assert run.stdout.strip() == "Paris is the capital of France.", run.stderr


def test_whatever_else_has_its_name_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / builtin.DEFAULT).mkdir()
    assert litebert.load(builtin.DEFAULT).config.hidden_size == 768
    assert main(["models"]) == 0


def test_a_slip_gets_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(litebert.CheckpointError, match=f"did you mean {builtin.DEFAULT}?"):
        litebert.load("Litebert-base-eng")


def test_a_folder_of_the_same_name_comes_first(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save(tmp_path / builtin.DEFAULT)
    monkeypatch.chdir(tmp_path)
    assert litebert.load(builtin.DEFAULT).config.hidden_size == model.config.hidden_size


def test_it_knows_english(english: Model) -> None:
    found = {text: english.fill_mask(text, top=1)[0] for text in CLOZE}
    right = [text for text, wanted in CLOZE.items() if found[text].token.removeprefix("▁") in wanted]  # type: ignore[union-attr]
    assert len(right) >= len(CLOZE) - 1, found


@pytest.mark.skipif(builtin.CHINESE not in builtin.FOLDERS, reason=f"the weights of {builtin.CHINESE} are not here")
def test_it_knows_chinese() -> None:
    chinese = litebert.load(builtin.CHINESE)
    found = {text: chinese.fill_mask(text) for text in CHINESE_CLOZE}
    right = [text for text, wanted in CHINESE_CLOZE.items() if {fill.token for fill in found[text]} & wanted]  # type: ignore[union-attr]
    assert len(right) >= len(CHINESE_CLOZE) - 1, found


def test_sentences_that_mean_the_same_are_closer(english: Model) -> None:
    vectors = english.embed(
        ["A man is playing a guitar.", "Someone plays an instrument.", "The parliament passed a new tax law."]
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.05


def test_the_one_for_sentences_tells_a_paraphrase_from_a_stranger(sentences: Model) -> None:
    assert (sentences.passes, sentences.dimensions) == (6, 512)
    for text, same, stranger in STRANGERS:
        assert sentences.similarity(text, same) > sentences.similarity(text, stranger) + 0.15, text
    with pytest.raises(litebert.ConfigError, match="no masked-token head"):
        sentences.fill_mask("Paris is the [MASK] of France.")


@pytest.mark.parametrize("name", [name for name in builtin.FOLDERS if name != builtin.SENTENCES])
def test_transformers_gives_the_same_scores(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = builtin.folder_of(name)
    theirs: Any = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    words: Any = transformers.AutoTokenizer.from_pretrained(folder)
    ours = litebert.load(name)
    text = "Paris is the [MASK] of France."
    asked = words(text, return_tensors="pt")
    assert asked["input_ids"][0].tolist() == ours.tokenizer.encode([text])[0].ids
    with torch.inference_mode():
        scores = theirs(**asked).logits[0]
    at = asked["input_ids"][0].tolist().index(words.mask_token_id)
    best = scores[at].softmax(-1).topk(5)
    fills = ours.fill_mask(text)
    assert [fill.token for fill in fills] == words.convert_ids_to_tokens(best.indices.tolist())  # type: ignore[union-attr]
    np.testing.assert_allclose([fill.probability for fill in fills], best.values, rtol=1e-3)  # type: ignore[union-attr]


def test_sentence_transformers_gives_the_same_vectors(name: str) -> None:
    peer = pytest.importorskip("sentence_transformers")
    texts = ["A man is playing a guitar.", "The parliament passed a new tax law that nobody had asked for."]
    theirs = peer.SentenceTransformer(str(builtin.folder_of(name)), device="cpu").encode(texts)
    closest = 1e-5 if name == builtin.SENTENCES else 2e-4
    np.testing.assert_allclose(litebert.load(name).embed(texts), theirs, atol=closest)


def test_embed_and_search_take_the_one_for_sentences(
    sentences: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(same for _, same, _ in STRANGERS))
    assert main(["embed", "--input", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "v.npy")]) == 0
    wanted = sentences.embed([same for _, same, _ in STRANGERS])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, atol=1e-5)
    search = ["search", "--index", str(tmp_path / "index")]
    assert main([*search, "--add", str(tmp_path / "texts.txt")]) == 0
    assert json.loads((tmp_path / "index" / "index.json").read_text())["model"] == builtin.SENTENCES
    capsys.readouterr()
    assert main([*search, "--query", STRANGERS[1][0], "--top", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["index"] == 1
    assert main([*search, "--model", builtin.DEFAULT, "--query", "x"]) == 2
    assert f"holds vectors of {builtin.SENTENCES}, and" in capsys.readouterr().err


def test_an_index_of_another_model_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("It rains.\nThe parliament passed a law.\n")
    search = ["search", "--index", str(tmp_path / "index")]
    assert main([*search, "--model", builtin.DEFAULT, "--add", str(tmp_path / "texts.txt")]) == 0
    capsys.readouterr()
    assert main([*search, "--query", "A law was passed.", "--top", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["index"] == 1


def test_commands_take_it_where_no_model_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "masked.txt").write_text("The river flows into the Atlantic [MASK].\n")
    assert main(["predict", "--input", str(tmp_path / "masked.txt")]) == 0
    assert "Ocean" in capsys.readouterr().out
    rows = ["text,label"] + [
        f"{word} it,{label}" for label, word in (("good", "love"), ("bad", "hate")) for _ in "12345678"
    ]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    arguments = ["finetune", "--train", str(tmp_path / "train.csv"), "--out", str(tmp_path / "ft"), "--epochs", "1"]
    assert main(arguments) == 0
    assert json.loads((tmp_path / "ft" / "run.json").read_text())["config"]["model"] == builtin.DEFAULT
    assert litebert.load(tmp_path / "ft").config.hidden_size == 768


def test_a_built_in_model_reads_on(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(PROSE))
    shards, out = tmp_path / "shards", tmp_path / "further"
    prepare = ["prepare", "--input", str(tmp_path / "text.txt"), "--tokenizer", builtin.DEFAULT, "--out", str(shards)]
    assert main([*prepare, "--held-out", "0"]) == 0
    further = ["pretrain", "--data", str(shards), "--model", builtin.DEFAULT, "--steps", "1", "--batch-size", "2"]
    assert main([*further, "--length", "32", "--out", str(out)]) == 0
    before, after = (litebert.load(one).encoder.project.weight for one in (builtin.DEFAULT, out))
    assert 0 < (before - after).norm() < 0.2 * before.norm()
