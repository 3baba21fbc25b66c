"""How long things take, measured so that a busy machine is as unfair to one as to the other."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

LEAST_SECONDS = 0.1  # of one measurement: shorter calls are made several times
MOST_CALLS = 1000


@dataclass(frozen=True)
class Timing:
    """The seconds of one call, once per round."""

    seconds: list[float]
    memory: int | None = None
    """Bytes that one call needs beside what was there before it; None where nobody counts them."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    device: torch.device,
    rounds: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time all of them, one after the other in every round, each round in another order. `advance` hears of each."""
    calls, memory = {}, {}
    for name, call in contenders.items():
        memory[name] = _peak(call, device)
        calls[name] = min(MOST_CALLS, max(1, round(LEAST_SECONDS / max(1e-9, _seconds(call, 1, device)))))
        advance()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(_seconds(contenders[name], calls[name], device))
            advance()
    return {name: Timing(seconds, memory[name]) for name, seconds in found.items()}


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of one large matrix product, the best of several: what all else is held
    against."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    timing = interleaved({"matmul": lambda: left @ right}, device, rounds=5)["matmul"]
    return 2 * size**3 / min(timing.seconds)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second of one large copy, the best of several."""
    size = 1 << (30 if device.type == "cuda" else 26)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = interleaved({"copy": lambda: target.copy_(source)}, device, rounds=5)["copy"]
    return 2 * size / min(timing.seconds)


def _seconds(call: Callable[[], object], times: int, device: torch.device) -> float:
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return (time.perf_counter() - began) / times


def _peak(call: Callable[[], object], device: torch.device) -> int | None:
    """Of the second call, with what the first has kept: that one also compiles and fills caches."""
    if device.type != "cuda":
        call()
        call()
        return None
    wait(device)
    gc.collect()  # what others have left would be freed while this one is looked at
    before = torch.cuda.memory_allocated(device)
    call()
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
