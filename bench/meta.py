"""Meta-train on some classes of BANKING77, then learn others from one and from five examples.

  python bench/meta.py --tasks tasks --algorithms proto anil --folds 1 2 3 4 5 --jobs 5
  python bench/meta.py --tasks tasks --device cpu --folds 1 --steps 20 --batch-size 1 --test-episodes 50

A fold has classes to learn from, to choose the best step by and to test on, none in two of these. Tests are 5-way with
15 questions of each class, the same episodes for everybody. "frozen" is the encoder before: the class with the nearest
mean vector. "better" is the mean difference from that on the same episodes, in points, with the interval in which 95 %
of such means lie; "sd" the standard deviation of the folds' means; "folds" the difference of each fold.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

import litebert
from litebert.commands import meta_train
from litebert.data.episodes import EpisodeShape, classes_with_enough_rows, draw_episode
from litebert.data.tables import TableOptions
from litebert.device import pick_device
from litebert.meta.settings import Algorithm
from litebert.meta.tables import Table
from litebert.studies.episodes.comparison import MethodResult, compare, summarize_folds
from litebert.trainers.meta_training import meta_train as taught

FROZEN = "frozen"


def loaded(name: str, device: Any) -> litebert.Model:
    model = litebert.load(name).to(pick_device(device))
    model.configure("auto")
    return model


def meta_trained(options: argparse.Namespace, folder: Path, algorithm: Algorithm, out: Path) -> litebert.Model:
    rate = {} if options.learning_rate is None else {"learning_rate": options.learning_rate}
    config = meta_train.Config(
        model=options.model, data=folder / "train.jsonl", valid=folder / "valid.jsonl", out=out, algorithm=algorithm,
        episodes=tuple(options.episodes), steps=options.steps, batch_size=options.batch_size, device=options.device,
        length=options.length, validate_every=max(1, options.steps // 5), seed=options.seed, **rate,
    )  # fmt: skip
    began = time.perf_counter()
    with Path(os.devnull).open("w") as quiet:
        result = taught(config, Console(file=quiet))
    assert result is not None
    print(
        f"{folder.name} {algorithm}: {options.steps} steps, {time.perf_counter() - began:.0f} s, validation "
        f"{result.start:.3f} before, {result.accuracy:.3f} after {result.step}", flush=True,
    )  # fmt: skip
    return loaded(str(out), options.device)


def of_fold(options: argparse.Namespace, fold: int, out: Path) -> dict[int, list[MethodResult]]:
    folder = options.tasks / "intents" / "folds" / "BANKING77" / "few_shot" / f"{fold:02}"
    models = {FROZEN: loaded(options.model, options.device)}
    for algorithm in options.algorithms:
        models[algorithm] = meta_trained(options, folder, algorithm, out / f"{folder.name}-{algorithm}")
    table = Table.read(folder / "test.jsonl", TableOptions(), "")
    found = {}
    for shots in (1, 5):
        shape = EpisodeShape((5, 5), (shots, shots), 15, options.test_episodes)
        pool = classes_with_enough_rows(table.pool, shape, str(table.path))
        episodes = [draw_episode(pool, shape, options.seed, number) for number in range(shape.episodes)]
        found[shots] = compare(table, episodes, models, options.methods)
    return found


def line_of(shots: int, row: dict[str, Any]) -> str:
    folds = " ".join(f"{100 * gap:+.1f}" for gap in row["better_folds"])
    spreads = ("" if row[name] is None else f", sd {100 * row[name]:.1f}" for name in ("spread", "better_spread"))
    return (
        f"| {shots} | {row['model']} | {row['method']} | {100 * row['accuracy']:.1f} ± {100 * row['margin']:.1f}"
        f"{next(spreads)} | {100 * row['better']:+.1f} ± {100 * row['better_margin']:.1f}{next(spreads)} | {folds} | "
        f"{row['seconds']:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="litebert-base-en")
    parser.add_argument("--tasks", type=Path, required=True, help="holds intents/folds/BANKING77")
    parser.add_argument("--algorithms", nargs="+", choices=get_args(Algorithm), default=["proto", "contrast"])
    parser.add_argument("--methods", nargs="+", default=["prototypes", "meta"], help="prototypes must be among them")
    parser.add_argument("--folds", type=int, nargs="+", choices=range(1, 6), default=[1])
    parser.add_argument("--episodes", nargs="+", default=["5-10-way", "1-5-shot", "5-queries", "50-episodes"])
    parser.add_argument("--test-episodes", type=int, default=600)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=4, help="episodes per step")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--length", type=int, default=64, help="tokens of a text that are read while learning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="folds at once")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="keep the models there, and the figures in figures.jsonl")
    options = parser.parse_args()
    if "prototypes" not in options.methods:
        parser.error("--methods must have prototypes among them: the others are compared with the frozen encoder's")
    with tempfile.TemporaryDirectory() as name, get_context("spawn").Pool(options.jobs) as pool:
        folds = pool.starmap(of_fold, [(options, fold, options.out or Path(name)) for fold in options.folds], 1)
    print("| shots | model | method | right, % | better | folds | seconds |\n|---|---|---|---|---|---|---|")
    rows = [(shots, row) for shots in folds[0] for row in summarize_folds([fold[shots] for fold in folds])]
    for shots, row in rows:
        print(line_of(shots, row))
    if options.out is not None:
        lines = (json.dumps({"shots": shots} | row) + "\n" for shots, row in rows)
        (options.out / "figures.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
