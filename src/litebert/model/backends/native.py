"""Eight-bit passes by code of our own, compiled for the CPU at hand when it is first needed: `native.cpp`.

All passes of a question are one call, in which nothing is rounded by what other texts hold. Needs a C++ compiler once;
what it makes is kept in LITEBERT_CACHE, or in ~/.cache/litebert.

Shapes: T tokens in rows, R wanted rows, H hidden, N heads, L columns of the widest sequence.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int32, c_size_t, c_void_p, pointer
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from litebert.errors import CheckpointError, ConfigError, DataError, LitebertError
from litebert.files import atomic_path, file_sha256
from litebert.model.albert import Encoder
from litebert.model.attention import Dense, Layout, Packed
from litebert.model.config import AlbertConfig, Half
from litebert.model.quantize import rounded

SOURCE = Path(__file__).with_name("native.cpp")
NO_TILES = "-DNO_TILES"
FLAGS = ("-O3", "-std=c++17", "-march=native", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
COMPILERS = ("c++", "g++", "clang++")
INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "avx2", "asimddp")
"""One of which the CPU must have, as Linux calls them; the last is ARM's."""
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
        *((name, c_int32) for name in ("hidden", "heads", "bundle", "activation")),
        ("epsilon", c_float),
    )


class _Look(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("pooler", "pooler_bias", "head", "head_bias", "steps", "scores", "stopped")),
        ("classes", c_int32),
        ("looks", c_int32),
        ("sure", c_float),
    )


class _Words(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("ids", "kinds", "words", "segments", "positions")),
        ("norm", _Norm),
        *((name, c_void_p) for name in ("weight", "bias")),
        *((name, c_int32) for name in ("width", "words_known", "kinds_known")),
    )


class _Vectors(Structure):
    _fields_ = (*((name, c_void_p) for name in ("counts", "weight", "bias", "found")), ("size", c_int32))


class _Job(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("given", "found", "starts", "blocks", "added", "bias", "rows", "workspace")),
        ("look", POINTER(_Look)),
        ("words", POINTER(_Words)),
        ("vectors", POINTER(_Vectors)),
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
    """Widths are padded to whole panels of so many columns."""
    tile: tuple[int, int]
    """A weight lies in tiles of so many columns, and so many times four bytes of each."""


@cache
def kernel() -> Kernel | None:
    """For this CPU, compiled if it was not yet; None where that cannot be done, with a warning where it should be."""
    return compiled_with(FLAGS)


def compiled_with(flags: tuple[str, ...]) -> Kernel | None:
    compiler = compiler_here()
    if compiler is None or not can_compute():
        return None
    threads = ctypes.CDLL(None)
    try:
        parallel, team_size = (getattr(threads, name) for name in ("GOMP_parallel", "omp_get_num_threads"))
    except AttributeError:  # torch with other threads
        return None
    try:
        path = _compiled(compiler, flags)
        library = ctypes.CDLL(str(path))
        library.litebert_workspace.restype = c_size_t
        library.litebert_knows.restype = library.litebert_may.restype = c_bool
        if not library.litebert_may():
            return compiled_with((*flags, NO_TILES))
        layout = (c_int32 * 3)()
        library.litebert_layout(layout)
        panel, across, units = layout
        return Kernel(path, library, parallel, team_size, panel, (across, units))
    except subprocess.CalledProcessError as error:
        if "amx_int8" in cpu() and NO_TILES not in flags:  # which this compiler may not know
            return compiled_with((*flags, NO_TILES))
        why = error.stderr.decode(errors="replace").strip().splitlines()
    except (OSError, RuntimeError, LitebertError, subprocess.TimeoutExpired) as error:
        why = str(error).splitlines()
    warnings.warn(
        f"eight bits are computed by oneDNN, more slowly, or not at all: {compiler} did not make code for this CPU "
        f"({why[0][:200] if why else 'it says nothing'}); LITEBERT_CACHE names a folder for it", stacklevel=2,
    )  # fmt: skip
    return None


def compiler_here() -> str | None:
    found = (shutil.which(name) for name in (os.environ.get("CXX"), *COMPILERS) if name)
    return next((one for one in found if one is not None), None)


