"""Texts of any length as framed sequences."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.windows import Window, shifted_window, split_into_windows
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE

ids = st.integers(10, 199)
texts = st.lists(ids, max_size=70)


def parts_of(window: Window, tokenizer: Tokenizer) -> list[list[int]]:
    """The texts between the frame, which is checked on the way."""
    assert window.ids[0] == tokenizer.cls_id
    assert window.ids[-1] == tokenizer.sep_id
    parts: list[list[int]] = [[]]
    for token in window.ids[1:-1]:
        if token == tokenizer.sep_id:
            parts.append([])
        else:
            parts[-1].append(token)
    types = [0, *(number for number, part in enumerate(parts) for _ in range(len(part) + 1))]
    assert window.type_ids == types
    return parts


@given(
    first=texts,
    second=texts | st.none(),
    max_length=st.integers(8, 40),
    over=st.sampled_from([None, 0, 1]),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 0.9]),
)
def test_windows_together_show_one_text_in_order_and_each_the_other(
    tokenizer: Tokenizer, first: list[int], second: list[int] | None, max_length: int, over: int | None, overlap: float
) -> None:
    over = 0 if second is None else over
    windows = split_into_windows(first, second, tokenizer, max_length, split_text=over, overlap=overlap)
    shown = over if over is not None else int(len(second or []) > len(first))
    text = (first, second or [])[shown]
    for window in windows:
        parts = parts_of(window, tokenizer)
        assert len(window.ids) <= max_length
        assert len(parts) == (1 if second is None else 2)
        assert parts[shown] == text[window.start : window.end]
        assert window.ids[window.column : window.column + window.end - window.start] == text[window.start : window.end]
    assert (windows[0].start, windows[-1].end) == (0, len(text))
    for before, after in pairwise(windows):
        assert before.start < after.start <= before.end < after.end
    if second is not None:
        other = (first, second)[1 - shown]
        partners = [parts_of(window, tokenizer)[1 - shown] for window in windows]
        assert all(partner == partners[0] for partner in partners)
        assert partners[0] == other[: len(partners[0])]
        if len(first) + len(second) + 3 <= max_length:
            assert partners[0] == other
            assert len(windows) == 1


@given(length=st.integers(0, 300), max_length=st.integers(8, 60), overlap=st.floats(0, 0.95))
def test_neighbours_share_the_part_that_is_asked_for(
    tokenizer: Tokenizer, length: int, max_length: int, overlap: float
) -> None:
    room = max_length - 2
    windows = split_into_windows(range(length), None, tokenizer, max_length, overlap=overlap)
    shared = [before.end - after.start for before, after in pairwise(windows)]
    wanted = min(room - 1, round(room * overlap))
    assert all(abs(found - wanted) <= 1 for found in shared[:-1])
    assert all(found >= wanted - 1 for found in shared)  # the last ends with the text, so it may share more


@given(start=st.integers(0, 100), overlap=st.sampled_from([0.0, 0.5]))
def test_a_window_can_begin_anywhere(tokenizer: Tokenizer, start: int, overlap: float) -> None:
    question, context = [7, 8, 9], list(range(10, 120))
    windows = split_into_windows(question, context, tokenizer, 16, split_text=1, overlap=overlap)
    found = shifted_window(windows, start)
    assert parts_of(found, tokenizer) == [question, context[start : start + 10]]
    assert (found.start, found.end, found.column) == (start, start + 10, windows[0].column)


def test_without_overlap_no_token_stands_in_two_windows_but_in_the_last(tokenizer: Tokenizer) -> None:
    windows = split_into_windows(range(25), None, tokenizer, 12)
    assert [(window.start, window.end) for window in windows] == [(0, 10), (10, 20), (15, 25)]


@given(other=st.integers(0, 100), length=st.integers(0, 100), max_length=st.integers(9, 64), over=st.integers(0, 1))
def test_the_other_text_leaves_half_of_the_window(
    tokenizer: Tokenizer, other: int, length: int, max_length: int, over: int
) -> None:
    pair = [[11] * other, [11] * other]
    pair[over] = [12] * length
    window = split_into_windows(pair[0], pair[1], tokenizer, max_length, split_text=over)[0]
    room = max_length - 3
    assert window.end - window.start >= min(length, room - room // 2)
    partner = window.ids.count(11)
    assert partner == min(other, max(room // 2, room - length))  # and it is not cut more than that


def test_the_longer_text_is_the_one_that_is_windowed(tokenizer: Tokenizer) -> None:
    short, long = [50] * 4, list(range(60, 100))
    for first, second, column in ((short, long, 6), (long, short, 1)):
        windows = split_into_windows(first, second, tokenizer, 20)
        assert len(windows) > 1
        assert {window.column for window in windows} == {column}
        assert all(window.ids.count(50) == 4 for window in windows)


@pytest.mark.parametrize("partner", [None, PROSE[1][:30], ""])
@pytest.mark.parametrize("text", [PROSE[0], "rain", ""])
def test_what_is_short_is_one_window_equal_to_what_the_tokenizer_makes(
    tokenizer: Tokenizer, text: str, partner: str | None
) -> None:
    expected = tokenizer.encode([text], None if partner is None else [partner])[0]
    first, second = ([] if t is None else tokenizer.encode_ids([t])[0] for t in (text, partner))
    for max_length in (len(expected), len(expected) + 30):
        (window,) = split_into_windows(first, None if partner is None else second, tokenizer, max_length)
        assert (window.ids, window.type_ids) == (expected.ids, expected.type_ids)
