"""Measure a taught model on labelled examples.

Examples:
  litebert evaluate --model runs/finetune --data test.csv
  litebert evaluate --model runs/finetune --data test.csv --out runs/evaluation
  litebert evaluate --model runs/hotels runs/books --data hotels.csv books.csv
  litebert evaluate --task similarity --model litebert-base-en --data sts.tsv
  litebert evaluate --model litebert-base-en runs/meta --episodes runs/meta/test.jsonl
  litebert evaluate --episodes 5-way 1-shot 5-shot --data fold1.csv fold2.csv

With --out, a page with drawings (report.html), all answers (answers.jsonl) and the figures (evaluation.json) are
written. Several models or files give a table of every model on every file. A model that was only pre-trained is
measured on plain text, of which it fills in hidden words. With --episodes, ways to learn from a few examples are
compared on the same small tasks, one after the other; several files of these are folds, and the spread of their means
is shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError, DataError
from litebert.run_folder import refuse_overwrite

if TYPE_CHECKING:
    from rich.console import Console

    from litebert.inference import Model
    from litebert.measure.plots import Point
    from litebert.tasks.base import Judgement

COUNTED_LABELS = 200  # of more classes a confusion matrix is nearly empty, and large
SHOWN_LABELS = 12  # more make a confusion matrix that no terminal holds
Method = Literal["majority", "words", "probe", "prototypes", "adapt", "meta", "finetune", "setfit"]


@dataclass(frozen=True)
class Config:
    data: tuple[Path, ...] = ()
    """Labelled examples the model has not seen."""
    model: tuple[str, ...] = (DEFAULT,)
    """Folders that `litebert finetune` or `pretrain` wrote, or names of models."""
    task: Literal["similarity"] | None = None
    """What to ask instead of what the model was taught: every model makes vectors, whose cosines can be measured."""
    episodes: tuple[str, ...] = ()
    """Small tasks: files of them, or which to draw from --data, such as 5-way 1-shot 15-queries 600-episodes."""
    methods: tuple[Method, ...] = ("majority", "words", "probe", "prototypes", "adapt", "meta")
    """For --episodes: the commonest class; tf-idf and logistic regression; that on the vectors of the model; the class
    with the nearest mean; litebert adapt; as the model was meta-trained, if it was; some steps on all weights; SetFit,
    if it is installed."""
    columns: tuple[str, ...] = ()
    """What stands where, if not under its usual name: text=sentence label=class, or text=1 label=2."""
    skip_bad: bool = False
    """Leave out rows that cannot be read instead of stopping at the first."""
    out: Path | None = None
    """Folder for a page with drawings, all answers and the figures."""
    errors: int = 5
    """Wrong answers to show, those of which the model was surest."""
    batch_size: int | None = None
    """Examples at a time; by default 32, and on a GPU as many as make 32,768 tokens."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """auto: bf16 on a GPU that has it, fp32 elsewhere. fp8 is bf16 with the larger matrix products from eight bits, on
    GPUs such as an H100: faster for large batches, less exact."""
    json: bool = False
    """Print JSON instead of a table."""
    seed: int = 0
    """Decides which episodes are drawn."""
    passes: int | None = None
    """Passes to run instead of all: faster, and right where the model has learned it (distill --elastic)."""
    speed: float = 1.0
    """Let texts whose class is clear stop early, so that they take 1 / speed of the passes on the average: 2 is usual.
    For classifiers that have learned it (distill --elastic)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_counts_and_seed(self, "batch_size")
        check_counts_and_seed(self)
        if not self.model or not (self.data or self.episodes):
            raise ConfigError("give at least one --model and one --data file")
        if self.episodes:
            for given in (self.episodes, self.data):
                if twice := next((one for one in given if given.count(one) > 1), None):
                    raise ConfigError(f"{twice} is given twice and would count twice; give it once")
            return
        if self.out is not None and len(self.model) * len(self.data) > 1:
            raise ConfigError("--out takes the page of one model on one file; leave it out for a table of several")


