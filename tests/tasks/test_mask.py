"""Filling gaps."""

from __future__ import annotations

import pytest
import torch

from litebert.errors import DataError
from litebert.predict import Model
from litebert.tasks.mask import Mask
from tests.conftest import peer


def test_probabilities_are_the_model_s_softmax_at_the_mask(model: Model) -> None:
    text = "the baker opened at [MASK]"
    fills = model.fill_mask(text, top=4)
    encoding = model.tokenizer.encode([text])[0]
    at = encoding.ids.index(model.tokenizer.mask_id)
    with torch.inference_mode():
        hidden = model.encoder(torch.tensor([encoding.ids]))[0, at]
        expected = model.albert.heads["mlm"](hidden, model.encoder.word_embeddings.weight).softmax(-1).topk(4)
    assert [fill.probability for fill in fills] == pytest.approx(expected.values.tolist())  # type: ignore[union-attr]
    tokens = [model.tokenizer.token(number) for number in expected.indices.tolist()]
    assert [fill.token for fill in fills] == tokens  # type: ignore[union-attr]


def test_transformers_fill_mask_pipeline_agrees(model: Model, tmp_path: object) -> None:
    transformers = peer("transformers")
    model.save(str(tmp_path))
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path), device="cpu")(
        "the baker opened at [MASK]", top_k=5
    )
    ours = model.fill_mask("the baker opened at [MASK]", top=5)
    assert [fill.token for fill in ours] == [model.tokenizer.token(t["token"]) for t in theirs]  # type: ignore[union-attr]
    assert [fill.probability for fill in ours] == pytest.approx([t["score"] for t in theirs], abs=1e-6)  # type: ignore[union-attr]


def test_a_mask_beyond_the_model_s_length_is_named(model: Model) -> None:
    with pytest.raises(DataError, match=r"no \[MASK\] in its first 64 tokens"):
        model.fill_mask("word " * 100 + "[MASK]")


@pytest.mark.parametrize("item", [3, {"txt": "x"}, None])
def test_what_is_not_a_text_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(DataError, match="line 4"):
        Mask().parse(item, "line 4")
