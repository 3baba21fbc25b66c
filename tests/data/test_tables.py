"""Tables of examples, in every format and with every common flaw."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from litebert.data.tables import TableOptions, read_rows
from litebert.errors import ConfigError, DataError
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
        ("t.txt", CSV.replace(",", "\t")),
        ("t.jsonl", '{"text": "first", "label": "a"}\n{"text": "second", "label": "b"}\n'),
        ("t.json", '[{"text": "first", "label": "a"},\n {"text": "second", "label": "b"}]'),
        ("t.json", '{"text": "first", "label": "a"} {"text":\n "second",\n "label": "b"}\n'),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_text_format_gives_the_same_rows_with_marks_and_line_ends_of_windows(
    tmp_path: Path, name: str, content: str, mark: str, end: str
) -> None:
    assert values_of(write(tmp_path / name, mark + content.replace("\n", end))) == EXPECTED


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
    with pytest.raises(DataError, match=rf"t\.csv\{suffix}: cannot be read .*compress it again"):
        read_rows(path)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match=rf"t\.csv\{suffix}: cannot be read"):
        read_rows(write(tmp_path / f"t.csv{suffix}", CSV))


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.csv", "\ntext,label\n\nfirst,a\n , \nsecond,b\n\n"))
    assert [row.values for row in rows] == EXPECTED
    assert [row.line for row in rows] == [4, 6]


@pytest.mark.parametrize("keep", [False, True])
def test_rows_of_empty_fields_are_left_out_and_remembered_or_kept(tmp_path: Path, keep: bool) -> None:
    options = TableOptions(keep_empty=keep)
    path = write(tmp_path / "t.csv", ",\ntext,label\nfirst,a\n,,,\nsecond,b\n")
    rows = read_rows(path, options)
    assert [row.line for row in rows] == ([3, 4, 5] if keep else [3, 5])
    assert options.skipped == ([] if keep else [f"{path}, line {line}: a row of empty fields" for line in (1, 4)])
    if keep:
        assert rows[1].values == {"text": "", "label": ""}


@pytest.mark.parametrize(
    ("name", "header", "found", "usual"), [("t.csv", "text;label", ";", ","), ("t.tsv", "text,label", ",", r"\\t")]
)
def test_another_separator_is_named(tmp_path: Path, name: str, header: str, found: str, usual: str) -> None:
    wanted = rf"line 1: one column, '{header}'; its fields seem to be separated by '{found}', .* are by '{usual}'"
    with pytest.raises(DataError, match=wanted):
        read_rows(write(tmp_path / name, f"{header}\na{found}b\n"))


def test_a_comma_in_the_first_text_of_a_tsv_is_no_separator(tmp_path: Path) -> None:
    """It has no header: what to do about that is said where the text is missed."""
    assert read_rows(write(tmp_path / "t.tsv", "hello, world\nbye\n"))[0].values == {"hello, world": "bye"}


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


def roles(path: Path, *columns: str) -> list[tuple[object, ...]]:
    rows = read_rows(path, TableOptions.parse(columns))
    return [tuple(row.values.get(role) for role in ("text", "text_b", "label")) for row in rows]


BENCHMARKS = {  # the header, and where text, partner and label stand in it
    "SST-2": ("sentence label", 0, None, 1),
    "RTE": ("index sentence1 sentence2 label", 1, 2, 3),
    "MRPC": ("\ufeffQuality #1_ID #2_ID #1_String #2_String", 3, 4, 0),
    "STS-B": ("index genre filename year old_index source1 source2 sentence1 sentence2 score", 7, 8, 9),
    "QNLI": ("index question sentence label", 1, 2, 3),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", 3, 4, 5),
    "MNLI": ("index pairID sentence1_parse sentence2_parse sentence1 sentence2 label1 label2 gold_label", 4, 5, 8),
    "XNLI": ("premise hypothesis label", 0, 1, 2),
    "reviews": ("Review Category", 0, None, 1),
    "ours": ("label text_a text_b", 1, 2, 0),
}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_columns_of_benchmarks_are_found_by_their_usual_names(tmp_path: Path, benchmark: str) -> None:
    header, *columns = BENCHMARKS[benchmark]
    names = header.replace(" ", "\t").replace("_ID", " ID").replace("_String", " String")
    path = write(tmp_path / "t.tsv", names + "\n" + "\t".join(str(n) for n in range(header.count(" ") + 1)) + "\n")
    assert roles(path) == [tuple(None if column is None else str(column) for column in columns)]


def test_cola_is_read_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "gj04\t1\t\tOne fine.\nbc01\t0\t*\tTwo wrong.\n")
    assert roles(path) == [("One fine.", None, "1"), ("Two wrong.", None, "0")]


@pytest.mark.parametrize("order", ["number,text,headline,category,label", "label,category,headline,text,number"])
def test_columns_by_name_come_before_the_usual_names(tmp_path: Path, order: str) -> None:
    path = write(tmp_path / "t.csv", f"{order}\n" + ",".join(f"<{name}>" for name in order.split(",")))
    assert roles(path, "text=headline", "label=category") == [("<headline>", None, "<category>")]


def test_columns_by_number_are_those_of_a_file_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "left\tx\tright\tyes\nl\tx\tr\tno\textra\n")
    assert roles(path, "text=1", "text_b=3", "label=4") == [("left", "right", "yes"), ("l", "r", "no")]


def test_a_column_that_does_not_exist_is_refused_with_the_file_and_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label=kind: no such column among text, label") as caught:
        read_rows(write(tmp_path / "t.csv", CSV), TableOptions.parse(["label=kind"]))
    assert "t.csv" in str(caught.value)
    with pytest.raises(DataError, match=r"t\.tsv, line 1: 2 fields, and column 3 is requested; .*--skip-bad"):
        read_rows(write(tmp_path / "t.tsv", "one\ttwo\n"), TableOptions.parse(["text=3"]))


@pytest.mark.parametrize("given", ["text", "text=", "=3", "text=0"])
def test_columns_that_say_nothing_are_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises((ConfigError, DataError), match=r"columns|column 0"):
        read_rows(write(tmp_path / "t.csv", CSV), TableOptions.parse([given, "label=2"]))


@pytest.mark.parametrize(
    ("name", "content", "columns", "complaint"),
    [
        ("t.csv", "text,label\nfirst,a\none,two,three\nsecond,b\n", [], "line 3: 3 fields where the header has 2"),
        ("t.tsv", "first\ta\nalone\nsecond\tb\n", ["text=1", "label=2"], "line 2: 1 fields"),
        ("t.jsonl", '{"t": "first", "label": "a"}\n{\n{"t": "second", "label": "b"}', ["text=t"], "line 2: not JSON"),
        ("t.jsonl", '{"t": "first", "label": "a"}\n{"x": 1}\n{"t": "second", "label": "b"}', ["text=t"], "line 2"),
        ("t.json", '[{"text": "first", "label": "a"}, 3, {"text": "second", "label": "b"}]', [], "item 2: '3' is not"),
    ],
)
def test_bad_rows_are_left_out_and_remembered_where_that_is_asked_for(
    tmp_path: Path, name: str, content: str, columns: list[str], complaint: str
) -> None:
    path, options = write(tmp_path / name, content), TableOptions.parse(columns, skip_bad=True)
    assert [row.values for row in read_rows(path, options)] == EXPECTED
    assert len(options.skipped) == 1
    assert f"{name}, {complaint}" in options.skipped[0]
    with pytest.raises(DataError, match=name):
        read_rows(path, TableOptions.parse(columns))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "gb18030"])
def test_other_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    text = "我们今天在这里看到的是一个很好的电影，大家都说不错。"
    path = write(tmp_path / "t.tsv", f"text\tlabel\n{text}\t好\n".encode(encoding))
    assert values_of(path) == [{"text": text, "label": "好"}]


def test_a_lone_carriage_return_does_not_end_a_row_of_a_tsv(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "t.tsv", "text\tlabel\none\rtwo\ta\nthree\tb\r\n"))
    assert [row.values for row in rows] == [{"text": "one\rtwo", "label": "a"}, {"text": "three", "label": "b"}]


def test_counted_columns_of_a_file_with_a_header_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: looks like a header \(text, label\); name the columns"):
        read_rows(write(tmp_path / "t.tsv", "text\tlabel\none\ta\n"), TableOptions.parse(("text=1", "label=2")))


def test_a_question_and_a_sentence_are_a_pair_only_where_pairs_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "question,sentence\nwho?,me\n")
    assert read_rows(path)[0].values == {"text": "who?", "text_b": "me"}
    assert read_rows(path, pairs=False)[0].values == {"question": "who?", "text": "me"}


def test_a_broken_object_among_others_can_be_left_out(tmp_path: Path) -> None:
    options = TableOptions(skip_bad=True)
    rows = read_rows(write(tmp_path / "t.json", '{"text": "a"}\n{"text" "b"}\n{"text": "c"}\n'), options)
    assert [row.values["text"] for row in rows] == ["a", "c"]
    assert len(options.skipped) == 1
    assert "line 2: not JSON" in options.skipped[0]


def test_the_first_of_a_pair_may_be_called_text_a(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b,c\none,two,x\n")
    rows = read_rows(path, TableOptions.parse(("text_a=a", "text_b=b", "label=c")))
    assert rows[0].values == {"text": "one", "text_b": "two", "label": "x"}


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; give one of its files"):
        read_rows(tmp_path)
