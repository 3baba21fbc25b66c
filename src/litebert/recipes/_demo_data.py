"""Examples that the guided tour makes up: messages with marked names, and questions about orders."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from litebert.files import atomic_write

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


def _question(kind: str, answer: str, context: str, told: bool, name: str) -> dict[str, Any]:
    answers = [{"text": answer, "answer_start": context.index(answer)}] if told else []
    return {"id": name, "question": FACTS[kind][1], "answers": answers, "is_impossible": not told}
