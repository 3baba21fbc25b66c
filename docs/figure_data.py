"""What the figures of docs/ideas show, computed by litebert from formulas and from the built-in model. `figures.py`
draws it.

Texts are the support messages that come with litebert and docs/passages.txt; the built-in model has seen neither.
Everything is seeded. Shapes: T tokens, H hidden.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import litebert
from litebert.data.batches import Batch, pad
from litebert.data.hashing import derive_key
from litebert.data.masking import Masking, MaskUnit, select_tokens
from litebert.fewshot.adapt import adapt_frozen
from litebert.inference import Model
from litebert.measure.baselines import bag_of_words
from litebert.model import Encoder, preset
from litebert.studies.demo.data import TICKETS
from litebert.studies.reproduce.evaluation import handful

PASSAGES = Path(__file__).parent / "passages.txt"


@cache
def built_in() -> Model:
    return litebert.load("litebert-base-en", engine="bf16")


@cache
def messages() -> tuple[list[str], list[str]]:
    """The support messages and their queues."""
    with TICKETS["en"].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


@cache
def passages() -> list[list[str]]:
    """Short texts in sentences."""
    text = PASSAGES.read_text(encoding="utf-8").strip()
    return [re.split(r"(?<=\.)(?<!Mr\.)(?<!Mrs\.) ", passage) for passage in text.split("\n\n")]


def whole_passages() -> list[str]:
    return [" ".join(sentences) for sentences in passages()]


def batch_of(texts: Sequence[str], others: Sequence[str] | None = None) -> Batch:
    """As the built-in model reads them."""
    tokenizer = built_in().tokenizer
    return pad(tokenizer.encode(texts, others), tokenizer.pad_id)


@torch.no_grad()
def states_after(depths: Sequence[int], batch: Batch, exact: bool = False) -> list[Tensor]:
    """The built-in model's hidden states, (B, L, H), after each of these passes, in bfloat16 or in float32."""
    with nullcontext() if exact else built_in().answering():
        read = batch.input_ids, batch.attention_mask, batch.token_type_ids
        return [state.float() for state in built_in().encoder.hidden_states_at(depths, *read)]


def size_of(*parts: str, **changes: Any) -> int:
    """Parameters of an ALBERT-base with these settings, in all or of these parts; it takes no memory."""
    with torch.device("meta"):
        encoder = Encoder(preset("base", **changes))
    return sum(p.numel() for name, p in encoder.named_parameters() if name.startswith(parts or ("",)))


def variance_held() -> tuple[list[float], list[float]]:
    """The share that the strongest directions of the table of words hold, and of one whose columns are shuffled."""
    table = built_in().encoder.word_embeddings.weight.detach().double()
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(table), generator=generator) for _ in table.T]
    mixed = torch.stack([column[order] for column, order in zip(table.T, orders, strict=True)], dim=1)
    squares = [torch.linalg.svdvals(rows - rows.mean(0)) ** 2 for rows in (table, mixed)]
    found = [(one.cumsum(0) / one.sum()).tolist() for one in squares]
    return found[0], found[1]


def turns(deepest: int) -> tuple[list[float], list[float]]:
    """By how many degrees each pass turns the states of tokens, and how far it moves them, as a share of their
    length."""
    batch = batch_of(whole_passages())
    states = [state[batch.real] for state in states_after(range(deepest + 1), batch, exact=True)]  # (T, H) each
    angles = [torch.cosine_similarity(a, b, dim=-1).clamp(-1, 1).acos().rad2deg() for a, b in pairwise(states)]
    moves = [(b - a).norm(dim=-1) / a.norm(dim=-1) for a, b in pairwise(states)]
    return [float(one.mean()) for one in angles], [float(one.mean()) for one in moves]


@torch.no_grad()
def orders_at(depths: Sequence[int], cuts: Sequence[int] = (2, 4)) -> np.ndarray:
    """What the head for sentence order says: how likely a pair is in order, (depths, passages, cuts, 2).

    The first of the two is in order, the second the same pair swapped.
    """
    model = built_in()
    head: Any = model.albert.heads["order"]
    answers = []
    for sentences in passages():
        parts = [(" ".join(sentences[:cut]), " ".join(sentences[cut:])) for cut in cuts]
        pairs = [pair for a, b in parts for pair in ((a, b), (b, a))]
        states = states_after(depths, batch_of([a for a, _ in pairs], [b for _, b in pairs]))
        said = [head(model.encoder.pool(state[:, 0])).softmax(-1)[:, 0] for state in states]
        answers.append(torch.stack(said).view(len(depths), len(cuts), 2))
    return torch.stack(answers, dim=1).numpy()


