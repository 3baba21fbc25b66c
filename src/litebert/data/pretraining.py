"""Shards to pre-training batches. What a step trains on is a pure function of (seed, step)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from litebert.data.batches import Batch
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, Shards
from litebert.errors import ConfigError, DataError

IGNORED = -100  # torch's mark for "no label here"
MASKED, RANDOMISED = 0.8, 0.1  # of the chosen tokens; the rest stay as they are


@dataclass(frozen=True)
class PretrainingBatch:
    """Sequences with some tokens hidden, some pairs of segments swapped, and the truth about both."""

    text: Batch
    positions: Tensor
    """(M,) rows of the flattened batch whose token was chosen."""
    labels: Tensor
    """(M,) the tokens that stood there."""
    swapped: Tensor
    """(B,) 1 where the two segments were swapped, 0 where not, -100 where there is only one."""

    def to(self, device: torch.device | str) -> PretrainingBatch:
        return PretrainingBatch(
            self.text.to(device),
            *(x.to(device, non_blocking=True) for x in (self.positions, self.labels, self.swapped)),
        )


class PretrainingData:
    """Batches of masked-token and sentence-order examples, by step."""

    def __init__(self, shards: Shards, *, batch_size: int, length: int, mask_rate: float, seed: int) -> None:
        if not 0 < mask_rate < 1:
            raise ConfigError(f"mask_rate={mask_rate} must lie between 0 and 1; ALBERT masks 0.15")
        if length < 8:
            raise ConfigError(f"length={length} leaves no room for text; it must be at least 8")
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        self.tokenizer = shards.tokenizer
        self.batch_size, self.length, self.mask_rate, self.seed = batch_size, length, mask_rate, seed
        self._shards = shards
        self._offsets = np.cumsum([0, *map(len, shards.ids)])
        self._documents = [np.flatnonzero(bits & DOCUMENT_START) for bits in shards.bits]
        if shards.index.tokens < 2:
            raise DataError(f"{shards.folder}: {shards.index.tokens} tokens are too few to train on; prepare more text")

    def batch(self, step: int) -> PretrainingBatch:
        rng = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        ids = np.full((self.batch_size, self.length), self.tokenizer.pad_id, dtype=np.int64)
        types = np.zeros_like(ids)
        real = np.zeros(ids.shape, dtype=bool)
        frame = np.zeros(ids.shape, dtype=bool)
        swapped = np.full(self.batch_size, IGNORED, dtype=np.int64)
        for row in range(self.batch_size):
            first, second, swapped[row] = self._segments(rng)
            sep = [self.tokenizer.sep_id]
            sequence = np.concatenate([[self.tokenizer.cls_id], first, sep, *((second, sep) if len(second) else ())])
            ids[row, : len(sequence)] = sequence
            types[row, len(first) + 2 : len(sequence)] = 1
            real[row, : len(sequence)] = True
            frame[row, [0, len(first) + 1, len(sequence) - 1]] = True
        positions, labels = self._mask(ids, real & ~frame, rng)
        text = Batch(torch.from_numpy(ids), None if real.all() else torch.from_numpy(real), torch.from_numpy(types))
        return PretrainingBatch(text, torch.from_numpy(positions), torch.from_numpy(labels), torch.from_numpy(swapped))

    def _segments(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Two consecutive stretches of one document, cut at a sentence boundary and swapped half of the time."""
        token = int(rng.integers(self._offsets[-1]))
        shard = int(np.searchsorted(self._offsets, token, side="right")) - 1
        at = token - int(self._offsets[shard])
        starts = self._documents[shard]
        document = int(np.searchsorted(starts, at, side="right")) - 1
        end = int(starts[document + 1]) if document + 1 < len(starts) else len(self._shards.ids[shard])
        room = self.length - 3  # [CLS] a [SEP] b [SEP]
        begin = max(int(starts[document]), min(at, end - room))  # near a document's end step back, to fill the sequence
        window = np.asarray(self._shards.ids[shard][begin : min(end, begin + room)], dtype=np.int64)
        boundaries = np.flatnonzero(self._shards.bits[shard][begin + 1 : begin + len(window)] & SENTENCE_START) + 1
        if not len(boundaries):
            return window, window[:0], IGNORED
        cut = int(rng.choice(boundaries))
        # The swap stays inside one document, so that topic gives no clue to the order.
        swap = int(rng.random() < 0.5)
        return (window[cut:], window[:cut], 1) if swap else (window[:cut], window[cut:], 0)

    def _mask(self, ids: np.ndarray, allowed: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Hide `mask_rate` of the allowed tokens in place: 80 % [MASK], 10 % another token, 10 % as they were."""
        chosen = allowed & (rng.random(ids.shape) < self.mask_rate)
        if not chosen.any():
            chosen.flat[rng.choice(np.flatnonzero(allowed))] = True
        positions = np.flatnonzero(chosen)
        labels = ids.flat[positions].copy()
        fate = rng.random(len(positions))
        ids.flat[positions[fate < MASKED]] = self.tokenizer.mask_id
        random = positions[(fate >= MASKED) & (fate < MASKED + RANDOMISED)]
        ids.flat[random] = rng.integers(self.tokenizer.vocab_size, size=len(random))
        return positions, labels
