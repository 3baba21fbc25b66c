"""Short texts of many kinds for sentence vectors: titles, questions, single sentences, short paragraphs.

  python examples/builtin/short_texts.py --out texts --exclude asked.txt titles.txt:2000000 wiki.txt.xz:900000:9000

Each source is a file with a paragraph per line and a blank line between documents, plain or packed with xz. The first
number caps its sentences, or few neighbouring sentences that stand as one text; the second caps its whole paragraphs of
up to --longest characters, by default none. Texts that occur twice are kept once; a text of the --exclude file (see
`evaluation_texts.py`) is left out. Letter case, digits' grouping and punctuation do not count when texts are compared.
Writes --parts files of one shuffled text per line, packed with xz.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
from collections.abc import Iterator
from pathlib import Path

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
NOT_LETTER = re.compile(r"[^A-Za-z ]+")
NOT_WORD = re.compile(r"[\W_]+")
FEWEST_WORDS, MOST_WORDS = 3, 45
GROUPED = {1: 0.8, 2: 0.15, 3: 0.05}
"""How many neighbouring sentences make one text, and how often."""
SHORTEST_PARAGRAPH = 200
MIN_LETTERS = 0.6
"""Least fraction of characters that are ASCII letters or spaces."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="FILE:SENTENCES[:PARAGRAPHS]")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--exclude", type=Path, required=True, help="texts that must not occur, one per line")
    parser.add_argument("--parts", type=int, default=3)
    parser.add_argument("--longest", type=int, default=700, help="characters of a paragraph")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with options.exclude.open(encoding="utf-8") as file:
        seen = {key_of(line) for line in file}
    texts: list[str] = []
    for source in options.sources:
        path, *caps = source.split(":")
        sentences, paragraphs = [*map(int, caps), 0][:2]
        chosen = sample(Path(path), sentences, paragraphs, options.longest, seen, rng)
        print(
            f"{len(chosen):,} texts, {sum(map(len, chosen)) / 1e6:.1f} M characters from {Path(path).name}", flush=True
        )
        texts += chosen
    rng.shuffle(texts)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in range(options.parts):
        packed = lzma.compress("".join(f"{text}\n" for text in texts[part :: options.parts]).encode(), preset=6)
        (options.out / f"texts-{part + 1}.txt.xz").write_bytes(packed)
        print(f"part {part + 1}: {len(packed) / 2**20:.1f} MiB", flush=True)


def sample(path: Path, sentences: int, paragraphs: int, longest: int, seen: set[int], rng: random.Random) -> list[str]:
    """At most so many sentences and paragraphs, drawn evenly from the whole file; adds their keys to `seen`."""
    short, long = list[str](), list[str]()
    for paragraph in paragraphs_of(path):
        if paragraphs and SHORTEST_PARAGRAPH <= len(paragraph) <= longest and is_prose(paragraph):
            long.append(paragraph)
        short += [text for text in grouped(paragraph, rng) if is_prose(text)]
    chosen = list[str]()
    for candidates, cap in ((short, sentences), (long, paragraphs)):
        rng.shuffle(candidates)
        end = len(chosen) + cap
        for text in candidates:
            if len(chosen) >= end:
                break
            key = key_of(text)
            if key not in seen:
                seen.add(key)
                chosen.append(text)
    return chosen


def paragraphs_of(path: Path) -> Iterator[str]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line := line.strip():
                yield line


def grouped(paragraph: str, rng: random.Random) -> Iterator[str]:
    """Its sentences, now and then two or three together."""
    sentences = SENTENCE_END.split(paragraph)
    while sentences:
        (count,) = rng.choices(list(GROUPED), list(GROUPED.values()))
        text = " ".join(sentences[:count])
        sentences = sentences[count:]
        if FEWEST_WORDS <= text.count(" ") + 1 <= MOST_WORDS:
            yield text


def is_prose(text: str) -> bool:
    return len(NOT_LETTER.sub("", text)) >= MIN_LETTERS * len(text)


def key_of(text: str) -> int:
    return hash(NOT_WORD.sub("", text.lower()))


if __name__ == "__main__":
    main()
