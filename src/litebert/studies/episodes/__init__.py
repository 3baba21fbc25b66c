"""`litebert evaluate --episodes`: ways to learn from a few examples, compared on the same small tasks."""

from typing import Literal

Method = Literal["majority", "words", "probe", "prototypes", "adapt", "meta", "finetune", "setfit"]
