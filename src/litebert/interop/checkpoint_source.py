"""What a checkpoint turned out to hold, and what lies beside it: its settings and its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from litebert.errors import CheckpointError
from litebert.files import read_json, read_limited
from litebert.tokenizer import Tokenizer

SMALL_BYTES = 1 << 20
"""Settings are smaller."""
SPECIALS = {"[UNK]", "[CLS]", "[SEP]", "[MASK]"}
"""Lines of every vocab.txt."""
REQUIRED = {"hidden_size", "num_hidden_layers"}
"""Of every Transformer's settings."""
NO_HEAD = "litebert has no head for it"


@dataclass(frozen=True)
class Row:
    """What became of one tensor."""

    name: str
    """In the source."""
    shape: tuple[int, ...]
    becomes: str = ""
    """transformers' name of it; empty: it is left out."""
    why: str = ""
    """It is left out, or is changed."""


@dataclass(frozen=True)
class Source:
    """A checkpoint of any kind, read."""

    kind: str
    """What it is, in words."""
    framework: str
    """The library that computes such a checkpoint; empty: none of today's does."""
    path: Path
    """Its file, or its folder where config.json says what it is."""
    settings: dict[str, Any]
    """As in a config.json."""
    tensors: dict[str, Tensor]
    """By transformers' names."""
    rows: list[Row]
    remarks: list[str] = field(default_factory=list)
    tokenizer: Tokenizer | None = None

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


def places_of(folder: Path) -> list[Path]:
    """Where files that belong to a checkpoint may lie; a SavedModel has folders for its parts."""
    roots = [folder, folder.parent] if folder.name == "variables" else [folder]
    return [place for root in roots for place in (root, root / "assets") if place.is_dir()]


def settings_beside(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """JSON files that describe a Transformer, whatever their names."""
    for path in _files(folder, ".json"):
        if path.stat().st_size > SMALL_BYTES:
            continue
        try:
            content = json.loads(read_limited(path))
        except (ValueError, RecursionError):
            continue  # which is nobody's settings
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            yield path, content


def refuse_damaged_settings(folder: Path, name: str) -> None:
    """Settings that nobody can read are not the same as none."""
    for path in _files(folder, "config.json"):
        content = read_json(path)
        if path.name == name and (lacking := " and ".join(sorted(REQUIRED - content.keys()))):
            raise CheckpointError(f"{path}: does not say {lacking}; add what is missing or download it again")


def tokenizer_beside(folder: Path) -> Tokenizer | None:
    """The vocabulary of a checkpoint: tokenizer.json, a SentencePiece model or a list of tokens, whatever its name."""
    candidates = [path for path in _files(folder, ".json") if path.name == "tokenizer.json"]
    candidates += _files(folder, ".model")
    candidates += [path for path in _files(folder, ".txt") if _is_vocabulary(path)]
    if not candidates:
        return None
    found = Tokenizer.load(candidates[0])
    if candidates[0].suffix != ".json":  # which is the whole of a tokenizer, and the others are its sources
        _refuse_others(candidates, found)
    return found


def _refuse_others(candidates: Sequence[Path], found: Tokenizer) -> None:
    """With another vocabulary every token would be another one, and nothing would tell."""
    first = candidates[0]
    for other in candidates[1:]:
        if read_limited(other) != read_limited(first) and Tokenizer.load(other).vocabulary() != found.vocabulary():
            raise CheckpointError(
                f"{first.parent}: holds two vocabularies that differ ({first.name} and {other.name}); leave only the "
                "one that the model was trained with"
            )


def no_vocabulary(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder}: has no vocabulary (tokenizer.json, a SentencePiece .model or a vocab.txt); put the one it was "
        "trained with beside it"
    )


def only_one(paths: Sequence[Path], folder: Path) -> Path:
    """Of several checkpoints nobody can say which is meant."""
    if len(paths) > 1:
        names = ", ".join(sorted(path.name for path in paths)[:4])
        raise CheckpointError(f"{folder}: holds {len(paths)} checkpoints ({names}); give one of these files")
    return paths[0]


def _files(folder: Path, suffix: str) -> list[Path]:
    return [path for place in places_of(folder) for path in sorted(place.glob(f"*{suffix}")) if path.is_file()]


def _is_vocabulary(path: Path) -> bool:
    with path.open("rb") as file:
        lines = file.read(SMALL_BYTES).decode("utf-8", "replace").split("\n")
    return set(map(str.rstrip, lines)) >= SPECIALS
