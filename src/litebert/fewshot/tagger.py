"""A tagger from a handful of sentences: ridge regression on the states of words, after the best number of passes.

The result is an ordinary tagger without the passes above. Its F1 is a leave-one-sentence-out F1.

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
from litebert.fewshot.ridge import RIDGE_PENALTIES, smoothed_cross_entropy
from litebert.inference.model import Model
from litebert.model import Albert
from litebert.tasks.base import Scores
from litebert.tasks.tag import Tag, TagInput, TagOutput

MAX_WORDS = 6000
SCALES = np.exp(np.linspace(0.0, 4.0, 9))
OUTSIDE_BIASES = np.linspace(-2.0, 4.0, 7)
"""Of tag O, which most words have."""


@dataclass(frozen=True)
class TaggerReport:
    """How well a tagger does: each sentence is tagged by the fit, and the choices, made without it."""

    sentences: int
    spans: int
    kinds: int
    """The number of labels."""
    f1: float | None
    """None for a single sentence."""
    depth: int
    """The passes that the tagger has."""
    seconds: float


@dataclass(frozen=True)
class _WordStates:
    states: np.ndarray
    """(W, D, H)."""
    tags: np.ndarray
    """(W,)."""
    sentence: np.ndarray
    """(W,)."""
    place: np.ndarray
    """(W, 2) the window of the sentence that shows the word, and its column there."""


@dataclass(frozen=True)
class _TagFit:
    depth: int
    weight: np.ndarray
    """(H, C)."""
    bias: np.ndarray
    """(C,)."""
    left_out_scores: np.ndarray
    """(W, C) scores by the fit without the sentence of the word."""
    losses: np.ndarray
    """Their sum for each sentence."""


def adapt_tags(
    model: Model, records: Sequence[TagInput], advance: Callable[[int], None] = lambda count: None
) -> tuple[Model, TaggerReport]:
    """A tagger from a handful of sentences; the given model stays as it is. `advance` is called with the number of
    windows that were read."""
    began = time.perf_counter()
    task, depths = Tag.learn_from(records), _candidate_depths(model)
    examples = task.features(records, model.tokenizer, model.max_length)
    words = _read_words(model, task, records, examples, depths, advance)
    fits = [fit for index, depth in enumerate(depths) for fit in _fits(words, index, depth, len(task.tags))]
    losses = np.stack([fit.losses for fit in fits])  # (fits, sentences)
    f1 = None
    if len(records) > 1:
        best = (losses.sum(1, keepdims=True) - losses).argmin(0)  # by the other sentences
        outputs = [
            _left_out_output(task, words, fits[best[number]], number, record, examples[number])
            for number, record in enumerate(records)
        ]
        f1 = task.metrics(records, outputs)["f1"]
    fit = fits[int(losses.sum(1).argmin())]
    labels = [span.label for record in records for span in record.spans or ()]
    seconds = time.perf_counter() - began
    return _tagger(model, task, fit), TaggerReport(len(records), len(labels), len(set(labels)), f1, fit.depth, seconds)


def _candidate_depths(model: Model) -> list[int]:
    """A third of the passes, two thirds and all, if a model with fewer passes is possible."""
    config, encoder = model.config, model.encoder
    one_layer = config.sharing == "all" and config.num_hidden_groups == 1
    by_pass = encoder.adapters is not None or encoder.depth_embeddings is not None
    layers = config.num_hidden_layers
    return sorted({max(1, layers // 3), max(1, 2 * layers // 3), layers}) if one_layer and not by_pass else [layers]


class _StatesTask(Tag):
    """Returns the states of all tokens as scores."""

    def __init__(self, depths: Sequence[int]) -> None:
        super().__init__(["O", "B-x", "I-x"])
        self.depths = depths

    def scores(self, model: Albert, batch: Batch) -> Scores:
        inputs = batch.input_ids, batch.real, batch.token_type_ids
        return {"states": torch.stack(model.encoder.hidden_states_at(self.depths, *inputs), dim=2)}


def _read_words(
    model: Model, task: Tag, records: Sequence[TagInput], examples: Sequence[Example], depths: Sequence[int],
    advance: Callable[[int], None],
) -> _WordStates:  # fmt: skip
    states, tags, sentences, places = [], [], [], []
    total = sum(len(example.notes.tokens) for example in examples)
    if total > MAX_WORDS:
        raise DataError(f"{total:,} words: adapt takes up to {MAX_WORDS:,}; litebert finetune learns more from them")
    scores = model.score_examples(_StatesTask(depths), examples, advance=advance)
    for number, (record, example, read) in enumerate(zip(records, examples, scores, strict=True)):
        for labelled in task.training_examples([record], [example]):
            row = next(row for row, window in enumerate(example.sequences) if window is labelled.sequences[0])
            columns = np.flatnonzero(labelled.target != IGNORE_INDEX)
            states.append(read["states"][row, columns].float().numpy())
            tags.append(labelled.target[columns])
            sentences += [number] * len(columns)
            places += [(row, column) for column in columns]
    return _WordStates(np.concatenate(states), np.concatenate(tags), np.array(sentences), np.array(places))


def _fits(words: _WordStates, index: int, depth: int, num_tags: int) -> list[_TagFit]:
    """A fit for each penalty. Rare tags weigh more than their number, frequent ones less."""
    states = words.states[:, index].astype(np.float64)
    centre = states.mean(0)
    length = np.linalg.norm(states - centre, axis=1).mean() + 1e-9
    left, sizes, right = np.linalg.svd((states - centre) / length, full_matrices=False)
    counts = np.bincount(words.tags, minlength=num_tags).clip(1)
    target = np.eye(num_tags)[words.tags] * np.sqrt(counts.mean() / counts)[words.tags][:, None]
    fits = []
    for ridge in RIDGE_PENALTIES:
        hat = left * (sizes**2 / (sizes**2 + ridge))
        scores = _left_out_scores(words, hat, left, target)
        scale, outside = _calibrate(scores, words.tags)
        weight = right.T * (sizes / (sizes**2 + ridge)) @ (left.T @ target) * (scale / length)
        bias = np.where(np.arange(num_tags) == 0, outside, 0.0)
        losses = np.bincount(words.sentence, smoothed_cross_entropy(scores * scale + bias, words.tags))
        fits.append(_TagFit(depth, weight, bias - centre @ weight, scores * scale + bias, losses))
    return fits


def _left_out_scores(words: _WordStates, hat: np.ndarray, left: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(W, C) the scores of each sentence by the fit without it, in closed form."""
    fitted = hat @ (left.T @ target)
    scores = np.empty_like(fitted)
    for number in np.unique(words.sentence):
        own = words.sentence == number
        rest = np.eye(own.sum()) - hat[own] @ left[own].T
        scores[own] = target[own] - np.linalg.solve(rest, target[own] - fitted[own])
    return scores


