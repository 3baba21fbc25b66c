"""What a task is: the owner of its records, features, head, loss, metric and decoding.

Nothing else knows which task runs. Shapes: B examples, S sequences, L columns, H hidden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import Batch, Example
from litebert.data.tables import TableOptions, read_rows
from litebert.model import Albert, AlbertConfig, Encoder, HeadKind
from litebert.model.hooks import has_hooks
from litebert.model.sentence_head import SentenceHead, pooled
from litebert.tokenizer import Tokenizer

Input = TypeVar("Input")
Output = TypeVar("Output")
Scores = dict[str, Tensor]
"""What the head says: each tensor has one row per sequence."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer beside the truth."""

    text: str
    """What was asked, in short."""
    truth: str
    answer: str
    right: float
    """1 is right, 0 is wrong, between them is partly right."""
    confidence: float | None = None
    """How sure the model was of its answer, as a probability."""


class Task(ABC, Generic[Input, Output]):
    """One kind of question. Its input and output records are dataclasses, the same in JSON lines and in Python."""

    name: ClassVar[str]
    """What `--task` calls it."""
    architecture: ClassVar[str]
    """The transformers class that computes the same."""
    problems: ClassVar[tuple[str | None, ...]] = (None,)
    """The values of transformers' `problem_type` that mean this task, where several share a class."""
    head_name: ClassVar[str]
    """Where its head stands in `Albert.heads`."""
    head_rate: ClassVar[float] = 1.0
    """How many times as fast as the encoder its head learns."""
    own_depths: ClassVar[bool] = False
    """Does its head read the encoder after numbers of passes that it has learned with, and no others?"""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: dict[str, Any]) -> Task[Input, Output]:
        """Rebuild the task from the config.json of a model folder; `settings["options"]` is what `options` said."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What config.json must say for transformers."""

    def options(self) -> dict[str, Any]:
        """What it must say for us alone; JSON."""
        return {}

    def save_beside(self, folder: Path) -> None:
        """Write what no config.json can hold into the folder of a model."""

    def load_beside(self, folder: Path) -> None:
        """Read it again."""

    def read_depths(self, config: AlbertConfig) -> tuple[int, ...]:
        """After which passes its head reads the hidden states."""
        return (config.num_hidden_layers,)

    @abstractmethod
    def head(self, config: AlbertConfig) -> nn.Module:
        """A new head, untrained."""

    @abstractmethod
    def parse(self, item: Any, where: str) -> Input:
        """A record from what a user gives: a string, a pair, or a mapping with the columns' names."""

    def items_of(self, path: Path, source: TableOptions) -> Iterator[tuple[str, Any]]:
        """Where it stands and what it is, for all that a file asks, labelled or not; `parse` makes records of it."""
        return ((row.where, row.values) for row in read_rows(path, source))

    @classmethod
    def files_of(cls, path: Path, source: TableOptions) -> list[Path]:
        """All that is read where this file is given."""
        return [path]

    @abstractmethod
    def features(self, inputs: Sequence[Input], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        """One example per record, without target."""

    @abstractmethod
    def scores(self, model: Albert, batch: Batch) -> Scores:
        """What the head says of a batch."""

    def graph_outputs(self, model: Albert, batch: Batch) -> Scores:
        """The outputs of an exported graph, by name."""
        return self.scores(model, batch)

    @abstractmethod
    def answer(self, record: Input, example: Example, scores: Scores) -> Output:
        """The answer for one record, from the scores of its sequences, on the CPU."""


class TrainableTask(Task[Input, Output]):
    """A task that learns from labelled files."""

    metric: ClassVar[str]
    """The name of the metric that decides between models; more of it is better."""
    least_epochs: ClassVar[int] = 3
    """Times to go through many examples, where nobody says."""
    compares: ClassVar[bool] = False
    """Are the examples of a batch held against each other? Chance alone must then decide which stand together."""

    @property
    def needs_dropout(self) -> bool:
        """Does it learn from two readings that dropout makes different?"""
        return False

    def metric_for(self, inputs: Sequence[Input]) -> str:
        """The metric that decides, where it depends on what is known of these records."""
        return self.metric

    def first_head(self, config: AlbertConfig, before: Mapping[str, nn.Module]) -> nn.Module:
        """The head that learns, as it is before the first step; `before` are those that the model has."""
        return self.head(config)

    @classmethod
    @abstractmethod
    def read(cls, path: Path, source: TableOptions | None = None) -> list[Input]:
        """The labelled records of a file."""

    @classmethod
    @abstractmethod
    def learn_from(
        cls, inputs: Sequence[Input], head: HeadKind = "linear", **options: Any
    ) -> TrainableTask[Input, Output]:
        """The task that these labelled records define (their label set, say)."""

    @abstractmethod
    def labelled(self, inputs: Sequence[Input], examples: Sequence[Example]) -> list[Example]:
        """What to learn from: the examples of these records with their targets, one window each where windows can be
        learned alone. A label the task has not learned is an error."""

    @abstractmethod
    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """One number to make smaller."""

    @abstractmethod
    def metrics(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> dict[str, float]:
        """How right the answers are; `metric` is among them."""

    def signatures(self, inputs: Sequence[Input]) -> dict[str, str]:
        """How metrics that others compute too are computed on these records, for those who compare."""
        return {}

    def by_label(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> dict[str, dict[str, float]]:
        """For tasks with labels, how right the answers are for each of them."""
        return {}

    @abstractmethod
    def judge(self, record: Input, output: Output) -> Judgement:
        """One answer beside the truth, for people to look at."""

    def check(self, inputs: Sequence[Input]) -> None:
        """Refuse records with a label the task has not learned."""

    def remarks(self, inputs: Sequence[Input]) -> list[str]:
        """What somebody who trains on these records should know."""
        return []

    @abstractmethod
    def baseline(self, inputs: Sequence[Input]) -> dict[str, float]:
        """What an answer without reading would get on these records, for some of the metrics."""

    def prior_loss(self, examples: Sequence[Example]) -> float | None:
        """The loss of the best answer that is the same for all of these labelled examples: a model whose loss stays
        there has collapsed. None where it cannot be said."""
        return None

    def stratum(self, record: Input) -> str:
        """What a split must keep the proportions of."""
        return ""

    def tune(self, inputs: Sequence[Input], examples: Sequence[Example], scores: Sequence[Scores]) -> None:
        """Choose thresholds, where the task has any, by what the model says of validation records."""

    def to_save(self, head: nn.Module) -> tuple[TrainableTask[Input, Output], nn.Module]:
        """The task and its head as a finished model has them."""
        return self, head

    def group(self, record: Input) -> str | None:
        """What a split must not tear apart: a passage that several questions are about; None = nothing."""
        return None

    @abstractmethod
    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        """How far two sets of scores of one batch lie apart: the symmetric Kullback-Leibler distance of what they make
        likely, a mean over all that is scored. R-Drop and SMART make it small."""


def hidden_of(encoder: Encoder, batch: Batch, rows: Tensor | None = None) -> Tensor:  # (S, L, H), or (R, H)
    """The hidden states of a batch, 0 where there is padding; or those of some of its S * L tokens."""
    if batch.states is not None:
        last = batch.states[:, :, -1].to(encoder.word_embeddings.weight.dtype)  # (S, L, H)
        return last if rows is None else last.flatten(0, 1).index_select(0, rows)
    given: dict[str, Any] = {"attention_mask": batch.attention_mask, "token_type_ids": batch.token_type_ids,
                             "rows": rows, "tokens": batch.tokens}  # fmt: skip
    if batch.noise is None:
        return encoder(batch.input_ids, **given)
    return encoder(inputs_embeds=encoder.word_embeddings(batch.input_ids) + batch.noise, **given)


def states_of(encoder: Encoder, batch: Batch, depths: Sequence[int]) -> Tensor:  # (S, L, P, H)
    """The hidden states of a batch after each of these numbers of passes; what stands in the padding means nothing."""
    if batch.states is not None:
        return batch.states
    found = encoder.after_passes(depths, batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return torch.stack(found, dim=-2)


def pooled_of(encoder: Encoder, batch: Batch) -> Tensor:  # (S, H)
    """The pooled vectors of a batch."""
    sequences, columns = batch.input_ids.shape
    first = columns * torch.arange(sequences, device=batch.input_ids.device)
    return encoder.pool(hidden_of(encoder, batch, first))


def vectors_of(model: Albert, batch: Batch, head_name: str = SentenceHead.name) -> Tensor:  # (S, D)
    """A vector for each sequence of a batch, as the model's head for them says; without one, the mean of its tokens."""
    head: Any = dict(model.heads.items()).get(head_name)
    found = _at_once(model.encoder, batch, head)
    if found is not None:
        return found
    if head is None:
        return pooled(hidden_of(model.encoder, batch), batch.input_ids, batch.real)
    return head(_states_of(model.encoder, batch, head.passes), batch.input_ids, batch.real)


def _at_once(encoder: Encoder, batch: Batch, head: SentenceHead | None) -> Tensor | None:  # (S, D)
    """By native code, where that is used and can."""
    if encoder.run_all is None or batch.states is not None or batch.noise is not None:
        return None
    real = batch.real
    read = batch.input_ids[real], real.sum(1), batch.token_type_ids[real]
    if head is None:
        return encoder.vectors(*read, None, None)
    if not head.is_mean or has_hooks(head):
        return None
    found = encoder.vectors(*read, head.linear, head.tokens)
    return F.normalize(found, dim=1) if found is not None and head.of_length_one else found


def _states_of(encoder: Encoder, batch: Batch, passes: int) -> Tensor:  # (S, L, H)
    """The mean of the hidden states after so many last passes."""
    if passes == 1:
        return hidden_of(encoder, batch)
    last = encoder.checked_depth(encoder.depth)
    depths = range(max(1, last + 1 - passes), last + 1)
    found = encoder.after_passes(depths, batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return torch.stack(found).mean(0)


def mean_by_owner(scores: Tensor, batch: Batch) -> Tensor:  # (S, ...) -> (B, ...)
    """The mean over the sequences of each example."""
    if len(scores) == batch.examples:
        return scores
    counts = torch.zeros(batch.examples, dtype=scores.dtype, device=scores.device)
    counts = counts.index_add(0, batch.owner, torch.ones_like(batch.owner, dtype=scores.dtype))
    total = scores.new_zeros(batch.examples, *scores.shape[1:]).index_add(0, batch.owner, scores)
    return total / counts.view(-1, *([1] * (scores.dim() - 1)))


def f1_of(right: int, answered: int, true: int) -> dict[str, float]:
    """How many of the answers are right, how many of the truths were found, and the harmonic mean of the two."""
    return {
        "f1": 2 * right / max(1, answered + true),
        "precision": right / max(1, answered),
        "recall": right / max(1, true),
    }


def f1_by_label(right: Counter[str], answered: Counter[str], true: Counter[str]) -> dict[str, dict[str, float]]:
    """The same for every label that occurs, with the number of its truths."""
    return {
        label: f1_of(right[label], answered[label], true[label]) | {"examples": true[label]}
        for label in sorted({*answered, *true})
    }


def symmetric_divergence(left: Tensor, right: Tensor) -> Tensor:
    """(KL(p‖q) + KL(q‖p)) / 2 of the softmax of rows of scores, a mean over the rows."""
    p, q = left.float().log_softmax(-1), right.float().log_softmax(-1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean() / 2


def checked_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `options` had said, from the config.json of a folder."""
    options = settings.get("options", {})
    return dict(options) if isinstance(options, Mapping) else {}
