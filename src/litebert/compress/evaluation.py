"""What recipes do that make a model smaller: read what it will read, and say what was gained and lost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.errors import ConfigError, DataError

if TYPE_CHECKING:
    from litebert.data.batches import Example
    from litebert.inference import Model

TIMED_TOKENS, ROUNDS = 64, 9


def examples_of(model: Model, path: Path, columns: tuple[str, ...], most: int | None = None) -> list[Example]:
    """What the model is going to read: all of it, or so many evenly taken from the file. Labels need not be there."""
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
        texts = tuple(one for one in columns if not one.startswith("label="))
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
        examples = [Example([one]) for one in encoded]
    if not examples:
        raise DataError(f"{path}: holds no text; give a file of texts such as the model will read")
    return examples


def check_test(model: Model, test: Path | None, columns: tuple[str, ...]) -> None:
    """Refuse before the work what could not be scored after it."""
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


def scores_of(models: Sequence[Model], test: Path, columns: tuple[str, ...]) -> tuple[str, list[float]]:
    """The name of the metric that decides, and what each of them gets on labelled examples, on a CPU."""
    from litebert.commands import evaluate

    settings = evaluate.Config(data=(test,), columns=columns, device="cpu")
    precisions: list[Literal["fp32", "bf16"]] = ["bf16" if one.bf16 else "fp32" for one in models]
    found = [
        evaluate.evaluate(replace(settings, precision=precision), str(one.source), test, one)
        for one, precision in zip(models, precisions, strict=True)
    ]
    return found[0].metric, [one.metrics[found[0].metric] for one in found]


def milliseconds(models: Sequence[Model], depths: Sequence[int | None] | None = None) -> list[float]:
    """The encoders' time for one text of 64 tokens on this CPU, in turns: all passes, or so many of each."""
    import torch

    depths = [None] * len(models) if depths is None else depths
    ids = torch.arange(TIMED_TOKENS)[None] % min(one.config.vocab_size for one in models)
    ids = ids[:, : min(one.config.max_position_embeddings for one in models)]
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for model, depth, times in zip(models, depths, seconds, strict=True):
                with model.answering():
                    began = time.perf_counter()
                    model.encoder(ids, depth=depth)
                    times.append(time.perf_counter() - began)
    return [1000 * statistics.median(times) for times in seconds]
