"""A model whose answers an exported graph computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from litebert.data.batches import Batch
from litebert.inference.model import Model
from litebert.tasks import Task
from litebert.tasks.base import Scores


class Exported(Model):
    """Reads, batches and answers as the model it was made from; ONNX Runtime computes what the head says."""

    def __init__(self, model: Model, session: Any) -> None:
        super().__init__(model.albert, model.tokenizer, model.task, model.max_length, model.after)
        self.source = model.source
        self.session = session

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        return by_session(self.session, batch)


def by_session(session: Any, batch: Batch) -> Scores:
    """What the graph gives, by name."""
    tensors = {
        "input_ids": batch.input_ids, "attention_mask": batch.real.long(), "token_type_ids": batch.token_type_ids
    }  # fmt: skip
    wanted = {one.name for one in session.get_inputs()}  # a graph may have no use for one of them
    found: list[np.ndarray] = session.run(None, {name: one.numpy() for name, one in tensors.items() if name in wanted})
    names = (one.name for one in session.get_outputs())
    return {name: torch.from_numpy(values) for name, values in zip(names, found, strict=True)}
