"""Eight-bit passes by our own code, beside float32, beside oneDNN, and beside themselves in other company."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from litebert.data.batches import Batch
from litebert.errors import ConfigError, DataError
from litebert.model import Albert, AlbertConfig, Encoder
from litebert.model.backends import native
from litebert.model.backends.int8 import fastest_kernel, has_onednn, is_int8, leave_int8, use_int8
from litebert.model.backends.native import NativePasses, kernel
from litebert.model.config import ACTIVATIONS, Sharing
from litebert.model.sentence_head import SentenceHead, SentenceMap
from litebert.tasks.base import vectors_of

pytestmark = pytest.mark.skipif(
    native.compiler_here() is None or not native.can_compute(),
    reason="no C++ compiler, or no instructions for eight bits",
)


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
    encoder = Encoder(AlbertConfig(**settings)).eval()  # type: ignore[arg-type]
    for extra in (encoder.relative_bias, encoder.depth_embeddings and encoder.depth_embeddings.weight):
        if extra is not None:
            torch.nn.init.normal_(extra)
    return encoder


def use_native(encoder: Encoder) -> None:
    tools = kernel()
    assert tools is not None
    encoder.run_all, encoder.unpadded = NativePasses(tools), True


def ids_of(*shape: int) -> Tensor:
    return torch.randint(5, 100, shape, generator=torch.Generator().manual_seed(1))


def off(found: Tensor, truth: Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()


def both(encoder: Encoder, *given: Tensor, **settings: object) -> tuple[Tensor, Tensor]:
    """In eight bits, and in float32."""
    with torch.inference_mode():
        leave_int8(encoder)
        truth = encoder(*given, **settings)
        use_native(encoder)
        return encoder(*given, **settings), truth


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("sharing", get_args(Sharing))
def test_hidden_states_are_those_of_float32_but_for_rounding(sharing: str, act: str) -> None:
    found, truth = both(encoder_of(sharing=sharing, hidden_act=act), ids_of(4, 12))
    assert 1e-5 < off(found, truth) < 0.04


@pytest.mark.parametrize(
    "shape",
    [
        {
            "hidden_size": 312,
            "num_attention_heads": 12,
            "intermediate_size": 1248,
            "initializer_range": 0.08,
        },  # 26 channels
        {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 50},
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "initializer_range": 0.05},
        {"num_hidden_groups": 3},
        {"inner_group_num": 2},
        {"depth_embedding": True, "inner_group_num": 2},
        {"relative_attention_distance": 8},
    ],
    ids=str,
)
def test_every_shape_is_as_near(shape: dict[str, object]) -> None:
    found, truth = both(encoder_of(**shape), ids_of(3, 37))
    assert 1e-5 < off(found, truth) < 0.04


def test_it_is_no_farther_off_than_onednn() -> None:
    if not has_onednn():
        pytest.skip("this CPU has no instructions for oneDNN's eight bits")
    encoder = encoder_of(hidden_size=256, intermediate_size=1024, initializer_range=0.1)
    found, truth = both(encoder, ids_of(4, 50))
    use_int8(encoder, native=False)
    with torch.inference_mode():
        assert off(found, truth) < 1.05 * off(encoder(ids_of(4, 50)), truth)


LENGTHS = [1, 7, 60, 130, 200, 3, 16, 170, 6]  # several groups of 384 tokens, tiles of all heights


def test_a_text_is_answered_alike_in_any_company_to_the_bit() -> None:
    encoder = encoder_of()
    ids = ids_of(len(LENGTHS), max(LENGTHS))
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    together, truth = both(encoder, ids, mask)
    assert off(together, truth) < 0.04
    assert not together[~mask].any()
    with torch.inference_mode():
        start = encoder.after_passes([0], ids)[0]  # by torch, which adds up otherwise for other numbers of rows
        together = encoder.onwards(start, mask, done=0)
        for row, length in enumerate(LENGTHS):
            alone = encoder.onwards(start[row : row + 1, :length], mask[row : row + 1, :length], done=0)
            assert torch.equal(alone[0], together[row, :length])


def test_wanted_rows_are_those_of_all_in_the_order_asked_for() -> None:
    encoder = encoder_of()
    ids, width = ids_of(len(LENGTHS), max(LENGTHS)), max(LENGTHS)
    mask = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    wanted = torch.tensor([3 * width + 129, 0, 8 * width + 5, width, 3 * width] + [0] * 700)  # more than there are
    use_native(encoder)
    with torch.inference_mode():
        every = encoder(ids, mask).flatten(0, 1)
        assert torch.equal(encoder(ids, mask, rows=wanted), every[wanted])
        assert torch.equal(encoder(ids, rows=wanted[:0]), every[:0])


def test_any_number_of_threads_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, before = encoder_of(), torch.get_num_threads()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))  # or no more threads than CPUs would be used
    use_native(encoder)
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                found.append(encoder(ids_of(9, 50)))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
    finally:
        torch.set_num_threads(before)


def test_fewer_threads_than_were_asked_for_are_enough() -> None:
    code = (
        "import os, torch; from tests.model.backends.test_native import encoder_of, ids_of, use_native; "
        "os.sched_getaffinity = lambda _: range(8); torch.set_num_threads(4); e = encoder_of(); use_native(e); "
        "print(e(ids_of(9, 50)).isfinite().all().item())"
    )
    environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, env=environment,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert ran.stdout.strip() == "True"


def test_questions_at_the_same_time_do_not_mix() -> None:
    encoder = encoder_of()
    use_native(encoder)
    questions = [ids_of(2, length) for length in range(5, 45)]

    def answer(ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return encoder(ids)

    alone = [answer(ids) for ids in questions]
    with ThreadPoolExecutor(4) as pool:
        for found, truth in zip(pool.map(answer, questions), alone, strict=True):
            assert torch.equal(found, truth)


def test_states_after_earlier_passes_are_those_of_fewer_passes() -> None:
    encoder = encoder_of()
    ids, mask = ids_of(2, 6), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    use_native(encoder)
    with torch.inference_mode():
        states = encoder.after_passes([0, 1, 3], ids, mask)
        for depth, found in zip((1, 3), states[1:], strict=True):
            assert torch.equal(found[mask], encoder(ids, mask, depth=depth)[mask])
        assert torch.equal(encoder.onwards(states[1], mask, done=1)[mask], states[2][mask])
        assert torch.equal(encoder(ids, depth=5)[0], encoder.after_passes([5], ids)[0][0])


def test_padding_alone_gives_zeros() -> None:
    encoder = encoder_of()
    use_native(encoder)
    with torch.inference_mode():
        assert not encoder(torch.ones(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.bool)).any()


def test_a_copy_computes_the_same_from_weights_of_its_own() -> None:
    encoder = encoder_of()
    use_native(encoder)
    with torch.inference_mode():
        before = encoder(ids_of(2, 6))
    other = copy.deepcopy(encoder)
    assert is_int8(other)
    with torch.no_grad():
        encoder.ffn[0].widen.weight.zero_()
    with torch.inference_mode():
        assert torch.equal(other(ids_of(2, 6)), before)


def test_what_learns_is_refused() -> None:
    encoder = encoder_of()
    use_native(encoder)
    assert not encoder(ids_of(1, 3)).requires_grad
    with pytest.raises(ConfigError, match="does not learn"):
        encoder.train()(ids_of(1, 3))


def test_what_is_new_is_laid_out_again() -> None:
    encoder, other = encoder_of(), encoder_of(initializer_range=0.1)
    found, _ = both(encoder, ids_of(2, 6))
    encoder.load_state_dict(other.state_dict())
    with torch.inference_mode():
        again, truth = encoder(ids_of(2, 6)), other(ids_of(2, 6))
    assert off(again, truth) < 0.04 < off(found, truth)


def test_wrong_questions_are_refused_before_anything_is_read() -> None:
    encoder, ids = encoder_of(), ids_of(2, 6)
    use_native(encoder)
    with torch.inference_mode():
        for rows in ([3, 99], [-1]):
            with pytest.raises(DataError, match="between 0 and 11"):
                encoder(ids, rows=torch.tensor(rows))
        with pytest.raises(DataError, match="not of 0 to 3"):
            encoder.packed(ids_of(10), torch.tensor([5, 5]), longest=3)
        few = torch.tensor([3, 1], dtype=torch.int32)
        assert torch.equal(encoder(ids, rows=few), encoder(ids, rows=few.long()))
    with pytest.raises(ConfigError, match="for CPUs"):
        encoder.to("meta")(ids.to("meta"))
    encoder = encoder_of()
    with torch.no_grad():
        encoder.ffn[0].widen.weight[0, 0] = float("nan")
    use_native(encoder)
    with pytest.raises(ConfigError, match="not a number"), torch.inference_mode():
        encoder(ids)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_weights_of_other_kinds_are_read_right(kind: torch.dtype) -> None:
    encoder = encoder_of(relative_attention_distance=4)
    truth = both(encoder, ids_of(2, 9))[1]
    encoder.to(kind)
    with torch.inference_mode():
        assert off(encoder(ids_of(2, 9)).float(), truth) < 0.06


def run(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LITEBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_compiled_and_tried_is_kept(empty_cache: Path) -> None:
    code = (
        "import torch; torch.manual_seed(0); "
        "from litebert.model.backends.int8 import fastest_kernel; fastest_kernel(); "
        "from litebert.model.backends.native import kernel; print(kernel().path, torch.rand(1).item())"
    )
    first = run(code)
    kept = {path.name: path.read_bytes() for path in empty_cache.iterdir()}
    assert sorted(Path(name).suffix for name in kept) == [".json", ".lock", ".sha256", ".so"]
    assert run(code) == first  # the trial draws nothing from the user's numbers
    assert {path.name: path.read_bytes() for path in empty_cache.iterdir()} == kept


def test_what_was_damaged_is_compiled_again(empty_cache: Path) -> None:
    tools = native.compiled_with(native.FLAGS)
    assert tools is not None
    whole = tools.path.read_bytes()
    tools.path.unlink()  # this process has it open
    tools.path.write_bytes(whole[: len(whole) // 2])
    assert native.compiled_with(native.FLAGS) is not None
    assert len(tools.path.read_bytes()) == len(whole)


def test_code_is_not_loaded_from_where_others_write(empty_cache: Path) -> None:
    empty_cache.mkdir(mode=0o777)
    empty_cache.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write there"):
        assert native.compiled_with(native.FLAGS) is None


@pytest.mark.parametrize("record", ["", "{}", '{"off": null, "native": 1, "other": 2}'])
def test_a_damaged_record_is_made_anew(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = kernel()
    assert tools is not None
    tools = tools._replace(path=tmp_path / "native.so")
    path = tools.path.with_suffix(f".torch-{torch.__version__}.json")
    path.write_text(record)
    monkeypatch.setattr("litebert.model.backends.int8.kernel", lambda: tools)
    fastest_kernel.__wrapped__()
    assert 0 < json.loads(path.read_text())["off"] < 0.1


@pytest.mark.parametrize(
    ("off", "ours", "onednn", "taken"),
    [
        (0.01, 2.0, True, True), (0.01, 2.5, True, True), (0.01, 9.0, True, False), (0.5, 1.0, True, False),
        (float("nan"), 1.0, True, False), (0.01, 1.9, False, True), (0.01, 2.5, False, False),
    ],
)  # fmt: skip
def test_the_faster_of_two_ways_is_taken_if_it_is_right(
    off: float, ours: float, onednn: bool, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside float32, where oneDNN has no eight bits, it must gain something."""
    monkeypatch.setattr("litebert.model.backends.int8.has_onednn", lambda: onednn)
    tools = kernel()
    assert tools is not None
    tools = tools._replace(path=tmp_path / "native.so")
    record = {"off": off, "native": ours, "other": 2.0}
    tools.path.with_suffix(f".torch-{torch.__version__}.json").write_text(json.dumps(record))
    monkeypatch.setattr("litebert.model.backends.int8.kernel", lambda: tools)
    assert (fastest_kernel.__wrapped__() is tools) == taken


