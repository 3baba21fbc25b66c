"""Tags from a handful of sentences: one equation on the states of words, after the pass that tells them best.

What comes out is a tagger like any other, and no deeper than it must be: the passes above are left away. How well it
does is asked of every sentence by what is solved without it.

Shapes: W words, D depths, H hidden, C tags.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from litebert.data.batches import IGNORE_INDEX, Batch, Example
from litebert.errors import DataError
from litebert.fewshot.ridge import RIDGES, losses_of
from litebert.inference.model import Model
from litebert.model import Albert
from litebert.tasks.base import Scores
from litebert.tasks.tag import Tag, TagInput, TagOutput

MOST_WORDS = 6000
SCALES = np.exp(np.linspace(0.0, 4.0, 9))
BIASES = np.linspace(-2.0, 4.0, 7)
"""Of words outside of all spans, of which there are most."""


@dataclass(frozen=True)
class TagEvidence:
    """What speaks for a tagger: each sentence was asked about what is solved, and chosen, without it."""

    sentences: int
    spans: int
    kinds: int
    f1: float | None
    """None where there is but one sentence."""
    depth: int
    """Passes that are left."""
    seconds: float


@dataclass(frozen=True)
class _Words:
    states: np.ndarray
    """(W, D, H)."""
    tags: np.ndarray
    """(W,)."""
    sentence: np.ndarray
    """(W,)."""
    place: np.ndarray
    """(W, 2) the window of the sentence that shows the word, and its column there."""


@dataclass(frozen=True)
class _Way:
    """To tell tags."""

    depth: int
    weight: np.ndarray
    """(H, C)."""
    bias: np.ndarray
    """(C,)."""
    left_out: np.ndarray
    """(W, C) scores by what is solved without the sentence of the word."""
    losses: np.ndarray
    """Of these, a sum for each sentence."""


def adapt_tags(
    model: Model, records: Sequence[TagInput], advance: Callable[[int], None] = lambda count: None
) -> tuple[Model, TagEvidence]:
    """A tagger from a handful of sentences; the given model stays as it is. `advance` hears how many are read."""
    began = time.perf_counter()
    task, depths = Tag.learn_from(records), _depths(model)
    examples = task.features(records, model.tokenizer, model.max_length)
    words = _read(model, task, records, examples, depths, advance)
    ways = [way for number, depth in enumerate(depths) for way in _ways(words, number, depth, len(task.tags))]
    losses = np.stack([way.losses for way in ways])  # (ways, sentences)
    f1 = None
    if len(records) > 1:
        best = (losses.sum(1, keepdims=True) - losses).argmin(0)  # by the other sentences
        told = [_told(task, words, ways[best[n]], n, records[n], examples[n]) for n in range(len(records))]
        f1 = task.metrics(records, told)["f1"]
    way = ways[int(losses.sum(1).argmin())]
    spans = [span.label for record in records for span in record.spans or ()]
    evidence = TagEvidence(len(records), len(spans), len(set(spans)), f1, way.depth, time.perf_counter() - began)
    return _tagger(model, task, way), evidence


def _depths(model: Model) -> list[int]:
    """A third of the passes, two thirds and all, where a model with fewer passes is one."""
    config, encoder = model.config, model.encoder
    one_layer = config.sharing == "all" and config.num_hidden_groups == 1
    by_pass = encoder.adapters is not None or encoder.depth_embeddings is not None
    layers = config.num_hidden_layers
    return sorted({max(1, layers // 3), max(1, 2 * layers // 3), layers}) if one_layer and not by_pass else [layers]


class _Reading(Tag):
    """Reads the states of all tokens."""

    def __init__(self, depths: Sequence[int]) -> None:
        super().__init__(["O", "B-x", "I-x"])
        self.depths = depths

    def scores(self, model: Albert, batch: Batch) -> Scores:
        given = batch.input_ids, batch.real, batch.token_type_ids
        return {"states": torch.stack(model.encoder.after_passes(self.depths, *given), dim=2)}


def _read(
    model: Model, task: Tag, records: Sequence[TagInput], examples: Sequence[Example], depths: Sequence[int],
    advance: Callable[[int], None],
) -> _Words:  # fmt: skip
    states, tags, sentences, places = [], [], [], []
    total = sum(len(example.notes.tokens) for example in examples)
    if total > MOST_WORDS:
        raise DataError(f"{total:,} words: adapt takes up to {MOST_WORDS:,}; litebert finetune learns more from them")
    read = model.score_examples(_Reading(depths), examples, advance=advance)
    for number, (record, example, found) in enumerate(zip(records, examples, read, strict=True)):
        for one in task.labelled([record], [example]):
            row = next(row for row, window in enumerate(example.sequences) if window is one.sequences[0])
            columns = np.flatnonzero(one.target != IGNORE_INDEX)
            states.append(found["states"][row, columns].float().numpy())
            tags.append(one.target[columns])
            sentences += [number] * len(columns)
            places += [(row, column) for column in columns]
    return _Words(np.concatenate(states), np.concatenate(tags), np.array(sentences), np.array(places))


def _ways(words: _Words, place: int, depth: int, count: int) -> list[_Way]:
    """By ridge regression with one penalty or another. Rare tags count more than their words, frequent ones less."""
    states = words.states[:, place].astype(np.float64)
    centre = states.mean(0)
    length = np.linalg.norm(states - centre, axis=1).mean() + 1e-9
    left, sizes, right = np.linalg.svd((states - centre) / length, full_matrices=False)
    often = np.bincount(words.tags, minlength=count).clip(1)
    target = np.eye(count)[words.tags] * np.sqrt(often.mean() / often)[words.tags][:, None]
    found = []
    for ridge in RIDGES:
        hat = left * (sizes**2 / (sizes**2 + ridge))
        scores = _without_own(words, hat, left, target)
        scale, outside = _suiting(scores, words.tags)
        weight = right.T * (sizes / (sizes**2 + ridge)) @ (left.T @ target) * (scale / length)
        bias = np.where(np.arange(count) == 0, outside, 0.0)
        losses = np.bincount(words.sentence, losses_of(scores * scale + bias, words.tags))
        found.append(_Way(depth, weight, bias - centre @ weight, scores * scale + bias, losses))
    return found


def _without_own(words: _Words, hat: np.ndarray, left: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(W, C) what the equation says of each sentence if it is not among the examples."""
    fitted = hat @ (left.T @ target)
    found = np.empty_like(fitted)
    for number in np.unique(words.sentence):
        own = words.sentence == number
        rest = np.eye(own.sum()) - hat[own] @ left[own].T
        found[own] = target[own] - np.linalg.solve(rest, target[own] - fitted[own])
    return found


