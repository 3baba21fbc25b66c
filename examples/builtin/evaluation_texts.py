"""The texts of evaluation sets, one on each line, for `litebert prepare --exclude`.

  python examples/builtin/evaluation_texts.py tasks/ --out evaluation.txt

Reads all files below a folder but those whose name says that one learns from them: cells of tables, strings of JSON,
the first column of CoNLL files, lines of everything else.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEARNED = re.compile(r"(?<![a-z])train", re.IGNORECASE)
UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
OTHERS = (".zst", ".zip", ".parquet")
JSON = (".json", ".jsonl")
CONLL = (".testa", ".testb")
BREAKS = str.maketrans("\n\r\x85\u2028\u2029", "     ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = [path for path in sorted(options.folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    files = [path for path in known if not LEARNED.search(str(path.relative_to(options.folder)))]
    others = [path for path in files if path.suffix in OTHERS]
    if others:
        parser.error(f"{others[0]}: unpack it, or convert it to JSON lines, first")
    texts = dict.fromkeys(text.translate(BREAKS).strip() for path in files for text in texts_of(path))
    texts.pop("", None)
    if not texts:
        parser.error(f"{options.folder}: no text found there")
    options.out.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    print(f"{len(texts):,} texts of {len(files):,} files in {options.out}")


def texts_of(path: Path) -> Iterator[str]:
    raw = path.read_bytes()
    if path.suffix in UNPACK:
        raw, path = UNPACK[path.suffix](raw), path.with_suffix("")
    content = raw.decode("utf-8-sig", "replace")
    if path.suffix in JSON:
        yield from json_texts(content)
    elif path.suffix in CONLL:
        for sentence in content.split("\n\n"):
            yield " ".join(line.split()[0] for line in sentence.splitlines() if line.strip())
    elif path.suffix == ".csv":
        for row in csv.reader(content.splitlines()):
            yield from row
    elif path.suffix in (".tsv", ".txt"):  # without quotes, which in some of them never close
        for line in content.splitlines():
            yield from line.split("\t")
    else:
        yield from content.splitlines()


def json_texts(content: str) -> Iterator[str]:
    """All strings of one value, or of several in a row."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(content):
        if content[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(content, at)
        yield from strings(value)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        if value and all(isinstance(inner, str) for inner in value):
            yield " ".join(value)  # tokens of a text, or short turns of one
        for inner in value:
            yield from strings(inner)


if __name__ == "__main__":
    main()
