"""What only a GPU can show. Prints tables; the exit code is 1 if anything is off.

  python bench/check_gpu.py --passes
  python bench/check_gpu.py --model runs/pt --tasks tasks

The passes of base written out by hand in bf16, and the same by autograd, each against float32: states and gradients.

Fine-tuning with recorded steps (CUDA graphs) beside the same kernels one by one: same seed, same batches, one epoch
each, and the second twice: how far apart two such runs end by themselves, because some kernels add in any order, is
what the first is held against.
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

from litebert.commands import finetune
from litebert.model import Albert, preset
from litebert.model.backends import AutoBackend, EagerBackend, FusedBackend
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.log import read_metrics
from litebert.trainers import finetuning

FACTOR = 3  # times the distance that two plain runs end apart is still noise
NOTHING = 1e-6  # is no distance at all
WORSE = 2
"""Times autograd's error in bf16 is still as good: between the two halves of a layer it keeps float32, we bf16 alone,
which made the gradients' errors 1.1 to 1.5 times as large."""
EIGHT_WORSE = 0.1  # is what eight bits may be off by
PACKED = {"short": [5, 128, 77, 1, 64, 33], "equal": [128] * 8, "long": [512, 300, 17, 200]}


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


class OneByOne(StepGraphs):
    """No recordings, for batches of the same shapes."""

    def __call__(self, loss: Any, batch: Any) -> Any:
        return loss(batch)


class Result(NamedTuple):
    weights: dict[str, torch.Tensor]
    losses: list[float]
    milliseconds: float
    """The median of a step's."""
    replays: int


def run(case: Case, options: argparse.Namespace, kind: type[StepGraphs]) -> Result:
    shutil.rmtree(options.out, ignore_errors=True)
    settings = {"batch_size": 32, "length": 128, "learning_rate": 3e-5} | dict(case.settings)
    config = finetune.Config(
        model=str(options.model), task=case.task, train=options.tasks / case.train, valid=options.tasks / case.valid,
        out=options.out, epochs=1, patience=0, columns=(), **settings,
    )  # fmt: skip
    made: list[StepGraphs] = []

    def make(parameters: Any) -> StepGraphs:
        made.append(kind(parameters))
        return made[-1]

    with (
        Path(os.devnull).open("w") as quiet,
        mock.patch.object(finetuning, "StepGraphs", make),
        mock.patch.object(finetuning, "CollapseDetector", return_value=None),  # else a run may begin again
    ):
        finetuning.finetune(config, Console(file=quiet))
    found = read_metrics(options.out)
    milliseconds = statistics.median(found["seconds"].values) * 1e3
    replays = sum(graphs.replays for graphs in made)  # none are made without a GPU
    return Result(load_file(options.out / "model.safetensors"), found["loss"].values, milliseconds, replays)


def apart(one: Result, other: Result) -> float:
    """How far apart the weights ended."""
    squares = sum((one.weights[name].double() - weight).square().sum() for name, weight in other.weights.items())
    return float(squares**0.5)


def check_passes() -> bool:
    """Are states and gradients as near to float32 as autograd's?"""
    torch.manual_seed(0)
    encoder = Albert(preset("base")).encoder.cuda()
    print("| sequences | wanted | states: by hand, autograd | worst gradient: by hand, autograd | fp8: both | |")
    print("|---|---|---|---|---|---|")
    failed = False
    for name, lengths in PACKED.items():
        ids = torch.randint(5, encoder.config.vocab_size, (sum(lengths),), device="cuda")
        for rows in (None, torch.randint(0, sum(lengths), (40,), device="cuda")):
            exact, *others = (
                states_and_gradients(encoder, ids, lengths, rows, *how) for how in ((0, 0), (1, 1), (1, 0), (1, 1, 1))
            )
            errors = {key: [distance(other[key], exact[key]) for other in others] for key in exact}
            states, worst = errors.pop(""), max(errors, key=lambda key: errors[key][0])
            slopes = errors[worst]
            roughest = max(error for *_, error in errors.values())
            bad = any(mine > WORSE * theirs for mine, theirs, _ in (states, slopes))
            bad |= max(states[2], roughest) > EIGHT_WORSE
            failed |= bad
            print(
                f"| {name} | {'all' if rows is None else 'some'} | {states[0]:.1e}, {states[1]:.1e} "
                f"| {slopes[0]:.1e}, {slopes[1]:.1e} ({worst}) | {states[2]:.1e}, {roughest:.1e} "
                f"| {'off' if bad else 'good'} |",
                flush=True,
            )
    return failed


def states_and_gradients(
    encoder: Any, ids: torch.Tensor, lengths: list[int], rows: torch.Tensor | None, bf16: bool, fused: bool,
    fp8: bool = False,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """By the parameters' names; the states have none."""
    encoder.backend = AutoBackend(fused=FusedBackend(fp8=bool(fp8))) if fused else EagerBackend()
    encoder.attention_implementation = "auto" if bf16 else "sdpa"
    encoder.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=bool(bf16)):
        states = encoder.packed(ids, torch.tensor(lengths, device="cuda"), longest=max(lengths), rows=rows)
    slope = torch.randn(states.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    (states.float() * slope).sum().backward()
    return {"": states.detach()} | {
        name: one.grad.clone() for name, one in encoder.named_parameters() if one.grad is not None
    }


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("runs/check-gpu"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if not torch.cuda.is_available():
        print("no GPU here: this is what only a GPU can show", file=sys.stderr)
        sys.exit(2)
    if not options.passes and (options.model is None or options.tasks is None):
        parser.error("give --passes, or --model and --tasks")
    if options.passes:
        sys.exit(check_passes())
    print("| fine-tuning | steps, replays | weights apart: recorded, again plain | ms per step: recorded, plain | |")
    print("|---|---|---|---|---|")
    failed = False
    for name in options.only:
        recorded, plain, again = (run(CASES[name], options, kind) for kind in (StepGraphs, OneByOne, OneByOne))
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
