"""Models whose answers an exported graph computes."""

from __future__ import annotations

from typing import Any

from litebert.data.batches import Batch
from litebert.inference.model import Model
from litebert.interop.onnx import run_session
from litebert.tasks import Task
from litebert.tasks.base import Scores
from litebert.tasks.translate import Translate


class Exported(Model):
    """Tokenizes, batches and answers as the model it was made from; ONNX Runtime computes the scores."""

    def __init__(self, model: Model, session: Any) -> None:
        super().__init__(model.albert, model.tokenizer, model.task, model.max_length, model.sentence_map)
        self.source = model.source
        self.session = session

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        return run_session(self.session, batch)


class ExportedTranslator(Exported):
    """Searches as the model does; ONNX Runtime computes the encoder and the decoder."""

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        assert isinstance(task, Translate)
        return task.searched(self.session, self.session.memory(batch), batch.real)
