"""Texts and their translations: tables with two columns, or two files whose lines belong together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litebert.data.tables import SUFFIXES, TableOptions, format_suffix, read_rows, read_text
from litebert.errors import DataError
from litebert.files import COMPRESSED_SUFFIXES


def is_line_aligned(path: Path) -> bool:
    """Is it one language of a text in several, such as train.en or train.en.gz?"""
    return format_suffix(path) not in SUFFIXES


def read_pairs(path: Path, source: TableOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where it stands, and `source` and `target`, for every row of a table or line of a file and of the one beside it.

    Of `train.en` the other file is `train.de` if it is the only one of that name in the folder, or if `columns` say
    `target=de`.
    """
    if not is_line_aligned(path):
        for row in read_rows(path, source, pairs=False):
            yield row.where, source_and_target(row.values)
        return
    beside = find_target_file(path, source)
    sources, targets = read_aligned_lines(path), read_aligned_lines(beside)
    if len(sources) != len(targets):
        raise DataError(
            f"{path} has {len(sources):,} lines and {beside} has {len(targets):,}; line by line they must say the same"
        )
    for number, (left, right) in enumerate(zip(sources, targets, strict=True), start=1):
        yield f"{path}, line {number}", {"source": left, "target": right}


def source_and_target(values: dict[str, Any]) -> dict[str, Any]:
    """`source` and `target` of a row, which may call them by the names that other tasks use: `text` and `label`."""
    return {
        role: next((values[name] for name in (role, other) if values.get(name) is not None), None)
        for role, other in (("source", "text"), ("target", "label"))
    }


def read_aligned_lines(path: Path) -> list[str]:
    """The lines of a file, blank ones too, so that they keep step with another file's."""
    lines = read_text(path).split("\n")  # not splitlines: U+2028 may stand in a line
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def find_target_file(path: Path, source: TableOptions) -> Path:
    """The file beside it that holds the translations."""
    name, packed = (path.stem, path.suffix) if path.suffix in COMPRESSED_SUFFIXES else (path.name, "")
    stem, _, language = name.rpartition(".")
    if not stem:
        raise DataError(f"{path}: no language in its name; call it NAME.en and the other NAME.de, or give a table")
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (no such file); check the path")
    wanted = source.columns.get("target")
    if wanted is not None and Path(wanted).name != wanted:
        raise DataError(f"columns target={wanted!r} must be a language, such as de; its file stands beside {path.name}")
    endings = ("", *COMPRESSED_SUFFIXES)
    if wanted is not None:
        found = [path.with_name(f"{stem}.{wanted}{ending}") for ending in (packed, *endings)]
        found = [file for file in dict.fromkeys(found) if file.is_file()][:1]
    else:
        beside = (file for file in path.parent.iterdir() if file.name.startswith(f"{stem}.") and file.is_file())
        rest = {file: file.name[len(stem) + 1 :] for file in beside}
        known = {
            file: end.removesuffix(next((c for c in COMPRESSED_SUFFIXES if end.endswith(c)), ""))
            for file, end in rest.items()
        }
        found = sorted(file for file, end in known.items() if end != language and "." not in end)
    if len(found) != 1:
        seen = f"{', '.join(file.name for file in found)} could be" if found else "no file beside it is"
        raise DataError(
            f"{path}: {seen} its translation; name the language with --columns target=de, which is the file "
            f"{stem}.de{packed}, or give a table with the columns source and target"
        )
    return found[0]
