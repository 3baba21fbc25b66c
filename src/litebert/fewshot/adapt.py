"""Few-shot classification with a frozen encoder: what `litebert.adapt` returns.

The examples are read once, as several features. Leave-one-out decides which of these are used; the classifier is fitted
in closed form (`ridge.py`).

Shapes: N examples, W windows of them, M means, H hidden, F features, C classes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from litebert.errors import ConfigError, DataError
from litebert.fewshot.feature_sets import (
    Background,
    FeatureExtractor,
    FeatureSelection,
    FeatureSet,
    accuracy_with_half,
    default_ridge,
    kernel_matrix,
    readable_names,
)
from litebert.fewshot.head import FewShotHead
from litebert.fewshot.ridge import RidgeFit, fit_ridge
from litebert.fewshot.support_set import LeaveOneOutReport, SupportSet, Tuning, renamed_attribute
from litebert.fewshot.task import FewShot, class_levels, familiarity, token_features_for
from litebert.files import HASH_FILE, atomic_path, file_sha256, read_json, write_json
from litebert.inference.model import Model
from litebert.model import Albert
from litebert.model.lora import DepthAdapters
from litebert.tasks.text import TextInput

SETTINGS, TENSORS, ADAPTERS, BACKGROUND = "few_shot.json", "few_shot.safetensors", "adapters.", "around"
TENSOR_NAMES = {"ngram_idf": "surprise", "example_index": "owners", "feature_index": "places"}
"""Buffers of the head that have another name in the file."""
MAX_UNLABELLED = 2000
"""Of more texts, evenly spaced ones are used."""
MAX_MISTAKES = 5


class Adapted(Model):
    """A few-shot classifier. It shares its encoder with the model it was adapted from."""

    def __init__(
        self, base: Model, task: FewShot, head: FewShotHead, support: SupportSet, evidence: LeaveOneOutReport,
        tuning: Tuning | None = None, adapters: DepthAdapters | None = None,
    ) -> None:  # fmt: skip
        albert = share_encoder(base, adapters)
        albert.heads = nn.ModuleDict({task.head_name: head})
        super().__init__(albert, base.tokenizer, task, base.max_length, base.sentence_map)
        self.base, self.support, self.source, self.bf16 = base, support, base.source, base.bf16
        self.evidence = evidence
        """How well it does, by leave-one-out."""
        self.tuning, self.adapters = tuning, adapters

    def __getattr__(self, name: str) -> Any:
        return renamed_attribute(self, name, {"given": "support"})

    def to(self, device: str | torch.device) -> Model:
        """Move it, and the model it was adapted from."""
        self.base.to(device)
        return super().to(device)

    @property
    def few_shot(self) -> FewShot:
        assert isinstance(self.task, FewShot)
        return self.task

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        return self.few_shot.labels

    @property
    def levels(self) -> list[float]:
        """The typical score of each class for its own texts."""
        return self.few_shot.levels

    def scores_of(self, records: Sequence[TextInput]) -> np.ndarray:  # (N, C)
        """The scores of the classes, before the softmax."""
        examples = self.few_shot.features(records, self.tokenizer, self.max_length)
        rows = self.score_examples(self.few_shot, examples)
        return np.stack([row["scores"].mean(0).numpy() for row in rows]).astype(np.float64)

    def add_examples(self, texts: Sequence[str], labels: Sequence[Any]) -> Adapted:
        """A new model with more examples, of known classes or new ones. Nothing is trained; all examples are read."""
        return adapt_frozen(self, texts, labels)

    def add_class(self, label: Any, texts: Sequence[str]) -> Adapted:
        """A new model with one more class."""
        if str(label) in self.labels:
            raise DataError(f"class {label!r} is there already; give it more examples with add_examples")
        if isinstance(texts, str) or not texts:
            raise DataError(f"add_class takes a list of texts; give some that are {label!r}")
        return self.add_examples(texts, [label] * len(texts))

    def save(self, path: str | Path, half: bool = False) -> None:
        """Write a small folder with the examples and the classifier. It refers to the folder of the base model, which
        must stay; a fully tuned model is saved with it. `half` changes nothing."""
        path = Path(path)
        is_whole = self.evidence.tier == "full"
        if self.source is None and not is_whole:
            raise ConfigError("the model was adapted in memory only; save it, load it from its folder and adapt that")
        if (path / "config.json").exists():
            raise ConfigError(f"{path} holds a whole model (config.json); choose another folder")
        head: Any = self.albert.heads[FewShot.head_name]
        tensors = {TENSOR_NAMES.get(name, name): value for name, value in head.state_dict().items()}
        if self.adapters is not None:
            tensors |= {f"{ADAPTERS}{name}": value for name, value in self.adapters.state_dict().items()}
        tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
        if is_whole:
            self.base.save(path)
        with atomic_path(path / TENSORS) as temporary:
            background = torch.from_numpy(self.support.background.mean)
            safetensors.torch.save_file(tensors | {BACKGROUND: background}, temporary)
        hashes = read_json(path / HASH_FILE) if is_whole else {}
        write_json(path / HASH_FILE, hashes | {TENSORS: file_sha256(path / TENSORS)})
        home = path.resolve() if is_whole else self.source
        reference = {"folder": os.path.relpath(home, path.resolve())} if isinstance(home, Path) else {"name": home}
        write_json(path / SETTINGS, {
            "model": reference, "encoder": self.base.encoder_fingerprint(), "labels": self.labels,
            "levels": self.levels, "familiar": self.few_shot.familiar, "evidence": self.evidence.to_json(),
            "label_names": self.support.label_names, "tuning": self.tuning and self.tuning.to_json(),
            BACKGROUND: self.support.background.count,
            "examples": [[*record.texts, record.label] for record in self.support.records],
        })  # fmt: skip


def adapt_frozen(
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
    """A classifier from a few labelled texts, or pairs of them, with a frozen encoder: `litebert.adapt` without tuning.

    An adapted model gets the examples in addition to its own. The parameters are those of `litebert.adapt`.
    """
    _check_arguments(model, texts, labels, unlabelled, label_names)
    pairs = not isinstance(next(iter(texts)), str)
    records: tuple[TextInput, ...] = ()
    background = Background.empty(model, pairs)
    if isinstance(model, Adapted):
        records, background = model.support.records, model.support.background
        label_names = model.support.label_names if label_names is None else label_names
    where = [f"{record.shown[:30]!r} of before" for record in records]
    where += places or [f"example {number}" for number in range(1, len(texts) + 1)]
    all_texts = [*(as_input(record) for record in records), *texts]
    all_labels = [*(record.label for record in records), *labels]
    support = SupportSet.from_texts(all_texts, all_labels, where, label_names, background, skip_conflicts)
    unlabelled = evenly_spaced(unlabelled, MAX_UNLABELLED)
    if isinstance(model, Adapted):
        return fit_adapted(model.base, support, unlabelled, advance, tuning=model.tuning, adapters=model.adapters)
    return fit_adapted(model, support, unlabelled, advance)


def _check_arguments(
    model: Any, texts: Sequence[Any], labels: Sequence[Any], unlabelled: Sequence[Any], label_names: bool | None
) -> None:
    if not isinstance(model, Model):
        raise ConfigError(f"adapt takes a model, not {str(model)[:40]!r}; give it litebert.load(name)")
    if isinstance(texts, str) or not len(texts) or len(texts) != len(labels):
        raise DataError(f"adapt takes a list of texts and as many labels; got {len(texts)} and {len(labels)}")
    if not all(isinstance(text, str) and text.strip() for text in unlabelled):
        raise DataError("unlabelled must be strings that are not empty; leave the others out")
    if not isinstance(next(iter(texts)), str) and (label_names or len(unlabelled)):
        raise ConfigError("names of classes and unlabelled texts do not work with pairs; leave them out")


def as_input(record: TextInput) -> str | tuple[str, str]:
    """The text or the pair of a record."""
    return record.text if record.text_b is None else (record.text, record.text_b)


def evenly_spaced(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, from everywhere."""
    return [texts[int(place)] for place in np.arange(0, len(texts), max(1.0, len(texts) / most))]


