"""Eight-bit passes by code of our own, compiled for the CPU at hand when it is first needed: `native.cpp`.

All passes of a question are one call, in which nothing is rounded by what other texts hold. Needs a C++ compiler (g++
or clang++) once; what it makes is kept in LITEBERT_CACHE, or ~/.cache/litebert.

Shapes: T tokens in rows, R wanted rows, H hidden, N heads, L columns of the widest sequence.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.errors import ConfigError
from litebert.model.albert import Encoder
from litebert.model.attention import Dense, Layout, Packed
from litebert.model.config import Half
from litebert.model.rounding import rounded

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = ("-O3", "-std=c++17", "-march=native", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
COMPILERS = ("c++", "g++", "clang++")
INSTRUCTIONS = ("avx512_vnni", "avx_vnni")
"""One of which the CPU must have, as Linux calls them."""
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
"""In the order of native.cpp."""
GROUP = 768
"""Columns between two products that are rounded together, at the most."""
ALIGNED = 64
KEPT = 64 << 20
"""Bytes of memory that are kept from one question to the next."""


class _Product(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("weight", "scale", "bias", "sums")),
        *((name, c_int32) for name in ("columns", "depth", "groups")),
    )


class _Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class _Attention(Structure):
    _fields_ = (("qkv", _Product), ("out", _Product), ("norm", _Norm))


class _FeedForward(Structure):
    _fields_ = (("widen", _Product), ("narrow", _Product), ("norm", _Norm))


class _Network(Structure):
    _fields_ = (
        ("attention", POINTER(_Attention)),
        ("ffn", POINTER(_FeedForward)),
        *((name, c_int32) for name in ("hidden", "heads", "activation")),
        ("epsilon", c_float),
    )


class _Job(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("given", "found", "starts", "blocks", "added", "bias", "rows", "workspace")),
        *((name, c_int32) for name in ("sequences", "steps", "longest", "wanted")),
    )


class Kernel(NamedTuple):
    """What was compiled, and the threads that it works with."""

    path: Path
    library: Any
    parallel: Any
    """GOMP_parallel of the library whose threads torch uses; a second set of threads would fight with them."""
    team_size: Any
    panel: int
    """Weights are laid out in panels of so many columns."""


@cache
def kernel() -> Kernel | None:
    """For this CPU, compiled if it was not yet; None where that cannot be done."""
    return compiled_with(FLAGS)


def compiled_with(flags: tuple[str, ...]) -> Kernel | None:
    cpu = _cpu()
    compilers = (shutil.which(name) for name in (os.environ.get("CXX"), *COMPILERS) if name)
    compiler = next((one for one in compilers if one is not None), None)
    if compiler is None or not any(f" {name} " in f"{cpu} " for name in INSTRUCTIONS):
        return None
    threads = ctypes.CDLL(None)
    try:
        parallel, team_size = (getattr(threads, name) for name in ("GOMP_parallel", "omp_get_num_threads"))
        path = _compiled(compiler, flags, cpu)
        library = ctypes.CDLL(str(path))
    except (AttributeError, OSError, subprocess.SubprocessError):
        return None
    library.litebert_workspace.restype = c_size_t
    return Kernel(path, library, parallel, team_size, library.litebert_panel())


def _compiled(compiler: str, flags: tuple[str, ...], cpu: str) -> Path:
    """The library, made where it is not there yet."""
    known = hashlib.sha256(SOURCE.read_bytes() + "\0".join((*flags, compiler, cpu)).encode())
    folder = Path(os.environ.get("LITEBERT_CACHE") or Path.home() / ".cache" / "litebert")
    path = folder / f"native-{known.hexdigest()[:16]}.so"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / path.name
        command = [compiler, *flags, "-o", str(made), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        made.replace(path)
    return path


def _cpu() -> str:
    """What it is and can do, as Linux says it; elsewhere nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return "".join(sorted({line for line in lines if line.startswith(("flags", "model name"))}))