def is_right(orders: np.ndarray) -> np.ndarray:
    """Which of these answers are."""
    return np.stack([orders[..., 0] > 0.5, orders[..., 1] <= 0.5], axis=-1)


def hidden_in(texts: Sequence[str], kind: MaskUnit, seed: int, rate: float) -> tuple[Batch, np.ndarray, np.ndarray]:
    """The texts, which of their tokens are hidden, and which begin a word; both (B, L)."""
    tokenizer = built_in().tokenizer
    batch = batch_of(texts)
    ids = batch.input_ids.numpy()
    begins = np.array([token.startswith("▁") or not token[:1].isalnum() for token in tokenizer.vocabulary()])[ids]
    allowed = ~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    return (
        batch,
        select_tokens(Masking(kind, rate), allowed, begins, derive_key(seed, "figure"), np.arange(len(ids))),
        begins,
    )


def run_lengths(kind: MaskUnit, rate: float, seeds: int) -> Counter[int]:
    """How often so many neighbouring words are hidden."""
    found: Counter[int] = Counter()
    for seed in range(seeds):
        _, chosen, begins = hidden_in(whole_passages(), kind, seed, rate)
        for row, starts in zip(chosen, begins, strict=True):
            for is_hidden, run in groupby(zip(row, starts, strict=True), key=lambda pair: pair[0]):
                if is_hidden:
                    found[sum(bool(starts) for _, starts in run) or 1] += 1
    return found


@torch.no_grad()
def found_after(depths: Sequence[int], kind: MaskUnit, seeds: int) -> tuple[np.ndarray, int]:
    """The share of hidden tokens that the built-in model finds after each of these passes, and how many there were."""
    model, right, hidden = built_in(), np.zeros(len(depths)), 0
    head: Any = model.albert.heads["mlm"]
    for seed in range(seeds):
        batch, chosen, _ = hidden_in(whole_passages(), kind, seed, 0.15)
        places = torch.from_numpy(chosen)
        truth = batch.input_ids[places]
        shown = batch.input_ids.masked_fill(places, model.tokenizer.mask_id)
        for number, state in enumerate(states_after(depths, Batch(shown, batch.attention_mask, batch.token_type_ids))):
            said = head(state[places], model.encoder.word_embeddings.weight).argmax(-1)
            right[number] += int((said == truth).sum())
        hidden += len(truth)
    return right / hidden, hidden


def queues_after(depths: Sequence[int], shots: int, draws: int) -> np.ndarray:
    """How often logistic regression on the mean state after each of these passes tells a message's queue, (depths,
    draws); it learns from so many messages of each queue and is asked about all others."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    texts, labels = messages()
    means: list[list[Tensor]] = [[] for _ in depths]
    for start in range(0, len(texts), 40):
        batch = batch_of(texts[start : start + 40])
        for found, state in zip(means, states_after(depths, batch), strict=True):
            found += [one[real].mean(0) for one, real in zip(state, batch.real, strict=True)]
    scores = np.zeros((len(depths), draws))
    for number, found in enumerate(means):
        rows, names = torch.stack(found).numpy(), np.array(labels)
        for draw in range(draws):
            seen = handful(labels, shots, draw)
            asked = sorted(set(range(len(labels))) - set(seen))
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
            scores[number, draw] = probe.fit(rows[seen], names[seen]).score(rows[asked], names[asked])
    return scores


def few_shot_scores(shots: Sequence[int], draws: int, asked: int) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy of `adapt`, and of a bag of words, with so many examples of each queue, (shots, draws) each.

    What is asked is the same for all: messages that no draw shows.
    """
    texts, labels = messages()
    test = handful(labels, asked // len(set(labels)), 1000)
    rest = sorted(set(range(len(labels))) - set(test))
    ours, bags = np.zeros((2, len(shots), draws))
    for row, count in enumerate(shots):
        for draw in range(draws):
            seen = [rest[i] for i in handful([labels[i] for i in rest], count, draw)]
            shown = [texts[i] for i in seen], [labels[i] for i in seen]
            answers: list[Any] = adapt_frozen(built_in(), *shown).predict([texts[i] for i in test])
            ours[row, draw] = np.mean([answer.label == labels[i] for answer, i in zip(answers, test, strict=True)])
            bags[row, draw] = bag_of_words(*shown, [texts[i] for i in test], [labels[i] for i in test])
    return ours, bags
