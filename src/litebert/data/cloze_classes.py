"""Classification examples from unlabelled text: which word was masked in this sentence?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from litebert.errors import require_extra

MAX_LINES = 200_000
MAX_EXAMPLES_PER_WORD = 100
"""Of more, evenly spaced ones are taken."""
MIN_LINES_PER_WORD = 5
MAX_LINE_FRACTION = 0.05
"""A word in a larger fraction of the lines is too frequent to say much about them."""
CONTEXT_CHARACTERS = 200
"""Characters kept on each side of the masked word."""

_LETTERS = re.compile(r"[^\W\d_]{3,}")
_HAN = re.compile(r"[㐀-鿿]{2,}")


def cloze_examples(lines: Iterable[str], mask: str) -> list[tuple[str, str]]:
    """Pairs of a sentence with a word replaced by `mask`, and that word as its class."""
    texts = [line.strip() for line in islice(lines, MAX_LINES) if line.strip()]
    lines_of_word: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        for word in dict.fromkeys(_words(text)):
            lines_of_word.setdefault(word, []).append(number)
    examples = []
    for word, numbers in sorted(lines_of_word.items()):
        if MIN_LINES_PER_WORD <= len(numbers) <= MAX_LINE_FRACTION * len(texts):
            step = max(1.0, len(numbers) / MAX_EXAMPLES_PER_WORD)
            sampled = [numbers[int(i * step)] for i in range(min(len(numbers), MAX_EXAMPLES_PER_WORD))]
            masked = [_mask_word(word, texts[number], mask) for number in sampled]
            examples += [(text, word) for text in masked if text is not None]
    return examples


def _words(text: str) -> Iterator[str]:
    if _HAN.search(text):
        yield from filter(_HAN.fullmatch, require_extra("rjieba", "train").cut(text))
    else:
        yield from (match[0].lower() for match in _LETTERS.finditer(text))


def _mask_word(word: str, text: str, mask: str) -> str | None:
    """Replace all occurrences of a word; None where case folding changed its letters, so that it is not found."""
    edge = "" if _HAN.fullmatch(word) else r"(?![^\W\d_])"
    pattern = re.compile(edge.replace("?!", "?<!") + re.escape(word) + edge, re.IGNORECASE)
    first = pattern.search(text)
    return (
        None
        if first is None
        else pattern.sub(mask, text[max(0, first.start() - CONTEXT_CHARACTERS) : first.end() + CONTEXT_CHARACTERS])
    )
