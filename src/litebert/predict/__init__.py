"""Models that answer: what `litebert.load` and `litebert.adapt` return."""

from litebert.predict.adapted import Adapted, adapt
from litebert.predict.given import Evidence
from litebert.predict.loading import load
from litebert.predict.model import Model

__all__ = ["Adapted", "Evidence", "Model", "adapt", "load"]
