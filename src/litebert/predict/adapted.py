"""A model that has read a handful of examples: `litebert.adapt`.

The encoder stays as it is. Examples are read once, from several sides; which of these are used is decided by what each
example would have been called without it, and the classifier comes from one equation (`tasks/evidence.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import read_json, replacing, write_json
from litebert.model import Albert
from litebert.model.few_shot import FewShotHead, features_of
from litebert.predict.model import Model
from litebert.tasks.evidence import halves, solve
from litebert.tasks.few_shot import FewShot, Reading
from litebert.tasks.text import TextInput

SETTINGS, TENSORS = "few_shot.json", "few_shot.safetensors"
MOST_EXAMPLES = 5000
BETTER = 0.98
"""The loss of other sides than the usual ones must be below this share of theirs."""
SPECIAL = 0.05
"""How frequent [CLS] and its like are taken to be."""
HALVINGS = 8


@dataclass(frozen=True)
class Evidence:
    """What speaks for an adapted model, all of it from examples that were left out when they were asked about."""

    examples: int
    classes: int
    accuracy: float | None
    """Of each example by what is solved without it; None where every class has one example."""
    chance: float
    """What the largest class alone would get."""
    with_half: float | None
    """The same with half of the examples; None where there are too few."""
    depths: tuple[int, ...]
    """After which passes the text is looked at."""
    tokens: bool
    """Do the tokens themselves count too?"""
    label_names: bool
    """Are the names of the classes examples too?"""
    seconds: float
    remarks: tuple[str, ...] = ()

    @property
    def with_twice(self) -> float | None:
        """What twice as many examples would give, if half as many say anything about it."""
        if self.accuracy is None or self.with_half is None:
            return None
        return min(1.0, self.accuracy + 0.7 * max(0.0, self.accuracy - self.with_half))


class Adapted(Model):
    """A classifier by examples. More of them can be added at any time."""

    def __init__(self, base: Model, task: FewShot, head: FewShotHead, examples: Sequence[TextInput],
                 evidence: Evidence) -> None:  # fmt: skip
        albert = Albert(base.config, {task.head_name: head})
        albert.encoder = base.encoder  # shared: the base goes on as it was
        super().__init__(albert.eval(), base.tokenizer, task, base.max_length, base.after)
        self.base, self.examples, self.evidence, self.source = base, list(examples), evidence, base.source
        self.to(base.device).bf16 = base.bf16

    def add_examples(self, texts: Sequence[str], labels: Sequence[Any]) -> Adapted:
        """The same with more examples, of old classes or new ones. Nothing is trained; all examples are read again."""
        old = [record.text for record in self.examples], [record.label for record in self.examples]
        return adapt(self.base, [*old[0], *texts], [*old[1], *labels], label_names=self.evidence.label_names or None)

    def add_class(self, label: Any, texts: Sequence[str]) -> Adapted:
        """The same with one more class."""
        if str(label) in getattr(self.task, "labels", ()):
            raise DataError(f"class {label!r} is there already; give it more examples with add_examples")
        return self.add_examples(texts, [label] * len(texts))

    def save(self, path: str | Path, half: bool = False) -> None:
        """Write a small folder that `litebert.load` reads while the model it was made for is there: the examples and
        the classifier. `half` is of no use here."""
        if self.source is None:
            raise ConfigError("the model was adapted in memory only; save it, load it from its folder and adapt that")
        path, task = Path(path), self.task
        assert isinstance(task, FewShot)
        head: Any = self.albert.heads[task.head_name]
        with replacing(path / TENSORS) as temporary:
            tensors = {name: value.half().cpu().contiguous() for name, value in head.state_dict().items()}
            safetensors.torch.save_file(tensors, temporary)
        name = self.source
        if Path(name).is_dir():
            relative = os.path.relpath(name, path)
            name = relative if relative.startswith(".") else f"./{relative}"
        write_json(path / SETTINGS, {
            "model": name, "encoder": _fingerprint(self.base), "labels": task.labels, "familiar": task.familiar,
            "evidence": asdict(self.evidence),
            "examples": [[record.text, record.label] for record in self.examples],
        })  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """What `Adapted.save` wrote."""

    path: Path
    model: str
    """A name, or a path from here, which begins with a dot."""
    encoder: str
    labels: list[str]
    familiar: list[float]
    evidence: dict[str, Any]
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

    def on(self, base: Model) -> Adapted:
        if _fingerprint(base) != self.encoder:
            raise CheckpointError(
                f"{self.path}: was made for {self.model}, which has other weights now; adapt again to the same examples"
            )
        try:
            lists = {name: tuple(self.evidence[name]) for name in ("depths", "remarks")}
            evidence = Evidence(**self.evidence | lists)
            shape, count = base.config, len(self.labels)
            head = FewShotHead(shape.hidden_size, shape.vocab_size, evidence.depths, evidence.tokens, count)
            tensors = safetensors.torch.load_file(self.path / TENSORS)
            head.load_state_dict({name: value.float() for name, value in tensors.items()})
            task = FewShot(self.labels, self.familiar)
            examples = [TextInput(text, label=label) for text, label in self.examples]
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, safetensors.SafetensorError) as error:
            problem = str(error).splitlines()[0]
            raise CheckpointError(f"{self.path}: is damaged ({problem}); adapt again") from error
        return Adapted(base, task, head, examples, evidence)


def adapt(
    model: Model,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    unlabelled: Sequence[str] = (),
    label_names: bool | None = None,
    advance: Callable[[int], None] = lambda count: None,
    places: Sequence[str] = (),
) -> Adapted:
    """A classifier from a handful of labelled texts, in the time it takes to read them once.

    `unlabelled` texts say what is usual. `label_names`: let the names of the classes count as examples; None: if that
    helps. `advance` hears how many texts are read; `places` say where they stand, for errors.
    """
    began = time.perf_counter()
    records, remarks = _checked(texts, labels, places)
    task = FewShot.learn_labels(records)
    classes = np.array(task.targets(records))
    names = _readable(task.labels) if label_names is not False else None
    if label_names and names is None:
        raise ConfigError(f"the classes have no names to read ({', '.join(task.labels[:5])}); leave label_names out")
    reader = _Reader(model, [*(record.text for record in records), *unlabelled], advance)
    asked = [record.text for record in records]
    seen, count = reader(task, [*asked, *(names or ()), *unlabelled]), len(records)
    centre = np.delete(seen.means, slice(count, count + len(names or ())), axis=0).mean(0)
    sides, use_names = _best_sides(seen, centre, classes, len(task.labels), names is not None, label_names)
    rows = seen.from_sides(sides, centre)[: count + use_names * len(task.labels)]
    owners = np.concatenate([classes, np.arange(len(task.labels))])[: len(rows)]
    solution = solve(_likeness(rows), owners, len(task.labels), len(rows) - count)
    head = FewShotHead(model.config.hidden_size, model.config.vocab_size, sides.depths, sides.tokens, len(task.labels))
    head.frequency.copy_(reader.frequency)
    head.centre.copy_(torch.from_numpy(centre[[reader.depths.index(depth) for depth in sides.depths]]))
    head.matrix.copy_(torch.from_numpy(rows.T @ solution.weights))
    for value in head.buffers():
        value.copy_(value.half())  # what a saved one has
    half = _with_half(rows[:count], classes) if len(solution.truth) else None
    evidence = Evidence(
        count, len(task.labels), solution.accuracy,
        max(Counter(classes.tolist()).values()) / len(classes), half, sides.depths, sides.tokens, use_names,
        time.perf_counter() - began, tuple(remarks),
    )  # fmt: skip
    task.familiar = sorted(solution.left_out.max(1).tolist())
    return Adapted(model, task, head, records, evidence)


# --- what is read -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sides:
    depths: tuple[int, ...]
    tokens: bool


def _best_sides(
    seen: _Seen, centre: np.ndarray, classes: np.ndarray, count: int, named: bool, label_names: bool | None
) -> tuple[_Sides, bool]:
    """Those from which examples that are left out are told best, and whether names of classes help."""
    rows = len(classes) + named * count
    owners = np.concatenate([classes, np.arange(count)])[:rows]
    alike = {side: _likeness(seen.from_sides(side, centre)[:rows]) for side in _single(seen.depths)}
    best: tuple[float, _Sides, bool] | None = None
    for sides in _candidates(max(seen.depths)):
        likeness = np.mean([alike[side] for side in _single(sides.depths, sides.tokens)], axis=0)
        for use_names in [True, False] if label_names is None and named else [bool(label_names)]:
            last = rows if use_names else len(classes)
            loss = solve(likeness[:last, :last], owners[:last], count, last - len(classes), usual=True).loss
            if best is None or loss < BETTER * best[0]:
                best = loss, sides, use_names
    assert best is not None
    return best[1:]


def _single(depths: Sequence[int], tokens: bool = True) -> list[_Sides]:
    """One by one."""
    return [_Sides((depth,), False) for depth in depths] + [_Sides((), True)] * tokens


def _likeness(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.T


def _candidates(layers: int) -> list[_Sides]:
    """From which sides a text may be looked at; the usual ones first."""
    early, middle = max(1, layers // 6), max(1, layers // 3)
    depths = [(early, layers), (middle, layers), (early,), (middle,), (layers,)]
    unique = list(dict.fromkeys(tuple(sorted(set(some))) for some in depths))
    return [_Sides(some, tokens) for tokens in (True, False) for some in unique] + [_Sides((), True)]


@dataclass(frozen=True)
class _Seen:
    """Texts from all sides: (N, D, H) and (N, P)."""

    depths: tuple[int, ...]
    means: np.ndarray
    tokens: np.ndarray

    def from_sides(self, sides: _Sides, centre: np.ndarray) -> np.ndarray:  # (N, F)
        places = [self.depths.index(depth) for depth in sides.depths]
        means = torch.from_numpy((self.means - centre)[:, places])
        return features_of(means, torch.from_numpy(self.tokens) if sides.tokens else None).numpy()


class _Reader:
    def __init__(self, model: Model, texts: Sequence[str], advance: Callable[[int], None]) -> None:
        self._model, self._advance = model, advance
        self.depths = tuple(sorted({depth for sides in _candidates(model.config.num_hidden_layers)
                                    for depth in sides.depths}))  # fmt: skip
        self.frequency = _frequency(model, texts)

    def __call__(self, task: FewShot, texts: Sequence[str]) -> _Seen:
        model, reading = self._model, Reading(self.depths, self.frequency)
        examples = (
            task.features([TextInput(text) for text in texts], model.tokenizer, model.max_length) if texts else []
        )
        rows = model.score_examples(reading, examples, advance=self._advance)
        means = [row["means"].mean(0).numpy() for row in rows]
        tokens = [row["tokens"].mean(0).numpy() for row in rows]
        hidden = len(self.depths), model.config.hidden_size
        return _Seen(self.depths, np.stack(means) if means else np.zeros((0, *hidden), dtype=np.float32),
                     np.stack(tokens) if tokens else np.zeros((0, 1), dtype=np.float32))  # fmt: skip


def _frequency(model: Model, texts: Sequence[str]) -> Tensor:  # (V,)
    """By the vocabulary, or where it does not say, by the texts."""
    tokenizer, size = model.tokenizer, model.config.vocab_size
    scores = tokenizer.piece_scores()
    if scores is None:
        counts = np.bincount(np.concatenate(tokenizer.encode_ids(texts)).astype(int), minlength=size)
        found = (counts + 1) / (counts.sum() + size)
    else:
        found = np.exp(np.array(scores + [min(scores)] * (size - len(scores))))
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
    found[special] = SPECIAL
    return torch.from_numpy(np.clip(found, 1e-6, SPECIAL)).float()


def _readable(labels: Sequence[str]) -> list[str] | None:
    """The names of classes as texts, if they are words."""
    names = [" ".join(re.sub(r"[_\-./:]+", " ", label).split()).lower() for label in labels]
    return names if all(any(character.isalpha() for character in name) for name in names) else None


def _with_half(rows: np.ndarray, classes: np.ndarray) -> float | None:
    """How many of one half the other half gets right, among classes that have three examples or more."""
    kept = np.flatnonzero(np.bincount(classes)[classes] > 2)
    _, owners = np.unique(classes[kept], return_inverse=True)
    if not len(kept) or owners.max() < 1:
        return None
    alike, right = _likeness(rows[kept]), []
    for some, rest in halves(owners, HALVINGS):
        solution = solve(alike[np.ix_(some, some)], owners[some], int(owners.max()) + 1, usual=True)
        right.append(((alike[np.ix_(rest, some)] @ solution.weights).argmax(1) == owners[rest]).mean())
    return float(np.mean(right))


# --- what is given ----------------------------------------------------------------------------------------------------


def _checked(texts: Sequence[Any], labels: Sequence[Any], places: Sequence[str]) -> tuple[list[TextInput], list[str]]:
    """Records without repetitions, and what somebody should know about them."""
    if isinstance(texts, str) or len(texts) != len(labels):
        raise DataError(f"adapt takes a list of texts and as many labels; got {len(texts)} and {len(labels)}")
    found: dict[str, TextInput] = {}
    repeated = 0
    for number, (text, label) in enumerate(zip(texts, labels, strict=True), start=1):
        where = places[number - 1] if places else f"example {number}"
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: {str(text)[:40]!r} is no text; give a string with something in it")
        name = FewShot.parse_label(label, where) if label is not None else None
        if name is None:
            raise DataError(f"{where}: {text[:40]!r} has no label; give it one, or leave it out")
        record = found.setdefault(" ".join(text.split()), TextInput(text, label=name, where=where))
        if record.label != name:
            raise DataError(
                f"{where}: {text[:60]!r} is {name!r} here and {record.label!r} in {record.where}; correct one of them, "
                "or leave both out"
            )
        repeated += record.where != where
    records = list(found.values())
    if len(records) > MOST_EXAMPLES:
        raise DataError(
            f"{len(records):,} examples: adapt takes up to {MOST_EXAMPLES:,}; litebert finetune learns more from them"
        )
    remarks = [f"{repeated:,} examples stand there twice and count once"] if repeated else []
    sizes = Counter(record.label for record in records)
    if single := sorted(label for label, size in sizes.items() if size == 1):
        few = ", ".join(map(repr, single[:5])) + (f" and {len(single) - 5:,} more" if len(single) > 5 else "")
        remarks.append(f"one example only of {few}: a second one would help most, and says how well it works")
    return records, remarks


def _fingerprint(model: Model) -> str:
    """Of the encoder's weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.encoder.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
