"""Steps that bring texts of one class together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from litebert.fewshot import contrastive as module
from litebert.fewshot.contrastive import (
    BATCH_SIZE,
    TunedTier,
    centred_contrastive_loss,
    num_steps,
    num_trained_passes,
    sample_batch,
    tune_encoder,
)
from litebert.inference import Model
from litebert.model import Encoder
from litebert.model.backends import Passes
from litebert.tasks.text import TextInput
from litebert.train.loop import Step
from tests.fewshot.words import texts_of


def test_the_loss_is_that_of_choosing_a_text_of_ones_own_class() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    owners = torch.tensor([0, 0, 1, 1])
    right = math.exp(1 / module.TEMPERATURE)
    wrong = 2 * math.exp(-1 / module.TEMPERATURE)
    assert centred_contrastive_loss(vectors, owners).item() == pytest.approx(
        -math.log(right / (right + wrong)), abs=1e-6
    )
    assert centred_contrastive_loss(vectors, torch.tensor([0, 1, 0, 1])) > centred_contrastive_loss(vectors, owners)
    assert torch.equal(centred_contrastive_loss(vectors + 5, owners), centred_contrastive_loss(vectors, owners))


def test_a_class_of_one_has_nothing_to_be_brought_together() -> None:
    vectors = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    centred_contrastive_loss(vectors, torch.tensor([0, 0, 1, 1, 2])).backward()
    assert vectors.grad is not None
    assert torch.isfinite(vectors.grad).all()
    assert centred_contrastive_loss(vectors, torch.arange(5)) == 0


@pytest.mark.parametrize(("classes", "each"), [(2, 50), (77, 5), (150, 1), (3, 2)])
def test_a_batch_has_several_of_each_of_its_classes(classes: int, each: int) -> None:
    owners = np.repeat(np.arange(classes), each)
    for step in range(3):
        chosen = sample_batch(owners, 0, step)
        assert len(set(chosen.tolist())) == len(chosen) <= BATCH_SIZE + module.MIN_TEXTS_PER_CLASS
        assert len(chosen) >= min(BATCH_SIZE, len(owners))
        assert np.bincount(owners[chosen]).max() >= min(each, module.MIN_TEXTS_PER_CLASS)
    assert sample_batch(owners, 0, 1).tolist() == sample_batch(owners, 0, 1).tolist()
    assert sample_batch(owners, 0, 1).tolist() != sample_batch(owners, 1, 1).tolist()


def test_more_examples_take_more_steps() -> None:
    assert num_steps(10) == module.MIN_STEPS
    assert num_steps(100 * BATCH_SIZE) == 100 * module.EPOCHS


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_the_loss_falls_and_the_given_model_stays(
    model: Model, tier: TunedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.LEARNING_RATES, tier, 1e-2)
    texts, labels = texts_of(32, 0)
    records, owners = [TextInput(text) for text in texts], np.array([label == "a" for label in labels]).astype(int)
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    state, losses = torch.get_rng_state(), []

    def hear(step: Step) -> None:
        losses.append(step.metrics["loss"])

    tuned, adapters = tune_encoder(model, records, owners, tier, 3, steps=30, hooks=[hear])
    assert losses[-1] < losses[0] - 0.3
    assert all(torch.equal(before[name], value) for name, value in model.encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    again, others = tune_encoder(model, records, owners, tier, 3, steps=30)
    if adapters is None or others is None:
        assert tier == "full"
        assert tuned is not model
        assert torch.equal(tuned.encoder.attention[0].qkv.weight, again.encoder.attention[0].qkv.weight)
        assert not torch.equal(tuned.encoder.attention[0].qkv.weight, before["attention.0.qkv.weight"])
    else:
        assert tuned is model
        assert torch.equal(adapters.up, others.up)
        assert adapters.up[0].count_nonzero() == 0  # the lower passes are kept as they are
        assert adapters.up[2].count_nonzero() > 0


@pytest.mark.parametrize(("tier", "read", "learned"), [("fast", {1, 2}, 1), ("full", {2}, 2)])
def test_passes_above_the_depth_are_not_read_and_learn_nothing(
    model: Model, tier: TunedTier, read: set[int], learned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, labels = texts_of(16, 0)
    records, owners = [TextInput(text) for text in texts], np.array([label == "a" for label in labels]).astype(int)
    reached: set[int] = set()
    run_passes = Encoder.run_passes

    def recorded(self: Encoder, hidden: torch.Tensor, layout: Any, passes: Passes, *rest: Any) -> Any:
        reached.add(passes.stop)
        return run_passes(self, hidden, layout, passes, *rest)

    monkeypatch.setattr(Encoder, "run_passes", recorded)
    _, adapters = tune_encoder(model, records, owners, tier, 2, steps=3)
    assert reached == read
    assert num_trained_passes(tier, 2) == learned
    if adapters is not None:
        assert [bool(one.count_nonzero()) for one in adapters.up] == [False, True, False]
