"""Texts as `adapt` looks at them, and which ways of looking tell its examples apart.

Shapes: N texts, W windows of them, M means (a depth and a view each), H hidden, P pieces, F features, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from litebert.errors import ConfigError
from litebert.fewshot.head import LETTERS, View, features_of, likeness, spelled, surprise_of
from litebert.fewshot.ridge import USUAL_RIDGE, Solution, halves, solve
from litebert.fewshot.task import Reading, views_of
from litebert.inference.model import Model
from litebert.tasks.text import TextInput

BETTER = 0.98
"""The loss of something else than the usual must be below this share of its loss."""
SPECIAL = 0.05
"""How frequent [CLS] and its like are taken to be."""
SPELLED = 0.25
"""So many of the tokens of a text must have several runs of characters, or these are no side: of English 81 % have, of
Chinese 3 %."""
CLEAR = 500
"""With more examples than these the usual sides do, and all others would take longer than reading."""
NESTED = 80
"""With more examples it would take too long to choose again without each."""
BENDING = 80
"""With more examples likeness may be bent; fewer cannot tell whether it should (docs/log.md)."""
BENT_RIDGE = 0.3
"""What `USUAL_RIDGE` is, where likeness is bent."""
HALVINGS = 8


@dataclass(frozen=True)
class Sides:
    """From where a text is looked at: after some passes, and its tokens and characters as they stand."""

    depths: tuple[int, ...]
    tokens: bool
    """Or, of a pair, how many of them its texts share."""
    views: tuple[View, ...] = ("whole",)
    bent: bool = False
    """Does what is nearly equal count for more than in proportion? See `likeness`."""
    characters: bool = False

    @property
    def means(self) -> list[tuple[int, View]]:
        return [(depth, view) for depth in self.depths for view in self.views]


def candidates(layers: int, pairs: bool = False, characters: bool = True) -> list[Sides]:
    """The usual ones first. Characters are never a side of pairs."""
    characters = characters and not pairs
    early, middle = max(1, layers // 6), usual_depth(layers)
    depths = [(early, layers), (middle, layers), (early,), (middle,), (layers,)]
    depths = [(early, middle), *depths] if characters else depths  # beside characters the last pass adds little
    unique = list(dict.fromkeys(tuple(sorted(set(some))) for some in depths))
    views = dict.fromkeys([views_of(pairs), views_of(pairs)[-1:], views_of(pairs)[:1]])
    found = [
        Sides(some, written, view, characters=written and characters)
        for view in views for written in (True, False) for some in unique
    ]  # fmt: skip
    return [*found, Sides((), True, views_of(pairs), characters=characters)]


def usual_depth(layers: int) -> int:
    """After so many passes texts of classes usually tell most."""
    return max(1, layers // 3)


@dataclass(frozen=True)
class Around:
    """Texts without labels: how many windows of them, and their mean, (M, H)."""

    count: int
    mean: np.ndarray

    @classmethod
    def none(cls, model: Model, pairs: bool = False) -> Around:
        means = len(depths_of(model)) * len(views_of(pairs))
        return cls(0, np.zeros((means, model.config.hidden_size), dtype=np.float32))

    def with_more(self, means: np.ndarray) -> Around:
        total = self.count + len(means)
        return Around(total, (self.mean * (self.count / total) + means.sum(0) / total).astype(np.float32))

    def centre(self, means: np.ndarray) -> np.ndarray:  # (W, M, H) -> (M, H)
        """Of these and those."""
        return self.with_more(means).mean


@dataclass(frozen=True)
class Seen:
    """Texts from all sides."""

    all: Sides
    means: np.ndarray
    """(W, M, H)."""
    tokens: np.ndarray
    """(W, places)."""
    owner: np.ndarray
    """(W,) which text a window belongs to."""
    letters: np.ndarray | None = None
    """(W, places) runs of characters; not of pairs."""

    def from_sides(self, sides: Sides, centre: np.ndarray) -> np.ndarray:  # (N, F)
        """The mean of the windows of each text. Its scores will be the mean of the windows' scores: the same, or where
        likeness is bent nearly the same."""
        means = torch.from_numpy((self.means - centre)[:, self.places(sides)])
        writing = [self.tokens] * sides.tokens + (
            [self.letters] if sides.characters and self.letters is not None else []
        )
        rows = features_of(means, *map(torch.from_numpy, writing)).numpy()
        counts = np.bincount(self.owner)
        if (counts == 1).all():
            return rows
        found = np.zeros((len(counts), rows.shape[1]), dtype=np.float32)
        np.add.at(found, self.owner, rows)
        return (found / counts[:, None]).astype(np.float32)

    def places(self, sides: Sides) -> list[int]:
        """Of their means among all."""
        return [self.all.means.index(one) for one in sides.means]


class Reader:
    """Reads texts, or pairs of them, from all sides."""

    def __init__(self, model: Model, records: Sequence[TextInput], advance: Callable[[int], None]) -> None:
        self._model, self._advance = model, advance
        self.pairs = records[0].text_b is not None
        self.frequency = frequency_of(model, [text for record in records for text in record.texts])
        self.spelling = spelling_of(model)
        self.surprise = surprise_of(self.spelling, self.frequency)
        self.characters = not self.pairs and spells(self.spelling, self.frequency)

    def __call__(self, records: Sequence[TextInput]) -> Seen:
        found, owner = self._read(records, means_alone=False)
        everything = Sides(depths_of(self._model), True, views_of(self.pairs), characters=self.characters)
        return Seen(everything, found["means"], found["tokens"], owner, found.get("letters"))

    def means(self, records: Sequence[TextInput]) -> np.ndarray:  # (W, M, H)
        """Of texts of which the writing says nothing."""
        return self._read(records, means_alone=True)[0]["means"]

    def _read(self, records: Sequence[TextInput], means_alone: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What windows look like, by side, and to which text each belongs."""
        model = self._model
        tables = self.frequency, self.spelling, self.surprise
        reading = Reading(depths_of(model), self.pairs, *tables, means_alone)
        examples = reading.features(records, model.tokenizer, model.max_length)
        rows = model.score_examples(reading, examples, advance=self._advance)
        found = {name: torch.cat([row[name] for row in rows]).numpy() for name in rows[0]}
        return found, np.repeat(np.arange(len(rows)), [len(row["means"]) for row in rows])


