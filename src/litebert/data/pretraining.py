"""Pre-training batches from shards. A batch is a pure function of (seed, step).

A row starts at a sentence and is filled with sequences of whole sentences; a sequence ends with its document, and
attention does not cross sequences. Batches are packed: sequences are concatenated without padding. A keyed permutation
maps row numbers to places in the text; every epoch has another permutation, other row boundaries and other masks.

Shapes: B rows of L columns, T tokens, S sequences, M masked tokens, P pairs of segments.
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
    """Packed sequences with masked tokens and swapped segments, and the labels of both."""

    input_ids: Tensor
    """(T,)"""
    token_type_ids: Tensor
    """(T,)"""
    lengths: Tensor
    """(S,) lengths of the sequences; the last one may be padding."""
    masked_positions: Tensor
    """(M,) positions of the tokens selected for masking."""
    labels: Tensor
    """(M,) the original tokens there."""
    cls_positions: Tensor
    """(P,) positions of [CLS] of the sequences with two segments."""
    swapped: Tensor
    """(P,) 1 where the segments are swapped (or the second is of another document), else 0."""
    padding: int
    """Number of padding tokens at the end."""

    def padded_to_buckets(self, longest: int, pad_id: int) -> PretrainingBatch:
        """Pad every dimension to a few sizes that recur, as GPU libraries plan anew for each new size.

        Adds sequences of up to `longest` padding tokens, empty sequences, and positions with ignored labels.
        """
        tokens = _round_up(len(self.input_ids), 64) - len(self.input_ids)
        full, rest = divmod(tokens, longest)
        lengths = torch.cat([self.lengths, self.lengths.new_tensor([longest] * full + [rest] * (rest > 0))])
        return PretrainingBatch(
            input_ids=_padded(self.input_ids, tokens, pad_id),
            token_type_ids=_padded(self.token_type_ids, tokens, 0),
            lengths=_padded(lengths, _round_up(len(lengths), 4) - len(lengths), 0),
            masked_positions=_padded(
                self.masked_positions, _round_up(len(self.masked_positions), 16) - len(self.masked_positions), 0
            ),
            labels=_padded(self.labels, _round_up(len(self.labels), 16) - len(self.labels), IGNORE_INDEX),
            cls_positions=_padded(
                self.cls_positions, _round_up(len(self.cls_positions), 4) - len(self.cls_positions), 0
            ),
            swapped=_padded(self.swapped, _round_up(len(self.swapped), 4) - len(self.swapped), IGNORE_INDEX),
            padding=self.padding + tokens,
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> PretrainingBatch:
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> PretrainingBatch:
        """Copy to page-locked memory."""
        return self._map_tensors(Tensor.pin_memory)

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> PretrainingBatch:
        tensors: dict[str, Any] = {name: function(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **tensors)


@dataclass(frozen=True)
class TrainingStage:
    """Batch size and row length from a step on."""

    first_step: int
    batch_size: int
    length: int


DEFAULT_MASKING = Masking()
GOLDEN_RATIO = (5**0.5 - 1) / 2
TOKEN_MULTIPLE = 8  # the tokens of a batch are padded to a multiple of it


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
        """`short_share`: fraction of sequences that end early; `exclude` (V,): tokens that are never masked."""
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
        self._special_ids = np.array([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id], dtype=np.int64)
        self._mask_id = tokenizer.mask_id
        special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
        self._replacement_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), special)
        self._exclude = exclude

    def stage(self, step: int) -> TrainingStage:
        return next(stage for stage in reversed(self.stages) if stage.first_step <= step)

    def batch(self, step: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        """The batch of a step, or one of `parts` equal parts of it, for ranks and micro-batches."""
        stage = self.stage(step)
        first, last = (stage.batch_size * (part + end) // parts for end in (0, 1))
        rows = self.tokens_before(step) // stage.length + np.arange(first, last)
        shard, start = self._locate_rows(rows, stage.length)
        ids, inside = self._read(self._stream.ids, shard, start, stage.length)
        bits, _ = self._read(self._stream.bits, shard, start, stage.length)
        key = derive_key(self.seed, "segments", stage.length)
        sequences = cut_rows(bits, inside.sum(axis=1), rows, key, self.sentences != "none", self.short_share)
        if self.sentences == "order":
            sequences = swap_segments(sequences, rows, key)
        elif self.sentences == "next":
            random_segments, other_ids = self._random_segments(shard, start, rows, stage.length)
            sequences = replace_second(sequences, bits, random_segments, rows, key)
            ids, bits = np.concatenate([ids, other_ids], axis=1), np.concatenate([bits, random_segments.bits], axis=1)
        return self._masked_batch(sequences, ids, bits, rows, stage.length)

    def tokens_before(self, step: int) -> int:
        """Number of columns of all earlier steps."""
        total = 0
        for stage, following in zip(self.stages, [*self.stages[1:], None], strict=True):
            end = step if following is None else min(step, following.first_step)
            total += max(0, end - stage.first_step) * stage.batch_size * stage.length
        return total

    def _locate_rows(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Shard and first token of each row."""
        stride = length - length // 8  # about the tokens in a row of whole sentences
        total = int(self._offsets[-1])
        windows = max(1, total // stride)
        epoch, index = np.divmod(rows, windows)
        key = splitmix64(derive_key(self.seed, "epoch", length), epoch)
        # Every epoch shifts the row boundaries, so that text lost between two rows is seen in another epoch. Multiples
        # of the golden ratio keep the boundaries of successive epochs far apart.
        shift = random_below(derive_key(self.seed, "shift", length), np.zeros_like(rows), total)
        shift += (epoch * GOLDEN_RATIO % 1 * stride).astype(np.int64)
        return self._align_to_sentence((permute(index, windows, key) * stride + shift) % total, length)

    def _align_to_sentence(self, at: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Shard and first token of the row around each token: the next sentence from half a row before it on.

        Near the end of a shard without a sentence start, go back to a sentence that reaches the end. Where no sentence
        starts within a whole row, the row starts within a sentence.
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
        """(B, L) values of each row, and which of them lie inside the shard."""
        out = np.empty((len(start), length), dtype=arrays[0].dtype)
        inside = np.empty(out.shape, dtype=bool)
        for number in np.unique(shard):
            rows = np.flatnonzero(shard == number)
            at = start[rows, None] + np.arange(length)
            size = len(arrays[number])
            inside[rows] = at < size
            out[rows] = arrays[number][np.minimum(at, size - 1)]
        return out, inside

    def _random_segments(
        self, shard: np.ndarray, start: np.ndarray, rows: np.ndarray, length: int
    ) -> tuple[RandomSegments, np.ndarray]:
        """For each row a random piece of text from elsewhere, and its ids."""
        random_positions = random_below(derive_key(self.seed, "stranger", length), rows, int(self._offsets[-1]))
        other_shard, other_start = self._align_to_sentence(random_positions, length)
        ids, inside = self._read(self._stream.ids, other_shard, other_start, length)
        bits, _ = self._read(self._stream.bits, other_shard, other_start, length)
        inside[:, 1:] &= np.maximum.accumulate(bits[:, 1:] & DOCUMENT_START, axis=1) == 0
        available = np.where(bits[:, 0] & SENTENCE_START, inside.sum(axis=1), 0)
        own_document, other_document = (
            np.searchsorted(self._document_starts, self._offsets[which] + where, side="right")
            for which, where in ((shard, start), (other_shard, other_start))
        )
        return RandomSegments(bits, available, other_document - own_document), ids

    @cached_property
    def _document_starts(self) -> np.ndarray:
        """Positions of document starts in the whole stream."""
        starts = [np.flatnonzero(bits & DOCUMENT_START) for bits in self._stream.bits]
        return np.concatenate(
            [positions + offset for positions, offset in zip(starts, self._offsets[:-1], strict=True)]
        )

    def _masked_batch(
        self, sequences: Sequences, ids: np.ndarray, bits: np.ndarray, rows: np.ndarray, length: int
    ) -> PretrainingBatch:
        """Lay out the sequences, mask tokens, and pack the batch."""
        source, frame, types = sequences.columns(len(rows), length)
        real = source >= 0
        source = np.maximum(source, 0)
        tokens = np.where(real, np.take_along_axis(ids, source, axis=1), self._special_ids[frame])
        word_start = np.take_along_axis(bits, source, axis=1) & WORD_START != 0
        allowed = real if self._exclude is None else real & ~self._exclude[tokens]
        key = derive_key(self.seed, "mask", length)
        chosen = select_tokens(self.masking, allowed, word_start, key, rows)
        labels = tokens[chosen]
        corrupt_tokens(self.masking, tokens, chosen, self._mask_id, self._replacement_ids, key, rows)

        used = frame != PAD
        place = (np.cumsum(used) - 1).reshape(used.shape)  # position of a column in the packed batch
        padding = -int(used.sum()) % TOKEN_MULTIPLE
        order = np.lexsort((sequences.column, sequences.row))
        row, column, label = sequences.row[order], sequences.column[order], sequences.label[order]
        paired = label != IGNORE_INDEX
        return PretrainingBatch(
            input_ids=_tensor(tokens[used], padding, self._special_ids[PAD]),
            token_type_ids=_tensor(types[used], padding),
            lengths=_tensor(sequences.size[order], int(padding > 0), padding),
            masked_positions=_tensor(place[chosen]),
            labels=_tensor(labels),
            cls_positions=_tensor(place[row, column][paired]),
            swapped=_tensor(label[paired]),
            padding=padding,
        )


def _tensor(numbers: np.ndarray, more: int = 0, value: int = 0) -> Tensor:
    """A tensor with `more` values appended."""
    return torch.from_numpy(np.concatenate([numbers, np.full(more, value)]).astype(np.int64))


def _padded(numbers: Tensor, more: int, value: int) -> Tensor:
    return F.pad(numbers, (0, more), value=value)


def _round_up(size: int, parts: int) -> int:
    """Round up to a multiple of about 1/`parts` of the power of two below it."""
    step = max(8, 1 << max(0, size.bit_length() - 1)) // parts
    return -(-size // max(8, step)) * max(8, step)
