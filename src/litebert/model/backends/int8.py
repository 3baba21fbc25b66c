"""int8 inference on CPUs: which of two backends computes it, and the ranges of activations that one of them can use.

The native engine (`native/`) is used where it can be compiled, else oneDNN (`onednn_int8.py`). The choice depends on
the machine and the build alone, so a model gives the same answers in every process.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from litebert.model.albert import Encoder
from litebert.model.backends import AutoBackend, EagerBackend
from litebert.model.backends.native import NativeInt8Backend, NativeLibrary, native_library
from litebert.model.backends.native.self_test import MAX_ERROR, self_test_error
from litebert.model.backends.onednn_int8 import ActivationRanges, OneDnnInt8, block_names, has_onednn_int8


def has_int8() -> bool:
    """Whether one of the backends runs on this CPU."""
    return has_onednn_int8() or verified_native_library() is not None


@cache
def verified_native_library() -> NativeLibrary | None:
    """The native engine, if it can be compiled here and computes what float32 does on fixed data."""
    library = native_library()
    if library is None:
        return None
    error = self_test_error(library)
    if error <= MAX_ERROR:  # False for NaN
        return library
    warnings.warn(
        f"int8 falls back to oneDNN, or is unavailable: the native engine failed its self-test (relative error "
        f"{error:.3g}, at most {MAX_ERROR} is allowed); another C++ compiler, in CXX, may help", stacklevel=2,
    )  # fmt: skip
    return None


def enable_int8(encoder: Encoder, ranges: Mapping[str, tuple[float, float]] | None = None, native: bool = True) -> None:
    """Run the encoder's passes in int8. `ranges` are for oneDNN; `native=False` excludes the native engine."""
    disable_int8(encoder)
    library = verified_native_library() if native and encoder.adapters is None else None
    if library is not None:
        encoder.backend = NativeInt8Backend(library)
    else:
        encoder.backend = OneDnnInt8(encoder, ranges)


def disable_int8(encoder: Encoder) -> None:
    encoder.backend = AutoBackend()


def is_int8(encoder: Encoder) -> bool:
    return isinstance(encoder.backend, (NativeInt8Backend, OneDnnInt8))


def range_names(encoder: Encoder) -> list[str]:
    """The keys of `ActivationRanges` for this encoder."""
    return [name for name, _ in _quantized_inputs(encoder)]


@contextmanager
def record_ranges(encoder: Encoder) -> Iterator[ActivationRanges]:
    """The ranges of all activations that the encoder computes within the context, in float32."""
    ranges: ActivationRanges = {}
    before = encoder.backend
    encoder.backend = EagerBackend()
    hooks = [layer.register_forward_pre_hook(_recorder(ranges, name)) for name, layer in _quantized_inputs(encoder)]
    try:
        yield ranges
    finally:
        encoder.backend = before
        for hook in hooks:
            hook.remove()


def _quantized_inputs(encoder: Encoder) -> Iterator[tuple[str, nn.Module]]:
    """The layers whose inputs are quantized, by the name of that input."""
    for block, name in block_names(encoder).items():
        layers = (
            {"given": "qkv", "context": "out"} if name.startswith("attention") else {"given": "widen", "wide": "narrow"}
        )
        yield from ((f"{name}.{place}", getattr(block, layer)) for place, layer in layers.items())


def _recorder(ranges: ActivationRanges, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def record(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        smallest, largest = (bound.item() for bound in torch.aminmax(inputs[0]))
        before = ranges.get(name, (math.inf, -math.inf))
        ranges[name] = min(before[0], smallest), max(before[1], largest)

    return record
