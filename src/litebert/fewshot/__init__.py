"""Few-shot learning: from a handful of examples to a classifier, `litebert.adapt`."""

from typing import Any

from litebert.fewshot.adapt import Adapted
from litebert.fewshot.support_set import LeaveOneOutReport
from litebert.fewshot.tuning import adapt, adapt_with_tier

__all__ = ["Adapted", "LeaveOneOutReport", "adapt", "adapt_with_tier"]

_RENAMED = {"Evidence": "LeaveOneOutReport", "tuned": "adapt_with_tier"}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    warnings.warn(f"{__name__}.{name} is now called {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
