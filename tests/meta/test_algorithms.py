"""Learning to learn: every algorithm on a toy language, and MAML's gradient against differences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from litebert.data.episodes import Episode, draw_episode
from litebert.errors import CheckpointError
from litebert.inference import Model
from litebert.meta.algorithms import contrastive_loss, episode_accuracies, episode_accuracy, episode_loss, query_scores
from litebert.meta.learner import EpisodeTexts, Learner
from litebert.meta.settings import Algorithm, Distance
from litebert.model.sentence_head import SentenceMap
from litebert.train.guard import StepGuard
from litebert.train.loop import train
from litebert.train.optimizers import ParameterOptions, adamw, warmup_linear
from tests.meta.toy import NEW, SHAPE, TRAIN, make_learner, questions, texts

Tokens = list[list[int]]


@pytest.fixture(scope="module")
def examples() -> Tokens:
    return texts()


def accuracy(learner: Learner, examples: Tokens) -> float:
    """On classes that nobody learns from."""
    return sum(episode_accuracy(learner, questions(examples, NEW, n)) for n in range(SHAPE.episodes)) / SHAPE.episodes


def taught(learner: Learner, examples: Tokens, steps: int = 60, rate: float = 2e-3) -> Learner:
    own = {name: ParameterOptions(scale=5.0) for name, _ in learner.named_parameters() if "log_" in name}
    assert train(
        learner, lambda one: episode_loss(learner, one), lambda step: [questions(examples, TRAIN, step)],
        adamw(learner, weight_decay=0.0, parameter_options=own), warmup_linear(rate, steps), steps=steps,
        guard=StepGuard({"model": learner}, max_loss_jump=math.inf),
    )  # fmt: skip
    return learner


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_every_algorithm_gets_better_at_classes_it_has_not_seen(algorithm: Algorithm, examples: Tokens) -> None:
    learner = make_learner(algorithm, inner_steps=2)
    before = accuracy(learner, examples)
    assert before < 0.4
    assert accuracy(taught(learner, examples), examples) > before + 0.12


@pytest.mark.parametrize("algorithm", ["proto", "contrast", "anil"])
def test_many_episodes_at_once_are_answered_as_one_by_one(algorithm: Algorithm, examples: Tokens) -> None:
    learner = make_learner(algorithm, inner_steps=2).train()
    episodes = [draw_episode(NEW, SHAPE, 0, number) for number in range(SHAPE.episodes)]
    found = episode_accuracies(learner, episodes, examples, torch.device("cpu"))
    assert found == pytest.approx(
        [episode_accuracy(learner, questions(examples, NEW, n)) for n in range(SHAPE.episodes)]
    )
    assert len(set(found)) > 1
    assert learner.training


def gradients(learner: Learner, examples: Tokens) -> dict[str, Tensor]:
    learner.zero_grad(set_to_none=True)
    found = episode_loss(learner, questions(examples, TRAIN, 0))
    if found["loss"].requires_grad:
        found["loss"].backward()
    return {name: weight.grad for name, weight in learner.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("distance", get_args(Distance))
@pytest.mark.parametrize("algorithm", ["maml", "anil", "proto", "contrast"])
def test_slopes_are_what_differences_say(algorithm: Algorithm, distance: Distance, examples: Tokens) -> None:
    """Of every parameter its largest gradient, scale and inner rates included, in float64."""
    learner = make_learner(algorithm, hidden=8, distance=distance, inner_steps=2, inner_rate=0.05).double()
    found = gradients(learner, examples)
    assert {"log_scale", "encoder.word_embeddings.weight", "encoder.attention.0.qkv.weight"} <= set(found)
    assert any(name.startswith("log_rates.") for name in found) == learner.is_adapting
    for name, weight in learner.named_parameters():
        if name not in found:
            assert name.startswith("encoder.pooler")
            continue
        place = int(found[name].abs().argmax())
        losses = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                weight.view(-1)[place] += step
            losses.append(episode_loss(learner, questions(examples, TRAIN, 0))["loss"].item())
        with torch.no_grad():
            weight.view(-1)[place] += 1e-5
        assert float(found[name].view(-1)[place]) == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-8)


def test_the_first_order_is_not_the_second(examples: Tokens) -> None:
    """They agree on the loss and not on its gradient."""
    settings = {"inner_steps": 2, "inner_rate": 0.05, "hidden": 8}
    both: list[Learner] = [make_learner(name, **settings).double() for name in ("maml", "fomaml")]
    exact, first = (gradients(learner, examples) for learner in both)
    losses = [episode_loss(learner, questions(examples, TRAIN, 0))["loss"].item() for learner in both]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    name = "encoder.attention.0.qkv.weight"
    assert not torch.allclose(exact[name], first[name], rtol=1e-2)
    assert torch.cosine_similarity(exact[name].flatten(), first[name].flatten(), dim=0) > 0.2


def test_reptile_moves_towards_where_an_episode_leads(examples: Tokens) -> None:
    learner = make_learner("reptile", inner_steps=3, inner_rate=0.05)
    episode = questions(examples, TRAIN, 0)
    reached, _ = learner.adapt(episode.texts, episode.way, second_order=False)
    gradients(learner, examples)
    for name, target in reached.items():
        weight = learner.encoder.get_parameter(name)
        assert weight.grad is not None
        nearer = weight - 0.05 * weight.grad
        assert (nearer - target).norm() < (weight - target).norm() or torch.equal(weight, target)
    assert all(rate.grad is None for rate in learner.log_rates.values())


def test_inner_steps_lower_the_loss_on_the_examples(examples: Tokens) -> None:
    losses = []
    for steps in (0, 4):
        learner = make_learner("fomaml", inner_steps=steps)
        episode = questions(examples, TRAIN, 0)
        weights, head = learner.adapt(episode.support, episode.way, second_order=False)
        scores = torch.nn.functional.linear(learner.embed_with(weights, episode.support), *head)
        losses.append(torch.nn.functional.cross_entropy(scores, episode.support.classes).item())
    assert losses[1] < 0.9 * losses[0]


@pytest.mark.parametrize("algorithm", ["maml", "anil"])
def test_without_inner_steps_all_are_prototypes(algorithm: Algorithm, examples: Tokens) -> None:
    episode = questions(examples, TRAIN, 0)
    scores = [query_scores(make_learner(name, inner_steps=0), episode) for name in (algorithm, "proto")]
    torch.testing.assert_close(*scores)


def test_the_squared_distance_is_one(examples: Tokens) -> None:
    """Scores differ from -scale * mean((x - middle)²) by what is the same for all classes."""
    learner, episode = make_learner("proto", distance="squared"), questions(examples, TRAIN, 0)
    vectors, classes = learner(episode.texts), episode.texts.classes
    prototypes = torch.stack(
        [vectors[: episode.num_support][classes[: episode.num_support] == n].mean(0) for n in range(4)]
    )
    far = torch.cdist(vectors[episode.num_support :], prototypes).square() * learner.log_scale.exp() / vectors.shape[1]
    torch.testing.assert_close(
        query_scores(learner, episode).log_softmax(1), (-far).log_softmax(1), atol=1e-4, rtol=1e-4
    )


def test_an_episode_that_is_learned_already_has_a_slope_of_zero_and_not_none(examples: Tokens) -> None:
    learner, episode = make_learner("maml", distance="squared"), questions(examples, TRAIN, 0)
    with torch.no_grad():
        learner.log_scale.fill_(20.0)  # so sure of all examples that nothing is left to learn
    episode_loss(learner, episode)["loss"].backward()
    gradients = [weight.grad for weight in learner.parameters() if weight.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_vectors_are_those_of_embed(model: Model) -> None:
    texts = ["the rain", "a letter that had started it all", "nobody in the village remembered when"]
    ids = [encoding.ids for encoding in model.tokenizer.encode(texts)]
    questions = EpisodeTexts.of(Episode(((0,), (1,)), ((2,),)), ids, torch.device("cpu"))
    mapped = SentenceMap(np.eye(4, 32, dtype=np.float32), np.ones(4, dtype=np.float32))
    tokens = np.linspace(0.1, 1.0, model.tokenizer.vocab_size).astype(np.float32)
    for after in (None, mapped, replace(mapped, tokens=tokens)):
        expected = torch.from_numpy(Model(model.albert, model.tokenizer, sentence_map=after).embed(texts))
        learner = Learner(model.encoder, "proto", "squared", sentence_map=after)
        torch.testing.assert_close(learner(questions.texts).detach(), expected, rtol=1e-4, atol=1e-5)
        both = torch.cat([learner(questions.support), learner(questions.queries)])
        torch.testing.assert_close(both.detach(), expected, rtol=1e-4, atol=1e-5)


def test_contrast_is_least_where_classes_lie_apart() -> None:
    learner, classes = make_learner("contrast"), torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    mixed = apart[[0, 2, 1, 3]]
    assert contrastive_loss(learner, apart, classes) < 0.01 < contrastive_loss(learner, mixed, classes)


@pytest.mark.parametrize(
    "wrong",
    [{"algorithm": "x"}, {"distance": "x"}, {"inner_steps": 10**9}, {"inner_steps": "3"}, {"scale": float("inf")},
     {"scale": 0.0}, {"rates": []}, {"rates": {}}, {"rates": {"head": -1.0}}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    learner = make_learner("anil")
    with pytest.raises(CheckpointError, match=r"meta\.json is damaged .* meta-train again"):
        Learner.from_settings(learner.encoder, learner.settings() | wrong)


def test_what_was_learned_comes_back_from_its_settings(examples: Tokens) -> None:
    learner = taught(make_learner("anil"), examples, steps=5)
    again = Learner.from_settings(learner.encoder, learner.settings())
    assert again.settings()["rates"] == pytest.approx(learner.settings()["rates"])
    assert again.settings()["rates"] != make_learner("anil").settings()["rates"]
    episode = questions(examples, NEW, 0)
    torch.testing.assert_close(query_scores(again, episode), query_scores(learner, episode), rtol=1e-4, atol=1e-4)
