"""The features of texts that few-shot learning chooses from, and the choice by leave-one-out.

Shapes: N texts, W windows of them, M means (a depth and a view each), H hidden, F features, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from litebert.errors import ConfigError
from litebert.fewshot.head import NGRAM_BUCKETS, FeatureView, concatenate, hash_ngrams, kernel, ngram_idf
from litebert.fewshot.ridge import DEFAULT_RIDGE, RidgeFit, fit_ridge, stratified_halves
from litebert.fewshot.task import FeatureTask, views_for
from litebert.inference.model import Model
from litebert.tasks.text import TextInput

MAX_LOSS_RATIO = 0.98
"""Another choice than the default must have a loss below this share of the default's."""
SPECIAL_TOKEN_FREQUENCY = 0.05
"""The assumed frequency of [CLS] and other special tokens."""
MIN_NGRAM_SHARE = 0.25
"""Character n-grams are a feature if so many tokens of a text have several: 81 % in English, 3 % in Chinese."""
MAX_SELECTION_EXAMPLES = 500
"""With more examples the default features do; comparing others would take longer than reading the texts."""
MAX_NESTED_EXAMPLES = 80
"""With more examples the choice is not made again without each of them, which would take too long."""
MIN_EXPONENTIAL_EXAMPLES = 80
"""Fewer examples cannot tell whether an exponential kernel helps (docs/log.md)."""
EXPONENTIAL_RIDGE = 0.3
"""The default penalty of an exponential kernel."""
HALF_SPLITS = 8


@dataclass(frozen=True)
class FeatureSet:
    """What texts are compared by: mean states after some passes, tokens and character n-grams."""

    depths: tuple[int, ...]
    tokens: bool
    """Of a pair: the overlap of the tokens of its texts."""
    views: tuple[FeatureView, ...] = ("whole",)
    exponential: bool = False
    """Whether the kernel is exponential; see `head.kernel`."""
    characters: bool = False

    @property
    def means(self) -> list[tuple[int, FeatureView]]:
        return [(depth, view) for depth in self.depths for view in self.views]

    @property
    def single_features(self) -> list[FeatureSet]:
        means = [FeatureSet((depth,), False, (view,)) for depth, view in self.means]
        return means + [FeatureSet((), True)] * self.tokens + [FeatureSet((), False, characters=True)] * self.characters


