"""A model that has read a handful of examples: `litebert.adapt`.

The encoder stays as it is. Examples are read once, from several sides; which of these are used is decided by what each
example would have been called without it, and the classifier comes from one equation (`tasks/evidence.py`).

Shapes: N examples, W windows of them, D depths, H hidden, P pieces, F features, C classes.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import read_json, replacing, write_json
from litebert.model import Albert
from litebert.model.few_shot import FewShotHead
from litebert.predict.model import Model
from litebert.predict.sides import Around, Choice, Reader, Seen, Sides, readable, with_half
from litebert.tasks.evidence import Solution, solve
from litebert.tasks.few_shot import FewShot, familiarity, levels_of
from litebert.tasks.text import TextInput

SETTINGS, TENSORS = "few_shot.json", "few_shot.safetensors"
MOST_EXAMPLES = 3000
MOST_UNLABELLED = 2000
"""Of more, evenly spread ones speak for the rest."""
SHOWN = 5
"""Mistakes that are remembered."""


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
    """Do the tokens themselves count too?"""
    label_names: bool
    """Are the names of the classes examples too?"""
    seconds: float
    mistakes: tuple[tuple[str, str, str], ...] = ()
    """Up to five examples that were told wrong, the worst first: text, label, and what it was taken for."""
    remarks: tuple[str, ...] = ()

    @property
    def margin(self) -> float | None:
        """Half of the interval in which the accuracy lies, 19 times out of 20."""
        if self.accuracy is None:
            return None
        return float(1.96 * (self.accuracy * (1 - self.accuracy) / self.examples + 1 / (4 * self.examples**2)) ** 0.5)

    @property
    def with_twice(self) -> float | None:
        """What twice as many examples may give: as much again as the second half gave."""
        if self.accuracy is None or self.with_half is None or self.with_half > self.accuracy:
            return None
        return min(1.0, 2 * self.accuracy - self.with_half)


class Adapted(Model):
    """A classifier by examples. It shares its encoder with the model it was made from."""

    def __init__(self, base: Model, task: FewShot, head: FewShotHead, given: Given, evidence: Evidence) -> None:
        with torch.device("meta"):  # a shell: the encoder is there already
            albert = Albert(base.config)
        albert.encoder, albert.heads = base.encoder, nn.ModuleDict({task.head_name: head})
        super().__init__(albert, base.tokenizer, task, base.max_length, base.after)
        self.base, self.given, self.evidence, self.source, self.bf16 = base, given, evidence, base.source, base.bf16

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        assert isinstance(self.task, FewShot)
        return self.task.labels

    def add_examples(self, texts: Sequence[str], labels: Sequence[Any]) -> Adapted:
        """The same with more examples, of old classes or new ones. Nothing is trained; all examples are read again."""
        return adapt(self, texts, labels)

    def add_class(self, label: Any, texts: Sequence[str]) -> Adapted:
        """The same with one more class."""
        if str(label) in self.labels:
            raise DataError(f"class {label!r} is there already; give it more examples with add_examples")
        if isinstance(texts, str) or not texts:
            raise DataError(f"add_class takes a list of texts; give some that are {label!r}")
        return self.add_examples(texts, [label] * len(texts))

    def save(self, path: str | Path, half: bool = False) -> None:
        """Write a small folder, the examples and the classifier, which needs the model it was made from to be there.
        `half` changes nothing: it is small already."""
        path, task = Path(path), self.task
        assert isinstance(task, FewShot)
        if self.source is None:
            raise ConfigError("the model was adapted in memory only; save it, load it from its folder and adapt that")
        if (path / "config.json").exists():
            raise ConfigError(f"{path} holds a whole model (config.json); choose another folder")
        head: Any = self.albert.heads[task.head_name]
        tensors = {name: value.cpu().contiguous() for name, value in head.state_dict().items()}
        with replacing(path / TENSORS) as temporary:
            safetensors.torch.save_file(tensors | {"around": torch.from_numpy(self.given.around.mean)}, temporary)
        is_folder = isinstance(self.source, Path)
        write_json(path / SETTINGS, {
            "model": {"folder": os.path.relpath(self.source, path.resolve())} if is_folder else {"name": self.source},
            "encoder": _fingerprint(self.base), "labels": task.labels, "levels": task.levels,
            "familiar": task.familiar, "evidence": asdict(self.evidence), "label_names": self.given.label_names,
            "around": self.given.around.count,
            "examples": [[record.text, record.label] for record in self.given.records],
        })  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What somebody wants learned."""

    records: tuple[TextInput, ...]
    label_names: bool | None
    around: Around
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[Any], labels: Sequence[Any], places: Sequence[str], label_names: bool | None,
           around: Around) -> Given:  # fmt: skip
        """Without repetitions; refuses what cannot be learned."""
        found: dict[str, TextInput] = {}
        repeated = 0
        for text, label, where in zip(texts, labels, places, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{where}: {str(text)[:40]!r} is no text; give a string with something in it")
            name = FewShot.parse_label(label, where) if label is not None else None
            if name is None:
                raise DataError(f"{where}: {text[:40]!r} has no label; give it one, or leave it out")
            record = found.setdefault(" ".join(text.casefold().split()), TextInput(text, label=name, where=where))
            if record.label != name:
                raise DataError(
                    f"{where}: {text[:60]!r} is {name!r} here and {record.label!r} in {record.where}; correct one of "
                    "them, or leave both out"
                )
            repeated += record.where != where
        if len(found) > MOST_EXAMPLES:
            raise DataError(
                f"{len(found):,} examples: adapt takes up to {MOST_EXAMPLES:,}; litebert finetune learns more from them"
            )
        remarks = [f"{repeated:,} examples stand there twice and count once"] if repeated else []
        sizes = Counter(record.label for record in found.values())
        if single := sorted(label for label, size in sizes.items() if size == 1):
            few = ", ".join(map(repr, single[:5])) + (f" and {len(single) - 5:,} more" if len(single) > 5 else "")
            remarks.append(f"one example only of {few}: a second one would help most, and says how well it works")
        return cls(tuple(found.values()), label_names, around, tuple(remarks))


@dataclass(frozen=True)
class Saved:
    """What `Adapted.save` wrote."""

    path: Path
    model: dict[str, str]
    """A `name`, or a `folder` from here."""
    encoder: str
    labels: list[str]
    levels: list[float]
    familiar: list[float]
    evidence: dict[str, Any]
    label_names: bool | None
    around: int
    examples: list[tuple[str, str]]

    @staticmethod
    def is_at(path: Path) -> bool:
        return (path / SETTINGS).is_file()

    @classmethod
    def read(cls, path: Path) -> Saved:
        given = read_json(path / SETTINGS)
        wanted = [field.name for field in fields(cls) if field.name != "path"]
        if missing := [name for name in wanted if name not in given]:
            raise CheckpointError(f"{path / SETTINGS}: lacks {', '.join(missing)}; adapt again")
        return cls(path, **{name: given[name] for name in wanted})

    @property
    def base(self) -> str | Path:
        folder, name = self.model.get("folder"), self.model.get("name")
        return self.path.resolve() / folder if folder is not None else str(name)

    def on(self, base: Model) -> Adapted:
        if isinstance(base, Adapted) or _fingerprint(base) != self.encoder:
            raise CheckpointError(
                f"{self.path}: was made from {self.base}, which has other weights now; adapt again to the same examples"
            )
        try:
            lists = {name: tuple(self.evidence[name]) for name in ("depths", "remarks")}
            lists["mistakes"] = tuple(tuple(mistake) for mistake in self.evidence["mistakes"])
            evidence = Evidence(**self.evidence | lists)
            shape, tensors = base.config, safetensors.torch.load_file(self.path / TENSORS)
            around = Around(self.around, tensors.pop("around").numpy())
            head = FewShotHead(shape.hidden_size, shape.vocab_size, evidence.depths, evidence.tokens, len(self.labels))
            head.load_state_dict(tensors)
            records = tuple(TextInput(text, label=label) for text, label in self.examples)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, safetensors.SafetensorError) as error:
            problem = str(error).splitlines()[0]
            raise CheckpointError(f"{self.path}: is damaged ({problem}); adapt again") from error
        task = FewShot(self.labels, self.levels, self.familiar)
        return Adapted(base, task, head, Given(records, self.label_names, around), evidence)


