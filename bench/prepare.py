"""How fast a corpus becomes shards, and in how much memory: MB of UTF-8 text per second, all processes together.

Run it on a quiet machine with: .venv/bin/python bench/prepare.py --input FILES --tokenizer tok [more flags of prepare]

It runs `litebert prepare` with the flags given, adds up the resident memory of its processes ten times a second, and
reads the counts from the index. Pages that processes share are counted once for each, so the sum is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

INTERVAL_S = 0.1


def family(root: int) -> list[int]:
    """A process and everything it started."""
    members = [root]
    for process in members:
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                members += map(int, task.read_text().split())
            except OSError:  # it has ended meanwhile
                continue
    return members


def resident_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS")), 0)


def peak_memory(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The largest sum, and how many processes shared it."""
    peak, shared_by = 0, 0
    while process.poll() is None:
        members = family(process.pid)
        total = sum(map(resident_bytes, members))
        if total > peak:
            peak, shared_by = total, len(members)
        time.sleep(INTERVAL_S)
    return peak, shared_by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep the shards in this folder")
    own, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        out = own.out or Path(folder) / "shards"
        command = [sys.executable, "-m", "litebert", "prepare", *flags, "--out", str(out)]
        began = time.perf_counter()
        process = subprocess.Popen(command)
        memory: list[tuple[int, int]] = []
        watcher = threading.Thread(target=lambda: memory.append(peak_memory(process)))
        watcher.start()
        watcher.join()
        seconds = time.perf_counter() - began
        if process.returncode:
            sys.exit(process.returncode)
        index = json.loads((out / "index.json").read_text())
        size = sum((out / name).stat().st_size for name in index["sha256"])
    (peak, processes), text = memory[0], index["text_bytes"]
    print(
        f"{text / 1e6:,.1f} MB of text in {seconds:.1f} s: {text / 1e6 / seconds:.1f} MB/s; "
        f"{index['tokens']:,} tokens, {index['documents']:,} documents, {index['duplicates']:,} duplicates dropped; "
        f"shards {size / 1e6:,.1f} MB; peak memory {peak / 1e6:,.0f} MB in {processes} processes"
    )


if __name__ == "__main__":
    main()
