"""A handful of examples to a classifier: `litebert.adapt`."""

from litebert.fewshot.adapt import Adapted
from litebert.fewshot.support_set import Evidence
from litebert.fewshot.tuning import adapt, tuned

__all__ = ["Adapted", "Evidence", "adapt", "tuned"]
