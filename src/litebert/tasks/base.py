"""The interface of a task: its records, features, head, loss, metrics and decoding.

Shapes: B examples, S sequences, L columns, H hidden.
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
"""The outputs of the head by name; each tensor has one row per sequence."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A prediction compared with the truth."""

    text: str
    """The input, in short."""
    truth: str
    answer: str
    right: float
    """From 0, wrong, to 1, right."""
    confidence: float | None = None
    """The probability that the model gave its answer."""


class Task(ABC, Generic[Input, Output]):
    """A task. Its input and output records are dataclasses, the same in JSON lines and in Python."""

    name: ClassVar[str]
    """The value of `--task`."""
    architecture: ClassVar[str]
    """The equivalent class of transformers."""
    problem_types: ClassVar[tuple[str | None, ...]] = (None,)
    """The values of transformers' `problem_type` for this task, if several tasks share a class."""
    head_name: ClassVar[str]
    """The key of its head in `Albert.heads`."""
    head_learning_rate_factor: ClassVar[float] = 1.0
    """The learning rate of its head, relative to the encoder's."""
    has_fixed_depths: ClassVar[bool] = False
    """Whether its head reads the hidden states after certain passes, so that the number of passes cannot change."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: dict[str, Any]) -> Task[Input, Output]:
        """Rebuild the task from a config.json; `settings["options"]` is what `options` returned."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Entries of config.json for transformers."""

    def options(self) -> dict[str, Any]:
        """Entries of config.json for litebert only; JSON."""
        return {}

    def save_extra_files(self, folder: Path) -> None:
        """Write further files into the model folder."""

    def load_extra_files(self, folder: Path) -> None:
        """Read these files."""

    def head_depths(self, config: AlbertConfig) -> tuple[int, ...]:
        """The numbers of passes after which its head reads the hidden states."""
        return (config.num_hidden_layers,)

    @abstractmethod
    def head(self, config: AlbertConfig) -> nn.Module:
        """A new, untrained head."""

    @abstractmethod
    def parse(self, item: Any, where: str) -> Input:
        """The record of a user's input: a string, a pair, or a mapping of column names to values."""

    def items_of(self, path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
        """Position and content of each input in a file, labelled or not, for `parse`."""
        return ((row.where, row.values) for row in read_rows(path, options))

    @classmethod
    def input_files(cls, path: Path, options: TableOptions) -> list[Path]:
        """All files that are read for this one."""
        return [path]

    @abstractmethod
    def features(self, inputs: Sequence[Input], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        """One example per record, without target."""

    @abstractmethod
    def scores(self, model: Albert, batch: Batch) -> Scores:
        """The outputs of the head for a batch."""

    def graph_outputs(self, model: Albert, batch: Batch) -> Scores:
        """The outputs of an exported graph, by name."""
        return self.scores(model, batch)

    @abstractmethod
    def answer(self, record: Input, example: Example, scores: Scores) -> Output:
        """The answer to one record, from the scores of its sequences, on the CPU."""


class TrainableTask(Task[Input, Output]):
    """A task that is trained on labelled files."""

    metric: ClassVar[str]
    """The metric that selects the best model; higher is better."""
    min_epochs: ClassVar[int] = 3
    """The default number of epochs for large datasets."""
    needs_random_batches: ClassVar[bool] = False
    """Whether the loss compares the examples of a batch, which must then be random, not of similar length."""

    @property
    def needs_dropout(self) -> bool:
        """Whether its loss needs dropout to make two passes over a text differ."""
        return False

    def metric_for(self, inputs: Sequence[Input]) -> str:
        """The metric that selects the best model on these records."""
        return self.metric

    def initial_head(self, config: AlbertConfig, before: Mapping[str, nn.Module]) -> nn.Module:
        """The head before the first step; `before` are the model's heads."""
        return self.head(config)

    @classmethod
    @abstractmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[Input]:
        """The labelled records of a file."""

    @classmethod
    @abstractmethod
    def learn_from(
        cls, inputs: Sequence[Input], head: HeadKind = "linear", **options: Any
    ) -> TrainableTask[Input, Output]:
        """The task defined by these labelled records, such as by their labels."""

    @abstractmethod
    def training_examples(self, inputs: Sequence[Input], examples: Sequence[Example]) -> list[Example]:
        """Examples with targets, one per window if windows are independent. An unknown label is an error."""

    @abstractmethod
    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The scalar loss of a batch."""

    @abstractmethod
    def metrics(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> dict[str, float]:
        """The metrics of the answers; `metric` is among them."""

    def signatures(self, inputs: Sequence[Input]) -> dict[str, str]:
        """Signatures of the metrics, such as sacreBLEU's, for comparisons."""
        return {}

    def by_label(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> dict[str, dict[str, float]]:
        """Metrics for each label, if the task has labels."""
        return {}

    @abstractmethod
    def judge(self, record: Input, output: Output) -> Judgement:
        """Compare one answer with the truth, for the error report."""

    def check(self, inputs: Sequence[Input]) -> None:
        """Refuse records with unknown labels."""

    def remarks(self, inputs: Sequence[Input]) -> list[str]:
        """Remarks on these records for the user who trains on them."""
        return []

    @abstractmethod
    def baseline(self, inputs: Sequence[Input]) -> dict[str, float]:
        """Some metrics of a baseline that ignores the text, such as the majority class."""

    def constant_answer_loss(self, examples: Sequence[Example]) -> float | None:
        """The loss of the best constant prediction on these examples, None if unknown: a model whose loss stays there
        has collapsed."""
        return None

    def stratum(self, record: Input) -> str:
        """The stratum of a record for stratified splits."""
        return ""

    def tune(self, inputs: Sequence[Input], examples: Sequence[Example], scores: Sequence[Scores]) -> None:
        """Choose the task's thresholds, if any, on validation records."""

    def for_saving(self, head: nn.Module) -> tuple[TrainableTask[Input, Output], nn.Module]:
        """The task and its head as they are saved."""
        return self, head

    def group(self, record: Input) -> str | None:
        """Records of the same group, such as the questions about a passage, stay together in a split."""
        return None

    @abstractmethod
    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        """The mean symmetric Kullback-Leibler divergence of two sets of scores of one batch, for R-Drop and SMART."""


def hidden_states(encoder: Encoder, batch: Batch, rows: Tensor | None = None) -> Tensor:  # (S, L, H), or (R, H)
    """The hidden states of a batch, 0 at padding; or of R of its S * L tokens."""
    if batch.states is not None:
        last = batch.states[:, :, -1].to(encoder.word_embeddings.weight.dtype)  # (S, L, H)
        return last if rows is None else last.flatten(0, 1).index_select(0, rows)
    arguments: dict[str, Any] = {"attention_mask": batch.attention_mask, "token_type_ids": batch.token_type_ids,
                             "rows": rows, "tokens": batch.tokens}  # fmt: skip
    if batch.noise is None:
        return encoder(batch.input_ids, **arguments)
    return encoder(inputs_embeds=encoder.word_embeddings(batch.input_ids) + batch.noise, **arguments)


def states_after(encoder: Encoder, batch: Batch, depths: Sequence[int]) -> Tensor:  # (S, L, P, H)
    """The hidden states of a batch after each of these numbers of passes; undefined at padding."""
    if batch.states is not None:
        return batch.states
    states = encoder.hidden_states_at(depths, batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return torch.stack(states, dim=-2)


def pooled_states(encoder: Encoder, batch: Batch) -> Tensor:  # (S, H)
    """The pooled vectors of a batch."""
    sequences, columns = batch.input_ids.shape
    first = columns * torch.arange(sequences, device=batch.input_ids.device)
    return encoder.pool(hidden_states(encoder, batch, first))


def sentence_vectors(model: Albert, batch: Batch, head_name: str = SentenceHead.name) -> Tensor:  # (S, D)
    """The sentence vectors of a batch, by the model's sentence head or, without one, the mean of the tokens."""
    head: Any = dict(model.heads.items()).get(head_name)
    vectors = _native_vectors(model.encoder, batch, head)
    if vectors is not None:
        return vectors
    if head is None:
        return pooled(hidden_states(model.encoder, batch), batch.input_ids, batch.real)
    return head(_mean_of_last_passes(model.encoder, batch, head.passes), batch.input_ids, batch.real)


def _native_vectors(encoder: Encoder, batch: Batch, head: SentenceHead | None) -> Tensor | None:  # (S, D)
    """By the native engine, if it is in use and supports the head."""
    backend = encoder.backend
    if not backend.has_fast_paths or batch.states is not None or batch.noise is not None:
        return None
    real = batch.real
    inputs = batch.input_ids[real], real.sum(1), batch.token_type_ids[real]
    if head is None:
        return backend.embed(encoder, *inputs, None, None)
    if not head.is_mean or has_hooks(head):
        return None
    vectors = backend.embed(encoder, *inputs, head.linear, head.tokens)
    return F.normalize(vectors, dim=1) if vectors is not None and head.of_length_one else vectors


def _mean_of_last_passes(encoder: Encoder, batch: Batch, passes: int) -> Tensor:  # (S, L, H)
    """The mean of the hidden states after each of the last passes."""
    if passes == 1:
        return hidden_states(encoder, batch)
    last = encoder.checked_depth(encoder.depth)
    depths = range(max(1, last + 1 - passes), last + 1)
    states = encoder.hidden_states_at(depths, batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return torch.stack(states).mean(0)


def mean_by_owner(scores: Tensor, batch: Batch) -> Tensor:  # (S, ...) -> (B, ...)
    """The mean over the sequences of each example."""
    if len(scores) == batch.examples:
        return scores
    counts = torch.zeros(batch.examples, dtype=scores.dtype, device=scores.device)
    counts = counts.index_add(0, batch.example_index, torch.ones_like(batch.example_index, dtype=scores.dtype))
    total = scores.new_zeros(batch.examples, *scores.shape[1:]).index_add(0, batch.example_index, scores)
    return total / counts.view(-1, *([1] * (scores.dim() - 1)))


def f1_scores(right: int, answered: int, true: int) -> dict[str, float]:
    """F1, precision and recall."""
    return {
        "f1": 2 * right / max(1, answered + true),
        "precision": right / max(1, answered),
        "recall": right / max(1, true),
    }


def f1_by_label(right: Counter[str], answered: Counter[str], true: Counter[str]) -> dict[str, dict[str, float]]:
    """F1, precision, recall and number of examples for every label that occurs."""
    return {
        label: f1_scores(right[label], answered[label], true[label]) | {"examples": true[label]}
        for label in sorted({*answered, *true})
    }


def symmetric_divergence(left: Tensor, right: Tensor) -> Tensor:
    """(KL(p‖q) + KL(q‖p)) / 2 of the softmax of the rows, averaged over the rows."""
    p, q = left.float().log_softmax(-1), right.float().log_softmax(-1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean() / 2


def saved_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`Task.options` as saved in config.json."""
    options = settings.get("options", {})
    return dict(options) if isinstance(options, Mapping) else {}
