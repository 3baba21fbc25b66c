"""The native engine compiled for ARM and emulated, beside the same on this CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.model.backends.native import NativeLibrary, build
from tests.conftest import missing
from tests.model.backends.native.cases import (
    LENGTHS,
    make_encoder,
    native_and_float32,
    random_ids,
    relative_error,
    use_library,
)

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PANEL = 16
FLAGS = tuple(flag for flag in build.FLAGS if flag not in ("-march=native", "-shared", "-fPIC"))


pytestmark = pytest.mark.slow  # every run goes through an emulator


class Emulated:
    """Takes the place of the library: each call runs a program under the emulator."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def litebert_workspace_size(self, *_: object) -> int:
        return 0

    def litebert_run(self, network: Any, batch: Any, *_: object) -> None:
        net, task = network._obj, batch._obj
        tokens, hidden = ctypes.c_int32.from_address(task.sequence_starts + 4 * task.sequences).value, net.hidden
        blocks = net.attention[0], net.feed_forward[0]
        layers = blocks[0].qkv, blocks[0].out, blocks[1].up, blocks[1].down
        arrays = [part for layer in layers for part in _arrays(layer)]
        arrays += [_bytes(part, 4 * hidden) for block in blocks for part in (block.norm.weight, block.norm.bias)]
        sizes = (
            hidden, net.heads, net.heads_per_bundle, net.activation, task.sequences, task.steps, task.max_length,
            task.wanted_count,
        )  # fmt: skip
        arrays += [bytes((ctypes.c_int32 * len(sizes))(*sizes)), bytes(ctypes.c_float(net.epsilon))]
        arrays_by_field = {
            "input": 4 * tokens * hidden, "sequence_starts": 4 * (task.sequences + 1), "step_blocks": 8 * task.steps,
            "step_embeddings": 4 * task.steps * hidden, "attention_bias": 4 * net.heads * task.max_length**2,
            "wanted_rows": 8 * task.wanted_count,
        }  # fmt: skip
        arrays += [_bytes(getattr(task, name), size) for name, size in arrays_by_field.items()]
        input_file, output_file = self.program.with_suffix(".in"), self.program.with_suffix(".out")
        input_file.write_bytes(b"".join(len(array).to_bytes(8, "little") + array for array in arrays))
        subprocess.run([EMULATOR, "-cpu", "max", self.program, input_file, output_file], check=True, timeout=300)
        output = output_file.read_bytes()
        assert len(output) == 4 * hidden * (task.wanted_count if task.wanted_rows else tokens)
        ctypes.memmove(task.output, output, len(output))


def _bytes(address: int | None, size: int) -> bytes:
    return ctypes.string_at(address, size) if address else b""


def _arrays(layer: Any) -> list[bytes]:
    columns, depth, groups = layer.columns, layer.depth, layer.groups
    weights = _bytes(layer.weight, columns * depth), _bytes(layer.scale, 4 * columns), _bytes(layer.bias, 4 * columns)
    sizes = bytes((ctypes.c_int32 * 3)(columns, depth, groups))
    return [*weights, _bytes(layer.column_sums, 4 * groups * columns), sizes]


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    for tool, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(tool) is None:
            missing(f"{tool} (apt-get install {package})")
    program = tmp_path_factory.mktemp("arm") / "run"
    flags = (*FLAGS, "-march=armv8.2-a+dotprod", "-static", f"-I{build.SOURCE_FOLDER}")
    source = Path(__file__).with_name("run_from_file.cpp")
    subprocess.run([COMPILER, *flags, "-o", program, source], check=True, timeout=120)
    return NativeLibrary(program, Emulated(program), None, None, PANEL, (PANEL, 1))


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden_size": 104, "intermediate_size": 400, "initializer_range": 0.1},
        {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 50, "hidden_act": "gelu_new"},
        {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1248, "initializer_range": 0.08},
        {"relative_attention_distance": 8, "hidden_act": "relu"},
        {"depth_embedding": True, "hidden_act": "silu"},
    ],
    ids=str,
)
def test_an_arm_computes_the_same(shape: dict[str, object], arm: NativeLibrary) -> None:
    encoder, ids = make_encoder(**shape), random_ids(len(LENGTHS), 60)
    mask = torch.arange(60) < torch.tensor(LENGTHS).clamp(max=60)[:, None]
    wanted = torch.tensor([3 * 60 + 9, 0, 60 + 5])
    default, expected = native_and_float32(encoder, ids, mask)
    use_library(encoder, arm)
    with torch.inference_mode():
        states, selected = encoder(ids, mask), encoder(ids, mask, rows=wanted)
    assert 1e-5 < relative_error(states, expected) < 1.3 * relative_error(default, expected)
    torch.testing.assert_close(selected, states.flatten(0, 1)[wanted], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif("avx2" not in build.cpu_description(), reason="this CPU has no panels as wide")
def test_signed_products_give_the_sums_of_unsigned_ones(arm: NativeLibrary) -> None:
    avx2 = build.compile_library((*build.FLAGS, "-march=haswell"))
    assert avx2 is not None
    assert avx2.panel == PANEL
    states, encoder = [], make_encoder(hidden_size=104, intermediate_size=400, initializer_range=0.1)
    for library in (avx2, arm):
        use_library(encoder, library)
        with torch.inference_mode():
            states.append(encoder(random_ids(3, 37)))
    # a value halfway between two int8 values may round to either; an error would be one of every token
    assert ((states[1] - states[0]).norm(dim=-1) / states[0].norm(dim=-1)).median() < 1e-5
    assert relative_error(states[1], states[0]) < 0.003
