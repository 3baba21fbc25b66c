"""The native engine beside float32, beside oneDNN, and beside itself in other batches."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from litebert.errors import ConfigError, DataError
from litebert.model.backends.int8 import enable_int8, is_int8
from litebert.model.backends.native import engine
from litebert.model.backends.onednn_int8 import has_onednn_int8
from litebert.model.config import ACTIVATIONS, Sharing
from tests.model.backends.native.cases import (
    LENGTHS,
    enable_native,
    make_encoder,
    native_and_float32,
    needs_native,
    random_ids,
    relative_error,
)

pytestmark = needs_native


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("sharing", get_args(Sharing))
def test_hidden_states_are_those_of_float32_but_for_rounding(sharing: str, act: str) -> None:
    states, expected = native_and_float32(make_encoder(sharing=sharing, hidden_act=act), random_ids(4, 12))
    assert 1e-5 < relative_error(states, expected) < 0.04


@pytest.mark.parametrize(
    "shape",
    [
        # heads of 26 channels
        {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1248, "initializer_range": 0.08},
        {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 50},
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "initializer_range": 0.05},
        {"num_hidden_groups": 3},
        {"inner_group_num": 2},
        {"depth_embedding": True, "inner_group_num": 2},
        {"relative_attention_distance": 8},
    ],
    ids=str,
)
def test_every_shape_is_as_exact(shape: dict[str, object]) -> None:
    states, expected = native_and_float32(make_encoder(**shape), random_ids(3, 37))
    assert 1e-5 < relative_error(states, expected) < 0.04


def test_its_error_is_no_larger_than_that_of_onednn() -> None:
    if not has_onednn_int8():
        pytest.skip("this CPU has no instructions for oneDNN's int8")
    encoder = make_encoder(hidden_size=256, intermediate_size=1024, initializer_range=0.1)
    states, expected = native_and_float32(encoder, random_ids(4, 50))
    enable_int8(encoder, native=False)
    with torch.inference_mode():
        assert relative_error(states, expected) < 1.05 * relative_error(encoder(random_ids(4, 50)), expected)


def test_a_text_gets_the_same_answer_in_any_batch_to_the_bit() -> None:
    encoder = make_encoder()
    ids = random_ids(len(LENGTHS), max(LENGTHS))
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    together, expected = native_and_float32(encoder, ids, mask)
    assert relative_error(together, expected) < 0.04
    assert not together[~mask].any()
    with torch.inference_mode():
        start = encoder.hidden_states_at([0], ids)[0]  # torch's sums depend on the number of rows
        together = encoder.resume(start, mask, start=0)
        for row, length in enumerate(LENGTHS):
            alone = encoder.resume(start[row : row + 1, :length], mask[row : row + 1, :length], start=0)
            assert torch.equal(alone[0], together[row, :length])


def test_wanted_rows_are_returned_in_the_order_asked_for() -> None:
    encoder = make_encoder()
    ids, width = random_ids(len(LENGTHS), max(LENGTHS)), max(LENGTHS)
    mask = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    wanted = torch.tensor([3 * width + 129, 0, 8 * width + 5, width, 3 * width] + [0] * 700)  # more than there are
    enable_native(encoder)
    with torch.inference_mode():
        every = encoder(ids, mask).flatten(0, 1)
        assert torch.equal(encoder(ids, mask, rows=wanted), every[wanted])
        assert torch.equal(encoder(ids, rows=wanted[:0]), every[:0])


def test_any_number_of_threads_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, before = make_encoder(), torch.get_num_threads()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))  # or no more threads than CPUs would be used
    enable_native(encoder)
    try:
        states = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                states.append(encoder(random_ids(9, 50)))
        assert torch.equal(states[0], states[1])
        assert torch.equal(states[0], states[2])
    finally:
        torch.set_num_threads(before)


def test_fewer_threads_than_requested_are_enough() -> None:
    code = (
        "import os, torch; from tests.model.backends.native.cases import *; "
        "os.sched_getaffinity = lambda _: range(8); torch.set_num_threads(4); e = make_encoder(); enable_native(e); "
        "print(e(random_ids(9, 50)).isfinite().all().item())"
    )
    environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, env=environment,
        cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert ran.stdout.strip() == "True"


def test_concurrent_calls_do_not_mix() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    batches = [random_ids(2, length) for length in range(5, 45)]

    def answer(ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return encoder(ids)

    alone = [answer(ids) for ids in batches]
    with ThreadPoolExecutor(4) as pool:
        for states, expected in zip(pool.map(answer, batches), alone, strict=True):
            assert torch.equal(states, expected)


def test_states_after_earlier_passes_are_those_of_fewer_passes() -> None:
    encoder = make_encoder()
    ids, mask = random_ids(2, 6), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    enable_native(encoder)
    with torch.inference_mode():
        states = encoder.hidden_states_at([0, 1, 3], ids, mask)
        for depth, at_depth in zip((1, 3), states[1:], strict=True):
            assert torch.equal(at_depth[mask], encoder(ids, mask, depth=depth)[mask])
        assert torch.equal(encoder.resume(states[1], mask, start=1)[mask], states[2][mask])
        assert torch.equal(encoder(ids, depth=5)[0], encoder.hidden_states_at([5], ids)[0][0])


def test_padding_alone_gives_zeros() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    with torch.inference_mode():
        assert not encoder(torch.ones(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.bool)).any()


def test_a_copy_computes_the_same_from_weights_of_its_own() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    with torch.inference_mode():
        before = encoder(random_ids(2, 6))
    other = copy.deepcopy(encoder)
    assert is_int8(other)
    with torch.no_grad():
        encoder.ffn[0].widen.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(other(random_ids(2, 6)), before)


def test_training_is_refused() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    assert not encoder(random_ids(1, 3)).requires_grad
    with pytest.raises(ConfigError, match="cannot be trained"):
        encoder.train()(random_ids(1, 3))


def test_new_weights_are_packed_again() -> None:
    encoder, other = make_encoder(), make_encoder(initializer_range=0.1)
    before, _ = native_and_float32(encoder, random_ids(2, 6))
    encoder.load_state_dict(other.state_dict())
    with torch.inference_mode():
        after, expected = encoder(random_ids(2, 6)), other(random_ids(2, 6))
    assert relative_error(after, expected) < 0.04 < relative_error(before, expected)


def test_wrong_inputs_are_refused_before_anything_is_read() -> None:
    encoder, ids = make_encoder(), random_ids(2, 6)
    enable_native(encoder)
    with torch.inference_mode():
        for rows in ([3, 99], [-1]):
            with pytest.raises(DataError, match="between 0 and 11"):
                encoder(ids, rows=torch.tensor(rows))
        with pytest.raises(DataError, match="not of 0 to 3"):
            encoder.packed(random_ids(10), torch.tensor([5, 5]), longest=3)
        few = torch.tensor([3, 1], dtype=torch.int32)
        assert torch.equal(encoder(ids, rows=few), encoder(ids, rows=few.long()))
    with pytest.raises(ConfigError, match="int8 runs on CPUs only"):
        encoder.to("meta")(ids.to("meta"))
    encoder = make_encoder()
    with torch.no_grad():
        encoder.ffn[0].widen.weight[0, 0] = float("nan")
    enable_native(encoder)
    with pytest.raises(ConfigError, match="not a number"), torch.inference_mode():
        encoder(ids)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_weights_of_other_types_are_packed(kind: torch.dtype) -> None:
    encoder = make_encoder(relative_attention_distance=4)
    expected = native_and_float32(encoder, random_ids(2, 9))[1]
    encoder.to(kind)
    with torch.inference_mode():
        assert relative_error(encoder(random_ids(2, 9)).float(), expected) < 0.06


def test_a_pickled_model_says_so_where_nothing_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder()
    enable_native(encoder)
    packed = pickle.dumps(encoder.backend)
    monkeypatch.setattr(engine, "native_library", lambda: None)
    with pytest.raises(ConfigError, match="load its folder instead"):
        pickle.loads(packed)
