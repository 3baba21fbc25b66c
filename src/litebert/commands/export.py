"""Export a model for other runtimes, as ONNX or as a torch program, with the shared layer stored once.

Examples:
  litebert export --model runs/mine --out runs/onnx
  litebert export --model runs/mine --int8 --test test.csv --out runs/onnx8
  litebert export --model runs/few --out runs/onnx
  litebert export --give vectors --out runs/vectors
  litebert export --model runs/mine --format torch --out runs/program

The folder holds model.onnx (or model.pt2), tokenizer.json and config.json, which names the classes. A translator
becomes encoder.onnx, decoder.onnx, which decodes a token at a time, and target/, its vocabulary. A graph takes
input_ids, attention_mask and token_type_ids: any number of sequences of any length up to the model's maximum. --int8
stores large matrices as int8 and multiplies them so. The outputs of ONNX Runtime are compared with torch and, with
--test, scored on labelled examples.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litebert.builtin import DEFAULT
from litebert.console import make_console, status
from litebert.errors import ConfigError, require_extra
from litebert.files import write_json
from litebert.run_folder import refuse_overwrite, write_run

if TYPE_CHECKING:
    from litebert.interop.export import ExportReport

MODEL_FILES = ("model.onnx", "model.pt2", "encoder.onnx")
INT8_WARNING_ERROR = 0.3
"""Relative error above which an int8 graph comes with a warning."""


@dataclass(frozen=True)
class Config:
    out: Path
    """Folder for the graph, its tokenizer and its settings."""
    model: str = DEFAULT
    """Folder of a model, or the name of one."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx: a graph for ONNX Runtime and many others. torch: a program that torch.export.load reads."""
    give: Literal["auto", "answers", "vectors"] = "auto"
    """What the graph returns. answers: the output of the task's head (for a pre-trained model, logits over the
    vocabulary for every token). vectors: hidden states and the vector of the text. auto: vectors if the model was not
    fine-tuned."""
    int8: bool = False
    """ONNX with int8 matrices: a quarter of the size, faster on CPUs with VNNI, slightly less exact; without VNNI some
    runtimes lose more accuracy."""
    check: bool = True
    """Compare the outputs of the graph with torch."""
    test: Path | None = None
    """Labelled examples on which torch and the graph are scored."""
    columns: tuple[str, ...] = ()
    """Columns of --test, if they do not have their usual names: text=sentence label=class."""
    json: bool = False
    """Print JSON instead of sentences."""

    def __post_init__(self) -> None:
        for name in MODEL_FILES:
            refuse_overwrite(self.out / name, "an exported model")
        refuse_overwrite(self.out / "config.json", "a model")
        if self.format != "onnx" and self.int8:
            raise ConfigError("--int8 is for ONNX; for torch use: litebert quantize")
        if self.test is not None and (self.format != "onnx" or self.give == "vectors"):
            raise ConfigError("--test scores the answers of an ONNX graph; leave out --format and --give vectors")


def run(config: Config) -> None:
    from litebert.compress.evaluation import check_test_file, score_on_cpu
    from litebert.inference.exported import Exported, ExportedTranslator
    from litebert.interop.export import ExportOptions, export_model, session_of
    from litebert.interop.huggingface import Folder
    from litebert.loading import load
    from litebert.tasks import Translate

    console = make_console()
    with status(console, f"loading {config.model}"):
        model = load(config.model, engine="torch")
    if model.int8 is not None:
        raise ConfigError(f"{config.model} is int8; export the model that it was quantized from, with --int8")
    check_test_file(model, config.test, config.columns)
    options = ExportOptions(config.format, config.give, config.int8, config.check or config.test is not None)
    if config.format == "onnx" and options.check:
        require_extra("onnxruntime", "export")
    folder = Folder(model.albert, model.tokenizer, model.task, model.max_length, model.sentence_map)
    report = export_model(folder, config.out, options, console)
    if config.test is not None:
        kind = ExportedTranslator if isinstance(model.task, Translate) else Exported
        exported = kind(model, session_of(folder, config.out, options))
        metric, (torch_score, graph_score) = score_on_cpu([model, exported], config.test, config.columns)
        report = replace(report, metric=metric, scores=(torch_score, graph_score))
    write_json(config.out / "export.json", asdict(report))
    write_run(config.out, "export", config)
    _print(config, report)


def _print(config: Config, report: ExportReport) -> None:
    from litebert.interop.export import MAX_ERROR

    if config.json:
        print(json.dumps(asdict(report)))
        return
    print(f"{config.out / report.file}: {report.megabytes:.1f} MB, gives {', '.join(report.outputs)}")
    if report.off is not None:
        error = f"{report.off:.1%}" if report.off > MAX_ERROR else f"{report.off:.1e}"
        warning = "; that is a lot: check its score with --test" if report.off > INT8_WARNING_ERROR else ""
        print(f"largest relative error against torch, on random inputs: {error}{warning}")
    if report.scores is not None:
        torch_score, graph_score = report.scores
        print(f"{report.metric} on {config.test}: {torch_score:.4f} with torch, {graph_score:.4f} with the graph")
