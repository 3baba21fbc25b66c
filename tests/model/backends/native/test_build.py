"""Compiling the native engine, and what is kept of it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from litebert.errors import CheckpointError
from litebert.model.backends.native import build, structs
from tests.model.backends.native.cases import needs_native

pytestmark = needs_native


def run(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LITEBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_library_is_compiled_once_and_kept(empty_cache: Path) -> None:
    code = (
        "import torch; torch.manual_seed(0); "
        "from litebert.model.backends.int8 import verified_native_library; "
        "print(verified_native_library().path, torch.rand(1).item())"
    )
    first = run(code)
    kept = {path.name: path.read_bytes() for path in empty_cache.iterdir()}
    assert sorted(Path(name).suffix for name in kept) == [".lock", ".sha256", ".so"]
    assert run(code) == first
    assert {path.name: path.read_bytes() for path in empty_cache.iterdir()} == kept
    drawn = run("import torch; torch.manual_seed(0); print(torch.rand(1).item())")
    assert first.split()[1] == drawn  # the self-test leaves the user's random numbers alone


def copied_sources(folder: Path) -> Path:
    shutil.copytree(build.SOURCE_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_change_of_any_source_file_changes_the_path(empty_cache: Path, tmp_path: Path) -> None:
    sources, compiler = copied_sources(tmp_path / "sources"), build.find_compiler()
    assert compiler is not None
    files = sorted(path for path in sources.iterdir() if path.suffix in (".h", ".cpp"))
    assert {"interface.cpp", "structs.h", "runner.h", "simd.h"} <= {path.name for path in files}
    paths = [build.library_path(compiler, build.FLAGS, sources)]
    assert paths == [build.library_path(compiler, build.FLAGS)]  # where the sources are does not count
    for path in files:
        path.write_text(path.read_text() + "\n// changed\n")
        paths.append(build.library_path(compiler, build.FLAGS, sources))
    (sources / "new.h").touch()
    paths.append(build.library_path(compiler, build.FLAGS, sources))
    paths.append(build.library_path(compiler, (*build.FLAGS, "-g"), sources))
    assert len(set(paths)) == len(files) + 3


def test_a_library_of_other_structures_is_refused(empty_cache: Path, tmp_path: Path) -> None:
    sources = copied_sources(tmp_path / "sources")
    header = sources / "structs.h"
    changed = header.read_text().replace(
        "    uint8_t* workspace;\n", "    uint8_t* workspace;\n    int64_t inserted;\n"
    )
    assert changed != header.read_text()
    header.write_text(changed)
    ours = ctypes.sizeof(structs.Batch)
    message = f"struct Batch has {ours + 8} bytes in the compiled library and {ours} in structs.py"
    with pytest.warns(UserWarning, match=message):
        assert build.compile_library(build.FLAGS, sources) is None


@pytest.mark.parametrize("struct", structs.STRUCTS, ids=lambda struct: struct.__name__)
def test_the_size_of_every_structure_is_compared(struct: type[ctypes.Structure]) -> None:
    class Library:
        def litebert_struct_size(self, name: bytes) -> int:
            sizes = {other.__name__.encode(): ctypes.sizeof(other) for other in structs.STRUCTS}
            return sizes[name] + 8 * (name.decode() == struct.__name__)

    with pytest.raises(CheckpointError, match=f"struct {struct.__name__} has"):
        structs.check_sizes(Library())


def test_every_structure_of_the_header_is_in_the_list() -> None:
    header = (build.SOURCE_FOLDER / "structs.h").read_text()
    assert re.findall(r"^struct (\w+)", header, re.M) == [struct.__name__ for struct in structs.STRUCTS]


def test_a_damaged_library_is_compiled_again(empty_cache: Path) -> None:
    library = build.compile_library(build.FLAGS)
    assert library is not None
    whole = library.path.read_bytes()
    library.path.unlink()  # this process has it open
    library.path.write_bytes(whole[: len(whole) // 2])
    assert build.compile_library(build.FLAGS) is not None
    assert len(library.path.read_bytes()) == len(whole)


def test_nothing_is_loaded_from_a_folder_that_others_can_write(empty_cache: Path) -> None:
    empty_cache.mkdir(mode=0o777)
    empty_cache.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write there"):
        assert build.compile_library(build.FLAGS) is None


def test_without_a_compiler_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.native_library.__wrapped__() is None


def test_a_failing_compiler_causes_a_warning_and_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.warns(UserWarning, match="did not make the native engine for this CPU"):
        assert build.native_library.__wrapped__() is None
    assert {path.suffix for path in empty_cache.iterdir()} == {".lock"}


def make_compiler(path: Path, needs: str) -> Path:
    """One that fails without this argument."""
    real = next(filter(None, map(shutil.which, build.COMPILERS)))
    path.write_text(f'#!/bin/sh\ncase "$*" in *{needs}*) exec {real} "$@" ;; esac\nexit 1\n')
    path.chmod(0o700)
    return path


def test_a_compiler_without_amx_compiles_code_without_it(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path / "old", build.NO_AMX)))
    here = build.cpu_description()
    monkeypatch.setattr(build, "cpu_description", lambda: f"{here} amx_int8")
    library = build.native_library.__wrapped__()
    assert library is not None
    assert library.tile[1] == 1


def test_another_version_of_the_compiler_compiles_again(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path / "any", "-o")))
    before = build.native_library.__wrapped__()
    assert build.native_library.__wrapped__().path == before.path
    make_compiler(tmp_path / "any", "-shared")
    assert build.native_library.__wrapped__().path != before.path
