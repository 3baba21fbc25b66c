"""ONNX: a model as a graph that other runtimes compute, in which the weights that passes share stand once.

The graph is what torch's own exporter makes of a module that takes three tensors, (B, L) each, and gives named ones.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.errors import ConfigError, require_extra
from litebert.files import atomic_path
from litebert.model import Albert, Encoder
from litebert.model.sentence_head import SentenceHead, SentenceMap, pooled
from litebert.tasks import Task
from litebert.tasks.base import Scores

if TYPE_CHECKING:
    import onnx

OPSET = 20
"""The first with GELU as an operator."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MOST_SEQUENCES = 1 << 16


class Answers(nn.Module):
    """What the head of a task says; of a pre-trained model, the scores of the vocabulary for every token."""

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


class Vectors(nn.Module):
    """The hidden states, and the vector that `embed` gives."""

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


def graph_of(module: Answers | Vectors, max_length: int) -> onnx.ModelProto:
    """For any number of sequences of up to so many tokens."""
    return graph_from(module, _given(), _shapes(max_length))


def graph_from(module: nn.Module, given: dict[str, Tensor], shapes: dict[str, dict[int, Any]]) -> onnx.ModelProto:
    """Of a module that takes tensors such as `given` by name, whose `shapes` say which sizes may differ."""
    require_extra("onnx", "export")
    require_extra("onnxscript", "export")
    with _exporting(module):
        names = list(module(**given))
        program = torch.onnx.export(
            module, (), kwargs=given, dynamic_shapes=shapes, input_names=list(given), output_names=names,
            opset_version=OPSET, dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    del graph.graph.value_info[:]  # sizes of what lies between, and where in our source it was said: nobody needs them
    for node in graph.graph.node:
        del node.metadata_props[:]
    graph.producer_name = "litebert"
    return graph


def program_of(module: Answers | Vectors, max_length: int) -> torch.export.ExportedProgram:
    """The same for torch alone: `torch.export.load` reads it without litebert."""
    with _exporting(module):
        return torch.export.export(module, (), kwargs=_given(), dynamic_shapes=_shapes(max_length))


def write_compiled(program: torch.export.ExportedProgram, path: Path) -> None:
    """Machine code of it for CPUs like this one, with its weights, in one file (AOTInductor)."""
    from torch._inductor import aoti_compile_and_package

    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = aoti_compile_and_package(program, package_path=f"{folder}/{path.name}")
        except RuntimeError as error:
            said, cause = (str(error).strip().splitlines() or [type(error).__name__])[0], repr(error)
            remedy = "install one (apt install g++), or " if "InvalidCxxCompiler" in cause + said else ""
            raise ConfigError(f"torch cannot compile this model: {said}; {remedy}use --format torch") from error
        with atomic_path(path) as temporary:
            shutil.copyfile(made, temporary)


@contextmanager
def _exporting(module: nn.Module) -> Iterator[None]:
    """Nothing is learned, attention is the plain formula, and what cannot be said in a graph is told in one line."""
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
        said = str(root).strip().splitlines() or [type(root).__name__]
        raise ConfigError(
            f"torch cannot write this model as a graph: {said[0]}; use --give vectors, or teach it with --head linear"
        ) from error
    finally:
        for encoder, implementation in zip(encoders, before, strict=True):
            encoder.attention_implementation = implementation
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _given() -> dict[str, Tensor]:
    """Two sequences, one of them shorter; what they say does not matter."""
    real = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    second = real * (torch.arange(9) > 3)  # such as the text of a question
    return dict(zip(INPUTS, (torch.ones_like(real), real, second), strict=True))


def _shapes(max_length: int) -> dict[str, dict[int, Any]]:
    axes = {0: torch.export.Dim("batch", max=MOST_SEQUENCES), 1: torch.export.Dim("length", max=max_length)}
    return dict.fromkeys(INPUTS, axes)
