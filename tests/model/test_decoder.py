"""The decoder: steps with a cache against teacher forcing, padding, sharing."""

from __future__ import annotations

import pytest
import torch

from litebert.errors import ConfigError
from litebert.model.decoder import Decoder, DecoderConfig

VOCABULARY, HIDDEN = 19, 24


def make(**settings: object) -> Decoder:
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "depths": (0, 2), "hidden_size": 16, "intermediate_size": 32, "layers": 3,
             "reading_layers": 2, "heads": 4, "sharing": "none", "dropout": 0.3}  # fmt: skip
    return Decoder(DecoderConfig(**(shape | settings)), HIDDEN).eval()  # type: ignore[arg-type]


def sources(lengths: tuple[int, ...] = (5, 3, 4)) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), 2, HIDDEN), real


@pytest.mark.parametrize("sharing", ["none", "all"])
def test_steps_with_a_cache_score_as_teacher_forcing_does(sharing: str) -> None:
    decoder = make(sharing=sharing)
    states, real = sources()
    memory = decoder.memory(states, real)
    ids = torch.randint(0, VOCABULARY, (3, 7))
    whole, cache = decoder(memory, real, ids), decoder.begin(memory, real)
    for place in range(7):
        scores, looks = decoder.step(ids[:, place], cache)
        torch.testing.assert_close(scores, whole[:, place])
        torch.testing.assert_close(looks.sum(1), torch.ones(3))
        assert not looks[~real].any()


def test_what_comes_later_does_not_count() -> None:
    decoder = make()
    states, real = sources()
    memory, ids = decoder.memory(states, real), torch.randint(0, VOCABULARY, (3, 6))
    other = ids.clone()
    other[:, 4:] = 0
    torch.testing.assert_close(decoder(memory, real, ids)[:, :4], decoder(memory, real, other)[:, :4])
    assert not torch.allclose(decoder(memory, real, ids)[:, 5], decoder(memory, real, other)[:, 5])


def test_padding_of_the_source_does_not_count() -> None:
    decoder = make()
    states, real = sources()
    ids = torch.randint(0, VOCABULARY, (3, 6))
    alone = decoder(decoder.memory(states[1:2, :3], real[1:2, :3]), real[1:2, :3], ids[1:2])
    torch.testing.assert_close(decoder(decoder.memory(states, real), real, ids)[1:2], alone)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"layers": 1}, {"layers": 2}), ({"reading_layers": 0}, {"reading_layers": 2}), ({"depths": (2,)}, {})],
)
def test_every_layer_and_depth_changes_what_is_said(one: dict[str, object], other: dict[str, object]) -> None:
    states, real = sources()
    ids = torch.randint(0, VOCABULARY, (3, 4))

    def said(settings: dict[str, object]) -> torch.Tensor:
        decoder = make(**{"sharing": "all"} | settings)
        seen = states[:, :, -len(decoder.config.depths) :]
        return decoder(decoder.memory(seen, real), real, ids)

    assert not torch.allclose(said(one), said(other))


@pytest.mark.parametrize("part", ["memory", "words", "self-attention", "source", "widening"])
def test_every_part_is_dropped_from_while_it_learns(part: str) -> None:
    states, real = sources()
    hidden, ids = torch.randn(3, 5, 16), torch.ones(3, 4, dtype=torch.long)

    def said(decoder: Decoder) -> torch.Tensor:
        layer, padding_bias = decoder.target_layers()[0], torch.zeros(3, 1, 1, 5)
        if part == "memory":
            return decoder.memory(states, real)
        if part == "words":
            return decoder.embed(ids)
        if part == "self-attention":
            return layer.self_attention(hidden, padding_bias)
        if part == "source":
            return layer.source_attention(hidden, layer.source_keys_values(hidden), padding_bias)[0]
        return layer.feed_forward(hidden)

    for dropout, alike in ((0.0, True), (0.3, False)):
        decoder = make(dropout=dropout, reading_layers=0).train()
        assert torch.equal(said(decoder), said(decoder)) == alike
        assert torch.equal(said(decoder.eval()), said(decoder))


def test_shared_layers_stand_once_and_the_table_is_also_the_output() -> None:
    shared, apart = (sum(p.numel() for p in make(sharing=how).parameters()) for how in ("all", "none"))
    assert shared < apart / 2
    decoder = make()
    states, real = sources()
    decoder(decoder.memory(states, real), real, torch.tensor([[1], [1], [1]])).sum().backward()
    grad = decoder.words.weight.grad
    assert grad is not None
    assert grad.abs().sum(1).gt(0).all()  # by the output every word learns, not only those that were read


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden_size": 18}, "multiple of its 4 heads; try 16"),
        ({"layers": 0}, "layers=0 must lie between 1 and 48"),
        ({"reading_layers": 99}, "reading_layers=99"),
        ({"sharing": "some"}, "sharing='some' must be one of all, none"),
        ({"depths": ()}, "name a depth"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_impossible_shapes_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**settings)
