"""Small made-up files for every task, to try the commands of docs/tasks.md with.

python examples/task_samples.py samples

They are made from word lists by a seed, so a model learns them easily: they show the formats, not what a model can do.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from litebert.studies.demo.data import FACTS, NAMES, split_tickets, write_questions, write_tagged

TRAIN, TEST = 240, 60
TROUBLES = {
    "late": ["the parcel came a week late", "it took far too long", "delivery was delayed again"],
    "damaged": ["the box was crushed", "one side is scratched", "the glass arrived broken"],
    "rude": ["the driver shouted at me", "support was unfriendly", "nobody said sorry"],
    "price": ["i was charged twice", "the price was not as shown", "the refund is too small"],
}
WORDS = {1: "awful", 2: "poor", 3: "fair", 4: "good", 5: "wonderful"}
THINGS = ["room", "breakfast", "bed", "view", "pool", "staff", "location", "bar"]


def multilabel(rng: random.Random) -> dict[str, Any]:
    """One trouble, or two, or three."""
    labels = rng.sample(sorted(TROUBLES), rng.choice((1, 1, 2, 2, 3)))
    return {"text": ", and ".join(rng.choice(TROUBLES[label]) for label in labels), "label": "|".join(sorted(labels))}


def regress(rng: random.Random) -> dict[str, Any]:
    """Stars of a hotel: the mean of what is said about three things."""
    stars = [rng.randint(1, 5) for _ in range(3)]
    things = rng.sample(THINGS, 3)
    said = [f"the {thing} was {WORDS[number]}" for thing, number in zip(things, stars, strict=True)]
    return {"text": ", ".join(said), "label": round(sum(stars) / 3, 2)}


def choose(rng: random.Random) -> dict[str, Any]:
    """A passage of facts, a question about one of them, and three options."""
    facts = {kind: rng.choice(names) for kind, names in NAMES.items()}
    kind = rng.choice(sorted(FACTS))
    options = [facts[kind], *rng.sample([name for name in NAMES[kind] if name != facts[kind]], 2)]
    rng.shuffle(options)
    passage = " ".join(sentence.format(**facts) for sentence, _ in FACTS.values())
    return {"text": passage, "question": FACTS[kind][1], "options": "|".join(options), "answer": facts[kind]}


def write_table(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """As CSV."""
    rows = list(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_samples(out: Path, train: int = TRAIN, test: int = TEST) -> None:
    """All files: the six queues of messages that come with litebert, and made-up ones for the other tasks."""
    out.mkdir(parents=True, exist_ok=True)
    for path, name in zip(split_tickets(out, "en", 0), ("tickets.csv", "tickets-test.csv"), strict=True):
        path.replace(out / name)
    makers: dict[str, Callable[[random.Random], dict[str, Any]]] = {
        "troubles": multilabel, "stars": regress, "orders": choose,
    }  # fmt: skip
    for name, make in makers.items():
        rng = random.Random(name)
        write_table(out / f"{name}.csv", (make(rng) for _ in range(train)))
        write_table(out / f"{name}-test.csv", (make(rng) for _ in range(test)))
    write_tagged(out / "names.conll", train, "names")
    write_tagged(out / "names-test.conll", test, "names, test")
    write_questions(out / "questions.json", train // 4, "questions")  # four questions about each story
    write_questions(out / "questions-test.json", test // 4, "questions, test")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "samples")
    write_samples(folder)
    print(*sorted(path.name for path in folder.iterdir()))
