"""Every instruction set computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from litebert.model.backends.native import build
from tests.model.backends.native.cases import (
    make_encoder,
    native_and_float32,
    needs_native,
    random_ids,
    relative_error,
    use_library,
)

pytestmark = needs_native


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each variant is compiled once for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITEBERT_CACHE", str(tmp_path_factory.mktemp("variants") / "cache"))
        yield


@pytest.mark.parametrize(
    ("flag", "instructions"),
    [
        ("-DNO_AMX", "amx_int8"), ("-mno-avx512bf16", "avx512_bf16"), ("-DNO_AVX512", "avx512_vnni"),
        ("-march=haswell", "avx512_vnni"),
    ],
    ids=["no AMX", "no bfloat16", "256 bits", "AVX2"],
)  # fmt: skip
def test_older_instruction_sets_compute_the_same(flag: str, instructions: str) -> None:
    if instructions not in build.cpu_description():
        pytest.skip(f"this CPU has no {instructions} to leave out")
    library = build.compile_library((*build.FLAGS, flag))
    assert library is not None
    shape = {"hidden_size": 104, "num_attention_heads": 4, "intermediate_size": 400, "initializer_range": 0.1}
    encoder, ids = make_encoder(**shape), random_ids(3, 37)
    default, expected = native_and_float32(encoder, ids)
    use_library(encoder, library)
    with torch.inference_mode():
        states = encoder(ids)
    assert not torch.equal(states, default)  # another code path
    assert 1e-5 < relative_error(states, expected) < 1.3 * relative_error(default, expected)


needs_avx512_bf16 = pytest.mark.skipif(
    "avx512_bf16" not in build.cpu_description() or "avx512_vnni" not in build.cpu_description(),
    reason="the AMX code also uses AVX-512 with bfloat16",
)
EMULATED_AMX = ("-include", str(Path(__file__).with_name("emulated_amx.h")))
"""AMX tiles in plain C++, for CPUs that have none."""


@needs_avx512_bf16
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1248, "initializer_range": 0.08},
        {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 50},
        {"relative_attention_distance": 8, "inner_group_num": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [(37, 37, 37), (3, 60, 1, 16, 33, 17)], ids=str)
def test_amx_computes_what_avx512_does(shape: dict[str, object], lengths: tuple[int, ...]) -> None:
    encoder = make_encoder(**shape)
    ids, mask = random_ids(len(lengths), max(lengths)), torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    states = []
    for more in (("-DNO_AMX",), EMULATED_AMX):
        library = build.compile_library((*build.FLAGS, *more))
        assert library is not None
        use_library(encoder, library)
        with torch.inference_mode():
            states.append(encoder(ids, mask)[mask])
    assert library.tile == (16, 16)
    assert relative_error(states[1], states[0]) < 0.01  # sums of bfloat16 in another order


@needs_avx512_bf16
def test_amx_is_left_out_where_the_system_refuses_it() -> None:
    library = build.compile_library((*build.FLAGS, *EMULATED_AMX, "-DREFUSE_AMX"))
    assert library is not None
    assert library.tile[1] == 1


@pytest.mark.skipif("avx512_vnni" not in build.cpu_description(), reason="needs AVX-512 to compare with")
@pytest.mark.parametrize("flag", ["-DNO_AVX512", "-march=haswell", "-march=alderlake"])
def test_int32_sums_are_exact_without_vnni(flag: str) -> None:
    """Only float32 arithmetic between products may differ in its last digits: for most tokens, since a value halfway
    between two int8 values may round to either. An overflow would cause an error of 0.2."""
    if "alderlake" in flag and "avx_vnni" not in build.cpu_description():
        pytest.skip("this CPU cannot run AVX-VNNI")
    shape = {"hidden_size": 104, "num_attention_heads": 4, "intermediate_size": 400, "initializer_range": 0.1}
    encoder, ids = make_encoder(**shape), random_ids(3, 37)
    states = []
    for flags in ((*build.FLAGS, "-mno-avx512bf16"), (*build.FLAGS, flag)):
        library = build.compile_library(flags)
        assert library is not None
        use_library(encoder, library)
        with torch.inference_mode():
            states.append(encoder(ids))
    assert ((states[1] - states[0]).norm(dim=-1) / states[0].norm(dim=-1)).median() < 1e-5
    assert relative_error(states[1], states[0]) < 0.003