def adapt(
    model: Model,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    unlabelled: Sequence[str] = (),
    label_names: bool | None = None,
    places: Sequence[str] = (),
    advance: Callable[[int], None] = lambda count: None,
) -> Adapted:
    """A classifier from a handful of labelled texts, in little more than the time it takes to read them once.

    To an adapted model the examples are added. `unlabelled` texts say what is usual. `label_names`: let the names of
    the classes count as examples; None: if that helps. `places` say where examples stand, for errors; `advance` hears
    how many windows of texts are read.
    """
    if not isinstance(model, Model):
        raise ConfigError(f"adapt takes a model, not {str(model)[:40]!r}; give it litebert.load(name)")
    if isinstance(texts, str) or not len(texts) or len(texts) != len(labels):
        raise DataError(f"adapt takes a list of texts and as many labels; got {len(texts)} and {len(labels)}")
    if not all(isinstance(text, str) and text.strip() for text in unlabelled):
        raise DataError("unlabelled must be strings with something in them; leave the others out")
    step = max(1.0, len(unlabelled) / MOST_UNLABELLED)
    some = [unlabelled[int(place)] for place in np.arange(0, len(unlabelled), step)]
    base, old, around = (model, (), Around.none(model)) if not isinstance(model, Adapted) else (
        model.base, model.given.records, model.given.around)  # fmt: skip
    if isinstance(model, Adapted) and label_names is None:
        label_names = model.given.label_names
    where = [f"{record.text[:30]!r} of before" for record in old]
    where += places or [f"example {number}" for number in range(1, len(texts) + 1)]
    before = [record.text for record in old], [record.label for record in old]
    given = Given.of([*before[0], *texts], [*before[1], *labels], where, label_names, around)
    return _adapted(base, given, some, advance)


