"""Adapting classifiers on the server: their texts are computed in the same batches as those of other requests."""

from __future__ import annotations

import asyncio
import copy
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

from litebert.data.batches import Example
from litebert.fewshot import Adapted
from litebert.fewshot.adapt import adapt_frozen
from litebert.fewshot.explain import ExplainTask, influential_examples
from litebert.inference import Model
from litebert.inference.records import as_record
from litebert.serve.engine import Engine, TaskScoring, token_count
from litebert.serve.registry import ServedModel, base_model
from litebert.tasks import Task
from litebert.tasks.base import Scores

TRAINING_THREADS = 2
"""Classifiers adapted at the same time; further requests wait."""
BASE_FOLDER = "base"
"""Folder of the base model within a download, unless the base is a model known by name."""
CHUNK_BYTES = 1 << 16
"""Bytes of a download sent at a time."""


class BatchedModel(Model):
    """A model that computes through the server's batcher; for use outside the event loop's thread."""

    def __init__(self, model: Model, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(model.albert, model.tokenizer, None, model.max_length, model.sentence_map)
        self.source, self.int8, self.bf16 = model.source, model.int8, model.bf16
        self.model, self._engine, self._loop = model, engine, loop
        self._pending: set[Future[Any]] = set()

    def score_examples(
        self, task: Task[Any, Any], examples: Sequence[Example], batch_size: int | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> list[Scores]:  # fmt: skip
        lengths = [token_count(example) for example in examples]
        request = self._engine.batcher.submit(TaskScoring(self.model, task), examples, lengths)
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        self._pending.add(future)
        try:
            return future.result()
        finally:
            self._pending.discard(future)

    def cancel_pending(self) -> None:
        """Cancel the requests in the queue."""
        for future in list(self._pending):
            future.cancel()


def unbatched(base: Model) -> Model:
    """The model behind a `BatchedModel`; any other model is returned as it is."""
    return base.model if isinstance(base, BatchedModel) else base


class FewShotTrainer:
    """Adapts classifiers in a few threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(TRAINING_THREADS, thread_name_prefix="litebert-teach")

    def close(self) -> None:
        self._pool.shutdown()

    async def train(
        self, served: ServedModel, texts: Sequence[str], labels: Sequence[str], label_names: bool | None
    ) -> Adapted:
        batched_model = self._batched(base_model(served.model))
        work = partial(adapt_frozen, batched_model, texts, labels, label_names=label_names)
        return await self._run(batched_model, work)

    async def add_examples(self, adapted: Adapted, texts: Sequence[str], labels: Sequence[str]) -> Adapted:
        extended = copy.copy(adapted)
        extended.base = batched_model = self._batched(adapted.base)
        return await self._run(batched_model, lambda: extended.add_examples(texts, labels))

    async def explain(self, adapted: Adapted, text: str) -> dict[str, Any]:
        """The answer for a text, and the examples with the largest influence on it."""
        task = ExplainTask(adapted.few_shot)
        record = task.parse(text, "text")
        features = await self._engine.run_in_thread(task.features, [record], adapted.tokenizer, adapted.max_length)
        scores = await self._engine.batcher.submit(TaskScoring(adapted, task), features, [token_count(features[0])])
        answer = as_record(task.answer(record, features[0], scores[0]))
        examples = influential_examples(adapted, answer["label"], scores[0])
        return answer | {"nearest": [as_record(example) for example in examples]}

    def _batched(self, base: Model) -> BatchedModel:
        return BatchedModel(unbatched(base), self._engine, asyncio.get_running_loop())

    async def _run(self, batched_model: BatchedModel, work: Callable[[], Adapted]) -> Adapted:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except asyncio.CancelledError:
            batched_model.cancel_pending()
            raise


def zip_archive(adapted: Adapted, name: str) -> IO[bytes]:
    """A zip of the model folder, with its base model unless that is known by name.

    The file has no name on disk: it disappears when it is closed, even if the client disconnects.
    """
    archive = tempfile.TemporaryFile(prefix="litebert-")  # noqa: SIM115  # `read_chunks` closes it
    with tempfile.TemporaryDirectory(prefix="litebert-") as temporary:
        folder = Path(temporary) / name
        saved = copy.copy(adapted)
        if not isinstance(adapted.source, str):
            unbatched(adapted.base).save(folder / BASE_FOLDER)
            saved.source = (folder / BASE_FOLDER).resolve()
        saved.save(folder)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    file.write(path, path.relative_to(temporary))
    return archive


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The content in chunks; the file is closed at the end."""
    with file:
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
