"""Encodings to tensors, and which examples each step sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from litebert.tokenizer import Encoding


@dataclass(frozen=True)
class Batch:
    """Padded sequences, (B, L) each."""

    input_ids: Tensor
    attention_mask: Tensor | None
    """True at real tokens; None when nothing is padded."""
    token_type_ids: Tensor

    def to(self, device: torch.device | str) -> Batch:
        mask = None if self.attention_mask is None else self.attention_mask.to(device, non_blocking=True)
        return Batch(
            self.input_ids.to(device, non_blocking=True), mask, self.token_type_ids.to(device, non_blocking=True)
        )


def collate(encodings: Sequence[Encoding], pad_id: int) -> Batch:
    """Pad to the longest of these encodings."""
    longest = max(len(encoding) for encoding in encodings)
    ids = np.full((len(encodings), longest), pad_id, dtype=np.int64)
    types = np.zeros_like(ids)
    real = np.zeros(ids.shape, dtype=bool)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding)] = encoding.ids
        types[row, : len(encoding)] = encoding.type_ids
        real[row, : len(encoding)] = True
    return Batch(torch.from_numpy(ids), None if real.all() else torch.from_numpy(real), torch.from_numpy(types))


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first: little is padded, and memory runs out at once or never."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def epoch_batch(num_examples: int, batch_size: int, seed: int, step: int) -> np.ndarray:
    """The examples of training step `step`: a new shuffle every epoch, the last batch of an epoch may be short."""
    steps_per_epoch = -(-num_examples // batch_size)
    epoch, within = divmod(step, steps_per_epoch)
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_examples)
    return order[within * batch_size : (within + 1) * batch_size]
