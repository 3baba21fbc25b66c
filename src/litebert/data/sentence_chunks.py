"""Splitting a text into chunks for translation: sentences, or pieces of long ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from litebert.data.sentences import sentence_splitter
from litebert.tokenizer import Tokenizer

MAX_SAMPLED_TEXTS = 1000  # training texts checked for being single sentences
POSSIBLE_BOUNDARY = re.compile(
    r"[.!?。！？…][^\w.!?。！？…]*\w|\n"
)  # followed by a possible second sentence; linear time
LANGUAGE = "en"  # for abbreviations; full stops of all scripts are known anyway


def split_into_chunks(text: str, tokenizer: Tokenizer, max_tokens: int, one_sentence: bool = False) -> list[str]:
    """Split a text into chunks of at most `max_tokens`; short neighbours share one unless `one_sentence`."""
    sentences: list[tuple[str, int]] = []
    for sentence in sentence_splitter("split", LANGUAGE)(text):
        if sentence.strip():
            (encoding,) = tokenizer.encode([sentence])
            sentences += _split_long_sentence(sentence, encoding.offsets, max_tokens)
    chunks: list[tuple[str, int]] = []
    for sentence, tokens in sentences:
        if chunks and not one_sentence and chunks[-1][1] + tokens <= max_tokens - 2:
            chunks[-1] = (f"{chunks[-1][0].rstrip()} {sentence.lstrip()}", chunks[-1][1] + tokens)
        else:
            chunks.append((sentence, tokens))
    return [chunk.strip() for chunk, _ in chunks]


def are_single_sentences(texts: Sequence[str]) -> bool:
    """Is more than half of these texts, or of a sample, a single sentence?"""
    sample = texts[:: max(1, len(texts) // MAX_SAMPLED_TEXTS)]
    split = sentence_splitter("split", LANGUAGE)
    single = sum(not POSSIBLE_BOUNDARY.search(text) or len(split(text)) == 1 for text in sample)
    return single > len(sample) / 2


def _split_long_sentence(sentence: str, offsets: Sequence[tuple[int, int]], max_tokens: int) -> list[tuple[str, int]]:
    """A sentence with its number of tokens; one that is too long is split between words."""
    inner, capacity = list(offsets[1:-1]), max_tokens - 4  # a piece by itself may need a token or two more
    pieces, start = [], 0
    while len(inner) - start > max_tokens - 2:
        end = start + max(1, capacity)
        while end > start + 1 and not sentence[inner[end][0] - 1 : inner[end][0]].isspace():
            end -= 1
        end = end if end > start + 1 else start + max(1, capacity)
        pieces.append((sentence[inner[start][0] : inner[end][0]], end - start))
        start = end
    if start < len(inner):
        pieces.append((sentence[inner[start][0] if start else 0 :], len(inner) - start))
    return pieces
