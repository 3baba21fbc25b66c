"""From which sides examples are told apart, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from litebert.errors import ConfigError
from litebert.fewshot.feature_sets import (
    MAX_NESTED_EXAMPLES,
    FeatureSelection,
    FeatureSet,
    TextFeatures,
    accuracy_with_half,
    best_choice,
    candidate_feature_sets,
    default_ridge,
    kernel_matrix,
    ngrams_are_informative,
    readable_names,
    token_frequency,
    token_ngrams,
)
from litebert.fewshot.head import hash_ngrams
from litebert.fewshot.ridge import fit_ridge
from litebert.inference import Model
from litebert.tokenizer import Tokenizer


def noise(per_class: int, classes: int, named: bool, seed: int, signal: float = 0.0) -> tuple[TextFeatures, np.ndarray]:
    """Texts that have nothing to do with their classes, but for a signal after the last pass."""
    chance = np.random.default_rng(seed)
    owners = np.concatenate([np.repeat(np.arange(classes), per_class), np.arange(classes * named)])
    means = chance.normal(size=(len(owners), 3, 64)).astype(np.float32) + 3
    means[:, 2] += signal * chance.normal(size=(classes, 64))[owners]
    tokens, letters = chance.normal(size=(2, len(owners), 256)).astype(np.float32)
    everything = FeatureSet((2, 4, 12), True, characters=True)
    return TextFeatures(everything, means, tokens, np.arange(len(owners)), letters), owners[: per_class * classes]


def choice_of(seen: TextFeatures, classes: np.ndarray, named: bool) -> FeatureSelection:
    count = int(classes.max()) + 1
    return FeatureSelection(seen, seen.means.mean(0), classes, count, np.arange(count * named), require_names=False)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("per_class", "classes"), [(2, 5), (5, 2), (8, 4), (20, 6)])
def test_labels_that_mean_nothing_are_told_no_better_than_by_chance(per_class: int, classes: int, named: bool) -> None:
    right = []
    for seed in range(24 if per_class * classes <= MAX_NESTED_EXAMPLES else 8):
        seen, owners = noise(per_class, classes, named, seed)
        told = choice_of(seen, owners, named).leave_one_out_predictions()
        assert told is not None
        right.append((told == owners).mean())
    assert np.mean(right) < 1 / classes + 0.08


def test_a_single_example_of_each_class_proves_nothing() -> None:
    seen, owners = noise(1, 6, True, 0)
    choice = choice_of(seen, owners, True)
    assert choice.leave_one_out_predictions() is None
    assert choice.best(np.arange(6)) == (candidate_feature_sets(12)[0], True)


@pytest.mark.parametrize(("per_class", "signal"), [(5, 1.5), (30, 0.4)])
def test_the_side_that_tells_classes_apart_is_found(per_class: int, signal: float) -> None:
    seen, owners = noise(per_class, 4, False, 0, signal)
    choice = choice_of(seen, owners, False)
    sides, use_names = choice.best(np.arange(len(owners)))
    assert sides.depths == (12,)
    assert not use_names
    told = choice.leave_one_out_predictions()
    assert told is not None
    assert (told == owners).mean() > 0.8


def test_the_usual_is_left_only_for_what_is_better() -> None:
    """By two in a hundred: names of classes and bent likeness are the usual; of many the first sides."""
    seen, owners = noise(126, 4, True, 0)
    usual = (replace(candidate_feature_sets(12)[0], exponential=True), True)
    choice = choice_of(seen, owners, True)
    assert choice.best(np.arange(len(owners))) == usual  # where nothing tells them apart
    assert best_choice(np.array([[1.0, 1.0], [0.99, 0.9], [0.985, 0.89]])).tolist() == [0, 1]


def test_without_characters_the_last_pass_is_usual() -> None:
    seen, owners = noise(126, 4, False, 0)
    without = replace(seen, available=FeatureSet((2, 4, 12), True), ngrams=None)
    found, _ = choice_of(without, owners, False).best(np.arange(len(owners)))
    assert found == FeatureSet((2, 12), True, exponential=True)


def test_runs_of_characters_are_a_side() -> None:
    seen, owners = noise(6, 4, False, 3)
    assert seen.ngrams is not None
    chance = np.random.default_rng(0)
    letters = seen.ngrams + 2 * chance.normal(size=(4, 256))[owners].astype(np.float32)
    told = choice_of(replace(seen, ngrams=letters), owners, False).leave_one_out_predictions()
    assert told is not None
    assert (told == owners).mean() > 0.8


def test_tokens_are_spelled_with_the_spaces_before_words(model: Model, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "card", "##card", "我"])
    )
    pieces = Model(model.albert, Tokenizer.from_vocab(tmp_path / "vocab.txt"))
    expected = hash_ngrams([*[""] * 5, " card", "card", " 我", *[""] * (model.config.vocab_size - 8)])
    assert torch.equal(token_ngrams(pieces), expected)
    assert ngrams_are_informative(token_ngrams(model), token_frequency(model, ["the rain"]))
    assert not ngrams_are_informative(
        hash_ngrams([" 我", "们", "喜欢", " card"]), torch.tensor([0.04, 0.04, 0.01, 0.01])
    )
    tokens = model.tokenizer.vocabulary()
    whole = next(number for number, token in enumerate(tokens) if token.startswith("▁") and len(token) > 4)
    assert torch.equal(token_ngrams(model)[whole].sort().values, _run(tokens[whole].replace("▁", " "), model))


def _run(word: str, model: Model) -> torch.Tensor:
    """Its places among as many as the vocabulary of the model has."""
    return hash_ngrams([word, "x" * max(map(len, model.tokenizer.vocabulary()))])[0].sort().values


def test_half_of_the_examples_tell_less() -> None:
    seen, owners = noise(8, 5, False, 1, signal=0.7)
    rows = seen.select(FeatureSet((12,), False), seen.means.mean(0))
    half = accuracy_with_half(rows @ rows.T, owners, len(owners), default_ridge(False))
    told = choice_of(seen, owners, False).leave_one_out_predictions()
    assert half is not None
    assert told is not None
    assert 0.2 < half <= (told == owners).mean() + 0.05
    assert accuracy_with_half(rows[:-5], owners[:-5], len(owners) - 5, 1.0) is None  # three of the last class


def test_windows_of_a_text_speak_together() -> None:
    seen, _ = noise(2, 2, False, 0)
    both = TextFeatures(seen.available, seen.means, seen.tokens, np.array([0, 0, 1, 1]), seen.ngrams)
    sides, centre = FeatureSet((2, 12), True, characters=True), np.zeros((3, 64), dtype=np.float32)
    single = seen.select(sides, centre)
    np.testing.assert_allclose(both.select(sides, centre), (single[::2] + single[1::2]) / 2, rtol=1e-5)


def test_names_are_read_where_they_are_words() -> None:
    found = readable_names(["card_arrival", "w2", "LABEL_3", "7", "Über-uns", "退款"], None)
    assert found == {0: "card arrival", 4: "über uns", 5: "退款"}
    assert readable_names(["card_arrival"], False) == {}
    with pytest.raises(ConfigError, match="have no names to read"):
        readable_names(["1", "2"], True)


def test_likeness_is_bent_where_the_middle_of_a_class_says_nothing() -> None:
    chance, owners = np.random.default_rng(0), np.repeat(np.arange(2), 60)
    corners = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)  # the first two are one class
    points = corners[np.concatenate([np.arange(60) % 2, 2 + np.arange(60) % 2])]
    points += 0.2 * chance.normal(size=points.shape).astype(np.float32)
    everything = FeatureSet((2, 4, 12), True, characters=True)
    seen = TextFeatures(everything, np.stack([points] * 3, axis=1), points, np.arange(len(owners)), points)
    choice = choice_of(seen, owners, False)
    sides, _ = choice.best(np.arange(len(owners)))
    told = choice.leave_one_out_predictions()
    assert sides.exponential
    assert told is not None
    assert (told == owners).mean() > 0.9
    bent = kernel_matrix(seen.select(sides, seen.means.mean(0)), exponential=True)
    assert accuracy_with_half(bent, owners, len(owners), default_ridge(True)) > 0.85  # type: ignore[operator]
    straight = fit_ridge(kernel_matrix(seen.select(sides, seen.means.mean(0)), exponential=False), owners, 2)
    assert (straight.left_out_scores.argmax(1) == owners).mean() < 0.8
    few = np.r_[:20, 60:80]
    seen = TextFeatures(seen.available, seen.means[few], points[few], np.arange(40), points[few])
    assert not choice_of(seen, owners[few], False).best(np.arange(40))[0].exponential  # by so few that is not decided
