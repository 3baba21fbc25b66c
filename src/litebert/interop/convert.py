"""Read a checkpoint of any kind and write it in another format, with a record of what became of every tensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from litebert.console import status
from litebert.errors import CheckpointError, ConfigError, require_extra
from litebert.files import write_json
from litebert.interop.checkpoint_source import NO_HEAD, Checkpoint, TensorRecord
from litebert.interop.export import ExportOptions, export_model
from litebert.interop.formats import build_folder, read_any
from litebert.interop.huggingface import Folder, build_model, named_tensors, save_folder, save_weights
from litebert.interop.keras import read_preset, tensor_locations, write_keras
from litebert.interop.tensorflow import write_google
from litebert.interop.verify import hidden_state_difference
from litebert.model import Albert

Target = Literal["huggingface", "google", "keras", "sentence-transformers", "onnx"]
MAX_VERIFY_ERROR = 1e-4
"""Largest difference of hidden states from those of the source's framework; 1e-6 is usual."""
NO_PLACE = "there is no place for it in what was written"
OTHER_HEAD = "a head beside that of the model's task, which alone is kept"
KNOWN_HEADS = ("predictions.", "sop_classifier.", "classifier.", "qa_outputs.")


@dataclass(frozen=True)
class ConversionReport:
    """What was read and what became of it: the content of convert.json."""

    kind: str
    to: Target
    rows: list[TensorRecord]
    remarks: list[str]
    off: float | None = None
    """The largest difference of hidden states from what the source's framework computes."""


def convert_checkpoint(path: Path, out: Path, target: Target, verify: bool, console: Console) -> ConversionReport:
    """Convert and, with `verify`, compare hidden states with the source's framework before anything is written."""
    warned: list[str] = []
    with status(console, f"reading {path}"), _collect_warnings(warned):
        source = read_any(path)
    remarks, error = list(source.remarks), None
    if source.tokenizer is None:
        if target != "huggingface":
            raise CheckpointError(
                f"{source.folder}: has no vocabulary, and --to {target} needs one; put it beside the checkpoint, or "
                "convert the weights alone with --to huggingface"
            )
        remarks.append(
            f"no vocabulary beside it, so there are weights only; put tokenizer.json, spiece.model or vocab.txt into "
            f"{out} to use them"
        )
    if verify:
        with status(console, "computing hidden states with the source's framework"), _collect_warnings(warned):
            result = hidden_state_difference(source)
        if isinstance(result, str):
            remarks.append(result)
        else:
            error = result
            if error > MAX_VERIFY_ERROR:
                raise CheckpointError(
                    f"hidden states are off by {error:.1e} from what the source's framework gives, so nothing was "
                    "written; please report this"
                )
    with status(console, f"writing {out}"), _collect_warnings(warned):
        rows = _write(source, out, target, remarks, console)
    report = ConversionReport(source.kind, target, rows, list(dict.fromkeys(remarks + warned)), error)
    write_json(out / "convert.json", asdict(report))
    return report


def _write(source: Checkpoint, out: Path, target: Target, remarks: list[str], console: Console) -> list[TensorRecord]:
    """Write the target; returns what became of each tensor, and adds to the remarks."""
    if source.tokenizer is None:
        model, task = build_model(source.folder, dict(source.settings), dict(source.tensors))
        save_weights(out, model, task)
        return _mark_unused(source.rows, model)
    folder = build_folder(source)
    rows = _mark_unused(source.rows, folder.model)
    if target in ("huggingface", "sentence-transformers"):
        save_folder(out, folder)
    elif target == "google":
        return _join(rows, write_google(folder, out))
    elif target == "keras":
        remarks += [f"left out: {part}" for part in write_keras(out, folder)]
        places = tensor_locations(*read_preset(out), out)
        return _join(rows, [TensorRecord(place.ours, place.shape, place.theirs) for place in places])
    else:
        _export(folder, source.folder, out, console)
    return rows


def _export(folder: Folder, path: Path, out: Path, console: Console) -> None:
    if folder.int8 is not None:
        raise ConfigError(f"{path} is int8; convert the model that it was quantized from")
    require_extra("onnxruntime", "export")
    write_json(out / "export.json", asdict(export_model(folder, out, ExportOptions(), console)))


@contextmanager
def _collect_warnings(messages: list[str]) -> Iterator[None]:
    """Collect litebert's own warnings; those of other libraries are shown as usual."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        if Path(__file__).parents[1] in Path(warning.filename).parents:
            messages.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _mark_unused(rows: Sequence[TensorRecord], model: Albert) -> list[TensorRecord]:
    """A tensor that the assembled model has no place for is left out."""
    names = {name for name, _ in named_tensors(model)}
    return [
        replace(row, becomes="", why=OTHER_HEAD if row.becomes.startswith(KNOWN_HEADS) else NO_HEAD)
        if row.becomes and row.becomes not in names
        else row
        for row in rows
    ]


def _join(read: Sequence[TensorRecord], written: Sequence[TensorRecord]) -> list[TensorRecord]:
    """From the names in the source to those that were written."""
    by_name = {row.name: row for row in written}
    rows = []
    for row in read:
        target = by_name.get(row.becomes, TensorRecord(row.name, row.shape, why=row.why or NO_PLACE))
        rows.append(TensorRecord(row.name, row.shape, target.becomes, target.why or row.why))
    used = {row.becomes for row in read}
    return rows + [
        TensorRecord("", row.shape, row.becomes, "not in the source") for row in written if row.name not in used
    ]
