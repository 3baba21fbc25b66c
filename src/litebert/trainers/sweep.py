"""Several runs of `finetune`: with several seeds, or in search of better settings."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from litebert.console import make_console
from litebert.data.tables import TableOptions
from litebert.device import pick_device
from litebert.errors import CheckpointError, ConfigError, require_extra
from litebert.files import read_json, write_json
from litebert.run_folder import write_run
from litebert.tasks import TASKS
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning import Result, finetune
from litebert.trainers.finetuning_plan import decisive_of, measured
from litebert.trainers.initial_model import default_learning_rate

BATCHES = (16, 32, 64)


def sweep(config: FinetuneConfig, console: Console | None = None) -> Result | None:
    """One run per seed; the best by validation becomes the model in --out."""
    console = console or make_console()
    _refuse_former(config, "seed-*")
    runs = []
    for seed in range(config.seed, config.seed + config.seeds):
        console.print(f"\nseed {seed}", style="bold")
        one = replace(config, seed=seed, seeds=1, out=config.out / f"seed-{seed}")
        found = _run(one, console, config.seed)
        if found is None:
            return None
        runs.append((one, found))
    rows = [{"seed": str(one.seed)} for one, _ in runs]
    console.print(_table(rows, [found for _, found in runs]))
    summary: dict[str, Any] = {"seeds": {str(one.seed): asdict(found) for one, found in runs}}
    summary["spread"] = _spreads([found.metrics for _, found in runs])
    columns = {"validation": summary["spread"]}
    if config.test is not None:
        columns["test"] = summary["test_spread"] = _spreads([found.test for _, found in runs])
    console.print(_spread_table(columns))
    return _keep(config, console, runs, summary)


def search(config: FinetuneConfig, console: Console | None = None) -> Result | None:
    """Try settings that a sampler proposes from what the former ones came to."""
    console = console or make_console()
    optuna = require_extra("optuna", "search")
    from litebert.loading import load

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    usual = config.learning_rate or default_learning_rate(load(config.model))
    _refuse_former(config, "trial-*")
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=config.seed))
    runs: list[tuple[FinetuneConfig, Result]] = []
    for number in range(config.search):
        trial = study.ask()
        one = replace(
            config,
            search=0,
            test=None,  # which is for the one that is kept
            out=config.out / f"trial-{number}",
            learning_rate=trial.suggest_float("learning_rate", usual / 4, usual * 8, log=True),
            batch_size=trial.suggest_categorical("batch_size", list(BATCHES)),
            layer_decay_rate=trial.suggest_float("layer_decay_rate", 0.7, 1.0),
        )
        console.print(f"\ntrial {number}: {trial.params}", style="bold", highlight=False, markup=False)
        found = _run(one, console, config.seed)
        if found is None:
            return None
        study.tell(trial, found.metrics[found.metric])
        runs.append((one, found))
    rows = [
        {
            "trial": str(number),
            "rate": f"{one.learning_rate:.2g}",
            "batch": str(one.batch_size),
            "layer decay": f"{one.layer_decay_rate:.2f}",
        }
        for number, (one, _) in enumerate(runs)
    ]
    console.print(_table(rows, [found for _, found in runs]))
    trials = [{"settings": row, "metrics": found.metrics} for row, (_, found) in zip(rows, runs, strict=True)]
    best = _keep(config, console, runs, {"trials": trials})
    if config.test is None:
        return best
    task: Any = TASKS[config.task]
    records = task.read(config.test, TableOptions.parse(config.columns, config.skip_bad))
    test, baseline = measured(config, records, pick_device(config.device))
    told = ", ".join(f"{name} {value:.4f}" for name, value in test.items())
    console.print(f"{config.test}: {told}", highlight=False, markup=False)
    finished = read_json(config.out / "finished.json")
    write_json(config.out / "finished.json", finished | {"test": test, "baseline": baseline})
    return replace(best, test=test, baseline=baseline)


def _run(config: FinetuneConfig, console: Console, split_seed: int) -> Result | None:
    """One of the runs, or what it came to if it is done already."""
    finished = config.out / "finished.json"
    if finished.is_file():
        result = Result(**read_json(finished))
        before, now = result.decisive, decisive_of(config)
        changed = [f"{name} (was {before.get(name)}, is {now[name]})" for name in now if before.get(name) != now[name]]
        if changed:
            raise CheckpointError(f"{config.out}: made with other settings: {', '.join(changed)}; use another --out")
        return result
    # those that the interrupted command had not begun have nothing to resume
    return finetune(
        replace(config, resume=config.resume and (config.out / "checkpoints").is_dir()), console, split_seed=split_seed
    )


def _refuse_former(config: FinetuneConfig, pattern: str) -> None:
    former = sorted(config.out.glob(pattern))
    if former and not config.resume:
        raise ConfigError(f"{config.out} already holds {former[0].name} of a former run; --resume goes on with it")


def _keep(
    config: FinetuneConfig, console: Console, runs: Sequence[tuple[FinetuneConfig, Result]], summary: dict[str, Any]
) -> Result:
    one, best = max(runs, key=lambda pair: pair[1].metrics[pair[1].metric])
    said = f"{one.out.name} is the best of {len(runs)} by {best.metric}, {best.metrics[best.metric]:.4f}, and is kept"
    console.print(said, highlight=False, markup=False)
    for path in sorted(one.out.iterdir(), key=lambda path: path.name == "config.json"):  # which comes last
        if path.name not in ("checkpoints", "checkpoints-again", "tensorboard", "finished.json"):
            _copy(path, config.out / path.name)
    write_run(config.out, "finetune", config)
    write_json(config.out / "finished.json", asdict(best) | summary | {"best": str(one.out.name)})
    return best


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, to)


def _spreads(metrics: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: _spread([one[name] for one in metrics]) for name in metrics[0]}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def _table(rows: Sequence[dict[str, str]], found: Sequence[Result]) -> Table:
    """What each run was and what it came to, the best in bold."""
    metric = found[0].metric
    best = max(range(len(found)), key=lambda number: found[number].metrics[metric])
    table = Table()
    for name in (*rows[0], metric, *(["on the test file"] if found[0].test else [])):
        table.add_column(escape(name), justify="right", overflow="fold")
    for number, (row, result) in enumerate(zip(rows, found, strict=True)):
        scores = [some[metric] for some in (result.metrics, result.test) if some]
        table.add_row(*row.values(), *(f"{score:.4f}" for score in scores), style="bold" if number == best else None)
    return table


def _spread_table(columns: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Mean ± deviation of every metric."""
    table = Table(title="mean ± deviation")
    table.add_column("metric", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right")
    for metric in dict.fromkeys(metric for spreads in columns.values() for metric in spreads):
        # the rarer class, which some metrics are about, may be another one in the test file
        found = [spreads.get(metric) for spreads in columns.values()]
        table.add_row(escape(metric), *(f"{one['mean']:.4f} ± {one['deviation']:.4f}" if one else "" for one in found))
    return table
