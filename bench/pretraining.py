"""Pre-train from scratch with the defaults, several seeds, with and without the depth ramp, and compare.

  python bench/pretraining.py --data shards --steps 2400 --seeds 0 1 2
  python bench/pretraining.py --data shards --steps 1000 --seeds 0 --depth-ramp ""

Prints, for each run, the time in steps, the throughput by depth, and what the model knows of held-out documents.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from litebert.commands import pretrain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-pretraining"))
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch-size", type=int, default=pretrain.Config.batch_size)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--depth-ramp", default=pretrain.Config.depth_ramp)
    options = parser.parse_args()
    for seed in options.seeds:
        out = (
            options.out
            / f"{'no-ramp' if options.depth_ramp == '' else 'ramp'}-{options.batch_size}-{options.steps}-{seed}"
        )
        config = pretrain.Config(
            data=options.data,
            out=out,
            steps=options.steps,
            batch_size=options.batch_size,
            depth_ramp=options.depth_ramp,
            seed=seed,
            validate_every=max(1, options.steps // 10),
            validation_rows=2048,
        )
        pretrain.run(config)
        print(summary(out))


def summary(out: Path) -> str:
    """One line per fact of a finished run."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    seconds, tokens = (sum(line[name] for line in steps) for name in ("seconds", "tokens"))
    found = [f"{out.name}: {seconds:.1f} s in steps, {tokens / 1e6:.1f} M tokens"]
    for depth in sorted({line["depth"] for line in steps}):
        rates = [line["tokens_per_second"] for line in steps if line["depth"] == depth]
        found.append(f"  {depth:.0f} passes: {len(rates)} steps, {statistics.median(rates) / 1e6:.2f} M tokens/s")
    last = [line for line in lines if "validation_loss" in line][-1]
    found.append(
        "  held out: " + ", ".join(f"{k.removeprefix('validation_')} {v:.4f}" for k, v in last.items() if k != "step")
    )
    return "\n".join(found)


if __name__ == "__main__":
    main()
