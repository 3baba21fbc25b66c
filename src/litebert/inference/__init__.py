"""Models that answer: what `litebert.load` returns."""

from litebert.inference.model import Model

__all__ = ["Model"]
