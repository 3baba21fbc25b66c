"""Knowledge distillation: students, and losses against their teachers.

Shapes: N texts, S sequences of L columns, M hidden words, V vocabulary, H hidden (of the teacher, or of the student),
D of what a teacher says of a whole text.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.compress.teachers import TransformersTeacher
from litebert.data.batches import Batch, Example
from litebert.errors import ConfigError
from litebert.fewshot import Adapted
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig
from litebert.model.sentence_head import SentenceMap, weighted_mean
from litebert.tasks import Mask, Task, TrainableTask
from litebert.tasks.answer import Answer
from litebert.tasks.base import Scores, hidden_states, symmetric_divergence
from litebert.tasks.choose import Choose
from litebert.tasks.tag import Tag
from litebert.tasks.text import TextTask
from litebert.tokenizer import Tokenizer

MAP_FIT_TEXTS = 2048
"""Texts that the initial map to a teacher's vectors is fitted on."""
RIDGE_PENALTY = 1e-3
"""Ridge penalty of that fit, relative to the data."""
MASK_RATE = 0.15
"""Fraction of tokens that are masked for the masked-LM loss."""


def make_student(teacher: Model, start: Model, passes: int) -> Model:
    """The model that is to learn, as it begins: `start` with so many passes, and a head for the teacher's task.

    A layer that all passes share needs no other weights to run fewer times. The head begins as the teacher's, as far as
    it fits. Another model that learns from a pre-trained one keeps none but that for hidden words, if the teacher has
    it: it will have other states.
    """
    if isinstance(teacher, Adapted) or isinstance(start, Adapted):
        raise ConfigError("an adapted model keeps its examples and learns no further; fine-tune one, and distill that")
    task, shape = teacher.task, start.config
    if compares_texts_only(teacher, start) and isinstance(task, TrainableTask) and not isinstance(task, TextTask):
        raise ConfigError(
            f"{task.name} is about single tokens, so student and teacher must read the same; begin with a model of the "
            "same vocabulary"
        )
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
        task = Mask() if Mask.head_name in teacher.albert.heads and not compares_texts_only(teacher, start) else None
    albert = Albert(shape, {} if task is None else _student_heads(teacher, start, task, shape))
    albert.encoder.load_state_dict(start.encoder.state_dict())
    length = min(teacher.max_length, shape.max_position_embeddings)
    after = (
        None
        if compares_texts_only(teacher, start) or shape.hidden_size != teacher.config.hidden_size
        else teacher.sentence_map
    )
    student = Model(albert, start.tokenizer, task, length, None if isinstance(task, TrainableTask) else after)
    if (made := student.sentence_map) is not None and made.passes > passes:
        student.sentence_map = replace(made, passes=passes)  # it has no more of them
    student.source = start.source
    return student


def compares_texts_only(teacher: Model, student: Model) -> bool:
    """Must student and teacher be compared by outputs for whole texts, because their tokens differ?"""
    return isinstance(teacher, TransformersTeacher) or teacher.tokenizer.fingerprint != student.tokenizer.fingerprint


def _student_heads(teacher: Model, start: Model, task: Task[Any, Any], shape: AlbertConfig) -> dict[str, nn.Module]:
    """The teacher's; for a taught task, or another model, a new one, with what has the same shape of one that knows."""
    theirs = teacher.albert.heads
    if start is teacher and not isinstance(task, TrainableTask):
        return {name: copy.deepcopy(head) for name, head in theirs.items()}
    if isinstance(task, Mask) and task.head_name in start.albert.heads:
        theirs = start.albert.heads
    head = task.head(shape)
    if task.head_name in theirs:
        own, known = head.state_dict(), theirs[task.head_name].state_dict()
        fits = {name for name in own if name in known and known[name].shape == own[name].shape}
        head.load_state_dict({name: known[name] if name in fits else own[name] for name in own})
    return {task.head_name: head}


