"""int8 by oneDNN beside float32, and the choice between oneDNN and the native engine."""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import Any, get_args

import pytest
import torch

from litebert.errors import ConfigError
from litebert.model import Encoder
from litebert.model.backends.int8 import (
    disable_int8,
    enable_int8,
    is_int8,
    range_names,
    record_ranges,
    verified_native_library,
)
from litebert.model.backends.native import NativeInt8Backend, native_library, self_test
from litebert.model.backends.onednn_int8 import OneDnnInt8, has_onednn_int8
from litebert.model.config import Sharing
from litebert.model.quantize import quantize_per_row
from tests.model.backends.native.cases import make_encoder, relative_error

needs_int8 = pytest.mark.skipif(not has_onednn_int8(), reason="this CPU has no instructions for oneDNN's int8")

enable_onednn = partial(enable_int8, native=False)


def record(encoder: Encoder, ids: torch.Tensor) -> dict[str, tuple[float, float]]:
    with record_ranges(encoder) as ranges, torch.no_grad():
        encoder(ids)
    return ranges


def test_quantizing_a_quantized_weight_changes_nothing() -> None:
    weight = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    whole, scale = quantize_per_row(weight)
    assert whole.dtype == torch.int8
    near = whole * scale[:, None]
    assert (near - weight).abs().max() <= scale.max() / 2 + 1e-6
    assert torch.equal(near[3], weight[3])
    assert torch.equal(quantize_per_row(near)[0], whole)


@needs_int8
@pytest.mark.parametrize("sharing", get_args(Sharing))
@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("known", [True, False], ids=["ranges", "no ranges"])
def test_hidden_states_are_those_of_float32_but_for_rounding(sharing: str, act: str, known: bool) -> None:
    encoder = make_encoder(sharing=sharing, hidden_act=act)
    ids = torch.randint(5, 100, (4, 12), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = encoder(ids)
        ranges = record(encoder, ids)
        assert sorted(ranges) == sorted(range_names(encoder))
        enable_onednn(encoder, ranges if known else None)
        states = encoder(ids)
    assert 1e-5 < relative_error(states, expected) < 0.05
    disable_int8(encoder)
    with torch.inference_mode():
        assert torch.equal(encoder(ids), expected)


@needs_int8
@pytest.mark.parametrize("distance", [0, 8])
@pytest.mark.parametrize("written_out", [True, False], ids=["eager", "sdpa"])
def test_long_texts_are_as_exact(written_out: bool, distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their attention is computed in bfloat16."""
    if not written_out:
        monkeypatch.setattr("litebert.model.backends.onednn_int8.MAX_EAGER_SCORES", 0)
    encoder = make_encoder(relative_attention_distance=distance)
    if encoder.relative_bias is not None:
        torch.nn.init.normal_(encoder.relative_bias)
    ids = torch.randint(5, 100, (2, 200), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(200) < torch.tensor([200, 150])[:, None]
    with torch.inference_mode():
        expected = encoder(ids, mask)
        enable_onednn(encoder, record(encoder, ids))
        assert 1e-5 < relative_error(encoder(ids, mask), expected) < 0.05


@needs_int8
def test_states_after_earlier_passes_stay_as_they_are() -> None:
    encoder = make_encoder()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    enable_onednn(encoder, record(encoder, ids))
    with torch.inference_mode():
        for depth, states in enumerate(encoder.hidden_states_at([1, 2, 3], ids), start=1):
            assert torch.equal(states, encoder(ids, depth=depth))


@needs_int8
def test_padding_changes_no_real_token_and_is_zero() -> None:
    encoder = make_encoder()
    ids = torch.randint(5, 100, (3, 10), generator=torch.Generator().manual_seed(1))
    enable_onednn(encoder, record(encoder, ids))
    lengths = [10, 4, 7]
    mask = torch.arange(10) < torch.tensor(lengths)[:, None]
    with torch.inference_mode():
        together = encoder(ids, mask)
        assert not together[~mask].any()
        for row, length in enumerate(lengths):
            alone = encoder(ids[row : row + 1, :length])
            assert (
                relative_error(together[row, :length], alone[0]) < 1e-2
            )  # sums in another order may round differently
        wanted = torch.tensor([0, 10, 20])
        torch.testing.assert_close(encoder(ids, mask, rows=wanted), together[:, 0])


@needs_int8
def test_a_batch_of_padding_alone_gives_zeros() -> None:
    encoder = make_encoder()
    enable_onednn(encoder)
    with torch.inference_mode():
        assert not encoder(torch.ones(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.bool)).any()


@needs_int8
def test_a_copy_computes_the_same_from_weights_of_its_own() -> None:
    encoder = make_encoder()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    enable_onednn(encoder, record(encoder, ids))
    with torch.inference_mode():
        before = encoder(ids)
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        encoder.ffn[0].widen.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(other(ids), before)


@needs_int8
def test_activations_outside_the_ranges_are_clipped() -> None:
    encoder = make_encoder()
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    narrow = {place: (least / 100, largest / 100) for place, (least, largest) in record(encoder, ids).items()}
    with torch.inference_mode():
        expected = encoder(ids)
        enable_onednn(encoder, narrow)
        assert relative_error(encoder(ids), expected) > 0.1


@needs_int8
def test_training_is_refused() -> None:
    encoder = make_encoder()
    enable_onednn(encoder)
    assert not encoder(torch.tensor([[5, 6, 7]])).requires_grad
    with pytest.raises(ConfigError, match="cannot be trained"):
        encoder.train()(torch.tensor([[5, 6, 7]]))
    with pytest.raises(ConfigError, match="LoRA"):
        OneDnnInt8(make_encoder(lora_rank=2))


def test_a_cpu_without_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ConfigError, match="no instructions for it"):
        enable_onednn(make_encoder())


needs_native = pytest.mark.skipif(native_library() is None, reason="no C++ compiler, or no instructions for int8")


@needs_native
def test_the_choice_of_the_engine_does_not_depend_on_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a model must not get other numerics than on a quiet one."""
    run = NativeInt8Backend.__call__

    def slow(*arguments: Any) -> torch.Tensor:
        time.sleep(0.05)
        return run(*arguments)

    monkeypatch.setattr(NativeInt8Backend, "__call__", slow)
    assert verified_native_library.__wrapped__() is native_library()


@needs_native
@pytest.mark.parametrize("error", [0.2, float("nan")])
def test_a_native_engine_that_computes_something_else_is_not_used(
    error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litebert.model.backends.int8.self_test_error", lambda _: error)
    with pytest.warns(UserWarning, match="failed its self-test"):
        assert verified_native_library.__wrapped__() is None


def swapped_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    quantized, scale = quantize_per_row(weight)
    return quantized.flip(0), scale


@needs_native
def test_the_self_test_notices_wrong_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert library is not None
    assert 1e-4 < self_test.self_test_error(library) < self_test.MAX_ERROR / 2
    monkeypatch.setattr("litebert.model.backends.native.weights.quantize_per_row", swapped_rows)
    assert self_test.self_test_error(library) > self_test.MAX_ERROR


@needs_native
def test_without_the_native_engine_onednn_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder()
    enable_int8(encoder)
    assert isinstance(encoder.backend, NativeInt8Backend)
    monkeypatch.setattr("litebert.model.backends.int8.verified_native_library", lambda: None)
    monkeypatch.setattr("litebert.model.backends.onednn_int8.has_onednn_int8", lambda: True)
    enable_int8(encoder)
    assert isinstance(encoder.backend, OneDnnInt8)
    disable_int8(encoder)
    assert not is_int8(encoder)
