"""A Transformer that writes what an encoder has read, top to bottom: what it reads, one layer, the loop, one step.

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
MOST_LAYERS, MOST_SIZE = 48, 8192


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder. It is stored beside the weights."""

    vocab_size: int
    """Of the target."""
    depths: tuple[int, ...]
    """After which passes of the encoder its states are read; 0 is before the first."""
    hidden_size: int
    layers: int
    """That write."""
    reading_layers: int
    """Between the encoder and those: self-attention over the source, in which a frozen encoder's states adapt."""
    heads: int
    intermediate_size: int
    sharing: Sharing
    """all: one layer that reads and one that writes, run again and again, as in ALBERT."""
    dropout: float
    """While learning, of what each part adds and of the embeddings."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "layers", "reading_layers", "heads", "intermediate_size"):
            check_whole(f"decoder {name}", getattr(self, name))
        for depth in self.depths:
            check_whole("decoder depths", depth)
        for name, most in (("layers", MOST_LAYERS), ("hidden_size", MOST_SIZE), ("intermediate_size", 4 * MOST_SIZE)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"decoder {name}={getattr(self, name)} must lie between 1 and {most}")
        if not 0 <= self.reading_layers <= MOST_LAYERS:
            raise ConfigError(f"decoder reading_layers={self.reading_layers} must lie between 0 and {MOST_LAYERS}")
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


def check_whole(name: str, value: object) -> None:
    """Refuse what is no whole number: 1.0 of a damaged file would be found where it is first counted with."""
    if type(value) is not int:
        raise ConfigError(f"{name}={value!r} must be a whole number")


@dataclass
class Cache:
    """What the steps of one search share. Every row is a sequence that is being written."""

    sources: list[tuple[Tensor, Tensor]]
    """Keys and values of the source, (S, N, L, D / N), for each layer."""
    unseen: Tensor
    """(S, 1, 1, L) 0 at real tokens of the source, -inf at padding."""
    written: list[tuple[Tensor, Tensor]]
    """Keys and values of what is written so far, (S, N, T, D / N), for each layer."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; one may be kept several times."""
        self.sources = [(keys[rows], values[rows]) for keys, values in self.sources]
        self.unseen = self.unseen[rows]
        self.select_written(rows)

    def select_written(self, rows: Tensor) -> None:
        """The same for rows that stay with their source: only what is written changes places."""
        self.written = [(keys[rows], values[rows]) for keys, values in self.written]


