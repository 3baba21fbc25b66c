"""What reads the encoder: the pre-training heads, the task heads, and the model that holds them all.

Shapes: M masked positions, B sequences, V vocabulary, E embedding, H hidden, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from litebert.model.albert import ACTIVATIONS, AlbertConfig, Encoder, initialize


class MaskedTokenHead(nn.Module):
    """Which token was here? Scores the vocabulary, with the word embeddings as its table."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialize(self, config.initializer_range)

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """(M, H) and the (V, E) embedding table in, (M, V) out. Give it masked positions only: V is the large size."""
        return nn.functional.linear(self.norm(self.activation(self.dense(hidden))), table, self.bias)


class PooledHead(nn.Module):
    """Scores from the pooled vector: sentence order, next sentence, or a class."""

    def __init__(self, config: AlbertConfig, num_outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(config.hidden_size, num_outputs)
        initialize(self, config.initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:  # (B, H) -> (B, C)
        return self.linear(self.dropout(pooled))


class Albert(nn.Module):
    """An encoder and the heads on it, by name: `mlm` and `order` from pre-training, or the one of a task."""

    def __init__(self, config: AlbertConfig, heads: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.heads = nn.ModuleDict(dict(heads or {}))


def pretraining_heads(config: AlbertConfig) -> dict[str, nn.Module]:
    """The paper's two: masked tokens and sentence order."""
    return {"mlm": MaskedTokenHead(config), "order": PooledHead(config, 2)}
