"""Pre-training heads, task heads, and the model that holds an encoder and its heads.

Shapes: M masked positions, B sequences, V vocabulary, E embedding, H hidden, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.model.albert import Encoder
from litebert.model.config import ACTIVATIONS, AlbertConfig
from litebert.model.init import initialize


class MaskedTokenHead(nn.Module):
    """Masked language modelling: logits over the vocabulary, tied to the word embeddings."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialize(self, config.initializer_range)

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """(M, H) and the (V, E) embedding table in, (M, V) out. Give it masked positions only: V is the large size."""
        return nn.functional.linear(self.states(hidden), table, self.bias)

    def states(self, hidden: Tensor) -> Tensor:  # (M, H) -> (M, E)
        """The vectors whose products with the table are the logits."""
        normed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return normed


def float32_linear(linear: nn.Linear, x: Tensor) -> Tensor:
    """The last matrix product, always in float32: bfloat16 has three digits, too few for an output."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        return nn.functional.linear(x.to(dtype), linear.weight.to(dtype), linear.bias.to(dtype))


class PooledHead(nn.Module):
    """Scores from the pooled vector: sentence order, next sentence, or a class."""

    def __init__(self, config: AlbertConfig, num_outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(config.hidden_size, num_outputs)
        initialize(self, config.initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:  # (B, H) -> (B, C)
        return float32_linear(self.linear, self.dropout(pooled))


HeadKind = Literal["linear", "mlp", "cnn", "lstm"]
"""What is between the encoder and the output matrix of a task: nothing, a linear layer with GELU, a convolution over
three tokens, or a bidirectional LSTM."""


class _TaskHead(nn.Module):
    """Dropout, the body of its kind, and the output matrix."""

    def __init__(self, config: AlbertConfig, num_outputs: int, kind: HeadKind = "linear", dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.body = _make_body(config, kind)
        self.linear = nn.Linear(config.hidden_size, num_outputs)
        initialize(self, config.initializer_range)


class TextHead(_TaskHead):
    """Scores of a whole text, from its pooled vector or, for cnn and lstm, from its tokens."""

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """(S, H); or (S, L, H), and (S, L) which is True at real tokens. (S, C) out."""
        if self.body is not None:
            hidden = self.body(self.dropout(hidden), real)
        if real is not None:
            hidden = hidden.masked_fill(~real[..., None], float("-inf")).amax(1)  # (S, H)
        return float32_linear(self.linear, self.dropout(hidden))


class TokenHead(_TaskHead):
    """Scores of every token."""

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:  # (S, L, H), (S, L) -> (S, L, C)
        hidden = self.dropout(hidden)
        return float32_linear(self.linear, hidden if self.body is None else self.dropout(self.body(hidden, real)))


class _Mlp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        return nn.functional.gelu(self.dense(hidden))


class _Cnn(nn.Module):
    """A convolution over each token and its two neighbours; padding counts as 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(size, size, 3, padding=1)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:  # (S, L, H)
        clean = hidden * real[..., None]
        return nn.functional.gelu(self.convolution(clean.mT).mT)


class _Lstm(nn.Module):
    """Both directions over the real tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:  # (S, L, H)
        lengths = real.sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(hidden.float(), lengths, batch_first=True, enforce_sorted=False)
        read, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=real.shape[1])
        return read


def _make_body(config: AlbertConfig, kind: HeadKind) -> nn.Module | None:
    size = config.hidden_size
    if kind == "lstm" and size % 2:
        raise ConfigError(f"head='lstm' halves the hidden size, and {size} is odd; use another head")
    bodies = {"linear": lambda size: None, "mlp": _Mlp, "cnn": _Cnn, "lstm": _Lstm}
    return bodies[kind](size)


class Albert(nn.Module):
    """An encoder and the heads on it, by name: `mlm` and `order` from pre-training, or the one of a task."""

    def __init__(self, config: AlbertConfig, heads: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.heads = nn.ModuleDict(dict(heads or {}))

    def with_heads(self, heads: Mapping[str, nn.Module]) -> Albert:
        """A model that shares this encoder and has other heads."""
        other = copy.copy(self)
        other.__dict__["_modules"] = dict(self._modules)  # a copy of a module shares this with it
        other.heads = nn.ModuleDict(dict(heads))
        return other


def pretraining_heads(config: AlbertConfig) -> dict[str, nn.Module]:
    """The paper's two: masked tokens and sentence order."""
    return {"mlm": MaskedTokenHead(config), "order": PooledHead(config, 2)}
