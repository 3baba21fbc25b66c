"""Smaller and faster models: eight bits, students."""

from litebert.compress.from_bert import albert_of
from litebert.compress.quantize import Loss, loss_of, quantized
from litebert.compress.students import (
    Distiller,
    TextDistiller,
    by_text,
    read_through,
    said_of_texts,
    student_of,
    with_hidden_words,
)
from litebert.compress.teachers import bert_of, other_teacher

__all__ = [
    "Distiller", "Loss", "TextDistiller", "albert_of", "bert_of", "by_text", "loss_of", "other_teacher", "quantized",
    "read_through", "said_of_texts", "student_of", "with_hidden_words",
]  # fmt: skip
