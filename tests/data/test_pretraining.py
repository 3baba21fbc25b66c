"""Pre-training batches: a pure function of (seed, step), the same however they are split, and in the end all text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare  # type: ignore[import-untyped]

from litebert.data.masking import Masking, MaskUnit
from litebert.data.pretraining import PretrainingBatch, PretrainingData, TrainingStage
from litebert.data.segments import SentenceObjective
from litebert.data.shards import Shards, ShardWriter, TokenStream
from litebert.errors import ConfigError, DataError
from litebert.tokenizer import Tokenizer
from tests.data.counting import FIRST, Corpus, Documents, any_documents, corpus_of, original, prose, read, same

ALMOST_SURE = 1e-3  # seeds are fixed, so a test that passes once passes always
properties = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = st.sampled_from(get_args(MaskUnit))
QUESTIONS = st.sampled_from(get_args(SentenceObjective))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return corpus_of(prose(400), shard_documents=150)


def special(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]


def seen(corpus: Corpus, data: PretrainingData, steps: int) -> np.ndarray:
    """How often each token occurs in the steps."""
    counts = np.zeros(corpus.size, dtype=np.int64)
    for step in range(steps):
        ids = original(data.batch(step)).numpy()
        np.add.at(counts, ids[ids >= FIRST] - FIRST, 1)
    return counts


def joined(batches: list[PretrainingBatch]) -> PretrainingBatch:
    """The parts of a batch laid end to end, each without its padding."""
    sizes = [len(batch.input_ids) - batch.padding for batch in batches]
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()

    def lay(name: str, *, moved: bool = False) -> torch.Tensor:
        return torch.cat([getattr(b, name) + moved * at for b, at in zip(batches, offsets, strict=True)])

    def cut(name: str) -> torch.Tensor:
        return torch.cat([getattr(b, name)[:size] for b, size in zip(batches, sizes, strict=True)])

    return PretrainingBatch(
        input_ids=cut("input_ids"),
        token_type_ids=cut("token_type_ids"),
        lengths=torch.cat([batch.lengths[: -1 if batch.padding else None] for batch in batches]),
        masked_positions=lay("masked_positions", moved=True),
        labels=lay("labels"),
        cls_positions=lay("cls_positions", moved=True),
        swapped=lay("swapped"),
        padding=0,
    )


@properties
@given(seed=st.integers(0, 2**32 - 1), step=st.integers(0, 2**36), sentences=QUESTIONS, kind=KINDS)
def test_a_batch_is_a_function_of_seed_and_step(
    corpus: Corpus, tokenizer: Tokenizer, seed: int, step: int, sentences: SentenceObjective, kind: MaskUnit
) -> None:
    used, fresh = (
        corpus.data(tokenizer, seed=seed, sentences=sentences, masking=Masking(kind=kind)) for _ in range(2)
    )  # fmt: skip
    used.batch(step + 1)
    assert same(used.batch(step), fresh.batch(step))


def test_no_two_steps_and_no_two_seeds_are_equal(corpus: Corpus, tokenizer: Tokenizer) -> None:
    batches = [corpus.data(tokenizer, seed=seed).batch(step) for seed in range(3) for step in range(20)]
    assert len({original(batch).numpy().tobytes() for batch in batches}) == len(batches)


@pytest.mark.parametrize("sentences", get_args(SentenceObjective))
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8])
def test_the_parts_of_a_batch_make_up_the_whole(
    corpus: Corpus, tokenizer: Tokenizer, parts: int, sentences: SentenceObjective
) -> None:
    for kind in get_args(MaskUnit):
        data = corpus.data(tokenizer, batch_size=24, sentences=sentences, masking=Masking(kind=kind))
        assert same(joined([data.batch(5)]), joined([data.batch(5, part, parts) for part in range(parts)]))


@properties
@given(documents=any_documents(), batch_size=st.integers(1, 9), parts=st.integers(1, 12), step=st.integers(0, 99))
def test_any_corpus_and_any_number_of_parts_make_up_the_whole(
    tokenizer: Tokenizer, documents: Documents, batch_size: int, parts: int, step: int
) -> None:
    data = corpus_of(documents, shard_documents=2).data(tokenizer, batch_size=batch_size, length=32)
    assert same(joined([data.batch(step)]), joined([data.batch(step, part, parts) for part in range(parts)]))


@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize("documents", [prose(300), [[5]] * 2000, [[7, 8]] * 1000, [[12] * 3000]])
def test_few_epochs_show_nearly_every_token(tokenizer: Tokenizer, length: int, documents: Documents) -> None:
    corpus = corpus_of(documents)
    data = corpus.data(tokenizer, batch_size=16, length=length)
    epoch = corpus.size / (16 * (length - length // 8))
    counts = seen(corpus, data, round(4 * epoch))
    assert (counts > 0).mean() >= 0.99
    assert counts.mean() < 4 * 1.2
    assert (counts > 16).mean() < 0.01


def test_no_row_number_is_used_twice(corpus: Corpus, tokenizer: Tokenizer) -> None:
    """The rows of an epoch open at different places; what few begin alike were pushed to the same sentence."""
    data = corpus.data(tokenizer, batch_size=16, length=128, sentences="none", short_share=0.0)
    steps = corpus.size // (112 * 16)
    opened = [
        int(sequence.places[0])
        for step in range(steps)
        for sequence in read(data.batch(step), tokenizer)
        if sequence.size > 64
    ]
    assert len(set(opened)) > 0.95 * len(opened)


def test_masks_and_orders_differ_between_epochs(tokenizer: Tokenizer) -> None:
    """One document that fits a row is the same text in every epoch."""
    data = corpus_of([[4, 5, 6]]).data(tokenizer, batch_size=1, short_share=0.0)
    batches = [data.batch(step) for step in range(40)]
    assert {len(batch.input_ids) - batch.padding for batch in batches} == {18}
    assert len({tuple(sorted(batch.labels.tolist())) for batch in batches}) > 10
    assert len({int(batch.swapped) for batch in batches}) == 2


def test_masks_and_orders_differ_between_seeds(tokenizer: Tokenizer) -> None:
    batches = [corpus_of([[4, 5, 6]]).data(tokenizer, 1, short_share=0.0, seed=seed).batch(0) for seed in range(40)]
    assert len({tuple(sorted(batch.labels.tolist())) for batch in batches}) > 10
    assert len({int(batch.swapped) for batch in batches}) == 2


def test_every_epoch_has_its_own_shuffle(tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[4] * 2800])  # 200 rows of 56 tokens
    data = corpus.data(tokenizer, batch_size=200, sentences="none", short_share=0.0)
    one, two = (np.array([s.places[0] for s in read(data.batch(step), tokenizer)]) // 56 for step in range(2))
    assert np.abs(np.corrcoef(one[:190], two[:190])[0, 1]) < 0.25
    assert len(np.unique((two[:190] - one[:190]) % 200)) > 80  # neither is the other moved along


@properties
@given(documents=any_documents(), length=st.integers(16, 80), step=st.integers(0, 99), kind=KINDS, sentences=QUESTIONS)
def test_masks_stand_on_text_only_and_labels_restore_it(
    tokenizer: Tokenizer, documents: Documents, length: int, step: int, kind: MaskUnit, sentences: SentenceObjective
) -> None:
    data = corpus_of(documents).data(tokenizer, length=length, masking=Masking(kind=kind), sentences=sentences)
    batch = data.batch(step)
    assert (batch.labels >= FIRST).all()
    assert (np.diff(batch.masked_positions.numpy()) > 0).all()
    changed = batch.input_ids[: len(batch.input_ids) - batch.padding] != original(batch)
    assert set(changed.nonzero().flatten().tolist()) <= set(batch.masked_positions.tolist())
    assert all(len(sequence.places) for sequence in read(batch, tokenizer))


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5, 0.8])
def test_the_share_of_hidden_tokens_is_the_rate(corpus: Corpus, tokenizer: Tokenizer, rate: float) -> None:
    data = corpus.data(tokenizer, batch_size=256, length=128, masking=Masking(rate=rate))
    hidden = text = 0
    for step in range(4):
        batch = data.batch(step)
        hidden, text = hidden + len(batch.labels), text + int((original(batch) >= FIRST).sum())
    assert abs(hidden - rate * text) < 3.3 * 4 * 32  # 1,024 rows, each within a unit of three words


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.4, 0.4)])
def test_hidden_tokens_are_masked_replaced_and_kept(
    corpus: Corpus, tokenizer: Tokenizer, shares: tuple[float, float]
) -> None:
    masking = Masking(mask_share=shares[0], random_share=shares[1])
    batch = corpus.data(tokenizer, batch_size=1024, length=128, masking=masking).batch(0)
    now = batch.input_ids[batch.masked_positions]
    masked, kept = now == tokenizer.mask_id, now == batch.labels
    counts = [int(masked.sum()), int((~masked & ~kept).sum()), int(kept.sum())]
    assert chisquare(counts, sum(counts) * np.array([*shares, 1 - sum(shares)])).pvalue > ALMOST_SURE
    replaced = now[~masked & ~kept].numpy()
    assert not np.isin(replaced, special(tokenizer)).any()
    assert chisquare(np.delete(np.bincount(replaced, minlength=tokenizer.vocab_size), special(tokenizer))).pvalue > 1e-3


def test_excluded_tokens_are_never_hidden(corpus: Corpus, tokenizer: Tokenizer) -> None:
    exclude = np.arange(FIRST + corpus.size) % 3 == 0
    batch = corpus.data(tokenizer, batch_size=256, exclude=exclude).batch(0)
    assert not exclude[batch.labels.numpy()].any()
    text = original(batch).numpy()
    text = text[text >= FIRST]
    assert len(batch.labels) == pytest.approx(0.15 * (~exclude[text]).sum(), rel=0.05)


@pytest.mark.parametrize("documents", [prose(300), [[5]] * 2000, [[12] * 3000]])
def test_hardly_any_token_is_padding(tokenizer: Tokenizer, documents: Documents) -> None:
    for length in (64, 128, 512):
        batch = corpus_of(documents).data(tokenizer, batch_size=2048 // length, length=length).batch(0)
        assert len(batch.input_ids) % 8 == 0
        assert batch.padding < 0.02 * len(batch.input_ids)
        assert (batch.input_ids[len(batch.input_ids) - batch.padding :] == tokenizer.pad_id).all()
        assert int(batch.lengths.sum()) == len(batch.input_ids)


def test_stages_change_the_batch_and_the_length(corpus: Corpus, tokenizer: Tokenizer) -> None:
    stages = [TrainingStage(0, 4, 32), TrainingStage(3, 8, 32), TrainingStage(5, 8, 64)]
    data = corpus.data(tokenizer, stages=stages, sentences="none", short_share=0.0)
    longest = [max(sequence.size for sequence in read(data.batch(step), tokenizer)) for step in range(8)]
    assert max(longest[:5]) <= 32 < min(longest[5:]) <= 64
    sizes = [len(data.batch(step).input_ids) for step in range(8)]
    assert max(sizes[:3]) < min(sizes[3:5])
    assert max(sizes[3:5]) < min(sizes[5:])
    assert [data.tokens_before(step) for step in (0, 3, 5, 6)] == [0, 384, 896, 1408]
    fresh = corpus.data(tokenizer, stages=stages, sentences="none", short_share=0.0)
    assert all(same(data.batch(step), fresh.batch(step)) for step in reversed(range(8)))


def test_a_larger_batch_goes_on_where_the_smaller_one_stopped(corpus: Corpus, tokenizer: Tokenizer) -> None:
    """The rows of a batch ramp are those of one batch size throughout, so none is repeated and none left out."""
    ramp = corpus.data(tokenizer, stages=[TrainingStage(0, 4, 64), TrainingStage(4, 8, 64)])
    plain = corpus.data(tokenizer, batch_size=8)
    halves = [joined([ramp.batch(2 * step), ramp.batch(2 * step + 1)]) for step in range(2)]
    assert all(same(half, joined([plain.batch(step)])) for step, half in enumerate(halves))
    assert same(ramp.batch(4), plain.batch(2))


@pytest.mark.parametrize("shard_documents", [1, 2, 5])
def test_shards_smaller_than_a_row_are_read_to_their_ends(tokenizer: Tokenizer, shard_documents: int) -> None:
    corpus = corpus_of(prose(100), shard_documents=shard_documents)
    data = corpus.data(tokenizer, length=128)
    counts = seen(corpus, data, 6 * corpus.size // (112 * 8))
    assert (counts > 0).mean() > 0.99


@pytest.mark.parametrize("sentences", get_args(SentenceObjective))
@pytest.mark.parametrize("documents", [[[2]], [[1, 1]], [[1], [1]], [[2, 2], [3]], [[10] * 4], [[3] * 20]])
def test_a_tiny_corpus_is_seen_whole(tokenizer: Tokenizer, documents: Documents, sentences: SentenceObjective) -> None:
    corpus = corpus_of(documents)
    data = corpus.data(tokenizer, sentences=sentences)
    assert (seen(corpus, data, 4) > 0).all()
    assert all(len(data.batch(step).labels) >= 8 for step in range(4))


def test_shards_on_disk_are_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with ShardWriter(tmp_path, tokenizer, shard_tokens=60) as writer:
        writer.add([[list(range(at, at + 5)) for at in range(start, start + 20, 5)] for start in range(10, 190, 20)])
        writer.finish()
    stream = Shards(tmp_path).training
    assert len(stream.ids) > 1
    data = PretrainingData(stream, tokenizer, [TrainingStage(0, 64, 32)], seed=0)
    ids = torch.cat([original(data.batch(step)) for step in range(10)])
    assert set(range(10, 190)) <= set(ids.tolist())


def test_a_batch_moves_with_all_its_parts(corpus: Corpus, tokenizer: Tokenizer) -> None:
    moved = corpus.data(tokenizer).batch(0).to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 7
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"length": 15}, "length=15 leaves no room for text; it must be at least 16"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"short_share": 1.5}, r"short_share=1\.5 must lie between 0 and 1"),
        ({"sentences": "maybe"}, "sentences='maybe' must be one of order, next, none"),
    ],
)
def test_settings_out_of_range_are_refused(
    corpus: Corpus, tokenizer: Tokenizer, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        corpus.data(tokenizer, **change)


@pytest.mark.parametrize("size", [0, 1])
def test_a_corpus_of_one_token_is_too_small(tokenizer: Tokenizer, size: int) -> None:
    stream = TokenStream([np.arange(size) + FIRST], [np.full(size, 7, dtype=np.uint8)])
    with pytest.raises(DataError, match=f"{size} tokens are too few to train on; prepare more text"):
        PretrainingData(stream, tokenizer, [TrainingStage(0, 8, 64)], seed=0)