def fit_adapted(
    base: Model, support: SupportSet, unlabelled: Sequence[str] = (),
    advance: Callable[[int], None] = lambda count: None,
    *, tuning: Tuning | None = None, adapters: DepthAdapters | None = None, evaluate: bool = True,
) -> Adapted:  # fmt: skip
    """Read the examples and fit the classifier. A tuned model takes its choices and its results from `tuning`. Without
    `evaluate` there is no leave-one-out accuracy."""
    began = time.perf_counter()
    records, task = support.records, FewShot.learn_labels(support.records)
    classes, num_classes = np.array(task.targets(records)), len(task.labels)
    more = [TextInput(text) for text in unlabelled]
    extractor = FeatureExtractor(_with_adapters(base, adapters), [*records, *more], advance)
    # the name of a class is a text, not a pair
    wanted = False if task.pairs else support.label_names if tuning is None else tuning.label_names
    names = readable_names(task.labels, wanted)
    texts = extractor.extract([*records, *(TextInput(name) for name in names.values())])
    background = support.background.updated(extractor.means(more)) if more else support.background
    # the names are included: a centre of examples only would be nearer to the one that is left out than to the names
    centre = background.updated(texts.means).mean
    named = np.array(list(names), dtype=int)
    predictions = None
    if tuning is None:
        require_names = bool(support.label_names)
        selection = FeatureSelection(texts, centre, classes, num_classes, named, require_names)
        features, use_names = selection.best(np.arange(len(records)))
        predictions = selection.leave_one_out_predictions() if evaluate else None
    else:
        features, use_names = tuning.features, bool(names)
    rows = texts.select(features, centre)[: len(records) + use_names * len(names)]
    owners = np.concatenate([classes, named])[: len(rows)]
    matrix = kernel_matrix(rows, features.exponential)
    fit = fit_ridge(matrix, owners, num_classes, len(rows) - len(records), ridge=tuning.ridge if tuning else 0.0)
    levels, familiar = _calibrate_familiarity(fit, matrix, np.bincount(classes, minlength=num_classes))
    half = None
    if predictions is not None:
        half = accuracy_with_half(matrix, owners, len(records), default_ridge(features.exponential))
    report = LeaveOneOutReport(
        len(records), num_classes, _accuracy(predictions, classes),
        max(Counter(classes.tolist()).values()) / len(classes), half,
        features.depths, features.tokens, use_names, fit.ridge, time.perf_counter() - began,
        _mistakes(records, task, predictions, fit), support.remarks, features.views, exponential=features.exponential,
        num_left_out=sum(size for size in Counter(classes.tolist()).values() if size > 1),
        characters=features.characters,
    )  # fmt: skip
    weights = fit.weights
    if tuning is not None:
        report, familiar = _held_out_report(report, tuning), tuning.familiar
        factor = tuning.scale / fit.scale
        weights, levels = weights * factor, [level * factor for level in levels]
    head = empty_head(base, features, extractor.pairs, num_classes, token_ngrams=extractor.token_ngrams)
    head.set_tables(extractor.frequency, extractor.ngram_idf, centre[texts.mean_indices(features)])
    head.set_examples(torch.from_numpy(rows), torch.from_numpy(weights).float())
    support = SupportSet(records, support.label_names, background)
    return Adapted(base, FewShot(task.labels, levels, familiar, task.pairs), head, support, report, tuning, adapters)


