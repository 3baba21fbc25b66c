"""Data of the figures of docs/ideas, from formulas and from the built-in model. `figures.py` draws it.

Texts are the support messages that ship with litebert and docs/passages.txt; the built-in model was trained on neither.
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
from litebert.studies.reproduce.evaluation import draw_shots

PASSAGES = Path(__file__).parent / "passages.txt"


@cache
def built_in() -> Model:
    return litebert.load("litebert-base-en", engine="bf16")


@cache
def messages() -> tuple[list[str], list[str]]:
    """The support messages and their classes."""
    with TICKETS["en"].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


@cache
def passages() -> list[list[str]]:
    """Short texts, each a list of sentences."""
    text = PASSAGES.read_text(encoding="utf-8").strip()
    return [re.split(r"(?<=\.)(?<!Mr\.)(?<!Mrs\.) ", passage) for passage in text.split("\n\n")]


def whole_passages() -> list[str]:
    return [" ".join(sentences) for sentences in passages()]


def encode_batch(texts: Sequence[str], others: Sequence[str] | None = None) -> Batch:
    """A padded batch for the built-in model."""
    tokenizer = built_in().tokenizer
    return pad(tokenizer.encode(texts, others), tokenizer.pad_id)


@torch.no_grad()
def hidden_states_after(depths: Sequence[int], batch: Batch, exact: bool = False) -> list[Tensor]:
    """The built-in model's hidden states, (B, L, H), after each of these passes, in bfloat16 or in float32."""
    with nullcontext() if exact else built_in().answering():
        read = batch.input_ids, batch.attention_mask, batch.token_type_ids
        return [state.float() for state in built_in().encoder.hidden_states_at(depths, *read)]


def parameter_count(*parts: str, **changes: Any) -> int:
    """Parameters of an ALBERT-base with these settings, in all or of these parts; it takes no memory."""
    with torch.device("meta"):
        encoder = Encoder(preset("base", **changes))
    return sum(p.numel() for name, p in encoder.named_parameters() if name.startswith(parts or ("",)))


def explained_variance() -> tuple[list[float], list[float]]:
    """Cumulative explained variance of the word embeddings, and of a table with shuffled columns."""
    table = built_in().encoder.word_embeddings.weight.detach().double()
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(table), generator=generator) for _ in table.T]
    mixed = torch.stack([column[order] for column, order in zip(table.T, orders, strict=True)], dim=1)
    squares = [torch.linalg.svdvals(rows - rows.mean(0)) ** 2 for rows in (table, mixed)]
    found = [(one.cumsum(0) / one.sum()).tolist() for one in squares]
    return found[0], found[1]


def rotations(deepest: int) -> tuple[list[float], list[float]]:
    """By how many degrees each pass rotates the states of tokens, and how far it moves them, relative to their norm."""
    batch = encode_batch(whole_passages())
    states = [state[batch.real] for state in hidden_states_after(range(deepest + 1), batch, exact=True)]  # (T, H) each
    angles = [torch.cosine_similarity(a, b, dim=-1).clamp(-1, 1).acos().rad2deg() for a, b in pairwise(states)]
    moves = [(b - a).norm(dim=-1) / a.norm(dim=-1) for a, b in pairwise(states)]
    return [float(one.mean()) for one in angles], [float(one.mean()) for one in moves]


@torch.no_grad()
def order_probabilities(depths: Sequence[int], cuts: Sequence[int] = (2, 4)) -> np.ndarray:
    """Probability of the SOP head that a pair is in order, (depths, passages, cuts, 2).

    The last axis has the pair in order and the same pair swapped.
    """
    model = built_in()
    head: Any = model.albert.heads["order"]
    answers = []
    for sentences in passages():
        parts = [(" ".join(sentences[:cut]), " ".join(sentences[cut:])) for cut in cuts]
        pairs = [pair for a, b in parts for pair in ((a, b), (b, a))]
        states = hidden_states_after(depths, encode_batch([a for a, _ in pairs], [b for _, b in pairs]))
        said = [head(model.encoder.pool(state[:, 0])).softmax(-1)[:, 0] for state in states]
        answers.append(torch.stack(said).view(len(depths), len(cuts), 2))
    return torch.stack(answers, dim=1).numpy()


