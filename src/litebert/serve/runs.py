"""Read the metrics of the training runs in a folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from litebert.serve.limits import ApiError

METRICS_FILE = "metrics.jsonl"
MAX_POINTS = 500
MAX_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_RUNS = 200
MAX_FOLDER_DEPTH = 3
"""How deep runs may lie below the folder."""


class TrainingRuns:
    """Read-only. Requests name a run as the listing does, never by a path."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def listing(self) -> list[dict[str, Any]]:
        """All runs, newest first."""
        records = [_run_record(name, path) for name, path in self._paths().items()]
        return sorted(records, key=lambda run: -run["updated"])[:MAX_RUNS]

    def curves(self, name: str) -> dict[str, Any]:
        path = self._paths().get(name)
        if path is None:
            raise ApiError(404, f"name={name[:100]!r} is not a run; GET /runs lists them", "not_found", "name")
        return {
            "name": name,
            "curves": {key: _downsampled(points) for key, points in _read_curves(path / METRICS_FILE).items()},
        }

    def _paths(self) -> dict[str, Path]:
        if self._folder is None or not self._folder.is_dir():
            return {}
        root = self._folder.resolve()
        paths = {}
        for depth in range(MAX_FOLDER_DEPTH + 1):
            for file in root.glob("*/" * depth + METRICS_FILE):
                if not file.is_symlink() and file.resolve().is_relative_to(root):
                    name = file.parent.relative_to(root).as_posix()
                    paths["-" if name == "." else name.replace("/", ":")] = file.parent
        return paths


def _run_record(name: str, path: Path) -> dict[str, Any]:
    command = None
    try:
        command = json.loads((path / "run.json").read_text(encoding="utf-8")).get("command")
    except (OSError, ValueError, AttributeError):
        command = None  # an unfinished or older run: its curves are readable all the same
    updated = (path / METRICS_FILE).stat().st_mtime
    return {"name": name, "updated": updated, "command": command, "finished": (path / "finished.json").is_file()}


def _read_curves(file: Path) -> dict[str, list[list[float]]]:
    curves: dict[str, list[list[float]]] = {}
    bytes_read = 0
    with file.open("rb") as lines:
        while bytes_read < MAX_BYTES and (line := lines.readline(MAX_LINE_BYTES)):
            bytes_read += len(line)
            try:
                record = json.loads(line)
                step = float(record["step"])
            except (ValueError, TypeError, KeyError):
                continue  # an incomplete line, being written
            for key, value in record.items():
                if key != "step" and isinstance(value, (int, float)) and math.isfinite(value):
                    curves.setdefault(key, []).append([step, value])
    return curves


def _downsampled(points: list[list[float]]) -> list[list[float]]:
    if len(points) <= MAX_POINTS:
        return points
    indices = {round(number * (len(points) - 1) / (MAX_POINTS - 1)) for number in range(MAX_POINTS)}
    return [points[index] for index in sorted(indices)]
