"""The labelled examples that `adapt` is given, and the leave-one-out report of what it made of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from litebert.errors import DataError
from litebert.fewshot.feature_sets import Background, FeatureSet
from litebert.fewshot.head import FeatureView
from litebert.fewshot.task import FewShot
from litebert.tasks.text import TextInput

MAX_EXAMPLES = 3000

Tier = Literal["instant", "fast", "full"]
"""What is trained before the ridge regression: nothing, low-rank adapters of the last passes, or all weights."""

JSON_KEYS = {
    "majority_share": "chance", "accuracy_with_half": "with_half", "tier_results": "tried", "num_left_out": "asked",
    "exponential": "bent", "projected_accuracy": "with_twice",
}  # fmt: skip
"""Attributes that have another name in few_shot.json and evidence.json, and had it in litebert 0.1."""


@dataclass(frozen=True)
class LeaveOneOutReport:
    """How well an adapted model does: each example is classified by the fit, and the choices, made without it."""

    examples: int
    classes: int
    accuracy: float | None
    """Over the examples of classes that have two or more; None where there are none."""
    majority_share: float
    """The accuracy of always answering the largest class."""
    accuracy_with_half: float | None
    """The accuracy with half of the examples; None where a class has fewer than four."""
    depths: tuple[int, ...]
    """The numbers of passes whose hidden states are features."""
    tokens: bool
    """Whether tokens are features; of a pair, their overlap."""
    label_names: bool
    """Whether the names of the classes are examples."""
    ridge: float
    """The penalty."""
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...] = ()
    """Up to five misclassified examples, the worst first: text, label and prediction."""
    remarks: tuple[str, ...] = ()
    views: tuple[FeatureView, ...] = ("whole",)
    """Of pairs: the mean over both texts, or the difference of their means."""
    tier: Tier = "instant"
    tier_results: tuple[tuple[Tier, float | None, float], ...] = ()
    """Each tier, its held-out accuracy and its seconds; estimated seconds where the accuracy is None."""
    num_left_out: int = 0
    """The examples that the accuracy is over."""
    exponential: bool = False
    """Whether the kernel is exponential."""
    characters: bool = False
    """Whether character n-grams are features."""

    def __getattr__(self, name: str) -> Any:
        return renamed_attribute(self, name, {old: new for new, old in JSON_KEYS.items()} | {"sides": "features"})

    @property
    def features(self) -> FeatureSet:
        return FeatureSet(self.depths, self.tokens, self.views, self.exponential, self.characters)

    @property
    def margin(self) -> float | None:
        """Half of the 95 % confidence interval of the accuracy."""
        if self.accuracy is None or not self.num_left_out:
            return None
        variance = self.accuracy * (1 - self.accuracy) / self.num_left_out + 1 / (4 * self.num_left_out**2)
        return float(1.96 * variance**0.5)

    @property
    def projected_accuracy(self) -> float | None:
        """A guess of the accuracy with twice as many examples: the gain of the second half once more."""
        if self.accuracy is None or self.accuracy_with_half is None or self.accuracy_with_half > self.accuracy:
            return None
        return min(1.0, 2 * self.accuracy - self.accuracy_with_half)

    def to_json(self) -> dict[str, Any]:
        return {JSON_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> LeaveOneOutReport:
        names = {key: name for name, key in JSON_KEYS.items()}
        return cls(**{names.get(key, key): value for key, value in content.items()})


def renamed_attribute(owner: object, name: str, renamed: dict[str, str]) -> Any:
    """The value of an attribute under its former name, with a warning."""
    if name not in renamed:
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    warnings.warn(f"{name} is now called {renamed[name]}", DeprecationWarning, stacklevel=3)
    return getattr(owner, renamed[name])


@dataclass(frozen=True)
class Tuning:
    """How a model was tuned, with its results on held-out examples: those that it was tuned on would flatter it."""

    tier: Tier
    features: FeatureSet
    """Chosen before the tuning."""
    label_names: bool
    ridge: float
    scale: float = 1.0
    """The calibrated factor of the scores."""
    familiar: tuple[float, ...] = ()
    """The familiarity of the held-out examples."""
    accuracy: float = 0.0
    mistakes: tuple[tuple[str, str, str], ...] = ()
    examples: int = 0
    """The examples it was tuned on."""

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        features = content.pop("features")
        return content | {"sides": {JSON_KEYS.get(name, name): value for name, value in features.items()}}

    @classmethod
    def from_json(cls, content: dict[str, Any], features: FeatureSet) -> Tuning:
        return cls(features=features, **{name: value for name, value in content.items() if name != "sides"})


@dataclass(frozen=True)
class SupportSet:
    """The examples to adapt to."""

    records: tuple[TextInput, ...]
    label_names: bool | None
    """Whether the names of the classes are examples; None: if that helps."""
    background: Background
    remarks: tuple[str, ...] = ()

    @classmethod
    def from_texts(cls, texts: Sequence[Any], labels: Sequence[Any], places: Sequence[str], label_names: bool | None,
                   background: Background, skip_conflicts: bool = False) -> SupportSet:  # fmt: skip
        """Without duplicates; texts with two labels are an error, or left out with `skip_conflicts`."""
        unique: dict[str, TextInput] = {}
        conflicts: dict[str, str] = {}
        duplicates = 0
        for text, label, where in zip(texts, labels, places, strict=True):
            record = _record(text, label, where)
            key = " ".join(record.shown.casefold().split())
            first = unique.setdefault(key, record)
            if first.label == record.label:
                duplicates += first is not record
                continue
            conflict = f"{record.shown[:60]!r} is {record.label!r} here and {first.label!r} in {first.where}"
            if not skip_conflicts:
                raise DataError(f"{where}: {conflict}; correct one of them, or leave both out (--skip-bad)")
            conflicts.setdefault(key, f"{where}: {conflict}")
        if len({record.text_b is None for record in unique.values()}) > 1:
            single = next(record for record in unique.values() if record.text_b is None)
            raise DataError(f"{single.where}: a single text among pairs; give all of them text_a and text_b, or none")
        records = tuple(record for key, record in unique.items() if key not in conflicts)
        if len(records) > MAX_EXAMPLES:
            raise DataError(
                f"{len(records):,} examples: adapt takes up to {MAX_EXAMPLES:,}; litebert finetune learns more from "
                "them"
            )
        remarks = [f"{duplicates:,} duplicate examples count once"] if duplicates else []
        if conflicts:
            first_conflict = next(iter(conflicts.values()))
            remarks.append(f"{len(conflicts):,} texts with two labels left out, the first: {first_conflict}")
        return cls(records, label_names, background, (*remarks, *_single_example_remarks(records)))


def _record(text: Any, label: Any, where: str) -> TextInput:
    pair = list(text) if isinstance(text, (tuple, list)) and len(text) == 2 else [text]
    for part in pair:
        if not isinstance(part, str) or not part.strip():
            raise DataError(f"{where}: {str(part)[:40]!r} is no text; give a string that is not empty")
    name = FewShot.parse_label(label, where) if label is not None else None
    record = TextInput(pair[0], pair[1] if len(pair) > 1 else None, name, where)
    if name is None:
        raise DataError(f"{where}: {record.shown[:40]!r} has no label; give it one, or leave it out")
    return record


def _single_example_remarks(records: Sequence[TextInput]) -> list[str]:
    """A remark about classes of which nothing can be left out."""
    single = sorted(label for label, size in Counter(record.label for record in records).items() if size == 1)
    if not single:
        return []
    names = ", ".join(map(repr, single[:5])) + (f" and {len(single) - 5:,} more" if len(single) > 5 else "")
    return [f"only one example of {names}: a second one would help most, and shows how well it works"]
