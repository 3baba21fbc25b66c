"""Where a computation runs and in which precision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from litebert.device import has_bfloat16, pick_device, training_precision, uses_bf16_for_inference
from litebert.errors import ConfigError


def test_the_cpu_is_the_cpu_even_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch, available: bool, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert pick_device("auto") == torch.device(device)


def test_a_gpu_that_is_not_there_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device=cuda, but torch sees no GPU here; use --device cpu"):
        pick_device("cuda")


@pytest.mark.parametrize(
    ("able", "expected"), [({}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True, "avx512_bf16": False}, True)]
)
def test_a_cpu_takes_bfloat16_where_it_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, able: dict[str, bool], expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    assert has_bfloat16(torch.device("cpu")) is expected
    assert has_bfloat16(torch.device("cuda"))


def test_a_torch_that_cannot_say_gets_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not has_bfloat16(torch.device("cpu"))


@pytest.mark.parametrize("able", [True, False])
def test_auto_trains_in_bf16_where_the_cpu_has_it_and_answers_in_fp32(
    monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able}, raising=False)
    cpu = torch.device("cpu")
    assert training_precision("auto", cpu) == ("bf16" if able else "fp32")
    assert training_precision("fp8", cpu) == "fp8"
    assert [uses_bf16_for_inference(it, cpu) for it in ("auto", "bf16", "fp8", "fp32")] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_for_shapes_that_were_computed_levels_off() -> None:
    """0.3 to 0.6 MB for each of the last 1,024 shapes without the limit: fine-tuning grew by 0.6 GB."""
    code = """
import torch
from litebert.device import limit_shape_caches

def resident() -> float:
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

limit_shape_caches()
torch.set_num_threads(1)
weight, rows = torch.ones(64, 64, dtype=torch.bfloat16), torch.ones(900, 64, dtype=torch.bfloat16)
for count in range(1, 900):
    if count == 600:
        before = resident()
    torch.nn.functional.linear(rows[:count], weight)
print(resident() - before)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(answer.stdout) < 30
