"""What a task is: the owner of its records, features, head, loss, metric and decoding.

Nothing else knows which task runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.model import Albert, AlbertConfig
from litebert.tokenizer import Encoding, Tokenizer

Input = TypeVar("Input")
Output = TypeVar("Output")


class Task(ABC, Generic[Input, Output]):
    """One kind of question. Its input and output records are dataclasses, the same in JSON lines and in Python."""

    name: ClassVar[str]
    """What `--task` calls it."""
    architecture: ClassVar[str]
    """The transformers class that computes the same."""
    head_name: ClassVar[str]
    """Where its head stands in `Albert.heads`."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: dict[str, Any]) -> Task[Input, Output]:
        """Rebuild the task from the config.json of a model folder."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What config.json must say to rebuild this task."""

    @abstractmethod
    def head(self, config: AlbertConfig) -> nn.Module:
        """A new head, untrained."""

    @abstractmethod
    def parse(self, item: Any, where: str) -> Input:
        """A record from what a user gives: a string, a pair, or a mapping with the columns' names."""

    @abstractmethod
    def encode(self, inputs: Sequence[Input], tokenizer: Tokenizer, max_length: int) -> list[Encoding]:
        """One encoding per record."""

    @abstractmethod
    def answer(self, model: Albert, batch: Batch, inputs: Sequence[Input], tokenizer: Tokenizer) -> list[Output]:
        """One answer per record of a batch."""


class TrainableTask(Task[Input, Output]):
    """A task that learns from labelled files."""

    @classmethod
    @abstractmethod
    def learn_from(cls, inputs: Sequence[Input]) -> TrainableTask[Input, Output]:
        """The task that these labelled records define (their label set, say)."""

    @classmethod
    @abstractmethod
    def read(cls, path: Path) -> list[Input]:
        """The labelled records of a file."""

    @abstractmethod
    def targets(self, inputs: Sequence[Input]) -> Tensor:
        """What the loss compares the scores with; a label the task has not learned is an error."""

    @abstractmethod
    def scores(self, model: Albert, batch: Batch) -> Tensor:
        """What the head says of a batch; the first dimension is the batch."""

    @abstractmethod
    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """One number to make smaller."""

    @abstractmethod
    def metrics(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> dict[str, float]:
        """How right the answers are. The first is the one that decides between models."""
