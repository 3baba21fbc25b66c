"""Examples, scores and latency of models before and after compression."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litebert.errors import ConfigError, DataError

if TYPE_CHECKING:
    from litebert.data.batches import Example
    from litebert.inference import Model

TIMED_TOKENS, TIMING_ROUNDS = 64, 9


def read_examples(model: Model, path: Path, columns: tuple[str, ...], most: int | None = None) -> list[Example]:
    """Examples in the form of the model's task, or plain texts; at most `most`, spread evenly over the file. Labels are
    optional."""
    import numpy as np

    from litebert.data.batches import Example
    from litebert.data.corpus import read_lines
    from litebert.data.tables import TABLE_SUFFIXES, TableOptions
    from litebert.files import format_suffix
    from litebert.tasks import TrainableTask
    from litebert.tasks.text import TextTask

    def chosen(items: Sequence[Any]) -> list[Any]:
        if most is None or len(items) <= most:
            return list(items)
        return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)]

    task, plain = model.task, format_suffix(path) not in TABLE_SUFFIXES
    if isinstance(task, TrainableTask) and not (plain and isinstance(task, TextTask)):
        texts = tuple(column for column in columns if not column.startswith("label="))
        items = chosen(list(model.items_of(path, TableOptions.parse(texts))))
        records = [model.parse(item, where) for where, item in items]
        examples = task.features(records, model.tokenizer, model.max_length)
    elif not plain:
        raise ConfigError(f"{path}: {model.source} was taught no task that reads tables; give it plain text")
    else:
        lines = [line for line in read_lines([path]) if line.strip()]
        if isinstance(task, TextTask):
            records = [
                model.parse(line, f"{path}, text {number}") for number, line in enumerate(chosen(lines), start=1)
            ]
            return task.features(records, model.tokenizer, model.max_length)
        encoded = model.tokenizer.encode(chosen(lines), max_length=model.max_length)
        examples = [Example([sequence]) for sequence in encoded]
    if not examples:
        raise DataError(f"{path}: holds no text; give a file of texts such as the model will read")
    return examples


def check_test_file(model: Model, test: Path | None, columns: tuple[str, ...]) -> None:
    """Refuse a test file that could not be scored later."""
    from litebert.data.tables import TableOptions
    from litebert.tasks import TrainableTask

    if test is None:
        return
    if not isinstance(model.task, TrainableTask):
        raise ConfigError(f"test={test} needs a model that was taught a task, and {model.source} was not; leave it out")
    records = model.task.read(test, TableOptions.parse(columns))
    model.task.check(records)
    if not records:
        raise DataError(f"{test}: holds no examples that can be read; check the file")


def score_on_cpu(models: Sequence[Model], test: Path, columns: tuple[str, ...]) -> tuple[str, list[float]]:
    """The main metric's name, and the score of each model on labelled examples, on the CPU."""
    from litebert.data.tables import TableOptions
    from litebert.inference.evaluation import evaluate

    evaluations = []
    for model in models:
        model.to("cpu").encoder.eval()
        evaluations.append(evaluate(model, str(model.source), test, source=TableOptions.parse(columns)))
    return evaluations[0].metric, [evaluation.main_score for evaluation in evaluations]


def encoder_latency_ms(models: Sequence[Model], depths: Sequence[int | None] | None = None) -> list[float]:
    """Median latency of the encoders for one text of 64 tokens on this CPU, round-robin; `depths` limits the passes."""
    import torch

    depths = [None] * len(models) if depths is None else depths
    ids = torch.arange(TIMED_TOKENS)[None] % min(model.config.vocab_size for model in models)
    ids = ids[:, : min(model.config.max_position_embeddings for model in models)]
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for _ in range(TIMING_ROUNDS):
            for model, depth, times in zip(models, depths, seconds, strict=True):
                with model.answering():
                    began = time.perf_counter()
                    model.encoder(ids, depth=depth)
                    times.append(time.perf_counter() - began)
    return [1000 * statistics.median(times) for times in seconds]
