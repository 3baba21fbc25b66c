"""Every training strategy against none, at equal steps and over several seeds: does it help?

  python bench/strategies.py --data shards --steps 1500 --seeds 0 1 2 --jobs 6

Prints a table of the loss on masked tokens of held-out documents, mean and spread over the seeds, and the difference
to the plain run of the same seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "layer_decay_rate 0.9": {"layer_decay_rate": 0.9},
    "layer_decay_rate 0.7": {"layer_decay_rate": 0.7},
    "depth_factors, first pass half": {"depth_factors": (0.5, 1.0, 1.0, 1.0, 1.0, 1.0)},
    "layer_weight_decay 0.5": {"layer_weight_decay": 0.5},
    "scale_embedding 0.5": {"scale_embedding": 0.5},
    "scale_embedding 2": {"scale_embedding": 2.0},
    "unfreeze over a quarter": {"unfreeze_steps": -4},
    "bounds project, default max": {"bounds": "project"},
    "bounds project, max 0.2": {"bounds": "project", "bound_max": 0.2},
    "squash tanh, T 1e-3": {"squash": "tanh", "squash_temperature": 1e-3},
    "squash softplus, T 1e-3": {"squash": "softplus", "squash_temperature": 1e-3},
    "cold_factor 0.5": {"cold_factor": 0.5},
    "hot_start 0.5": {"hot_start": 0.5},
    "average 0.999": {"average": 0.999},
    "no depth ramp": {"depth_ramp": ""},
}


def run(case: tuple[str, int], options: argparse.Namespace) -> float:
    """The loss on held-out documents after one run."""
    import torch

    from litebert.commands import pretrain

    name, seed = case
    if options.threads:
        torch.set_num_threads(options.threads)
    changes = dict(VARIANTS[name])
    if changes.get("unfreeze_steps", 0) < 0:
        changes["unfreeze_steps"] = options.steps // -changes["unfreeze_steps"]
    out = options.out / f"{name.replace(' ', '_').replace(',', '')}-{options.sharing}-{seed}"
    with Path(os.devnull).open("w") as quiet:
        os.dup2(quiet.fileno(), 2)
    config = pretrain.Config(
        data=options.data,
        out=out,
        layers=6,
        hidden_size=options.hidden_size,
        sharing=options.sharing,
        steps=options.steps,
        batch_size=options.batch_size,
        length=options.length,
        seed=seed,
        validate_every=options.steps,
        validation_rows=options.validation_rows,
        **changes,
    )
    pretrain.run(config)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return float([line["validation_loss"] for line in lines if "validation_loss" in line][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-strategies"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--validation-rows", type=int, default=1024)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--sharing", default="all", choices=["all", "none"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    cases = [(name, seed) for name in options.only for seed in options.seeds]
    with get_context("spawn").Pool(options.jobs) as pool:
        losses = {}
        for case, loss in zip(cases, pool.imap(partial(run, options=options), cases), strict=True):
            losses[case] = loss
            print(f"{case[0]}, seed {case[1]}: {loss:.4f}", flush=True)
    plain = [losses[options.only[0], seed] for seed in options.seeds]
    print(f"| strategy | loss | ± | difference to {options.only[0]} |\n|---|---|---|---|")
    for name in options.only:
        found = [losses[name, seed] for seed in options.seeds]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        difference = statistics.mean(found) - statistics.mean(plain)
        print(f"| {name} | {statistics.mean(found):.4f} | {spread:.4f} | {difference:+.4f} |")


if __name__ == "__main__":
    main()
