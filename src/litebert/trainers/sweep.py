"""Several fine-tuning runs: with several seeds, or in a search for better settings."""

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

from litebert.console import make_console, say
from litebert.data.tables import TableOptions
from litebert.device import pick_device
from litebert.errors import CheckpointError, ConfigError, require_extra
from litebert.files import read_json, write_json
from litebert.run_folder import write_run
from litebert.tasks import TASKS
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning import FinetuningResult, finetune
from litebert.trainers.finetuning_setup import evaluate_saved, settings_for_resume
from litebert.trainers.initial_model import default_learning_rate

SEARCHED_BATCH_SIZES = (16, 32, 64)
NOT_COPIED = ("checkpoints", "checkpoints-again", "tensorboard", "finished.json")
"""Of the best run, into --out."""

FinishedRun = tuple[FinetuneConfig, FinetuningResult]
Spread = dict[str, dict[str, float]]
"""Mean and deviation of every metric."""


def finetune_seeds(config: FinetuneConfig, console: Console | None = None) -> FinetuningResult | None:
    """One run per seed; the best by validation becomes the model in --out."""
    console = console or make_console()
    _refuse_former_runs(config, "seed-*")
    runs: list[FinishedRun] = []
    for seed in range(config.seed, config.seed + config.seeds):
        console.print(f"\nseed {seed}", style="bold")
        seed_config = replace(config, seed=seed, seeds=1, out=config.out / f"seed-{seed}")
        result = _finetune_or_read(seed_config, console, config.seed)
        if result is None:
            return None
        runs.append((seed_config, result))
    results = [result for _, result in runs]
    console.print(_results_table([{"seed": str(run_config.seed)} for run_config, _ in runs], results))
    summary: dict[str, Any] = {"seeds": {str(run_config.seed): asdict(result) for run_config, result in runs}}
    summary["spread"] = _spreads([result.metrics for result in results])
    columns = {"validation": summary["spread"]}
    if config.test is not None:
        columns["test"] = summary["test_spread"] = _spreads([result.test for result in results])
    console.print(spread_table(columns))
    return _keep_best(config, console, runs, summary)


def search_settings(config: FinetuneConfig, console: Console | None = None) -> FinetuningResult | None:
    """Runs with settings that a sampler proposes from the results so far; the best becomes the model in --out."""
    console = console or make_console()
    optuna = require_extra("optuna", "search")
    from litebert.loading import load

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    usual_rate = config.learning_rate or default_learning_rate(load(config.model))
    _refuse_former_runs(config, "trial-*")
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=config.seed))
    runs: list[FinishedRun] = []
    for number in range(config.search):
        trial = study.ask()
        trial_config = replace(
            config,
            search=0,
            test=None,  # the test file is for the kept model only
            out=config.out / f"trial-{number}",
            learning_rate=trial.suggest_float("learning_rate", usual_rate / 4, usual_rate * 8, log=True),
            batch_size=trial.suggest_categorical("batch_size", list(SEARCHED_BATCH_SIZES)),
            layer_decay_rate=trial.suggest_float("layer_decay_rate", 0.7, 1.0),
        )
        console.print(f"\ntrial {number}: {trial.params}", style="bold", highlight=False, markup=False)
        result = _finetune_or_read(trial_config, console, config.seed)
        if result is None:
            return None
        study.tell(trial, result.metrics[result.metric])
        runs.append((trial_config, result))
    settings = [
        {
            "trial": str(number),
            "rate": f"{trial_config.learning_rate:.2g}",
            "batch": str(trial_config.batch_size),
            "layer decay": f"{trial_config.layer_decay_rate:.2f}",
        }
        for number, (trial_config, _) in enumerate(runs)
    ]
    console.print(_results_table(settings, [result for _, result in runs]))
    trials = [{"settings": row, "metrics": result.metrics} for row, (_, result) in zip(settings, runs, strict=True)]
    best = _keep_best(config, console, runs, {"trials": trials})
    return best if config.test is None else _tested(config, console, config.test, best)