def readable(labels: Sequence[str], wanted: bool | None) -> dict[int, str]:
    """The names of classes as texts, by the class, where they are words and somebody wants them."""
    names = [" ".join(re.sub(r"[_\-./:]+", " ", label).split()).lower() for label in labels]
    found = {
        number: name
        for number, name in enumerate(names)
        if re.search(r"[^\W\d_]{2}", name) and not re.fullmatch(r"(label|class) ?\d+", name)
    }
    if wanted and not found:
        raise ConfigError(
            f"the classes have no names to read ({', '.join(labels[:5])}); do without --label-names (label_names)"
        )
    return {} if wanted is False else found


def depths_of(model: Model) -> tuple[int, ...]:
    """All that are looked at."""
    return tuple(sorted({depth for sides in candidates(model.config.num_hidden_layers) for depth in sides.depths}))


def frequency_of(model: Model, texts: Sequence[str]) -> Tensor:  # (V,)
    """By the vocabulary, or where it does not say, by the texts."""
    tokenizer, size = model.tokenizer, model.config.vocab_size
    scores = tokenizer.piece_scores()
    if scores is None:
        counts = np.bincount(np.concatenate(tokenizer.encode_ids(texts)).astype(int), minlength=size)
        found = (counts + 1) / (counts.sum() + size)
    else:
        found = np.exp(np.array(scores + [min(scores)] * (size - len(scores))))
    found[[tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]] = SPECIAL
    return torch.from_numpy(np.clip(found, 1e-6, SPECIAL)).float()


def spelling_of(model: Model) -> Tensor:  # (V, R)
    """The runs of characters in each token, with a space where a word begins."""
    tokenizer, size = model.tokenizer, model.config.vocab_size
    tokens = tokenizer.vocabulary()
    marked = any(token.startswith("▁") for token in tokens)  # else what continues a word is: ##
    words = [token.replace("▁", " ") if marked else f" {token}".removeprefix(" ##") for token in tokens]
    for number in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id):
        words[number] = ""
    return spelled([*words, *[""] * (size - len(words))])


def spells(spelling: Tensor, frequency: Tensor) -> bool:
    """Do tokens have runs of characters that say more than the tokens? In Chinese a token mostly is one character."""
    several = ((spelling < LETTERS).sum(1) > 1).float()
    return bool((several * frequency).sum() > SPELLED * frequency[frequency < SPECIAL].sum())


