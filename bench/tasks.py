"""Fine-tune on every data set of configs/ and print one table: scores, and what an answer without reading gets.

  python bench/tasks.py --model runs/pt --chinese-model runs/zh --tasks tasks --jobs 2
  python bench/tasks.py --model runs/pt --tasks tasks --only sst-2 cola --rates 2e-5 5e-5 1e-4 --seeds 5 --random 5
  python bench/tasks.py --bag-of-words --tasks tasks --only sst-2 imdb

With several --rates, the one that does best on a tenth of the training data, with the first seed, is taken; the test
sets are read once for every run. --random fine-tunes, at the same rate, a model with nothing but the shape and the
vocabulary of the first. Sets that are not under --tasks are left out. Where all of GLUE's sets are there, its
average follows; --bag-of-words prints what logistic regression on words (characters for Chinese) reaches instead of
fine-tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from litebert.files import read_toml

CONFIGS = Path(__file__).parent.parent / "configs"
GLUE = {
    "cola": ("mcc",), "sst-2": ("accuracy",), "mrpc": ("accuracy", "f1_of_1"), "sts-b": ("pearson", "spearman"),
    "qqp": ("accuracy", "f1_of_1"), "mnli": ("accuracy",), "qnli": ("accuracy",), "rte": ("accuracy",),
}  # fmt: skip
"""What GLUE averages, set by set; WNLI is left out, as usual."""


def settings_of(name: str, tasks: Path) -> dict[str, Any]:
    """A config with its paths under `tasks`."""
    settings = read_toml(CONFIGS / f"{name}.toml")
    for key in ("train", "valid", "test"):
        if key in settings:
            settings[key] = tasks / Path(settings[key]).relative_to("tasks")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}


def finetuned(name: str, options: argparse.Namespace, pool: Any) -> dict[str, Any]:
    """Fine-tune on one set, several processes at once; what came of it."""
    began = time.perf_counter()
    tried = {rate: pool.apply_async(taught, (name, options, rate, 0)) for rate in options.rates or [None]}
    found = {rate: run.get() for rate, run in tried.items()}
    rate = max(found, key=lambda rate: found[rate].metrics[found[rate].metric])
    others = [pool.apply_async(taught, (name, options, rate, seed)) for seed in range(1, options.seeds)]
    untrained = [pool.apply_async(taught, (name, options, rate, seed, True)) for seed in range(options.random)]
    runs = [found[rate], *(run.get() for run in others)]
    every, forgotten = (
        [one.test or one.metrics for one in runs],
        [(r := run.get()).test or r.metrics for run in untrained],
    )
    return {
        "name": name, "task": settings_of(name, options.tasks)["task"], "baseline": runs[0].baseline, "rate": rate,
        "scores": means(every), "spread": {key: statistics.pstdev(scores[key] for scores in every) for key in every[0]},
        "by_seed": every, "epochs": [one.epoch for one in runs],
        "random": means(forgotten), "random_by_seed": forgotten,
        "rates": {str(rate): one.metrics[one.metric] for rate, one in found.items()},
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def means(every: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.mean(scores[key] for scores in every) for key in every[0]} if every else {}


def taught(name: str, options: argparse.Namespace, rate: float | None, seed: int, random: bool = False) -> Any:
    from rich.console import Console

    from litebert.commands import finetune
    from litebert.trainers.finetuning import finetune as run

    settings = settings_of(name, options.tasks)
    chinese = "zh" in settings["train"].parts
    settings["model"] = str(options.chinese_model if chinese else options.model)
    if random:
        settings["model"] = str(options.out / ("random-zh" if chinese else "random"))
    settings |= {key: value for key, value in {"epochs": options.epochs, "learning_rate": rate}.items() if value}
    out = options.out / f"{name}-{rate or 'usual'}-{seed}{'-random' * random}"
    with Path(os.devnull).open("w") as quiet:
        found = run(finetune.Config(out=out, batch_size=options.batch_size, seed=seed, **settings), Console(file=quiet))
    assert found is not None
    shutil.rmtree(out)  # 300 MB each
    with (options.out / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"run": out.name} | asdict(found)) + "\n")
    return found


def forgetful(model: str, out: Path) -> Path:
    """The same model before it has learned anything."""
    import torch

    import litebert

    known = litebert.load(model)
    torch.manual_seed(0)
    known.encoder.reset_parameters()
    litebert.Model(known.albert, known.tokenizer, known.task, known.max_length).save(out)
    return out


def bag_of_words(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from litebert.data.tables import TableOptions
    from litebert.measure.baselines import bag_of_words as fit
    from litebert.tasks import TASKS
    from litebert.trainers.validation_split import split

    settings = settings_of(name, options.tasks)
    task: Any = TASKS[settings["task"]]
    source = TableOptions.parse(settings.get("columns", ()), True)
    train = task.read(settings["train"], source)
    test = task.read(settings["test"], source) if "test" in settings else None
    if test is None:
        train, test = split(train, task.learn_from(train), 0, settings["train"])
    score = fit([x.shown for x in train], [x.label for x in train], [x.shown for x in test], [x.label for x in test])
    return {
        "name": name,
        "task": "bag of words",
        "scores": {"accuracy": score},
        "random": {},
        "baseline": {},
        "seconds": 0.0,
    }


def line(found: dict[str, Any]) -> str:
    spread = found.get("spread", {})
    told = ", ".join(
        f"{name} {value:.3f}" + (f" ± {spread[name]:.3f}" if len(found.get("by_seed", ())) > 1 else "")
        for name, value in found["scores"].items()
    )
    random, without = (
        ", ".join(f"{name} {value:.3f}" for name, value in found[what].items()) for what in ("random", "baseline")
    )
    return f"| {found['name']} | {found['task']} | {told} | {random} | {without} | {found['seconds']:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--chinese-model")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=sorted(path.stem for path in CONFIGS.glob("*.toml")))
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--random", type=int, default=0, help="seeds of the same model before it has learned anything")
    parser.add_argument("--bag-of-words", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-tasks"))
    options = parser.parse_args()
    names = [name for name in options.only if settings_of(name, options.tasks)["train"].exists()]
    if options.bag_of_words:
        names = [name for name in names if settings_of(name, options.tasks)["task"] == "classify"]
    if not names:
        parser.error(f"--tasks {options.tasks}: none of {', '.join(options.only)} is there")
    print("| set | task | scores | untrained | without reading | seconds |\n|---|---|---|---|---|---|", flush=True)
    averaged: dict[str, float] = {}
    options.out.mkdir(parents=True, exist_ok=True)
    if options.random:
        for model, name in ((options.model, "random"), (options.chinese_model, "random-zh")):
            if model:
                forgetful(model, options.out / name)
    with get_context("spawn").Pool(options.jobs) as pool, ThreadPool(len(names)) as waiting:
        measured = bag_of_words if options.bag_of_words else partial(finetuned, pool=pool)
        for found in waiting.imap_unordered(partial(measured, options=options), names):
            print(line(found), flush=True)
            with (options.out / "results.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
            wanted = GLUE.get(found["name"], ())
            if wanted and all(name in found["scores"] for name in wanted):
                averaged[found["name"]] = sum(found["scores"][name] for name in wanted) / len(wanted)
    if averaged and not options.bag_of_words:
        print(f"\nGLUE over {', '.join(sorted(averaged))}: {sum(averaged.values()) / len(averaged):.3f}")


if __name__ == "__main__":
    main()
