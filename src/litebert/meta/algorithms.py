"""What an episode teaches, and what is answered after it.

proto      the middles of the examples are the classes; questions must be near their own (Snell et al. 2017)
contrast   every text must be nearer to those of its class than to all others (Khosla et al. 2020)
anil       from these middles some steps on the head; questions must then be right (Raghu et al. 2020)
maml       steps on all weights, and questions are differentiated through the steps (Finn et al. 2017)
fomaml     the same, with the slopes of the steps taken as given
reptile    steps on all weights and all texts; the weights follow where these went (Nichol et al. 2018)

All begin an episode from the middles of its examples, so that any number of classes will do, and MAML's head knows no
order of classes that could be wrong (Triantafillou et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.data.episodes import Episode
from litebert.meta.learner import Learner, Questions, Texts

AT_ONCE = 64
"""Texts that are read together."""


def scores_of(learner: Learner, questions: Questions, second_order: bool = False) -> Tensor:  # (asked, N)
    """What the learner says of an episode's questions after its examples."""
    if not learner.is_adapting:
        vectors = learner(questions.texts)
        head = learner.head_of(vectors[: questions.learned], questions.support.classes, questions.way)
        return F.linear(vectors[questions.learned :], *head)
    weights, head = learner.adapted(questions.support, questions.way, second_order)
    return F.linear(learner.with_weights(weights, questions.asked), *head)


def loss_of(learner: Learner, questions: Questions, share: float = 1.0) -> dict[str, Tensor]:
    """`loss`, and the `accuracy` of the questions, of an episode that is such a share of a step.

    Reptile leaves its gradients in the parameters itself."""
    if learner.algorithm == "reptile":
        return _follow(learner, questions, share)
    asked = questions.asked.classes
    if learner.algorithm == "contrast":
        vectors = learner(questions.texts)
        loss = contrast(learner, vectors, questions.texts.classes)
        examples, rest = vectors[: questions.learned], vectors[questions.learned :]
        scores = F.linear(rest, *learner.head_of(examples, questions.support.classes, questions.way))
    else:
        scores = scores_of(learner, questions, second_order=learner.algorithm in ("maml", "anil"))
        loss = F.cross_entropy(scores, asked)
    return {"loss": loss * share, "accuracy": _accuracy(scores, asked) * share}


def contrast(learner: Learner, vectors: Tensor, classes: Tensor) -> Tensor:
    """The mean surprise, in nats, that a neighbour of a text is one of its class."""
    alone = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    alike = F.linear(vectors, *learner.head(vectors)).masked_fill(alone, float("-inf"))  # (S, S)
    same = (classes[:, None] == classes) & ~alone
    surprise = -alike.log_softmax(1).masked_fill(~same, 0.0)
    return (surprise.sum(1) / same.sum(1)).mean()


def _follow(learner: Learner, questions: Questions, share: float) -> dict[str, Tensor]:
    """Gradients that lead to where the steps on this episode went, as long as the mean slope on the way."""
    weights, head = learner.adapted(questions.texts, questions.way, second_order=False)
    with torch.no_grad():
        scores = F.linear(learner.with_weights(weights, questions.texts), *head)
        for name, reached in weights.items():
            before = learner.encoder.get_parameter(name)
            rate = learner.log_rates[name.split(".")[0]].exp()
            lead = (before - reached) / (rate * learner.inner_steps) * share
            before.grad = lead if before.grad is None else before.grad + lead
        loss = F.cross_entropy(scores, questions.texts.classes)
        return {"loss": loss * share, "accuracy": _accuracy(scores, questions.texts.classes) * share}


def _accuracy(scores: Tensor, classes: Tensor) -> Tensor:
    return (scores.argmax(1) == classes).float().mean()


def accuracies_of(
    learner: Learner, episodes: Sequence[Episode], ids: Sequence[Sequence[int]], device: torch.device
) -> list[float]:
    """`accuracy_of` each of these; where an episode changes no weights, every text is read once for all of them."""
    if learner.is_adapting:
        return [accuracy_of(learner, Questions.of(episode, ids, device)) for episode in episodes]
    rows = sorted(
        {row for episode in episodes for some in episode.rows() for row in some}, key=lambda row: len(ids[row])
    )
    place = {row: number for number, row in enumerate(rows)}
    learning = learner.training
    learner.eval()
    with torch.no_grad():
        read = [_read(learner, [ids[row] for row in rows[start : start + AT_ONCE]], device)
                for start in range(0, len(rows), AT_ONCE)]  # fmt: skip
        vectors, found = torch.cat(read), []
        for episode in episodes:
            known, asked = (vectors[[place[row] for row in some]] for some in episode.rows())
            classes, truth = (torch.from_numpy(some).to(device) for some in episode.class_indices())
            scores = F.linear(asked, *learner.head_of(known, classes, episode.way))
            found.append(float(_accuracy(scores, truth)))
    learner.train(learning)
    return found


def _read(learner: Learner, ids: Sequence[Sequence[int]], device: torch.device) -> Tensor:  # (S, H)
    lengths = [len(one) for one in ids]
    flat = torch.tensor([token for one in ids for token in one]).to(device)
    nothing = torch.zeros(len(ids), dtype=torch.long, device=device)
    found: Tensor = learner(Texts(flat, torch.tensor(lengths).to(device), nothing, max(lengths)))
    return found


def accuracy_of(learner: Learner, questions: Questions) -> float:
    """On the questions of one episode, as the learner is now."""
    learning = learner.training
    learner.eval()
    try:
        with torch.set_grad_enabled(learner.is_adapting):  # inner steps need slopes
            scores = scores_of(learner, questions)
    finally:
        learner.train(learning)
    return float(_accuracy(scores.detach(), questions.asked.classes))
