"""Open any ALBERT checkpoint and write it in the format that somebody needs.

Examples:
  litebert convert albert_base_v2 runs/albert
  litebert convert albert_tiny_zh/albert_model.ckpt runs/tiny --verify
  litebert convert runs/mine tf --to google
  litebert convert runs/mine keras --to keras

It reads checkpoints of TensorFlow (Google's, TF-Hub's, SavedModels, both kinds of albert_zh's), folders and files of
PyTorch and safetensors, also by lonePatient's names, and keras-hub's weights, told apart by what they hold; neither
TensorFlow nor Keras is needed. What was found, what became of it and what was left out, and why, is shown as a table
and kept in convert.json.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from litebert.console import make_console, status
from litebert.errors import CheckpointError, ConfigError
from litebert.files import write_json
from litebert.run_folder import refuse_overwrite, write_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from litebert.interop.checkpoint_source import Row, Source
    from litebert.interop.huggingface import Folder
    from litebert.model import Albert

Target = Literal["huggingface", "google", "keras", "sentence-transformers", "onnx"]
LIMIT = 1e-4
"""How far hidden states may be off from the source's; they usually are 1e-6."""
NO_PLACE = "there is no place for it in what was written"
OTHER_HEAD = "a head beside that of the model's task, which alone is kept"
KNOWN_HEADS = ("predictions.", "sop_classifier.", "classifier.", "qa_outputs.")
WIDE = 200
"""Columns where nobody looks at a screen."""
MADE = {"config.json": "a model", "albert_config.json": "a checkpoint", "model.onnx": "an exported model"}


@dataclass(frozen=True)
class Config:
    POSITIONAL: ClassVar[tuple[str, str]] = ("source", "out")
    source: str
    """Folder or file of a checkpoint, what its files are called in common, or the name of a model."""
    out: Path
    """Folder for what comes out."""
    to: Target = "huggingface"
    """What is written. huggingface: a folder for transformers and litebert, sentence-transformers: the same, for
    vectors of texts; google: a TensorFlow checkpoint for google-research/albert; keras: a preset for keras-hub; onnx: a
    graph, as litebert export writes it."""
    verify: bool = False
    """Compute hidden states with the framework that the source is for, if it is installed, and hold ours against
    them."""
    json: bool = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        given = Path(self.source).resolve()
        places = (given, given / "variables") if given.is_dir() else (given.parent,)  # where a SavedModel has them
        if self.out.resolve() in places:
            raise ConfigError(f"{self.out} is where the source lies; choose another --out")
        for name, what in MADE.items():
            refuse_overwrite(self.out / name, what)


@dataclass(frozen=True)
class Figures:
    """What was found and what became of it."""

    kind: str
    to: str
    rows: list[Row]
    remarks: list[str]
    off: float | None = None
    """The largest difference of hidden states from what the source's framework gives."""


def run(config: Config) -> None:
    from litebert.fewshot.persistence import SavedClassifier
    from litebert.inference.loading import locate
    from litebert.interop.formats import read_source

    console = make_console()
    path = locate(config.source)
    if SavedClassifier.is_at(path):
        raise ConfigError(
            f"{path} is an adapted model, a head on another one; convert that one, or use litebert export"
        )
    warned: list[str] = []
    with status(console, f"reading {path}"), _caught(warned):
        source = read_source(path)
    remarks, off = list(source.remarks), None
    if source.tokenizer is None:
        if config.to != "huggingface":
            raise CheckpointError(
                f"{source.folder}: has no vocabulary, and --to {config.to} needs one; put it beside the checkpoint, or "
                "convert the weights alone with --to huggingface"
            )
        remarks.append(f"no vocabulary beside it, so there are weights only; put tokenizer.json, spiece.model or "
                       f"vocab.txt into {config.out} to use them")  # fmt: skip
    if config.verify:
        from litebert.interop.verify import difference

        with status(console, "computing hidden states with the source's framework"), _caught(warned):
            found = difference(source)
        off, said = (None, [found]) if isinstance(found, str) else (found, [])
        remarks += said
        if off is not None and off > LIMIT:
            raise CheckpointError(f"hidden states are off by {off:.1e} from what the source's framework gives, so "
                                  "nothing was written; please report this")  # fmt: skip
    with status(console, f"writing {config.out}"), _caught(warned):
        rows = _write(config, source, remarks)
    figures = Figures(source.kind, config.to, rows, list(dict.fromkeys(remarks + warned)), off)
    write_json(config.out / "convert.json", asdict(figures))
    write_run(config.out, "convert", config)
    _print(config, figures)


