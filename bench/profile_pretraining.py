"""Where the milliseconds of a pre-training step go, on a GPU.

  python bench/profile_pretraining.py --data shards --length 128 --batch-size 512

Runs real steps with loader, optimizer and log, looks at three late ones with torch's profiler, and prints kernels by
what they are for, how long the GPU had nothing to do, and tokens per second over the steps that were not looked at.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

from litebert.commands.pretrain import Config
from litebert.train.loop import Step
from litebert.trainers.pretraining import pretrain

LOOKED_AT = 3
KINDS = {
    "attention": ("_attend", "_to_queries", "_to_keys", "flash", "cudnn"),
    "GELU": ("_gelu",),
    "LayerNorm": ("_add_norm", "_norm_backward", "layer_norm", "GammaBeta"),
    "loss of tokens": ("_token_loss", "_sum_rows"),
    "matrix products": ("nvjet", "gemm", "cublas", "cutlass", "splitK"),
}


def kind_of(kernel: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in kernel for part in parts)), "the rest")


class Look:
    """A hook: keeps the times of steps, and profiles a few before the last."""

    def __init__(self, total: int) -> None:
        self.first = total - 2 * LOOKED_AT
        self.times: list[float] = []
        self.tokens: list[float] = []
        self.events: list[Any] = []
        self._profile = profile(activities=[ProfilerActivity.CUDA])

    def __call__(self, step: Step) -> None:
        if step.done < self.first:
            self.times.append(time.perf_counter())
            self.tokens.append(step.metrics["tokens"])
        if step.done in (self.first, self.first + LOOKED_AT):
            torch.cuda.synchronize()
        if step.done == self.first:
            self._profile.start()
        elif step.done == self.first + LOOKED_AT:
            self._profile.stop()
            self.events = [event for event in self._profile.events() if "CUDA" in str(event.device_type)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what litebert prepare wrote")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--precision", default="auto", help="fp8: the larger matrix products from eight bits")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: this looks at the kernels of one", file=sys.stderr)
        sys.exit(2)
    look = Look(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            data=options.data, out=Path(folder) / "run", preset=options.preset, steps=options.steps,
            batch_size=options.batch_size, length=options.length, depth_ramp="", validate_every=1 << 30, device="cuda",
            precision=options.precision,
        )  # fmt: skip
        pretrain(config, Console(quiet=True), device=torch.device("cuda"), hooks=[look])
    spent: Counter[str] = Counter()
    end = idle = 0.0
    for event in sorted(look.events, key=lambda event: event.time_range.start):
        start, stop = event.time_range.start, event.time_range.end
        spent[kind_of(event.name)] += stop - start
        idle += max(0.0, start - end) if end else 0.0
        end = max(end, stop)
    half = len(look.times) // 2  # the first ones compile, and ask for memory
    seconds = look.times[-1] - look.times[-half]
    steps = [after - before for before, after in zip(look.times[-half:], look.times[-half + 1 :], strict=False)]
    rate = sum(look.tokens[-half + 1 :]) / seconds
    print(f"{rate / 1e3:,.0f} k tokens/s, a step {statistics.median(steps) * 1e3:.1f} ms")
    print("| | ms of a step |\n|---|---|")
    for kind, microseconds in [*spent.most_common(), ("nothing to do", idle)]:
        print(f"| {kind} | {microseconds / 1e3 / LOOKED_AT:.2f} |")


if __name__ == "__main__":
    main()
