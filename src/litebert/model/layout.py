"""How the tokens of a batch lie in memory, and the one place where padding is removed and put back.

Layers compute on rows, (T, H): the tokens of all sequences below each other. A layout says where sequences end.

Shapes: B sequences, L columns of the longest, T tokens in rows, N heads, D channels per head, R selected rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.errors import DataError

PACKING_THRESHOLD = 0.9
"""On a CPU, padding is removed from a batch in which less than this fraction of the columns holds tokens."""


@dataclass(frozen=True)
class Dense:
    """B sequences of L columns each, T = B * L rows, padding included. Export, graphs and double backward need it."""

    batch: int
    length: int
    mask: Tensor | None
    """(B, L), True at tokens, False at padding; None without padding."""

    def pad(self, rows: Tensor) -> Tensor:  # (T, N, D) -> (B, N, L, D)
        return rows.view(self.batch, self.length, *rows.shape[1:]).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:  # (B, N, L, D) -> (T, N, D)
        return padded.transpose(1, 2).reshape(self.batch * self.length, padded.shape[1], padded.shape[3])

    @cached_property
    def visible(self) -> Tensor | None:  # (B, 1, 1, L)
        """Which keys a query may attend to. Padding alone attends to itself: softmax over nothing is NaN."""
        if self.mask is None:
            return None
        return (self.mask | ~self.mask.any(dim=1, keepdim=True))[:, None, None, :]


@dataclass(frozen=True)
class Packed:
    """Sequences laid end to end without padding: less work where lengths differ."""

    starts: Tensor
    """(B + 1,) int32: where each sequence starts, and T. Variable-length kernels call this `cu_seqlens`."""
    length: int
    """The length of the longest sequence, L, or an upper bound."""
    total: int | None = None
    """T, where it is known without asking the device."""

    @staticmethod
    def of(lengths: Tensor, longest: int | None = None, total: int | None = None) -> Packed:
        starts = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return Packed(starts, int(lengths.max()) if longest is None else longest, total)

    @property
    def batch(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def sequence(self) -> Tensor:  # (T,)
        """The sequence that each token belongs to."""
        lengths = self.starts.diff().long()
        numbers = torch.arange(self.batch, device=lengths.device)
        return torch.repeat_interleave(numbers, lengths, output_size=self.total)

    @cached_property
    def column(self) -> Tensor:  # (T,)
        """The position of each token in its sequence."""
        return torch.arange(len(self.sequence), device=self.starts.device) - self.starts[self.sequence]

    def pad(self, rows: Tensor) -> Tensor:  # (T, N, D) -> (B, N, L, D)
        padded = rows.new_zeros(self.batch, self.length, *rows.shape[1:])
        return padded.index_put((self.sequence, self.column), rows).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:  # (B, N, L, D) -> (T, N, D)
        return padded.transpose(1, 2)[self.sequence, self.column]

    @cached_property
    def visible(self) -> Tensor:  # (B, 1, 1, L)
        return (torch.arange(self.length, device=self.starts.device) < self.starts.diff()[:, None])[:, None, None, :]


Layout = Dense | Packed


@dataclass(frozen=True)
class BatchLayout:
    """How a padded (B, L) batch lies in rows: with its padding, or packed."""

    shape: tuple[int, int]
    layout: Layout
    indices: Tensor | None = None
    """(T,) where the packed tokens stand among the B * L; None when padding stays."""
    ranks: Tensor | None = None
    """(B * L,) the row of each token when packed; at padding, that of the token before, or -1."""

    @staticmethod
    def padded(shape: tuple[int, int], mask: Tensor | None) -> BatchLayout:
        return BatchLayout(shape, Dense(*shape, mask))

    @staticmethod
    def packed(mask: Tensor, tokens: int | None = None) -> BatchLayout:
        """Without padding. `tokens` is T, where the caller knows it: counting on a GPU makes the host wait."""
        shape, flat = (mask.shape[0], mask.shape[1]), mask.flatten()
        tokens = int(flat.sum()) if tokens is None else tokens
        ranks = flat.cumsum(0) - 1
        indices = ranks.new_zeros(tokens + 1)  # padding is written to the last place, which is cut off
        indices = indices.scatter_(0, ranks.where(flat, tokens), torch.arange(len(flat), device=flat.device))[:-1]
        return BatchLayout(shape, Packed.of(mask.sum(1), shape[1], tokens), indices, ranks)

    def positions(self, device: torch.device) -> Tensor:  # (L,), or (T,) when packed
        return torch.arange(self.shape[1], device=device) if self.indices is None else self.indices % self.shape[1]

    def from_padded(self, padded: Tensor) -> Tensor:  # (B, L, ...) -> (B, L, ...), or (T, ...) when packed
        return padded if self.indices is None else padded.flatten(0, 1)[self.indices]

    def to_padded(self, rows: Tensor, zero_padding: bool = False) -> Tensor:  # (T, H) -> (B, L, H)
        """Packed rows get zeros as padding; dense rows keep what they hold there, unless `zero_padding`."""
        if isinstance(self.layout, Dense):
            padded, mask = rows.unflatten(0, self.shape), self.layout.mask
            return padded if mask is None or not zero_padding else padded.where(mask[..., None], 0.0)
        assert self.indices is not None
        padded = rows.new_zeros(math.prod(self.shape), rows.shape[1])
        return padded.index_copy(0, self.indices, rows).unflatten(0, self.shape)

    def rows_at(self, places: Tensor | None) -> Tensor | None:  # (R,) -> (R,)
        """The rows of tokens given by their places among the B * L."""
        return places if places is None or self.ranks is None else self.ranks.clamp(min=0)[places]


def has_much_padding(mask: Tensor) -> bool:
    return 0 < int(mask.sum()) < PACKING_THRESHOLD * mask.numel()


def word_vectors(table: nn.Embedding, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:  # (B, L, E)
    """The word embeddings of a padded batch, looked up or given, and of the right shape."""
    if (input_ids is None) == (inputs_embeds is None):
        raise DataError("give the encoder exactly one of input_ids and inputs_embeds")
    words: Tensor = table(input_ids) if inputs_embeds is None else inputs_embeds
    if words.dim() != 3 or words.shape[-1] != table.embedding_dim:
        if inputs_embeds is None:
            raise DataError(f"got {tuple(words.shape[:2])}; the encoder takes input_ids (batch, length)")
        raise DataError(
            f"got {tuple(words.shape)}; the encoder takes inputs_embeds (batch, length, {table.embedding_dim})"
        )
    return words
