"""A corpus that counts: every token has its own id, which tells its place in the text. And how to read batches back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from litebert.data.pretraining import PretrainingBatch, PretrainingData, TrainingStage
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, WORD_START, TokenStream
from litebert.tokenizer import Tokenizer

FIRST = 1000  # the id of the first token; all real ids of the tests' tokenizer lie below
Documents = Sequence[Sequence[int]]
"""The lengths of the sentences of each document."""


@dataclass(frozen=True)
class Corpus:
    """Documents laid end to end, and what is known about each place."""

    stream: TokenStream
    document: np.ndarray
    """(N,) the number of the document."""
    opens: np.ndarray
    """(N + 1,) does a sentence begin here? The end of the text counts as one."""
    word: np.ndarray
    """(N,) the number of the word."""

    @property
    def size(self) -> int:
        return len(self.document)

    def data(self, tokenizer: Tokenizer, batch_size: int = 8, length: int = 64, **how: Any) -> PretrainingData:
        stages = how.pop("stages", [TrainingStage(0, batch_size, length)])
        return PretrainingData(self.stream, tokenizer, stages, **({"seed": 0} | how))


def corpus_of(documents: Documents, *, shard_documents: int = 10**9, word_tokens: int = 1) -> Corpus:
    """Shards of so many documents each; a word begins with every sentence and `word_tokens` tokens after another."""
    bits: list[np.ndarray] = []
    for sentences in documents:
        sizes = np.array(sentences)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        own = np.where(within == 0, SENTENCE_START, 0) | np.where(within % word_tokens == 0, WORD_START, 0)
        own[0] |= DOCUMENT_START
        bits.append(own.astype(np.uint8))
    groups = [bits[at : at + shard_documents] for at in range(0, len(bits), shard_documents)]
    shards = [np.concatenate(group) for group in groups]
    ends = np.cumsum([len(shard) for shard in shards])
    ids = [np.arange(end - len(shard), end, dtype=np.uint32) + FIRST for end, shard in zip(ends, shards, strict=True)]
    whole = np.concatenate(shards)
    return Corpus(
        TokenStream(ids, shards),
        np.cumsum(whole & DOCUMENT_START != 0) - 1,
        np.append(whole & SENTENCE_START != 0, True),
        np.cumsum(whole & WORD_START != 0) - 1,
    )


def prose(documents: int, seed: int = 0, sentences: int = 12, longest: int = 30) -> Documents:
    """Documents of up to so many sentences of 3 tokens to `longest`."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, longest + 1, rng.integers(1, sentences + 1)).tolist() for _ in range(documents)]


def any_documents(longest: int = 30) -> st.SearchStrategy[Documents]:
    return st.lists(st.lists(st.integers(1, longest), min_size=1, max_size=8), min_size=1, max_size=12).filter(
        lambda documents: sum(map(sum, documents)) >= 2
    )


@dataclass(frozen=True)
class Example:
    """One sequence of a batch: the places of its tokens in the text, and the answer to its question."""

    segments: list[np.ndarray]
    label: int | None

    @property
    def places(self) -> np.ndarray:
        return np.concatenate(self.segments)

    @property
    def size(self) -> int:
        return len(self.places) + len(self.segments) + 1


def original(batch: PretrainingBatch) -> torch.Tensor:
    """The ids before anything was hidden, without the padding at the end."""
    ids = batch.input_ids.clone()
    ids[batch.masked_positions] = batch.labels
    return ids[: len(ids) - batch.padding]


def read(batch: PretrainingBatch, tokenizer: Tokenizer) -> Iterator[Example]:
    """The sequences of a batch, after a look at their frame."""
    ids = original(batch).numpy()
    lengths = batch.lengths.tolist()[: -1 if batch.padding else None]
    labels = dict(zip(batch.cls_positions.tolist(), batch.swapped.tolist(), strict=True))
    assert sum(lengths) == len(ids)
    at = 0
    for length in lengths:
        own, types = ids[at : at + length], batch.token_type_ids[at : at + length].tolist()
        walls = np.flatnonzero(own == tokenizer.sep_id)
        assert own[0] == tokenizer.cls_id
        assert walls[-1] == length - 1
        assert len(walls) in (1, 2)
        segments = [part[part >= FIRST].astype(np.int64) - FIRST for part in np.split(own, walls)[:-1]]
        assert [len(part) for part in segments] == [walls[0] - 1, *np.diff(walls) - 1]  # nothing but text between
        assert types == [0] * (walls[0] + 1) + [1] * (length - walls[0] - 1)
        yield Example(segments, labels.pop(at, None))
        at += length
    assert not labels


def same(one: PretrainingBatch, other: PretrainingBatch) -> bool:
    return all(
        torch.equal(value, vars(other)[name]) if isinstance(value, torch.Tensor) else value == vars(other)[name]
        for name, value in vars(one).items()
    )
