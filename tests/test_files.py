"""Writing that is whole or absent, reading that has limits."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from litebert import files
from litebert.errors import CheckpointError, DataError
from litebert.files import atomic_path, atomic_write, file_lock, read_json, read_limited, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_block_that_fails_leaves_the_former_file(tmp_path: Path, error: type[BaseException]) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "a.txt") as temporary:
            temporary.write_text("half of the n")
            raise error

    atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(error):
        write()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "a.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DataError, match=r"a\.txt: cannot be written \(No space left on device\); check free space"):
        write()
    assert names(tmp_path) == []


def test_a_write_makes_the_folders_it_needs_and_a_file_all_may_read(tmp_path: Path) -> None:
    atomic_write(tmp_path / "new" / "deep" / "a.txt", "é")
    path = tmp_path / "new" / "deep" / "a.txt"
    assert path.read_bytes() == "é".encode()
    assert path.stat().st_mode & 0o777 == 0o644


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None], "é": {"b": True}}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "holds a JSON list"),
        (json.dumps("x"), "holds a JSON str"),
        ("[" * 100_000, "not JSON"),
    ],
    ids=["half", "list", "string", "nested beyond reason"],
)
def test_what_is_not_a_json_object_is_refused_by_name(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"a\.json: {complaint}"):
        read_json(tmp_path / "a.json")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 3)
    (tmp_path / "a.json").write_text("1234")
    with pytest.raises(CheckpointError, match=r"a\.json: 4 bytes is over the limit of 3"):
        read_limited(tmp_path / "a.json")


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.json: cannot be read \(No such file"):
        read_limited(tmp_path / "a.json")


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    atomic_write(pipe, "text")
    reader.join(timeout=10)
    assert received == [b"text"]
    assert pipe.is_fifo()


def test_a_link_stays_and_its_target_keeps_its_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    atomic_write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        atomic_write(tmp_path, "text")


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with (
        pytest.raises(DataError, match=r"a\.lock: cannot be locked \(No locks available\).*another file system"),
        file_lock(tmp_path / "a.lock"),
    ):
        raise AssertionError("came in")
