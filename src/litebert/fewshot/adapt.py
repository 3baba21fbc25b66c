"""A model that has read a handful of examples: `litebert.adapt`.

The encoder stays as it is. Examples are read once, from several sides; which of these are used is decided by what each
example would have been called without it, and the classifier comes from one equation (`fewshot/ridge.py`).

Shapes: N examples, W windows of them, D depths, H hidden, P pieces, F features, C classes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from litebert.errors import ConfigError, DataError
from litebert.fewshot.feature_sets import Around, Choice, Reader, Sides, likeness_of, readable, usual_ridge, with_half
from litebert.fewshot.head import FewShotHead
from litebert.fewshot.ridge import Solution, solve
from litebert.fewshot.support_set import Evidence, Given, Tuning
from litebert.fewshot.task import FewShot, familiarity, levels_of, pieces_for
from litebert.files import HASH_FILE, atomic_path, file_sha256, read_json, write_json
from litebert.inference.model import Model
from litebert.model import Albert
from litebert.model.lora import DepthAdapters
from litebert.tasks.text import TextInput

SETTINGS, TENSORS, ADAPTERS = "few_shot.json", "few_shot.safetensors", "adapters."
MOST_UNLABELLED = 2000
"""Of more, evenly spread ones speak for the rest."""
SHOWN = 5
"""Mistakes that are remembered."""


class Adapted(Model):
    """A classifier by examples. It shares its encoder with the model it was made from."""

    def __init__(
        self, base: Model, task: FewShot, head: FewShotHead, given: Given, evidence: Evidence,
        tuning: Tuning | None = None, adapters: DepthAdapters | None = None,
    ) -> None:  # fmt: skip
        albert = shell(base, adapters)
        albert.heads = nn.ModuleDict({task.head_name: head})
        super().__init__(albert, base.tokenizer, task, base.max_length, base.after)
        self.base, self.given, self.evidence, self.source, self.bf16 = base, given, evidence, base.source, base.bf16
        self.tuning, self.adapters = tuning, adapters

    def to(self, device: str | torch.device) -> Model:
        """Move it, and the model it was made from."""
        self.base.to(device)
        return super().to(device)

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        assert isinstance(self.task, FewShot)
        return self.task.labels

    @property
    def levels(self) -> list[float]:
        """What a text of each class usually scores there."""
        assert isinstance(self.task, FewShot)
        return self.task.levels

    def scores_of(self, records: Sequence[TextInput]) -> np.ndarray:  # (N, C)
        """What the classes get, before probabilities are made of it."""
        assert isinstance(self.task, FewShot)
        examples = self.task.features(records, self.tokenizer, self.max_length)
        rows = self.score_examples(self.task, examples)
        return np.stack([row["scores"].mean(0).numpy() for row in rows]).astype(np.float64)

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
        """Write a small folder, the examples and the classifier, which needs the model it was made from to be there;
        where all weights were tuned, that model too. `half` changes nothing."""
        path, task = Path(path), self.task
        assert isinstance(task, FewShot)
        whole = self.evidence.tier == "full"
        if self.source is None and not whole:
            raise ConfigError("the model was adapted in memory only; save it, load it from its folder and adapt that")
        if (path / "config.json").exists():
            raise ConfigError(f"{path} holds a whole model (config.json); choose another folder")
        head: Any = self.albert.heads[task.head_name]
        tensors = {name: value.cpu().contiguous() for name, value in head.state_dict().items()}
        if self.adapters is not None:
            learned = self.adapters.state_dict().items()
            tensors |= {f"{ADAPTERS}{name}": value.cpu().contiguous() for name, value in learned}
        if whole:
            self.base.save(path)
        with atomic_path(path / TENSORS) as temporary:
            safetensors.torch.save_file(tensors | {"around": torch.from_numpy(self.given.around.mean)}, temporary)
        known = read_json(path / HASH_FILE) if whole else {}
        write_json(path / HASH_FILE, known | {TENSORS: file_sha256(path / TENSORS)})
        home = path.resolve() if whole else self.source
        write_json(path / SETTINGS, {
            "model": {"folder": _way(home, path)} if isinstance(home, Path) else {"name": home},
            "encoder": self.base.encoder_fingerprint(), "labels": task.labels, "levels": task.levels,
            "familiar": task.familiar, "evidence": asdict(self.evidence), "label_names": self.given.label_names,
            "tuning": self.tuning and asdict(self.tuning), "around": self.given.around.count,
            "examples": [[*record.texts, record.label] for record in self.given.records],
        })  # fmt: skip


def _way(home: Path, path: Path) -> str:
    return os.path.relpath(home, path.resolve())


def adapt(
    model: Model,
    texts: Sequence[str | tuple[str, str]],
    labels: Sequence[Any],
    *,
    unlabelled: Sequence[str] = (),
    label_names: bool | None = None,
    skip_conflicts: bool = False,
    places: Sequence[str] = (),
    advance: Callable[[int], None] = lambda count: None,
) -> Adapted:
    """A classifier from a handful of labelled texts, or pairs of them, in little more than the time it takes to read
    them once.

    To an adapted model the examples are added. `unlabelled` texts say what is usual. `label_names`: let the names of
    the classes count as examples; None: if that helps. `skip_conflicts`: leave out texts that have two labels.
    `places` say where examples stand, for errors; `advance` hears how many windows of texts are read.
    """
    if not isinstance(model, Model):
        raise ConfigError(f"adapt takes a model, not {str(model)[:40]!r}; give it litebert.load(name)")
    if isinstance(texts, str) or not len(texts) or len(texts) != len(labels):
        raise DataError(f"adapt takes a list of texts and as many labels; got {len(texts)} and {len(labels)}")
    if not all(isinstance(text, str) and text.strip() for text in unlabelled):
        raise DataError("unlabelled must be strings with something in them; leave the others out")
    pairs = not isinstance(next(iter(texts)), str)
    if pairs and (label_names or len(unlabelled)):
        raise ConfigError("names of classes and unlabelled texts say nothing of pairs; leave them out")
    old, around = ((), Around.none(model, pairs)) if not isinstance(model, Adapted) else (
        model.given.records, model.given.around)  # fmt: skip
    if isinstance(model, Adapted) and label_names is None:
        label_names = model.given.label_names
    where = [f"{record.shown[:30]!r} of before" for record in old]
    where += places or [f"example {number}" for number in range(1, len(texts) + 1)]
    before = [given_as(record) for record in old], [record.label for record in old]
    given = Given.of([*before[0], *texts], [*before[1], *labels], where, label_names, around, skip_conflicts)
    some = evenly(unlabelled, MOST_UNLABELLED)
    if isinstance(model, Adapted):
        return solved(model.base, given, some, advance, tuning=model.tuning, adapters=model.adapters)
    return solved(model, given, some, advance)


def given_as(record: TextInput) -> str | tuple[str, str]:
    """As somebody would give it."""
    return record.text if record.text_b is None else (record.text, record.text_b)


def evenly(texts: Sequence[str], most: int) -> list[str]:
    """So many of them at most, from everywhere."""
    return [texts[int(place)] for place in np.arange(0, len(texts), max(1.0, len(texts) / most))]


def solved(
    base: Model, given: Given, unlabelled: Sequence[str] = (), advance: Callable[[int], None] = lambda count: None,
    *, tuning: Tuning | None = None, adapters: DepthAdapters | None = None, judged: bool = True,
) -> Adapted:  # fmt: skip
    """A classifier by an equation. What is known of a tuned model was found out on others; not `judged`: nothing is."""
    began = time.perf_counter()
    records, task = given.records, FewShot.learn_labels(given.records)
    classes, count = np.array(task.targets(records)), len(task.labels)
    more = [TextInput(text) for text in unlabelled]
    reader = Reader(_seen_through(base, adapters), [*records, *more], advance)
    # a name is no pair, so there it says nothing
    wanted = False if task.pairs else given.label_names if tuning is None else tuning.label_names
    names = readable(task.labels, wanted)
    seen = reader([*records, *(TextInput(name) for name in names.values())])
    around = given.around.with_more(reader.means(more)) if more else given.around
    # names are in it too: a centre that knows only examples lies nearer to the one left out than to the names
    centre = around.centre(seen.means)
    named = np.array(list(names), dtype=int)
    told = None
    if tuning is None:
        choice = Choice(seen, centre, classes, count, named, bool(given.label_names))
        sides, use_names = choice.made_with(np.arange(len(records)))
        told = choice.told() if judged else None
    else:
        sides, use_names = tuning.sides, bool(names)
    rows = seen.from_sides(sides, centre)[: len(records) + use_names * len(names)]
    owners = np.concatenate([classes, named])[: len(rows)]
    alike = likeness_of(rows, sides.bent)
    solution = solve(alike, owners, count, len(rows) - len(records), ridge=tuning.ridge if tuning else 0.0)
    levels, familiar = _usual(solution, alike, np.bincount(classes, minlength=count))
    evidence = Evidence(
        len(records), count, _accuracy(told, classes),
        max(Counter(classes.tolist()).values()) / len(classes),
        with_half(alike, owners, len(records), usual_ridge(sides.bent)) if told is not None else None,
        sides.depths, sides.tokens, use_names, solution.ridge, time.perf_counter() - began,
        _mistakes(records, task, told, solution), given.remarks, sides.views, bent=sides.bent,
        asked=sum(size for size in np.bincount(classes).tolist() if size > 1), characters=sides.characters,
    )  # fmt: skip
    weights = solution.weights
    if tuning is not None:
        evidence, familiar = _by_others(evidence, tuning), tuning.familiar
        factor = tuning.scale / solution.scale
        weights, levels = weights * factor, [level * factor for level in levels]
    head = empty_head(base, sides, reader.pairs, count, spelling=reader.spelling)
    head.frequency.copy_(reader.frequency)
    if sides.characters:
        head.surprise.copy_(reader.surprise)
    head.centre.copy_(torch.from_numpy(centre[seen.places(sides)]))
    head.remember(torch.from_numpy(rows), torch.from_numpy(weights).float())
    kept = Given(records, given.label_names, around)
    task = FewShot(task.labels, levels, familiar, task.pairs)
    return Adapted(base, task, head, kept, evidence, tuning, adapters)


def _usual(solution: Solution, alike: np.ndarray, sizes: np.ndarray) -> tuple[list[float], Sequence[float]]:
    """What a text of each class usually scores there, and how familiar the examples look."""
    if not len(solution.truth):
        return [1.0] * len(sizes), ()
    levels = levels_of(solution.left_out, solution.truth, sizes)
    # where examples are all but equal, one left out would be more familiar than any that is there
    there = alike[solution.asked] @ solution.weights
    return levels, np.minimum(familiarity(solution.left_out, levels), familiarity(there, levels)).tolist()


def _by_others(evidence: Evidence, tuning: Tuning) -> Evidence:
    remarks = evidence.remarks
    if 0 < tuning.examples < evidence.examples:
        remarks += (
            f"{evidence.examples - tuning.examples:,} examples came after it was tuned and are not in the share",
        )
    return replace(evidence, accuracy=tuning.accuracy, mistakes=tuning.mistakes, tier=tuning.tier, remarks=remarks)


def _seen_through(base: Model, adapters: DepthAdapters | None) -> Model:
    if adapters is None:
        return base
    model = Model(shell(base, adapters), base.tokenizer, max_length=base.max_length)
    model.bf16 = base.bf16
    return model


def shell(base: Model, adapters: DepthAdapters | None) -> Albert:
    """The encoder of a model, without its heads; with adapters, the same weights seen through them."""
    with torch.device("meta"):  # what is made here is replaced at once
        albert = Albert(base.config if adapters is None else replace(base.config, lora_rank=adapters.down.shape[2]))
    if adapters is None:
        albert.encoder = base.encoder
        return albert
    weights = {name: value for name, value in base.encoder.state_dict().items() if not name.startswith(ADAPTERS)}
    albert.encoder.load_state_dict(weights, strict=False, assign=True)
    albert.encoder.adapters = adapters.to(base.device)
    return albert.requires_grad_(False).train(base.albert.training)


def empty_head(
    base: Model, sides: Sides, pairs: bool, classes: int, examples: int = 0, kept: int = 0, *, spelling: Tensor
) -> FewShotHead:
    shape, pieces = base.config, pieces_for(pairs) * sides.tokens
    return FewShotHead(
        shape.hidden_size, shape.vocab_size, sides.depths, pieces, classes, sides.views, sides.bent, examples, kept,
        spelling if sides.characters else None,
    )  # fmt: skip


def _accuracy(told: np.ndarray | None, classes: np.ndarray) -> float | None:
    return None if told is None else float((told == classes)[told >= 0].mean())


def _mistakes(
    records: Sequence[TextInput], task: FewShot, told: np.ndarray | None, solution: Solution
) -> tuple[tuple[str, str, str], ...]:
    if told is None:
        return ()
    worst = solution.asked[np.argsort(-solution.losses)]
    wrong = [number for number in worst if task.labels[told[number]] != records[number].label]
    return tuple((records[number].shown, records[number].label, task.labels[told[number]]) for number in wrong[:SHOWN])
