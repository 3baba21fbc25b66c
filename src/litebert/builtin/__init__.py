"""The models that come with litebert, a folder each: `litebert.load("litebert-base-en")` needs no network."""

from __future__ import annotations

from pathlib import Path

DEFAULT = "litebert-base-en"
"""What commands take where no model is given."""
SENTENCES = "litebert-sentences-en"
"""What `litebert embed` and `search` take: vectors of English sentences, without a head for masked tokens."""
CHINESE = "litebert-small-zh"
"""For texts in simplified characters."""

FOLDERS = {path.parent.name: path.parent for path in sorted(Path(__file__).parent.glob("*/config.json"))}
"""Where they are, by name."""


def folder_of(path: str | Path) -> Path:
    """That of a built-in model if this is its name, unless there is a model's folder at the path; else the path."""
    is_taken = (Path(path) / "config.json").is_file()
    return Path(path) if is_taken else FOLDERS.get(str(path), Path(path))
