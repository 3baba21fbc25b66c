"""Smaller and faster models: int8."""

from litebert.compress.int8 import Loss, loss_of, quantized

__all__ = ["Loss", "loss_of", "quantized"]
