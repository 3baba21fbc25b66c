"""Few-shot episodes drawn from a table: some classes, a support set of a few examples of each, and queries.

An episode is a pure function of (seed, number). Training, validation and test classes are disjoint. A file of episodes
holds row numbers and a hash of the table that they refer to:

{"format": 1, "data": "few.csv", "sha256": "…", "columns": []}
{"support": [[12, 7], [31, 40]], "questions": [[3, 5, 9], [33, 38, 36]]}    a list of rows for each class
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from litebert.errors import ConfigError, DataError
from litebert.files import atomic_write, file_sha256

FORMAT = 1
SPLITS = ("train", "valid", "test")
HELD_OUT_FRACTION = 0.2
"""Fraction of the classes in each of valid and test."""
ClassRows = Mapping[str, Sequence[int]]
"""Row numbers by class."""

_SHAPE_TERM = re.compile(r"(\d+)(?:-(\d+))?-(way|shot|queries|episodes)")


@dataclass(frozen=True)
class EpisodeShape:
    """Shape of episodes; every episode draws a number from a range (low, high)."""

    way: tuple[int, int] = (5, 5)
    """Number of classes."""
    shot: tuple[int, int] = (1, 5)
    """Support examples per class."""
    queries: int = 5
    """Query examples per class."""
    episodes: int = 100

    def __post_init__(self) -> None:
        for name, minimum, (low, high) in (
            ("way", 2, self.way), ("shot", 1, self.shot), ("queries", 1, (self.queries,) * 2),
            ("episodes", 1, (self.episodes,) * 2),
        ):  # fmt: skip
            if not minimum <= low <= high:
                raise ConfigError(
                    f"episodes={_shape_term(low, high, name)!r} must be {minimum} or more, the smaller number first"
                )

    @classmethod
    def parse(cls, words: Sequence[str], default: EpisodeShape | None = None) -> EpisodeShape:
        """Parse `5-way 1-5-shot 15-queries 600-episodes`, in any order; missing terms are as in the default."""
        values: dict[str, tuple[int, int] | int] = {}
        for word in words:
            match = _SHAPE_TERM.fullmatch(word)
            if match is None or (match[2] and match[3] in ("queries", "episodes")):
                raise ConfigError(
                    f"episodes={word!r} cannot be read; write 5-way, 2-10-way, 1-shot, 1-5-shot, 15-queries or "
                    "600-episodes"
                )
            low, high = int(match[1]), int(match[2] or match[1])
            values[match[3]] = (low, high) if match[3] in ("way", "shot") else low
        return replace(default or cls(), **values)  # type: ignore[arg-type]

    @staticmethod
    def matches(words: Sequence[str]) -> bool:
        """Are these terms of a shape rather than the name of a file?"""
        return all(_SHAPE_TERM.fullmatch(word) for word in words)

    @property
    def name(self) -> str:
        """Way and shot as terms, such as `5-way 1-shot`."""
        return f"{_shape_term(*self.way, 'way')} {_shape_term(*self.shot, 'shot')}"

    @property
    def examples_per_class(self) -> int:
        """Largest number of examples that an episode takes of a class."""
        return self.shot[1] + self.queries


def _shape_term(low: int, high: int, name: str) -> str:
    return f"{low}-{name}" if low == high else f"{low}-{high}-{name}"


@dataclass(frozen=True)
class Episode:
    """Row numbers of a table, by class."""

    support: tuple[tuple[int, ...], ...]
    questions: tuple[tuple[int, ...], ...]
    """Query rows."""

    @property
    def way(self) -> int:
        return len(self.support)

    def rows(self) -> tuple[list[int], list[int]]:
        """Support rows and query rows, each as one list ordered by class."""
        return list(chain(*self.support)), list(chain(*self.questions))

    def class_indices(self) -> tuple[np.ndarray, np.ndarray]:
        """Class indices of these rows."""
        support, questions = (
            np.repeat(np.arange(self.way), list(map(len, rows))) for rows in (self.support, self.questions)
        )
        return support, questions


def rows_by_class(texts: Sequence[str], labels: Sequence[str]) -> dict[str, list[int]]:
    """Row numbers by class, without duplicate texts: a query must not occur in its own support set."""
    rows: dict[str, list[int]] = {}
    seen: set[str] = set()
    for row, (text, label) in enumerate(zip(texts, labels, strict=True)):
        key = " ".join(text.casefold().split())
        if key not in seen:
            seen.add(key)
            rows.setdefault(label, []).append(row)
    return rows


def split_classes(pool: ClassRows, seed: int) -> dict[str, ClassRows]:
    """Training, validation and test classes: 60, 20 and 20 %, by seed."""
    names = sorted(pool)
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    held = round(len(names) * HELD_OUT_FRACTION)
    parts = zip(SPLITS, (order[2 * held :], order[:held], order[held : 2 * held]), strict=True)
    return {part: {name: pool[name] for name in sorted(members)} for part, members in parts}


def check_disjoint_classes(parts: Mapping[str, ClassRows | Sequence[str]]) -> None:
    """Raise if two of these named sets share a class."""
    for (first, left), (second, right) in combinations(parts.items(), 2):
        if common := sorted(set(left) & set(right)):
            shown = ", ".join(map(repr, common[:5])) + (" and others" if len(common) > 5 else "")
            raise DataError(
                f"{len(common)} class(es) are in {first} and in {second}: {shown}; accuracy on training classes says "
                "nothing about new classes: remove them from one set, or rename them if they differ"
            )


def classes_with_enough_rows(pool: ClassRows, shape: EpisodeShape, where: str) -> ClassRows:
    """The classes with enough examples; raises if these are too few for an episode."""
    enough = {name: rows for name, rows in pool.items() if len(rows) >= shape.examples_per_class}
    if len(enough) < shape.way[1]:
        raise DataError(
            f"{where}: {len(enough)} of {len(pool)} classes have the {shape.examples_per_class} different examples "
            f"that {shape.shot[1]}-shot with {shape.queries} queries needs, and {shape.way[1]}-way takes "
            f"{shape.way[1]} classes; ask for less with --episodes, or give more"
        )
    return enough


def draw_episode(pool: ClassRows, shape: EpisodeShape, seed: int, number: int) -> Episode:
    """Draw an episode from classes that passed `classes_with_enough_rows`."""
    generator = np.random.Generator(np.random.Philox(key=[seed, number]))
    way, shot = (int(generator.integers(low, high + 1)) for low, high in (shape.way, shape.shot))
    names = sorted(pool)
    chosen = [names[i] for i in generator.choice(len(names), way, replace=False)]
    rows = [generator.choice(np.asarray(pool[name]), shot + shape.queries, replace=False).tolist() for name in chosen]
    return Episode(
        tuple(tuple(class_rows[:shot]) for class_rows in rows), tuple(tuple(class_rows[shot:]) for class_rows in rows)
    )


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
        """Read a file of episodes; raises if the table changed. `data`: its present path, if it was moved."""
        try:
            head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            data = path.parent / head["data"] if data is None else data
            if head["format"] != FORMAT:
                raise ValueError(f"format {head['format']}, this version reads {FORMAT}")
            known, columns = head["sha256"], tuple(head["columns"])
            episodes = [_parse_episode(line, number) for number, line in enumerate(lines, start=2)]
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); give a file of episodes, or a shape: "
                "--episodes 5-way 1-shot"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: not a file of episodes ({error!r}); draw them again") from error
        if not data.is_file():
            raise DataError(f"{path}: its row numbers refer to {data}, which is missing; give its path with --data")
        if file_sha256(data) != known:
            raise DataError(
                f"{path}: its row numbers refer to {data}, which has changed since; restore it, or draw the "
                "episodes again"
            )
        return cls(data, columns, episodes)

    @property
    def shape(self) -> EpisodeShape:
        """Shape of its episodes."""
        ways = [episode.way for episode in self.episodes]
        shots, queries = (
            [len(rows) for episode in self.episodes for rows in getattr(episode, part)]
            for part in ("support", "questions")
        )
        return EpisodeShape((min(ways), max(ways)), (min(shots), max(shots)), max(queries), len(self.episodes))

    def check(self, labels: Sequence[str]) -> None:
        """Raise unless all rows of a class have one label in the table."""
        for number, episode in enumerate(self.episodes, start=2):
            for rows in map(sum, zip(episode.support, episode.questions, strict=True), [()] * episode.way):
                if max(rows) >= len(labels) or len({labels[row] for row in rows}) > 1:
                    raise DataError(
                        f"line {number} of the episodes: rows {rows} are not of one class of {self.data}; draw them "
                        "again"
                    )


def _parse_episode(line: Any, number: int) -> Episode:
    episode = Episode(*(tuple(map(tuple, line[part])) for part in ("support", "questions")))
    rows = list(chain(*episode.support, *episode.questions))
    if not all(isinstance(row, int) and row >= 0 for row in rows) or len(set(rows)) < len(rows):
        raise ValueError(f"line {number}: row numbers must be distinct integers")
    if len(episode.questions) != episode.way or episode.way < 2 or not all((*episode.support, *episode.questions)):
        raise ValueError(f"line {number}: it takes two classes or more, each with support and query rows")
    return episode
