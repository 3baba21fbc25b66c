"""Small tasks drawn from a large table: some classes, a few examples of each to learn from, and questions.

What an episode holds is a pure function of (seed, number). Classes that are learned from, chosen by and tested on are
never the same. A file of episodes holds numbers of rows and a hash of the table that they count in:

{"format": 1, "data": "few.csv", "sha256": "…", "columns": []}
{"support": [[12, 7], [31, 40]], "questions": [[3, 5, 9], [33, 38, 36]]}    a list of rows for each class
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from litebert.errors import ConfigError, DataError
from litebert.files import atomic_write, file_sha256

FORMAT = 1
SPLITS = ("train", "valid", "test")
HELD_OUT_FRACTION = 0.2
"""The share of the classes that each of valid and test gets."""
ClassRows = Mapping[str, Sequence[int]]
"""The rows of each class."""

_SHAPE_TERM = re.compile(r"(\d+)(?:-(\d+))?-(way|shot|queries|episodes)")


@dataclass(frozen=True)
class EpisodeShape:
    """What episodes look like; where there are two numbers, every episode draws one between them."""

    way: tuple[int, int] = (5, 5)
    """Classes."""
    shot: tuple[int, int] = (1, 5)
    """Examples of each to learn from."""
    queries: int = 5
    """Questions about each."""
    episodes: int = 100

    def __post_init__(self) -> None:
        for name, least, (low, high) in (
            ("way", 2, self.way), ("shot", 1, self.shot), ("queries", 1, (self.queries,) * 2),
            ("episodes", 1, (self.episodes,) * 2),
        ):  # fmt: skip
            if not least <= low <= high:
                raise ConfigError(
                    f"episodes={_shape_term(low, high, name)!r} must be {least} or more, the smaller number first"
                )

    @classmethod
    def parse(cls, words: Sequence[str], default: EpisodeShape | None = None) -> EpisodeShape:
        """From `5-way 1-5-shot 15-queries 600-episodes`, in any order; what is not said is as in the default."""
        found: dict[str, tuple[int, int] | int] = {}
        for word in words:
            match = _SHAPE_TERM.fullmatch(word)
            if match is None or (match[2] and match[3] in ("queries", "episodes")):
                raise ConfigError(
                    f"episodes={word!r} cannot be read; write 5-way, 2-10-way, 1-shot, 1-5-shot, 15-queries or "
                    "600-episodes"
                )
            low, high = int(match[1]), int(match[2] or match[1])
            found[match[3]] = (low, high) if match[3] in ("way", "shot") else low
        return replace(default or cls(), **found)  # type: ignore[arg-type]

    @staticmethod
    def is_meant(words: Sequence[str]) -> bool:
        """Are these such words, and not the name of a file?"""
        return all(_SHAPE_TERM.fullmatch(word) for word in words)

    @property
    def name(self) -> str:
        """How many classes and examples, in such words."""
        return f"{_shape_term(*self.way, 'way')} {_shape_term(*self.shot, 'shot')}"

    @property
    def examples(self) -> int:
        """Of a class, at most."""
        return self.shot[1] + self.queries


def _shape_term(low: int, high: int, name: str) -> str:
    return f"{low}-{name}" if low == high else f"{low}-{high}-{name}"


@dataclass(frozen=True)
class Episode:
    """Rows of a table, class by class."""

    support: tuple[tuple[int, ...], ...]
    """To learn from."""
    questions: tuple[tuple[int, ...], ...]

    @property
    def way(self) -> int:
        return len(self.support)

    def rows(self) -> tuple[list[int], list[int]]:
        """Those to learn from and those to answer, each as one list, class after class."""
        return [row for some in self.support for row in some], [row for some in self.questions for row in some]

    def classes(self) -> tuple[np.ndarray, np.ndarray]:
        """The class of each of these, counted from 0."""
        kinds = self.support, self.questions
        support, questions = (np.repeat(np.arange(self.way), [len(some) for some in kind]) for kind in kinds)
        return support, questions


def rows_by_class(texts: Sequence[str], labels: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each class. Of equal texts the first counts: else a question could stand among its own examples."""
    found: dict[str, list[int]] = {}
    seen: set[str] = set()
    for row, (text, label) in enumerate(zip(texts, labels, strict=True)):
        key = " ".join(text.casefold().split())
        if key not in seen:
            seen.add(key)
            found.setdefault(label, []).append(row)
    return found


def split_classes(pool: ClassRows, seed: int) -> dict[str, ClassRows]:
    """Its classes to learn from, to choose by and to test on: three fifths, one and one, by seed."""
    names = sorted(pool)
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    held = round(len(names) * HELD_OUT_FRACTION)
    parts = zip(SPLITS, (order[2 * held :], order[:held], order[held : 2 * held]), strict=True)
    return {part: {name: pool[name] for name in sorted(some)} for part, some in parts}


