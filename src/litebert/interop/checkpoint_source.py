"""A checkpoint that was read, and the settings and vocabulary in its folder."""

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

MAX_SETTINGS_BYTES = 1 << 20
"""Larger JSON files are not settings."""
REQUIRED_TOKENS = {"[UNK]", "[CLS]", "[SEP]", "[MASK]"}
"""Tokens of every vocab.txt."""
REQUIRED_SETTINGS = {"hidden_size", "num_hidden_layers"}
"""Keys of every Transformer's settings."""
NO_HEAD = "litebert has no head for it"


@dataclass(frozen=True)
class TensorRecord:
    """What became of one tensor of a checkpoint."""

    name: str
    """In the checkpoint."""
    shape: tuple[int, ...]
    becomes: str = ""
    """Its name in transformers; empty if it is left out."""
    why: str = ""
    """Reason for leaving it out or changing it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of any format, in memory."""

    kind: str
    """Its format, in words."""
    framework: str
    """The library that runs such checkpoints; empty if no current one does."""
    path: Path
    """Its file, or a folder with config.json."""
    settings: dict[str, Any]
    """As in a config.json."""
    tensors: dict[str, Tensor]
    """Tensors by transformers' names."""
    rows: list[TensorRecord]
    remarks: list[str] = field(default_factory=list)
    tokenizer: Tokenizer | None = None

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


def candidate_folders(folder: Path) -> list[Path]:
    """Folders in which files of a checkpoint may be; a SavedModel has several."""
    roots = [folder, folder.parent] if folder.name == "variables" else [folder]
    return [place for root in roots for place in (root, root / "assets") if place.is_dir()]


def find_settings(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """JSON files that describe a Transformer, whatever their names."""
    for path in _files(folder, ".json"):
        if path.stat().st_size > MAX_SETTINGS_BYTES:
            continue
        try:
            content = json.loads(read_limited(path))
        except (ValueError, RecursionError):
            continue  # which is nobody's settings
        if isinstance(content, dict) and content.keys() >= REQUIRED_SETTINGS:
            yield path, content


def refuse_damaged_settings(folder: Path, name: str) -> None:
    """Refuse settings that cannot be read, instead of treating them as missing."""
    for path in _files(folder, "config.json"):
        content = read_json(path)
        if path.name == name and (lacking := " and ".join(sorted(REQUIRED_SETTINGS - content.keys()))):
            raise CheckpointError(f"{path}: does not say {lacking}; add what is missing or download it again")


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """The vocabulary of a checkpoint: tokenizer.json, a SentencePiece model or a list of tokens, whatever its name."""
    candidates = [path for path in _files(folder, ".json") if path.name == "tokenizer.json"]
    candidates += _files(folder, ".model")
    candidates += [path for path in _files(folder, ".txt") if _is_vocabulary(path)]
    if not candidates:
        return None
    tokenizer = Tokenizer.load(candidates[0])
    if candidates[0].suffix != ".json":  # which is the whole of a tokenizer, and the others are its sources
        _refuse_conflicting_vocabularies(candidates, tokenizer)
    return tokenizer


def _refuse_conflicting_vocabularies(candidates: Sequence[Path], tokenizer: Tokenizer) -> None:
    """Two different vocabularies would be ambiguous, and the wrong one would fail silently."""
    first = candidates[0]
    for other in candidates[1:]:
        if read_limited(other) != read_limited(first) and Tokenizer.load(other).vocabulary() != tokenizer.vocabulary():
            raise CheckpointError(
                f"{first.parent}: holds two vocabularies that differ ({first.name} and {other.name}); leave only the "
                "one that the model was trained with"
            )


def missing_vocabulary_error(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder}: has no vocabulary (tokenizer.json, a SentencePiece .model or a vocab.txt); put the one it was "
        "trained with beside it"
    )


def require_single(paths: Sequence[Path], folder: Path) -> Path:
    """Refuse several checkpoints, which would be ambiguous."""
    if len(paths) > 1:
        names = ", ".join(sorted(path.name for path in paths)[:4])
        raise CheckpointError(f"{folder}: holds {len(paths)} checkpoints ({names}); give one of these files")
    return paths[0]


def _files(folder: Path, suffix: str) -> list[Path]:
    return [path for place in candidate_folders(folder) for path in sorted(place.glob(f"*{suffix}")) if path.is_file()]


def _is_vocabulary(path: Path) -> bool:
    with path.open("rb") as file:
        lines = file.read(MAX_SETTINGS_BYTES).decode("utf-8", "replace").split("\n")
    return set(map(str.rstrip, lines)) >= REQUIRED_TOKENS
