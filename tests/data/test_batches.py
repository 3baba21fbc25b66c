"""Which examples a step sees, and how they are padded."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.batches import by_length, collate, epoch_batch
from litebert.tokenizer import Tokenizer


@given(
    num_examples=st.integers(1, 50), batch_size=st.integers(1, 60), seed=st.integers(0, 2**32), epoch=st.integers(0, 9)
)
def test_every_epoch_is_a_permutation_of_the_examples(
    num_examples: int, batch_size: int, seed: int, epoch: int
) -> None:
    steps = -(-num_examples // batch_size)
    seen = [epoch_batch(num_examples, batch_size, seed, epoch * steps + step) for step in range(steps)]
    assert sorted(np.concatenate(seen)) == list(range(num_examples))
    assert all(len(batch) == batch_size for batch in seen[:-1])


def test_the_order_is_a_function_of_seed_and_step_alone() -> None:
    assert epoch_batch(100, 10, 3, 25).tolist() == epoch_batch(100, 10, 3, 25).tolist()


def test_epochs_and_seeds_differ_in_their_order() -> None:
    first = epoch_batch(100, 100, 0, 0).tolist()
    assert first != epoch_batch(100, 100, 0, 1).tolist()
    assert first != epoch_batch(100, 100, 1, 0).tolist()


@given(lengths=st.lists(st.integers(1, 20), max_size=40), batch_size=st.integers(1, 10))
def test_by_length_takes_every_index_once_longest_first(lengths: list[int], batch_size: int) -> None:
    batches = by_length(lengths, batch_size)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_collate_pads_to_the_longest_and_marks_what_is_real(tokenizer: Tokenizer) -> None:
    short, long = tokenizer.encode(["rain", "the lighthouse keeper"])
    batch = collate([short, long], pad_id=tokenizer.pad_id)
    assert batch.input_ids.tolist() == [short.ids + [tokenizer.pad_id] * (len(long) - len(short)), long.ids]
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [len(short), len(long)]
    assert batch.attention_mask[0, : len(short)].all()


def test_collate_needs_no_mask_where_nothing_is_padded(tokenizer: Tokenizer) -> None:
    assert collate(tokenizer.encode(["rain", "rain"]), pad_id=tokenizer.pad_id).attention_mask is None


def test_collate_keeps_the_segments_of_pairs(tokenizer: Tokenizer) -> None:
    pair = tokenizer.encode(["rain"], ["the keeper"])[0]
    single = tokenizer.encode(["rain"])[0]
    batch = collate([pair, single], pad_id=tokenizer.pad_id)
    assert batch.token_type_ids[0].tolist() == pair.type_ids
    assert 1 in pair.type_ids
    assert batch.token_type_ids[1].sum() == 0


def test_a_batch_moves_with_all_its_parts(tokenizer: Tokenizer) -> None:
    batch = collate(tokenizer.encode(["rain", "the keeper"]), pad_id=tokenizer.pad_id).to("meta")
    assert batch.attention_mask is not None
    assert {x.device for x in (batch.input_ids, batch.attention_mask, batch.token_type_ids)} == {torch.device("meta")}
