"""Write a model for other runtimes, as ONNX or in torch's own form, with the shared layer stored once.

Examples:
  litebert export --model runs/mine --out runs/onnx
  litebert export --model runs/mine --int8 --test test.csv --out runs/onnx8
  litebert export --model runs/few --out runs/onnx
  litebert export --give vectors --out runs/vectors
  litebert export --model runs/mine --format torch --out runs/program
  litebert export --model runs/mine --format compiled --out runs/library

The folder holds model.onnx (or model.pt2, compiled.pt2), tokenizer.json and config.json, which names the classes; of a
translator encoder.onnx, decoder.onnx, which writes a token at a time, and target/, the vocabulary of those. A graph
takes input_ids, attention_mask and token_type_ids, any number of sequences of any length that the model can read.
--int8 stores large matrices in eight bits and multiplies them so. What ONNX Runtime computes is held against torch, and
with --test scored on labelled examples.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.builtin import DEFAULT
from litebert.compress.evaluation import check_test, scores_of
from litebert.console import make_console, status
from litebert.errors import CheckpointError, ConfigError, require_extra
from litebert.files import atomic_path, write_json
from litebert.run_folder import refuse_overwrite, write_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from torch import Tensor

    from litebert.inference import Model
    from litebert.interop.onnx import Answers, Vectors

CLOSE = 1e-3
"""How far a graph in float32 may be off, as a share of the length of what it gives; it usually is 1e-6."""
RULED_OUT = -1e3
IN_STEPS = ("unknown",)
"""What follows from scores by steps, and may jump where they hardly differ."""
FAR = 0.3
"""Beyond which eight bits are warned of."""
FILES = {"onnx": "model.onnx", "torch": "model.pt2", "compiled": "compiled.pt2"}


@dataclass(frozen=True)
class Config:
    out: Path
    """Folder for the graph, its tokenizer and its settings."""
    model: str = DEFAULT
    """Folder of a model, or the name of one."""
    format: Literal["onnx", "torch", "compiled"] = "onnx"
    """onnx: a graph for ONNX Runtime and many others. torch: a program that torch.export.load reads. compiled: machine
    code for CPUs like this one, by AOTInductor, to be called from C++ or by torch._inductor.aoti_load_package."""
    give: Literal["auto", "answers", "vectors"] = "auto"
    """What comes out: what the head of its task says (of a pre-trained model, scores of the vocabulary for every
    token), or hidden states and the vector of the text. auto: vectors of a model that was taught no task."""
    int8: bool = False
    """ONNX in eight bits: a quarter of the size, faster on CPUs with VNNI, a little less exact; without VNNI some
    runtimes are less exact still."""
    check: bool = True
    """Hold what the graph gives against torch."""
    test: Path | None = None
    """Labelled examples on which both are scored."""
    columns: tuple[str, ...] = ()
    """What stands where in --test, if not under its usual name: text=sentence label=class."""
    json: bool = False
    """Print JSON instead of sentences."""

    def __post_init__(self) -> None:
        for name in (*FILES.values(), "encoder.onnx"):
            refuse_overwrite(self.out / name, "an exported model")
        refuse_overwrite(self.out / "config.json", "a model")
        if self.format != "onnx" and self.int8:
            raise ConfigError("--int8 is for ONNX; for torch use: litebert quantize")
        if self.test is not None and (self.format != "onnx" or self.give == "vectors"):
            raise ConfigError("--test scores the answers of an ONNX graph; leave out --format and --give vectors")


@dataclass(frozen=True)
class Figures:
    """What was written, and how near it comes to torch."""

    file: str
    megabytes: float
    outputs: list[str]
    off: float | None = None
    """The largest distance from what torch gives, as a share of its length, over several shapes."""
    metric: str = ""
    scores: tuple[float, float] | None = None
    """By torch, by the graph."""


def run(config: Config) -> None:
    from litebert.interop.onnx import Answers, Vectors
    from litebert.loading import load
    from litebert.tasks import Mask, Translate

    console = make_console()
    with status(console, f"loading {config.model}"):
        model = load(config.model, engine="torch")
    if model.int8 is not None:
        raise ConfigError(f"{config.model} is in eight bits; export the model that it was quantized from, with --int8")
    check_test(model, config.test, config.columns)
    if config.format == "onnx" and (config.check or config.test is not None):
        require_extra("onnxruntime", "export")
    if isinstance(model.task, Translate) and config.give != "vectors":
        from litebert.interop.onnx_translator import export_translator

        with status(console, f"writing the graphs to {config.out}, some twenty seconds"):
            figures = export_translator(config, model)
        _finish(config, model, figures)
        return
    taught = model.task is not None and not isinstance(model.task, Mask)
    module: Answers | Vectors
    if config.give == "vectors" or (config.give == "auto" and not taught):
        module = Vectors(model.albert, model.sentence_map)
    elif model.task is None:
        raise ConfigError(f"{config.model} is a bare encoder and answers nothing; use --give vectors")
    else:
        module = Answers(model.albert, model.task)
    _finish(config, model, _written(config, module, model, console))


def _finish(config: Config, model: Model, figures: Figures) -> None:
    """Beside the graph: what turns texts into its inputs, and what it is."""
    from litebert.interop.huggingface import Folder, settings_of

    if model.task is not None:
        model.task.save_extra_files(config.out)
    model.tokenizer.save(config.out, model.max_length)
    parts = (model.albert, model.tokenizer, model.task, model.max_length)
    write_json(config.out / "config.json", settings_of(Folder(*parts)))
    write_json(config.out / "export.json", asdict(figures))
    write_run(config.out, "export", config)
    _print(config, figures)


def _written(config: Config, module: Answers | Vectors, model: Model, console: Console) -> Figures:
    import torch

    from litebert.interop.onnx import graph_of, program_of, write_compiled
    from litebert.interop.onnx_int8 import quantize_graph

    path = config.out / FILES[config.format]
    takes = "a minute or two" if config.format == "compiled" else "some ten seconds"
    with status(console, f"writing {path}, {takes}"):
        if config.format == "torch":
            program = program_of(module, model.config.max_position_embeddings)
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                torch.export.save(program, file)
        elif config.format == "compiled":
            write_compiled(program_of(module, model.config.max_position_embeddings), path)
        else:
            graph = graph_of(module, model.config.max_position_embeddings)
            if config.int8:
                quantize_graph(graph)
            with atomic_path(path) as temporary:
                temporary.write_bytes(graph.SerializeToString())
    names = list(module(**_example(1, 4)))
    figures: dict[str, Any] = {"file": path.name, "megabytes": path.stat().st_size / 1e6, "outputs": names}
    if config.check or config.test is not None:
        figures |= _checked(config, path, module, model, console)
    return Figures(**figures)


def _checked(config: Config, path: Path, module: Answers | Vectors, model: Model, console: Console) -> dict[str, Any]:
    import torch

    from litebert.data.batches import Batch
    from litebert.inference.exported import Exported, run_session

    session = open_session(path) if config.format == "onnx" else None
    with status(console, "holding it against torch"):
        program: Any = None
        if config.format == "torch":
            program = torch.export.load(path).module()
        elif config.format == "compiled":
            program = torch._inductor.aoti_load_package(str(path))
        off = 0.0
        longest = model.config.max_position_embeddings
        for batch, length in ((1, 1), (1, 17), (3, 40), (2, longest)):
            given = _example(batch, min(length, longest), model.config.vocab_size)
            inputs = Batch(given["input_ids"], given["attention_mask"], given["token_type_ids"])
            with torch.inference_mode():
                found = program(**given) if program is not None else run_session(session, inputs)
                off = max(off, distance(found, module(**given)))
    if off > CLOSE and not config.int8:
        path.unlink()
        raise CheckpointError(f"what {path} gives is {off:.1%} off from torch, so it was deleted; please report this")
    if config.test is None:
        return {"off": off}
    metric, both = scores_of([model, Exported(model, session)], config.test, config.columns)
    return {"off": off, "metric": metric, "scores": tuple(both)}


def distance(found: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> float:
    """The largest, as a share of the length of what is true. What is ruled out (scores of -10,000) is equal however far
    it lies, and the order of such things, which numbers name, says nothing."""
    off = 0.0
    ranked = not all(values.is_floating_point() for values in truth.values())  # then equals may change places
    for name, values in truth.items():
        if values.is_floating_point() and name not in IN_STEPS:
            now, true = (one.double().clamp(min=RULED_OUT) for one in (found[name], values))
            if ranked:
                now, true = now.flatten().sort().values, true.flatten().sort().values
            off = max(off, ((now - true).norm() / true.norm().clamp(min=1e-12)).item())
    return off


def open_session(path: Path) -> Any:
    """ONNX Runtime with this graph, on as many threads as torch has."""
    import torch

    onnxruntime = require_extra("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _example(batch: int, length: int, vocabulary: int = 2) -> dict[str, Any]:
    """Made-up sequences; all but the first have padding."""
    import torch

    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (batch, length), generator=draw)
    real = torch.ones_like(ids)
    real[1:, max(1, 2 * length // 3) :] = 0
    second = torch.arange(length) >= length // 3
    return {"input_ids": ids, "attention_mask": real, "token_type_ids": second * real}


def _print(config: Config, figures: Figures) -> None:
    if config.json:
        print(json.dumps(asdict(figures)))
        return
    print(f"{config.out / figures.file}: {figures.megabytes:.1f} MB, gives {', '.join(figures.outputs)}")
    if figures.off is not None:
        far = "; that is a lot: look at its scores (--test)" if figures.off > FAR else ""
        share = f"{figures.off:.1%}" if figures.off > CLOSE else f"{figures.off:.1e}"
        print(f"off from what torch gives by {share} of its length at most, on made-up texts{far}")
    if figures.scores is not None:
        was, now = figures.scores
        print(f"{figures.metric} on {config.test}: {was:.4f} by torch, {now:.4f} by the graph")
