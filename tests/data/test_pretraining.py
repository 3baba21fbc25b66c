"""Pre-training batches: a pure function of (seed, step), masked and swapped as the paper says.

The corpus is made so that a token tells where it came from: document d is 20 consecutive ids in sentences of five.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.pretraining import IGNORED, PretrainingBatch, PretrainingData
from litebert.data.shards import Shards, ShardWriter
from litebert.errors import ConfigError, DataError
from litebert.tokenizer import Tokenizer

FIRST, LENGTH, SENTENCE, DOCUMENTS = 10, 20, 5, 9


def write(folder: Path, tokenizer: Tokenizer, documents: list[list[list[int]]]) -> Shards:
    with ShardWriter(folder, tokenizer, shard_tokens=3 * LENGTH) as writer:
        writer.add(documents)
        writer.finish()
    return Shards(folder)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Shards:
    documents = []
    for number in range(DOCUMENTS):
        start = FIRST + number * LENGTH
        documents.append([list(range(at, at + SENTENCE)) for at in range(start, start + LENGTH, SENTENCE)])
    return write(tmp_path_factory.mktemp("shards"), tokenizer, documents)


def data_of(shards: Shards, **changes: float) -> PretrainingData:
    settings = {"batch_size": 8, "length": 18, "mask_rate": 0.15, "seed": 0} | changes
    return PretrainingData(shards, **settings)  # type: ignore[arg-type]


def original(batch: PretrainingBatch) -> torch.Tensor:
    """The ids before masking."""
    ids = batch.text.input_ids.clone()
    ids.view(-1)[batch.positions] = batch.labels
    return ids


def segments_of(row: torch.Tensor, tokenizer: Tokenizer) -> list[list[int]]:
    """What stands between [CLS], [SEP] and padding."""
    parts: list[list[int]] = [[]]
    for number in row.tolist():
        if number == tokenizer.sep_id:
            parts.append([])
        elif number not in (tokenizer.cls_id, tokenizer.pad_id):
            parts[-1].append(number)
    return [part for part in parts if part]


def equal(one: PretrainingBatch, other: PretrainingBatch) -> bool:
    return (
        torch.equal(one.text.input_ids, other.text.input_ids)
        and torch.equal(one.text.token_type_ids, other.text.token_type_ids)
        and torch.equal(one.positions, other.positions)
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.swapped, other.swapped)
    )


@given(seed=st.integers(0, 2**32 - 1), step=st.integers(0, 2**40))
def test_a_batch_is_a_function_of_seed_and_step(shards: Shards, seed: int, step: int) -> None:
    used = data_of(shards, seed=seed)
    used.batch(step + 1)
    assert equal(used.batch(step), data_of(shards, seed=seed).batch(step))


def test_no_two_steps_and_no_two_seeds_are_equal(shards: Shards) -> None:
    batches = [data_of(shards, seed=seed).batch(step) for seed in range(3) for step in range(20)]
    assert len({batch.text.input_ids.numpy().tobytes() for batch in batches}) == len(batches)


@given(step=st.integers(0, 10_000), length=st.integers(8, 40), mask_rate=st.floats(0.05, 0.8))
def test_masks_stand_on_text_only(
    shards: Shards, tokenizer: Tokenizer, step: int, length: int, mask_rate: float
) -> None:
    batch = data_of(shards, length=length, mask_rate=mask_rate).batch(step)
    frame = torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
    assert not torch.isin(batch.labels, frame).any()
    assert len(batch.positions.unique()) == len(batch.positions) >= 1
    if batch.text.attention_mask is not None:
        assert batch.text.attention_mask.view(-1)[batch.positions].all()


@given(step=st.integers(0, 10_000), length=st.integers(8, 40))
def test_labels_are_what_stood_there(shards: Shards, tokenizer: Tokenizer, step: int, length: int) -> None:
    for row in original(data_of(shards, length=length).batch(step)):
        for segment in segments_of(row, tokenizer):
            assert segment == list(range(segment[0], segment[0] + len(segment)))  # the corpus counts upwards


@given(step=st.integers(0, 10_000), length=st.integers(8, 40))
def test_both_segments_are_neighbours_in_one_document(
    shards: Shards, tokenizer: Tokenizer, step: int, length: int
) -> None:
    batch = data_of(shards, length=length).batch(step)
    for row, swapped in zip(original(batch), batch.swapped.tolist(), strict=True):
        parts = segments_of(row, tokenizer)
        assert len(parts) == (1 if swapped == IGNORED else 2)
        stretch = [number for part in (reversed(parts) if swapped == 1 else parts) for number in part]
        assert stretch == list(range(stretch[0], stretch[0] + len(stretch)))
        assert len({(number - FIRST) // LENGTH for number in stretch}) == 1


@given(step=st.integers(0, 10_000))
def test_the_cut_falls_on_a_sentence_boundary(shards: Shards, tokenizer: Tokenizer, step: int) -> None:
    batch = data_of(shards).batch(step)
    for row, swapped in zip(original(batch), batch.swapped.tolist(), strict=True):
        later = segments_of(row, tokenizer)[0 if swapped == 1 else -1]
        assert (later[0] - FIRST) % SENTENCE == 0


def test_a_row_is_framed_and_its_segments_are_numbered(shards: Shards, tokenizer: Tokenizer) -> None:
    batch = data_of(shards).batch(0)
    assert batch.text.attention_mask is None  # a document is longer than a row, so every row is full
    for row, types in zip(original(batch), batch.text.token_type_ids, strict=True):
        ids = row.tolist()
        first, second = segments_of(row, tokenizer)
        sep = tokenizer.sep_id
        assert ids == [tokenizer.cls_id, *first, sep, *second, sep]
        assert types.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_short_documents_are_padded_and_hidden(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shards = write(tmp_path, tokenizer, [[[20, 21], [22, 23]]])
    batch = data_of(shards, length=12).batch(0)
    assert batch.text.attention_mask is not None
    assert batch.text.attention_mask.sum(1).tolist() == [7] * 8
    assert (original(batch)[:, 7:] == tokenizer.pad_id).all()


def test_a_document_of_one_sentence_has_no_order_to_tell(tmp_path: Path, tokenizer: Tokenizer) -> None:
    batch = data_of(write(tmp_path, tokenizer, [[list(range(20, 40))]])).batch(0)
    assert batch.swapped.tolist() == [IGNORED] * 8
    assert batch.text.token_type_ids.sum() == 0


def test_every_token_of_the_corpus_is_used(shards: Shards) -> None:
    data = data_of(shards, batch_size=64)
    seen = {number for step in range(20) for number in original(data.batch(step)).flatten().tolist()}
    assert set(range(FIRST, FIRST + DOCUMENTS * LENGTH)) <= seen


@pytest.mark.parametrize("mask_rate", [0.15, 0.4])
def test_the_share_of_masked_tokens_is_the_rate(shards: Shards, mask_rate: float) -> None:
    data = data_of(shards, batch_size=64, mask_rate=mask_rate)
    batches = [data.batch(step) for step in range(40)]
    tokens = sum(64 * (data.length - 3) for _ in batches)
    chosen = sum(len(batch.positions) for batch in batches)
    assert abs(chosen - mask_rate * tokens) < 3.3 * (tokens * mask_rate * (1 - mask_rate)) ** 0.5  # 99.9 %


def test_of_the_masked_tokens_80_10_10_are_hidden_replaced_and_kept(shards: Shards, tokenizer: Tokenizer) -> None:
    data = data_of(shards, batch_size=64)
    counts = np.zeros(3)
    for step in range(60):
        batch = data.batch(step)
        now = batch.text.input_ids.view(-1)[batch.positions]
        hidden, kept = now == tokenizer.mask_id, now == batch.labels
        counts += [int(hidden.sum()), int((~hidden & ~kept).sum()), int(kept.sum())]
    share = 1 / tokenizer.vocab_size  # a random token may be the mask, or the one that stood there
    expected = counts.sum() * np.array([0.8 + 0.1 * share, 0.1 - 0.2 * share, 0.1 + 0.1 * share])
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi-square, two degrees of freedom, 99.9 %


def test_half_of_the_pairs_are_swapped(shards: Shards) -> None:
    data = data_of(shards, batch_size=64)
    swapped = torch.cat([data.batch(step).swapped for step in range(40)])
    assert abs(int(swapped.sum()) - len(swapped) / 2) < 3.3 * (len(swapped) / 4) ** 0.5


def test_something_is_hidden_even_at_the_smallest_rate(shards: Shards) -> None:
    data = data_of(shards, batch_size=1, mask_rate=1e-9)
    assert [len(data.batch(step).positions) for step in range(10)] == [1] * 10


def test_a_batch_moves_with_all_its_parts(shards: Shards) -> None:
    batch = data_of(shards).batch(0).to("meta")
    parts = (batch.text.input_ids, batch.positions, batch.labels, batch.swapped)
    assert {part.device for part in parts} == {torch.device("meta")}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mask_rate": 0.0}, r"mask_rate=0\.0 must lie between 0 and 1"),
        ({"mask_rate": 1.0}, r"mask_rate=1\.0 must lie between 0 and 1"),
        ({"length": 7}, "length=7 leaves no room for text; it must be at least 8"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(shards: Shards, change: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        data_of(shards, **change)


def test_a_corpus_of_one_token_is_too_small(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="1 tokens are too few to train on; prepare more text"):
        data_of(write(tmp_path, tokenizer, [[[20]]]))
