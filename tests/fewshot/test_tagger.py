"""Taggers from a handful of sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import litebert
from litebert.errors import DataError
from litebert.fewshot.tagger import MAX_WORDS, adapt_tags
from litebert.inference import Model
from litebert.tasks.tag import Span, TagInput
from tests.fewshot.words import OTHERS

NAMES = {"who": ["keeper", "baker", "children"], "where": ["village", "library", "garden"]}


def sentences_of(count: int, seed: int, meaningless: bool = False) -> list[TagInput]:
    """Each names somebody and some place, of which one word is marked; if that is to mean nothing, any others are."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = [str(chance.choice(NAMES["who"])), str(chance.choice(NAMES["where"])), *chance.choice(OTHERS, 5)]
        order = chance.permutation(len(words))
        marked = dict(zip(chance.permutation(len(words)) if meaningless else (0, 1), NAMES, strict=False))
        text, spans = "", []
        for number in order.tolist():
            start = len(text) + bool(text)
            text = f"{text} {words[number]}".strip()
            if number in marked:
                spans.append(Span(start, len(text), marked[number], words[number]))
        found.append(TagInput(text, spans=tuple(spans)))
    return found


def f1_of(tagger: Model, records: list[TagInput]) -> float:
    asked = [replace(record, spans=None) for record in records]
    assert tagger.task is not None
    found: dict[str, float] = tagger.task.metrics(records, tagger.answer_records(asked))  # type: ignore[attr-defined]
    return found["f1"]


def test_what_words_are_is_told_from_a_handful_of_sentences(model: Model, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    found, evidence = adapt_tags(model, sentences_of(60, 0))
    assert all(torch.equal(before[name], value) for name, value in model.encoder.state_dict().items())
    assert (evidence.sentences, evidence.spans, evidence.kinds) == (60, 120, 2)
    assert evidence.f1 is not None
    assert evidence.f1 > 0.3  # first pieces of words, which are all that is read, are seldom theirs alone here
    new = sentences_of(40, 1)
    assert f1_of(found, new) == pytest.approx(evidence.f1, abs=0.2)
    assert found.config.num_hidden_layers == evidence.depth <= model.config.num_hidden_layers
    found.save(tmp_path)
    again = litebert.load(tmp_path)
    assert again.config.num_hidden_layers == evidence.depth
    assert again.answer_records(new) == found.answer_records(new)


def test_spans_that_mean_nothing_are_not_told(model: Model) -> None:
    shares = [adapt_tags(model, sentences_of(20, seed, meaningless=True))[1].f1 for seed in range(3)]
    assert np.mean([share for share in shares if share is not None]) < 0.15


def test_long_sentences_are_read_in_windows(model: Model) -> None:
    long = [
        TagInput(
            f"{'the weather ' * 40}{record.text}",
            spans=tuple(replace(span, start=span.start + 480, end=span.end + 480) for span in record.spans or ()),
        )
        for record in sentences_of(8, 2)
    ]
    assert len(model.tokenizer.encode([long[0].text])[0].ids) > model.max_length
    found, evidence = adapt_tags(model, long)
    assert evidence.spans == 16
    assert found.answer_records(long[:1])[0].spans


def test_one_sentence_proves_nothing_and_too_many_are_refused(model: Model) -> None:
    assert adapt_tags(model, sentences_of(1, 0))[1].f1 is None
    with pytest.raises(DataError, match=r"words: adapt takes up to 6,000; litebert finetune learns more"):
        adapt_tags(model, sentences_of(MAX_WORDS // 7 + 1, 0))
    with pytest.raises(DataError, match="0 kinds of spans in 1 texts"):
        adapt_tags(model, [TagInput("nothing here", spans=())])
