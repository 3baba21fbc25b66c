"""Reading files with limits, and writing them atomically."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from litebert.errors import CheckpointError, ConfigError, DataError, require_extra

if sys.platform != "win32":
    import fcntl

MAX_FILE_BYTES = 256 << 20
HASH_FILE = "sha256.json"
"""File with the SHA-256 of other files in its folder, by name."""


def read_limited(path: Path) -> bytes:
    """Read a small file; raises if it is so large that it must be a mistake or an attack."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise CheckpointError(
                f"{path}: {size:,} bytes is over the limit of {MAX_FILE_BYTES:,} for such a file; "
                "it is not what its name says"
            )
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(read_limited(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); the file is damaged: download or save it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(content).__name__}, where an object was expected")
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML ({error}); write lines such as: steps = 1000") from error


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_hashes(folder: Path) -> None:
    """Compare the files of a folder with its `sha256.json`, if there is one."""
    if not (folder / HASH_FILE).is_file():
        return
    for name, known in read_json(folder / HASH_FILE).items():
        path = folder / name
        if path.parent != folder or not path.is_file() or file_sha256(path) != known:
            raise CheckpointError(
                f"{path}: does not match its hash in {HASH_FILE}; it is damaged or was changed: "
                f"copy the folder again, or delete {HASH_FILE} if the change was intended"
            )


def unhashed_weights(folder: Path) -> list[str]:
    """Weight files without an entry in `sha256.json`."""
    known = read_json(folder / HASH_FILE) if (folder / HASH_FILE).is_file() else {}
    return sorted(path.name for path in folder.glob("*.safetensors") if path.name not in known)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` at the end of the block unless it raises."""
    path = path.resolve()  # replace the target of a link, not the link
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise DataError(f"{path}: is a folder; give the name of a file to write")
        with _named_os_errors(path):
            yield path  # a pipe or a device: nothing to replace
        return
    with _named_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
    temporary = Path(name)
    try:
        with _named_os_errors(path):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


_UMASK_LOCK = threading.Lock()


def _umask() -> int:
    with _UMASK_LOCK:  # two threads at once could leave it at 0
        mask = os.umask(0)  # the only way to read it is to set it
        os.umask(mask)
    return mask


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, waiting for others; no lock on Windows.

    The file is not deleted, as others may wait for its lock.
    """
    with _named_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            except OSError as error:
                raise DataError(
                    f"{path}: cannot be locked ({error.strerror}), so other processes might write at the same time; "
                    "choose a folder on another file system"
                ) from error
        yield


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file completely, or leave it unchanged."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def write_json(path: Path, content: Any) -> None:
    atomic_write(path, json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")


@contextmanager
def _named_os_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); check free space and permissions") from error


DECOMPRESSION_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Raised when reading a damaged, truncated or mislabelled compressed file."""


def decompressed(file: BinaryIO, suffix: str) -> BinaryIO:
    """Decompress an open file by its suffix: `.gz .bz2 .xz .zst`, or none."""
    if suffix == ".zst":
        arrow = require_extra("pyarrow", "train")  # unlike zstandard's reader, it detects truncated files
        return cast(BinaryIO, io.BufferedReader(arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")))
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(file, "rb"))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.open(file, "rb"))
    return cast(BinaryIO, lzma.open(file, "rb")) if suffix == ".xz" else file


COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")


def format_suffix(path: Path) -> str:
    """The suffix of the format, before any suffix of compression."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix
