"""What only a GPU can show: fine-tuning with recorded steps (CUDA graphs) beside the same kernels one by one.

  python bench/check_gpu.py --model runs/pt --tasks tasks

Same seed, same batches, one epoch each, and the second twice: how far apart two such runs end by themselves, because
some kernels add in any order, is what the first is held against. Prints a table; the exit code is 1 if anything is off.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from rich.console import Console
from safetensors.torch import load_file

from litebert.recipes import _finetuning, finetune
from litebert.train.graphs import Graphs
from litebert.train.log import read_metrics

FACTOR = 3  # times the distance that two plain runs end apart is still noise
NOTHING = 1e-6  # is no distance at all


class Case(NamedTuple):
    task: Any
    train: str
    valid: str
    settings: Mapping[str, Any] = {}


GLUE = {name: (f"glue/{name}/train.tsv", f"glue/{name}/dev.tsv") for name in ("MRPC", "RTE", "STS-B")}
NAMES = ("ner/conll2003/eng.testa", "ner/conll2003/eng.testb")
QUESTIONS = ("qa/squadshifts/reddit_v1.0.json", "qa/squadshifts/amazon_reviews_v1.0.json")
CASES = {
    "classify": Case("classify", *GLUE["MRPC"]),
    "dropout 0.1": Case("classify", *GLUE["MRPC"], {"dropout": 0.1}),
    "label smoothing, mlp": Case("classify", *GLUE["RTE"], {"head": "mlp", "label_smoothing": 0.1}),
    "cnn": Case("classify", *GLUE["RTE"], {"head": "cnn"}),
    "LoRA": Case("classify", *GLUE["RTE"], {"lora": 8}),
    "layer decay": Case("classify", *GLUE["RTE"], {"layer_decay_rate": 0.9}),
    "R-Drop": Case("classify", *GLUE["RTE"], {"r_drop": 1.0}),
    "fp32": Case("classify", *GLUE["RTE"], {"precision": "fp32"}),
    "regress": Case("regress", *GLUE["STS-B"]),
    "tag": Case("tag", *NAMES),
    "choose": Case("choose", "choice/dream/dev.json", "choice/dream/test.json", {"batch_size": 8}),
    "answer": Case("answer", *QUESTIONS),
    "joint answer": Case("answer", *QUESTIONS, {"head": "joint"}),
}


class OneByOne(Graphs):
    """No recordings, for batches of the same shapes."""

    def __call__(self, loss: Any, batch: Any) -> Any:
        return loss(batch)


class Result(NamedTuple):
    weights: dict[str, torch.Tensor]
    losses: list[float]
    milliseconds: float
    """The median of a step's."""
    replays: int


def run(case: Case, options: argparse.Namespace, kind: type[Graphs]) -> Result:
    shutil.rmtree(options.out, ignore_errors=True)
    settings = {"batch_size": 32, "length": 128, "learning_rate": 3e-5} | dict(case.settings)
    config = finetune.Config(
        model=str(options.model), task=case.task, train=options.tasks / case.train, valid=options.tasks / case.valid,
        out=options.out, epochs=1, patience=0, columns=(), **settings,
    )  # fmt: skip
    made: list[Graphs] = []

    def make(parameters: Any) -> Graphs:
        made.append(kind(parameters))
        return made[-1]

    with (
        Path(os.devnull).open("w") as quiet,
        mock.patch.object(_finetuning, "Graphs", make),
        mock.patch.object(_finetuning, "Collapse", return_value=None),  # else a run may begin again
    ):
        _finetuning.finetune(config, Console(file=quiet))
    found = read_metrics(options.out)
    milliseconds = statistics.median(found["seconds"].values) * 1e3
    replays = sum(graphs.replays for graphs in made)  # none are made without a GPU
    return Result(load_file(options.out / "model.safetensors"), found["loss"].values, milliseconds, replays)


def apart(one: Result, other: Result) -> float:
    """How far apart the weights ended."""
    squares = sum((one.weights[name].double() - weight).square().sum() for name, weight in other.weights.items())
    return float(squares**0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("runs/check-gpu"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| fine-tuning | steps, replays | weights apart: recorded, again plain | ms per step: recorded, plain | |")
    print("|---|---|---|---|---|")
    failed = False
    for name in options.only:
        recorded, plain, again = (run(CASES[name], options, kind) for kind in (Graphs, OneByOne, OneByOne))
        distance, noise = apart(recorded, plain), apart(again, plain)
        # a row of zeros is what equal runs give; a run that lost its gradients would end far away
        bad = distance > FACTOR * noise + NOTHING or not recorded.replays
        failed |= bad
        print(
            f"| {name} | {len(recorded.losses)}, {recorded.replays} | {distance:.2e}, {noise:.2e} "
            f"| {recorded.milliseconds:.1f}, {plain.milliseconds:.1f} | {'off' if bad else 'good'} |",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
