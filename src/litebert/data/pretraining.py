"""Shards to pre-training batches. What a step trains on is a pure function of (seed, step).

A row is a place in the text that opens at a sentence, and the sequence of whole sentences from there on; where a
document ends, so does the sequence, and the rest of the row holds the next one, which knows nothing of its neighbour.
What rows leave empty is not computed: their sequences are laid end to end. Rows are numbered, a keyed shuffle says
which place a number means, and every epoch has another shuffle, other cuts and other masks.

Shapes: B rows of L columns, T tokens, S sequences, M hidden tokens, P pairs of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.data.hashing import derive_key, permute, random_below, splitmix64
from litebert.data.masking import Masking, corrupt_tokens, select_tokens
from litebert.data.segments import (
    IGNORE_INDEX,
    PAD,
    RandomSegments,
    SentenceObjective,
    Sequences,
    cut_rows,
    replace_second,
    swap_segments,
)
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, WORD_START, TokenStream
from litebert.errors import ConfigError, DataError
from litebert.tokenizer import Tokenizer


@dataclass(frozen=True)
class PretrainingBatch:
    """Sequences laid end to end, with some tokens hidden, some pairs of segments swapped, and the truth about both."""

    input_ids: Tensor
    """(T,)"""
    token_type_ids: Tensor
    """(T,)"""
    lengths: Tensor
    """(S,) of the sequences; the last one may be padding."""
    positions: Tensor
    """(M,) columns whose token was chosen."""
    labels: Tensor
    """(M,) the tokens that stood there."""
    first: Tensor
    """(P,) columns of [CLS] of the sequences with two segments."""
    swapped: Tensor
    """(P,) 1 where the order is wrong (or the second segment is another text's), else 0."""
    padding: int
    """Tokens at the end that are no text: kernels like round numbers."""

    def rounded(self, longest: int, pad_id: int) -> PretrainingBatch:
        """With padding up to sizes that come again and again: for each new one a GPU's libraries make new plans.

        Sequences of up to `longest` padding tokens, sequences without tokens, and places where nothing is asked.
        """
        tokens = _round_up(len(self.input_ids), 64) - len(self.input_ids)
        full, rest = divmod(tokens, longest)
        lengths = torch.cat([self.lengths, self.lengths.new_tensor([longest] * full + [rest] * (rest > 0))])
        return PretrainingBatch(
            input_ids=_padded(self.input_ids, tokens, pad_id),
            token_type_ids=_padded(self.token_type_ids, tokens, 0),
            lengths=_padded(lengths, _round_up(len(lengths), 4) - len(lengths), 0),
            positions=_padded(self.positions, _round_up(len(self.positions), 16) - len(self.positions), 0),
            labels=_padded(self.labels, _round_up(len(self.labels), 16) - len(self.labels), IGNORE_INDEX),
            first=_padded(self.first, _round_up(len(self.first), 4) - len(self.first), 0),
            swapped=_padded(self.swapped, _round_up(len(self.swapped), 4) - len(self.swapped), IGNORE_INDEX),
            padding=self.padding + tokens,
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> PretrainingBatch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> PretrainingBatch:
        """In memory that a GPU can fetch by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> PretrainingBatch:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)


@dataclass(frozen=True)
class TrainingStage:
    """From this step on, rows of this many columns, this many of them."""

    first_step: int
    batch_size: int
    length: int


DEFAULT_MASKING = Masking()
GOLDEN_RATIO = (5**0.5 - 1) / 2
TOKEN_MULTIPLE = 8  # a batch's tokens are a multiple of it


class PretrainingData:
    """Batches of masked-token and sentence-order examples, by step."""

    def __init__(
        self,
        stream: TokenStream,
        tokenizer: Tokenizer,
        stages: Sequence[TrainingStage],
        *,
        seed: int,
        masking: Masking = DEFAULT_MASKING,
        sentences: SentenceObjective = "order",
        short_share: float = 0.1,
        exclude: np.ndarray | None = None,
    ) -> None:
        """`short_share` of the sequences end early, at a sentence; tokens marked in `exclude` (V,) are never hidden."""
        if stream.tokens < 2:
            raise DataError(f"{stream.tokens} tokens are too few to train on; prepare more text")
        if sentences not in get_args(SentenceObjective):
            raise ConfigError(f"sentences={sentences!r} must be one of {', '.join(get_args(SentenceObjective))}")
        if not 0 <= short_share <= 1:
            raise ConfigError(f"short_share={short_share} must lie between 0 and 1")
        for stage in stages:
            if stage.length < 16:
                raise ConfigError(f"length={stage.length} leaves no room for text; it must be at least 16")
            if stage.batch_size < 1:
                raise ConfigError(f"batch_size={stage.batch_size} must be at least 1")
        self.stages, self.seed, self.masking = list(stages), seed, masking
        self.sentences, self.short_share = sentences, short_share
        self._stream = stream
        self._offsets = np.cumsum([0, *map(len, stream.ids)])
        self._frame = np.array([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id], dtype=np.int64)
        self._mask_id = tokenizer.mask_id
        special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
        self._usable = np.setdiff1d(np.arange(tokenizer.vocab_size), special)
        self._exclude = exclude

    def stage(self, step: int) -> TrainingStage:
        return next(stage for stage in reversed(self.stages) if stage.first_step <= step)

    def batch(self, step: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        """The step's batch, or one of the equal parts it is split into over ranks and micro-batches."""
        stage = self.stage(step)
        first, last = (stage.batch_size * (part + more) // parts for more in (0, 1))
        rows = self.tokens_before(step) // stage.length + np.arange(first, last)
        shard, start = self._place(rows, stage.length)
        ids, inside = self._read(self._stream.ids, shard, start, stage.length)
        bits, _ = self._read(self._stream.bits, shard, start, stage.length)
        key = derive_key(self.seed, "segments", stage.length)
        pieces = cut_rows(bits, inside.sum(axis=1), rows, key, self.sentences != "none", self.short_share)
        if self.sentences == "order":
            pieces = swap_segments(pieces, rows, key)
        elif self.sentences == "next":
            strangers, other_ids = self._strangers(shard, start, rows, stage.length)
            pieces = replace_second(pieces, bits, strangers, rows, key)
            ids, bits = np.concatenate([ids, other_ids], axis=1), np.concatenate([bits, strangers.bits], axis=1)
        return self._hide(pieces, ids, bits, rows, stage.length)

    def tokens_before(self, step: int) -> int:
        """Columns of all steps before this one."""
        total = 0
        for stage, following in zip(self.stages, [*self.stages[1:], None], strict=True):
            end = step if following is None else min(step, following.first_step)
            total += max(0, end - stage.first_step) * stage.batch_size * stage.length
        return total

    def _place(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Shard and first token of each row."""
        stride = length - length // 8  # about what a row of whole sentences holds
        total = int(self._offsets[-1])
        windows = max(1, total // stride)
        epoch, index = np.divmod(rows, windows)
        key = splitmix64(derive_key(self.seed, "epoch", length), epoch)
        # Every epoch cuts the text elsewhere: what one loses between two rows, the next one sees. By the golden ratio
        # the cuts of any few epochs lie far from each other.
        shift = random_below(derive_key(self.seed, "shift", length), np.zeros_like(rows), total)
        shift += (epoch * GOLDEN_RATIO % 1 * stride).astype(np.int64)
        return self._aligned((permute(index, windows, key) * stride + shift) % total, length)

    def _aligned(self, at: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Shard and token where the row around each token opens: half a row before it, at the next sentence.

        Near its end a shard cannot fill a row; where no sentence begins there, step back to one that reaches the end.
        Where none begins within a whole row, the row opens in the middle of one.
        """
        shard = np.searchsorted(self._offsets, at, side="right") - 1
        wanted = np.maximum(0, at - self._offsets[shard] - length // 2)
        start = np.minimum(wanted, np.maximum(0, np.diff(self._offsets)[shard] - length))
        bits, inside = self._read(self._stream.bits, shard, start, length)
        skip = wanted - start
        sentence = (bits & SENTENCE_START != 0) & inside
        ahead = sentence & (np.arange(length) >= skip[:, None])
        behind = np.where(sentence.any(axis=1), sentence.argmax(axis=1), skip)
        return shard, start + np.where(ahead.any(axis=1), ahead.argmax(axis=1), behind)

    def _read(
        self, arrays: list[np.ndarray], shard: np.ndarray, start: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(B, L) values from each row's start on, and which of them lie inside the shard."""
        out = np.empty((len(start), length), dtype=arrays[0].dtype)
        inside = np.empty(out.shape, dtype=bool)
        for number in np.unique(shard):
            rows = np.flatnonzero(shard == number)
            at = start[rows, None] + np.arange(length)
            size = len(arrays[number])
            inside[rows] = at < size
            out[rows] = arrays[number][np.minimum(at, size - 1)]
        return out, inside

    def _strangers(
        self, shard: np.ndarray, start: np.ndarray, rows: np.ndarray, length: int
    ) -> tuple[RandomSegments, np.ndarray]:
        """For each row a stretch of text from elsewhere, and its ids."""
        anywhere = random_below(derive_key(self.seed, "stranger", length), rows, int(self._offsets[-1]))
        other_shard, other_start = self._aligned(anywhere, length)
        ids, inside = self._read(self._stream.ids, other_shard, other_start, length)
        bits, _ = self._read(self._stream.bits, other_shard, other_start, length)
        inside[:, 1:] &= np.maximum.accumulate(bits[:, 1:] & DOCUMENT_START, axis=1) == 0
        available = np.where(bits[:, 0] & SENTENCE_START, inside.sum(axis=1), 0)
        mine, others = (
            np.searchsorted(self._documents, self._offsets[which] + where, side="right")
            for which, where in ((shard, start), (other_shard, other_start))
        )
        return RandomSegments(bits, available, others - mine), ids

    @cached_property
    def _documents(self) -> np.ndarray:
        """Where documents start in the whole stream."""
        starts = [np.flatnonzero(bits & DOCUMENT_START) for bits in self._stream.bits]
        return np.concatenate([found + offset for found, offset in zip(starts, self._offsets[:-1], strict=True)])

    def _hide(
        self, pieces: Sequences, ids: np.ndarray, bits: np.ndarray, rows: np.ndarray, length: int
    ) -> PretrainingBatch:
        """Lay the pieces out in rows, choose tokens and hide them."""
        source, frame, types = pieces.columns(len(rows), length)
        real = source >= 0
        source = np.maximum(source, 0)
        tokens = np.where(real, np.take_along_axis(ids, source, axis=1), self._frame[frame])
        word_start = np.take_along_axis(bits, source, axis=1) & WORD_START != 0
        allowed = real if self._exclude is None else real & ~self._exclude[tokens]
        key = derive_key(self.seed, "mask", length)
        chosen = select_tokens(self.masking, allowed, word_start, key, rows)
        labels = tokens[chosen]
        corrupt_tokens(self.masking, tokens, chosen, self._mask_id, self._usable, key, rows)

        used = frame != PAD
        place = (np.cumsum(used) - 1).reshape(used.shape)  # of a column among the used ones
        padding = -int(used.sum()) % TOKEN_MULTIPLE
        order = np.lexsort((pieces.column, pieces.row))
        row, column, label = pieces.row[order], pieces.column[order], pieces.label[order]
        paired = label != IGNORE_INDEX
        return PretrainingBatch(
            input_ids=_tensor(tokens[used], padding, self._frame[PAD]),
            token_type_ids=_tensor(types[used], padding),
            lengths=_tensor(pieces.size[order], int(padding > 0), padding),
            positions=_tensor(place[chosen]),
            labels=_tensor(labels),
            first=_tensor(place[row, column][paired]),
            swapped=_tensor(label[paired]),
            padding=padding,
        )


def _tensor(numbers: np.ndarray, more: int = 0, value: int = 0) -> Tensor:
    """As a tensor, with `more` values at the end."""
    return torch.from_numpy(np.concatenate([numbers, np.full(more, value)]).astype(np.int64))


def _padded(numbers: Tensor, more: int, value: int) -> Tensor:
    return F.pad(numbers, (0, more), value=value)


def _round_up(size: int, parts: int) -> int:
    """Up, by less than one of so many parts."""
    step = max(8, 1 << max(0, size.bit_length() - 1)) // parts
    return -(-size // max(8, step)) * max(8, step)
