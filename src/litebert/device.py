"""One rule for where a computation runs and in which precision."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch

from litebert.errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]
CACHED_SHAPES = 256

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bfloat16 operations per second by the makers' data sheets; the key is part of the device's name."""


def pick_device(name: Device) -> torch.device:
    """The requested device; `auto` is the GPU if there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device=cuda, but torch sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def has_bfloat16(device: torch.device) -> bool:
    """Has the device instructions for bfloat16? Without them bfloat16 is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # absent in the oldest torch we support
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def training_precision(precision: str, device: torch.device) -> str:
    """`auto` trains in bf16 on every device with instructions for it, and in fp32 elsewhere."""
    if precision == "auto":
        return "bf16" if has_bfloat16(device) else "fp32"
    return precision


def uses_bf16_for_inference(precision: str, device: torch.device) -> bool:
    """`auto` infers in bf16 on a GPU only: on a CPU answers are exact until the user asks for speed."""
    if precision == "auto":
        return device.type == "cuda" and has_bfloat16(device)
    return precision in ("bf16", "fp8")


def limit_shape_caches() -> None:
    """Call before the first computation: bounds what torch keeps for every shape that it has computed on a CPU.

    oneDNN and its wrapper in torch each keep the compiled kernels of the last 1,024 shapes, 0.6 MB per shape. Batches
    of texts come in hundreds of shapes, and compiling a kernel again takes less than a tenth of running it.
    """
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, str(CACHED_SHAPES))


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The device's peak in bfloat16, where it is known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for model, peak in PEAK_FLOPS.items() if model in name), None)
