"""Texts of any length as sequences that a model can read: framed, and where they are long, in overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litebert.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Window:
    """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, with one of the texts whole or a stretch of it."""

    ids: list[int]
    type_ids: list[int]
    """0 for the first text and its frame, 1 for the second."""
    column: int
    """Where the text of which this is a window begins."""
    start: int
    """The token of that text that stands there."""
    end: int
    """The first token of it that is no longer here."""
    total: int = 0
    """How many tokens it has."""


def split_into_windows(
    first: Sequence[int],
    second: Sequence[int] | None,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    over: int | None = None,
    overlap: float = 0.0,
    most: int | None = None,
) -> list[Window]:
    """Sequences of at most `max_length` tokens that together show all of one text: number `over`, or the longer.

    The other text stands in every window, cut so that half of the window is left. Neighbours share the given part.
    Of more than `most` windows, evenly spread ones speak for the rest.
    """
    texts = [list(first)] if second is None else [list(first), list(second)]
    if over is None:
        over = max(range(len(texts)), key=lambda number: len(texts[number]))
    room = max_length - 1 - len(texts)
    for number, text in enumerate(texts):
        if number != over and sum(map(len, texts)) > room:
            del text[max(room // 2, room - len(texts[over])) :]
            room -= len(text)
    stretches = _spans(len(texts[over]), room, overlap)
    if most is not None and len(stretches) > most:
        stretches = [stretches[round(i * (len(stretches) - 1) / (most - 1))] for i in range(most)]
    return [_build_window(texts, over, start, end, tokenizer) for start, end in stretches]


def shifted_window(windows: Sequence[Window], start: int) -> Window:
    """One more of these windows, which together show a text that is too long for one, from token `start` of it on."""
    model = windows[0]
    size = model.end - model.start
    tokens = {
        window.start + place: token
        for window in windows
        for place, token in enumerate(window.ids[window.column : window.column + size])
    }
    ids = list(model.ids)
    ids[model.column : model.column + size] = [tokens[number] for number in range(start, start + size)]
    return replace(model, ids=ids, start=start, end=start + size)


def _spans(length: int, room: int, overlap: float) -> list[tuple[int, int]]:
    """Stretches of `room` tokens that cover `length`; the last one ends where the text ends."""
    if length <= room:
        return [(0, length)]
    step = max(1, round(room * (1 - overlap)))
    starts = [*range(0, length - room, step), length - room]
    return [(start, start + room) for start in starts]


def _build_window(texts: Sequence[list[int]], over: int, start: int, end: int, tokenizer: Tokenizer) -> Window:
    ids, type_ids, column = [tokenizer.cls_id], [0], 1
    for number, text in enumerate(texts):
        if number == over:
            column = len(ids)
        shown = [*(text[start:end] if number == over else text), tokenizer.sep_id]
        ids += shown
        type_ids += [number] * len(shown)
    return Window(ids, type_ids, column, start, end, len(texts[over]))
