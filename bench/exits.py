"""Early exit: what it saves and what it costs, text by text and in batches, beside the same model without it.

  litebert distill --teacher runs/mine --data texts.csv --elastic --out runs/elastic
  python bench/exits.py --model runs/elastic --data test.csv
  python bench/exits.py --model runs/elastic --data test.csv --teacher runs/mine --speeds 1.5 2 3 --engine int8

All take turns in one run, over all texts of the file each time. Seconds are of this process's CPU, so that others who
use the machine count little; texts of a batch are drawn from the whole file, as requests come, not by length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import litebert


def passed(model: Any, records: list[Any], batch: int) -> tuple[list[str], float, float]:
    """Labels, CPU milliseconds of a text, and passes of a text."""
    model.stopped_after.clear()
    began = time.process_time()
    found = [
        answer.label
        for start in range(0, len(records), batch)
        for answer in model.answer_records(records[start : start + batch], batch)
    ]
    milliseconds = 1000 * (time.process_time() - began) / len(records)
    taken = list(model.stopped_after.elements())
    return found, milliseconds, statistics.mean(taken) if taken else model.passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a student of distill --elastic")
    parser.add_argument("--teacher", type=Path, help="the model that it learned from, all of whose passes are taken")
    parser.add_argument("--data", type=Path, required=True, help="labelled texts")
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.5, 2])
    parser.add_argument("--engine", choices=["torch", "bf16", "int8"], default="torch")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = litebert.load(options.model, engine=options.engine)
    task: Any = model.task
    records = task.read(options.data)
    truth = [record.label for record in records]
    contenders: dict[str, tuple[Any, float]] = {"all passes": (model, 1.0)}
    if options.teacher is not None:
        contenders["teacher"] = (litebert.load(options.teacher, engine=options.engine), 1.0)
    contenders |= {f"--speed {speed:g}": (model, speed) for speed in options.speeds}
    print(f"{len(records):,} texts, engine {options.engine}, medians of {options.rounds} turns")
    print("| batch | who | passes | accuracy | CPU ms a text | times as fast |\n|---|---|---|---|---|---|")
    for batch in options.batches:
        runs: dict[str, list[tuple[list[str], float, float]]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, (one, speed) in contenders.items():
                one.set_speed(speed)
                runs[name].append(passed(one, records, batch))
        medians = {name: statistics.median(run[1] for run in some) for name, some in runs.items()}
        for name, some in runs.items():
            right = statistics.mean(told == true for told, true in zip(some[0][0], truth, strict=True))
            ratio = medians["all passes"] / medians[name]
            print(
                f"| {batch} | {name} | {some[0][2]:.1f} | {right:.4f} | {medians[name]:.2f} | {ratio:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
