"""What the guided tour reads: prose of this machine, labelled messages, and made-up names and questions."""

from __future__ import annotations

import csv
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litebert.errors import DataError
from litebert.files import atomic_write

TICKETS = {
    lang: Path(__file__).parents[2] / "examples" / name
    for lang, name in (("en", "tickets.csv"), ("zh", "tickets-zh.csv"))
}
"""Labelled messages, by language."""

NAMES = {
    "item": ["desk lamp", "garden chair", "coffee grinder", "rain jacket", "tea pot", "wall clock", "bike pump",
             "book shelf", "hand mixer", "tool box", "water bottle", "night light", "phone case", "bread knife",
             "sun hat", "door mat", "pencil case", "picture frame", "travel bag", "floor rug"],
    "city": ["berlin", "lisbon", "oslo", "vienna", "madrid", "dublin", "prague", "athens", "warsaw", "geneva", "turin",
             "leeds", "lyon", "porto", "ghent", "bergen", "graz", "seville", "cork", "brno"],
    "day": ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "the first of may",
            "the tenth of june", "the third of july", "christmas eve", "new year"],
    "person": ["anna", "bruno", "clara", "david", "elena", "felix", "greta", "hugo", "irene", "jonas", "karin",
               "leon", "marta", "nils", "olga", "peter", "rosa", "simon", "tina", "viktor"],
}  # fmt: skip

MESSAGES = (
    "please send the {item} to {city} before {day}",
    "{person} has ordered a {item} and wants it on {day}",
    "the {item} that went to {city} arrived broken",
    "my friend {person} in {city} never got the {item}",
    "on {day} i moved to {city} , so ship the {item} there",
    "can {person} pick the {item} up on {day} ?",
    "we waited in {city} until {day} and nobody brought the {item}",
    "this is about the {item} for {person}",
)
FACTS = {
    "person": ("{person} placed the order .", "who placed the order ?"),
    "item": ("the parcel holds a {item} .", "what does the parcel hold ?"),
    "city": ("it will be sent to {city} .", "where will it be sent ?"),
    "day": ("it should arrive on {day} .", "when should it arrive ?"),
}
"""A sentence and the question it answers."""


def collect_prose(limit: int, seed: int) -> list[str]:
    """Documents, one per source file: a sentence per line, up to `limit` bytes in all."""
    library, packages = (Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib"))
    files = sorted(
        {path for path in library.rglob("*.py") if "site-packages" not in path.parts} | set(packages.rglob("*.py"))
    )
    random.Random(seed).shuffle(files)
    documents, seen, size = [], set(), 0
    for path in files:
        sentences = [sentence for sentence in _sentences(path) if sentence not in seen]
        if len(sentences) < 3:
            continue
        seen.update(sentences)
        documents.append("\n".join(sentences))
        size += len(documents[-1])
        if size >= limit:
            break
    if not documents:
        raise DataError(
            f"no documentation found under {library} and {packages}; pre-train on your own text with litebert pretrain"
        )
    return documents


def _sentences(path: Path) -> Iterator[str]:
    """The plain English sentences of a source file's documentation strings."""
    try:
        source = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a dangling link, a folder with an odd name: there are thousands of other files
        return
    for block in re.findall(r'"""(.*?)"""', source, flags=re.DOTALL):
        for paragraph in re.split(r"\n\s*\n", block):
            if re.search(r">>>|::|:param|:return|^\s*[-*=~`.|+]|[{}<>_\\]", paragraph, flags=re.MULTILINE):
                continue  # code, tables and lists
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                letters = sum(character.isalpha() or character == " " for character in sentence)
                if (
                    sentence.count(" ") >= 5
                    and sentence[0].isupper()
                    and sentence[-1] in ".!?"
                    and letters > 0.9 * len(sentence)
                ):
                    yield sentence


def split_tickets(out: Path, lang: str, seed: int) -> tuple[Path, Path]:
    """Two thirds to learn from, one third to be measured on, class by class."""
    with TICKETS[lang].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    random.Random(seed).shuffle(rows)
    parts: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for label in sorted({row["label"] for row in rows}):
        of_label = [row for row in rows if row["label"] == label]
        parts["train"] += of_label[: len(of_label) * 2 // 3]
        parts["test"] += of_label[len(of_label) * 2 // 3 :]
    for name, part in parts.items():
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(part)
    return out / "train.csv", out / "test.csv"


def write_tagged(path: Path, count: int, seed: str) -> Path:
    """Messages as CoNLL columns."""
    rng = random.Random(seed)
    blocks = []
    for _ in range(count):
        lines = []
        for word in rng.choice(MESSAGES).split():
            kind = word.strip("{}")
            if word == kind:
                lines.append(f"{word} O")
                continue
            for place, part in enumerate(rng.choice(NAMES[kind]).split()):
                lines.append(f"{part} {'I' if place else 'B'}-{kind}")
        blocks.append("\n".join(lines))
    atomic_write(path, "\n\n".join(blocks) + "\n")
    return path


def write_questions(path: Path, count: int, seed: str) -> Path:
    """Stories of three or four facts and a question about each, in SQuAD 2's format; some have no answer."""
    rng = random.Random(seed)
    paragraphs = []
    for number in range(count):
        chosen = {kind: rng.choice(NAMES[kind]) for kind in FACTS}
        told = rng.sample(list(FACTS), 4 if rng.random() < 0.5 else 3)
        context = " ".join(FACTS[kind][0].format(**chosen) for kind in told)
        questions = [_question(kind, chosen[kind], context, kind in told, f"{number}-{kind}") for kind in FACTS]
        paragraphs.append({"context": context, "qas": questions})
    content = {"version": "v2.0", "data": [{"title": "orders", "paragraphs": paragraphs}]}
    atomic_write(path, json.dumps(content, indent=1))
    return path


def _question(kind: str, answer: str, context: str, answerable: bool, name: str) -> dict[str, Any]:
    answers = [{"text": answer, "answer_start": context.index(answer)}] if answerable else []
    return {"id": name, "question": FACTS[kind][1], "answers": answers, "is_impossible": not answerable}
