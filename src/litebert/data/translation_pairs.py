"""Parallel corpora: tables with two columns, or two line-aligned files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litebert.data.tables import SUFFIXES, TableOptions, read_rows, read_text
from litebert.errors import DataError
from litebert.files import COMPRESSED_SUFFIXES, format_suffix


def is_line_aligned(path: Path) -> bool:
    """Is it one language of a line-aligned corpus, such as train.en or train.en.gz?"""
    return format_suffix(path) not in SUFFIXES


def read_pairs(path: Path, options: TableOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """File position, and `source` and `target`, of every row of a table or line of two aligned files.

    The other file of `train.en` is `train.de` if it is the only such file in the folder, or with `columns` `target=de`.
    """
    if not is_line_aligned(path):
        for row in read_rows(path, options, pairs=False):
            yield row.where, source_and_target(row.values)
        return
    target_path = find_target_file(path, options)
    sources, targets = read_aligned_lines(path), read_aligned_lines(target_path)
    if len(sources) != len(targets):
        raise DataError(
            f"{path} has {len(sources):,} lines and {target_path} has {len(targets):,}; "
            "they must be aligned line by line"
        )
    for number, (left, right) in enumerate(zip(sources, targets, strict=True), start=1):
        yield f"{path}, line {number}", {"source": left, "target": right}


def source_and_target(values: dict[str, Any]) -> dict[str, Any]:
    """`source` and `target` of a row, which may also be called `text` and `label`."""
    return {
        role: next((values[name] for name in (role, other) if values.get(name) is not None), None)
        for role, other in (("source", "text"), ("target", "label"))
    }


def read_aligned_lines(path: Path) -> list[str]:
    """All lines of a file, including blank ones, to keep the alignment."""
    lines = read_text(path).split("\n")  # not splitlines, which also splits at U+2028
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def find_target_file(path: Path, options: TableOptions) -> Path:
    """The file with the translations, in the same folder."""
    name, packed = (path.stem, path.suffix) if path.suffix in COMPRESSED_SUFFIXES else (path.name, "")
    stem, _, language = name.rpartition(".")
    if not stem:
        raise DataError(f"{path}: no language in its name; call it NAME.en and the other NAME.de, or give a table")
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (no such file); check the path")
    wanted = options.columns.get("target")
    if wanted is not None and Path(wanted).name != wanted:
        raise DataError(
            f"columns target={wanted!r} must be a language, such as de; its file must be beside {path.name}"
        )
    endings = ("", *COMPRESSED_SUFFIXES)
    if wanted is not None:
        candidates = [path.with_name(f"{stem}.{wanted}{ending}") for ending in (packed, *endings)]
        candidates = [file for file in dict.fromkeys(candidates) if file.is_file()][:1]
    else:
        beside = (file for file in path.parent.iterdir() if file.name.startswith(f"{stem}.") and file.is_file())
        rest = {file: file.name[len(stem) + 1 :] for file in beside}
        known = {
            file: end.removesuffix(next((c for c in COMPRESSED_SUFFIXES if end.endswith(c)), ""))
            for file, end in rest.items()
        }
        candidates = sorted(file for file, end in known.items() if end != language and "." not in end)
    if len(candidates) != 1:
        names = ", ".join(file.name for file in candidates)
        problem = f"{names} could be" if candidates else "no file beside it is"
        raise DataError(
            f"{path}: {problem} its translation; name the language with --columns target=de, which is the file "
            f"{stem}.de{packed}, or give a table with the columns source and target"
        )
    return candidates[0]
