"""Round-robin timing, so that a busy machine affects all contenders alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

MIN_SECONDS = 0.1  # of one measurement: shorter calls are repeated
MAX_CALLS = 1000


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one value per round."""

    seconds: list[float]
    memory: int | None = None
    """Peak bytes that one call allocates; None on a CPU."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


def time_round_robin(
    contenders: Mapping[str, Callable[[], object]],
    device: torch.device,
    rounds: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time all contenders once per round, in rotating order. `advance` is called after each."""
    calls, memory = {}, {}
    for name, call in contenders.items():
        memory[name] = _peak_memory(call, device)
        calls[name] = min(MAX_CALLS, max(1, round(MIN_SECONDS / max(1e-9, _seconds(call, 1, device)))))
        advance()
    seconds_by_name: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds_by_name[name].append(_seconds(contenders[name], calls[name], device))
            advance()
    return {name: Timing(seconds, memory[name]) for name, seconds in seconds_by_name.items()}


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of one large matrix product, the best of several."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    timing = time_round_robin({"matmul": lambda: left @ right}, device, rounds=5)["matmul"]
    return 2 * size**3 / min(timing.seconds)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second in one large copy, the best of several."""
    size = 1 << (30 if device.type == "cuda" else 26)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = time_round_robin({"copy": lambda: target.copy_(source)}, device, rounds=5)["copy"]
    return 2 * size / min(timing.seconds)


def _seconds(call: Callable[[], object], times: int, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (time.perf_counter() - began) / times


def _peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Of the second call, with what the first has kept: that one also compiles and fills caches."""
    if device.type != "cuda":
        call()
        call()
        return None
    synchronize(device)
    gc.collect()  # what others have left would be freed while this one is looked at
    before = torch.cuda.memory_allocated(device)
    call()
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
