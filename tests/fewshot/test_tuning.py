"""Which tier is used, and what is said of it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert.errors import ConfigError
from litebert.fewshot import Adapted
from litebert.fewshot import contrastive as contrast
from litebert.fewshot import feature_sets as sides
from litebert.fewshot import tuning as tiers
from litebert.fewshot.task import FewShot
from litebert.fewshot.tuning import adapt, adapt_with_tier
from litebert.inference import Model
from tests.fewshot.words import TELLING, texts_of

ENOUGH = 1000.0


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrast, "MIN_STEPS", 8)


@pytest.fixture
def helpful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning, of tier full, that makes a model see the words that tell."""

    def tune(base: Model, records: Any, owners: Any, tier: str, depth: int, **options: Any) -> tuple[Model, Any]:
        for hook in options.get("hooks", ()):
            hook(type("Step", (), {"seconds": 0.0}))
        if tier == "fast":
            return contrast.tune_encoder(base, records, owners, "fast", depth, steps=2)
        albert = copy.deepcopy(base.albert)
        for words, sign in zip(TELLING.values(), (20.0, -20.0), strict=True):
            ids = [number for encoding in base.tokenizer.encode(words) for number in encoding.ids[1:-1]]
            with torch.no_grad():
                albert.encoder.word_embeddings.weight[ids] = torch.linspace(-1, 1, 16) * sign
        return Model(albert, base.tokenizer, max_length=base.max_length), None

    monkeypatch.setattr(tiers, "tune_encoder", tune)


def right(model: Model, seed: int = 99) -> float:
    texts, labels = texts_of(100, seed)
    return float(np.mean([answer.label == label for answer, label in zip(model.predict(texts), labels, strict=True)]))


def test_without_time_nothing_is_tuned_and_it_is_said_how_long_it_would_take(model: Model) -> None:
    texts, labels = texts_of(24, 0)
    found = adapt(model, texts, labels, budget_s=0)
    assert found.evidence.tier == "instant"
    assert [(tier, share) for tier, share, _ in found.evidence.tier_results] == [("fast", None), ("full", None)]
    fast, full = (seconds for _, _, seconds in found.evidence.tier_results)
    assert 0 < fast < full
    with pytest.raises(ConfigError, match="budget_s=-1 must be 0 or more seconds"):
        adapt(model, texts, labels, budget_s=-1)


def test_what_is_better_is_used_and_says_what_it_knows_from_examples_it_has_not_seen(
    model: Model, helpful: None, tmp_path: Path
) -> None:
    texts, labels = texts_of(48, 1)
    begun: dict[str, int] = {}
    steps: Counter[str] = Counter()

    def begin(title: str, count: int) -> Callable[[], None]:
        name = title.split(",")[0] + ", at the end" * ("all examples" in title)
        begun[name] = count
        return lambda: steps.update([name])

    found = adapt(model, texts, labels, budget_s=ENOUGH, begin=begin)
    told = {tier: share for tier, share, _ in found.evidence.tier_results}
    assert found.evidence.tier == "full"
    assert found.evidence.accuracy == told["full"] > told["instant"]
    assert right(found) >= right(adapt(model, texts, labels, budget_s=0))
    assert right(found) == pytest.approx(found.evidence.accuracy, abs=0.15)
    answers = found.predict(texts_of(100, 7)[0])
    assert np.mean([answer.is_unknown for answer in answers]) < 0.2
    assert begun == {"tier fast": 16, "tier full": 16, "tier full, at the end": 8}
    assert steps == {"tier fast": 2, "tier full": 2, "tier full, at the end": 1}  # `helpful` takes one for each half
    assert len(found.evidence.mistakes) == min(5, round(48 * (1 - found.evidence.accuracy)))
    found.save(tmp_path / "full")  # a whole model: it needs no other
    again = litebert.load(tmp_path / "full")
    assert isinstance(again, Adapted)
    assert again.evidence == found.evidence
    assert again.predict(texts[:4]) == found.predict(texts[:4])
    more = again.add_examples(["eggs and butter", "butter and bread"], ["c", "c"])
    assert more.evidence.tier == "full"
    assert more.evidence.remarks[-1] == "2 examples were added after the tuning and are not in the accuracy"
    more.save(tmp_path / "more")
    assert litebert.load(tmp_path / "more").predict(texts[:4]) == more.predict(texts[:4])


