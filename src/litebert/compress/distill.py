"""A smaller model that answers as a larger one does: student and teacher.

Shapes: S sequences of L columns, H hidden (of the teacher, or of the student).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.errors import ConfigError
from litebert.model import Albert, AlbertConfig
from litebert.predict import Adapted, Model
from litebert.tasks import Task, TrainableTask
from litebert.tasks.answer import Answer
from litebert.tasks.base import Scores, hidden_of


def student_of(teacher: Model, start: Model, passes: int) -> Model:
    """The model that is to learn, as it begins: `start` with so many passes, and a head for the teacher's task.

    A layer that all passes share needs no other weights to run fewer times. The head begins as the teacher's, as far as
    it fits. Another model that learns from a pre-trained one loses its own heads, which read other states than it will
    have, and is a bare encoder.
    """
    if isinstance(teacher, Adapted) or isinstance(start, Adapted):
        raise ConfigError("an adapted model keeps its examples and learns no further; fine-tune one, and distill that")
    if start.tokenizer.fingerprint != teacher.tokenizer.fingerprint:
        raise ConfigError("student and teacher must read the same tokens; begin with a model of the same vocabulary")
    task, shape = teacher.task, start.config
    if isinstance(task, Answer) and task.head_kind != "linear":
        raise ConfigError("a joint head needs the true start of an answer to learn; teach the teacher a linear one")
    shared = shape.sharing == "all" and shape.num_hidden_groups == 1
    changes = not (shape.depth_embedding or shape.lora_rank) and shared
    if passes != shape.num_hidden_layers and not changes:
        raise ConfigError(
            f"passes={passes}: only one layer that is shared by all passes can run another number of times, and this "
            f"student has {shape.num_hidden_layers}; leave it out"
        )
    shape = replace(shape, num_hidden_layers=passes)
    if start is not teacher and not isinstance(task, TrainableTask):
        task = None
    albert = Albert(shape, {} if task is None else _heads(teacher, task, shape))
    albert.encoder.load_state_dict(start.encoder.state_dict())
    length = min(teacher.max_length, shape.max_position_embeddings)
    after = teacher.after if shape.hidden_size == teacher.config.hidden_size else None
    student = Model(albert, start.tokenizer, task, length, None if isinstance(task, TrainableTask) else after)
    student.source = start.source
    return student


def _heads(teacher: Model, task: Task[Any, Any], shape: AlbertConfig) -> dict[str, nn.Module]:
    """The teacher's; for a taught task a new one, with what of the teacher's has the same shape."""
    if not isinstance(task, TrainableTask):
        return {name: copy.deepcopy(head) for name, head in teacher.albert.heads.items()}
    head = task.head(shape)
    own, theirs = head.state_dict(), teacher.albert.heads[task.head_name].state_dict()
    head.load_state_dict({name: theirs[name] if theirs[name].shape == own[name].shape else own[name] for name in own})
    return {task.head_name: head}


class Distiller(nn.Module):
    """What learns: the student, and where it is narrower a map of its hidden states to the teacher's."""

    def __init__(self, student: Model, teacher: Model) -> None:
        super().__init__()
        self.student = student.albert
        self.bridge: nn.Module = nn.Identity()
        sizes = student.config.hidden_size, teacher.config.hidden_size
        if sizes[0] != sizes[1]:
            self.bridge = nn.Linear(*sizes)
        self.task = student.task if isinstance(student.task, TrainableTask) else None
        self._teacher = [teacher.albert]  # in a list, so that it is no part of this and learns nothing

    def forward(self, batch: Batch, passes: int | None = None) -> dict[str, Tensor]:
        """How far the student, after so many passes or all of its own, is from the teacher in what its head says, and
        in the states that the head reads, as a share of their length, squared."""
        with torch.no_grad():
            true_scores, true_states = self._read(self._teacher[0].eval(), batch)
        scores, states = self._read(self.student, batch, passes)
        off = self.bridge(states).float() - true_states.float()
        found = {"states": off.square().sum() / true_states.float().square().sum()}
        if self.task is not None:
            found["answers"] = self.task.divergence(scores, true_scores, batch)
        return {"loss": torch.stack(list(found.values())).sum()} | found

    def _read(self, albert: Albert, batch: Batch, passes: int | None = None) -> tuple[Scores, Tensor]:
        """What the head says, and what the encoder gave it: the states of [CLS], or those of all tokens."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, __: Any, states: Tensor) -> None:
            seen.append(states)

        hook = albert.encoder.register_forward_hook(keep)
        albert.encoder.depth = passes
        try:
            if self.task is not None:
                return self.task.scores(albert, batch), seen[0]
            return {}, hidden_of(albert.encoder, batch)
        finally:
            hook.remove()
            albert.encoder.depth = None
