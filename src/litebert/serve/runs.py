"""The curves of training runs below one folder, to look at."""

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
"""Folders below the one that is named."""


class TrainingRuns:
    """Read only; a request names a run as the listing does, never a path."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def listing(self) -> list[dict[str, Any]]:
        """The newest first."""
        found = [_run_record(name, path) for name, path in self._paths().items()]
        return sorted(found, key=lambda run: -run["updated"])[:MAX_RUNS]

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
        found = {}
        for depth in range(MAX_FOLDER_DEPTH + 1):
            for file in root.glob("*/" * depth + METRICS_FILE):
                if not file.is_symlink() and file.resolve().is_relative_to(root):
                    name = file.parent.relative_to(root).as_posix()
                    found["-" if name == "." else name.replace("/", ":")] = file.parent
        return found


def _run_record(name: str, path: Path) -> dict[str, Any]:
    command = None
    try:
        command = json.loads((path / "run.json").read_text(encoding="utf-8")).get("command")
    except (OSError, ValueError, AttributeError):
        command = None  # an unfinished or older run; its curves can be looked at all the same
    updated = (path / METRICS_FILE).stat().st_mtime
    return {"name": name, "updated": updated, "command": command, "finished": (path / "finished.json").is_file()}


def _read_curves(file: Path) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    read = 0
    with file.open("rb") as lines:
        while read < MAX_BYTES and (line := lines.readline(MAX_LINE_BYTES)):
            read += len(line)
            try:
                record = json.loads(line)
                step = float(record["step"])
            except (ValueError, TypeError, KeyError):
                continue  # a line that is being written
            for key, value in record.items():
                if key != "step" and isinstance(value, (int, float)) and math.isfinite(value):
                    found.setdefault(key, []).append([step, value])
    return found


def _downsampled(points: list[list[float]]) -> list[list[float]]:
    if len(points) <= MAX_POINTS:
        return points
    places = {round(number * (len(points) - 1) / (MAX_POINTS - 1)) for number in range(MAX_POINTS)}
    return [points[place] for place in sorted(places)]