class Choice:
    """From which sides examples that are left out are told best, and whether names of classes help."""

    def __init__(
        self, seen: Seen, centre: np.ndarray, classes: np.ndarray, count: int, named: np.ndarray, forced: bool
    ) -> None:
        """Behind the examples, of these classes, stand names of the classes `named`; `forced`: they must be used."""
        self._classes, self._count, self._named = classes, count, len(named) > 0
        self._owners = np.concatenate([classes, named])
        alone = {one: seen.from_sides(one, centre) for one in _single(seen.all)}
        self._cosines = {one: rows @ rows.T for one, rows in alone.items()}
        pairs = "apart" in seen.all.views
        sides = candidates(max(seen.all.depths), pairs, seen.all.characters)[: 1 if len(classes) > CLEAR else None]
        if len(classes) > BENDING:
            sides = [*(replace(one, bent=True) for one in sides), *sides]
        with_names = [True, False] if self._named and not forced else [self._named]
        self._possible = [(one, use_names) for one in sides for use_names in with_names]
        """The usual first."""

    def made_with(self, kept: np.ndarray) -> tuple[Sides, bool]:
        """By these examples alone."""
        solutions = [self._solve(*one, kept)[0] for one in self._possible]
        losses = np.array([solution.losses.sum() for solution in solutions])
        if not len(solutions[0].losses):  # nothing to go by: names say something at least
            return self._possible[0][0], self._named
        return self._possible[int(_best(losses[:, None])[0])]

    def told(self) -> np.ndarray | None:
        """(N,) what each example is called by the choice and the solution without it; None where none can be left out.

        Of many examples a single one hardly decides: there the choice is that by the losses of all others, with its
        own label behind some of them.
        """
        everybody = np.arange(len(self._classes))
        found = np.full(len(everybody), -1)
        if len(everybody) <= NESTED:
            alone = np.bincount(self._classes)[self._classes] == 1
            for one in everybody[~alone]:
                kept = np.delete(everybody, one)
                sides, use_names = self.made_with(kept)
                solution, rows = self._solve(sides, use_names, kept)
                found[one] = (self._likeness(sides)[one, rows] @ solution.weights).argmax()
        else:
            solutions = [self._solve(*one, everybody)[0] for one in self._possible]
            losses = np.stack([solution.losses for solution in solutions])  # (choices, M)
            best = _best(losses.sum(1, keepdims=True) - losses)
            answers = np.stack([solution.left_out.argmax(1) for solution in solutions])
            found[solutions[0].asked] = answers[best, np.arange(len(best))]
        return found if (found >= 0).any() else None

    def _solve(self, sides: Sides, use_names: bool, kept: np.ndarray) -> tuple[Solution, np.ndarray]:
        """And the rows it is made of."""
        names = np.arange(len(self._classes), len(self._owners)) if use_names else np.arange(0)
        rows = np.concatenate([kept, names])
        owners, alike = self._owners[rows], self._likeness(sides)[np.ix_(rows, rows)]
        return solve(alike, owners, self._count, len(names), roughly=True, ridge=usual_ridge(sides.bent)), rows

    def _likeness(self, sides: Sides) -> np.ndarray:
        return _likeness(np.mean([self._cosines[one] for one in _single(sides)], axis=0), sides.bent)


def _best(losses: np.ndarray) -> np.ndarray:  # (choices, M) -> (M,)
    """The first of those that are hardly worse than the lowest."""
    found: np.ndarray = (BETTER * losses <= losses.min(0)).argmax(0)
    return found


def _single(sides: Sides) -> list[Sides]:
    """One by one."""
    found = [Sides((depth,), False, (view,)) for depth, view in sides.means] + [Sides((), True)] * sides.tokens
    return found + [Sides((), False, characters=True)] * sides.characters


def usual_ridge(bent: bool) -> float:
    return BENT_RIDGE if bent else USUAL_RIDGE


def likeness_of(rows: np.ndarray, bent: bool) -> np.ndarray:  # (N, F) -> (N, N)
    return _likeness(rows @ rows.T, bent)


def _likeness(cosines: np.ndarray, bent: bool) -> np.ndarray:
    found: np.ndarray = likeness(torch.from_numpy(cosines), bent).numpy()
    return found


def with_half(alike: np.ndarray, owners: np.ndarray, examples: int, ridge: float) -> float | None:
    """How many of one half of the examples the other half gets right; None where a class has fewer than four. Behind
    the examples stand names of classes."""
    classes, count = owners[:examples], int(owners.max()) + 1
    if np.bincount(classes, minlength=count).min() < 4:
        return None
    right = []
    for some, rest in halves(classes, HALVINGS):
        kept = np.concatenate([some, np.arange(examples, len(alike))])
        solution = solve(
            alike[np.ix_(kept, kept)], owners[kept], count, len(alike) - examples, roughly=True, ridge=ridge
        )
        right.append(((alike[np.ix_(rest, kept)] @ solution.weights).argmax(1) == classes[rest]).mean())
    return float(np.mean(right))
