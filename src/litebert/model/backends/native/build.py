"""Compiles the C++ files of this folder for the CPU at hand when they are first needed, and keeps the library.

It is kept in the folder LITEBERT_CACHE, by default ~/.cache/litebert, under a hash of the sources, the flags, the
compiler and the CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool, c_char_p, c_int32, c_size_t
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from litebert.errors import CheckpointError, LitebertError
from litebert.files import atomic_path, file_sha256
from litebert.model.backends.native.structs import check_sizes

SOURCE_FOLDER = Path(__file__).parent
MAIN_SOURCE = "interface.cpp"
SOURCE_SUFFIXES = (".cpp", ".h")
FLAGS = ("-O3", "-std=c++17", "-march=native", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
NO_AMX = "-DNO_AMX"
COMPILERS = ("c++", "g++", "clang++")
COMPILE_TIMEOUT_S = 120
REQUIRED_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "avx2", "asimddp")
"""The CPU must have one of these, in Linux's spelling; the last is ARM's."""


class NativeLibrary(NamedTuple):
    """The compiled library, and the threads that it uses."""

    path: Path
    functions: Any
    parallel: Any
    """GOMP_parallel of the OpenMP library that torch uses; threads of a second one would compete with them."""
    team_size: Any
    panel: int
    """Columns per panel; widths are padded to whole panels."""
    tile: tuple[int, int]
    """Columns, and words of four bytes, per tile of a packed weight."""


@cache
def native_library() -> NativeLibrary | None:
    """The library for this CPU. None where it cannot be compiled; a warning says why if compiler and CPU are there."""
    return compile_library(FLAGS)


def compile_library(flags: tuple[str, ...], sources: Path = SOURCE_FOLDER) -> NativeLibrary | None:
    compiler = find_compiler()
    if compiler is None or not has_instructions():
        return None
    process = ctypes.CDLL(None)
    try:
        parallel, team_size = (getattr(process, name) for name in ("GOMP_parallel", "omp_get_num_threads"))
    except AttributeError:  # torch with another threading library
        return None
    try:
        path = _compiled_path(compiler, flags, sources)
        functions = _load(path)
        if not functions.litebert_supported():
            return compile_library((*flags, NO_AMX), sources)
        layout = (c_int32 * 3)()
        functions.litebert_layout(layout)
        panel, tile_columns, tile_words = layout
        return NativeLibrary(path, functions, parallel, team_size, panel, (tile_columns, tile_words))
    except subprocess.CalledProcessError as error:
        if "amx_int8" in cpu_description() and NO_AMX not in flags:  # an old compiler may not know AMX
            return compile_library((*flags, NO_AMX), sources)
        reason = error.stderr.decode(errors="replace").strip().splitlines()
    except (OSError, RuntimeError, LitebertError, subprocess.TimeoutExpired) as error:
        reason = str(error).splitlines()
    warnings.warn(
        f"int8 falls back to oneDNN, which is slower, or is unavailable: {compiler} did not make the native engine for "
        f"this CPU ({reason[0][:200] if reason else 'without a message'}); LITEBERT_CACHE sets its folder",
        stacklevel=2,
    )
    return None


def _load(path: Path) -> Any:
    functions = ctypes.CDLL(str(path))
    functions.litebert_struct_size.argtypes = [c_char_p]
    functions.litebert_struct_size.restype = functions.litebert_workspace_size.restype = c_size_t
    functions.litebert_validate_ids.restype = functions.litebert_supported.restype = c_bool
    check_sizes(functions)
    return functions


def find_compiler() -> str | None:
    paths = (shutil.which(name) for name in (os.environ.get("CXX"), *COMPILERS) if name)
    return next((path for path in paths if path is not None), None)


def has_instructions() -> bool:
    """Whether this CPU has the instructions for int8."""
    words = set(cpu_description().split())
    return not words.isdisjoint(REQUIRED_INSTRUCTIONS)


@cache
def cpu_description() -> str:
    """Model and instructions of the CPU, as Linux lists them; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return "\n".join(
        sorted({line for line in lines if line.startswith(("flags", "model name", "Features", "CPU part"))})
    )


def library_path(compiler: str, flags: tuple[str, ...], sources: Path = SOURCE_FOLDER) -> Path:
    """Where the library made from this is kept: every source file, the flags, the compiler and the CPU count."""
    binary = Path(compiler).stat()  # follows links
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.iterdir() if path.suffix in SOURCE_SUFFIXES):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    made_by = (*flags, compiler, str(binary.st_size), str(binary.st_mtime_ns), cpu_description())
    digest.update("\0".join(made_by).encode())
    return cache_folder() / f"native-{digest.hexdigest()[:16]}.so"


def _compiled_path(compiler: str, flags: tuple[str, ...], sources: Path) -> Path:
    """The library's path. Compiles it if it is missing or damaged."""
    path = library_path(compiler, flags, sources)
    checksum = path.with_suffix(".sha256")
    with _locked(path.with_suffix(".lock")):  # processes that start together compile once
        if not _is_intact(path, checksum):
            with atomic_path(path) as temporary:
                command = [compiler, *flags, "-o", str(temporary), str(sources / MAIN_SOURCE)]
                subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S)
            with atomic_path(checksum) as temporary:
                temporary.write_text(file_sha256(path))
    return path


def cache_folder() -> Path:
    """The folder of compiled libraries. Only the user and the system may write there: code is loaded from it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("LITEBERT_CACHE") or Path(base) / "litebert").absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CheckpointError(f"{folder}: others can write there; set LITEBERT_CACHE to a folder of your own")
    return folder


def _is_intact(path: Path, checksum: Path) -> bool:
    return path.is_file() and checksum.is_file() and checksum.read_text() == file_sha256(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; without a lock where nothing can be written."""
    import fcntl

    try:
        file = path.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