def candidate_feature_sets(layers: int, pairs: bool = False, characters: bool = True) -> list[FeatureSet]:
    """The feature sets to choose from, the default first. Pairs have no character n-grams."""
    characters = characters and not pairs
    early, middle = max(1, layers // 6), default_depth(layers)
    depths = [(early, layers), (middle, layers), (early,), (middle,), (layers,)]
    depths = [(early, middle), *depths] if characters else depths  # beside n-grams the last pass adds little
    unique = list(dict.fromkeys(tuple(sorted(set(chosen))) for chosen in depths))
    views = dict.fromkeys([views_for(pairs), views_for(pairs)[-1:], views_for(pairs)[:1]])
    candidates = [
        FeatureSet(chosen, lexical, view, characters=lexical and characters)
        for view in views for lexical in (True, False) for chosen in unique
    ]  # fmt: skip
    return [*candidates, FeatureSet((), True, views_for(pairs), characters=characters)]


def default_depth(layers: int) -> int:
    """After so many passes hidden states usually separate classes best."""
    return max(1, layers // 3)


def candidate_depths(model: Model) -> tuple[int, ...]:
    candidates = candidate_feature_sets(model.config.num_hidden_layers)
    return tuple(sorted({depth for features in candidates for depth in features.depths}))


@dataclass(frozen=True)
class Background:
    """Unlabelled texts: the number of their windows, and their mean features, (M, H)."""

    count: int
    mean: np.ndarray

    @classmethod
    def empty(cls, model: Model, pairs: bool = False) -> Background:
        means = len(candidate_depths(model)) * len(views_for(pairs))
        return cls(0, np.zeros((means, model.config.hidden_size), dtype=np.float32))

    def updated(self, means: np.ndarray) -> Background:  # (W, M, H)
        """With more windows."""
        total = self.count + len(means)
        return Background(total, (self.mean * (self.count / total) + means.sum(0) / total).astype(np.float32))


@dataclass(frozen=True)
class TextFeatures:
    """All features of some texts."""

    available: FeatureSet
    means: np.ndarray
    """(W, M, H)."""
    tokens: np.ndarray
    """(W, token features)."""
    owner: np.ndarray
    """(W,) the text of each window."""
    ngrams: np.ndarray | None = None
    """(W, NGRAM_BUCKETS); None for pairs."""

    def select(self, features: FeatureSet, centre: np.ndarray) -> np.ndarray:  # (N, F)
        """The mean over the windows of each text. Its scores are the mean of its windows' scores, approximately so with
        an exponential kernel."""
        means = torch.from_numpy((self.means - centre)[:, self.mean_indices(features)])
        lexical = [self.tokens] * features.tokens
        lexical += [self.ngrams] if features.characters and self.ngrams is not None else []
        rows = concatenate(means, *map(torch.from_numpy, lexical)).numpy()
        counts = np.bincount(self.owner)
        if (counts == 1).all():
            return rows
        total = np.zeros((len(counts), rows.shape[1]), dtype=np.float32)
        np.add.at(total, self.owner, rows)
        return (total / counts[:, None]).astype(np.float32)

    def mean_indices(self, features: FeatureSet) -> list[int]:
        return [self.available.means.index(mean) for mean in features.means]


class FeatureExtractor:
    """Computes all features of texts, or of pairs of them."""

    def __init__(self, model: Model, records: Sequence[TextInput], advance: Callable[[int], None]) -> None:
        self._model, self._advance = model, advance
        self.pairs = records[0].text_b is not None
        self.frequency = token_frequency(model, [text for record in records for text in record.texts])
        self.token_ngrams = token_ngrams(model)
        self.ngram_idf = ngram_idf(self.token_ngrams, self.frequency)
        self.characters = not self.pairs and ngrams_are_informative(self.token_ngrams, self.frequency)

    def extract(self, records: Sequence[TextInput]) -> TextFeatures:
        values, owner = self._compute(records, means_only=False)
        available = FeatureSet(candidate_depths(self._model), True, views_for(self.pairs), characters=self.characters)
        return TextFeatures(available, values["means"], values["tokens"], owner, values.get("ngrams"))

    def means(self, records: Sequence[TextInput]) -> np.ndarray:  # (W, M, H)
        return self._compute(records, means_only=True)[0]["means"]

    def _compute(self, records: Sequence[TextInput], means_only: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The features of all windows by name, and the text of each window."""
        model = self._model
        tables = self.frequency, self.token_ngrams, self.ngram_idf
        task = FeatureTask(candidate_depths(model), self.pairs, *tables, means_only)
        examples = task.features(records, model.tokenizer, model.max_length)
        rows = model.score_examples(task, examples, advance=self._advance)
        values = {name: torch.cat([row[name] for row in rows]).numpy() for name in rows[0]}
        return values, np.repeat(np.arange(len(rows)), [len(row["means"]) for row in rows])


def readable_names(labels: Sequence[str], wanted: bool | None) -> dict[int, str]:
    """The names of classes as texts, by class, if they are words. `wanted`: True requires some, False returns none."""
    names = [" ".join(re.sub(r"[_\-./:]+", " ", label).split()).lower() for label in labels]
    readable = {
        number: name
        for number, name in enumerate(names)
        if re.search(r"[^\W\d_]{2}", name) and not re.fullmatch(r"(label|class) ?\d+", name)
    }
    if wanted and not readable:
        raise ConfigError(
            f"the classes have no names to read ({', '.join(labels[:5])}); do without --label-names (label_names)"
        )
    return {} if wanted is False else readable


def token_frequency(model: Model, texts: Sequence[str]) -> Tensor:  # (V,)
    """The probability of each token by the tokenizer's scores or, without scores, by its count in the texts."""
    tokenizer, size = model.tokenizer, model.config.vocab_size
    scores = tokenizer.piece_scores()
    if scores is None:
        counts = np.bincount(np.concatenate(tokenizer.encode_ids(texts)).astype(int), minlength=size)
        frequency = (counts + 1) / (counts.sum() + size)
    else:
        frequency = np.exp(np.array(scores + [min(scores)] * (size - len(scores))))
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
    frequency[special] = SPECIAL_TOKEN_FREQUENCY
    return torch.from_numpy(np.clip(frequency, 1e-6, SPECIAL_TOKEN_FREQUENCY)).float()


def token_ngrams(model: Model) -> Tensor:  # (V, G)
    """The hashed character n-grams of each token, with a space where a word begins."""
    tokenizer, size = model.tokenizer, model.config.vocab_size
    tokens = tokenizer.vocabulary()
    marks_starts = any(token.startswith("▁") for token in tokens)  # otherwise ## marks what continues a word
    words = [token.replace("▁", " ") if marks_starts else f" {token}".removeprefix(" ##") for token in tokens]
    for special in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id):
        words[special] = ""
    return hash_ngrams([*words, *[""] * (size - len(words))])


def ngrams_are_informative(token_ngrams: Tensor, frequency: Tensor) -> bool:
    """Whether enough tokens have several n-grams; a Chinese token is mostly one character."""
    several = ((token_ngrams < NGRAM_BUCKETS).sum(1) > 1).float()
    total = frequency[frequency < SPECIAL_TOKEN_FREQUENCY].sum()
    return bool((several * frequency).sum() > MIN_NGRAM_SHARE * total)


class FeatureSelection:
    """Chooses the feature set, and whether names of classes are examples, by the leave-one-out loss."""

    def __init__(
        self, texts: TextFeatures, centre: np.ndarray, classes: np.ndarray, num_classes: int, named: np.ndarray,
        require_names: bool,
    ) -> None:  # fmt: skip
        """`classes` of the examples, which come first in `texts`; then the names of the classes `named`."""
        self._classes, self._num_classes, self._has_names = classes, num_classes, len(named) > 0
        self._owners = np.concatenate([classes, named])
        rows = {feature: texts.select(feature, centre) for feature in texts.available.single_features}
        self._cosines = {feature: values @ values.T for feature, values in rows.items()}
        available = texts.available
        candidates = candidate_feature_sets(max(available.depths), "apart" in available.views, available.characters)
        candidates = candidates[: 1 if len(classes) > MAX_SELECTION_EXAMPLES else None]
        if len(classes) > MIN_EXPONENTIAL_EXAMPLES:
            candidates = [*(replace(features, exponential=True) for features in candidates), *candidates]
        with_names = [True, False] if self._has_names and not require_names else [self._has_names]
        self._choices = [(features, use_names) for features in candidates for use_names in with_names]
        """The default first."""

    def best(self, examples: np.ndarray) -> tuple[FeatureSet, bool]:
        """The choice by these examples."""
        fits = [self._fit(*choice, examples)[0] for choice in self._choices]
        losses = np.array([fit.losses.sum() for fit in fits])
        if not len(fits[0].losses):  # nothing can be left out: the names of classes are some evidence at least
            return self._choices[0][0], self._has_names
        return self._choices[int(best_choice(losses[:, None])[0])]

    def leave_one_out_predictions(self) -> np.ndarray | None:  # (N,)
        """The class of each example by the choice and the fit without it, -1 for the only one of a class; None if all
        are.

        Of many examples a single one hardly changes the choice: there it is made by the losses of all others, some of
        which depend on the label of the example that is left out.
        """
        everything = np.arange(len(self._classes))
        predictions = np.full(len(everything), -1)
        if len(everything) <= MAX_NESTED_EXAMPLES:
            only = np.bincount(self._classes)[self._classes] == 1
            for example in everything[~only]:
                rest = np.delete(everything, example)
                features, use_names = self.best(rest)
                fit, rows = self._fit(features, use_names, rest)
                predictions[example] = (self._kernel(features)[example, rows] @ fit.weights).argmax()
        else:
            fits = [self._fit(*choice, everything)[0] for choice in self._choices]
            losses = np.stack([fit.losses for fit in fits])  # (choices, M)
            best = best_choice(losses.sum(1, keepdims=True) - losses)
            answers = np.stack([fit.left_out_scores.argmax(1) for fit in fits])
            predictions[fits[0].left_out] = answers[best, np.arange(len(best))]
        return predictions if (predictions >= 0).any() else None

    def _fit(self, features: FeatureSet, use_names: bool, examples: np.ndarray) -> tuple[RidgeFit, np.ndarray]:
        """The fit, and the rows that it uses."""
        names = np.arange(len(self._classes), len(self._owners)) if use_names else np.arange(0)
        rows = np.concatenate([examples, names])
        values, penalty = self._kernel(features)[np.ix_(rows, rows)], default_ridge(features.exponential)
        fit = fit_ridge(values, self._owners[rows], self._num_classes, len(names), coarse=True, ridge=penalty)
        return fit, rows

    def _kernel(self, features: FeatureSet) -> np.ndarray:
        cosines = np.mean([self._cosines[feature] for feature in features.single_features], axis=0)
        return _kernel_of_cosines(cosines, features.exponential)


def best_choice(losses: np.ndarray) -> np.ndarray:  # (choices, M) -> (M,)
    """The first choice that is hardly worse than the best."""
    first: np.ndarray = (MAX_LOSS_RATIO * losses <= losses.min(0)).argmax(0)
    return first


def default_ridge(exponential: bool) -> float:
    return EXPONENTIAL_RIDGE if exponential else DEFAULT_RIDGE


def kernel_matrix(rows: np.ndarray, exponential: bool) -> np.ndarray:  # (N, F) -> (N, N)
    return _kernel_of_cosines(rows @ rows.T, exponential)


def _kernel_of_cosines(cosines: np.ndarray, exponential: bool) -> np.ndarray:
    values: np.ndarray = kernel(torch.from_numpy(cosines), exponential).numpy()
    return values


def accuracy_with_half(matrix: np.ndarray, owners: np.ndarray, num_examples: int, ridge: float) -> float | None:
    """The accuracy on one half of the examples by a fit to the other half; None where a class has fewer than four.
    After the examples the kernel matrix has names of classes."""
    classes, num_classes = owners[:num_examples], int(owners.max()) + 1
    if np.bincount(classes, minlength=num_classes).min() < 4:
        return None
    names = np.arange(num_examples, len(matrix))
    accuracies = []
    for half, rest in stratified_halves(classes, HALF_SPLITS):
        rows = np.concatenate([half, names])
        fit = fit_ridge(matrix[np.ix_(rows, rows)], owners[rows], num_classes, len(names), coarse=True, ridge=ridge)
        accuracies.append(((matrix[np.ix_(rest, rows)] @ fit.weights).argmax(1) == classes[rest]).mean())
    return float(np.mean(accuracies))