def _calibrate(scores: np.ndarray, tags: np.ndarray) -> tuple[float, float]:
    """The scale of all scores and the bias of tag O with the lowest cross-entropy."""
    outside = np.arange(scores.shape[1]) == 0
    pairs = [(scale, bias) for scale in SCALES.tolist() for bias in OUTSIDE_BIASES.tolist()]
    return min(pairs, key=lambda pair: float(smoothed_cross_entropy(scores * pair[0] + pair[1] * outside, tags).mean()))


def _left_out_output(
    task: Tag, words: _WordStates, fit: _TagFit, number: int, record: TagInput, example: Example
) -> TagOutput:
    """The spans of a sentence by the fit without it."""
    own = words.sentence == number
    longest = max(len(window.ids) for window in example.sequences)
    scores = torch.zeros(len(example.sequences), longest, len(task.tags))
    rows, columns = words.place[own].T
    scores[rows, columns] = torch.from_numpy(fit.left_out_scores[own]).float()
    return task.answer(record, example, {"scores": scores})


def _tagger(model: Model, task: Tag, fit: _TagFit) -> Model:
    config = replace(model.config, num_hidden_layers=fit.depth)
    with torch.device("meta"):  # the weights are replaced at once
        albert = Albert(config)
    albert.encoder.load_state_dict(model.encoder.state_dict(), assign=True)
    head: Any = task.head(config).eval()
    head.linear.weight.data = torch.from_numpy(fit.weight.T.copy()).float()
    head.linear.bias.data = torch.from_numpy(fit.bias).float()
    albert.heads[task.head_name] = head.to(model.device)
    tagger = Model(albert.eval(), model.tokenizer, task, model.max_length)
    tagger.bf16 = model.bf16
    return tagger
