"""Smaller and faster models: eight bits, students."""

from litebert.compress.distill import Distiller, student_of
from litebert.compress.int8 import Loss, loss_of, quantized

__all__ = ["Distiller", "Loss", "loss_of", "quantized", "student_of"]
