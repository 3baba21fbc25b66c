"""The model that training starts from."""

from __future__ import annotations

from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.loading import load

BASE_LEARNING_RATE = 1e-4
"""For a hidden size of 768."""


def load_trainable(name: str) -> Model:
    """Load a model to train it further; a quantized one is refused."""
    model = load(name)
    if model.int8 is not None:
        raise ConfigError(f"{name} is quantized to int8 and cannot be trained; give the model that it was made from")
    return model


def default_learning_rate(model: Model) -> float:
    """Peak learning rate for fine-tuning: smaller models take more."""
    return BASE_LEARNING_RATE * 768 / model.config.hidden_size


def checked_length(length: int | None, model: Model) -> int:
    """The requested maximum length, or the one that the model was trained on."""
    limit = model.config.max_position_embeddings
    if length is not None and not 8 <= length <= limit:
        raise ConfigError(f"length={length} must fit the model: 8 or more, and {limit} or less")
    return model.max_length if length is None else length