@dataclass(frozen=True)
class Evaluation:
    """Scores, and what stands behind them."""

    model: str
    data: str
    task: str
    metric: str
    """The one that decides."""
    metrics: dict[str, float]
    baseline: dict[str, float]
    """What an answer without reading gets: what a useful model must beat."""
    examples: int
    skipped: list[str] = field(default_factory=list)
    by_label: dict[str, dict[str, float]] = field(default_factory=dict)
    calibration_error: float | None = None
    passes: float | None = None
    """On the average, where texts may stop early."""
    labels: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """Rows are the truth, columns the answers."""
    judgements: list[Judgement] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    signatures: dict[str, str] = field(default_factory=dict)
    """How metrics that others compute too were computed."""

    @property
    def worst(self) -> list[Judgement]:
        """Wrong answers, the least right first, and of equal ones the surest."""
        wrong = [one for one in self.judgements if one.right < 1]
        return sorted(wrong, key=lambda one: (one.right, -(one.confidence or 0.0)))

    def worst_table(self, most: int) -> tuple[str, list[list[str]]]:
        """What to call the worst answers, and up to so many of them below their titles.

        A number is nearly never right to the last digit and comes without a confidence: there, distance is all.
        """
        shown = self.worst[:most]
        cells = [[one.truth, one.answer, one.text] for one in shown]
        if all(one.confidence is None for one in self.judgements):
            return f"the {len(shown)} answers that are furthest off", [["truth", "answer", "text"], *cells]
        for row, one in zip(cells, shown, strict=True):
            row.insert(2, "" if one.confidence is None else f"{one.confidence:.0%}")
        order = "the least right first" if any(one.right for one in self.worst) else "the surest first"
        title = f"{len(shown)} of {len(self.worst):,} answers that are not right, {order}"
        return title, [["truth", "answer", "sure", "text"], *cells]

    @property
    def sureness(self) -> list[Point]:
        from litebert.measure.calibration import by_confidence

        sure = [one for one in self.judgements if one.confidence is not None]
        return by_confidence([one.confidence or 0.0 for one in sure], [one.right for one in sure]) if sure else []

    def figures(self) -> dict[str, Any]:
        """All but the single answers, for JSON."""
        return {key: value for key, value in asdict(self).items() if key not in ("judgements", "answers")}


def run(config: Config) -> None:
    from rich.console import Console

    from litebert.loading import load

    if config.out is not None:
        for name, what in (("evaluation.json", "an evaluation"), ("config.json", "a model"), ("run.json", "a run")):
            refuse_overwrite(config.out / name, what)
    if config.episodes:
        from litebert.studies.episodes.comparison import run_episodes

        run_episodes(config)
        return
    found = []
    for name in config.model:
        model = load(name)
        found.append([evaluate(config, name, data, model) for data in config.data])
    one = found[0][0] if len(config.model) * len(config.data) == 1 else None
    if config.json:
        print(json.dumps(one.figures() if one else [[x.figures() for x in row] for row in found], ensure_ascii=False))
    elif one is None:
        _print_matrix(Console(), found)
    else:
        _print_one(Console(), one, config.errors)
    if one is not None and config.out is not None:
        from litebert.measure.evaluation_page import write_page

        write_page(one, config.out)
        make_console().print(f"look at {config.out / 'report.html'}", highlight=False, markup=False)


def evaluate(config: Config, model_name: str, data: Path, model: Model | None = None) -> Evaluation:
    """The evaluation of one model on one file as data; the model is loaded by its name where it is not given."""
    from litebert.console import progress_bar
    from litebert.data.corpus import read_lines
    from litebert.data.tables import TABLE_SUFFIXES, TableOptions
    from litebert.device import pick_device
    from litebert.files import format_suffix
    from litebert.loading import load
    from litebert.measure.calibration import calibration_error
    from litebert.tasks import Mask, Similarity, TrainableTask
    from litebert.tasks.mask import mask_random_tokens

    model = (model or load(model_name)).to(pick_device(config.device))
    model.configure(config.precision, config.passes, config.speed)
    task: Any = model.task if config.task in (None, getattr(model.task, "name", None)) else Similarity()
    if not isinstance(task, TrainableTask if format_suffix(data) in TABLE_SUFFIXES else (TrainableTask, Mask)):
        raise ConfigError(
            f"{model_name} was not taught a task that can be evaluated on {data}; run litebert finetune first"
        )
    options = TableOptions.parse(config.columns, config.skip_bad)
    if isinstance(task, Mask):
        lines = [line for line in read_lines([data]) if line.strip()]
        records = mask_random_tokens(lines, model.tokenizer, model.max_length)
    else:
        records = task.read(data, options)
        task.check(records)  # refuses a label the model has never seen
        task = task.learn_from(records) if task is not model.task else task
    if not records:
        raise DataError(f"{data}: holds no examples that can be read; check the file")
    examples = task.features(records, model.tokenizer, model.max_length)
    console = make_console()
    if not console.is_terminal:
        console.print(f"evaluating {len(records):,} examples", highlight=False)
    with progress_bar(console, f"evaluating {len(records):,} examples", sum(len(x.sequences) for x in examples)) as bar:
        scores = model.score_examples(
            task, examples, config.batch_size, lambda count: bar.advance(bar.task_ids[0], count)
        )
    answers = [task.answer(*three) for three in zip(records, examples, scores, strict=True)]
    judgements = [task.judge(*two) for two in zip(records, answers, strict=True)]
    labels, confusion = _confusion(task, judgements)
    found = Evaluation(
        model_name, str(data), task.name, _metric_of(task, records), task.metrics(records, answers),
        task.baseline(records), len(records), options.skipped,
        task.by_label(records, answers) if isinstance(task, TrainableTask) else {},
        None, mean(model.stopped_after.elements()) if model.exits is not None else None, labels, confusion, judgements,
        answers, task.signatures(records) if isinstance(task, TrainableTask) else {},
    )  # fmt: skip
    error = calibration_error(found.sureness) if found.sureness else None
    return Evaluation(**{**vars(found), "calibration_error": error})


