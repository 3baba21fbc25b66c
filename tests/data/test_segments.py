"""Sequences and their segments: whole sentences of one document, and questions that nothing but the text answers."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare  # type: ignore[import-untyped]

from litebert.data.pretraining import PretrainingBatch
from litebert.data.segments import SentenceObjective
from litebert.data.shards import SENTENCE_START, WORD_START
from litebert.tokenizer import Tokenizer
from tests.data.counting import (
    FIRST,
    Corpus,
    Documents,
    Example,
    any_documents,
    corpus_of,
    original,
    prose,
    read,
)

ALMOST_SURE = 1e-3  # seeds are fixed, so a test that passes once passes always
properties = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
STEPS = st.integers(0, 1000)
LENGTHS = st.integers(16, 80)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return corpus_of(prose(400), shard_documents=150)


def sequences(corpus: Corpus, tokenizer: Tokenizer, steps: int = 1, **how: Any) -> list[Example]:
    data = corpus.data(tokenizer, **how)
    return [sequence for step in range(steps) for sequence in read(data.batch(step), tokenizer)]


def in_order(sequence: Example) -> np.ndarray:
    """The places of a sequence as the text has them."""
    return np.concatenate(sequence.segments[:: -1 if sequence.label == 1 else 1])


def is_run(places: np.ndarray) -> bool:
    return bool((np.diff(places) == 1).all())


@properties
@given(documents=any_documents(), shard=st.integers(1, 5), length=LENGTHS, step=STEPS)
def test_a_sequence_is_a_stretch_of_one_document_framed_and_in_two_adjacent_segments(
    tokenizer: Tokenizer, documents: Documents, shard: int, length: int, step: int
) -> None:
    corpus = corpus_of(documents, shard_documents=shard)
    for sequence in read(corpus.data(tokenizer, length=length).batch(step), tokenizer):
        places = in_order(sequence)
        assert is_run(places)  # labels restore the text, and "swapped" says what follows what
        assert len(set(corpus.document[places])) == 1
        assert sequence.size <= length
        assert (sequence.label is None) == (len(sequence.segments) == 1)


@properties
@given(
    documents=any_documents(longest=40),
    length=LENGTHS,
    step=STEPS,
    sentences=st.sampled_from(get_args(SentenceObjective)),
)
def test_sentences_stay_whole_unless_one_is_longer_than_a_row(
    tokenizer: Tokenizer, documents: Documents, length: int, step: int, sentences: SentenceObjective
) -> None:
    corpus = corpus_of(documents)
    for sequence in read(corpus.data(tokenizer, length=length, sentences=sentences).batch(step), tokenizer):
        for segment in sequence.segments:
            if not (corpus.opens[segment[0]] and corpus.opens[segment[-1] + 1]):
                begin, end = segment[0], segment[-1] + 1
                assert not corpus.opens[begin + 1 : end].any()  # one sentence, of which this is a part
                while not corpus.opens[begin]:
                    begin -= 1
                while not corpus.opens[end]:
                    end += 1
                assert end - begin > length - 3
                assert sequence.label is None


@pytest.mark.parametrize("sentences", ["order", "next"])
def test_the_ends_of_segments_do_not_tell_the_answer(
    corpus: Corpus, tokenizer: Tokenizer, sentences: SentenceObjective
) -> None:
    """A model that looks for the end of a sentence before [SEP] finds one there in every case."""
    labels = set()
    for sequence in sequences(corpus, tokenizer, 10, batch_size=64, sentences=sentences):
        if sequence.label is not None:
            labels.add(sequence.label)
            assert all(corpus.opens[segment[0]] for segment in sequence.segments)
            assert all(corpus.opens[segment[-1] + 1] for segment in sequence.segments)
    assert labels == {0, 1}


def test_half_of_the_pairs_are_swapped_wherever_they_stand_in_a_row(corpus: Corpus, tokenizer: Tokenizer) -> None:
    table = np.zeros((2, 2))
    data = corpus.data(tokenizer, batch_size=256, length=128)
    for step in range(8):
        batch = data.batch(step)
        first_in_row = np.isin(batch.cls_positions.numpy(), np.cumsum(batch.lengths.numpy())[::2])
        np.add.at(table, (first_in_row.astype(int), batch.swapped.numpy()), 1)
    assert chisquare(table.sum(axis=0)).pvalue > ALMOST_SURE
    assert chi2_contingency(table).pvalue > ALMOST_SURE


def test_the_length_of_the_first_segment_does_not_tell_the_order(corpus: Corpus, tokenizer: Tokenizer) -> None:
    found = sequences(corpus, tokenizer, 8, batch_size=256, length=128)
    pairs = [(len(s.segments[0]) > len(s.segments[1]), s.label) for s in found if s.label is not None]
    table = np.array([[sum(pair == (longer, label) for pair in pairs) for label in (0, 1)] for longer in (0, 1)])
    assert chi2_contingency(table).pvalue > ALMOST_SURE


def test_every_boundary_between_sentences_is_a_possible_cut(tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[5] * 6])
    found = sequences(corpus, tokenizer, 20, batch_size=64, short_share=0.0)
    cuts = [max(segment[0] for segment in sequence.segments) // 5 for sequence in found]
    assert chisquare(np.bincount(cuts, minlength=6)[1:]).pvalue > ALMOST_SURE


def test_documents_shorter_than_a_row_share_it_without_seeing_each_other(tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[4, 6]] * 200)
    batch = corpus.data(tokenizer, length=128).batch(0)
    found = list(read(batch, tokenizer))
    assert len(found) > 8 * 6  # several in a row, each with a length of its own, so that attention ends there
    assert {len(set(corpus.document[sequence.places])) for sequence in found} == {1}
    assert {sequence.size for sequence in found} <= {6, 8, 13}  # rows open at, and are filled up with, a sentence


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_about_the_share_asked_for_ends_early(tokenizer: Tokenizer, share: float) -> None:
    """In one long text nothing but the share makes a sequence short; what follows it fills the rest of the row."""
    corpus = corpus_of([[3] * 20_000])
    data = corpus.data(tokenizer, batch_size=500, length=128, short_share=share, sentences="none")
    sizes = [sequence.size for step in range(4) for sequence in read(data.batch(step), tokenizer)]
    rows, at = [], 0
    while at < len(sizes):  # a row ends where less than a sentence and a frame would fit
        room, rest = 128, at
        while rest < len(sizes) and sizes[rest] <= room and room >= 8:
            room, rest = room - sizes[rest], rest + 1
        rows.append(sizes[at])
        at = rest
    short = sum(size < 128 - 3 for size in rows)
    tolerance = 4 * (len(rows) * share * (1 - share)) ** 0.5 + 0.05 * share * len(rows)
    assert abs(short - share * len(rows)) < tolerance + 5  # a few rows reach the end of the text


def test_short_sequences_have_many_lengths(tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[3] * 20_000])
    sizes = {s.size for s in sequences(corpus, tokenizer, 4, batch_size=100, length=128, short_share=1.0)}
    assert len(sizes) > 30


def test_next_sentence_takes_the_second_segment_from_another_document_half_of_the_time(
    corpus: Corpus, tokenizer: Tokenizer
) -> None:
    found = sequences(corpus, tokenizer, 10, batch_size=128, length=128, sentences="next")
    asked = [sequence for sequence in found if sequence.label is not None]
    for sequence in asked:
        first, second = sequence.segments
        assert is_run(first)
        assert is_run(second)
        stranger = corpus.document[first[0]] != corpus.document[second[0]]
        assert stranger == (sequence.label == 1)
        assert stranger or second[0] == first[-1] + 1
        assert len(set(corpus.document[second])) == 1
        assert corpus.opens[second[0]]
    assert chisquare(np.bincount([sequence.label or 0 for sequence in asked], minlength=2)).pvalue > ALMOST_SURE
    assert len(asked) > 0.5 * len(found)


@properties
@given(documents=any_documents(longest=60), shard=st.integers(1, 5), length=LENGTHS, step=STEPS)
def test_next_sentence_never_calls_a_neighbour_a_stranger(
    tokenizer: Tokenizer, documents: Documents, shard: int, length: int, step: int
) -> None:
    corpus = corpus_of(documents, shard_documents=shard)
    for sequence in read(corpus.data(tokenizer, length=length, sentences="next").batch(step), tokenizer):
        if sequence.label is not None:
            first, second = sequence.segments
            assert (corpus.document[first[0]] != corpus.document[second[0]]) == (sequence.label == 1)
            assert corpus.opens[second[0]]
            assert sequence.size <= length


def test_the_length_of_a_sequence_does_not_tell_strangers(tokenizer: Tokenizer) -> None:
    corpus = corpus_of(prose(200, sentences=100))
    found = sequences(corpus, tokenizer, 6, batch_size=256, length=128, sentences="next")
    sizes = [np.array([s.size for s in found if s.label == label]) for label in (0, 1)]
    best = max(((sizes[0] >= size).mean() + (sizes[1] < size).mean()) / 2 for size in range(129))
    assert best < 0.56


def test_a_stranger_never_opens_within_a_sentence(tokenizer: Tokenizer) -> None:
    """The last sentence of the text is longer than a row, so that rows open in the middle of it."""
    corpus = corpus_of([[5] * 60, [200]])
    found = sequences(corpus, tokenizer, 20, batch_size=64, sentences="next")
    assert any(not corpus.opens[sequence.segments[0][0]] for sequence in found)
    assert all(corpus.opens[sequence.segments[-1][0]] for sequence in found if sequence.label is not None)


def test_a_single_document_has_no_strangers(tokenizer: Tokenizer) -> None:
    assert all(s.label is None for s in sequences(corpus_of([[5] * 100]), tokenizer, sentences="next"))


def test_without_a_question_there_is_one_segment_and_no_answer(corpus: Corpus, tokenizer: Tokenizer) -> None:
    batch = corpus.data(tokenizer, batch_size=64, sentences="none").batch(0)
    assert not batch.token_type_ids.any()
    assert len(batch.cls_positions) == len(batch.swapped) == 0
    assert all(len(sequence.segments) == 1 and is_run(sequence.places) for sequence in read(batch, tokenizer))


def test_a_document_of_one_sentence_has_no_order_to_tell(tokenizer: Tokenizer) -> None:
    batch = corpus_of([[20]] * 30).data(tokenizer).batch(0)
    assert len(batch.cls_positions) == 0
    assert not batch.token_type_ids.any()


def test_a_sentence_longer_than_a_row_is_read_in_parts(tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[1000]])
    data = corpus.data(tokenizer, batch_size=16)
    found = [sequence for step in range(8) for sequence in read(data.batch(step), tokenizer)]
    assert {len(sequence.segments) for sequence in found} == {1}
    assert len(np.unique(np.concatenate([sequence.places for sequence in found]))) > 0.98 * 1000


def hidden_words(batch: PretrainingBatch, corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """The words of hidden tokens, and of those that stayed, by sequence."""
    ids = original(batch).numpy().astype(np.int64) - FIRST
    lengths = batch.lengths.numpy()[: -1 if batch.padding else None]
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    hidden = np.zeros(len(ids), dtype=bool)
    hidden[batch.masked_positions.numpy()] = True
    code = np.where(ids >= 0, sequence * corpus.size + corpus.word[np.maximum(ids, 0)], -1)
    return code[hidden], code[~hidden & (ids >= 0)]


def test_words_of_several_characters_are_hidden_whole(tokenizer: Tokenizer) -> None:
    """Chinese: every character is a token, and only the bits say where words begin."""
    corpus = corpus_of(prose(200), word_tokens=3)
    for step in range(5):
        hidden, kept = hidden_words(corpus.data(tokenizer, batch_size=32, length=128).batch(step), corpus)
        assert len(np.unique(hidden)) < 0.7 * len(hidden)  # words of several tokens are among them
        assert not np.intersect1d(hidden, kept).size


def test_a_second_segment_may_open_within_what_a_tokenizer_calls_a_word(tokenizer: Tokenizer) -> None:
    """A leading continuation piece of the second segment does not join the last word of the first."""
    corpus = corpus_of([[4, 4]] * 500)
    for bits in corpus.stream.bits:
        bits[bits & SENTENCE_START != 0] &= ~np.uint8(WORD_START)
    together = 0
    batch = corpus.data(tokenizer, batch_size=200, length=128).batch(0)
    hidden = set((batch.labels.numpy() - FIRST).tolist())
    for sequence in read(batch, tokenizer):
        if len(sequence.segments) == 2:
            end, begin = sequence.segments[0][-1], sequence.segments[1][0]
            together += (end in hidden) != (begin in hidden)
    assert together > 0
