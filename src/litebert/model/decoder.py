"""A Transformer decoder over the states of an encoder, top to bottom: its source, one layer, the loop, one step.

Shapes: S sequences, L columns of the source, T tokens of the target, P depths of the encoder that are read, H hidden
size there, D size here, N heads, V vocabulary of the target.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.errors import ConfigError

Sharing = Literal["all", "none"]
MAX_LAYERS, MAX_SIZE = 48, 8192


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder, stored beside its weights."""

    vocab_size: int
    """Of the target."""
    depths: tuple[int, ...]
    """The passes of the encoder after which its states are read; 0 is before the first."""
    hidden_size: int
    layers: int
    """Of the decoder."""
    reading_layers: int
    """Self-attention layers over the source, in which a frozen encoder's states adapt."""
    heads: int
    intermediate_size: int
    sharing: Sharing
    """all: one source layer and one target layer, run again and again, as in ALBERT."""
    dropout: float
    """In training, of every residual update and of the embeddings."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "layers", "reading_layers", "heads", "intermediate_size"):
            check_integer(f"decoder {name}", getattr(self, name))
        for depth in self.depths:
            check_integer("decoder depths", depth)
        for name, largest in (("layers", MAX_LAYERS), ("hidden_size", MAX_SIZE), ("intermediate_size", 4 * MAX_SIZE)):
            if not 1 <= getattr(self, name) <= largest:
                raise ConfigError(f"decoder {name}={getattr(self, name)} must lie between 1 and {largest}")
        if not 0 <= self.reading_layers <= MAX_LAYERS:
            raise ConfigError(f"decoder reading_layers={self.reading_layers} must lie between 0 and {MAX_LAYERS}")
        if self.heads < 1 or self.hidden_size % self.heads or self.hidden_size % 2:
            raise ConfigError(
                f"decoder hidden_size={self.hidden_size} must be even and a multiple of its {self.heads} heads; try "
                f"{max(1, self.hidden_size // (2 * max(1, self.heads))) * 2 * max(1, self.heads)}"
            )
        if self.sharing not in get_args(Sharing):
            raise ConfigError(f"decoder sharing={self.sharing!r} must be one of {', '.join(get_args(Sharing))}")
        if not self.depths or min(self.depths) < 0 or not 0 <= self.dropout < 1:
            raise ConfigError(f"decoder depths={self.depths}, dropout={self.dropout}: name a depth, and 0 to below 1")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"depths": list(self.depths)}


def check_integer(name: str, value: object) -> None:
    """Refuse what is no integer: a 1.0 in a damaged file would fail where it is first used."""
    if type(value) is not int:
        raise ConfigError(f"{name}={value!r} must be a whole number")


@dataclass
class Cache:
    """Keys and values of a beam search. Every row is a hypothesis."""

    sources: list[tuple[Tensor, Tensor]]
    """Keys and values of the source, (S, N, L, D / N), for each layer."""
    padding_bias: Tensor
    """(S, 1, 1, L), added to attention scores: 0 at tokens of the source, -inf at padding."""
    written: list[tuple[Tensor, Tensor]]
    """Keys and values of the target so far, (S, N, T, D / N), for each layer."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        self.sources = [(keys[rows], values[rows]) for keys, values in self.sources]
        self.padding_bias = self.padding_bias[rows]
        self.select_written(rows)

    def select_written(self, rows: Tensor) -> None:
        """The same for rows that stay with their source: only targets are reordered."""
        self.written = [(keys[rows], values[rows]) for keys, values in self.written]


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to the source, feed-forward; pre-LN with residuals."""

    def __init__(self, config: DecoderConfig, cross_attention: bool) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.heads
        self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        if cross_attention:
            self.source_norm, self.source_q = nn.LayerNorm(size), nn.Linear(size, size)
            self.source_kv, self.source_out = nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.wide_norm, self.widen = nn.LayerNorm(size), nn.Linear(size, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.dropout)

    def split(self, joined: Tensor, parts: int) -> tuple[Tensor, ...]:  # (S, T, parts * D) -> (S, N, T, D / N) each
        return joined.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def self_attention(self, hidden: Tensor, padding_bias: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(self.norm(hidden)), 3)
        return self.add_residual(hidden, self.out(_merge_heads(_attention_weights(q, k, padding_bias).to(v.dtype) @ v)))

    def next_token(self, hidden: Tensor, before: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Self-attention of the next token, (S, 1, D), to all `before` it and to itself."""
        q, k, v = self.split(self.qkv(self.norm(hidden)), 3)
        keys, values = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        context = _attention_weights(q, keys, None).to(v.dtype) @ values
        return self.add_residual(hidden, self.out(_merge_heads(context))), (keys, values)

    def source_keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:  # (S, L, D) -> (S, N, L, D / N) twice
        keys, values = self.split(self.source_kv(memory), 2)
        return keys, values

    def source_attention(
        self, hidden: Tensor, source: tuple[Tensor, Tensor], padding_bias: Tensor
    ) -> tuple[Tensor, Tensor]:  # (S, T, D), (S, N, T, L)
        """And the attention weights of each head."""
        (q,) = self.split(self.source_q(self.source_norm(hidden)), 1)
        keys, values = source
        attention = _attention_weights(q, keys, padding_bias)
        return self.add_residual(hidden, self.source_out(_merge_heads(attention.to(values.dtype) @ values))), attention

    def feed_forward(self, hidden: Tensor) -> Tensor:
        return self.add_residual(hidden, self.narrow(F.relu(self.widen(self.wide_norm(hidden)))))

    def add_residual(self, hidden: Tensor, update: Tensor) -> Tensor:
        # the sum of two types is several times as slow on a CPU as changing the type and adding
        return hidden + self.dropout(update).to(hidden.dtype)


