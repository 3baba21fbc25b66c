"""Merging separately prepared parts of a corpus without encoding again."""

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
    """Merge parts into a folder; returns its index and warnings."""
    parts = sorted((Shards(folder) for folder in folders), key=_part_number)
    _check_mergeable(parts)
    total = _part_and_total(parts[0])[1]
    missing = sorted(set(range(1, total + 1)) - {_part_number(part) for part in parts})
    settings = parts[0].index.settings | {"part": "1/1" if not missing else f"all but {missing} of {total}"}
    with ShardWriter(out, parts[0].tokenizer, settings=settings) as writer:
        for part in parts:
            _link_files(part, writer)
            for field in fields(ShardCounts):
                total_count = getattr(writer.counts, field.name) + getattr(part.index, field.name)
                setattr(writer.counts, field.name, total_count)
        hashes = [
            np.fromfile(part.folder / DOCUMENT_HASHES, "<u8")
            for part in parts
            if (part.folder / DOCUMENT_HASHES).is_file()
        ]
        all_hashes = np.concatenate([np.zeros(0, "<u8"), *hashes])
        all_hashes.tofile(out / DOCUMENT_HASHES)
        index = writer.finish()
    notes = [f"parts {', '.join(map(str, missing))} of {total} are missing"] if missing else []
    repeated = len(all_hashes) - len(np.unique(all_hashes))
    if repeated:
        notes.append(f"{repeated:,} documents occur in more than one part; they were kept")
    return index, notes


def _part_and_total(part: Shards) -> tuple[int, int]:
    number, _, total = str(part.index.settings.get("part", "1/1")).partition("/")
    if not (number.isdigit() and total.isdigit()):
        raise ConfigError(f"{part.folder}: is itself merged from several parts; merge all parts at once")
    return int(number), int(total)


def _part_number(part: Shards) -> int:
    return _part_and_total(part)[0]


def _check_mergeable(parts: list[Shards]) -> None:
    """Raise unless all parts have the same settings and each occurs once."""
    first = parts[0]
    for part, following in pairwise(parts):
        if _part_and_total(part) == _part_and_total(following):
            raise ConfigError(
                f"{part.folder} and {following.folder} are both part {_part_number(part)}; give every part once"
            )
    for part in parts[1:]:
        if part.index.fingerprint != first.index.fingerprint:
            raise ConfigError(
                f"{part.folder} has another tokenizer than {first.folder}; prepare it again with the same one"
            )
        settings = _shared_settings(part)
        for name, expected in _shared_settings(first).items():
            if settings.get(name) != expected:
                raise ConfigError(
                    f"{part.folder} was prepared with {name}={settings.get(name)}, {first.folder} with {expected}; "
                    "prepare all parts with the same settings"
                )


def _shared_settings(part: Shards) -> dict[str, Any]:
    """The settings that all parts of a corpus share."""
    return part.index.settings | {"part": f"i/{_part_and_total(part)[1]}"}


def _link_files(part: Shards, writer: ShardWriter) -> None:
    """Hard-link the files of a part under the next free names; copy them where links are not possible."""
    for kind in ("shard", "held-out"):
        names = sorted(name for name in part.index.sha256 if name.startswith(f"{kind}-") and name.endswith(".ids"))
        num_existing = sum(name.startswith(f"{kind}-") and name.endswith(".ids") for name in writer.sha256)
        for number, name in enumerate(names, start=num_existing):
            for suffix in (".ids", ".bits"):
                source, target = name.removesuffix(".ids") + suffix, f"{kind}-{number:05d}{suffix}"
                (writer.folder / target).unlink(missing_ok=True)
                try:
                    os.link(part.folder / source, writer.folder / target)
                except OSError:  # another file system, or one without hard links
                    shutil.copyfile(part.folder / source, writer.folder / target)
                writer.sha256[target] = part.index.sha256[source]
