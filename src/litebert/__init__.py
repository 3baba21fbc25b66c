"""litebert: make an ALBERT from raw text, teach it a task and use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litebert.errors import CheckpointError, ConfigError, DataError, LitebertError

if TYPE_CHECKING:
    from litebert.fewshot import adapt
    from litebert.fewshot.sklearn import FewShotClassifier
    from litebert.inference import Model
    from litebert.loading import load
    from litebert.tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = [
    "CheckpointError", "ConfigError", "DataError", "FewShotClassifier", "LitebertError", "Model", "Tokenizer", "adapt",
    "load",
]  # fmt: skip

_LAZY = {
    "FewShotClassifier": "litebert.fewshot.sklearn",
    "Model": "litebert.inference",
    "Tokenizer": "litebert.tokenizer",
    "adapt": "litebert.fewshot",
    "load": "litebert.loading",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import torch only when a model is first asked for, so that `import litebert` costs nothing."""
    if name not in _LAZY:
        raise AttributeError(f"module 'litebert' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
