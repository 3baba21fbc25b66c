"""Blocks from oneDNN's eight-bit products, beside the same in float32."""

from __future__ import annotations

import copy
from functools import partial
from typing import get_args

import pytest
import torch

from litebert.errors import ConfigError
from litebert.model import AlbertConfig, Encoder
from litebert.model.backends.int8 import EightBlocks, Observer, has_onednn, leave_int8, places_of
from litebert.model.backends.int8 import use_int8 as use_any_int8
from litebert.model.config import Sharing
from litebert.model.quantize import rounded

needs_int8 = pytest.mark.skipif(not has_onednn(), reason="this CPU has no instructions for oneDNN's eight bits")


use_int8 = partial(use_any_int8, native=False)


def encoder_of(**changes: object) -> Encoder:
    torch.manual_seed(0)
    small = {
        "vocab_size": 100,
        "embedding_size": 32,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "intermediate_size": 256,
    }
    settings = small | {"num_attention_heads": 4, "initializer_range": 0.2} | changes
    return Encoder(AlbertConfig(**settings)).eval()  # type: ignore[arg-type]


def ranges_of(encoder: Encoder, ids: torch.Tensor) -> dict[str, tuple[float, float]]:
    observer = Observer(encoder)
    encoder.run_block = observer
    with torch.no_grad():
        encoder(ids)
    leave_int8(encoder)
    return observer.ranges


def off(found: torch.Tensor, truth: torch.Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()


def test_a_rounded_weight_is_near_and_rounding_it_again_changes_nothing() -> None:
    weight = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    whole, scale = rounded(weight)
    assert whole.dtype == torch.int8
    near = whole * scale[:, None]
    assert (near - weight).abs().max() <= scale.max() / 2 + 1e-6
    assert torch.equal(near[3], weight[3])
    assert torch.equal(rounded(near)[0], whole)


@needs_int8
@pytest.mark.parametrize("sharing", get_args(Sharing))
@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("known", [True, False], ids=["ranges", "no ranges"])
def test_hidden_states_are_those_of_float32_but_for_rounding(sharing: str, act: str, known: bool) -> None:
    encoder = encoder_of(sharing=sharing, hidden_act=act)
    ids = torch.randint(5, 100, (4, 12), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        truth = encoder(ids)
        ranges = ranges_of(encoder, ids)
        assert sorted(ranges) == sorted(places_of(encoder))
        use_int8(encoder, ranges if known else None)
        found = encoder(ids)
    assert 1e-5 < off(found, truth) < 0.05
    leave_int8(encoder)
    with torch.inference_mode():
        assert torch.equal(encoder(ids), truth)


@needs_int8
@pytest.mark.parametrize("distance", [0, 8])
@pytest.mark.parametrize("written_out", [True, False], ids=["the formula", "one kernel"])
def test_long_texts_are_as_near(written_out: bool, distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their attention is computed in bfloat16."""
    if not written_out:
        monkeypatch.setattr("litebert.model.backends.int8.WRITTEN_OUT", 0)
    encoder = encoder_of(relative_attention_distance=distance)
    if encoder.relative_bias is not None:
        torch.nn.init.normal_(encoder.relative_bias)
    ids = torch.randint(5, 100, (2, 200), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(200) < torch.tensor([200, 150])[:, None]
    with torch.inference_mode():
        truth = encoder(ids, mask)
        use_int8(encoder, ranges_of(encoder, ids))
        assert 1e-5 < off(encoder(ids, mask), truth) < 0.05


@needs_int8
def test_states_after_earlier_passes_stay_as_they_are() -> None:
    encoder = encoder_of()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    use_int8(encoder, ranges_of(encoder, ids))
    with torch.inference_mode():
        for depth, states in enumerate(encoder.after_passes([1, 2, 3], ids), start=1):
            assert torch.equal(states, encoder(ids, depth=depth))


@needs_int8
def test_padding_changes_no_real_token_and_is_zero() -> None:
    encoder = encoder_of()
    ids = torch.randint(5, 100, (3, 10), generator=torch.Generator().manual_seed(1))
    use_int8(encoder, ranges_of(encoder, ids))
    lengths = [10, 4, 7]
    mask = torch.arange(10) < torch.tensor(lengths)[:, None]
    with torch.inference_mode():
        together = encoder(ids, mask)
        assert not together[~mask].any()
        for row, length in enumerate(lengths):
            alone = encoder(ids[row : row + 1, :length])
            assert off(together[row, :length], alone[0]) < 1e-2  # rounding may fall otherwise by a hair
        wanted = torch.tensor([0, 10, 20])
        torch.testing.assert_close(encoder(ids, mask, rows=wanted), together[:, 0])


@needs_int8
def test_a_batch_of_padding_alone_gives_zeros() -> None:
    encoder = encoder_of()
    use_int8(encoder)
    with torch.inference_mode():
        assert not encoder(torch.ones(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.bool)).any()


@needs_int8
def test_a_copy_computes_the_same_from_weights_of_its_own() -> None:
    encoder = encoder_of()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    use_int8(encoder, ranges_of(encoder, ids))
    with torch.inference_mode():
        before = encoder(ids)
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        encoder.ffn[0].widen.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(other(ids), before)


@needs_int8
def test_numbers_outside_of_the_ranges_are_cut_off() -> None:
    encoder = encoder_of()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    narrow = {place: (least / 100, largest / 100) for place, (least, largest) in ranges_of(encoder, ids).items()}
    with torch.inference_mode():
        truth = encoder(ids)
        use_int8(encoder, narrow)
        assert off(encoder(ids), truth) > 0.1


@needs_int8
def test_what_learns_is_refused() -> None:
    encoder = encoder_of()
    use_int8(encoder)
    assert not encoder(torch.tensor([[5, 6, 7]])).requires_grad
    with pytest.raises(ConfigError, match="does not learn"):
        encoder.train()(torch.tensor([[5, 6, 7]]))
    with pytest.raises(ConfigError, match="LoRA"):
        EightBlocks(encoder_of(lora_rank=2))


def test_a_cpu_without_instructions_for_it_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ConfigError, match="no instructions for it"):
        use_int8(encoder_of())
