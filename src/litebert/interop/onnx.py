"""ONNX graphs of models, in which the weights that passes share are stored once, and sessions that run them.

A graph is what torch's exporter makes of a module that takes three tensors, (B, L) each, and returns named ones.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.errors import ConfigError, require_extra
from litebert.model import Albert, Encoder
from litebert.model.sentence_head import SentenceHead, SentenceMap, pooled
from litebert.tasks import Task
from litebert.tasks.base import Scores

if TYPE_CHECKING:
    import onnx

OPSET = 20
"""The first with GELU as an operator."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MAX_SEQUENCES = 1 << 16


class AnswerModule(nn.Module):
    """The output of a task's head; for a pre-trained model, logits over the vocabulary for every token."""

    def __init__(self, albert: Albert, task: Task[Any, Any]) -> None:
        super().__init__()
        if getattr(task, "head_kind", "") == "lstm":
            raise ConfigError(
                "an LSTM reads texts one by one, which no graph for many texts can say; teach the model again with "
                "--head linear, or use --give vectors"
            )
        self.albert, self.task = albert, task

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Scores:
        batch = Batch(input_ids, attention_mask.bool(), token_type_ids, lengths=attention_mask.sum(1))
        return self.task.graph_outputs(self.albert, batch)


class VectorModule(nn.Module):
    """Hidden states, and the vector that `embed` returns."""

    def __init__(self, albert: Albert, sentence_map: SentenceMap | None) -> None:
        super().__init__()
        if sentence_map is not None and sentence_map.passes > 1:
            raise ConfigError(
                f"a graph gives the last states, and these vectors are of the last {sentence_map.passes} passes; train "
                "the model without --last-passes"
            )
        self.encoder = albert.encoder
        self.head = None if sentence_map is None else SentenceHead(sentence_map)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Scores:
        hidden = self.encoder(input_ids, attention_mask, token_type_ids)
        make = pooled if self.head is None else self.head
        return {"last_hidden_state": hidden, "sentence_embedding": make(hidden, input_ids, attention_mask)}


def make_graph(module: AnswerModule | VectorModule, max_length: int) -> onnx.ModelProto:
    """The ONNX graph for batches of sequences of up to `max_length` tokens."""
    return export_graph(module, _example_inputs(), _shapes(max_length))


def export_graph(module: nn.Module, inputs: dict[str, Tensor], shapes: dict[str, dict[int, Any]]) -> onnx.ModelProto:
    """The ONNX graph of a module that takes tensors such as `inputs` by name; `shapes` are its dynamic dimensions."""
    require_extra("onnx", "export")
    require_extra("onnxscript", "export")
    with _exporting(module):
        names = list(module(**inputs))
        program = torch.onnx.export(
            module, (), kwargs=inputs, dynamic_shapes=shapes, input_names=list(inputs), output_names=names,
            opset_version=OPSET, dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    del graph.graph.value_info[:]  # shapes of intermediate values and places in our source, which nobody needs
    for node in graph.graph.node:
        del node.metadata_props[:]
    graph.producer_name = "litebert"
    return graph


def export_program(module: AnswerModule | VectorModule, max_length: int) -> torch.export.ExportedProgram:
    """The same as a torch program, which `torch.export.load` reads without litebert."""
    with _exporting(module):
        return torch.export.export(module, (), kwargs=_example_inputs(), dynamic_shapes=_shapes(max_length))


@contextmanager
def _exporting(module: nn.Module) -> Iterator[None]:
    """Without gradients and with the eager backend; what torch cannot export becomes an error of one line."""
    encoders = [part for part in module.modules() if isinstance(part, Encoder)]
    before = [encoder.attention_implementation for encoder in encoders]
    for encoder in encoders:
        encoder.attention_implementation = "eager"
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.eval()
            yield
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = str(root).strip().splitlines() or [type(root).__name__]
        raise ConfigError(
            f"torch cannot write this model as a graph: {reason[0]}; use --give vectors, or teach it with --head linear"
        ) from error
    finally:
        for encoder, implementation in zip(encoders, before, strict=True):
            encoder.attention_implementation = implementation
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _example_inputs() -> dict[str, Tensor]:
    """Two sequences, one of them padded; their content does not matter."""
    real = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    second = real * (torch.arange(9) > 3)  # such as the text of a question
    return dict(zip(INPUTS, (torch.ones_like(real), real, second), strict=True))


def _shapes(max_length: int) -> dict[str, dict[int, Any]]:
    axes = {0: torch.export.Dim("batch", max=MAX_SEQUENCES), 1: torch.export.Dim("length", max=max_length)}
    return dict.fromkeys(INPUTS, axes)


def open_session(path: Path) -> Any:
    """ONNX Runtime with this graph, on as many threads as torch has."""
    onnxruntime = require_extra("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, batch: Batch) -> Scores:
    """The outputs of a graph, by name."""
    tensors = dict(zip(INPUTS, (batch.input_ids, batch.real.long(), batch.token_type_ids), strict=True))
    names = {node.name for node in session.get_inputs()}  # the exporter drops inputs that the graph does not use
    outputs = session.run(None, {name: tensor.numpy() for name, tensor in tensors.items() if name in names})
    return {node.name: torch.from_numpy(values) for node, values in zip(session.get_outputs(), outputs, strict=True)}
