"""Eight-bit passes as an ARM computes them, emulated, beside what this CPU makes of the same whole numbers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.model.backends import native
from litebert.model.backends.native import Kernel, NativePasses
from tests.conftest import missing
from tests.model.backends.test_native import LENGTHS, both, encoder_of, ids_of, off

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PANEL = 16
FLAGS = tuple(flag for flag in native.FLAGS if flag not in ("-march=native", "-shared", "-fPIC"))


class Emulated:
    """In the place of the library: each call runs a program of its own."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def litebert_workspace(self, *_: object) -> int:
        return 0

    def litebert_run(self, network: Any, job: Any, *_: object) -> None:
        net, task = network._obj, job._obj
        tokens, hidden = ctypes.c_int32.from_address(task.starts + 4 * task.sequences).value, net.hidden
        halves = net.attention[0], net.ffn[0]
        products = halves[0].qkv, halves[0].out, halves[1].widen, halves[1].narrow
        arrays = [part for one in products for part in _arrays(one)]
        arrays += [_bytes(part, 4 * hidden) for half in halves for part in (half.norm.weight, half.norm.bias)]
        sizes = (
            hidden, net.heads, net.bundle, net.activation, task.sequences, task.steps, task.longest, task.wanted
        )  # fmt: skip
        arrays += [bytes((ctypes.c_int32 * len(sizes))(*sizes)), bytes(ctypes.c_float(net.epsilon))]
        places = {
            "given": 4 * tokens * hidden, "starts": 4 * (task.sequences + 1), "blocks": 8 * task.steps,
            "added": 4 * task.steps * hidden, "bias": 4 * net.heads * task.longest**2, "rows": 8 * task.wanted,
        }  # fmt: skip
        arrays += [_bytes(getattr(task, name), size) for name, size in places.items()]
        asked, answered = self.program.with_suffix(".in"), self.program.with_suffix(".out")
        asked.write_bytes(b"".join(len(one).to_bytes(8, "little") + one for one in arrays))
        subprocess.run([EMULATOR, "-cpu", "max", self.program, asked, answered], check=True, timeout=300)
        found = answered.read_bytes()
        assert len(found) == 4 * hidden * (task.wanted if task.rows else tokens)
        ctypes.memmove(task.found, found, len(found))


def _bytes(place: int | None, size: int) -> bytes:
    return ctypes.string_at(place, size) if place else b""


def _arrays(product: Any) -> list[bytes]:
    columns, depth, groups = product.columns, product.depth, product.groups
    given = (product.weight, columns * depth), (product.scale, 4 * columns), (product.bias, 4 * columns)
    sizes = bytes((ctypes.c_int32 * 3)(columns, depth, groups))
    return [*(_bytes(*one) for one in (*given, (product.sums, 4 * groups * columns))), sizes]


pytestmark = pytest.mark.slow  # every run goes through an emulator


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    for tool, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(tool) is None:
            missing(f"{tool} (apt-get install {package})")
    program = tmp_path_factory.mktemp("arm") / "run"
    flags = (*FLAGS, "-march=armv8.2-a+dotprod", "-static", f"-I{native.SOURCE.parent}")
    subprocess.run([COMPILER, *flags, "-o", program, Path(__file__).with_name("arm.cpp")], check=True, timeout=120)
    return Kernel(program, Emulated(program), None, None, PANEL, (PANEL, 1))


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
def test_an_arm_computes_the_same(shape: dict[str, object], arm: Kernel) -> None:
    encoder, ids = encoder_of(**shape), ids_of(len(LENGTHS), 60)
    mask = torch.arange(60) < torch.tensor(LENGTHS).clamp(max=60)[:, None]
    wanted = torch.tensor([3 * 60 + 9, 0, 60 + 5])
    usual, truth = both(encoder, ids, mask)
    encoder.run_all = NativePasses(arm)
    with torch.inference_mode():
        found, some = encoder(ids, mask), encoder(ids, mask, rows=wanted)
    assert 1e-5 < off(found, truth) < 1.3 * off(usual, truth)
    torch.testing.assert_close(some, found.flatten(0, 1)[wanted], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif("avx2" not in native.cpu(), reason="this CPU has no panels as wide")
def test_bytes_that_count_as_less_than_they_are_come_to_the_same_sums(arm: Kernel) -> None:
    tools = native.compiled_with((*native.FLAGS, "-march=haswell"))
    assert tools is not None
    assert tools.panel == PANEL
    found, encoder = [], encoder_of(hidden_size=104, intermediate_size=400, initializer_range=0.1)
    for one in (tools, arm):
        encoder.run_all = NativePasses(one)
        with torch.inference_mode():
            found.append(encoder(ids_of(3, 37)))
    # one number at the border of two whole ones may fall to either side; what is wrong is wrong for every token
    assert ((found[1] - found[0]).norm(dim=-1) / found[0].norm(dim=-1)).median() < 1e-5
    assert off(found[1], found[0]) < 0.003
