"""What only a GPU can show: every fast path beside the plain one. Prints a table; the exit code is 1 if any is off.

python bench/check_gpu.py --model runs/pt --tasks tasks
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from rich.console import Console

from litebert.recipes import _finetuning, finetune
from litebert.train.log import read_metrics

NEAR = 0.02  # of two losses in bf16 after the same steps, relative


class Case(NamedTuple):
    task: Any
    train: str
    valid: str
    settings: dict[str, Any] = {}  # noqa: RUF012  (nobody changes it)


CASES = {
    "classify": Case("classify", "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"),
    "mlp head": Case("classify", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", {"head": "mlp"}),
    "cnn head": Case("classify", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", {"head": "cnn"}),
    "regress": Case("regress", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv"),
    "tag": Case("tag", "ner/conll2003/eng.testa", "ner/conll2003/eng.testb"),
    "choose": Case("choose", "choice/dream/dev.json", "choice/dream/test.json"),
    "answer": Case("answer", "qa/squadshifts/reddit_v1.0.json", "qa/squadshifts/amazon_reviews_v1.0.json"),
    "joint answer": Case(
        "answer", "qa/squadshifts/reddit_v1.0.json", "qa/squadshifts/amazon_reviews_v1.0.json", {"head": "joint"}
    ),
    "R-Drop": Case("classify", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", {"r_drop": 1.0}),
}


def losses(case: Case, options: argparse.Namespace, graphs: bool) -> tuple[list[float], float]:
    """Those of all steps, and the median of a step's milliseconds."""
    out = options.out / f"{case.task}, {graphs}"
    shutil.rmtree(out, ignore_errors=True)
    config = finetune.Config(
        model=str(options.model), task=case.task, train=options.tasks / case.train, valid=options.tasks / case.valid,
        out=out, epochs=1, batch_size=32, length=128, learning_rate=3e-5, patience=0, columns=(), **case.settings,
    )  # fmt: skip
    with (
        Path(os.devnull).open("w") as quiet,
        nullcontext() if graphs else mock.patch.object(_finetuning, "Graphed", lambda loss, parameters: loss),
        mock.patch.object(_finetuning, "Collapse", return_value=None),
        mock.patch.object(_finetuning.Attempt, "measure", lambda self: {self.plan.metric: 0.0}),
    ):
        _finetuning.finetune(config, Console(file=quiet))
    found = read_metrics(out)
    return found["loss"].values, statistics.median(found["seconds"].values) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/check-gpu"))
    options = parser.parse_args()
    print("| fine-tuning | loss of graphs beside kernels | ms per step, graphs and kernels | |\n|---|---|---|---|")
    failed = False
    for name, case in CASES.items():
        (recorded, fast), (plain, slow) = (losses(case, options, graphs) for graphs in (True, False))
        apart = max(abs(a - b) / max(abs(b), 1e-2) for a, b in zip(recorded, plain, strict=True))
        failed |= apart > NEAR
        print(f"| {name} | {apart:.2e} | {fast:.1f} and {slow:.1f} | {'off' if apart > NEAR else 'good'} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
