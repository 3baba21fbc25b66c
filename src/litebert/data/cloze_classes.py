"""Classes out of raw text, where nobody has labelled any: which word is hidden in this sentence?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from litebert.errors import require_extra

MAX_LINES = 200_000
MAX_EXAMPLES_PER_WORD = 100
"""Of a word; of more, evenly spread ones."""
MIN_LINES_PER_WORD = 5
MAX_LINE_FRACTION = 0.05
"""A word in fewer lines makes no class; one in more than this share of them says little about them."""
CONTEXT_CHARACTERS = 200
"""Characters on each side of the word that are kept."""

_LETTERS = re.compile(r"[^\W\d_]{3,}")
_HAN = re.compile(r"[㐀-鿿]{2,}")


def cloze_examples(lines: Iterable[str], mask: str) -> list[tuple[str, str]]:
    """Sentences without one of their words, which `mask` stands for, and that word."""
    texts = [line.strip() for line in islice(lines, MAX_LINES) if line.strip()]
    places: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        for word in dict.fromkeys(_words(text)):
            places.setdefault(word, []).append(number)
    found = []
    for word, numbers in sorted(places.items()):
        if MIN_LINES_PER_WORD <= len(numbers) <= MAX_LINE_FRACTION * len(texts):
            step = max(1.0, len(numbers) / MAX_EXAMPLES_PER_WORD)
            spread = [numbers[int(i * step)] for i in range(min(len(numbers), MAX_EXAMPLES_PER_WORD))]
            without = [_mask_word(word, texts[number], mask) for number in spread]
            found += [(text, word) for text in without if text is not None]
    return found


def _words(text: str) -> Iterator[str]:
    if _HAN.search(text):
        yield from filter(_HAN.fullmatch, require_extra("rjieba", "train").cut(text))
    else:
        yield from (match[0].lower() for match in _LETTERS.finditer(text))


def _mask_word(word: str, text: str, mask: str) -> str | None:
    """All its occurrences are hidden: one that stays would tell. None where its small letters are not found again."""
    edge = "" if _HAN.fullmatch(word) else r"(?![^\W\d_])"
    hidden = re.compile(edge.replace("?!", "?<!") + re.escape(word) + edge, re.IGNORECASE)
    first = hidden.search(text)
    return (
        None
        if first is None
        else hidden.sub(mask, text[max(0, first.start() - CONTEXT_CHARACTERS) : first.end() + CONTEXT_CHARACTERS])
    )
