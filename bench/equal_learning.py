"""Does pre-training with our kernels learn what it learns by autograd? Same data, same seed, one loss curve each.

  python bench/equal_learning.py --data shards --steps 500 --fp8

Prints the loss of the last fiftieth of the steps and the largest distance between the running means on the way; the
exit code is 1 if the first differs by more than half a percent. Without a GPU both are autograd, and equal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

from litebert.commands.pretrain import Config
from litebert.measure.plots import running_mean
from litebert.model.backends import FusedBackend
from litebert.trainers.pretraining import pretrain

ALIKE = 0.005  # of the loss


def losses(options: argparse.Namespace, fuses: bool, precision: Any) -> list[float]:
    """Of every step."""
    found: list[float] = []
    real = FusedBackend.supports
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(FusedBackend, "supports", lambda *case: fuses and real(*case)),
    ):
        config = Config(
            data=options.data, out=Path(folder) / "run", preset=options.preset, steps=options.steps,
            batch_size=options.batch_size, length=options.length, validate_every=1 << 30,
            precision=precision,
        )  # fmt: skip
        hooks: list[Any] = [lambda step: found.append(step.metrics["loss"])]
        pretrain(config, Console(quiet=True), hooks=hooks)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what litebert prepare wrote")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fp8", action="store_true", help="and with matrix products from eight bits, on a GPU")
    options = parser.parse_args()
    ways: dict[str, tuple[bool, str]] = {"autograd": (False, "auto"), "our kernels": (True, "auto")}
    if options.fp8:
        ways["our kernels, fp8"] = (True, "fp8")
    curves = {name: losses(options, *way) for name, way in ways.items()}
    means = {name: running_mean(curve) for name, curve in curves.items()}
    last = {name: statistics.mean(curve[-max(1, options.steps // 50) :]) for name, curve in curves.items()}
    print("| | " + " | ".join(f"step {step:,}" for step in marks(options.steps)) + " | at the end |")
    print("|---" * (len(marks(options.steps)) + 2) + "|")
    for name, mean in means.items():
        at = " | ".join(f"{mean[step - 1]:.4f}" for step in marks(options.steps))
        print(f"| {name} | {at} | {last[name]:.4f} |")
    exact = last.pop("autograd")
    for name, found in last.items():
        apart = max(abs(a - b) / a for a, b in zip(means["autograd"], means[name], strict=True))
        print(f"{name}: at the end {abs(found - exact) / exact:.3%} from autograd, on the way {apart:.3%} at most")
    sys.exit(any(abs(found - exact) / exact > ALIKE for found in last.values()))


def marks(steps: int) -> list[int]:
    return [max(1, steps * part // 5) for part in range(1, 6)]


if __name__ == "__main__":
    main()
