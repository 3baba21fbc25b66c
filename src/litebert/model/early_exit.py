"""Early exit: sequences leave the batch between passes, and the others are a shorter batch.

All passes are one layer and sequences lie end to end without padding, so nothing else has to change.

Shapes: T tokens in rows, S sequences, H hidden.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

from torch import Tensor

from litebert.errors import ConfigError
from litebert.model.albert import Encoder
from litebert.model.backends.base import Passes
from litebert.model.layout import Dense, Layout, Packed


def iterate(
    encoder: Encoder, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor, depths: Sequence[int]
) -> Generator[Tensor, Tensor, None]:
    """The hidden states of the first tokens, (S, H), after each of these depths, of sequences laid end to end, (T,).

    Send back which of the sequences go on, (S,); the others leave the batch. It ends after the last depth, or when no
    sequence is left.
    """
    depths = checked_depths(encoder, depths)
    longest, start = int(lengths.max()), 0
    hidden = embed_packed(encoder, input_ids, lengths, token_type_ids)
    first = lengths.cumsum(0) - lengths
    layout = _packed_layout(lengths, longest, len(hidden))
    for depth in depths:
        bias = encoder.attention_bias(layout.length)
        hidden, start = encoder.backend(encoder, hidden, layout, Passes(start, depth, depth), bias), depth
        goes_on = yield hidden.index_select(0, first)
        if bool(goes_on.all()):
            continue
        hidden, lengths = hidden[goes_on.repeat_interleave(lengths)], lengths[goes_on]
        if not len(lengths):
            return
        first = lengths.cumsum(0) - lengths
        layout = _packed_layout(lengths, longest, len(hidden))


def embed_packed(
    encoder: Encoder, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor
) -> Tensor:  # (T,) -> (T, H)
    """What goes into the first pass."""
    layout = Packed.of(lengths, total=len(input_ids))
    return encoder.embed(encoder.word_embeddings(input_ids), layout.column, token_type_ids, layout.length)


def checked_depths(encoder: Encoder, depths: Sequence[int]) -> list[int]:
    if not depths or any(now >= later for now, later in pairwise(depths)):
        raise ConfigError(f"depths={list(depths)} must grow, each larger than the one before; sort them")
    return [encoder.checked_depth(depth) for depth in depths]


def _packed_layout(lengths: Tensor, longest: int, tokens: int) -> Layout:
    return Dense(1, tokens, None) if len(lengths) == 1 else Packed.of(lengths, longest, tokens)