def test_what_is_not_better_is_not_used(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contrast.LEARNING_RATES, "full", 1.0)  # which leaves nothing of what the model knew
    texts, labels = texts_of(48, 1)
    found, instant = (adapt(model, texts, labels, budget_s=budget) for budget in (ENOUGH, 0))
    assert found.evidence.tier == "instant"
    assert found.evidence.accuracy == instant.evidence.accuracy
    assert found.predict(texts[:4]) == instant.predict(texts[:4])
    assert [tier for tier, share, _ in found.evidence.tier_results if share is not None] == ["instant", "fast", "full"]


def test_small_changes_are_saved_beside_the_examples(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "is_better", lambda before, after: True)
    monkeypatch.setattr(tiers, "TIERS", ("fast",))
    monkeypatch.setitem(contrast.LEARNING_RATES, "fast", 3e-2)
    model.save(tmp_path / "base")
    base = litebert.load(tmp_path / "base")
    texts, labels = texts_of(32, 2)
    found = adapt(base, [*texts, texts[0]], [*labels, labels[0]], budget_s=ENOUGH, unlabelled=texts_of(6, 5)[0])
    assert found.evidence.remarks == ("1 duplicate examples count once",)
    assert found.evidence.tier == "fast"
    assert found.support.background.count == 6
    found.save(tmp_path / "few")
    written = sorted(path.name for path in (tmp_path / "few").iterdir())
    assert written == ["few_shot.json", "few_shot.safetensors", "sha256.json"]
    again = litebert.load(tmp_path / "few")
    assert isinstance(again, Adapted)
    assert again.predict(texts) == found.predict(texts)
    assert again.evidence == found.evidence
    assert again.tuning == found.tuning
    for one in (found, again):  # `unknown` compares with held-out examples, not with those it was tuned on
        assert isinstance(one.task, FewShot)
        assert one.tuning is not None
        assert one.task.familiar == sorted(one.tuning.familiar)
    assert not torch.allclose(torch.from_numpy(again.embed(texts)), torch.from_numpy(base.embed(texts)))
    more = litebert.adapt(again, ["eggs", "milk"], ["c", "c"], budget_s=ENOUGH)  # nothing is tuned again
    assert (more.evidence.tier, more.evidence.accuracy) == ("fast", found.evidence.accuracy)
    assert more.adapters is again.adapters


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_labels_that_mean_nothing_are_told_no_better_than_by_chance(
    model: Model, tier: contrast.TunedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was tuned: left out of the equation alone, the examples would all look right."""
    monkeypatch.setattr(contrast, "MIN_STEPS", 25)
    monkeypatch.setitem(contrast.LEARNING_RATES, tier, 1e-2)
    shares, sure = [], []
    for seed in range(4):
        texts, labels = texts_of(40, seed, meaningless=True)
        found = adapt_with_tier(adapt(model, texts, labels, budget_s=0, label_names=False), tier)
        assert found.evidence.tier == tier
        shares.append(found.evidence.accuracy)
        sure += [answer.probability for answer in found.predict(texts_of(40, 50)[0])]
    assert np.mean(shares) < 0.6
    assert np.mean(sure) < 0.7


def test_a_handful_of_each_class_is_needed(model: Model) -> None:
    texts, labels = texts_of(6, 0)
    assert adapt(model, texts, labels, budget_s=ENOUGH).evidence.tier_results == ()


def test_the_only_example_of_a_class_is_learned_by_both_halves_and_not_asked(model: Model) -> None:
    texts, labels = texts_of(24, 3)
    found = adapt(model, [*texts, "milk"], [*labels, "c"], budget_s=ENOUGH, label_names=False)
    assert len(found.evidence.tier_results) == 3
    assert found.labels == ["a", "b", "c"]


def test_a_tuned_model_is_bent_only_where_those_that_were_asked_were(
    model: Model, helpful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, labels = texts_of(100, 0)  # halves of 50 are never bent
    instant = adapt(model, texts, labels, budget_s=0)
    instant.evidence = replace(instant.evidence, exponential=True, ridge=0.1)
    assert not adapt_with_tier(instant, "full").evidence.exponential
    monkeypatch.setattr(sides, "MIN_EXPONENTIAL_EXAMPLES", 0)
    monkeypatch.setattr(
        sides, "best_choice", lambda losses: np.zeros(losses.shape[1], dtype=int)
    )  # the first: a bent one
    assert adapt_with_tier(instant, "full").evidence.exponential
