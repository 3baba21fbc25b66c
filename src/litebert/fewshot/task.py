"""Which class is this text, by a handful of examples that were read and not trained on?"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from litebert.data.batches import Batch, Example
from litebert.fewshot.head import PIECES, SHARED, View, letters_of, means_of, pieces_of
from litebert.model import Albert
from litebert.tasks.base import Scores
from litebert.tasks.classify import Classify, ClassifyOutput
from litebert.tasks.text import TextInput

STRANGE = 0.95
"""From here on a text is like none of the examples; nineteen of them are needed for anything to be that strange."""


FEW = 5
"""Examples of a class after which its own level counts as much as everybody's."""


@dataclass(frozen=True, slots=True)
class FewShotOutput(ClassifyOutput):
    """The likeliest class, and whether the text is like anything in the examples at all."""

    unknown: float
    """How many of the examples, left out, look more familiar than this text: near 1, nothing like it has been seen."""
    is_unknown: bool
    """True for one in twenty texts that are like the examples."""


class FewShot(Classify):
    """Classes by examples; the head comes from an equation (`evidence.py`)."""

    name = "few-shot"
    head_name = "few_shot"
    own_depths = True

    def __init__(
        self,
        labels: Sequence[str],
        levels: Sequence[float] = (),
        familiar: Sequence[float] = (),
        pairs: bool | None = False,
    ) -> None:
        super().__init__(labels, pairs=pairs)
        self.levels = list(levels)
        """What a text of each class usually scores there."""
        self.familiar = sorted(familiar)
        """How familiar the examples look to what was solved without them."""

    @classmethod
    def learn_labels(cls, records: Sequence[TextInput]) -> FewShot:
        """The classes of these records, about which nothing else is known yet."""
        task = Classify.learn_from(records)
        return cls(task.labels, pairs=task.pairs)

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head: Any = model.heads[self.head_name].to(batch.input_ids.device)  # the encoder may have moved without it
        return {"scores": head(*head.read(model.encoder, batch.input_ids, batch.real, batch.token_type_ids))}

    def graph_outputs(self, model: Albert, batch: Batch) -> Scores:
        """The scores, and what `answer` makes of them for texts of one window."""
        scores = self.scores(model, batch)["scores"]  # (S, C)
        found = {"scores": scores, "probabilities": scores.softmax(1), "unknown": torch.zeros(scores.shape[0])}
        if self.familiar:
            here = (scores / torch.tensor(self.levels)).amax(1, keepdim=True)
            as_strange = (torch.tensor(self.familiar) <= here).sum(1)
            found["unknown"] = 1 - (1 + as_strange) / (1 + len(self.familiar))
        return found

    def answer(self, record: TextInput, example: Example, scores: Scores) -> FewShotOutput:
        plain = super().answer(record, example, scores)
        likely = 1.0
        if self.familiar:
            here = familiarity(scores["scores"].float().mean(0).numpy()[None], self.levels)[0]
            likely = (1 + bisect_right(self.familiar, here)) / (1 + len(self.familiar))
        unknown = 1 - likely
        return FewShotOutput(plain.label, plain.probability, plain.probabilities, unknown, unknown >= STRANGE - 1e-9)


def familiarity(scores: np.ndarray, levels: Sequence[float]) -> np.ndarray:  # (N, C) -> (N,)
    """How near a text comes to what is usual in the class that it comes nearest to."""
    found: np.ndarray = (scores / np.asarray(levels)).max(1)
    return found


def levels_of(scores: np.ndarray, truth: np.ndarray, sizes: np.ndarray) -> list[float]:
    """The mean own score of each class among (M, C) scores of examples left out; of small classes rather what all have,
    in proportion to what they were told to reach, which is more the fewer they are."""
    target = sizes.mean() / sizes
    own = scores[np.arange(len(truth)), truth] / target[truth]
    total, count = np.bincount(truth, own, len(sizes)), np.bincount(truth, minlength=len(sizes))
    usual = max(1e-6, own.mean())
    found = (total + FEW * usual) / (count + FEW) * target
    return np.maximum(found, 1e-6).tolist()


class Reading(FewShot):
    """Reads texts for `FewShot` from all sides, before anybody knows which of them matter."""

    def __init__(
        self,
        depths: Sequence[int],
        pairs: bool,
        frequency: Tensor,
        spelling: Tensor,
        surprise: Tensor,
        means_alone: bool,
    ) -> None:
        """`spelling` and `surprise` of runs of characters: see `fewshot/head.py`."""
        super().__init__(["no", "class"], pairs=pairs)
        self.depths, self.views, self.pieces = depths, views_of(pairs), pieces_for(pairs)
        self.frequency, self.spelling, self.surprise, self.means_alone = frequency, spelling, surprise, means_alone

    def scores(self, model: Albert, batch: Batch) -> Scores:
        given = batch.input_ids, batch.real
        tables = self.frequency, self.spelling, self.surprise
        frequency, spelling, surprise = (table.to(batch.input_ids.device) for table in tables)
        found = {"means": means_of(model.encoder, self.depths, self.views, frequency, *given, batch.token_type_ids)}
        if not self.means_alone:
            found["tokens"] = pieces_of(*given, batch.token_type_ids, frequency, self.pieces)
        if not self.means_alone and not self.pairs:
            found["letters"] = letters_of(*given, spelling, surprise)
        return found


def views_of(pairs: bool) -> tuple[View, ...]:
    """All that there are."""
    return ("whole", "apart") if pairs else ("whole",)


def pieces_for(pairs: bool) -> int:
    return SHARED if pairs else PIECES
