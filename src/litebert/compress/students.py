"""A smaller model that answers as a larger one does: student and teacher.

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

from litebert.compress.teachers import Foreign
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

FITTED = 2048
"""Texts by which the map to a teacher's vectors begins."""
RIDGE = 1e-3
"""How strongly it is kept small, relative to what the texts say."""
HIDDEN = 0.15
"""Of the words, for a student that learns to guess them."""


def student_of(teacher: Model, start: Model, passes: int) -> Model:
    """The model that is to learn, as it begins: `start` with so many passes, and a head for the teacher's task.

    A layer that all passes share needs no other weights to run fewer times. The head begins as the teacher's, as far as
    it fits. Another model that learns from a pre-trained one keeps none but that for hidden words, if the teacher has
    it: it will have other states.
    """
    if isinstance(teacher, Adapted) or isinstance(start, Adapted):
        raise ConfigError("an adapted model keeps its examples and learns no further; fine-tune one, and distill that")
    task, shape = teacher.task, start.config
    if by_text(teacher, start) and isinstance(task, TrainableTask) and not isinstance(task, TextTask):
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
        task = Mask() if Mask.head_name in teacher.albert.heads and not by_text(teacher, start) else None
    albert = Albert(shape, {} if task is None else _heads(teacher, start, task, shape))
    albert.encoder.load_state_dict(start.encoder.state_dict())
    length = min(teacher.max_length, shape.max_position_embeddings)
    after = None if by_text(teacher, start) or shape.hidden_size != teacher.config.hidden_size else teacher.sentence_map
    student = Model(albert, start.tokenizer, task, length, None if isinstance(task, TrainableTask) else after)
    if (made := student.sentence_map) is not None and made.passes > passes:
        student.sentence_map = replace(made, passes=passes)  # it has no more of them
    student.source = start.source
    return student


def by_text(teacher: Model, student: Model) -> bool:
    """Can the two be compared in what they say of whole texts alone, since they do not read the same tokens?"""
    return isinstance(teacher, Foreign) or teacher.tokenizer.fingerprint != student.tokenizer.fingerprint


def _heads(teacher: Model, start: Model, task: Task[Any, Any], shape: AlbertConfig) -> dict[str, nn.Module]:
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
    """What learns: the student, and where it began with other weights a map of its hidden states to the teacher's."""

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
        guess = all(Mask.head_name in one.albert.heads for one in (student, teacher))
        self.hides = guess and isinstance(self.bridge, nn.Linear)
        """Does the student learn to guess words, and need texts in which some are hidden? The teacher's own head, on
        the same states, needs no teaching."""
        self._teacher = [teacher.albert]  # in a list, so that it is no part of this and learns nothing

    def forward(self, batch: Batch, passes: int | None = None) -> dict[str, Tensor]:
        """How far the student, after so many passes or all of its own, is from the teacher in what its head says, and
        in the states that the head reads, as a share of their length, squared."""
        with torch.no_grad():
            true_scores, true_states = self._read(self._teacher[0].eval(), batch)
        scores, states = self._read(self.student, batch, passes)
        off = self.bridge(states).float() - true_states.float()
        if off.dim() == 3:
            off = off * batch.real[..., None]  # of padding, which is 0, the map makes something
        found = {"states": off.square().sum() / true_states.float().square().sum()}
        if self.task is not None:
            found["answers"] = self.task.divergence(scores, true_scores, batch)
        elif self.hides:
            found["answers"] = symmetric_divergence(scores["words"], true_scores["words"])
        return {"loss": torch.stack(list(found.values())).sum()} | found

    @property
    def sentence_map(self) -> SentenceMap | None:
        """What the student's means of states go through to be the teacher's vectors."""
        known, bridge = self._after, self.bridge
        if not isinstance(bridge, nn.Linear):
            return known
        weight, bias = _arrays(bridge)
        if known is None:
            return SentenceMap(weight, bias)
        return replace(known, weight=known.weight @ weight, bias=known.weight @ bias + known.bias)

    @torch.no_grad()
    def fit_map(self, batches: Sequence[Batch]) -> None:
        """Let the map begin where it takes the student's states of these texts nearest to the teacher's."""
        if not isinstance(self.bridge, nn.Linear):
            return
        square = cross = torch.zeros((), dtype=torch.double)
        for batch in batches:
            both = [
                self._read(albert.eval(), batch)[1].flatten(0, -2).double()
                for albert in (self.student, self._teacher[0])
            ]
            real = both[1].any(1)  # what is padded is 0
            own, wanted = (one[real].cpu() for one in both)
            square, cross = square + _ones_beside(own).T @ _ones_beside(own), cross + _ones_beside(own).T @ wanted
        _set_solution(self.bridge, square, cross)
        self.student.train()

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
            states = hidden_states(albert.encoder, batch)
            if not self.hides:
                return {}, states
            head, table = albert.heads[Mask.head_name], albert.encoder.word_embeddings.weight
            return {"words": head(states[batch.input_ids == self.mask_id], table)}, states  # (M, V)
        finally:
            hook.remove()
            albert.encoder.depth = None