class Distiller(nn.Module):
    """The trained module: the student and, if its weights are its own, a linear map of its hidden states to the
    teacher's."""

    def __init__(self, student: Model, teacher: Model, mapped: bool = False) -> None:
        super().__init__()
        self.student = student.albert
        self.bridge: nn.Module = nn.Identity()
        sizes = student.config.hidden_size, teacher.config.hidden_size
        if mapped or sizes[0] != sizes[1]:
            self.bridge = nn.Linear(*sizes)
        self._after = teacher.sentence_map
        self.task = student.task if isinstance(student.task, TrainableTask) else None
        self.mask_id = student.tokenizer.mask_id
        guess = all(Mask.head_name in model.albert.heads for model in (student, teacher))
        self.hides = guess and isinstance(self.bridge, nn.Linear)
        """Does the student learn to guess words, and need texts in which some are hidden? The teacher's own head, on
        the same states, needs no teaching."""
        self._teacher = [teacher.albert]  # in a list, so that it is no part of this and learns nothing

    def forward(self, batch: Batch, passes: int | None = None) -> dict[str, Tensor]:
        """Losses against the teacher: divergence of the head's outputs, and relative squared error of the hidden states
        that the head reads."""
        with torch.no_grad():
            true_scores, true_states = self._read(self._teacher[0].eval(), batch)
        scores, states = self._read(self.student, batch, passes)
        error = self.bridge(states).float() - true_states.float()
        if error.dim() == 3:
            error = error * batch.real[..., None]  # of padding, which is 0, the map makes something
        losses = {"states": error.square().sum() / true_states.float().square().sum()}
        if self.task is not None:
            losses["answers"] = self.task.divergence(scores, true_scores, batch)
        elif self.hides:
            losses["answers"] = symmetric_divergence(scores["words"], true_scores["words"])
        return {"loss": torch.stack(list(losses.values())).sum()} | losses

    @property
    def sentence_map(self) -> SentenceMap | None:
        """The map from the student's mean-pooled states to the teacher's vectors."""
        known, bridge = self._after, self.bridge
        if not isinstance(bridge, nn.Linear):
            return known
        weight, bias = _weight_and_bias(bridge)
        if known is None:
            return SentenceMap(weight, bias)
        return replace(known, weight=known.weight @ weight, bias=known.weight @ bias + known.bias)

    @torch.no_grad()
    def fit_map(self, batches: Sequence[Batch]) -> None:
        """Initialize the map by least squares on these texts."""
        if not isinstance(self.bridge, nn.Linear):
            return
        square = cross = torch.zeros((), dtype=torch.double)
        for batch in batches:
            both = [
                self._read(albert.eval(), batch)[1].flatten(0, -2).double()
                for albert in (self.student, self._teacher[0])
            ]
            real = both[1].any(1)  # what is padded is 0
            own, wanted = (states[real].cpu() for states in both)
            square, cross = square + _append_ones(own).T @ _append_ones(own), cross + _append_ones(own).T @ wanted
        _solve_ridge(self.bridge, square, cross)
        self.student.train()

    def _read(self, albert: Albert, batch: Batch, passes: int | None = None) -> tuple[Scores, Tensor]:
        """The outputs of the head, and the hidden states that it reads."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, __: Any, states: Tensor) -> None:
            seen.append(states)

        hook = albert.encoder.register_forward_hook(keep)
        albert.encoder.depth = passes
        try:
            if self.task is not None:
                return self.task.scores(albert, batch), seen[0]
            states = hidden_states(albert.encoder, batch)
            if not self.hides:
                return {}, states
            head, table = albert.heads[Mask.head_name], albert.encoder.word_embeddings.weight
            return {"words": head(states[batch.input_ids == self.mask_id], table)}, states  # (M, V)
        finally:
            hook.remove()
            albert.encoder.depth = None


def mask_tokens(batch: Batch, tokenizer: Tokenizer, random: np.random.Generator) -> Batch:
    """The batch with a random fraction of its tokens masked, at least one."""
    frame = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    chance = torch.from_numpy(random.random(batch.input_ids.shape))
    chance = chance.masked_fill(torch.isin(batch.input_ids, frame), 1.0)
    hidden = chance <= chance.min().clamp_min(MASK_RATE)
    return replace(batch, input_ids=batch.input_ids.masked_fill(hidden, tokenizer.mask_id))


class TextDistiller(nn.Module):
    """Distillation from a teacher with another tokenizer: the targets are its scores or vectors for whole texts."""

    def __init__(self, student: Model, examples: Sequence[Example]) -> None:
        super().__init__()
        self.student = student.albert
        self.task = student.task if isinstance(student.task, TextTask) else None
        if self.task is None:
            self.bridge = _fit_text_map(student, examples[:MAP_FIT_TEXTS])

    @property
    def sentence_map(self) -> SentenceMap | None:
        """The map from the student's vectors to the teacher's."""
        if self.task is not None:
            return None
        return SentenceMap(*_weight_and_bias(self.bridge))

    def forward(self, batch: Batch, passes: int | None = None) -> dict[str, Tensor]:
        assert batch.targets is not None
        encoder, wanted = self.student.encoder, batch.targets.float()  # (N, D)
        encoder.depth = passes
        try:
            if self.task is not None:
                answers = self.task.divergence(self.task.scores(self.student, batch), {"scores": wanted}, batch)
                return {"loss": answers, "answers": answers.detach()}
            means = weighted_mean(hidden_states(encoder, batch), batch.real.float())
        finally:
            encoder.depth = None
        vectors = (self.bridge(means).float() - wanted).square().sum() / wanted.square().sum()
        return {"loss": vectors, "vectors": vectors.detach()}


def teacher_targets(teacher: Model, examples: Sequence[Example]) -> np.ndarray:  # (N, D)
    """The teacher's output for each text: mean scores over its windows, or the vector that `embed` returns."""
    if isinstance(teacher.task, TextTask):
        scores = teacher.score_examples(teacher.task, examples)
        return np.stack([text_scores["scores"].mean(0).numpy() for text_scores in scores])
    return teacher.embed_examples(examples)