class Layer(nn.Module):
    """Self-attention, attention to the source where there is one, and the widening; each normed before, added after."""

    def __init__(self, config: DecoderConfig, writes: bool) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.heads
        self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        if writes:
            self.source_norm, self.source_q = nn.LayerNorm(size), nn.Linear(size, size)
            self.source_kv, self.source_out = nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.wide_norm, self.widen = nn.LayerNorm(size), nn.Linear(size, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.dropout)

    def split(self, joined: Tensor, parts: int) -> tuple[Tensor, ...]:  # (S, T, parts * D) -> (S, N, T, D / N) each
        return joined.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def self_attention(self, hidden: Tensor, unseen: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(self.norm(hidden)), 3)
        return self.added(hidden, self.out(_joined(_weights(q, k, unseen).to(v.dtype) @ v)))

    def next_token(self, hidden: Tensor, before: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Self-attention of one token more, (S, 1, D), to all `before` it and itself."""
        q, k, v = self.split(self.qkv(self.norm(hidden)), 3)
        keys, values = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        found = _weights(q, keys, None).to(v.dtype) @ values
        return self.added(hidden, self.out(_joined(found))), (keys, values)

    def keys_of(self, memory: Tensor) -> tuple[Tensor, Tensor]:  # (S, L, D) -> (S, N, L, D / N) twice
        keys, values = self.split(self.source_kv(memory), 2)
        return keys, values

    def source_attention(
        self, hidden: Tensor, source: tuple[Tensor, Tensor], unseen: Tensor
    ) -> tuple[Tensor, Tensor]:  # (S, T, D), (S, N, T, L)
        """And how much each head looked at each token of the source."""
        (q,) = self.split(self.source_q(self.source_norm(hidden)), 1)
        keys, values = source
        looks = _weights(q, keys, unseen)
        return self.added(hidden, self.source_out(_joined(looks.to(values.dtype) @ values))), looks

    def feed_forward(self, hidden: Tensor) -> Tensor:
        return self.added(hidden, self.narrow(F.relu(self.widen(self.wide_norm(hidden)))))

    def added(self, hidden: Tensor, more: Tensor) -> Tensor:
        # the sum of two types is several times as slow on a CPU as changing the type and adding
        return hidden + self.dropout(more).to(hidden.dtype)


class Decoder(nn.Module):
    """Writes a target for the states of a source. The table of its words is also what it scores them by."""

    def __init__(self, config: DecoderConfig, encoder_size: int) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.project = nn.Linear(len(config.depths) * encoder_size, size)
        once = config.sharing == "all"
        self.reading = nn.ModuleList(
            Layer(config, writes=False) for _ in range(min(1, config.reading_layers) if once else config.reading_layers)
        )
        self.memory_norm = nn.LayerNorm(size)
        self.words = nn.Embedding(config.vocab_size, size)
        self.writing = nn.ModuleList(Layer(config, writes=True) for _ in range(1 if once else config.layers))
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

    def readers(self) -> list[Any]:
        """Layers in the order in which they run."""
        return [self.reading[number % len(self.reading)] for number in range(self.config.reading_layers)]

    def writers(self) -> list[Any]:
        return [self.writing[number % len(self.writing)] for number in range(self.config.layers)]

    def memory(self, states: Tensor, real: Tensor) -> Tensor:  # (S, L, P, H), (S, L) -> (S, L, D)
        """What the source says: the depths beside each other, mixed as has been learned, and read again."""
        hidden = self.dropout(self.project(states.to(self.project.weight.dtype).flatten(-2)))
        unseen = hide_padding(real)
        for layer in self.readers():
            hidden = layer.feed_forward(layer.self_attention(hidden, unseen))
        return self.memory_norm(hidden)

    def forward(self, memory: Tensor, real: Tensor, ids: Tensor) -> Tensor:  # (S, T, V)
        """The scores of the token after each of these, which are known: teacher forcing."""
        hidden, unseen = self.embed(ids), hide_padding(real)
        later = torch.full((ids.shape[1],) * 2, -math.inf, device=ids.device).triu(1)  # (T, T)
        for layer in self.writers():
            hidden = layer.self_attention(hidden, later)
            hidden, _ = layer.source_attention(hidden, layer.keys_of(memory), unseen)
            hidden = layer.feed_forward(hidden)
        return self.scores(hidden)

    def begin(self, memory: Tensor, real: Tensor) -> Cache:
        """Before the first token."""
        sources = [layer.keys_of(memory) for layer in self.writers()]
        empty = sources[0][0][:, :, :0]
        return Cache(sources, hide_padding(real), [(empty, empty)] * len(sources))

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:  # (S,) -> (S, V), (S, L)
        """The scores of the token after these, the last ones written, and what of the source they come from."""
        hidden = self.embed(ids[:, None], start=cache.written[0][0].shape[2])
        looks = hidden
        for number, layer in enumerate(self.writers()):
            hidden, cache.written[number] = layer.next_token(hidden, cache.written[number])
            hidden, looks = layer.source_attention(hidden, cache.sources[number], cache.unseen)
            hidden = layer.feed_forward(hidden)
        return self.scores(hidden)[:, 0], looks.mean(1)[:, 0]

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:  # (S, T) -> (S, T, D)
        size = self.config.hidden_size
        places = sinusoids(torch.arange(start, start + ids.shape[1], device=ids.device), size)
        return self.dropout(self.words(ids) * math.sqrt(size) + places)

    def scores(self, hidden: Tensor) -> Tensor:  # (S, T, D) -> (S, T, V)
        return F.linear(self.final_norm(hidden), self.words.weight, self.bias)


def hide_padding(real: Tensor) -> Tensor:  # (S, L) -> (S, 1, 1, L)
    """What is added to the scores of attention: nothing, or -inf."""
    return torch.zeros(real.shape, device=real.device).masked_fill(~real, -math.inf)[:, None, None]


def sinusoids(places: Tensor, size: int) -> Tensor:  # (T,) -> (T, D)
    """Where a token stands, as waves from short to long: any length can be said without having been learned."""
    rates = torch.exp(torch.arange(0, size, 2, device=places.device) * (-math.log(10_000.0) / size))
    angles = places[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _weights(q: Tensor, k: Tensor, unseen: Tensor | None) -> Tensor:  # -> (S, N, T, L)
    """How much each token looks at each. Sentences are short: the plain formula is faster here than kernels that avoid
    it, it is what a graph can say, and what was looked at is wanted anyway."""
    scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    return (scores if unseen is None else scores + unseen).softmax(-1)


def _joined(heads: Tensor) -> Tensor:  # (S, N, T, D / N) -> (S, T, D)
    return heads.transpose(1, 2).flatten(-2)
