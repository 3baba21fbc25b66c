"""From inputs to answers: tokenized in a thread pool, computed in shared batches, decoded in the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from litebert.data.batches import Example, TokenSequence
from litebert.data.windows import split_into_windows
from litebert.fewshot import Adapted
from litebert.inference import Model
from litebert.inference.records import as_record, is_blank
from litebert.serve.batcher import Batcher
from litebert.serve.limits import ApiError, Limits
from litebert.tasks import Mask, Task

T = TypeVar("T")
PREPROCESSING_THREADS = 2
"""Threads that tokenize inputs and decode answers."""


@dataclass(frozen=True)
class TaskScoring:
    """Scores of a task, optionally after fewer passes."""

    model: Model
    task: Task[Any, Any]
    passes: int | None = None

    def compute(self, items: Sequence[Example]) -> Sequence[Any]:
        with temporary_depth(self.model, self.passes):
            return self.model.score_examples(self.task, items)


@dataclass(frozen=True)
class TextEmbedding:
    """Embedding vectors."""

    model: Model

    def compute(self, items: Sequence[Example]) -> Sequence[np.ndarray]:
        return list(self.model.embed_examples(items))


@contextmanager
def temporary_depth(model: Model, passes: int | None) -> Iterator[None]:
    """Run with another depth. Models may share an encoder, so call it only in the worker thread."""
    previous = model.encoder.depth
    if passes is not None:
        model.passes = passes
    try:
        yield
    finally:
        model.encoder.depth = previous


class Engine:
    """Computes answers and embeddings for the endpoints."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.batcher = Batcher(limits.batch_tokens, limits.max_wait_s, limits.queue_tokens)
        self._pool = ThreadPoolExecutor(PREPROCESSING_THREADS, thread_name_prefix="litebert-read")
        self._masks: dict[int, Mask] = {}

    async def close(self) -> None:
        await self.batcher.close()
        self._pool.shutdown()

    async def run_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def answers(
        self, model: Model, inputs: Sequence[Any], passes: int | None = None, top: int | None = None
    ) -> list[dict[str, Any] | None]:
        """The records that `litebert predict` writes for the same inputs."""
        return (await self.answers_and_tokens(model, inputs, passes, top))[0]

    async def answers_and_tokens(
        self, model: Model, inputs: Sequence[Any], passes: int | None = None, top: int | None = None
    ) -> tuple[list[dict[str, Any] | None], int]:
        """The answers, and the number of tokens read."""
        if passes is not None:
            if isinstance(model, Adapted):
                raise ApiError(400, "passes: an adapted model chooses its own depths; leave it out")
            if passes > model.config.num_hidden_layers:
                limit = model.config.num_hidden_layers
                raise ApiError(400, f"passes={passes} exceeds this model's; give 1 to {limit}", param="passes")
            model.checked_passes(passes)
        task = self._task(model, top)
        records, examples = await self.run_in_thread(self._build_examples, model, task, inputs)
        lengths = [token_count(example) for example in examples]
        scores = await self.batcher.submit(TaskScoring(model, task, passes), examples, lengths)
        return await self.run_in_thread(_answer_records, task, inputs, records, examples, scores), sum(lengths)

    async def vectors(self, model: Model, texts: Sequence[str] | Sequence[Sequence[int]]) -> tuple[np.ndarray, int]:
        """One vector per text, (N, D), and the number of tokens read."""
        examples = await self.run_in_thread(self._encode_texts, model, texts)
        lengths = [example.length for example in examples]
        rows = await self.batcher.submit(TextEmbedding(model), examples, lengths)
        return np.stack(rows), sum(lengths)

    def _task(self, model: Model, top: int | None) -> Task[Any, Any]:
        task = model.task
        if task is None:
            raise ApiError(400, "this model is an encoder without a task; fine-tune or adapt it", param="model")
        if top is None or (isinstance(task, Mask) and top == task.top):
            return task
        if not isinstance(task, Mask):
            raise ApiError(400, f"top={top}: only models that fill masks take it; leave it out", param="top")
        return self._masks.setdefault(top, Mask(top))

    def _build_examples(
        self, model: Model, task: Task[Any, Any], inputs: Sequence[Any]
    ) -> tuple[list[Any], list[Example]]:
        not_blank = [number for number, item in enumerate(inputs) if not is_blank(item)]
        records = [task.parse(inputs[number], f"input {number + 1}") for number in not_blank]
        examples = task.features(records, model.tokenizer, model.max_length) if records else []
        for number, example in zip(not_blank, examples, strict=True):
            if (tokens := token_count(example)) > self.limits.text_tokens:
                limit = self.limits.text_tokens
                raise ApiError(400, f"input {number + 1}: {tokens:,} tokens; give {limit:,} at most")
        return records, examples

    def _encode_texts(self, model: Model, texts: Sequence[Any]) -> list[Example]:
        if texts and isinstance(texts[0], str):
            return [Example([encoding]) for encoding in model.tokenizer.encode(texts, max_length=model.max_length)]
        return [Example([_encoding_of_ids(model, ids)]) for ids in texts]


def token_count(example: Example) -> int:
    return sum(len(sequence.ids) for sequence in example.sequences)


def _answer_records(
    task: Task[Any, Any], inputs: Sequence[Any], records: Sequence[Any], examples: Sequence[Example],
    scores: Sequence[Any],
) -> list[dict[str, Any] | None]:  # fmt: skip
    answers = iter([as_record(task.answer(*parts)) for parts in zip(records, examples, scores, strict=True)])
    return [None if is_blank(item) else next(answers) for item in inputs]


def _encoding_of_ids(model: Model, ids: Sequence[int]) -> TokenSequence:
    """A text given as token ids, with or without [CLS] and [SEP]."""
    tokenizer, size = model.tokenizer, model.tokenizer.vocab_size
    invalid = next((number for number in ids if not 0 <= number < size), None)
    if invalid is not None:
        raise ApiError(
            400, f"input: {invalid} is not a token id of this model; give 0 to {size - 1}, or texts", param="input"
        )
    inner = [number for number in ids if number not in (tokenizer.cls_id, tokenizer.sep_id)]
    return split_into_windows(inner[: model.max_length - 2], None, tokenizer, model.max_length)[0]
