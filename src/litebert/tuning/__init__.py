"""A model that learns from a handful of examples, where there is time for that: `litebert.adapt`."""

from litebert.tuning.tiers import adapt, tuned

__all__ = ["adapt", "tuned"]