def _write(config: Config, source: Source, remarks: list[str]) -> list[Row]:
    """Write it; says what became of each tensor, and adds to the remarks."""
    from litebert.interop.checkpoint_source import Row
    from litebert.interop.formats import folder_of
    from litebert.interop.huggingface import save_folder, save_weights, weights_of

    if source.tokenizer is None:
        model, task = weights_of(source.folder, dict(source.settings), dict(source.tensors))
        save_weights(config.out, model, task)
        return _assembled(source.rows, model)
    folder = folder_of(source)
    read = _assembled(source.rows, folder.model)
    if config.to in ("huggingface", "sentence-transformers"):
        save_folder(config.out, folder)
    elif config.to == "google":
        from litebert.interop.tensorflow import write_google

        return _joined(read, write_google(folder, config.out))
    elif config.to == "keras":
        from litebert.interop.keras import places_in, read_preset, write_keras

        remarks += [f"left out: {what}" for what in write_keras(config.out, folder)]
        places = places_in(*read_preset(config.out), config.out)
        return _joined(read, [Row(place.ours, place.shape, place.theirs) for place in places])
    else:
        _export(config, folder)
    return read


@contextmanager
def _caught(warned: list[str]) -> Iterator[None]:
    """Keep what litebert warns of, so that it stands among the remarks; others' warnings are shown as ever."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for one in caught:
        if Path(__file__).parents[1] in Path(one.filename).parents:
            warned.append(str(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _assembled(rows: Sequence[Row], model: Albert) -> list[Row]:
    """What was read may have no place in the model that was made of it: then it is left out, and why."""
    from litebert.interop.checkpoint_source import NO_HEAD
    from litebert.interop.huggingface import tensors_of

    held = {name for name, _ in tensors_of(model)}
    return [
        replace(row, becomes="", why=OTHER_HEAD if row.becomes.startswith(KNOWN_HEADS) else NO_HEAD)
        if row.becomes and row.becomes not in held
        else row
        for row in rows
    ]


def _export(config: Config, folder: Folder) -> None:
    """As `litebert export` does, from the model as we would save it."""
    from contextlib import redirect_stdout
    from tempfile import TemporaryDirectory

    from litebert.commands import export
    from litebert.interop.huggingface import save_folder

    with TemporaryDirectory(prefix="litebert-") as name, redirect_stdout(sys.stderr):
        save_folder(Path(name), folder)
        export.run(export.Config(out=config.out, model=name))


def _joined(read: Sequence[Row], written: Sequence[Row]) -> list[Row]:
    """From the names of the source to those that were written."""
    from litebert.interop.checkpoint_source import Row

    after = {row.name: row for row in written}
    rows = []
    for row in read:
        last = after.get(row.becomes, Row(row.name, row.shape, why=row.why or NO_PLACE))
        rows.append(Row(row.name, row.shape, last.becomes, last.why or row.why))
    taken = {row.becomes for row in read}
    return rows + [Row("", row.shape, row.becomes, "not in the source") for row in written if row.name not in taken]


def _print(config: Config, figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    if config.json:
        print(json.dumps(asdict(figures)))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    taken = [row for row in figures.rows if row.becomes]
    table = Table(title=f"{config.source}: {figures.kind}", title_justify="left")
    for name in ("in it", "shape", "becomes", ""):
        table.add_column(name, overflow="fold")
    for row in taken:
        table.add_row(row.name, " × ".join(map(str, row.shape)), row.becomes, row.why)
    console.print(table)
    left_out = Counter(row.why for row in figures.rows if not row.becomes)
    for why, count in left_out.items():
        names = [row.name for row in figures.rows if not row.becomes and row.why == why]
        print(f"left out, {why}: {', '.join(names[:3])}" + (f" and {count - 3} more" if count > 3 else ""))
    for remark in figures.remarks:
        print(remark)
    if figures.off is not None:
        print(f"hidden states are off by {figures.off:.1e} at most from what the source's framework gives")
    print(f"{len(figures.rows)} tensors found, {len(taken)} taken, {len(figures.rows) - len(taken)} left out; "
          f"{config.out} is for {config.to}")  # fmt: skip
