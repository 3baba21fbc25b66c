"""Write a model for other runtimes: the graph, its tokenizer and settings, and how close it comes to torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor

from litebert.console import status
from litebert.data.batches import Batch
from litebert.errors import CheckpointError, ConfigError
from litebert.files import atomic_path, write_json
from litebert.interop.huggingface import Folder, config_dict
from litebert.interop.onnx import (
    AnswerModule,
    VectorModule,
    export_program,
    make_graph,
    open_session,
    run_session,
)
from litebert.interop.onnx_int8 import quantize_graph
from litebert.interop.onnx_translator import (
    DECODER_FILE,
    ENCODER_FILE,
    OnnxDecoder,
    TranslatorDecoder,
    TranslatorEncoder,
    decoder_graph,
    encoder_graph,
)
from litebert.model.decoder import Decoder
from litebert.tasks import Mask
from litebert.tasks.translate import Translate

MAX_ERROR = 1e-3
"""Relative error of a float32 graph above which it is deleted; 1e-6 is usual."""
MIN_SCORE = -1e3
"""Scores below it mean that something is impossible, and are equal."""
STEP_OUTPUTS = ("unknown",)
"""Outputs that are step functions of scores, and may jump where scores hardly differ."""
CHECKED_SHAPES = ((1, 1), (1, 17), (3, 40))
"""Sequences and tokens of the inputs that a graph is checked with."""
CHECKED_STEPS = 4
"""Tokens that a translator's decoder is checked for."""
Format = Literal["onnx", "torch"]
Give = Literal["auto", "answers", "vectors"]
FILES: dict[Format, str] = {"onnx": "model.onnx", "torch": "model.pt2"}


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how close it comes to torch: the content of export.json."""

    file: str
    megabytes: float
    outputs: list[str]
    off: float | None = None
    """The largest relative error against torch, over several shapes."""
    metric: str = ""
    scores: tuple[float, float] | None = None
    """On test examples: of torch, of the graph."""


@dataclass(frozen=True)
class ExportOptions:
    format: Format = "onnx"
    give: Give = "auto"
    int8: bool = False
    check: bool = True


def export_model(folder: Folder, out: Path, options: ExportOptions, console: Console) -> ExportReport:
    """Write the graph of a model and everything that a program needs beside it, but for export.json."""
    if isinstance(folder.task, Translate) and options.give != "vectors":
        with status(console, f"writing the graphs to {out}, some twenty seconds"):
            report = _export_translator(folder, out, options)
    else:
        report = _export_encoder(folder, out, options, console)
    if folder.task is not None:
        folder.task.save_extra_files(out)
    folder.required_tokenizer().save(out, folder.max_length)
    settings = config_dict(Folder(folder.model, folder.tokenizer, folder.task, folder.max_length))
    write_json(out / "config.json", settings)
    return report


def session_of(folder: Folder, out: Path, options: ExportOptions) -> Any:
    """What ONNX Runtime makes of an exported folder: a session, or the decoder of a translator."""
    if isinstance(folder.task, Translate) and options.give != "vectors":
        decoder: Any = folder.model.heads[Translate.head_name]
        return OnnxDecoder(decoder, open_session(out / ENCODER_FILE), open_session(out / DECODER_FILE))
    return open_session(out / FILES["onnx"])


def _export_encoder(folder: Folder, out: Path, options: ExportOptions, console: Console) -> ExportReport:
    module, path = _module_of(folder, options.give), out / FILES[options.format]
    longest = folder.model.config.max_position_embeddings
    with status(console, f"writing {path}, some ten seconds"):
        if options.format == "torch":
            program = export_program(module, longest)
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                torch.export.save(program, file)
        else:
            _write_graph(make_graph(module, longest), path, options.int8)
    report = ExportReport(path.name, path.stat().st_size / 1e6, list(module(**_example(1, 4))))
    if not options.check:
        return report
    with status(console, "checking it against torch"):
        run: Callable[..., Mapping[str, Tensor]]
        if options.format == "torch":
            run = torch.export.load(path).module()
        else:
            session = open_session(path)
            run = lambda **inputs: run_session(session, Batch(*inputs.values()))  # noqa: E731
        error = 0.0
        for batch, length in (*CHECKED_SHAPES, (2, longest)):
            inputs = _example(batch, min(length, longest), folder.model.config.vocab_size)
            with torch.inference_mode():
                error = max(error, relative_error(run(**inputs), module(**inputs)))
    _delete_if_wrong(error, options.int8, path)
    return ExportReport(report.file, report.megabytes, report.outputs, error)


def _module_of(folder: Folder, give: Give) -> AnswerModule | VectorModule:
    has_task = folder.task is not None and not isinstance(folder.task, Mask)
    if give == "vectors" or (give == "auto" and not has_task):
        return VectorModule(folder.model, folder.sentence_map)
    if folder.task is None:
        raise ConfigError("a bare encoder has no answers to give; use --give vectors")
    return AnswerModule(folder.model, folder.task)


def _export_translator(folder: Folder, out: Path, options: ExportOptions) -> ExportReport:
    if options.format != "onnx":
        raise ConfigError("a translator is two graphs, which are written as ONNX; leave out --format")
    decoder: Any = folder.model.heads[Translate.head_name]
    longest = folder.model.config.max_position_embeddings
    encoder_path, decoder_path = paths = (out / ENCODER_FILE, out / DECODER_FILE)
    _write_graph(encoder_graph(TranslatorEncoder(folder.model, decoder), longest), encoder_path, options.int8)
    _write_graph(decoder_graph(TranslatorDecoder(decoder), longest), decoder_path, options.int8)
    megabytes = sum(path.stat().st_size / 1e6 for path in paths)
    error = None
    if options.check:
        error = _translator_error(folder, decoder, session_of(folder, out, options))
        _delete_if_wrong(error, options.int8, *paths)
    return ExportReport(f"{ENCODER_FILE} and {DECODER_FILE}", megabytes, ["scores", "looks"], error)


@torch.inference_mode()
def _translator_error(folder: Folder, decoder: Decoder, exported: OnnxDecoder) -> float:
    """Largest relative error of the scores of a few tokens, for random sources of several lengths."""
    config = folder.model.config
    generator, error = torch.Generator().manual_seed(0), 0.0
    for sequences, length in CHECKED_SHAPES:
        length = min(length, config.max_position_embeddings)
        ids = torch.randint(0, config.vocab_size, (sequences, length), generator=generator)
        real = torch.ones_like(ids, dtype=torch.bool)
        real[1:, max(1, 2 * length // 3) :] = False
        batch = Batch(ids, real, torch.zeros_like(ids))
        cache = exported.begin(exported.memory(batch), real)
        source = TranslatorEncoder(folder.model, decoder)(ids, real.long(), batch.token_type_ids)["source"]
        reference = exported.begin(source.permute(2, 0, 1, 3, 4, 5), real)
        for _ in range(CHECKED_STEPS):
            tokens = torch.randint(0, decoder.config.vocab_size, (sequences,), generator=generator)
            scores, wanted = exported.step(tokens, cache)[0], decoder.step(tokens, reference)[0]
            error = max(error, relative_error({"scores": scores}, {"scores": wanted}))
    return error


def relative_error(outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest, over the norm of what is expected. Scores that mean "impossible" (-10,000) count as equal, and so
    does the order of equal scores where other outputs number them."""
    error = 0.0
    ranked = not all(values.is_floating_point() for values in expected.values())  # then equals may change places
    for name, values in expected.items():
        if values.is_floating_point() and name not in STEP_OUTPUTS:
            actual, wanted = (tensor.double().clamp(min=MIN_SCORE) for tensor in (outputs[name], values))
            if ranked:
                actual, wanted = actual.flatten().sort().values, wanted.flatten().sort().values
            error = max(error, ((actual - wanted).norm() / wanted.norm().clamp(min=1e-12)).item())
    return error


def _write_graph(graph: Any, path: Path, int8: bool) -> None:
    if int8:
        quantize_graph(graph)
    with atomic_path(path) as temporary:
        temporary.write_bytes(graph.SerializeToString())


def _delete_if_wrong(error: float, int8: bool, *paths: Path) -> None:
    if error <= MAX_ERROR or int8:
        return
    for path in paths:
        path.unlink()
    names = " and ".join(map(str, paths))
    raise CheckpointError(f"{names} differs from torch by {error:.1%}, so it was deleted; please report this")


def _example(batch: int, length: int, vocabulary: int = 2) -> dict[str, Tensor]:
    """Random sequences; all but the first have padding."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
    real = torch.ones_like(ids)
    real[1:, max(1, 2 * length // 3) :] = 0
    second = torch.arange(length) >= length // 3
    return {"input_ids": ids, "attention_mask": real, "token_type_ids": second * real}
