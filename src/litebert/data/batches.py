"""Sequences to tensors, and which examples each step sees.

Shapes: B examples, S sequences (an example may have several: the windows of a long text, the options of a choice),
L columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

IGNORE_INDEX = -100
"""A target that no loss looks at: torch's own mark for it."""
BUCKET_BATCHES = 32  # batches among which examples of similar length are gathered


class TokenSequence(Protocol):
    """What the model reads as one sequence."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Example:
    """A record as the model reads it."""

    sequences: Sequence[TokenSequence]
    """Together they get one answer."""
    target: Any = None
    """What the loss compares with: a number or an array; None when there is nothing to learn from."""
    notes: Any = None
    """What the task has to remember to answer: where the tokens stood in the text, say."""
    by_token: bool = False
    """The target is one number per token of the sequence; else it is of one shape, or a row of any length."""
    states: Sequence[Tensor] | None = None
    """(L, P, H) for each sequence: what an encoder that does not learn has said of it, after P numbers of passes."""

    @property
    def length(self) -> int:
        """Of the longest sequence."""
        return max(len(sequence.ids) for sequence in self.sequences)


@dataclass(frozen=True)
class Batch:
    """Padded sequences, (S, L) each, and what belongs to them."""

    input_ids: Tensor
    attention_mask: Tensor | None
    """True at real tokens; None when nothing is padded."""
    token_type_ids: Tensor
    owner: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(S,) which example of the batch a sequence belongs to."""
    examples: int = 0
    lengths: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(S,) real tokens in each."""
    targets: Tensor | None = None
    """(B, ...), or with IGNORED in the padding: (S, L) for a target per token, (B, T) for rows of many lengths."""
    noise: Tensor | None = None
    """(S, L, E) to add to the word embeddings; adversarial training sets it."""
    tokens: int | None = None
    """Real ones in all, where the host knows."""
    states: Tensor | None = None
    """(S, L, P, H) what the encoder says of them, where that is known: it need not read them again."""

    def to(self, device: torch.device | str) -> Batch:
        if torch.device(device).type == "cpu":
            return self
        moved: dict[str, Any] = {
            name: _to_device(value, torch.device(device)) for name, value in self.tensors().items()
        }
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """Those of its parts that are there, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def real(self) -> Tensor:
        """(S, L) True at real tokens."""
        return torch.ones_like(self.input_ids, dtype=torch.bool) if self.attention_mask is None else self.attention_mask


def _to_device(value: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and value.device.type == "cpu":
        value = value.pin_memory()  # else the host waits until the GPU has done all that comes before the copy
    return value.to(device, non_blocking=True)


def pad(sequences: Sequence[TokenSequence], pad_id: int) -> Batch:
    """Pad to the longest of these sequences."""
    return collate([Example([sequence]) for sequence in sequences], pad_id)


def collate(examples: Sequence[Example], pad_id: int, columns: int | None = None) -> Batch:
    """All sequences of these examples in one batch, padded to the longest.

    Or to so many columns, and then with a mask even where nothing is padded: batches of one shape are computed alike.
    """
    sequences = [sequence for example in examples for sequence in example.sequences]
    lengths = np.array([len(sequence.ids) for sequence in sequences])
    width = int(lengths.max()) if columns is None else columns
    ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    types = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : lengths[row]] = sequence.ids
        types[row, : lengths[row]] = sequence.type_ids
    padded = columns is not None or int(lengths.min()) < width
    owner = np.repeat(np.arange(len(examples)), [len(example.sequences) for example in examples])
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(np.arange(width) < lengths[:, None]) if padded else None,
        torch.from_numpy(types),
        torch.from_numpy(owner),
        len(examples),
        torch.from_numpy(lengths),
        _stacked_targets(examples, width),
        tokens=int(lengths.sum()),
        states=_padded_states(examples, width),
    )


def _stacked_targets(examples: Sequence[Example], columns: int) -> Tensor | None:
    if any(example.target is None for example in examples):
        return None
    arrays = [np.asarray(example.target) for example in examples]
    if examples[0].by_token or (arrays[0].ndim == 1 and len({array.shape for array in arrays}) > 1):
        width = columns if examples[0].by_token else max(map(len, arrays))
        padding = ((0, width - len(array)) for array in arrays)
        arrays = [
            np.pad(array, pads, constant_values=IGNORE_INDEX) for array, pads in zip(arrays, padding, strict=True)
        ]
    return torch.from_numpy(np.stack(arrays))


def _padded_states(examples: Sequence[Example], columns: int) -> Tensor | None:
    """Padded with 0."""
    known = [one for example in examples for one in example.states or ()]
    if not known or any(example.states is None for example in examples):
        return None
    padded = known[0].new_zeros(len(known), columns, *known[0].shape[1:])
    for row, one in zip(padded, known, strict=True):
        row[: len(one)] = one
    return padded


def batches_by_length(
    lengths: Sequence[int], batch_size: int | None, tokens: int = 0, alike: float = 0.0
) -> list[list[int]]:
    """Indices in batches of similar length, longest first: little is padded, and memory runs out at once or never.

    Without a `batch_size` there are as many in each as make so many tokens, or one. None is shorter than a share
    `alike` of the longest in its batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches, start = [], 0
    while start < len(order):
        longest = lengths[order[start]]
        count = batch_size or max(1, tokens // max(1, longest))
        batches.append([index for index in order[start : start + count] if lengths[index] >= alike * longest])
        start += len(batches[-1])
    return batches


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    return -(-num_examples // batch_size)


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Every example once, in a new order each epoch, in batches of similar length; the last may be short.

    Shuffled, then sorted by length within stretches of some batches, then the batches are shuffled: chance decides
    what stands together, except that little is padded. Depends on nothing but its arguments.
    """
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order = random.permutation(len(lengths))
    stretch = batch_size * BUCKET_BATCHES
    order = np.concatenate(
        [
            part[np.argsort(-lengths[part], kind="stable")]
            for part in np.split(order, range(stretch, len(order), stretch))
        ]
    )
    batches = np.split(order, range(batch_size, len(order), batch_size))
    return [batches[i] for i in random.permutation(len(batches))]
