"""A text as parts that a model can translate: its sentences, or stretches of a long one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from litebert.data.sentences import sentence_splitter
from litebert.tokenizer import Tokenizer

MAX_SAMPLED_TEXTS = 1000  # texts to learn from, of which it is asked whether they are single sentences
POSSIBLE_BOUNDARY = re.compile(
    r"[.!?。！？…][^\w.!?。！？…]*\w|\n"
)  # there may be a second sentence; found in linear time
LANGUAGE = "en"  # whose abbreviations end no sentence; stops of all scripts are known anyway


def split_into_chunks(text: str, tokenizer: Tokenizer, longest: int, apart: bool = False) -> list[str]:
    """A text as sentences, none with more tokens than `longest`: each `apart`, or short neighbours together."""
    sentences: list[tuple[str, int]] = []
    for sentence in sentence_splitter("split", LANGUAGE)(text):
        if sentence.strip():
            (encoding,) = tokenizer.encode([sentence])
            sentences += _split_long_sentence(sentence, encoding.offsets, longest)
    parts: list[tuple[str, int]] = []
    for sentence, tokens in sentences:
        if parts and not apart and parts[-1][1] + tokens <= longest - 2:
            parts[-1] = (f"{parts[-1][0].rstrip()} {sentence.lstrip()}", parts[-1][1] + tokens)
        else:
            parts.append((sentence, tokens))
    return [part.strip() for part, _ in parts]


def are_single_sentences(texts: Sequence[str]) -> bool:
    """Are most of these texts, or of some of them, one sentence each?"""
    some = texts[:: max(1, len(texts) // MAX_SAMPLED_TEXTS)]
    split = sentence_splitter("split", LANGUAGE)
    single = sum(not POSSIBLE_BOUNDARY.search(text) or len(split(text)) == 1 for text in some)
    return single > len(some) / 2


def _split_long_sentence(sentence: str, offsets: Sequence[tuple[int, int]], longest: int) -> list[tuple[str, int]]:
    """A sentence and its tokens without the frame; one that is too long in stretches that end at a word's end."""
    inner, room = list(offsets[1:-1]), longest - 4  # a stretch read alone may need a token or two more
    found, start = [], 0
    while len(inner) - start > longest - 2:
        end = start + max(1, room)
        while end > start + 1 and not sentence[inner[end][0] - 1 : inner[end][0]].isspace():
            end -= 1
        end = end if end > start + 1 else start + max(1, room)
        found.append((sentence[inner[start][0] : inner[end][0]], end - start))
        start = end
    if start < len(inner):
        found.append((sentence[inner[start][0] if start else 0 :], len(inner) - start))
    return found