def _adapted(
    model: Model, given: Given, unlabelled: Sequence[str] = (), advance: Callable[[int], None] = lambda count: None
) -> Adapted:
    began = time.perf_counter()
    records, task = given.records, FewShot.learn_labels(given.records)
    classes, count = np.array(task.targets(records)), len(task.labels)
    reader = Reader(model, [*(record.text for record in records), *unlabelled], advance)
    names = readable(task.labels, given.label_names)
    seen = reader([*(record.text for record in records), *names.values()])
    around = given.around.with_more(reader(unlabelled, tokens=False).means) if unlabelled else given.around
    # names are in it too: a centre that knows only examples lies nearer to the one left out than to the names
    centre = around.centre(seen.means)
    named = np.array(list(names), dtype=int)
    choice = Choice(seen, centre, classes, count, named, bool(given.label_names))
    sides, use_names = choice.made_with(np.arange(len(records)))
    rows = seen.from_sides(sides, centre)[: len(records) + use_names * len(names)]
    owners = np.concatenate([classes, named])[: len(rows)]
    solution = solve(rows @ rows.T, owners, count, len(rows) - len(records))
    levels, familiar = [1.0] * count, np.zeros(0)
    if len(solution.truth):
        levels = levels_of(solution.left_out, solution.truth, np.bincount(classes, minlength=count))
        # where examples are all but equal, one left out would be more familiar than any that is there
        there = rows[solution.asked] @ rows.T @ solution.weights
        familiar = np.minimum(familiarity(solution.left_out, levels), familiarity(there, levels))
    told = choice.told()
    evidence = Evidence(
        len(records), count, _accuracy(told, classes),
        max(Counter(classes.tolist()).values()) / len(classes),
        with_half(rows, owners, len(records)), sides.depths, sides.tokens, use_names, time.perf_counter() - began,
        _mistakes(records, task, told, solution), given.remarks,
    )  # fmt: skip
    task = FewShot(task.labels, levels, familiar.tolist())
    head = _head(model, reader, seen, sides, centre, rows.T @ solution.weights)
    return Adapted(model, task, head, Given(records, given.label_names, around), evidence)


def _head(
    model: Model, reader: Reader, seen: Seen, sides: Sides, centre: np.ndarray, matrix: np.ndarray
) -> FewShotHead:
    shape = model.config
    head = FewShotHead(shape.hidden_size, shape.vocab_size, sides.depths, sides.tokens, matrix.shape[1])
    head.frequency.copy_(reader.frequency)
    head.centre.copy_(torch.from_numpy(centre[[seen.depths.index(depth) for depth in sides.depths]]))
    head.matrix.copy_(torch.from_numpy(matrix))
    return head


def _accuracy(told: np.ndarray | None, classes: np.ndarray) -> float | None:
    return None if told is None else float((told == classes)[told >= 0].mean())


def _mistakes(
    records: Sequence[TextInput], task: FewShot, told: np.ndarray | None, solution: Solution
) -> tuple[tuple[str, str, str], ...]:
    if told is None:
        return ()
    worst = solution.asked[np.argsort(-solution.losses)]
    wrong = [number for number in worst if task.labels[told[number]] != records[number].label]
    return tuple((records[number].text, records[number].label, task.labels[told[number]]) for number in wrong[:SHOWN])


def _fingerprint(model: Model) -> str:
    """Of the encoder's weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.encoder.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
