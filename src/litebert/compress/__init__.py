"""Smaller and faster models: eight bits, students."""

from litebert.compress.convert import albert_of
from litebert.compress.distill import (
    Distiller,
    TextDistiller,
    by_text,
    read_through,
    said_of_texts,
    student_of,
    with_hidden_words,
)
from litebert.compress.int8 import Loss, loss_of, quantized
from litebert.compress.teachers import bert_of, other_teacher

__all__ = [
    "Distiller", "Loss", "TextDistiller", "albert_of", "bert_of", "by_text", "loss_of", "other_teacher", "quantized",
    "read_through", "said_of_texts", "student_of", "with_hidden_words",
]  # fmt: skip