def _tested(config: FinetuneConfig, console: Console, path: Path, best: FinetuningResult) -> FinetuningResult:
    """The result of the kept model with its metrics on the test file."""
    task: Any = TASKS[config.task]
    records = task.read(path, TableOptions.parse(config.columns, config.skip_bad))
    test, baseline = evaluate_saved(config, records, pick_device(config.device))
    say(console, f"{path}: {', '.join(f'{name} {value:.4f}' for name, value in test.items())}")
    finished = read_json(config.out / "finished.json")
    write_json(config.out / "finished.json", finished | {"test": test, "baseline": baseline})
    return replace(best, test=test, baseline=baseline)


def _finetune_or_read(config: FinetuneConfig, console: Console, split_seed: int) -> FinetuningResult | None:
    """Run, or read the result of a run that is finished already."""
    finished = config.out / "finished.json"
    if finished.is_file():
        result = FinetuningResult(**read_json(finished))
        before, now = result.decisive, settings_for_resume(config)
        changed = [f"{name} (was {before.get(name)}, is {now[name]})" for name in now if before.get(name) != now[name]]
        if changed:
            raise CheckpointError(f"{config.out}: made with other settings: {', '.join(changed)}; use another --out")
        return result
    # runs that the interrupted command had not begun have nothing to resume
    resume = config.resume and (config.out / "checkpoints").is_dir()
    return finetune(replace(config, resume=resume), console, split_seed=split_seed)


def _refuse_former_runs(config: FinetuneConfig, pattern: str) -> None:
    former = sorted(config.out.glob(pattern))
    if former and not config.resume:
        raise ConfigError(f"{config.out} already holds {former[0].name} of a former run; --resume goes on with it")


def _keep_best(
    config: FinetuneConfig, console: Console, runs: Sequence[FinishedRun], summary: dict[str, Any]
) -> FinetuningResult:
    best_config, best = max(runs, key=lambda run: run[1].metrics[run[1].metric])
    name, score = best_config.out.name, best.metrics[best.metric]
    say(console, f"{name} is the best of {len(runs)} by {best.metric}, {score:.4f}, and is kept")
    for path in sorted(best_config.out.iterdir(), key=lambda path: path.name == "config.json"):  # which comes last
        if path.name not in NOT_COPIED:
            _copy(path, config.out / path.name)
    write_run(config.out, "finetune", config)
    write_json(config.out / "finished.json", asdict(best) | summary | {"best": name})
    return best


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, to)


def _spreads(metrics: Sequence[dict[str, float]]) -> Spread:
    return {name: _spread([scores[name] for scores in metrics]) for name in metrics[0]}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def _results_table(settings: Sequence[dict[str, str]], results: Sequence[FinetuningResult]) -> Table:
    """The settings and scores of each run, the best in bold."""
    metric = results[0].metric
    best = max(range(len(results)), key=lambda number: results[number].metrics[metric])
    table = Table()
    for name in (*settings[0], metric, *(["on the test file"] if results[0].test else [])):
        table.add_column(escape(name), justify="right", overflow="fold")
    for number, (row, result) in enumerate(zip(settings, results, strict=True)):
        scores = [metrics[metric] for metrics in (result.metrics, result.test) if metrics]
        table.add_row(*row.values(), *(f"{score:.4f}" for score in scores), style="bold" if number == best else None)
    return table


def spread_table(columns: dict[str, Spread]) -> Table:
    """Mean ± deviation of every metric."""
    table = Table(title="mean ± deviation")
    table.add_column("metric", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right")
    for metric in dict.fromkeys(metric for spreads in columns.values() for metric in spreads):
        # metrics about the rarer class may be of another class in the test file
        cells = [spreads.get(metric) for spreads in columns.values()]
        table.add_row(escape(metric), *(f"{c['mean']:.4f} ± {c['deviation']:.4f}" if c else "" for c in cells))
    return table