@pytest.mark.parametrize(("ours", "kept"), [(2.9, False), (3.1, False), (1.0, True), (9.0, True)])
def test_a_trial_that_is_too_close_to_tell_is_not_remembered(
    ours: float, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litebert.model.backends.int8.has_onednn", lambda: True)
    tools = kernel()
    assert tools is not None
    tools = tools._replace(path=tmp_path / "native.so")
    monkeypatch.setattr("litebert.model.backends.int8.kernel", lambda: tools)
    monkeypatch.setattr("litebert.model.backends.int8._trial", lambda _: (0.01, [ours, 2.0]))
    assert (fastest_kernel.__wrapped__() is tools) == (ours < 3)
    assert any(tmp_path.iterdir()) == kept


def test_a_copy_that_cannot_be_compiled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of()
    use_native(encoder)
    packed = pickle.dumps(encoder.run_all)
    monkeypatch.setattr(native, "kernel", lambda: None)
    with pytest.raises(ConfigError, match="load its folder instead"):
        pickle.loads(packed)


@pytest.mark.parametrize(
    ("flag", "instructions"),
    [
        ("-DNO_TILES", "amx_int8"), ("-mno-avx512bf16", "avx512_bf16"), ("-DNARROW", "avx512_vnni"),
        ("-march=haswell", "avx512_vnni"),
    ],
    ids=["no tiles", "no bfloat16", "eight lanes", "AVX2 alone"],
)  # fmt: skip
def test_cpus_of_fewer_instructions_compute_the_same(flag: str, instructions: str, empty_cache: Path) -> None:
    if instructions not in native.cpu():
        pytest.skip(f"this CPU has no {instructions} to do without")
    tools = native.compiled_with((*native.FLAGS, flag))
    assert tools is not None
    shape = {"hidden_size": 104, "num_attention_heads": 4, "intermediate_size": 400, "initializer_range": 0.1}
    encoder, ids = encoder_of(**shape), ids_of(3, 37)
    usual, truth = both(encoder, ids)
    encoder.run_all = NativePasses(tools)
    with torch.inference_mode():
        found = encoder(ids)
    assert not torch.equal(found, usual)  # it is other code
    assert 1e-5 < off(found, truth) < 1.3 * off(usual, truth)


with_tiles = pytest.mark.skipif(
    "avx512_bf16" not in native.cpu() or "avx512_vnni" not in native.cpu(),
    reason="what goes with tiles needs AVX-512 with bfloat16",
)
TILES = ("-include", str(Path(__file__).with_name("tiles.h")))
"""Tiles in plain C++, for CPUs that have none."""


@with_tiles
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
def test_tiles_compute_what_vectors_of_numbers_do(
    shape: dict[str, object], lengths: tuple[int, ...], empty_cache: Path
) -> None:
    encoder = encoder_of(**shape)
    ids, mask = ids_of(len(lengths), max(lengths)), torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    found = []
    for more in (("-DNO_TILES",), TILES):
        tools = native.compiled_with((*native.FLAGS, *more))
        assert tools is not None
        encoder.run_all = NativePasses(tools)
        with torch.inference_mode():
            found.append(encoder(ids, mask)[mask])
    assert tools.tile == (16, 16)
    assert off(found[1], found[0]) < 0.01  # sums of bfloat16 in another order


@with_tiles
def test_where_the_system_gives_no_tiles_there_is_code_without(empty_cache: Path) -> None:
    tools = native.compiled_with((*native.FLAGS, *TILES, "-DREFUSED"))
    assert tools is not None
    assert tools.tile[1] == 1


@pytest.mark.skipif("avx512_vnni" not in native.cpu(), reason="this CPU has no wider instructions to compare with")
@pytest.mark.parametrize("flag", ["-DNARROW", "-march=haswell", "-march=alderlake"])
def test_whole_numbers_do_not_overflow_where_there_are_no_products_of_four(flag: str, empty_cache: Path) -> None:
    """The same sums of whole numbers, so that only the last digits of what lies between them differ: for most tokens,
    since a number at the border of two whole ones may fall to either side. What overflowed would be 0.2 off."""
    if "alderlake" in flag and "avx_vnni" not in native.cpu():
        pytest.skip("this CPU cannot run AVX-VNNI")
    shape = {"hidden_size": 104, "num_attention_heads": 4, "intermediate_size": 400, "initializer_range": 0.1}
    encoder, ids = encoder_of(**shape), ids_of(3, 37)
    found = []
    for flags in ((*native.FLAGS, "-mno-avx512bf16"), (*native.FLAGS, flag)):
        tools = native.compiled_with(flags)
        assert tools is not None
        encoder.run_all = NativePasses(tools)
        with torch.inference_mode():
            found.append(encoder(ids))
    assert ((found[1] - found[0]).norm(dim=-1) / found[0].norm(dim=-1)).median() < 1e-5
    assert off(found[1], found[0]) < 0.003


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.kernel.__wrapped__() is None


def test_a_compiler_that_fails_is_told_of_and_leaves_nothing_behind(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.warns(UserWarning, match="did not make code for this CPU"):
        assert native.kernel.__wrapped__() is None
    assert {path.suffix for path in empty_cache.iterdir()} == {".lock"}


def compiler(path: Path, needs: str) -> Path:
    """One that fails where it is not told this."""
    real = next(filter(None, map(shutil.which, native.COMPILERS)))
    path.write_text(f'#!/bin/sh\ncase "$*" in *{needs}*) exec {real} "$@" ;; esac\nexit 1\n')
    path.chmod(0o700)
    return path


def test_a_compiler_that_knows_no_tiles_makes_code_without(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "old", native.NO_TILES)))
    here = native.cpu()
    monkeypatch.setattr(native, "cpu", lambda: f"{here} amx_int8")
    tools = native.kernel.__wrapped__()
    assert tools is not None
    assert tools.tile[1] == 1


