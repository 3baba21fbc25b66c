"""Tables of examples, in every format and with every common flaw."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from litebert.data.labelled import read_rows
from litebert.errors import DataError
from tests.conftest import peer

CSV = "text,label\nfirst,a\nsecond,b\n"
EXPECTED = [{"text": "first", "label": "a"}, {"text": "second", "label": "b"}]


def zstd(content: bytes) -> bytes:
    compressed: bytes = peer("pyarrow").compress(content, codec="zstd", asbytes=True)
    return compressed


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def values_of(path: Path) -> list[dict[str, object]]:
    return [row.values for row in read_rows(path)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", CSV),
        ("t.tsv", CSV.replace(",", "\t")),
        ("t.jsonl", '{"text": "first", "label": "a"}\n{"text": "second", "label": "b"}\n'),
    ],
)
def test_every_text_format_gives_the_same_rows(tmp_path: Path, name: str, content: str) -> None:
    assert values_of(write(tmp_path / name, content)) == EXPECTED


def test_parquet_gives_the_same_rows(tmp_path: Path) -> None:
    arrow, parquet = peer("pyarrow"), peer("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(EXPECTED), tmp_path / "t.parquet")
    assert values_of(tmp_path / "t.parquet") == EXPECTED


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_tables_are_read_as_they_are(tmp_path: Path, suffix: str) -> None:
    assert values_of(write(tmp_path / f"t.csv{suffix}", COMPRESSORS[suffix](CSV.encode()))) == EXPECTED


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_compressed_table_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    rows = "".join(f"example {number},{number % 7}\n" for number in range(60_000))
    whole = COMPRESSORS[suffix](("text,label\n" + rows).encode())
    path = write(tmp_path / f"t.csv{suffix}", whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"t\.csv\{suffix}: cannot be read .*pack it again"):
        read_rows(path)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match=rf"t\.csv\{suffix}: cannot be read"):
        read_rows(write(tmp_path / f"t.csv{suffix}", CSV))


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path: Path) -> None:
    assert values_of(write(tmp_path / "t.csv", "\ufeff" + CSV)) == EXPECTED


def test_windows_line_ends_are_not_part_of_the_values(tmp_path: Path) -> None:
    assert values_of(write(tmp_path / "t.csv", CSV.replace("\n", "\r\n"))) == EXPECTED


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.csv", "\ntext,label\n\nfirst,a\n , \nsecond,b\n\n"))
    assert [row.values for row in rows] == EXPECTED
    assert [row.line for row in rows] == [4, 6]


def test_spaces_around_column_names_are_dropped(tmp_path: Path) -> None:
    assert values_of(write(tmp_path / "t.csv", "text , label\nfirst,a\n")) == EXPECTED[:1]


def test_a_quoted_field_may_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.csv", 'text,label\n"one, ""two""\nthree",a\nlast,b\n'))
    assert [row.values["text"] for row in rows] == ['one, "two"\nthree', "last"]


def test_a_row_knows_the_line_on_which_it_began(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.csv", 'text,label\n"one\ntwo\nthree",a\nlast,b\n'))
    assert [row.line for row in rows] == [2, 5]
    assert rows[1].where == f"{tmp_path / 't.csv'}, line 5"


def test_quotes_in_a_tsv_are_ordinary_characters(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.tsv", 'text\tlabel\n"half open\ta\n5" disk\tb\n'))
    assert [row.values["text"] for row in rows] == ['"half open', '5" disk']


def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'text,label\nfirst,a\n"second,b\nthird,a\nfourth,b\n')
    with pytest.raises(DataError, match=r"t\.csv, line 3: .*check the quotes"):
        read_rows(path)


def test_a_ragged_row_is_reported_with_its_line_and_the_header(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv, line 3: 3 fields where the header has 2 \(text, label\)"):
        read_rows(write(tmp_path / "t.csv", "text,label\nfirst,a\nsecond,b,c\n"))


def test_a_repeated_column_is_reported_on_the_header_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv, line 2: column 'text' appears twice"):
        read_rows(write(tmp_path / "t.csv", "\ntext,label,text\nfirst,a,b\n"))


def test_a_line_separator_inside_a_json_string_is_text(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.jsonl", '{"text": "one\u2028two\x85three"}\r\n\n{"text": "next"}'))
    assert [(row.values["text"], row.line) for row in rows] == [("one\u2028two\x85three", 1), ("next", 3)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [('{"text":', "not JSON"), ("[1, 2]", r"'\[1, 2\]' is not a JSON object"), ('"text"', "is not a JSON object")],
)
def test_a_broken_json_line_is_reported_with_its_number(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(DataError, match=rf"t\.jsonl, line 2: .*{complaint}"):
        read_rows(write(tmp_path / "t.jsonl", f'{{"text": "a"}}\n{line}\n'))


def test_a_byte_that_is_not_utf8_is_reported_with_its_line_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv, line 3: byte 0xe9 is not UTF-8; .*iconv"):
        read_rows(write(tmp_path / "t.csv", "text,label\na,b\ncafé,b\n".encode("latin-1")))


@pytest.mark.parametrize("content", ["", "\n\n", "text,label\n"])
def test_a_table_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match=r"t\.csv: holds no examples"):
        read_rows(write(tmp_path / "t.csv", content))


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.xlsx: unknown format '\.xlsx'; .*\*\.csv.*\*\.parquet"):
        read_rows(write(tmp_path / "t.xlsx", CSV))
