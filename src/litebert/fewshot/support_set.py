"""What `adapt` is given, and what speaks for what it makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from litebert.errors import DataError
from litebert.fewshot.feature_sets import Around, Sides
from litebert.fewshot.head import View
from litebert.fewshot.task import FewShot
from litebert.tasks.text import TextInput

MOST_EXAMPLES = 3000

Tier = Literal["instant", "fast", "full"]
"""What learns beside the equation: nothing, low-rank changes of the last passes, or all weights."""


@dataclass(frozen=True)
class Evidence:
    """What speaks for an adapted model: each example was asked about what is solved, and chosen, without it."""

    examples: int
    classes: int
    accuracy: float | None
    """Over the examples of classes that have two or more; None where there are none."""
    chance: float
    """What the largest class alone would get."""
    with_half: float | None
    """The same with half of the examples; None where a class has fewer than four."""
    depths: tuple[int, ...]
    """After which passes the text is looked at."""
    tokens: bool
    """Do the tokens themselves count too, or those that two texts share?"""
    label_names: bool
    """Are the names of the classes examples too?"""
    ridge: float
    """Small where single examples are trusted, large where the middle of each class is."""
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...] = ()
    """Up to five examples that were told wrong, the worst first: text, label, and what it was taken for."""
    remarks: tuple[str, ...] = ()
    views: tuple[View, ...] = ("whole",)
    """Of pairs: both texts together, or how far they lie apart."""
    tier: Tier = "instant"
    tried: tuple[tuple[Tier, float | None, float], ...] = ()
    """The tiers, the share of each half of the examples that each tells right by the other half, and the seconds that
    it took; for None, that it would take."""

    asked: int = 0
    """Examples that the accuracy is about."""
    bent: bool = False
    """Does an example that is nearly equal count for more than in proportion?"""
    characters: bool = False
    """Do runs of characters count too?"""

    @property
    def sides(self) -> Sides:
        """From where texts are looked at."""
        return Sides(self.depths, self.tokens, self.views, self.bent, self.characters)

    @property
    def margin(self) -> float | None:
        """Half of the interval in which the accuracy lies, 19 times out of 20."""
        if self.accuracy is None or not self.asked:
            return None
        return float(1.96 * (self.accuracy * (1 - self.accuracy) / self.asked + 1 / (4 * self.asked**2)) ** 0.5)

    @property
    def with_twice(self) -> float | None:
        """What twice as many examples may give: as much again as the second half gave."""
        if self.accuracy is None or self.with_half is None or self.with_half > self.accuracy:
            return None
        return min(1.0, 2 * self.accuracy - self.with_half)


@dataclass(frozen=True)
class Tuning:
    """How a model was tuned, and what is known of it by examples that it was not tuned on: of those that it was tuned
    on it is too sure, left out or not."""

    tier: Tier
    sides: Sides
    """From where texts are looked at, chosen before."""
    label_names: bool
    ridge: float
    scale: float = 1.0
    """Of what the equation says, so that probabilities suit."""
    familiar: tuple[float, ...] = ()
    """How familiar those examples look."""
    accuracy: float = 0.0
    mistakes: tuple[tuple[str, str, str], ...] = ()
    examples: int = 0
    """That it was tuned on."""


@dataclass(frozen=True)
class Given:
    """What somebody wants learned."""

    records: tuple[TextInput, ...]
    label_names: bool | None
    around: Around
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[Any], labels: Sequence[Any], places: Sequence[str], label_names: bool | None,
           around: Around, skip_conflicts: bool = False) -> Given:  # fmt: skip
        """Without repetitions; refuses what cannot be learned."""
        found: dict[str, TextInput] = {}
        conflicts: dict[str, str] = {}
        repeated = 0
        for text, label, where in zip(texts, labels, places, strict=True):
            record = _record(text, label, where)
            key = " ".join(record.shown.casefold().split())
            first = found.setdefault(key, record)
            if first.label == record.label:
                repeated += first is not record
                continue
            both = f"{record.shown[:60]!r} is {record.label!r} here and {first.label!r} in {first.where}"
            if not skip_conflicts:
                raise DataError(f"{where}: {both}; correct one of them, or leave both out (--skip-bad)")
            conflicts.setdefault(key, f"{where}: {both}")
        if len({record.text_b is None for record in found.values()}) > 1:
            odd = next(record for record in found.values() if record.text_b is None)
            raise DataError(f"{odd.where}: a single text among pairs; give all of them text_a and text_b, or none")
        kept = tuple(record for key, record in found.items() if key not in conflicts)
        if len(kept) > MOST_EXAMPLES:
            raise DataError(
                f"{len(kept):,} examples: adapt takes up to {MOST_EXAMPLES:,}; litebert finetune learns more from them"
            )
        remarks = [f"{repeated:,} examples stand there twice and count once"] if repeated else []
        if conflicts:
            first_one = next(iter(conflicts.values()))
            remarks.append(f"{len(conflicts):,} texts with two labels left out, the first: {first_one}")
        return cls(kept, label_names, around, (*remarks, *_of_single_ones(kept)))


def _record(text: Any, label: Any, where: str) -> TextInput:
    pair = list(text) if isinstance(text, (tuple, list)) and len(text) == 2 else [text]
    for one in pair:
        if not isinstance(one, str) or not one.strip():
            raise DataError(f"{where}: {str(one)[:40]!r} is no text; give a string with something in it")
    name = FewShot.parse_label(label, where) if label is not None else None
    record = TextInput(pair[0], pair[1] if len(pair) > 1 else None, name, where)
    if name is None:
        raise DataError(f"{where}: {record.shown[:40]!r} has no label; give it one, or leave it out")
    return record


def _of_single_ones(records: Sequence[TextInput]) -> list[str]:
    """A word about classes of which there is nothing to leave out."""
    single = sorted(label for label, size in Counter(record.label for record in records).items() if size == 1)
    if not single:
        return []
    few = ", ".join(map(repr, single[:5])) + (f" and {len(single) - 5:,} more" if len(single) > 5 else "")
    return [f"one example only of {few}: a second one would help most, and says how well it works"]
