"""Semantic similarity with a bi-encoder: each text has a vector, and the cosine of two is the score.

Shapes: B examples, S sequences, D of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import Batch, Example
from litebert.data.tables import TableOptions
from litebert.errors import CheckpointError, ConfigError, DataError, require_extra
from litebert.measure.retrieval import NDCG_CUTOFF, retrieval_scores
from litebert.model import Albert, AlbertConfig, HeadKind
from litebert.model.sentence_head import Pooling, SentenceHead, SentenceMap, unit
from litebert.tasks.base import Judgement, Scores, TrainableTask, saved_options, sentence_vectors
from litebert.tasks.similarity_files import Kind, SimilarInput, kind_of, parse_similar, read_similar
from litebert.tasks.similarity_losses import SCALE, cosent, multiple_negatives_ranking, supervised_contrastive
from litebert.tokenizer import Tokenizer

Loss = Literal["auto", "cosent", "negatives", "contrast", "simcse"]
LOSSES: dict[Kind, tuple[Loss, ...]] = {
    "scored": ("cosent", "simcse"),
    "labelled": ("cosent", "negatives", "simcse"),
    "positives": ("negatives", "simcse"),
    "classes": ("contrast", "simcse"),
    "plain": ("simcse",),
}
"""The losses for each kind of file; the first is the default."""
NO_TEXT = -1
"""The padding of text numbers."""
METRICS: dict[Kind, str] = {
    "scored": "spearman", "labelled": "accuracy", "positives": f"ndcg@{NDCG_CUTOFF}", "classes": "map",
    "plain": "spread",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimilarOutput:
    """The similarity of the two texts."""

    score: float
    """The cosine of their vectors; 1 for a single text."""
    vectors: np.ndarray = field(repr=False, compare=False, metadata={"serialized": False})
    """(texts, D), normalized: of the text, the second text, and the negatives."""


class Similarity(TrainableTask[SimilarInput, SimilarOutput]):
    """A bi-encoder: one encoder reads each text alone."""

    name = "similarity"
    architecture = "AlbertModel"
    problem_types = ("litebert similarity",)  # AlbertModel alone does not mean this task
    head_name = SentenceHead.name
    metric = "spearman"
    needs_random_batches = True

    def __init__(
        self,
        loss: Loss = "cosent",
        pooling: Pooling | None = None,
        last_passes: int | None = None,
        sizes: Sequence[int] = (),
        threshold: float = 0.5,
        scale: tuple[float, float] = (0.0, 1.0),
        kind: Kind | None = None,
    ) -> None:
        """`sizes`: dimensions of truncated vectors that are trained too (Matryoshka). Two texts are similar if their
        cosine is at least `threshold`; `scale`: the range of the labels; `kind`: that of the training data."""
        self.kind = kind
        self.loss_name, self.pooling, self.last_passes = loss, pooling, last_passes
        self.sizes, self.threshold, self.scale = tuple(sorted(set(sizes), reverse=True)), threshold, scale

    # --- what it is made from

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Similarity:
        options = saved_options(settings)
        try:
            low, high = options.get("scale", (0.0, 1.0))
            sizes, threshold = [int(size) for size in options.get("sizes", [])], float(options.get("threshold", 0.5))
            if any(size < 1 for size in sizes) or float(low) >= float(high):
                raise ValueError(f"sizes={sizes} must be 1 or more, and scale={low, high} go up")
            return cls(sizes=sizes, threshold=threshold, scale=(float(low), float(high)))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"options={options!r} in config.json do not fit similarity ({error})") from error

    @classmethod
    def learn_from(
        cls,
        inputs: Sequence[SimilarInput],
        head: HeadKind = "linear",
        loss: Loss = "auto",
        pooling: Pooling | None = None,
        last_passes: int | None = None,
        sizes: Sequence[int] = (),
        **_: Any,
    ) -> Similarity:
        kind = kind_of(inputs)
        wanted = LOSSES[kind][0] if loss == "auto" else loss
        if wanted not in LOSSES[kind]:
            raise DataError(
                f"loss={loss!r} does not learn from {kind} texts; {', '.join(LOSSES[kind])} would, or leave it out"
            )
        numbers = [record.label for record in inputs if isinstance(record.label, float)]
        if kind in ("scored", "labelled") and wanted == "cosent" and min(numbers) == max(numbers):
            raise DataError("column 'label' holds the same number everywhere; there is nothing to learn: check it")
        scale = (min(numbers), max(numbers)) if numbers and min(numbers) < max(numbers) else (0.0, 1.0)
        return cls(wanted, pooling, last_passes, sizes, scale=scale, kind=kind)

    def settings(self) -> dict[str, Any]:
        return {}

    def options(self) -> dict[str, Any]:
        sizes = {"sizes": list(self.sizes)} if self.sizes else {}
        return sizes | {"threshold": self.threshold, "scale": list(self.scale)}

    def head(self, config: AlbertConfig) -> SentenceHead:
        plain = SentenceMap.plain(config.hidden_size, self.pooling or "mean", self.last_passes or 1)
        return SentenceHead(plain)

    def initial_head(self, config: AlbertConfig, before: Mapping[str, nn.Module]) -> nn.Module:
        """The model's own sentence head, if it has the wanted pooling."""
        if (self.last_passes or 1) > config.num_hidden_layers:
            raise ConfigError(f"last_passes={self.last_passes} must be at most the {config.num_hidden_layers} it has")
        known: Any = before.get(SentenceHead.name)
        made = None if known is None else known.as_map()
        if made is None or self.pooling not in (None, made.pooling):
            made = self.head(config).as_map()
        made = replace(made, passes=self.last_passes or made.passes)
        if self.sizes and self.sizes[0] > len(made.bias):
            raise ConfigError(f"sizes={self.sizes[0]} is more than the {len(made.bias)} numbers of a vector")
        return SentenceHead(made)

    # --- texts to vectors

    @classmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[SimilarInput]:
        return read_similar(path, options or TableOptions())

    def parse(self, item: Any, where: str) -> SimilarInput:
        return parse_similar(item, where)

    def features(self, inputs: Sequence[SimilarInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        encodings = iter(tokenizer.encode([text for record in inputs for text in record.texts], max_length=max_length))
        return [Example([next(encodings) for _ in record.texts]) for record in inputs]

    def scores(self, model: Albert, batch: Batch) -> Scores:
        return {"vectors": sentence_vectors(model, batch, self.head_name)}

    def answer(self, record: SimilarInput, example: Example, scores: Scores) -> SimilarOutput:
        vectors = F.normalize(scores["vectors"].float(), dim=1).numpy()
        return SimilarOutput(float(vectors[0] @ vectors[-1 if record.text_b is None else 1]), vectors)

    # --- learning

    @property
    def needs_dropout(self) -> bool:
        return self.loss_name == "simcse"

    def training_examples(self, inputs: Sequence[SimilarInput], examples: Sequence[Example]) -> list[Example]:
        numbers: dict[str, int] = {}
        number = [[numbers.setdefault(text, len(numbers)) for text in record.texts] for record in inputs]
        if self.loss_name == "simcse":  # each text once, in two passes
            once = {owner: sequence for own, example in zip(number, examples, strict=True)
                    for owner, sequence in zip(own, example.sequences, strict=True)}  # fmt: skip
            return [Example([sequence, sequence], np.array([owner, owner])) for owner, sequence in once.items()]
        if self.loss_name == "negatives":
            most = max(map(len, number))
            return [
                replace(example, target=np.array(own + [NO_TEXT] * (most - len(own))))
                for record, own, example in zip(inputs, number, examples, strict=True)
                if record.label in (None, 1.0)
            ]
        classes = {label: place for place, label in enumerate(dict.fromkeys(record.label for record in inputs))}
        targets = [record.label if self.loss_name == "cosent" else classes[record.label] for record in inputs]
        return [replace(example, target=target) for example, target in zip(examples, targets, strict=True)]

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The mean over the sizes."""
        vectors = scores["vectors"].float()
        sizes = sorted({vectors.shape[1], *self.sizes}, reverse=True)
        return torch.stack([self._loss(F.normalize(vectors[:, :size], dim=1), batch) for size in sizes]).mean()

    def _loss(self, vectors: Tensor, batch: Batch) -> Tensor:  # (S, D) of length 1
        targets = batch.targets
        assert targets is not None
        if self.loss_name == "contrast":
            return supervised_contrastive(vectors, targets, 1 / SCALE)
        first = torch.searchsorted(batch.example_index, torch.arange(batch.examples, device=vectors.device))
        left, right = vectors[first], vectors[first + 1]
        if self.loss_name == "cosent":
            return cosent((left * right).sum(1), targets)
        rest = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
        rest[first] = rest[first + 1] = False
        numbers = targets[targets != NO_TEXT]  # (S,) the text of each sequence
        anchors, partners = numbers[first], numbers[first + 1]
        candidates = torch.cat([partners, numbers[rest]])
        same = (anchors[:, None] == candidates) | (partners[:, None] == candidates)  # a repeated text is no negative
        same[:, : len(anchors)] |= anchors[:, None] == anchors
        return multiple_negatives_ranking(left, torch.cat([right, vectors[rest]]), same)

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        """1 − the cosine of the two vectors of each text."""
        return (1 - F.cosine_similarity(scores["vectors"].float(), others["vectors"].float())).mean()

    # --- how right it is

    def metric_for(self, inputs: Sequence[SimilarInput]) -> str:
        return METRICS[self._kind_of(inputs)]

    def _kind_of(self, inputs: Sequence[SimilarInput]) -> Kind:
        """A part of scored pairs may happen to have only the labels 0 and 1."""
        kind = kind_of(inputs)
        return "scored" if kind == "labelled" and self.kind == "scored" else kind

    def tune(self, inputs: Sequence[SimilarInput], examples: Sequence[Example], scores: Sequence[Scores]) -> None:
        """Set the threshold to the one with the best accuracy."""
        if self._kind_of(inputs) == "labelled":
            cosines = [self.answer(*arguments).score for arguments in zip(inputs, examples, scores, strict=True)]
            self.threshold = best_threshold(np.array(cosines), _labels_of(inputs) > 0)

    def metrics(self, inputs: Sequence[SimilarInput], outputs: Sequence[SimilarOutput]) -> dict[str, float]:
        """The metrics of the kind of data, and the deciding one for each of the sizes."""
        kind = self._kind_of(inputs)
        metrics = self._metrics(kind, inputs, [output.vectors for output in outputs])
        for size in self.sizes:
            cut = [unit(output.vectors[:, :size]) for output in outputs]
            metrics[f"{METRICS[kind]}, {size}"] = self._metrics(kind, inputs, cut)[METRICS[kind]]
        return metrics

    def _metrics(self, kind: Kind, inputs: Sequence[SimilarInput], vectors: Sequence[np.ndarray]) -> dict[str, float]:
        if kind == "plain":
            return {"spread": _spread(np.stack([own[0] for own in vectors]))}
        if kind in ("positives", "classes"):
            return _retrieval_metrics(inputs, vectors, kind == "classes")
        cosines, truth = np.array([own[0] @ own[1] for own in vectors]), _labels_of(inputs)
        stats = require_extra("scipy.stats", "train")
        varied = len(set(truth)) > 1 and len(set(cosines)) > 1
        correlations = {
            "spearman": float(stats.spearmanr(cosines, truth)[0]) if varied else 0.0,
            "pearson": float(stats.pearsonr(cosines, truth)[0]) if varied else 0.0,
        }
        if kind == "scored":
            return correlations
        metrics, predicted = require_extra("sklearn.metrics", "train"), cosines >= self.threshold
        return {
            "accuracy": float(metrics.accuracy_score(truth > 0, predicted)),
            "f1": float(metrics.f1_score(truth > 0, predicted, zero_division=0.0)),
            "average_precision": float(metrics.average_precision_score(truth > 0, cosines)) if varied else 0.0,
            **correlations,
        }

    def judge(self, record: SimilarInput, output: SimilarOutput) -> Judgement:
        truth, right, kind = "", 1.0, kind_of([record])
        low, high = self.scale
        if kind == "labelled" and self.scale == (0.0, 1.0):
            truth, right = f"{record.label:g}", float((record.label == 1.0) == (output.score >= self.threshold))
        elif isinstance(record.label, float):
            wanted = (record.label - low) / (high - low)
            truth, right = f"{record.label:g}", 1 - min(1.0, abs(wanted - max(0.0, output.score)))
        elif kind == "positives":
            others = output.vectors[2:] @ output.vectors[0]
            truth, right = "alike", float((others < output.score).all())
        return Judgement(record.shown, truth, f"{output.score:.3f}", right)

    def baseline(self, inputs: Sequence[SimilarInput]) -> dict[str, float]:
        """A constant score: no correlation, and the majority label."""
        kind = self._kind_of(inputs)
        if kind == "scored":
            return {"spearman": 0.0, "pearson": 0.0}
        share = float((_labels_of(inputs) > 0).mean()) if kind == "labelled" else 0.0
        return {"accuracy": max(share, 1 - share)} if kind == "labelled" else {}

    def remarks(self, inputs: Sequence[SimilarInput]) -> list[str]:
        return [f"{kind_of(inputs)} texts: learning with {self.loss_name}"]

    def stratum(self, record: SimilarInput) -> str:
        return str(record.label) if kind_of([record]) in ("labelled", "classes") else ""

    def group(self, record: SimilarInput) -> str | None:
        """The texts that belong to one text are ranked together, so they stay in one split."""
        return record.text if kind_of([record]) == "positives" else None


def best_threshold(scores: np.ndarray, similar: np.ndarray) -> float:
    """The threshold with the best accuracy, halfway between two scores; of several the middle one."""
    order = np.argsort(scores, kind="stable")
    ordered, right = scores[order], similar[order]
    correct = right.sum() + np.concatenate([[0], np.cumsum(np.where(right, -1, 1))])  # by the number of scores below it
    correct[1:-1][ordered[:-1] == ordered[1:]] = -1  # equal scores cannot be separated
    edges = np.concatenate([[ordered[0] - 1e-3], (ordered[:-1] + ordered[1:]) / 2, [ordered[-1] + 1e-3]])
    best = np.flatnonzero(correct == correct.max())
    return float(edges[best[len(best) // 2]])


def _retrieval_metrics(
    inputs: Sequence[SimilarInput], vectors: Sequence[np.ndarray], classes: bool
) -> dict[str, float]:
    """Retrieval of the texts of the same class; or of the positives among all candidates."""
    if classes:
        own = np.stack([own_vectors[0] for own_vectors in vectors])
        by_label = dict[Any, set[int]]()
        for place, record in enumerate(inputs):
            by_label.setdefault(record.label, set()).add(place)
        asking = [place for place, record in enumerate(inputs) if len(by_label[record.label]) > 1]
        relevant = [by_label[inputs[place].label] - {place} for place in asking]
        return retrieval_scores(own[asking], own, relevant, asking)
    places: dict[str, int] = {}
    rows: list[np.ndarray] = []
    for record, own_vectors in zip(inputs, vectors, strict=True):
        for text, row in zip(record.texts[1:], own_vectors[1:], strict=True):
            if places.setdefault(text, len(rows)) == len(rows):
                rows.append(row)
    relevant_by_text, queries = dict[str, set[int]](), dict[str, np.ndarray]()
    for record, own_vectors in zip(inputs, vectors, strict=True):
        relevant_by_text.setdefault(record.text, set()).add(places[str(record.text_b)])
        queries[record.text] = own_vectors[0]
    return retrieval_scores(np.stack(list(queries.values())), np.stack(rows), list(relevant_by_text.values()))


def _spread(vectors: np.ndarray) -> float:
    """Minus the uniformity of Wang and Isola (2020): how evenly vectors fill the space, 0 if all are the same."""
    sample = vectors[: 1 << 11]
    distances = 2 - 2 * (sample @ sample.T)[~np.eye(len(sample), dtype=bool)]
    return float(-np.log(np.exp(-2 * distances).mean())) if len(sample) > 1 else 0.0


def _labels_of(inputs: Sequence[SimilarInput]) -> np.ndarray:
    return np.array([record.label for record in inputs], dtype=np.float64)
