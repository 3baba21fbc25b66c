"""What the tests of meta-training and of episodes share."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.commands.conftest import FILLER, litebert, once, write_csv

WORDS = [
    "rain", "butter", "train", "eggs", "bridge", "garden", "recipe", "thunder", "letter", "library", "baker", "village",
    "roof", "children", "model",
]  # fmt: skip
TEXTS = 8
EPISODES = ("--episodes", "2-way", "1-2-shot", "2-queries", "5-episodes")
QUICK = ("--steps", 6, "--batch-size", 2, "--validate-every", 3, "--learning-rate", 1e-3, "--device", "cpu")


def make_rows(words: list[str] = WORDS, seed: int = 0) -> list[dict[str, str]]:
    """Every class has a word of its own among others."""
    chance = random.Random(seed)
    rows = []
    for word in words:
        for _ in range(TEXTS):
            some = [word, *chance.choices(FILLER, k=5)]
            rows.append({"text": " ".join(chance.sample(some, len(some))), "label": f"about {word}"})
    return rows


def table_of_classes(factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        write_csv(folder / "few.csv", make_rows())

    return once(factory, "classes", build) / "few.csv"


def command(start: Path, data: Path, out: Path, *flags: object) -> tuple[object, ...]:
    """A short meta-training; of a flag given twice the later one counts."""
    return ("meta-train", "--model", start, "--data", data, "--out", out, *EPISODES, *QUICK, *flags)


def meta_trained(factory: pytest.TempPathFactory, start: Path, data: Path) -> Path:
    """The folder of a meta-trained model that several tests look at."""

    def build(folder: Path) -> None:
        assert litebert(*command(start, data, folder / "out")) == 0

    return once(factory, "meta-trained", build) / "out"
