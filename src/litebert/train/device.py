"""Where to run, with how many others, and how to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from litebert.errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]


def pick_device(name: Device) -> torch.device:
    """The asked-for device; `auto` is the GPU if there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device=cuda, but torch sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def has_bfloat16(device: torch.device) -> bool:
    """Has it instructions for bfloat16? Without them it is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # newer than the oldest torch that we run on
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def answers_in_bf16(precision: str, device: torch.device) -> bool:
    """Who only answers takes it by itself on a GPU alone; on a CPU answers are exact until somebody asks for speed."""
    if precision == "auto":
        return device.type == "cuda" and has_bfloat16(device)
    return precision in ("bf16", "fp8")


def reseed(seed: int) -> None:
    """`torch.manual_seed` of the devices we use; that of all devices takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class StopRequest:
    """Has somebody asked this run to stop? Ctrl-C and SIGTERM set it; a second Ctrl-C stops at once.

    A second SIGTERM does not: launchers and schedulers both send one, and there is something to save."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """While the block runs, Ctrl-C and SIGTERM ask for a clean stop instead of killing."""
    request = StopRequest()
    try:
        previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may listen for signals; elsewhere the caller stops us
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Ranks:
    """The processes that train together; by default there is one."""

    rank: int = 0
    world: int = 1
    not_yet: Callable[[], AbstractContextManager[object]] = nullcontext
    """While a block runs, gradients stay with their rank."""

    def total(self, figures: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.world > 1:
            figures = figures.clone()
            torch.distributed.all_reduce(figures)
        return figures

    def any(self, flag: bool) -> bool:
        """Has any rank said yes? All must stop at the same step."""
        return bool(self.total(torch.tensor([float(flag)], device=self.device)).item()) if self.world > 1 else flag

    def agree(self, value: int) -> bool:
        """Do all ranks have the same number?"""
        mine = torch.tensor([float(value)], dtype=torch.float64, device=self.device) if self.world > 1 else None
        return mine is None or not self.any(bool((self.total(mine) != mine * self.world).item()))

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.distributed.get_backend() == "nccl" else CPU


CPU = torch.device("cpu")
ALONE = Ranks()

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bfloat16 operations per second by the makers' data sheets; a name must be in the device's."""


def peak_flops(device: torch.device, precision: str) -> float | None:
    """What the device could do at best in bfloat16, where that is known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in PEAK_FLOPS.items() if known in name), None)
