"""Small tasks: what they hold, that classes stay apart, and that what is on disk is what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litebert.data.episodes import (
    Episode,
    EpisodeFile,
    EpisodeShape,
    check_disjoint_classes,
    classes_with_enough_rows,
    draw_episode,
    rows_by_class,
    split_classes,
)
from litebert.errors import ConfigError, DataError

POOL = {f"class {number}": list(range(number * 20, number * 20 + 20)) for number in range(11)}


@given(seed=st.integers(0, 2**32 - 1), number=st.integers(0, 10**9))
def test_an_episode_is_a_function_of_seed_and_number_and_asks_about_nothing_it_shows(seed: int, number: int) -> None:
    shape = EpisodeShape((2, 6), (1, 4), 3)
    episode = draw_episode(POOL, shape, seed, number)
    assert episode == draw_episode(POOL, shape, seed, number)
    assert 2 <= episode.way <= 6
    assert len({len(rows) for rows in episode.support}) == 1
    assert 1 <= len(episode.support[0]) <= 4
    assert all(len(rows) == 3 for rows in episode.questions)
    classes = [{row // 20 for row in (*shown, *asked)} for shown, asked in zip(*vars(episode).values(), strict=True)]
    assert all(len(one) == 1 for one in classes)
    assert len(set.union(*classes)) == episode.way
    support, questions = episode.rows()
    assert len({*support, *questions}) == len(support) + len(questions)


def test_other_seeds_and_numbers_give_other_episodes() -> None:
    drawn = {draw_episode(POOL, EpisodeShape(), seed, number) for seed in range(5) for number in range(20)}
    assert len(drawn) == 100


def test_ranges_are_drawn_from_end_to_end() -> None:
    drawn = [draw_episode(POOL, EpisodeShape((2, 4), (1, 3)), 0, number) for number in range(100)]
    assert {episode.way for episode in drawn} == {2, 3, 4}
    assert {len(episode.support[0]) for episode in drawn} == {1, 2, 3}


def test_classes_are_counted_as_the_rows_stand() -> None:
    episode = Episode(((3, 1), (7, 8)), ((2,), (9,)))
    assert episode.rows() == ([3, 1, 7, 8], [2, 9])
    assert [classes.tolist() for classes in episode.class_indices()] == [[0, 0, 1, 1], [0, 1]]


def test_equal_texts_count_once_wherever_they_stand() -> None:
    texts, labels = ["the rain", "The  Rain", "snow", "eggs", "the rain"], ["w", "w", "w", "f", "f"]
    assert rows_by_class(texts, labels) == {"w": [0, 2], "f": [3]}


@given(seed=st.integers(0, 100), count=st.integers(0, 40))
def test_division_keeps_every_class_once(seed: int, count: int) -> None:
    pool = {str(number): [number] for number in range(count)}
    parts = split_classes(pool, seed)
    assert sorted(name for part in parts.values() for name in part) == sorted(pool)
    assert len(parts["valid"]) == len(parts["test"]) == round(count * 0.2)
    check_disjoint_classes(parts)


def test_another_seed_divides_otherwise() -> None:
    assert split_classes(POOL, 0) == split_classes(POOL, 0) != split_classes(POOL, 1)


@pytest.mark.parametrize(
    ("shape", "name"),
    [(EpisodeShape((5, 5), (1, 1), 3, 4), "5-way 1-shot"), (EpisodeShape((2, 4), (1, 3), 5, 100), "2-4-way 1-3-shot")],
)
def test_episodes_know_their_shape(shape: EpisodeShape, name: str) -> None:
    drawn = [draw_episode(POOL, shape, 0, number) for number in range(shape.episodes)]
    assert EpisodeFile(Path("few.csv"), (), drawn).shape == shape
    assert shape.name == name
    assert EpisodeShape.matches(name.split())


def test_a_class_in_two_parts_is_refused_by_its_name() -> None:
    with pytest.raises(
        DataError, match=r"1 class\(es\) are in a.csv and in c.csv: 'rain'; .* remove them from one set"
    ):
        check_disjoint_classes({"a.csv": {"rain": [0]}, "b.csv": {"snow": [0]}, "c.csv": ["rain", "sun"]})


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["12-way"], "11 of 11 classes have the 10 different examples .* and 12-way takes 12"),
        (["16-shot"], "0 of 11 classes have the 21 different examples that 16-shot with 5 queries needs"),
        (["2-way", "1-shot", "20-queries"], "0 of 11 classes have the 21 different examples"),
    ],
)
def test_too_few_classes_or_examples_are_refused_with_what_there_is(words: list[str], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        classes_with_enough_rows(POOL, EpisodeShape.parse(words), "few.csv")


def test_classes_with_too_few_examples_are_left_out() -> None:
    assert set(classes_with_enough_rows(POOL | {"small": [220, 221]}, EpisodeShape(), "few.csv")) == set(POOL)


def test_shapes_are_read_in_any_order_and_keep_what_is_not_said() -> None:
    assert EpisodeShape.parse(["600-episodes", "2-10-way", "1-shot"]) == EpisodeShape((2, 10), (1, 1), 5, 600)
    assert EpisodeShape.parse(["3-queries"], EpisodeShape((2, 2), (9, 9), 1, 7)) == EpisodeShape((2, 2), (9, 9), 3, 7)


@pytest.mark.parametrize("word", ["5way", "way-5", "1-2-3-way", "1-5-queries", "five-way", "5-ways"])
def test_what_is_no_shape_is_refused_with_what_is(word: str) -> None:
    with pytest.raises(ConfigError, match=f"episodes={word!r} cannot be read; write 5-way, 2-10-way"):
        EpisodeShape.parse([word])


@pytest.mark.parametrize("word", ["1-way", "0-shot", "5-2-way", "0-queries", "0-episodes"])
def test_numbers_that_make_no_task_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"episodes={word!r} must be"):
        EpisodeShape.parse([word])


# --- on disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    data = tmp_path / "tables" / "few.csv"
    data.parent.mkdir()
    data.write_text("text,label\n", encoding="utf-8")
    path = tmp_path / "episodes" / "test.jsonl"
    EpisodeFile(data, ("text=1",), [draw_episode(POOL, EpisodeShape(), 0, number) for number in range(3)]).write(path)
    return path


def test_stored_episodes_are_those_that_were_drawn(stored: Path) -> None:
    found = EpisodeFile.read(stored)
    assert found.episodes == [draw_episode(POOL, EpisodeShape(), 0, number) for number in range(3)]
    assert found.columns == ("text=1",)
    assert found.data.samefile(stored.parent.parent / "tables" / "few.csv")


def test_a_table_that_has_changed_is_refused(stored: Path) -> None:
    data = stored.parent.parent / "tables" / "few.csv"
    data.write_text("text,label\none more,row\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"few\.csv, which has changed since"):
        EpisodeFile.read(stored)


def test_a_table_that_has_moved_is_asked_for(stored: Path, tmp_path: Path) -> None:
    moved = (stored.parent.parent / "tables" / "few.csv").rename(tmp_path / "moved.csv")
    with pytest.raises(DataError, match="which is missing; give its path with --data"):
        EpisodeFile.read(stored)
    assert EpisodeFile.read(stored, moved).data == moved


@pytest.mark.parametrize("content", ["", "no json\n", "[1]\n", '{"data": "few.csv"}\n'])
def test_a_file_of_something_else_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="not a file of episodes"):
        EpisodeFile.read(tmp_path / "episodes.jsonl")


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"support": [["1"], [2]]}, "line 2: row numbers"), ({"support": [[-1], [2]]}, "line 2: row numbers"),
     ({"support": [[3], [2]]}, "line 2: row numbers must be distinct"), ({"support": [[], [2]]}, "support and"),
     ({"support": [[1]], "questions": [[3]]}, "two classes or more"), ({"support": [[1], [2], [5]]}, "two classes or")],
)  # fmt: skip
def test_episodes_that_make_no_sense_are_refused_by_their_line(
    change: dict[str, object], problem: str, stored: Path
) -> None:
    head = stored.read_text(encoding="utf-8").splitlines()[0]
    line = json.dumps({"support": [[1], [2]], "questions": [[3], [4]]} | change)
    stored.write_text(f"{head}\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        EpisodeFile.read(stored)


def test_a_format_of_another_version_is_refused(stored: Path) -> None:
    stored.write_text(stored.read_text(encoding="utf-8").replace('"format": 1', '"format": 99'), encoding="utf-8")
    with pytest.raises(DataError, match="format 99, this version reads 1"):
        EpisodeFile.read(stored)


def test_rows_must_be_in_the_table_and_of_one_class(tmp_path: Path) -> None:
    stored = EpisodeFile(tmp_path / "few.csv", (), [Episode(((0,), (2,)), ((1,), (3,)))])
    stored.check(["a", "a", "b", "b"])
    for labels in (["a", "a", "b"], ["a", "b", "b", "b"]):
        with pytest.raises(DataError, match=r"line 2 of the episodes: rows .* are not of one class"):
            stored.check(labels)


def test_a_file_that_is_not_there_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(No such file.*--episodes 5-way 1-shot"):
        EpisodeFile.read(tmp_path / "nope.jsonl")


def test_the_file_can_be_read_by_others(stored: Path) -> None:
    head, *lines = map(json.loads, stored.read_text(encoding="utf-8").splitlines())
    assert head["data"] == "../tables/few.csv"
    assert len(lines) == 3
    assert set(lines[0]) == {"support", "questions"}
