"""Beam search against a plain one that is written for one sentence, without cache or batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litebert.errors import ConfigError
from litebert.model.beam_search import BeamSearch, search
from litebert.model.decoder import Decoder, DecoderConfig

VOCABULARY, HIDDEN, BEGIN, END = 13, 12, 2, 3
LENGTHS = (5, 1, 3, 2)


def made(seed: int) -> tuple[Decoder, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    decoder = Decoder(DecoderConfig(VOCABULARY, (1,), 8, 2, 1, 2, 16, "none", 0.0), HIDDEN).eval()
    with torch.no_grad():
        decoder.words.weight *= 4  # sharper, so that beams differ
        decoder.bias[END] = 2.0
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return decoder, decoder.memory(torch.randn(len(LENGTHS), max(LENGTHS), 1, HIDDEN), real), real


@torch.no_grad()
def plainly(
    decoder: Decoder, memory: torch.Tensor, how: BeamSearch, banned: tuple[int, ...]
) -> tuple[list[int], float]:
    """One source, (1, L, D), without padding: every step reads all that is written again."""
    real = torch.ones(memory.shape[:2], dtype=torch.bool)
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, float, list[int]]] = []
    for place in range(1, 2 * memory.shape[1] + 11):
        grown = []
        for total, ids in alive:
            scores = decoder(memory, real, torch.tensor([[BEGIN, *ids]]))[0, -1].log_softmax(-1).tolist()
            last = place == 2 * memory.shape[1] + 10
            for token, score in enumerate(scores):
                if token not in (BEGIN, *banned) and (token == END or not last):
                    grown.append((total + score, [*ids, token]))
        grown.sort(key=lambda one: -one[0])
        ended = [one for one in grown[: how.beams] if one[1][-1] == END]
        done += [(total / how.penalty(place), total, ids) for total, ids in ended]
        alive = [one for one in grown if one[1][-1] != END][: how.beams]
        if len(done) >= how.beams or not alive:
            break
    _, total, ids = max(done)
    return ids, total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "how", [BeamSearch(1, 1.0), BeamSearch(3, 1.0), BeamSearch(5, 0.0), BeamSearch(4, 2.0)], ids=str
)
def test_the_batch_finds_what_a_plain_search_finds(seed: int, how: BeamSearch) -> None:
    decoder, memory, real = made(seed)
    found = search(decoder, memory, real, BEGIN, END, how, banned=(0,))
    for row, length in enumerate(LENGTHS):
        ids, total = plainly(decoder, memory[row : row + 1, :length], how, (0,))
        mine = found.ids[row].tolist()
        assert mine[: mine.index(END) + 1] == ids
        assert found.log_likelihood[row].item() == pytest.approx(total, abs=1e-4)
        assert found.source_columns[row].max() < length


def test_a_length_penalty_makes_targets_longer() -> None:
    lengths = []
    for penalty in (0.0, 4.0):
        ids = [search(*made(seed), BEGIN, END, BeamSearch(5, penalty)).ids for seed in range(6)]
        lengths.append(sum((one != END).sum().item() for one in ids))
    assert lengths[0] < lengths[1]


@pytest.mark.parametrize("offset", [0, 3, 30])
def test_a_target_ends_when_it_is_twice_as_long_as_its_source_and_some(offset: int) -> None:
    decoder, memory, real = made(0)
    with torch.no_grad():
        decoder.bias[END] = -99.0  # it would never end
    found = search(decoder, memory, real, BEGIN, END, BeamSearch(2, 1.0, offset))
    assert (found.ids != END).sum(1).tolist() == [2 * length + offset - 1 for length in LENGTHS]


def test_there_is_room_for_what_was_learned_and_never_less() -> None:
    assert BeamSearch(2, 1.0).with_room_for([(4, 41), (30, 60)]) == BeamSearch(2, 1.0, 33)
    assert BeamSearch(2, 1.0).with_room_for([(4, 5)]) == BeamSearch(2, 1.0).with_room_for([]) == BeamSearch(2, 1.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((0, 1.0), "beams=0 must lie between 1"),
        ((5, -1.0), "length_penalty=-1.0"),
        ((5, 1.0, -1), "offset=-1 must lie between 0"),
    ],
)
def test_impossible_searches_are_refused(settings: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BeamSearch(*settings)