class NativePasses:
    """In the place of an encoder's loop over passes (`Encoder.run_all`)."""

    def __init__(self, tools: Kernel) -> None:
        self._tools, self._lock = tools, threading.Lock()
        self._network: _Network | None = None
        self._kept: list[Any] = []
        """What the network points to."""
        self._memory = torch.empty(0, dtype=torch.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy lays out its weights anew."""
        return _again, ()

    def __call__(
        self, encoder: Encoder, hidden: Tensor, layout: Layout, passes: range, bias: Tensor | None, rows: Tensor | None
    ) -> Tensor:  # (T or R, H)
        if (encoder.training and torch.is_grad_enabled()) or encoder.weight_at is not None:
            raise ConfigError("an int8 model answers and does not learn; train the one that it was made from")
        with torch.no_grad():
            if isinstance(layout, Dense) and layout.mask is not None:
                return self._real_alone(encoder, hidden, layout.mask, passes, bias, rows)
            return self._run(encoder, hidden, layout, passes, bias, rows)

    def _real_alone(
        self, encoder: Encoder, hidden: Tensor, mask: Tensor, passes: range, bias: Tensor | None, rows: Tensor | None
    ) -> Tensor:  # (T or R, H)
        """What is padded stays as it is."""
        flat = mask.flatten()
        layout = Packed.of(mask.sum(1), mask.shape[1])
        if rows is not None:
            rows = (flat.cumsum(0) - 1)[rows]
        found = self._run(encoder, hidden[flat], layout, passes, bias, rows)
        return found if rows is not None else hidden.float().index_put((flat,), found)

    def _run(
        self, encoder: Encoder, hidden: Tensor, layout: Layout, passes: range, bias: Tensor | None, rows: Tensor | None
    ) -> Tensor:  # (T or R, H)
        hidden = hidden.float().contiguous()
        found = hidden.new_empty(len(hidden) if rows is None else len(rows), hidden.shape[1])
        if not found.numel():
            return found
        config, depths = encoder.config, encoder.depth_embeddings
        steps = [(layer, inner) for layer in passes for inner in range(config.inner_group_num)]
        numbers = [[config.block_at(half, *step) for half in get_args(Half)] for step in steps]
        blocks = torch.tensor(numbers, dtype=torch.int32)
        added = None
        if depths is not None:
            first = torch.tensor([inner == 0 for _, inner in steps])
            added = depths.weight[[layer for layer, _ in steps]].float() * first[:, None]
        starts = layout.starts if isinstance(layout, Packed) else torch.arange(layout.batch + 1) * layout.length
        starts = starts.to(torch.int32)
        given = [None if one is None else one.contiguous() for one in (added, bias, rows)]
        job = _Job(
            *(0 if one is None else one.data_ptr() for one in (hidden, found, starts, blocks, *given)), 0,
            len(starts) - 1, len(steps), layout.length, 0 if rows is None else len(rows),
        )  # fmt: skip
        threads, library = torch.get_num_threads(), self._tools.library
        with self._lock:  # there is one memory
            both = byref(self._network_of(encoder)), byref(job)
            needed = library.litebert_workspace(*both, threads)
            memory = self._memory if needed <= len(self._memory) else torch.empty(needed + ALIGNED, dtype=torch.uint8)
            self._memory = memory if len(memory) <= KEPT else self._memory
            job.workspace = -(-memory.data_ptr() // ALIGNED) * ALIGNED
            library.litebert_run(*both, threads, self._tools.parallel, self._tools.team_size)
        return found

    def _network_of(self, encoder: Encoder) -> _Network:
        if self._network is None:
            config = encoder.config
            attention = [
                _Attention(self._product(block.qkv), self._product(block.out), self._norm(block.norm))
                for block in encoder.attention
            ]
            ffn = [
                _FeedForward(self._product(block.widen), self._product(block.narrow, GROUP), self._norm(block.norm))
                for block in encoder.ffn
            ]
            self._network = _Network(
                (_Attention * len(attention))(*attention), (_FeedForward * len(ffn))(*ffn), config.hidden_size,
                config.num_attention_heads, ACTIVATIONS.index(config.hidden_act), config.layer_norm_eps,
            )  # fmt: skip
        return self._network

    def _product(self, layer: Any, group: int | None = None) -> _Product:
        """A matrix in panels, what goes into it in groups of so many columns at the most."""
        panel = self._tools.panel
        weight, scale = rounded(layer.weight.detach().float())
        up = [-size % panel for size in weight.shape]
        weight = F.pad(weight, (0, up[1], 0, up[0]))
        columns, depth = weight.shape
        groups = depth // (panel * _largest_divisor(depth // panel, group // panel)) if group else 1
        sums = weight.view(columns, groups, -1).sum(-1, dtype=torch.float32).T
        packed = weight.view(columns // panel, panel, depth // 4, 4).transpose(1, 2)
        ends = [F.pad(one.detach().float(), (0, up[0])) for one in (scale, layer.bias)]
        return _Product(*(self._pointer(one) for one in (packed, *ends, sums)), columns, depth, groups)

    def _norm(self, norm: Any) -> _Norm:
        return _Norm(*(self._pointer(one.detach().float()) for one in (norm.weight, norm.bias)))

    def _pointer(self, values: Tensor) -> int:
        values = values.contiguous().clone()
        self._kept.append(values)
        return values.data_ptr()


def _largest_divisor(number: int, most: int) -> int:
    return max(one for one in range(1, min(number, max(1, most)) + 1) if number % one == 0)


def _again() -> NativePasses:
    tools = kernel()
    assert tools is not None
    return NativePasses(tools)
