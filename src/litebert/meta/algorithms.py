"""The meta-learning algorithms: the loss of an episode, and the accuracy on its queries.

proto      prototypical networks: a query must be near the mean of its class in the support set (Snell et al. 2017)
contrast   supervised contrastive learning over all texts of the episode (Khosla et al. 2020)
anil       gradient steps on the head, starting from the prototypes (Raghu et al. 2020)
maml       gradient steps on all weights; the outer gradient goes through the steps (Finn et al. 2017)
fomaml     MAML with first-order gradients
reptile    gradient steps on all weights and all texts; the weights move towards the result (Nichol et al. 2018)

All start an episode from a head of prototypes, so that any number of classes will do, and MAML's head depends on no
order of the classes (Triantafillou et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.data.episodes import Episode
from litebert.meta.learner import EpisodeTexts, Learner, PackedTexts

BATCH_TEXTS = 64
"""Texts that are embedded in one batch."""


def query_scores(learner: Learner, episode: EpisodeTexts, second_order: bool = False) -> Tensor:  # (Q, N)
    """The scores of an episode's queries, after adapting to its support set."""
    if not learner.is_adapting:
        vectors = learner(episode.texts)
        head = learner.prototype_head(vectors[: episode.num_support], episode.support.classes, episode.way)
        return F.linear(vectors[episode.num_support :], *head)
    weights, head = learner.adapt(episode.support, episode.way, second_order)
    return F.linear(learner.embed_with(weights, episode.queries), *head)


def episode_loss(learner: Learner, episode: EpisodeTexts, share: float = 1.0) -> dict[str, Tensor]:
    """`loss`, and `accuracy` on the queries, of an episode, both times `share`, its weight in the step.

    Reptile adds its gradients to the parameters itself."""
    if learner.algorithm == "reptile":
        return _reptile_gradients(learner, episode, share)
    truth = episode.queries.classes
    if learner.algorithm == "contrast":
        vectors = learner(episode.texts)
        loss = contrastive_loss(learner, vectors, episode.texts.classes)
        support, queries = vectors[: episode.num_support], vectors[episode.num_support :]
        scores = F.linear(queries, *learner.prototype_head(support, episode.support.classes, episode.way))
    else:
        scores = query_scores(learner, episode, second_order=learner.algorithm in ("maml", "anil"))
        loss = F.cross_entropy(scores, truth)
    return {"loss": loss * share, "accuracy": _accuracy(scores, truth) * share}


def contrastive_loss(learner: Learner, vectors: Tensor, classes: Tensor) -> Tensor:
    """Supervised contrastive loss, in nats."""
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    similarities = F.linear(vectors, *learner.head_from(vectors)).masked_fill(itself, float("-inf"))  # (S, S)
    same = (classes[:, None] == classes) & ~itself
    losses = -similarities.log_softmax(1).masked_fill(~same, 0.0)
    return (losses.sum(1) / same.sum(1)).mean()


def _reptile_gradients(learner: Learner, episode: EpisodeTexts, share: float) -> dict[str, Tensor]:
    """Add gradients in the direction of the adapted weights, of the mean length of the inner gradients."""
    weights, head = learner.adapt(episode.texts, episode.way, second_order=False)
    with torch.no_grad():
        scores = F.linear(learner.embed_with(weights, episode.texts), *head)
        for name, reached in weights.items():
            before = learner.encoder.get_parameter(name)
            rate = learner.log_rates[name.split(".")[0]].exp()
            lead = (before - reached) / (rate * learner.inner_steps) * share
            before.grad = lead if before.grad is None else before.grad + lead
        loss = F.cross_entropy(scores, episode.texts.classes)
        return {"loss": loss * share, "accuracy": _accuracy(scores, episode.texts.classes) * share}


def _accuracy(scores: Tensor, classes: Tensor) -> Tensor:
    return (scores.argmax(1) == classes).float().mean()


def episode_accuracies(
    learner: Learner, episodes: Sequence[Episode], ids: Sequence[Sequence[int]], device: torch.device
) -> list[float]:
    """`episode_accuracy` of each; if episodes change no weights, every text is embedded once for all of them."""
    if learner.is_adapting:
        return [episode_accuracy(learner, EpisodeTexts.of(episode, ids, device)) for episode in episodes]
    used = {row for episode in episodes for part in episode.rows() for row in part}
    rows = sorted(used, key=lambda row: len(ids[row]))
    place = {row: number for number, row in enumerate(rows)}
    training = learner.training
    learner.eval()
    with torch.no_grad():
        batches = (rows[start : start + BATCH_TEXTS] for start in range(0, len(rows), BATCH_TEXTS))
        vectors = torch.cat([_embed(learner, [ids[row] for row in batch], device) for batch in batches])
        accuracies = []
        for episode in episodes:
            support, queries = (vectors[[place[row] for row in part]] for part in episode.rows())
            classes, truth = (torch.from_numpy(part).to(device) for part in episode.class_indices())
            scores = F.linear(queries, *learner.prototype_head(support, classes, episode.way))
            accuracies.append(float(_accuracy(scores, truth)))
    learner.train(training)
    return accuracies


def _embed(learner: Learner, ids: Sequence[Sequence[int]], device: torch.device) -> Tensor:  # (S, H)
    lengths = [len(text) for text in ids]
    flat = torch.tensor([token for text in ids for token in text]).to(device)
    classes = torch.zeros(len(ids), dtype=torch.long, device=device)  # unused
    vectors: Tensor = learner(PackedTexts(flat, torch.tensor(lengths).to(device), classes, max(lengths)))
    return vectors


def episode_accuracy(learner: Learner, episode: EpisodeTexts) -> float:
    """The accuracy on the queries of an episode."""
    training = learner.training
    learner.eval()
    try:
        with torch.set_grad_enabled(learner.is_adapting):  # for the inner steps
            scores = query_scores(learner, episode)
    finally:
        learner.train(training)
    return float(_accuracy(scores.detach(), episode.queries.classes))