def _suiting(scores: np.ndarray, tags: np.ndarray) -> tuple[float, float]:
    """The scale of all scores and the bias of tag O with which probabilities suit best."""
    outside = np.arange(scores.shape[1]) == 0
    pairs = [(scale, bias) for scale in SCALES.tolist() for bias in BIASES.tolist()]
    return min(pairs, key=lambda pair: float(losses_of(scores * pair[0] + pair[1] * outside, tags).mean()))


def _told(task: Tag, words: _Words, way: _Way, number: int, record: TagInput, example: Example) -> TagOutput:
    """What a sentence is told to hold by what is solved without it."""
    own = words.sentence == number
    longest = max(len(window.ids) for window in example.sequences)
    scores = torch.zeros(len(example.sequences), longest, len(task.tags))
    rows, columns = words.place[own].T
    scores[rows, columns] = torch.from_numpy(way.left_out[own]).float()
    return task.answer(record, example, {"scores": scores})


def _tagger(model: Model, task: Tag, way: _Way) -> Model:
    config = replace(model.config, num_hidden_layers=way.depth)
    with torch.device("meta"):  # replaced at once
        albert = Albert(config)
    albert.encoder.load_state_dict(model.encoder.state_dict(), assign=True)
    head: Any = task.head(config).eval()
    head.linear.weight.data = torch.from_numpy(way.weight.T.copy()).float()
    head.linear.bias.data = torch.from_numpy(way.bias).float()
    albert.heads[task.head_name] = head.to(model.device)
    found = Model(albert.eval(), model.tokenizer, task, model.max_length)
    found.bf16 = model.bf16
    return found
