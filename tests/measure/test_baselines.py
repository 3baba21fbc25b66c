"""Baselines, against what a pencil gives."""

from __future__ import annotations

import pytest

from litebert.measure.baselines import bag_of_words, majority


@pytest.mark.parametrize(
    ("train", "test", "accuracy"),
    [
        (["a", "a", "b"], ["a", "b", "b", "b"], 0.25),
        (["b", "a", "b"], ["a", "b", "b", "b"], 0.75),
        (["a"], ["b"], 0.0),
    ],
)
def test_majority_is_the_share_of_the_commonest_training_label(
    train: list[str], test: list[str], accuracy: float
) -> None:
    assert majority(train, test) == accuracy


def test_bag_of_words_sorts_by_words() -> None:
    texts, labels = ["red apple", "red cherry", "blue sky", "blue sea"], ["red", "red", "blue", "blue"]
    assert bag_of_words(texts, labels, ["a red car", "blue eyes"], ["red", "blue"]) == 1.0
    assert bag_of_words(texts, labels, ["a red car", "something red"], ["red", "blue"]) == 0.5


def test_bag_of_words_sees_word_pairs() -> None:
    texts = ["not good", "good", "not bad", "bad"] * 5
    labels = ["-", "+", "+", "-"] * 5
    assert bag_of_words(texts, labels, texts[:4], labels[:4]) == 1.0