class Decoder(nn.Module):
    """Scores the next token of a target, given the states of a source. Its output matrix is its embedding table."""

    def __init__(self, config: DecoderConfig, encoder_size: int) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.project = nn.Linear(len(config.depths) * encoder_size, size)
        shared = config.sharing == "all"
        self.reading = nn.ModuleList(
            DecoderLayer(config, cross_attention=False)
            for _ in range(min(1, config.reading_layers) if shared else config.reading_layers)
        )
        self.memory_norm = nn.LayerNorm(size)
        self.words = nn.Embedding(config.vocab_size, size)
        self.writing = nn.ModuleList(
            DecoderLayer(config, cross_attention=True) for _ in range(1 if shared else config.layers)
        )
        self.final_norm = nn.LayerNorm(size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.words.weight, std=self.config.hidden_size**-0.5)

    def source_layers(self) -> list[Any]:
        """In the order in which they run; a shared one is repeated."""
        return [self.reading[number % len(self.reading)] for number in range(self.config.reading_layers)]

    def target_layers(self) -> list[Any]:
        return [self.writing[number % len(self.writing)] for number in range(self.config.layers)]

    def memory(self, states: Tensor, real: Tensor) -> Tensor:  # (S, L, P, H), (S, L) -> (S, L, D)
        """The memory of the source: the depths concatenated, projected, and passed through the source layers."""
        hidden = self.dropout(self.project(states.to(self.project.weight.dtype).flatten(-2)))
        padding_bias = additive_mask(real)
        for layer in self.source_layers():
            hidden = layer.feed_forward(layer.self_attention(hidden, padding_bias))
        return self.memory_norm(hidden)

    def forward(self, memory: Tensor, real: Tensor, ids: Tensor) -> Tensor:  # (S, T, V)
        """The logits of the token after each of these: teacher forcing."""
        hidden, padding_bias = self.embed(ids), additive_mask(real)
        later = torch.full((ids.shape[1],) * 2, -math.inf, device=ids.device).triu(1)  # (T, T)
        for layer in self.target_layers():
            hidden = layer.self_attention(hidden, later)
            hidden, _ = layer.source_attention(hidden, layer.source_keys_values(memory), padding_bias)
            hidden = layer.feed_forward(hidden)
        return self.scores(hidden)

    def begin(self, memory: Tensor, real: Tensor) -> Cache:
        """Before the first token."""
        sources = [layer.source_keys_values(memory) for layer in self.target_layers()]
        empty = sources[0][0][:, :, :0]
        return Cache(sources, additive_mask(real), [(empty, empty)] * len(sources))

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:  # (S,) -> (S, V), (S, L)
        """The logits of the token after these, and the attention to the source, a mean over heads."""
        hidden = self.embed(ids[:, None], start=cache.written[0][0].shape[2])
        attention = hidden
        for number, layer in enumerate(self.target_layers()):
            hidden, cache.written[number] = layer.next_token(hidden, cache.written[number])
            hidden, attention = layer.source_attention(hidden, cache.sources[number], cache.padding_bias)
            hidden = layer.feed_forward(hidden)
        return self.scores(hidden)[:, 0], attention.mean(1)[:, 0]

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:  # (S, T) -> (S, T, D)
        size = self.config.hidden_size
        positions = sinusoidal_positions(torch.arange(start, start + ids.shape[1], device=ids.device), size)
        return self.dropout(self.words(ids) * math.sqrt(size) + positions)

    def scores(self, hidden: Tensor) -> Tensor:  # (S, T, D) -> (S, T, V)
        return F.linear(self.final_norm(hidden), self.words.weight, self.bias)


def additive_mask(real: Tensor) -> Tensor:  # (S, L) -> (S, 1, 1, L)
    """What is added to attention scores: 0 at real tokens, -inf at padding."""
    return torch.zeros(real.shape, device=real.device).masked_fill(~real, -math.inf)[:, None, None]


def sinusoidal_positions(positions: Tensor, size: int) -> Tensor:  # (T,) -> (T, D)
    """Sinusoidal position encodings, which need no training for any length."""
    rates = torch.exp(torch.arange(0, size, 2, device=positions.device) * (-math.log(10_000.0) / size))
    angles = positions[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _attention_weights(q: Tensor, k: Tensor, padding_bias: Tensor | None) -> Tensor:  # -> (S, N, T, L)
    """Sentences are short: here the plain formula is faster than fused kernels, it can be exported, and the weights are
    needed anyway."""
    scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    return (scores if padding_bias is None else scores + padding_bias).softmax(-1)


def _merge_heads(heads: Tensor) -> Tensor:  # (S, N, T, D / N) -> (S, T, D)
    return heads.transpose(1, 2).flatten(-2)