def is_correct(orders: np.ndarray) -> np.ndarray:
    """Which of these predictions are correct."""
    return np.stack([orders[..., 0] > 0.5, orders[..., 1] <= 0.5], axis=-1)


def mask_texts(texts: Sequence[str], kind: MaskUnit, seed: int, rate: float) -> tuple[Batch, np.ndarray, np.ndarray]:
    """The texts, which of their tokens are masked, and which begin a word; both (B, L)."""
    tokenizer = built_in().tokenizer
    batch = encode_batch(texts)
    ids = batch.input_ids.numpy()
    begins = np.array([token.startswith("▁") or not token[:1].isalnum() for token in tokenizer.vocabulary()])[ids]
    allowed = ~np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    return (
        batch,
        select_tokens(Masking(kind, rate), allowed, begins, derive_key(seed, "figure"), np.arange(len(ids))),
        begins,
    )


def run_lengths(kind: MaskUnit, rate: float, seeds: int) -> Counter[int]:
    """Number of masked runs by their length in words."""
    found: Counter[int] = Counter()
    for seed in range(seeds):
        _, chosen, begins = mask_texts(whole_passages(), kind, seed, rate)
        for row, starts in zip(chosen, begins, strict=True):
            for is_hidden, run in groupby(zip(row, starts, strict=True), key=lambda pair: pair[0]):
                if is_hidden:
                    found[sum(bool(starts) for _, starts in run) or 1] += 1
    return found


@torch.no_grad()
def mlm_accuracy(depths: Sequence[int], kind: MaskUnit, seeds: int) -> tuple[np.ndarray, int]:
    """MLM accuracy of the built-in model after each of these passes, and the number of masked tokens."""
    model, right, hidden = built_in(), np.zeros(len(depths)), 0
    head: Any = model.albert.heads["mlm"]
    for seed in range(seeds):
        batch, chosen, _ = mask_texts(whole_passages(), kind, seed, 0.15)
        places = torch.from_numpy(chosen)
        truth = batch.input_ids[places]
        shown = batch.input_ids.masked_fill(places, model.tokenizer.mask_id)
        for number, state in enumerate(
            hidden_states_after(depths, Batch(shown, batch.attention_mask, batch.token_type_ids))
        ):
            said = head(state[places], model.encoder.word_embeddings.weight).argmax(-1)
            right[number] += int((said == truth).sum())
        hidden += len(truth)
    return right / hidden, hidden


def class_accuracy(depths: Sequence[int], shots: int, draws: int) -> np.ndarray:
    """Accuracy of logistic regression on the mean state after each of these passes, (depths, draws).

    It is fitted on `shots` messages of each class and scored on all others.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    texts, labels = messages()
    means: list[list[Tensor]] = [[] for _ in depths]
    for start in range(0, len(texts), 40):
        batch = encode_batch(texts[start : start + 40])
        for found, state in zip(means, hidden_states_after(depths, batch), strict=True):
            found += [one[real].mean(0) for one, real in zip(state, batch.real, strict=True)]
    scores = np.zeros((len(depths), draws))
    for number, found in enumerate(means):
        rows, names = torch.stack(found).numpy(), np.array(labels)
        for draw in range(draws):
            seen = draw_shots(labels, shots, draw)
            asked = sorted(set(range(len(labels))) - set(seen))
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
            scores[number, draw] = probe.fit(rows[seen], names[seen]).score(rows[asked], names[asked])
    return scores


def few_shot_scores(shots: Sequence[int], draws: int, asked: int) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy of `adapt`, and of a bag of words, by the number of examples per class, (shots, draws) each.

    The test messages are the same for all draws and never examples.
    """
    texts, labels = messages()
    test = draw_shots(labels, asked // len(set(labels)), 1000)
    rest = sorted(set(range(len(labels))) - set(test))
    ours, bags = np.zeros((2, len(shots), draws))
    for row, count in enumerate(shots):
        for draw in range(draws):
            seen = [rest[i] for i in draw_shots([labels[i] for i in rest], count, draw)]
            shown = [texts[i] for i in seen], [labels[i] for i in seen]
            answers: list[Any] = adapt_frozen(built_in(), *shown).predict([texts[i] for i in test])
            ours[row, draw] = np.mean([answer.label == labels[i] for answer, i in zip(answers, test, strict=True)])
            bags[row, draw] = bag_of_words(*shown, [texts[i] for i in test], [labels[i] for i in test])
    return ours, bags
