"""Which examples spoke for an answer of an adapted model, and which against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litebert.data.batches import Batch
from litebert.fewshot.adapt import Adapted
from litebert.fewshot.feature_sets import readable
from litebert.fewshot.task import FewShot
from litebert.model import Albert
from litebert.tasks.base import Scores


@dataclass(frozen=True, slots=True)
class Reason:
    """What one example adds to the score of the class that was chosen; below 0, it takes away."""

    text: str
    label: str
    weight: float
    is_name: bool
    """Is it the name of a class, which counts as an example too?"""


class Explaining(FewShot):
    """The few-shot task, which says how alike the examples are too."""

    def __init__(self, task: FewShot) -> None:
        super().__init__(task.labels, task.levels, task.familiar, task.pairs)

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head: Any = model.heads[self.head_name].to(batch.input_ids.device)
        alike = head.alike(*head.read(model.encoder, batch.input_ids, batch.real, batch.token_type_ids))
        return {"scores": alike @ head.weights, "alike": alike}


def explaining(model: Adapted) -> Explaining:
    assert isinstance(model.task, FewShot)
    return Explaining(model.task)


def reasons_of(model: Adapted, label: str, scores: Scores, most: int = 10) -> list[Reason]:
    """From what `Explaining` said of a text: the examples that weigh most for its label, or against it."""
    head: Any = model.albert.heads[FewShot.head_name]
    weights = scores["alike"].mean(0).cpu() * head.weights[:, model.labels.index(label)].cpu()  # (N,)
    heaviest = weights.abs().argsort(descending=True)[:most]
    examples = [(record.shown, str(record.label), False) for record in model.given.records]
    if model.evidence.label_names:
        wanted = model.given.label_names if model.tuning is None else model.tuning.label_names
        named = readable(model.labels, wanted)
        examples += [(name, model.labels[number], True) for number, name in named.items()]
    return [
        Reason(text, label, float(weights[place]), is_name)
        for place in heaviest.tolist() for text, label, is_name in [examples[place]]
    ]  # fmt: skip
