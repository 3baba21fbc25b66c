"""Examples as they are given: pairs of texts, and texts that have two labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import litebert
from litebert.errors import ConfigError, DataError
from litebert.fewshot import Adapted
from litebert.fewshot.adapt import adapt_frozen as adapt
from litebert.inference import Model
from tests.fewshot.test_adapt import labels_of
from tests.fewshot.words import OTHERS


def pairs_that_say_the_same(count: int, seed: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Or not; what they are about is another thing each time."""
    chance = np.random.default_rng(seed)
    pairs, labels = [], []
    for number in range(count):
        first, second = (chance.choice(OTHERS, 5, replace=False).tolist() for _ in range(2))
        labels.append(["same", "other"][number % 2])
        pairs.append((" ".join(first), " ".join(chance.permutation(first) if labels[-1] == "same" else second)))
    return pairs, labels


def test_pairs_are_told_apart(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "base")
    pairs, labels = pairs_that_say_the_same(20, 0)
    found = adapt(litebert.load(tmp_path / "base"), pairs, labels)
    asked, truth = pairs_that_say_the_same(40, 1)
    answers = [answer.label for answer in found.predict(asked)]
    assert np.mean([answer == label for answer, label in zip(answers, truth, strict=True)]) > 0.9
    assert "apart" in found.evidence.views
    assert not found.evidence.label_names  # a name is no pair
    found.save(tmp_path / "few")
    again = litebert.load(tmp_path / "few")
    assert again.predict(asked) == found.predict(asked)
    assert isinstance(again, Adapted)
    assert again.add_examples([("eggs", "butter")], ["other"]).evidence.examples == 21
    with pytest.raises(DataError, match="a single text, but this task is about pairs"):
        again.predict(["alone"])
    with pytest.raises(DataError, match="example 1: a single text among pairs"):
        again.add_examples(["alone"], ["same"])
    for options in ({"unlabelled": ["some text"]}, {"label_names": True}):
        with pytest.raises(ConfigError, match="names of classes and unlabelled texts do not work with pairs"):
            adapt(model, pairs, labels, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="example 1: '' is no text"):
        adapt(model, [("eggs", ""), ("eggs", "milk")], ["same", "other"])


def test_pairs_can_be_about_what_both_say(model: Model) -> None:
    """Where the first is the same in all, and nothing says which of two is meant but the words."""
    texts = [("the rain fell", f"{word} {number}") for number in range(6) for word in ("breakfast", "thunder")]
    found = adapt(model, texts, ["food", "weather"] * 6)
    assert "whole" in found.evidence.views
    assert labels_of(found, [("the rain fell", "breakfast 7"), ("the rain fell", "thunder 9")]) == ["food", "weather"]


def test_texts_with_two_labels_can_be_left_out(model: Model) -> None:
    texts, labels = ["the rain", "eggs", "butter", "The rain", "eggs", "snow"], ["w", "f", "f", "f", "f", "w"]
    found = adapt(model, texts, labels, skip_conflicts=True)
    assert [record.text for record in found.support.records] == ["eggs", "butter", "snow"]
    assert found.evidence.remarks[:2] == (
        "1 duplicate examples count once",
        "1 texts with two labels left out, the first: example 4: 'The rain' is 'f' here and 'w' in example 1",
    )
