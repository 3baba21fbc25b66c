"""Collating examples into padded batches, and choosing the examples of each batch.

Shapes: B examples, S sequences (an example may have several: the windows of a long text, the options of a multiple
choice), L columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

IGNORE_INDEX = -100
"""Targets that losses ignore: torch's default `ignore_index`."""
BUCKET_BATCHES = 32  # batches per bucket of examples sorted by length


class TokenSequence(Protocol):
    """One input sequence of the model."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Example:
    """A record as model inputs and target."""

    sequences: Sequence[TokenSequence]
    """One answer is given for all of them together."""
    target: Any = None
    """A number or an array for the loss; None for unlabelled examples."""
    notes: Any = None
    """What the task needs to decode the answer, such as character offsets."""
    per_token: bool = False
    """The target has one number per token; otherwise a fixed shape, or one dimension of any length."""
    states: Sequence[Tensor] | None = None
    """Per sequence (L, P, H), the hidden states of a frozen encoder after P different numbers of passes."""

    @property
    def length(self) -> int:
        """Length of the longest sequence."""
        return max(len(sequence.ids) for sequence in self.sequences)


@dataclass(frozen=True)
class Batch:
    """Padded sequences, (S, L) each, with their targets."""

    input_ids: Tensor
    attention_mask: Tensor | None
    """True at real tokens; None when nothing is padded."""
    token_type_ids: Tensor
    example_index: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(S,) the example that each sequence belongs to."""
    examples: int = 0
    lengths: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(S,) lengths without padding."""
    targets: Tensor | None = None
    """(B, ...); padded with IGNORE_INDEX to (S, L) for a target per token, to (B, T) for targets of many lengths."""
    noise: Tensor | None = None
    """(S, L, E) added to the word embeddings in adversarial training."""
    tokens: int | None = None
    """Number of tokens without padding, where the host knows it."""
    states: Tensor | None = None
    """(S, L, P, H) cached hidden states of a frozen encoder."""

    def to(self, device: torch.device | str) -> Batch:
        if torch.device(device).type == "cpu":
            return self
        moved: dict[str, Any] = {
            name: _to_device(value, torch.device(device)) for name, value in self.tensors().items()
        }
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """Its fields that are tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def real(self) -> Tensor:
        """(S, L) True at real tokens."""
        return torch.ones_like(self.input_ids, dtype=torch.bool) if self.attention_mask is None else self.attention_mask


def _to_device(value: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and value.device.type == "cpu":
        value = value.pin_memory()  # a copy from pageable memory would synchronise with the GPU
    return value.to(device, non_blocking=True)


def pad(sequences: Sequence[TokenSequence], pad_id: int) -> Batch:
    """A batch of sequences padded to the longest."""
    return collate([Example([sequence]) for sequence in sequences], pad_id)


def collate(examples: Sequence[Example], pad_id: int, columns: int | None = None) -> Batch:
    """All sequences of these examples in one batch, padded to the longest or to `columns`.

    With `columns` there is always a mask, even without padding, so that batches of one shape run the same kernels.
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
    if examples[0].per_token or (arrays[0].ndim == 1 and len({array.shape for array in arrays}) > 1):
        width = columns if examples[0].per_token else max(map(len, arrays))
        padding = ((0, width - len(array)) for array in arrays)
        arrays = [
            np.pad(array, pads, constant_values=IGNORE_INDEX) for array, pads in zip(arrays, padding, strict=True)
        ]
    return torch.from_numpy(np.stack(arrays))


def _padded_states(examples: Sequence[Example], columns: int) -> Tensor | None:
    """The cached hidden states, padded with 0."""
    states = [state for example in examples for state in example.states or ()]
    if not states or any(example.states is None for example in examples):
        return None
    padded = states[0].new_zeros(len(states), columns, *states[0].shape[1:])
    for row, state in zip(padded, states, strict=True):
        row[: len(state)] = state
    return padded


def batches_by_length(
    lengths: Sequence[int], batch_size: int | None, max_tokens: int = 0, min_length_ratio: float = 0.0
) -> list[list[int]]:
    """Indices grouped into batches of similar length, longest first, so that an out-of-memory error comes at once.

    Without a `batch_size`, a batch holds up to `max_tokens` tokens, or one example. No example is shorter than
    `min_length_ratio` times the longest of its batch.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches, start = [], 0
    while start < len(order):
        longest = lengths[order[start]]
        count = batch_size or max(1, max_tokens // max(1, longest))
        batches.append(
            [index for index in order[start : start + count] if lengths[index] >= min_length_ratio * longest]
        )
        start += len(batches[-1])
    return batches


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    return -(-num_examples // batch_size)


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Length-bucketed batches of every example, in a new order each epoch; one batch may be short.

    Examples are shuffled and sorted by length within buckets of `BUCKET_BATCHES` batches; then the batches are
    shuffled. The result depends on the arguments alone.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order = generator.permutation(len(lengths))
    bucket_size = batch_size * BUCKET_BATCHES
    order = np.concatenate(
        [
            part[np.argsort(-lengths[part], kind="stable")]
            for part in np.split(order, range(bucket_size, len(order), bucket_size))
        ]
    )
    batches = np.split(order, range(batch_size, len(order), batch_size))
    return [batches[i] for i in generator.permutation(len(batches))]