def check_disjoint_classes(parts: Mapping[str, ClassRows | Sequence[str]]) -> None:
    """No class may be in two of these, which are named as their owner calls them."""
    for (one, left), (other, right) in combinations(parts.items(), 2):
        if common := sorted(set(left) & set(right)):
            shown = ", ".join(map(repr, common[:5])) + (" and others" if len(common) > 5 else "")
            raise DataError(
                f"{len(common)} class(es) are in {one} and in {other}: {shown}; what is measured on classes that were "
                "learned from says nothing about new ones: take them out of one, or rename them if they are others"
            )


def classes_with_enough_rows(pool: ClassRows, shape: EpisodeShape, where: str) -> ClassRows:
    """The classes with enough examples; too few of them are an error."""
    enough = {name: rows for name, rows in pool.items() if len(rows) >= shape.examples}
    if len(enough) < shape.way[1]:
        raise DataError(
            f"{where}: {len(enough)} of {len(pool)} classes have the {shape.examples} different examples that "
            f"{shape.shot[1]}-shot with {shape.queries} queries needs, and {shape.way[1]}-way takes {shape.way[1]} "
            "classes; ask for less with --episodes, or give more"
        )
    return enough


def draw_episode(pool: ClassRows, shape: EpisodeShape, seed: int, number: int) -> Episode:
    """One episode, from a pool that `classes_with_enough_rows` has let through."""
    chance = np.random.Generator(np.random.Philox(key=[seed, number]))
    way, shot = (int(chance.integers(low, high + 1)) for low, high in (shape.way, shape.shot))
    names = sorted(pool)
    chosen = [names[i] for i in chance.choice(len(names), way, replace=False)]
    rows = [chance.choice(np.asarray(pool[name]), shot + shape.queries, replace=False).tolist() for name in chosen]
    return Episode(tuple(tuple(some[:shot]) for some in rows), tuple(tuple(some[shot:]) for some in rows))


@dataclass(frozen=True)
class EpisodeFile:
    """A file of episodes."""

    data: Path
    columns: tuple[str, ...]
    episodes: list[Episode]

    def write(self, path: Path) -> None:
        head = {"format": FORMAT, "data": os.path.relpath(self.data, path.resolve().parent)}
        head |= {"sha256": file_sha256(self.data), "columns": self.columns}
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in (head, *map(asdict, self.episodes))))

    @classmethod
    def read(cls, path: Path, data: Path | None = None) -> EpisodeFile:
        """Refuses a table that is not the one that the rows were counted in. `data`: where it is now."""
        try:
            head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            data = path.parent / head["data"] if data is None else data
            if head["format"] != FORMAT:
                raise ValueError(f"format {head['format']}, this version reads {FORMAT}")
            known, columns = head["sha256"], tuple(head["columns"])
            episodes = [_parse_episode(line, number) for number, line in enumerate(lines, start=2)]
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); give a file of episodes, or say which to draw: "
                "--episodes 5-way 1-shot"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: is no file of episodes ({error!r}); have them drawn again") from error
        if not data.is_file():
            raise DataError(f"{path}: its rows count in {data}, which is not there; say where it is with --data")
        if file_sha256(data) != known:
            raise DataError(
                f"{path}: its rows count in a file whose content was another than that of {data} now; bring that "
                "back, or have episodes drawn again"
            )
        return cls(data, columns, episodes)

    @property
    def shape(self) -> EpisodeShape:
        """What its episodes look like."""
        ways = [episode.way for episode in self.episodes]
        shots, asked = (
            [len(rows) for episode in self.episodes for rows in getattr(episode, kind)]
            for kind in ("support", "questions")
        )
        return EpisodeShape((min(ways), max(ways)), (min(shots), max(shots)), max(asked), len(self.episodes))

    def check(self, labels: Sequence[str]) -> None:
        """Do its rows stand in the table, all those of a class under one label?"""
        for number, episode in enumerate(self.episodes, start=2):
            for rows in map(sum, zip(episode.support, episode.questions, strict=True), [()] * episode.way):
                if max(rows) >= len(labels) or len({labels[row] for row in rows}) > 1:
                    raise DataError(
                        f"line {number} of the episodes: rows {rows} are not of one class of {self.data}; have them "
                        "drawn again"
                    )


def _parse_episode(line: Any, number: int) -> Episode:
    episode = Episode(*(tuple(map(tuple, line[kind])) for kind in ("support", "questions")))
    rows = [row for kind in (episode.support, episode.questions) for some in kind for row in some]
    if not all(isinstance(row, int) and row >= 0 for row in rows) or len(set(rows)) < len(rows):
        raise ValueError(f"line {number}: rows must be numbers, each once")
    if len(episode.questions) != episode.way or episode.way < 2 or not all((*episode.support, *episode.questions)):
        raise ValueError(f"line {number}: two classes or more, with examples and questions of each")
    return episode
