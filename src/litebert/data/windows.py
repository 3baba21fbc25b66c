"""Model inputs for texts of any length: long texts are split into overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litebert.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Window:
    """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, where one text may be a part of a longer one."""

    ids: list[int]
    type_ids: list[int]
    """0 for the first text with its special tokens, 1 for the second."""
    column: int
    """Column where the split text begins."""
    start: int
    """Index of the first token of that text in the window."""
    end: int
    """Index after its last token in the window."""
    total: int = 0
    """Number of tokens of the whole text."""


def split_into_windows(
    first: Sequence[int],
    second: Sequence[int] | None,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    split_text: int | None = None,
    overlap: float = 0.0,
    max_windows: int | None = None,
) -> list[Window]:
    """Windows of at most `max_length` tokens that together cover one text: number `split_text`, or the longer one.

    The other text is in every window, truncated to leave half of it. `overlap` is the fraction that neighbours share.
    Of more than `max_windows` windows, evenly spaced ones are taken.
    """
    texts = [list(first)] if second is None else [list(first), list(second)]
    if split_text is None:
        split_text = max(range(len(texts)), key=lambda number: len(texts[number]))
    capacity = max_length - 1 - len(texts)
    for number, text in enumerate(texts):
        if number != split_text and sum(map(len, texts)) > capacity:
            del text[max(capacity // 2, capacity - len(texts[split_text])) :]
            capacity -= len(text)
    spans = _spans(len(texts[split_text]), capacity, overlap)
    if max_windows is not None and len(spans) > max_windows:
        spans = [spans[round(i * (len(spans) - 1) / (max_windows - 1))] for i in range(max_windows)]
    return [_build_window(texts, split_text, start, end, tokenizer) for start, end in spans]


def shifted_window(windows: Sequence[Window], start: int) -> Window:
    """Another window of the same text, starting at its token `start`."""
    template = windows[0]
    size = template.end - template.start
    tokens = {
        window.start + place: token
        for window in windows
        for place, token in enumerate(window.ids[window.column : window.column + size])
    }
    ids = list(template.ids)
    ids[template.column : template.column + size] = [tokens[number] for number in range(start, start + size)]
    return replace(template, ids=ids, start=start, end=start + size)


def _spans(length: int, capacity: int, overlap: float) -> list[tuple[int, int]]:
    """Spans of `capacity` tokens that cover `length`; the last one ends with the text."""
    if length <= capacity:
        return [(0, length)]
    step = max(1, round(capacity * (1 - overlap)))
    starts = [*range(0, length - capacity, step), length - capacity]
    return [(start, start + capacity) for start in starts]


def _build_window(texts: Sequence[list[int]], split_text: int, start: int, end: int, tokenizer: Tokenizer) -> Window:
    ids, type_ids, column = [tokenizer.cls_id], [0], 1
    for number, text in enumerate(texts):
        if number == split_text:
            column = len(ids)
        segment = [*(text[start:end] if number == split_text else text), tokenizer.sep_id]
        ids += segment
        type_ids += [number] * len(segment)
    return Window(ids, type_ids, column, start, end, len(texts[split_text]))
