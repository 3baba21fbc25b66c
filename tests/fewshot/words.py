"""Texts in which one word says the class, among others that say nothing."""

from __future__ import annotations

import numpy as np

from tests.conftest import PROSE

TELLING = {"a": ["morning", "bridge", "letter"], "b": ["garden", "train", "library"]}
OTHERS = sorted(
    {word for line in PROSE for word in line.lower().split() if word.isalpha()}
    - {word for some in TELLING.values() for word in some}
)


def texts_of(count: int, seed: int, others: int = 8, meaningless: bool = False) -> tuple[list[str], list[str]]:
    """Texts and labels; if those are meaningless, in any order."""
    chance = np.random.default_rng(seed)
    labels = list(TELLING) * (count // 2)
    texts = []
    for label in labels:
        words = [*chance.choice(OTHERS, others), chance.choice(TELLING[label])]
        texts.append(" ".join(chance.permutation(words)))
    return texts, chance.permutation(labels).tolist() if meaningless else labels