@torch.no_grad()
def fold_map_into_head(student: Model, bridge: nn.Linear) -> None:
    """Fold the map into the student's copy of its teacher's head."""
    task = student.task
    readers: list[Any] = []
    if isinstance(task, TextTask | Choose):
        readers = [student.encoder.pooler]
    elif isinstance(task, Tag | Answer):
        readers = [student.albert.heads[task.head_name].linear]
    for linear in readers:
        linear.bias += linear.weight @ bridge.bias
        linear.weight.copy_(linear.weight @ bridge.weight)


@torch.no_grad()
def _fit_text_map(student: Model, examples: Sequence[Example]) -> nn.Linear:
    """The least-squares map from the student's initial vectors of these texts to the teacher's."""
    own = _append_ones(torch.from_numpy(student.embed_examples(examples)).double())  # (N, H + 1)
    wanted = torch.from_numpy(np.stack([example.target for example in examples])).double()
    bridge = nn.Linear(own.shape[1] - 1, wanted.shape[1])
    _solve_ridge(bridge, own.T @ own, own.T @ wanted)
    return bridge


def _append_ones(rows: Tensor) -> Tensor:  # (N, H + 1)
    return F.pad(rows, (0, 1), value=1.0)


def _solve_ridge(bridge: nn.Linear, square: Tensor, cross: Tensor) -> None:
    """Ridge regression towards the identity, from sums over rows."""
    start = torch.eye(*cross.shape, dtype=torch.double)
    if len(cross) != cross.shape[1] + 1:
        start.zero_()
    penalty = RIDGE_PENALTY * square.trace() / len(square) * torch.eye(len(square)).double()
    solution = start + torch.linalg.solve(square + penalty, cross - square @ start)  # (H + 1, D)
    bridge.weight.copy_(solution[:-1].T)
    bridge.bias.copy_(solution[-1])


def _weight_and_bias(bridge: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    weight, bias = (parameter.detach().cpu().float().numpy() for parameter in (bridge.weight, bridge.bias))
    return weight, bias
