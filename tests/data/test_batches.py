"""Which examples a step sees, and how they are padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.batches import (
    IGNORE_INDEX,
    Batch,
    Example,
    batches_by_length,
    collate,
    epoch_batches,
    pad,
    steps_per_epoch,
)
from litebert.data.windows import Window
from litebert.tokenizer import Tokenizer

LENGTHS = np.random.default_rng(0).lognormal(3, 1, 2000).astype(int) + 2  # many short texts, a few very long ones


def sequence(length: int) -> Window:
    return Window(list(range(2, 2 + length)), [0] * length, 1, 0, length)


def one_per_sequence(*targets: Any, lengths: tuple[int, ...] = (3, 5)) -> Batch:
    examples = [Example([sequence(n)], target) for n, target in zip(lengths, targets, strict=True)]
    return collate(examples, pad_id=0)


def padded_columns(batches: list[np.ndarray]) -> int:
    return sum(int(LENGTHS[batch].max() * len(batch) - LENGTHS[batch].sum()) for batch in batches)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=300),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 9),
)
def test_every_epoch_is_a_permutation_of_the_examples(
    lengths: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    batches = epoch_batches(np.array(lengths), batch_size, seed, epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert len(batches) == steps_per_epoch(len(lengths), batch_size)
    sizes = sorted(len(batch) for batch in batches)
    assert sizes[1:] == [batch_size] * (len(batches) - 1)
    assert sizes[0] == len(lengths) - batch_size * (len(batches) - 1)


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    first = epoch_batches(LENGTHS, 16, 3, 25)
    np.random.seed(7)
    torch.manual_seed(7)
    again = epoch_batches(LENGTHS.copy(), 16, 3, 25)
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]


@pytest.mark.parametrize(("seed", "epoch"), [(0, 1), (1, 0)])
def test_epochs_and_seeds_put_other_examples_together(seed: int, epoch: int) -> None:
    company = [{frozenset(batch) for batch in epoch_batches(LENGTHS, 16, *key)} for key in ((0, 0), (seed, epoch))]
    assert not company[0] & company[1]


def test_long_batches_do_not_all_come_first() -> None:
    longest = [LENGTHS[batch].max() for batch in epoch_batches(LENGTHS[:512], 16, 0, 0)]
    assert longest != sorted(longest, reverse=True)
    assert longest != sorted(longest)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_batches_of_similar_length_pad_a_fraction_of_what_chance_does(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(LENGTHS))
    by_chance = np.split(order, range(16, len(order), 16))
    assert padded_columns(epoch_batches(LENGTHS, 16, seed, 0)) < padded_columns(by_chance) / 4


@given(lengths=st.lists(st.integers(1, 20), max_size=40), batch_size=st.integers(1, 10))
def test_by_length_takes_every_index_once_longest_first(lengths: list[int], batch_size: int) -> None:
    batches = batches_by_length(lengths, batch_size)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(lengths=st.lists(st.integers(1, 20), max_size=40), tokens=st.integers(1, 60))
def test_without_a_batch_size_as_many_go_together_as_make_so_many_tokens(lengths: list[int], tokens: int) -> None:
    batches = batches_by_length(lengths, None, tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for number, batch in enumerate(batches):
        longest = lengths[batch[0]]
        assert len(batch) == 1 or len(batch) * longest <= tokens
        assert number == len(batches) - 1 or (len(batch) + 1) * longest > tokens


def test_one_long_text_does_not_pad_many_short_ones() -> None:
    lengths = [10] * 20 + [100] + [9, 7, 6]
    assert batches_by_length(lengths, 32, min_length_ratio=2 / 3) == [[20], [*range(20), 21, 22], [23]]
    assert batches_by_length(lengths, 32) == [[20, *range(20), 21, 22, 23]]


def test_padding_reaches_to_the_longest_and_what_is_real_is_marked(tokenizer: Tokenizer) -> None:
    short, long = tokenizer.encode(["rain", "the lighthouse keeper"])
    batch = pad([short, long], pad_id=tokenizer.pad_id)
    assert batch.input_ids.tolist() == [short.ids + [tokenizer.pad_id] * (len(long) - len(short)), long.ids]
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [len(short), len(long)] == batch.lengths.tolist()
    assert batch.attention_mask[0, : len(short)].all()
    assert torch.equal(batch.real, batch.attention_mask)


def test_no_mask_is_needed_where_nothing_is_padded(tokenizer: Tokenizer) -> None:
    batch = pad(tokenizer.encode(["rain", "rain"]), pad_id=tokenizer.pad_id)
    assert batch.attention_mask is None
    assert batch.real.all()


def test_the_segments_of_pairs_are_kept(tokenizer: Tokenizer) -> None:
    pair = tokenizer.encode(["rain"], ["the keeper"])[0]
    single = tokenizer.encode(["rain"])[0]
    batch = pad([pair, single], pad_id=tokenizer.pad_id)
    assert batch.token_type_ids[0].tolist() == pair.type_ids
    assert 1 in pair.type_ids
    assert batch.token_type_ids[1].sum() == 0


def test_the_sequences_of_an_example_stand_together_and_know_their_owner() -> None:
    examples = [Example([sequence(4)]), Example([sequence(2), sequence(6), sequence(3)]), Example([sequence(5)])]
    batch = collate(examples, pad_id=0)
    assert batch.examples == 3
    assert batch.example_index.tolist() == [0, 1, 1, 1, 2]
    assert batch.lengths.tolist() == [4, 2, 6, 3, 5]
    assert batch.input_ids.shape == (5, 6)
    assert [example.length for example in examples] == [4, 6, 5]


def test_a_number_per_example_becomes_a_vector() -> None:
    classes = one_per_sequence(1, 0).targets
    values = one_per_sequence(np.float32(0.5), np.float32(-1)).targets
    assert classes is not None
    assert values is not None
    assert (classes.tolist(), classes.dtype) == ([1, 0], torch.int64)
    assert (values.tolist(), values.dtype) == ([0.5, -1], torch.float32)


def test_arrays_of_one_size_become_a_matrix() -> None:
    targets = one_per_sequence(np.array([1, 0, 1, 1], np.float32), np.zeros(4, np.float32)).targets
    assert targets is not None
    assert (targets.tolist(), targets.dtype) == ([[1, 0, 1, 1], [0] * 4], torch.float32)


def test_targets_per_token_are_padded_with_what_no_loss_looks_at() -> None:
    examples = [Example([sequence(len(target))], target, per_token=True) for target in ([4, 5, 6], range(5))]
    targets = collate(examples, pad_id=0).targets
    assert targets is not None
    assert targets.tolist() == [[4, 5, 6, IGNORE_INDEX, IGNORE_INDEX], [0, 1, 2, 3, 4]]
    assert torch.nn.functional.cross_entropy(torch.randn(2, 7), torch.tensor([IGNORE_INDEX, IGNORE_INDEX])).isnan()


@pytest.mark.parametrize(("lengths", "columns"), [((3, 5), 8), ((8, 8), 8), ((9, 2), 20)])
def test_a_batch_can_be_given_more_columns(lengths: tuple[int, int], columns: int) -> None:
    examples = [Example([sequence(n)], np.arange(n), per_token=True) for n in lengths]
    plain, wide = collate(examples, pad_id=0), collate(examples, pad_id=0, columns=columns)
    assert plain.targets is not None
    assert wide.targets is not None
    assert {tensor.shape for tensor in (wide.input_ids, wide.targets, wide.real)} == {(2, columns)}
    assert wide.attention_mask is not None  # so that batches of one shape are computed in one way
    assert torch.equal(wide.lengths, plain.lengths)
    assert torch.equal(wide.input_ids[wide.real], plain.input_ids[plain.real])
    assert torch.equal(wide.targets[wide.real], plain.targets[plain.real])
    assert (wide.targets[~wide.real] == IGNORE_INDEX).all()


def test_a_batch_in_which_an_example_has_no_target_has_none() -> None:
    assert one_per_sequence(1, None).targets is None


def test_a_batch_moves_with_all_its_parts() -> None:
    batch = one_per_sequence(1, 0).to("meta")
    assert batch.attention_mask is not None
    assert batch.targets is not None
    parts = (
        batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.example_index, batch.lengths, batch.targets,
    )  # fmt: skip
    assert {part.device for part in parts} == {torch.device("meta")}
