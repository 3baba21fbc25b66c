"""Evaluate a model on labelled examples.

Examples:
  litebert evaluate --model runs/finetune --data test.csv
  litebert evaluate --model runs/finetune --data test.csv --out runs/evaluation
  litebert evaluate --model runs/hotels runs/books --data hotels.csv books.csv
  litebert evaluate --task similarity --model litebert-base-en --data sts.tsv
  litebert evaluate --model litebert-base-en runs/meta --episodes runs/meta/test.jsonl
  litebert evaluate --episodes 5-way 1-shot 5-shot --data fold1.csv fold2.csv

--out writes a page with plots (report.html), all answers (answers.jsonl) and the metrics (evaluation.json). Several
models or files give a table of every model on every file. A pre-trained model is evaluated on plain text, in which it
fills masked words. --episodes compares few-shot methods on the same small tasks; several files of episodes are folds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console, say
from litebert.errors import ConfigError
from litebert.run_folder import refuse_overwrite
from litebert.studies.episodes import Method

if TYPE_CHECKING:
    from litebert.inference import Model


@dataclass(frozen=True)
class Config:
    data: tuple[Path, ...] = ()
    """Labelled examples that the model was not trained on."""
    model: tuple[str, ...] = (DEFAULT,)
    """Model folders, or names of models."""
    task: Literal["similarity"] | None = None
    """Task, if not the one that the model was fine-tuned for: cosine similarity, which every model has."""
    episodes: tuple[str, ...] = ()
    """Few-shot episodes: files of them, or what to draw from --data, such as 5-way 1-shot 15-queries 600-episodes."""
    methods: tuple[Method, ...] = ("majority", "words", "probe", "prototypes", "adapt", "meta")
    """For --episodes: the majority class; tf-idf with logistic regression; logistic regression on the model's vectors;
    nearest class mean; litebert adapt; the meta-trained algorithm; a few steps on all weights; SetFit."""
    columns: tuple[str, ...] = ()
    """Column names, if not the usual ones: text=sentence label=class; or column numbers: text=1 label=2."""
    skip_bad: bool = False
    """Skip unreadable rows instead of stopping at the first."""
    out: Path | None = None
    """Folder for a page with plots, all answers and the metrics."""
    errors: int = 5
    """Wrong answers to show, the most confident first."""
    batch_size: int | None = None
    """Examples per batch; by default 32, on a GPU 32,768 tokens."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Numeric precision. auto: bf16 on a GPU that has it, fp32 elsewhere. fp8: bf16 with the larger matrix products in
    fp8, on GPUs such as an H100: faster for large batches, less exact."""
    json: bool = False
    """Print JSON instead of a table."""
    seed: int = 0
    """Random seed of the episodes."""
    passes: int | None = None
    """Number of passes, instead of all; for models that were trained for it (distill --elastic)."""
    speed: float = 1.0
    """Early exit: texts take 1 / speed of the passes on average; 2 is usual. For classifiers that were trained for it
    (distill --elastic)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_counts_and_seed(self, "batch_size")
        check_counts_and_seed(self)
        if not self.model or not (self.data or self.episodes):
            raise ConfigError("give at least one --model and one --data file")
        if self.episodes:
            for names in (self.episodes, self.data):
                if repeated := next((name for name in names if names.count(name) > 1), None):
                    raise ConfigError(f"{repeated} is given twice and would count twice; give it once")
            return
        if self.out is not None and len(self.model) * len(self.data) > 1:
            raise ConfigError("--out takes the page of one model on one file; leave it out for a table of several")


def run(config: Config) -> None:
    if config.out is not None:
        for name, what in (("evaluation.json", "an evaluation"), ("config.json", "a model"), ("run.json", "a run")):
            refuse_overwrite(config.out / name, what)
    (_compare_on_episodes if config.episodes else _evaluate)(config)


def _evaluate(config: Config) -> None:
    from rich.console import Console

    from litebert.data.tables import TableOptions
    from litebert.inference.evaluation import evaluate
    from litebert.inference.evaluation_report import print_comparison, print_evaluation, write_page

    evaluations = []
    for name in config.model:
        model = _load(config, name)
        model.configure(config.precision, config.passes, config.speed)
        evaluations.append([
            evaluate(model, name, data, task_name=config.task, batch_size=config.batch_size,
                     source=TableOptions.parse(config.columns, config.skip_bad))
            for data in config.data
        ])  # fmt: skip
    only = evaluations[0][0] if len(config.model) * len(config.data) == 1 else None
    if config.json:
        table = [[evaluation.summary() for evaluation in row] for row in evaluations]
        print(json.dumps(only.summary() if only else table, ensure_ascii=False))
    elif only is None:
        print_comparison(Console(), evaluations)
    else:
        print_evaluation(Console(), only, config.errors)
    if only is not None and config.out is not None:
        write_page(only, config.out)
        say(make_console(), f"look at {config.out / 'report.html'}")


def _compare_on_episodes(config: Config) -> None:
    from rich.console import Console

    from litebert.studies.episodes.comparison import check_folds, compare_on_folds, read_folds
    from litebert.studies.episodes.report import print_comparison, write_comparison

    models = {name: _load(config, name) for name in config.model}
    mask = next(iter(models.values())).tokenizer.specials["mask"]
    folds = list(read_folds(config.episodes, config.data, config.columns, config.skip_bad, config.seed, mask))
    check_folds(folds, models)
    for model in models.values():
        model.configure(config.precision)
    console = make_console()
    content = compare_on_folds(folds, models, config.methods, config.seed, console)
    if config.json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        print_comparison(Console(), content)
    if config.out is not None:
        say(console, write_comparison(config.out, content, [stored for _, stored in folds]))


def _load(config: Config, name: str) -> Model:
    from litebert.device import pick_device
    from litebert.loading import load

    return load(name).to(pick_device(config.device))
