"""Where to run, and how to stop."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

from litebert.errors import ConfigError
from litebert.train.device import has_bfloat16, pick_device, reseed, stop_on_signal


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


def test_a_signal_sets_the_request_instead_of_killing() -> None:
    with stop_on_signal() as request:
        assert not request.asked
        signal.raise_signal(signal.SIGTERM)
        assert request.asked


def test_outside_the_main_thread_there_is_a_request_that_nobody_sets() -> None:
    seen: list[bool] = []

    def work() -> None:
        with stop_on_signal() as request:
            seen.append(request.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("seed", [0, 7, 2**62])
def test_reseeding_gives_the_draws_that_torch_gives(seed: int) -> None:
    torch.manual_seed(seed)
    expected = torch.rand(5)
    torch.rand(3)
    reseed(seed)
    assert torch.equal(torch.rand(5), expected)
