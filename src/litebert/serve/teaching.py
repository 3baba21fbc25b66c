"""Classifiers that clients teach: the texts are read in the same batches as all others."""

from __future__ import annotations

import asyncio
import copy
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
"""At once; more wait."""
BASE_FOLDER = "base"
"""The folder of a download that holds the model it was made from, where that is not known by name."""
CHUNK_BYTES = 1 << 16
"""Bytes of a download that are sent at once."""


class BatchedModel(Model):
    """A model that reads in the server's batches, for use in a thread that is not the event loop's."""

    def __init__(self, model: Model, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(model.albert, model.tokenizer, None, model.max_length, model.after)
        self.source, self.int8, self.bf16 = model.source, model.int8, model.bf16
        self.model, self._engine, self._loop = model, engine, loop
        self._asked: set[Future[Any]] = set()

    def score_examples(
        self, task: Task[Any, Any], examples: Sequence[Example], batch_size: int | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> list[Scores]:  # fmt: skip
        lengths = [token_count(example) for example in examples]
        question = self._engine.batcher.ask(TaskScoring(self.model, task), examples, lengths)
        asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        self._asked.add(asked)
        try:
            return asked.result()
        finally:
            self._asked.discard(asked)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        for asked in list(self._asked):
            asked.cancel()


def unbatched(base: Model) -> Model:
    """As it is served."""
    return base.model if isinstance(base, BatchedModel) else base


class FewShotTrainer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(TRAINING_THREADS, thread_name_prefix="litebert-teach")

    def close(self) -> None:
        self._pool.shutdown()

    async def teach(
        self, served: ServedModel, texts: Sequence[str], labels: Sequence[str], label_names: bool | None
    ) -> Adapted:
        queued = self._queued(base_model(served.model))
        return await self._aside(queued, lambda: adapt_frozen(queued, texts, labels, label_names=label_names))

    async def add(self, adapted: Adapted, texts: Sequence[str], labels: Sequence[str]) -> Adapted:
        more = copy.copy(adapted)
        more.base = queued = self._queued(adapted.base)
        return await self._aside(queued, lambda: more.add_examples(texts, labels))

    async def explain(self, adapted: Adapted, text: str) -> dict[str, Any]:
        """Its answer, and the examples that decided."""
        task = ExplainTask(adapted.few_shot)
        record = task.parse(text, "text")
        features = await self._engine.aside(task.features, [record], adapted.tokenizer, adapted.max_length)
        scores = await self._engine.batcher.ask(TaskScoring(adapted, task), features, [token_count(features[0])])
        answer = as_record(task.answer(record, features[0], scores[0]))
        return answer | {
            "nearest": [as_record(one) for one in influential_examples(adapted, answer["label"], scores[0])]
        }

    def _queued(self, base: Model) -> BatchedModel:
        return BatchedModel(unbatched(base), self._engine, asyncio.get_running_loop())

    async def _aside(self, queued: BatchedModel, work: Callable[[], Adapted]) -> Adapted:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except asyncio.CancelledError:
            queued.give_up()
            raise


def zip_archive(adapted: Adapted, name: str) -> IO[bytes]:
    """A zip of its folder, with the model it was made from, unless that is known by name.

    The file has no name on the disk and is gone once it is closed, whoever leaves before that.
    """
    archive = tempfile.TemporaryFile(prefix="litebert-")  # noqa: SIM115  # whoever sends it closes it
    with tempfile.TemporaryDirectory(prefix="litebert-") as place:
        folder = Path(place) / name
        saved = copy.copy(adapted)
        if not isinstance(adapted.source, str):
            unbatched(adapted.base).save(folder / BASE_FOLDER)
            saved.source = (folder / BASE_FOLDER).resolve()
        saved.save(folder)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    file.write(path, path.relative_to(place))
    return archive


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """All of it, from the beginning, and it is closed."""
    with file:
        file.seek(0)
        while part := file.read(CHUNK_BYTES):
            yield part