def with_hidden_words(batch: Batch, tokenizer: Tokenizer, random: np.random.Generator) -> Batch:
    """The batch with some of its words hidden, one at least."""
    frame = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    chance = torch.from_numpy(random.random(batch.input_ids.shape))
    chance = chance.masked_fill(torch.isin(batch.input_ids, frame), 1.0)
    hidden = chance <= chance.min().clamp_min(HIDDEN)
    return replace(batch, input_ids=batch.input_ids.masked_fill(hidden, tokenizer.mask_id))


class TextDistiller(nn.Module):
    """The same from what a teacher that reads other tokens says of whole texts, which stands in their targets: its
    scores, or its vectors, which the student's are mapped to."""

    def __init__(self, student: Model, examples: Sequence[Example]) -> None:
        super().__init__()
        self.student = student.albert
        self.task = student.task if isinstance(student.task, TextTask) else None
        if self.task is None:
            self.bridge = _fitted(student, examples[:FITTED])

    @property
    def sentence_map(self) -> SentenceMap | None:
        """What the student's vectors go through to be the teacher's."""
        if self.task is not None:
            return None
        return SentenceMap(*_arrays(self.bridge))

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


def said_of_texts(teacher: Model, examples: Sequence[Example]) -> np.ndarray:  # (N, D)
    """What it says of each text: the mean of its scores over the windows, or the vector that `embed` gives."""
    if isinstance(teacher.task, TextTask):
        found = teacher.score_examples(teacher.task, examples)
        return np.stack([one["scores"].mean(0).numpy() for one in found])
    return teacher.embed_examples(examples)


@torch.no_grad()
def read_through(student: Model, bridge: nn.Linear) -> None:
    """Let the student's copy of its teacher's head read states as the map makes them."""
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
def _fitted(student: Model, examples: Sequence[Example]) -> nn.Linear:
    """The linear map that takes the student's vectors of these texts, as it begins, nearest to the teacher's."""
    own = _ones_beside(torch.from_numpy(student.embed_examples(examples)).double())  # (N, H + 1)
    wanted = torch.from_numpy(np.stack([one.target for one in examples])).double()
    bridge = nn.Linear(own.shape[1] - 1, wanted.shape[1])
    _set_solution(bridge, own.T @ own, own.T @ wanted)
    return bridge


def _ones_beside(rows: Tensor) -> Tensor:  # (N, H + 1)
    return F.pad(rows, (0, 1), value=1.0)


def _set_solution(bridge: nn.Linear, square: Tensor, cross: Tensor) -> None:
    """Least squares, from sums over rows; near the identity where nothing speaks against it."""
    start = torch.eye(*cross.shape, dtype=torch.double)
    if len(cross) != cross.shape[1] + 1:
        start.zero_()
    pull = RIDGE * square.trace() / len(square) * torch.eye(len(square)).double()
    found = start + torch.linalg.solve(square + pull, cross - square @ start)  # (H + 1, D)
    bridge.weight.copy_(found[:-1].T)
    bridge.bias.copy_(found[-1])


def _arrays(bridge: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    weight, bias = (one.detach().cpu().float().numpy() for one in (bridge.weight, bridge.bias))
    return weight, bias