def _calibrate_familiarity(fit: RidgeFit, matrix: np.ndarray, sizes: np.ndarray) -> tuple[list[float], Sequence[float]]:
    """The level of each class, and the familiarity of the examples."""
    if not len(fit.truth):
        return [1.0] * len(sizes), ()
    levels = class_levels(fit.left_out_scores, fit.truth, sizes)
    # among near duplicates, an example that is left out would look more familiar than one that is there
    present = matrix[fit.left_out] @ fit.weights
    return levels, np.minimum(familiarity(fit.left_out_scores, levels), familiarity(present, levels)).tolist()


def _held_out_report(report: LeaveOneOutReport, tuning: Tuning) -> LeaveOneOutReport:
    """The report of a tuned model, whose leave-one-out results would flatter it."""
    remarks = report.remarks
    if 0 < tuning.examples < report.examples:
        added = report.examples - tuning.examples
        remarks += (f"{added:,} examples were added after the tuning and are not in the accuracy",)
    return replace(report, accuracy=tuning.accuracy, mistakes=tuning.mistakes, tier=tuning.tier, remarks=remarks)


def _with_adapters(base: Model, adapters: DepthAdapters | None) -> Model:
    if adapters is None:
        return base
    model = Model(share_encoder(base, adapters), base.tokenizer, max_length=base.max_length)
    model.bf16 = base.bf16
    return model


def share_encoder(base: Model, adapters: DepthAdapters | None) -> Albert:
    """The encoder of a model without its heads; with adapters, a new encoder that shares the weights."""
    with torch.device("meta"):  # the weights are replaced at once
        albert = Albert(base.config if adapters is None else replace(base.config, lora_rank=adapters.down.shape[2]))
    if adapters is None:
        albert.encoder = base.encoder
        return albert
    weights = {name: value for name, value in base.encoder.state_dict().items() if not name.startswith(ADAPTERS)}
    albert.encoder.load_state_dict(weights, strict=False, assign=True)
    albert.encoder.adapters = adapters.to(base.device)
    return albert.requires_grad_(False).train(base.albert.training)


def empty_head(
    base: Model, features: FeatureSet, pairs: bool, num_classes: int, num_examples: int = 0, num_nonzero: int = 0, *,
    token_ngrams: Tensor,
) -> FewShotHead:  # fmt: skip
    shape, num_token_features = base.config, token_features_for(pairs) * features.tokens
    return FewShotHead(
        shape.hidden_size, shape.vocab_size, features.depths, num_token_features, num_classes, features.views,
        features.exponential, num_examples, num_nonzero, token_ngrams if features.characters else None,
    )  # fmt: skip


def _accuracy(predictions: np.ndarray | None, classes: np.ndarray) -> float | None:
    return None if predictions is None else float((predictions == classes)[predictions >= 0].mean())


def _mistakes(
    records: Sequence[TextInput], task: FewShot, predictions: np.ndarray | None, fit: RidgeFit
) -> tuple[tuple[str, str, str], ...]:
    if predictions is None:
        return ()
    worst = fit.left_out[np.argsort(-fit.losses)]
    wrong = [number for number in worst if task.labels[predictions[number]] != records[number].label]
    return tuple(
        (records[number].shown, records[number].label, task.labels[predictions[number]])
        for number in wrong[:MAX_MISTAKES]
    )
