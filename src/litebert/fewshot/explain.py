"""Which support examples speak for an answer of a few-shot classifier, and which against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litebert.data.batches import Batch
from litebert.fewshot.adapt import Adapted
from litebert.fewshot.feature_sets import readable_names
from litebert.fewshot.task import FewShot
from litebert.model import Albert
from litebert.tasks.base import Scores


@dataclass(frozen=True, slots=True)
class ExampleInfluence:
    """What one support example adds to the score of the predicted class."""

    text: str
    label: str
    weight: float
    is_name: bool
    """Whether it is the name of a class."""


class ExplainTask(FewShot):
    """The few-shot task, which returns the similarity to each example as well."""

    def __init__(self, task: FewShot) -> None:
        super().__init__(task.labels, task.levels, task.familiar, task.pairs)

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head: Any = model.heads[self.head_name].to(batch.input_ids.device)
        features = head.features(model.encoder, batch.input_ids, batch.real, batch.token_type_ids)
        similarities = head.similarities(*features)
        return {"scores": similarities @ head.weights, "similarities": similarities}


def influential_examples(model: Adapted, label: str, scores: Scores, most: int = 10) -> list[ExampleInfluence]:
    """The examples with the largest influence on the score of a label, from the scores of `ExplainTask`."""
    head: Any = model.albert.heads[FewShot.head_name]
    influence = scores["similarities"].mean(0).cpu() * head.weights[:, model.labels.index(label)].cpu()  # (N,)
    largest = influence.abs().argsort(descending=True)[:most]
    examples = [(record.shown, str(record.label), False) for record in model.support.records]
    if model.evidence.label_names:
        wanted = model.support.label_names if model.tuning is None else model.tuning.label_names
        names = readable_names(model.labels, wanted)
        examples += [(name, model.labels[number], True) for number, name in names.items()]
    return [
        ExampleInfluence(text, label, float(influence[place]), is_name)
        for place in largest.tolist() for text, label, is_name in [examples[place]]
    ]  # fmt: skip
