"""Which class is this text, by a handful of examples that were read and not trained on?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litebert.data.batches import Batch, Example
from litebert.model import Albert
from litebert.model.few_shot import means_of, tokens_of
from litebert.tasks.base import Scores
from litebert.tasks.classify import Classify, ClassifyOutput
from litebert.tasks.text import TextInput

STRANGE = 0.95
"""A text that is less familiar than this share of the examples is like none of them."""


@dataclass(frozen=True, slots=True)
class FewShotOutput(ClassifyOutput):
    """The likeliest class, and whether the text is like anything in the examples at all."""

    unknown: float
    """The share of the examples that are more like the others than this text is."""
    is_unknown: bool
    """True for one in twenty texts of the known classes, and for most others."""


class FewShot(Classify):
    """Classes by examples; the head comes from an equation (`evidence.py`)."""

    name = "few-shot"
    head_name = "few_shot"

    def __init__(self, labels: Sequence[str], familiar: Sequence[float]) -> None:
        super().__init__(labels, pairs=False)
        self.familiar = sorted(familiar)
        """The highest score of each example by what was solved without it."""

    @classmethod
    def learn_labels(cls, records: Sequence[TextInput]) -> FewShot:
        """The classes of these records, about which nothing else is known yet."""
        return cls(Classify.learn_from(records).labels, [])

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head: Any = model.heads[self.head_name]
        return {"scores": head(*head.read(model.encoder, batch.input_ids, batch.real, batch.token_type_ids))}

    def answer(self, record: TextInput, example: Example, scores: Scores) -> FewShotOutput:
        plain = super().answer(record, example, scores)
        best = float(scores["scores"].float().mean(0).max())
        unknown = 1 - bisect_left(self.familiar, best) / max(1, len(self.familiar))
        return FewShotOutput(plain.label, plain.probability, plain.probabilities, unknown, unknown >= STRANGE)


class Reading(FewShot):
    """Reads texts for `FewShot` from all sides, before anybody knows which of them matter."""

    def __init__(self, depths: Sequence[int], frequency: Any) -> None:
        super().__init__(["", " "], [])
        self.depths, self.frequency = depths, frequency

    def scores(self, model: Albert, batch: Batch) -> Scores:
        given = batch.input_ids, batch.real
        frequency = self.frequency.to(batch.input_ids.device)
        means = means_of(model.encoder, self.depths, frequency, *given, batch.token_type_ids)
        return {"means": means, "tokens": tokens_of(*given, frequency)}
