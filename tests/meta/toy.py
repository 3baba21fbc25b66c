"""A language of single tokens, in which most are noise and one tells the class."""

from __future__ import annotations

import random

import torch

from litebert.data.episodes import ClassRows, EpisodeShape, draw_episode
from litebert.meta.learner import EpisodeTexts, Learner
from litebert.meta.settings import Algorithm
from litebert.model import AlbertConfig, Encoder

NOISE, CLASSES, TEXTS = 12, 20, 12
FIRST = 4
SHAPE = EpisodeShape((4, 4), (1, 2), 4, 30)


def texts() -> list[list[int]]:
    """Class after class: four to six tokens of noise and the one of the class, in any order."""
    chance = random.Random(0)
    found = []
    for number in range(CLASSES):
        for _ in range(TEXTS):
            ids = [FIRST + NOISE + number, *(FIRST + chance.randrange(NOISE) for _ in range(chance.randint(4, 6)))]
            found.append([2, *chance.sample(ids, len(ids))])
    return found


def pool(first: int, end: int) -> ClassRows:
    return {f"{number:02}": list(range(number * TEXTS, (number + 1) * TEXTS)) for number in range(first, end)}


TRAIN, NEW = pool(0, 14), pool(14, CLASSES)


def make_learner(algorithm: Algorithm, hidden: int = 32, **settings: object) -> Learner:
    config = AlbertConfig(
        vocab_size=FIRST + NOISE + CLASSES, embedding_size=hidden // 2, hidden_size=hidden, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=2 * hidden, max_position_embeddings=8, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    return Learner(Encoder(config), algorithm, **settings)  # type: ignore[arg-type]


def questions(examples: list[list[int]], classes: ClassRows, number: int, shape: EpisodeShape = SHAPE) -> EpisodeTexts:
    return EpisodeTexts.of(draw_episode(classes, shape, 0, number), examples, torch.device("cpu"))