def test_another_version_of_the_compiler_compiles_again(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "any", "-o")))
    before = native.kernel.__wrapped__()
    assert native.kernel.__wrapped__().path == before.path
    compiler(tmp_path / "any", "-shared")
    assert native.kernel.__wrapped__().path != before.path


def head_of(size: int, hidden: int, **changes: object) -> SentenceHead:
    random = np.random.default_rng(2)
    weight = random.normal(size=(size, hidden)).astype(np.float32)
    made = SentenceMap(weight, random.normal(size=size).astype(np.float32), random.random(100, dtype=np.float32))
    return SentenceHead(replace(made, **changes))


def vectors_both(encoder: Encoder, head: SentenceHead | None, ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """From tokens to vectors in one call, and what torch makes of the states of the same passes."""
    use_native(encoder)
    albert = Albert(encoder.config, {} if head is None else {SentenceHead.name: head}).eval()
    albert.encoder = encoder
    kinds = (torch.arange(ids.shape[1]) % 3 == 0).long().expand_as(ids)
    batch = Batch(ids, mask, kinds, torch.arange(len(ids)), len(ids))
    with torch.inference_mode():
        found = [vectors_of(albert, batch)]
        handle = encoder.register_forward_hook(lambda *_: None)  # who looks at an encoder must see it work
        found.append(vectors_of(albert, batch))
        handle.remove()
    return found


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 50, "embedding_size": 7},
        {"depth_embedding": True, "inner_group_num": 2},
        {"relative_attention_distance": 8, "num_hidden_groups": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("head", ["none", "map", "length one", "no counts", "nothing counts"])
@pytest.mark.parametrize("padded", [False, True])
def test_vectors_in_one_call_are_those_of_the_states(shape: dict[str, object], head: str, padded: bool) -> None:
    encoder = encoder_of(**shape)
    nothing = np.zeros(100, dtype=np.float32)
    changes = {
        "map": {}, "length one": {"of_length_one": True}, "no counts": {"tokens": None},
        "nothing counts": {"tokens": nothing},
    }  # fmt: skip
    made = head_of(24, encoder.config.hidden_size, **changes[head]) if head in changes else None
    lengths = torch.tensor(LENGTHS) if padded else torch.full((3,), 37)
    ids = ids_of(len(lengths), int(lengths.max()))
    mask = torch.arange(ids.shape[1]) < lengths[:, None] if padded else None
    found, truth = vectors_both(encoder, made, ids, mask)
    assert torch.equal(found, truth) == (head == "nothing counts")  # it is other code
    assert off(found, truth) < 0.01  # a number at the border of two whole ones may fall to either side


class Doubled(torch.nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        return 2 * super().forward(given)


@pytest.mark.parametrize(
    "kind",
    [
        "a hook on the map",
        "a hook on positions",
        "a part of their own",
        "bfloat16",
        "of other passes",
        "of the first token",
        "not in one piece",
    ],
)
def test_vectors_that_native_code_cannot_make_are_made_by_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, heard = encoder_of(), []
    head = head_of(24, 64, **{"of other passes": {"passes": 2}, "of the first token": {"pooling": "cls"}}.get(kind, {}))
    if kind == "a hook on the map":
        head.register_forward_hook(lambda *_: heard.append(1))
    if kind == "a hook on positions":
        encoder.position_embeddings.register_forward_hook(lambda *_: heard.append(1))
    if kind == "a part of their own":
        encoder.project.__class__ = Doubled
    if kind == "bfloat16":
        encoder.to(torch.bfloat16)
    if kind == "not in one piece":
        encoder.word_embeddings.weight.data = encoder.word_embeddings.weight.data.T.contiguous().T
    run: list[int] = []
    do = NativePasses._do
    monkeypatch.setattr(
        NativePasses, "_do", lambda self, laid_out, job: (run.append(bool(job.vectors)), do(self, laid_out, job))
    )
    found, truth = vectors_both(encoder, head, ids_of(2, 9), None)
    assert off(found, truth) < 1e-5
    assert run
    assert not any(run)
    assert bool(heard) == kind.startswith("a hook")


def test_maps_and_tokens_of_other_sizes_are_refused_before_they_are_read() -> None:
    encoder = encoder_of()
    use_native(encoder)
    ids, kinds, lengths = ids_of(5), torch.zeros(5, dtype=torch.long), torch.tensor([2, 3])
    with torch.inference_mode():
        with pytest.raises(DataError, match="a map of 32 numbers does not fit the model's 64"):
            encoder.vectors(ids, lengths, kinds, torch.nn.Linear(32, 8), None)
        with pytest.raises(DataError, match="99 weights of tokens do not fit the vocabulary's 100"):
            encoder.vectors(ids, lengths, kinds, None, torch.ones(99))
        with pytest.raises(DataError, match="4 token_type_ids do not fit 5 input_ids"):
            encoder.vectors(ids, lengths, kinds[:4], None, None)


def test_tokens_need_not_lie_in_one_piece() -> None:
    encoder = encoder_of()
    use_native(encoder)
    ids, lengths = ids_of(5), torch.tensor([2, 3])
    with torch.inference_mode():
        truth = encoder.vectors(ids, lengths, torch.zeros(5, dtype=torch.long), None, None)
        apart = torch.stack([ids, ids * 0 + 99], dim=1)[:, 0]
        assert truth is not None
        found = encoder.vectors(apart, lengths, torch.zeros(1, dtype=torch.long).expand(5), None, None)
        assert found is not None
        assert torch.equal(found, truth)


def test_tokens_that_the_tables_do_not_have_are_refused() -> None:
    encoder = encoder_of()
    use_native(encoder)
    ids, kinds = ids_of(1, 5)[0], torch.zeros(5, dtype=torch.long)
    with torch.inference_mode():
        for wrong in (100, -1):
            with pytest.raises(DataError, match="between 0 and 99"):
                encoder.vectors(
                    ids.clone().index_fill(0, torch.tensor([3]), wrong), torch.tensor([5]), kinds, None, None
                )
        with pytest.raises(DataError, match="token_type_ids between 0 and 1"):
            encoder.vectors(ids, torch.tensor([5]), kinds + 2, None, None)
        with pytest.raises(DataError, match="longer than the model's 512"):
            encoder.vectors(ids_of(600), torch.tensor([600]), torch.zeros(600, dtype=torch.long), None, None)
        with pytest.raises(DataError, match="do not fit 5 rows"):
            encoder.vectors(ids, torch.tensor([3, 3]), kinds, None, None)
    assert encoder.vectors(ids, torch.tensor([5]), kinds, None, None) is None  # where somebody may differentiate
