"""A model that runs an exported ONNX graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from litebert.data.batches import Batch
from litebert.inference.model import Model
from litebert.tasks import Task
from litebert.tasks.base import Scores


class Exported(Model):
    """Tokenizes, batches and decodes like the model it was made from; ONNX Runtime computes the scores."""

    def __init__(self, model: Model, session: Any) -> None:
        super().__init__(model.albert, model.tokenizer, model.task, model.max_length, model.sentence_map)
        self.source = model.source
        self.session = session

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        return run_session(self.session, batch)


def run_session(session: Any, batch: Batch) -> Scores:
    """The outputs of the graph, by name."""
    tensors = {
        "input_ids": batch.input_ids, "attention_mask": batch.real.long(), "token_type_ids": batch.token_type_ids
    }  # fmt: skip
    names = {node.name for node in session.get_inputs()}  # unused inputs are not part of a graph
    inputs = {name: tensor.numpy() for name, tensor in tensors.items() if name in names}
    outputs: list[np.ndarray] = session.run(None, inputs)
    return {node.name: torch.from_numpy(values) for node, values in zip(session.get_outputs(), outputs, strict=True)}