def _metric_of(task: Any, records: list[Any]) -> str:
    from litebert.tasks import TrainableTask

    return str(task.metric_for(records) if isinstance(task, TrainableTask) else task.metric)


def _confusion(task: Any, judgements: list[Judgement]) -> tuple[list[str], list[list[int]]]:
    from collections import Counter

    from litebert.tasks import Classify

    if not isinstance(task, Classify) or len(task.labels) > COUNTED_LABELS:
        return [], []
    pairs = Counter((one.truth, one.answer) for one in judgements)
    return task.labels, [[pairs[truth, answer] for answer in task.labels] for truth in task.labels]


def _print_one(console: Console, found: Evaluation, errors: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    console.print(
        f"{found.model} on {found.data}, {found.examples:,} examples", highlight=False, markup=False, soft_wrap=True
    )
    table = Table()
    for name in ("metric", "value", "without reading"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for name, value in found.metrics.items():
        table.add_row(escape(name), f"{value:.4f}", f"{found.baseline[name]:.4f}" if name in found.baseline else "")
    if found.calibration_error is not None:
        table.add_row("calibration error", f"{found.calibration_error:.4f}", "")
    if found.passes is not None:
        table.add_row("passes, on the average", f"{found.passes:.2f}", "")
    console.print(table)
    for name, signature in found.signatures.items():
        console.print(f"{name}: {signature}", highlight=False, markup=False, soft_wrap=True)
    if len(found.by_label) > 1:
        rows = label_rows(found)
        each = Table()
        for name in rows[0]:
            each.add_column(name, justify="left" if name == "label" else "right", overflow="fold")
        for cells in rows[1 : SHOWN_LABELS + 1]:
            each.add_row(*map(escape, cells))
        console.print(each)
        if len(rows) > SHOWN_LABELS + 1:
            console.print(f"and {len(rows) - 1 - SHOWN_LABELS:,} more labels: --json and --out list them all")
    if found.labels and len(found.labels) <= SHOWN_LABELS:
        grid = Table(title="rows: the truth, columns: the answers")
        grid.add_column("")
        for label in found.labels:
            grid.add_column(escape(label), justify="right")
        for label, row in zip(found.labels, found.confusion, strict=True):
            grid.add_row(escape(label), *(str(n) if n else "·" for n in row))
        console.print(grid)
    if errors and found.worst:
        title, (titles, *rows) = found.worst_table(errors)
        wrong = Table(title=title)
        for name in titles:
            wrong.add_column(name, overflow="fold")
        for *cells, text in rows:
            wrong.add_row(*(escape(cell[:80]) for cell in cells), escape(text[:300]))
        console.print(wrong)
    if found.skipped:
        console.print(
            f"{len(found.skipped):,} rows left out: {found.skipped[0]}", highlight=False, markup=False, soft_wrap=True
        )


def label_rows(found: Evaluation) -> list[list[str]]:
    """A table of how right the answers are label by label, the most frequent first; the first row holds the titles."""
    ordered = sorted(found.by_label.items(), key=lambda pair: -pair[1]["examples"])
    titles = ["label", *(name for name in ordered[0][1])]
    return [titles] + [
        [label, *(f"{int(value):,}" if name == "examples" else f"{value:.4f}" for name, value in figures.items())]
        for label, figures in ordered
    ]


def _print_matrix(console: Console, found: list[list[Evaluation]]) -> None:
    """Every model on every file, by the metric that decides."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=", ".join(dict.fromkeys(one.metric for row in found for one in row)))
    table.add_column("")
    for one in found[0]:
        table.add_column(escape(one.data), justify="right", overflow="fold")
    for row in found:
        table.add_row(escape(row[0].model), *(f"{one.metrics[one.metric]:.4f}" for one in row))
    console.print(table)