def can_compute() -> bool:
    """Has this CPU the instructions?"""
    return any(f" {name} " in f"{cpu().replace(chr(10), ' ')} " for name in INSTRUCTIONS)


@cache
def cpu() -> str:
    """What it is and can do, as Linux says it; elsewhere nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return "\n".join(
        sorted({line for line in lines if line.startswith(("flags", "model name", "Features", "CPU part"))})
    )


def _compiled(compiler: str, flags: tuple[str, ...]) -> Path:
    """The library, made where it is not there yet or is not what was made."""
    version = Path(compiler).stat()  # of what a link leads to
    made_by = (*flags, compiler, str(version.st_size), str(version.st_mtime_ns), cpu())
    known = hashlib.sha256(SOURCE.read_bytes() + "\0".join(made_by).encode())
    path = cache_folder() / f"native-{known.hexdigest()[:16]}.so"
    digest = path.with_suffix(".sha256")
    with _locked(path.with_suffix(".lock")):  # others that start at the same time wait for what we make
        if not _is_whole(path, digest):
            with atomic_path(path) as made:
                command = [compiler, *flags, "-o", str(made), str(SOURCE)]
                subprocess.run(command, check=True, capture_output=True, timeout=120)
            with atomic_path(digest) as written:
                written.write_text(file_sha256(path))
    return path


def cache_folder() -> Path:
    """A folder in which nobody but us and the system can write: code is loaded from it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("LITEBERT_CACHE") or Path(base) / "litebert").absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid not in (0, os.getuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CheckpointError(f"{folder}: others can write there; give LITEBERT_CACHE a folder of your own")
    return folder


def _is_whole(path: Path, digest: Path) -> bool:
    return path.is_file() and digest.is_file() and digest.read_text() == file_sha256(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; where nothing can be written, as many as like."""
    import fcntl

    try:
        file = path.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class NativePasses:
    """In the place of an encoder's loop over passes (`Encoder.run_all`)."""

    def __init__(self, tools: Kernel) -> None:
        self._tools = tools
        self._laid_out: _LaidOut | None = None
        self._storages: list[StorageWeakRef] = []
        """Of what was laid out: as long as these are kept no other memory has the same number."""
        self._memory = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy lays out its weights anew."""
        return _again, ()

    def __call__(
        self, encoder: Encoder, hidden: Tensor, layout: Layout, passes: range, bias: Tensor | None, rows: Tensor | None
    ) -> Tensor:  # (T or R, H)
        self._check_use(encoder, hidden)
        with torch.no_grad():
            if isinstance(layout, Dense) and layout.mask is not None:
                return self._real_alone(encoder, hidden, layout.mask, passes, bias, rows)
            return self._run(encoder, hidden, layout, passes, bias, rows)

    @staticmethod
    def _check_use(encoder: Encoder, hidden: Tensor) -> None:
        if (encoder.training and torch.is_grad_enabled()) or encoder.weight_at is not None:
            raise ConfigError("an int8 model answers and does not learn; train the one that it was made from")
        if hidden.device.type != "cpu":
            raise ConfigError(f"the model is on {hidden.device}, and its eight bits are for CPUs; use model.to(...)")

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
        blocks, added = _steps(encoder.config, passes), _added(encoder, passes)
        bias = None if bias is None else bias.float().contiguous()
        rows = None if rows is None else rows.to(torch.int64).contiguous()
        if isinstance(layout, Packed):
            starts = layout.starts.to(torch.int32)
        else:
            starts = torch.arange(0, len(hidden) + 1, layout.length, dtype=torch.int32, device="cpu")
        _check(starts, layout.length, rows, len(hidden))
        places = _places(hidden, found, starts, blocks, added, bias, rows)
        wanted = 0 if rows is None else len(rows)
        job = _Job(*places, sequences=len(starts) - 1, steps=len(blocks), longest=layout.length, wanted=wanted)
        self._do(self._layout_of(encoder), job)
        return found

    def until_sure(
        self, encoder: Encoder, hidden: Tensor, lengths: Tensor, bias: Tensor | None, depths: Sequence[int],
        head: nn.Linear, sure: float,
    ) -> tuple[Tensor, Tensor]:  # (S, C), (S,)  # fmt: skip
        """What a classifier says of each sequence where it is so sure, and after how many passes: all in one call,
        since a look by torch takes as long as half a pass of a short text."""
        hidden = hidden.float().contiguous()
        self._check_use(encoder, hidden)
        starts, longest = _starts(lengths, len(hidden))
        blocks = _steps(encoder.config, range(depths[-1]))
        bias = None if bias is None else bias.float().contiguous()
        weights = [one.detach().float().contiguous() for layer in (encoder.pooler, head) for one in layer.parameters()]
        steps = torch.tensor(depths, dtype=torch.int32, device="cpu") * encoder.config.inner_group_num
        scores = torch.empty(len(lengths), len(head.bias), device="cpu")
        stopped = torch.empty(len(lengths), dtype=torch.int32, device="cpu")
        look = _Look(*_places(*weights, steps, scores, stopped), len(head.bias), len(depths), sure)
        places = _places(hidden, None, starts, blocks, None, bias, None)
        job = _Job(*places, look=pointer(look), sequences=len(lengths), steps=len(blocks), longest=longest)
        self._do(self._layout_of(encoder), job)
        return scores, torch.tensor(depths, device="cpu")[stopped.long() - 1]

    def vectors(
        self, encoder: Encoder, ids: Tensor, lengths: Tensor, kinds: Tensor, bias: Tensor | None,
        linear: nn.Linear | None, counts: Tensor | None,
    ) -> Tensor | None:  # (S, D)  # fmt: skip
        """From tokens to vectors in one call, where the weights are float32: for a short text the few steps by torch
        before and after the passes take as long as two or three of them."""
        norm, names = encoder.embedding_norm, ("word_embeddings", "segment_embeddings", "position_embeddings")
        tables = [getattr(encoder, name).weight for name in names]
        self._check_use(encoder, tables[0])
        mapped = (counts, *((None, None) if linear is None else (linear.weight, linear.bias)))
        read = (*tables, norm.weight, norm.bias, *mapped)
        if any(one is not None and (one.dtype != torch.float32 or not one.is_contiguous()) for one in read):
            return None
        laid_out = self._layout_of(encoder)
        ids, kinds = (one.to(torch.int64).contiguous() for one in (ids, kinds))
        starts, longest = _starts(lengths, len(ids))
        _check_map(encoder.config, linear, counts)
        if len(kinds) != len(ids):
            raise DataError(f"{len(kinds)} token_type_ids do not fit {len(ids)} input_ids; give one for each")
        passes = range(encoder.checked_depth(encoder.depth))
        blocks, added = _steps(encoder.config, passes), _added(encoder, passes)
        bias = None if bias is None else bias.float().contiguous()
        words = _Words(
            *_places(ids, kinds, *tables), _Norm(*_places(norm.weight, norm.bias)), *laid_out.project,
            encoder.config.embedding_size, len(tables[0]), len(tables[1]),
        )  # fmt: skip
        size = encoder.config.hidden_size if linear is None else linear.out_features
        found = torch.empty(len(lengths), size, device="cpu")
        job = _Job(
            *_places(None, None, starts, blocks, added, bias, None), words=pointer(words),
            vectors=pointer(_Vectors(*_places(*mapped, found), size)), sequences=len(lengths), steps=len(blocks),
            longest=longest,
        )  # fmt: skip
        if not self._tools.library.litebert_knows(byref(job)):
            raise DataError(
                f"input_ids must lie between 0 and {len(tables[0]) - 1} and token_type_ids between 0 and "
                f"{len(tables[1]) - 1}; is this the tokenizer that the model came with?"
            )
        self._do(laid_out, job)
        return found

    def _do(self, laid_out: _LaidOut, job: _Job) -> None:
        threads, library = min(torch.get_num_threads(), len(os.sched_getaffinity(0))), self._tools.library
        both = byref(laid_out.network), byref(job)
        memory = self._space(library.litebert_workspace(*both, threads) + ALIGNED)
        job.workspace = -(-memory.data_ptr() // ALIGNED) * ALIGNED
        library.litebert_run(*both, threads, self._tools.parallel, self._tools.team_size)

    def _space(self, size: int) -> Tensor:
        """Memory of this thread's own; little enough is kept for the next question."""
        kept: Tensor | None = getattr(self._memory, "space", None)
        if kept is not None and len(kept) >= size:
            return kept
        space = torch.empty(size, dtype=torch.uint8, device="cpu")
        if size <= KEPT:
            self._memory.space = space
        return space

    def _layout_of(self, encoder: Encoder) -> _LaidOut:
        """The weights in panels; laid out again if they were changed."""
        weights = list(_weights(encoder))
        state = tuple((one.untyped_storage()._cdata, one.data_ptr(), _version(one)) for one in weights)
        if self._laid_out is None or self._laid_out.state != state:
            self._laid_out = _LaidOut(encoder, self._tools, state)
            self._storages = [StorageWeakRef(one.untyped_storage()) for one in weights]
        return self._laid_out


class _LaidOut:
    """The weights as the library reads them."""

    def __init__(self, encoder: Encoder, tools: Kernel, state: tuple[Any, ...]) -> None:
        config, self.state = encoder.config, state
        self._panel = panel = tools.panel
        self._tile = tools.tile
        self._kept: list[Tensor] = []
        """What the network points to."""
        channels = config.hidden_size // config.num_attention_heads
        bundle = min(config.num_attention_heads, max(1, panel // channels))
        attention = [
            _Attention(
                self._qkv(block.qkv, bundle * channels),
                self._linear(block.out),
                self._norm(block.norm),
            )
            for block in encoder.attention
        ]
        ffn = [
            _FeedForward(
                self._linear(block.widen),
                self._linear(block.narrow, GROUP),
                self._norm(block.norm),
            )
            for block in encoder.ffn
        ]
        self.network = _Network(
            (_Attention * len(attention))(*attention), (_FeedForward * len(ffn))(*ffn), config.hidden_size,
            config.num_attention_heads, bundle, ACTIVATIONS.index(config.hidden_act), config.layer_norm_eps,
        )  # fmt: skip

        up = -config.hidden_size % panel
        project = F.pad(encoder.project.weight.detach().float(), (0, 0, 0, up)).view(-1, panel, config.embedding_size)
        bias = F.pad(encoder.project.bias.detach().float(), (0, up))
        self.project = self._pointer(project.transpose(1, 2)), self._pointer(bias)

    def _qkv(self, layer: Any, width: int) -> _Product:
        """In bundles of heads, `width` columns of each of the three, which begin new panels."""
        weight, bias = layer.weight.detach(), layer.bias.detach()
        hidden = weight.shape[1]
        behind, up = -hidden % width, -width % self._panel
        bundles = F.pad(torch.arange(hidden, device="cpu"), (0, behind), value=hidden).view(-1, width)
        bundles = F.pad(bundles, (0, up), value=hidden)  # (bundles, width); `hidden` is a row of zeros
        padded = [F.pad(one.unflatten(0, (3, hidden)), (0, 0) * (one.dim() - 1) + (0, 1)) for one in (weight, bias)]
        weight, bias = (one[:, bundles].transpose(0, 1).flatten(0, 2) for one in padded)
        return self._product(weight, bias)

    def _linear(self, layer: Any, group: int | None = None) -> _Product:
        return self._product(layer.weight.detach(), layer.bias.detach(), group)

    def _product(self, given: Tensor, bias: Tensor, group: int | None = None) -> _Product:
        """A matrix in panels, what goes into it in groups of so many columns at the most."""
        panel = self._panel
        if not bool(given.isfinite().all()):
            raise ConfigError("a weight of this model is not a number, or infinite; it cannot be rounded to eight bits")
        weight, scale = rounded(given.detach().float())
        up = [-size % panel for size in weight.shape]
        weight = F.pad(weight, (0, up[1], 0, up[0]))
        columns, depth = weight.shape
        groups = depth // (panel * _largest_divisor(depth // panel, group // panel)) if group else 1
        sums = weight.view(columns, groups, -1).sum(-1, dtype=torch.float32).T
        across, units = self._tile
        packed = weight.view(columns // across, across, depth // 4 // units, units, 4).permute(0, 2, 3, 1, 4)
        ends = [F.pad(one.detach().float(), (0, up[0])) for one in (scale, bias)]
        return _Product(*(self._pointer(one) for one in (packed, *ends, sums)), columns, depth, groups)

    def _norm(self, norm: Any) -> _Norm:
        return _Norm(*(self._pointer(one.detach().float()) for one in (norm.weight, norm.bias)))

    def _pointer(self, values: Tensor) -> int:
        values = values.contiguous().clone()
        self._kept.append(values)
        return values.data_ptr()


@lru_cache
def _steps(config: AlbertConfig, passes: range) -> Tensor:
    """Which blocks are run one after the other, (steps, 2)."""
    steps = [(layer, inner) for layer in passes for inner in range(config.inner_group_num)]
    numbers = [[config.block_at(half, *step) for half in get_args(Half)] for step in steps]
    return torch.tensor(numbers, dtype=torch.int32, device="cpu")


def _added(encoder: Encoder, passes: range) -> Tensor | None:
    """What is added before each step, (steps, H)."""
    if encoder.depth_embeddings is None:
        return None
    inner = encoder.config.inner_group_num
    added = encoder.depth_embeddings.weight.new_zeros(len(passes), inner, encoder.config.hidden_size)
    added[:, 0] = encoder.depth_embeddings.weight[list(passes)]
    return added.flatten(0, 1).float()


def _places(*tensors: Tensor | None) -> Iterator[int]:
    return (0 if one is None else one.data_ptr() for one in tensors)


def _starts(lengths: Tensor, tokens: int) -> tuple[Tensor, int]:  # (S + 1,)
    """Where sequences begin that are laid end to end, each of a token or more, and how long the longest is."""
    starts, longest = torch.zeros(len(lengths) + 1, dtype=torch.int32, device="cpu"), int(lengths.max())
    starts[1:] = lengths.cumsum(0)
    _check(starts, longest, None, tokens, least=1)
    return starts, longest


def _check(starts: Tensor, longest: int, rows: Tensor | None, tokens: int, least: int = 0) -> None:
    """Nothing beyond what is there is read or written."""
    lengths = starts.diff()
    if int(lengths.min()) < least or int(lengths.max()) > longest or int(starts[-1]) != tokens:
        raise DataError(
            f"sequences of {lengths.tolist()} tokens do not fit {tokens} rows, or are not of {least} to {longest}"
        )
    if rows is not None and not 0 <= int(rows.min()) <= int(rows.max()) < tokens:
        raise DataError(f"wanted rows must lie between 0 and {tokens - 1}; there are {tokens} real tokens")


def _check_map(config: AlbertConfig, linear: nn.Linear | None, counts: Tensor | None) -> None:
    if linear is not None and linear.in_features != config.hidden_size:
        raise DataError(f"a map of {linear.in_features} numbers does not fit the model's {config.hidden_size}")
    if counts is not None and counts.shape != (config.vocab_size,):
        raise DataError(f"{len(counts)} weights of tokens do not fit the vocabulary's {config.vocab_size}")


def _weights(encoder: Encoder) -> Iterator[Tensor]:
    yield from (encoder.project.weight, encoder.project.bias)
    for block in (*encoder.attention, *encoder.ffn):
        for part in block.children():  # faster than block.parameters(), and asked for in every question
            yield from (weight for weight in part._parameters.values() if weight is not None)


def _version(weight: Tensor) -> int:
    return 0 if weight.is_inference() else weight._version


def _largest_divisor(number: int, most: int) -> int:
    return max(one for one in range(1, min(number, max(1, most)) + 1) if number % one == 0)


def _again() -> NativePasses:
    tools = kernel()
    if tools is None:
        raise ConfigError(
            "this model computed in eight bits by code that cannot be compiled here (it needs a C++ compiler and "
            "AVX2 or ARM's dot products); load its folder instead, which finds another way"
        )
    return NativePasses(tools)
