"""Score a model on labelled examples: metrics, a baseline, calibration, confusion and every single answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from litebert.console import make_console, progress_bar, say
from litebert.data.corpus import read_lines
from litebert.data.tables import TABLE_SUFFIXES, TableOptions
from litebert.errors import ConfigError, DataError
from litebert.files import format_suffix
from litebert.inference.model import Model
from litebert.measure.calibration import bin_by_confidence, calibration_error
from litebert.measure.plots import Point
from litebert.tasks import Classify, Mask, Similarity, TrainableTask
from litebert.tasks.mask import mask_random_tokens

if TYPE_CHECKING:
    from litebert.tasks.base import Judgement

MAX_CONFUSION_LABELS = 200
"""With more classes a confusion matrix is nearly empty, and large."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a file, and the answers behind them."""

    model: str
    data: str
    task: str
    metric: str
    """The task's main metric."""
    metrics: dict[str, float]
    baseline: dict[str, float]
    """The metrics of a constant answer, which a useful model must beat."""
    examples: int
    skipped: list[str] = field(default_factory=list)
    by_label: dict[str, dict[str, float]] = field(default_factory=dict)
    calibration_error: float | None = None
    passes: float | None = None
    """Mean number of passes, where early exit is on."""
    labels: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    """Rows are the true labels, columns the predicted ones."""
    judgements: list[Judgement] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    signatures: dict[str, str] = field(default_factory=dict)
    """How metrics that other tools compute too were computed, such as sacreBLEU's signature."""

    @property
    def main_score(self) -> float:
        return self.metrics[self.metric]

    @property
    def errors(self) -> list[Judgement]:
        """Wrong answers, the worst first; of equally wrong ones the most confident first."""
        wrong = [judgement for judgement in self.judgements if judgement.right < 1]
        return sorted(wrong, key=lambda judgement: (judgement.right, -(judgement.confidence or 0.0)))

    def error_table(self, limit: int) -> tuple[str, list[list[str]]]:
        """A title, and a table of up to `limit` errors; its first row holds the column names.

        A number is nearly never right to the last digit and comes without a confidence: there, only distance counts.
        """
        errors = self.errors[:limit]
        rows = [[error.truth, error.answer, error.text] for error in errors]
        if all(judgement.confidence is None for judgement in self.judgements):
            return f"the {len(errors)} answers that are furthest off", [["truth", "answer", "text"], *rows]
        for row, error in zip(rows, errors, strict=True):
            row.insert(2, "" if error.confidence is None else f"{error.confidence:.0%}")
        order = "the least right first" if any(error.right for error in self.errors) else "the most confident first"
        title = f"{len(errors)} of {len(self.errors):,} answers that are not right, {order}"
        return title, [["truth", "answer", "confidence", "text"], *rows]

    @property
    def reliability(self) -> list[Point]:
        """Accuracy over confidence, in bins: the points of a reliability diagram."""
        return reliability_of(self.judgements)

    def summary(self) -> dict[str, Any]:
        """Everything but the single answers, for JSON."""
        return {key: value for key, value in asdict(self).items() if key not in ("judgements", "answers")}


def evaluate(
    model: Model,
    name: str,
    data: Path,
    *,
    task_name: str | None = None,
    source: TableOptions | None = None,
    batch_size: int | None = None,
) -> Evaluation:
    """Score a model on one file, on the device and in the precision that it has. `name` is what reports call it.

    `task_name` asks for something other than what the model was fine-tuned for.
    """
    task: Any = model.task if task_name in (None, getattr(model.task, "name", None)) else Similarity()
    if not isinstance(task, TrainableTask if format_suffix(data) in TABLE_SUFFIXES else (TrainableTask, Mask)):
        raise ConfigError(f"{name} was not fine-tuned for a task that {data} has examples of; run litebert finetune")
    source = source or TableOptions()
    if isinstance(task, Mask):
        lines = [line for line in read_lines([data]) if line.strip()]
        records = mask_random_tokens(lines, model.tokenizer, model.max_length)
    else:
        records = task.read(data, source)
        task.check(records)  # refuses a label the model has never seen
        task = task.learn_from(records) if task is not model.task else task
    if not records:
        raise DataError(f"{data}: holds no examples that can be read; check the file")
    answers = _answer(model, task, records, batch_size)
    judgements = [task.judge(record, answer) for record, answer in zip(records, answers, strict=True)]
    trainable = isinstance(task, TrainableTask)
    labels, confusion = confusion_matrix(task, judgements)
    points = reliability_of(judgements)
    return Evaluation(
        model=name,
        data=str(data),
        task=task.name,
        metric=str(task.metric_for(records) if trainable else task.metric),
        metrics=task.metrics(records, answers),
        baseline=task.baseline(records),
        examples=len(records),
        skipped=source.skipped,
        by_label=task.by_label(records, answers) if trainable else {},
        calibration_error=calibration_error(points) if points else None,
        passes=mean(model.stopped_after.elements()) if model.exits is not None else None,
        labels=labels,
        confusion=confusion,
        judgements=judgements,
        answers=answers,
        signatures=task.signatures(records) if trainable else {},
    )


def _answer(model: Model, task: Any, records: Sequence[Any], batch_size: int | None) -> list[Any]:
    examples = task.features(records, model.tokenizer, model.max_length)
    console, title = make_console(), f"evaluating {len(records):,} examples"
    if not console.is_terminal:
        say(console, title)
    with progress_bar(console, title, sum(len(example.sequences) for example in examples)) as bar:
        scores = model.score_examples(task, examples, batch_size, lambda count: bar.advance(bar.task_ids[0], count))
    return [task.answer(*parts) for parts in zip(records, examples, scores, strict=True)]


def reliability_of(judgements: Sequence[Judgement]) -> list[Point]:
    """Accuracy over confidence, in bins; empty where answers have no confidence."""
    confident = [judgement for judgement in judgements if judgement.confidence is not None]
    if not confident:
        return []
    confidences = [judgement.confidence or 0.0 for judgement in confident]
    return bin_by_confidence(confidences, [judgement.right for judgement in confident])


def confusion_matrix(task: Any, judgements: Sequence[Judgement]) -> tuple[list[str], list[list[int]]]:
    """Labels and counts, for classifiers with few enough classes."""
    if not isinstance(task, Classify) or len(task.labels) > MAX_CONFUSION_LABELS:
        return [], []
    pairs = Counter((judgement.truth, judgement.answer) for judgement in judgements)
    return task.labels, [[pairs[truth, answer] for answer in task.labels] for truth in task.labels]
