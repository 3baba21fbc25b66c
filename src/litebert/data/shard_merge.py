"""Parts that were prepared apart, laid together without encoding anything again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from litebert.data.shards import DOCUMENT_HASHES, ShardCounts, ShardIndex, Shards, ShardWriter
from litebert.errors import ConfigError


def merge_shards(folders: Sequence[Path], out: Path) -> tuple[ShardIndex, list[str]]:
    """The index of the folder that now holds all parts, and what its owner should know."""
    parts = sorted((Shards(folder) for folder in folders), key=_part_number)
    _check_mergeable(parts)
    total = _part_and_total(parts[0])[1]
    missing = sorted(set(range(1, total + 1)) - {_part_number(part) for part in parts})
    settings = parts[0].index.settings | {"part": "1/1" if not missing else f"all but {missing} of {total}"}
    with ShardWriter(out, parts[0].tokenizer, settings=settings) as writer:
        for part in parts:
            _link_files(part, writer)
            for field in fields(ShardCounts):
                both = getattr(writer.counts, field.name) + getattr(part.index, field.name)
                setattr(writer.counts, field.name, both)
        hashes = [
            np.fromfile(part.folder / DOCUMENT_HASHES, "<u8")
            for part in parts
            if (part.folder / DOCUMENT_HASHES).is_file()
        ]
        everything = np.concatenate([np.zeros(0, "<u8"), *hashes])
        everything.tofile(out / DOCUMENT_HASHES)
        index = writer.finish()
    notes = [f"parts {', '.join(map(str, missing))} of {total} are missing"] if missing else []
    repeated = len(everything) - len(np.unique(everything))
    if repeated:
        notes.append(f"{repeated:,} documents stand in more than one part; they were kept")
    return index, notes


def _part_and_total(part: Shards) -> tuple[int, int]:
    number, _, total = str(part.index.settings.get("part", "1/1")).partition("/")
    if not (number.isdigit() and total.isdigit()):
        raise ConfigError(f"{part.folder}: is itself merged from some of its parts; merge all parts at once")
    return int(number), int(total)


def _part_number(part: Shards) -> int:
    return _part_and_total(part)[0]


def _check_mergeable(parts: list[Shards]) -> None:
    """All parts must have been made alike, and none may come twice."""
    first = parts[0]
    for one, other in pairwise(parts):
        if _part_and_total(one) == _part_and_total(other):
            raise ConfigError(
                f"{one.folder} and {other.folder} are both part {_part_number(one)}; give every part once"
            )
    for part in parts[1:]:
        if part.index.fingerprint != first.index.fingerprint:
            raise ConfigError(
                f"{part.folder} has another tokenizer than {first.folder}; prepare it again with the same"
            )
        settings = _shared_settings(part)
        for name, expected in _shared_settings(first).items():
            if settings.get(name) != expected:
                raise ConfigError(
                    f"{part.folder} was prepared with {name}={settings.get(name)}, {first.folder} with {expected}; "
                    "prepare all parts with the same settings"
                )


def _shared_settings(part: Shards) -> dict[str, Any]:
    """The settings that parts of one corpus share."""
    return part.index.settings | {"part": f"i/{_part_and_total(part)[1]}"}


def _link_files(part: Shards, writer: ShardWriter) -> None:
    """Link the files of a part under the next free names; copy them where links are not possible."""
    for kind in ("shard", "held-out"):
        names = sorted(name for name in part.index.sha256 if name.startswith(f"{kind}-") and name.endswith(".ids"))
        taken = sum(name.startswith(f"{kind}-") and name.endswith(".ids") for name in writer.sha256)
        for number, name in enumerate(names, start=taken):
            for suffix in (".ids", ".bits"):
                old, new = name.removesuffix(".ids") + suffix, f"{kind}-{number:05d}{suffix}"
                (writer.folder / new).unlink(missing_ok=True)
                try:
                    os.link(part.folder / old, writer.folder / new)
                except OSError:  # another disk, or one without links
                    shutil.copyfile(part.folder / old, writer.folder / new)
                writer.sha256[new] = part.index.sha256[old]
