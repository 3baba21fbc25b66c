"""`litebert evaluate --episodes`: ways to learn from a few examples, on the same episodes, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from litebert.console import progress_bar
from litebert.data.episodes import (
    Episode,
    EpisodeFile,
    EpisodeShape,
    check_disjoint_classes,
    classes_with_enough_rows,
    draw_episode,
)
from litebert.data.tables import TableOptions
from litebert.errors import ConfigError
from litebert.fewshot import Adapted
from litebert.inference import Model
from litebert.measure.intervals import mean_with_margin, paired_difference, sample_deviation
from litebert.meta.learner import Learner
from litebert.meta.tables import Table, read_meta_settings, seen_classes
from litebert.studies.episodes import Method
from litebert.studies.episodes.methods import METHODS, MODEL_FREE_METHODS, VECTOR_METHODS, EncodedTable

DEFAULT_SHAPE = EpisodeShape(shot=(1, 1), queries=15, episodes=600)
Advance = Callable[[int], None]
Fold = tuple[Table, EpisodeFile]
"""A table, and the episodes that are drawn from it."""


@dataclass(frozen=True)
class MethodResult:
    """What one method reached with one model."""

    model: str
    """Empty for methods that need none."""
    method: Method
    accuracy: list[float]
    """Of each episode."""
    seconds: float
    """Per episode, including the time to encode its texts."""


def read_folds(
    episodes: Sequence[str], data: Sequence[Path], columns: tuple[str, ...], skip_bad: bool, seed: int, mask: str
) -> Iterator[Fold]:
    """From files of episodes, or drawn from every table with every number of shots."""
    if not EpisodeShape.matches(tuple(episodes)):
        if len(data) > 1:
            raise ConfigError(f"{len(data)} --data files: files of episodes know theirs; give one, or none")
        for name in episodes:
            stored = EpisodeFile.read(Path(name), *data)
            table = Table.read(stored.data, TableOptions.parse(columns or stored.columns, skip_bad), mask)
            stored.check(table.labels)
            yield table, stored
        return
    if not data:
        raise ConfigError(f"episodes={' '.join(episodes)} are drawn from labelled texts; give --data too")
    shots = [[word] for word in episodes if word.endswith("-shot")]
    others = [word for word in episodes if [word] not in shots]
    for path in data:
        table = Table.read(path, TableOptions.parse(columns, skip_bad), mask)
        for shape in (EpisodeShape.parse(others + shot, DEFAULT_SHAPE) for shot in shots or [[]]):
            pool = classes_with_enough_rows(table.pool, shape, str(path))
            drawn = [draw_episode(pool, shape, seed, number) for number in range(shape.episodes)]
            yield table, EpisodeFile(path, columns, drawn)


def check_folds(folds: Sequence[Fold], models: Mapping[str, Model]) -> None:
    """Refuse models that cannot take part, too few episodes, and classes that a model was trained on."""
    for name, model in models.items():
        if isinstance(model, Adapted):
            raise ConfigError(f"{name} has its classes already; give the model that it was adapted from")
    for table, stored in folds:
        if len(stored.episodes) < 2:
            raise ConfigError("1 episode says nothing about others; have more drawn, 600-episodes are usual")
        classes = {table.labels[rows[0]] for episode in stored.episodes for rows in episode.support}
        for name, model in models.items():
            known = seen_classes(model, table.kind)
            check_disjoint_classes({f"what {name} learned from": known, str(table.path): sorted(classes)})


def compare_on_folds(
    folds: Sequence[Fold], models: Mapping[str, Model], methods: Sequence[Method], seed: int, console: Console
) -> dict[str, Any]:
    """The content of evaluation.json: a row for each shape, model and method."""
    methods = [method for method in METHODS if method in methods]
    count = sum(len(stored.episodes) for _, stored in folds)
    by_shape: dict[EpisodeShape, list[list[MethodResult]]] = {}
    with progress_bar(console, f"{count:,} episodes", count * len(models) * len(methods)) as bar:
        for table, stored in folds:
            results = compare(table, stored.episodes, models, methods, lambda n: bar.advance(bar.task_ids[0], n))
            # five examples tell more than one: results with different numbers of shots are never averaged
            by_shape.setdefault(EpisodeShape(stored.shape.way, stored.shape.shot), []).append(results)
    rows = [
        {"shape": shape.name, "way": shape.way, "shot": shape.shot} | row
        for shape in sorted(by_shape, key=lambda shape: (shape.way, shape.shot))
        for row in summarize_folds(by_shape[shape])
    ]
    data = list(dict.fromkeys(str(table.path) for table, _ in folds))
    return {"data": data, "episodes": count, "seed": seed, "rows": rows}


def compare(
    table: Table,
    episodes: Sequence[Episode],
    models: Mapping[str, Model],
    methods: Sequence[Method],
    advance: Advance = lambda count: None,
) -> list[MethodResult]:
    """Every method with every model on every episode. For methods that only need vectors all texts are encoded once."""
    results = []
    for number, (name, model) in enumerate(models.items()):
        vectors = any(method in VECTOR_METHODS for method in methods)
        encoded, seconds_per_text = encode_table(table, episodes, model, vectors)
        for method in methods:
            model_free = method in MODEL_FREE_METHODS
            if (model_free and number) or (method == "meta" and encoded.learner is None):
                advance(len(episodes))
                continue
            accuracy, began = [], time.perf_counter()
            for episode in episodes:
                accuracy.append(METHODS[method](encoded, episode))
                advance(1)
            seconds = (time.perf_counter() - began) / len(episodes)
            if method in VECTOR_METHODS:
                seconds += seconds_per_text * float(np.mean([sum(map(len, episode.rows())) for episode in episodes]))
            results.append(MethodResult("" if model_free else name, method, accuracy, seconds))
    return results


def encode_table(
    table: Table, episodes: Sequence[Episode], model: Model, with_vectors: bool
) -> tuple[EncodedTable, float]:
    """Encode the texts of all episodes; also the seconds per text that the vectors took."""
    rows = sorted({row for episode in episodes for part in episode.rows() for row in part})
    texts = [table.texts[row] for row in rows]
    encodings = model.tokenizer.encode(texts, max_length=model.max_length)
    ids: list[list[int]] = [[]] * len(table.texts)
    for row, encoding in zip(rows, encodings, strict=True):
        ids[row] = encoding.ids
    vectors, began = np.zeros((len(table.texts), 0), dtype=np.float32), time.perf_counter()
    if with_vectors:
        embedded = model.embed(texts)
        vectors = np.zeros((len(table.texts), embedded.shape[1]), dtype=np.float32)
        vectors[rows] = embedded / np.linalg.norm(embedded, axis=1, keepdims=True)
    seconds_per_text = (time.perf_counter() - began) / len(rows)
    meta = read_meta_settings(model)
    learner = Learner.from_settings(model.encoder, meta, model.sentence_map) if meta else None
    if learner is not None:
        learner.bf16 = model.bf16
    return EncodedTable(table.texts, table.labels, model, ids, vectors, learner), seconds_per_text


def summarize_folds(folds: Sequence[Sequence[MethodResult]]) -> list[dict[str, Any]]:
    """Means with margins, and differences to the first model's prototypes, or to the first result if there are none.

    Every fold has the same methods in the same order.
    """
    if not folds[0]:
        raise ConfigError("no method is left to compare: meta is for what litebert meta-train made; name others")
    reference = next((place for place, result in enumerate(folds[0]) if result.method == "prototypes"), 0)
    reference_accuracy = [fold[reference].accuracy for fold in folds]
    rows = []
    for number, results in enumerate(zip(*folds, strict=True)):
        by_fold = [result.accuracy for result in results]
        pooled: list[float] = np.concatenate(by_fold).tolist()
        accuracy, better = (
            mean_with_margin(pooled),
            paired_difference(pooled, np.concatenate(reference_accuracy).tolist()),
        )
        fold_means = [mean_with_margin(fold).value for fold in by_fold]
        fold_gaps = [paired_difference(*pair).value for pair in zip(by_fold, reference_accuracy, strict=True)]
        rows.append({
            "model": results[0].model, "method": results[0].method,
            "accuracy": accuracy.value, "margin": accuracy.margin,
            "folds": fold_means, "spread": sample_deviation(fold_means),
            "better": better.value, "better_margin": better.margin,
            "better_folds": fold_gaps, "better_spread": sample_deviation(fold_gaps), "reference": number == reference,
            "seconds": float(np.mean([result.seconds for result in results])), "by_episode": pooled,
        })  # fmt: skip
    return rows
