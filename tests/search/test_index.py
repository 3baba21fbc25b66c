"""Searching: near vectors in every storage, and folders that grow and know whose vectors they hold."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import file_lock
from litebert.inference import Model
from litebert.model.sentence_head import SentenceMap, unit
from litebert.search import index as indexing
from litebert.search import knn as searching
from litebert.search.index import Index
from litebert.search.knn import nearest, quantize
from tests.conftest import PROSE, peer

TEXTS = PROSE[:11]


def vectors(count: int, size: int = 64, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((count, size))).astype(np.float32)


@pytest.mark.parametrize("block", [7, 1 << 14])
def test_nearest_finds_what_sorting_all_cosines_finds(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BLOCK_SIZE", block)
    all_of_them, queries = vectors(100), vectors(3, seed=1)
    scores, places = nearest(queries, [all_of_them[:40], all_of_them[40:]], 5)
    wanted = np.argsort(-(queries @ all_of_them.T), axis=1)[:, :5]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ all_of_them.T, wanted, axis=1), atol=1e-6)
    assert nearest(queries, [all_of_them[:2]], 5)[0].shape == (3, 2)


@pytest.mark.parametrize(("storage", "bytes_each", "tolerance"), [("float32", 256, 1e-6), ("int8", 64, 0.01)])
def test_cosines_survive_storage(storage: Any, bytes_each: int, tolerance: float) -> None:
    all_of_them, queries = vectors(50), vectors(3, seed=1)
    kept = quantize(5 * all_of_them, storage)
    assert kept[0].nbytes == bytes_each
    scores, places = nearest(queries, [kept], 50, storage)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ all_of_them.T, places, axis=1), atol=tolerance)


def only(folder: Path, what: str) -> Path:
    """The one file of this kind in an index of one part."""
    (found,) = folder.glob(f"{what}-*")
    return found


def test_model_search_and_similarity_are_cosines_of_embed(model: Model) -> None:
    found = unit(model.embed(TEXTS))
    hits = model.search([TEXTS[3], TEXTS[5]], TEXTS, top=3)
    assert [row[0].text for row in hits] == [TEXTS[3], TEXTS[5]]
    assert hits[0][1].score == pytest.approx(float(np.sort(found @ found[3])[-2]), abs=1e-5)
    np.testing.assert_allclose(model.similarity(TEXTS[:2], TEXTS[:3]), found[:2] @ found[:3].T, atol=1e-5)
    assert model.similarity(TEXTS[0], TEXTS[0]) == pytest.approx(1.0, abs=1e-5)
    assert model.search([TEXTS[0]], []) == [[]]
    with pytest.raises(DataError, match="wrap a single text"):
        model.search(TEXTS[0], TEXTS)
    with pytest.raises(ConfigError, match="top=0"):
        model.search([TEXTS[0]], TEXTS, top=0)


@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("approximate", [False, True])
def test_an_index_is_found_again_and_grows(
    storage: Any, approximate: bool, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if approximate:
        peer("usearch")
    monkeypatch.setattr(indexing, "MAX_PART_TEXTS", 4)  # so that adding makes several parts
    index = Index.create(tmp_path / "index", model, storage=storage, approximate=approximate)
    assert index.search(model, ["nothing is here"]) == [[]]
    assert index.add(model, TEXTS[:5]) == 5
    assert Index.open(tmp_path / "index").add(model, TEXTS[5:]) == 11
    again = Index.open(tmp_path / "index")
    assert [again.text(place) for place in range(11)] == TEXTS
    assert again.settings.parts == (4, 1, 4, 2)
    for exact in (False, True):
        hits = again.search(model, TEXTS, top=3, exact=exact)
        assert [row[0].text for row in hits] == TEXTS
        assert all(len(row) == 3 for row in hits)
    if storage == "float32":
        assert model.search(TEXTS[:2], tmp_path / "index", top=3) == again.search(model, TEXTS[:2], 3)
    graphs = list((tmp_path / "index").glob("*.usearch"))
    assert len(graphs) == approximate  # former ones are gone


def test_what_was_being_added_when_it_stopped_is_not_there(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.create(tmp_path, model)
    index.add(model, TEXTS[:3])

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(indexing, "write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        index.add(model, TEXTS[3:])
    monkeypatch.undo()
    again = Index.open(tmp_path)
    assert len(again) == 3
    assert again.add(model, TEXTS[3:]) == 11
    assert again.text(10) == TEXTS[10]


@pytest.mark.parametrize("approximate", [False, True])
def test_what_two_add_is_all_there(approximate: bool, model: Model, tmp_path: Path) -> None:
    if approximate:
        peer("usearch")
    Index.create(tmp_path, model, approximate=approximate)
    one, other = Index.open(tmp_path), Index.open(tmp_path)
    assert one.add(model, TEXTS[:3]) == 3
    assert other.add(model, TEXTS[3:6]) == 6
    assert [hits[0].text for hits in one.search(model, TEXTS[:3], 1)] == TEXTS[:3]  # its graph has been replaced
    assert [hits[0].text for hits in Index.open(tmp_path).search(model, TEXTS[:6], 1)] == TEXTS[:6]


def test_parts_that_are_written_at_once_do_not_mix(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.create(tmp_path, model, size=32)
    made, texts = vectors(6, 32), TEXTS[:6]
    other = threading.Thread(target=Index.open(tmp_path).add_vectors, args=(made[3:], texts[3:]))
    save = indexing._save_array

    def slowly(path: Path, values: np.ndarray) -> None:
        if other.ident is None:
            other.start()
            other.join(0.5)
        save(path, values)

    monkeypatch.setattr(indexing, "_save_array", slowly)
    Index.open(tmp_path).add_vectors(made[:3], texts[:3])
    other.join()
    assert [hits[0].text for hits in Index.open(tmp_path).search_vectors(made, 1)] == texts


def test_who_adds_waits_for_others(model: Model, tmp_path: Path) -> None:
    index = Index.create(tmp_path, model, size=32)
    adding = threading.Thread(target=index.add_vectors, args=(vectors(3, 32), TEXTS[:3]))
    with file_lock(tmp_path / indexing.LOCK):
        adding.start()
        adding.join(0.5)
        assert len(Index.open(tmp_path)) == 0
    adding.join()
    assert len(Index.open(tmp_path)) == 3


def test_parts_have_names_of_their_own_without_a_lock_too(model: Model, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        Index.create(tmp_path / folder, model).add(model, TEXTS[:3])
    assert only(tmp_path / "a", "texts").name != only(tmp_path / "b", "texts").name


def test_nothing_is_added_to_an_index_that_was_made_anew(model: Model, tmp_path: Path) -> None:
    index = Index.create(tmp_path, model)
    with pytest.raises(ConfigError, match="is an index already; add to it"):
        Index.create(tmp_path, model, size=8)
    (tmp_path / "index.json").unlink()
    Index.create(tmp_path, model, size=8)
    with pytest.raises(DataError, match="is another index than the one that was opened; open it again"):
        index.add(model, TEXTS[:3])
    assert len(Index.open(tmp_path)) == 0


def test_a_part_that_could_not_be_written_leaves_no_files(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.create(tmp_path, model)

    def full(*_: object) -> None:
        raise DataError("no space left")

    monkeypatch.setattr(indexing, "_save_array", full)
    with pytest.raises(DataError, match="no space left"):
        index.add(model, TEXTS[:3])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index.json", "index.lock"]


@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_a_graph_does_not_reach_is_found_all_the_same(
    count: int, storage: Any, model: Model, tmp_path: Path
) -> None:
    peer("usearch")
    index = Index.create(tmp_path, model, storage=storage, approximate=True)
    equal = np.repeat(vectors(3, 32), 400, axis=0)  # among so many of each, a graph leads to few
    index.add_vectors(equal, [f"text {place}" for place in range(1200)])
    for top in (10, 500, 1200):
        hits = index.search_vectors(vectors(count, 32, seed=1), top)
        assert [len({hit.index for hit in row}) for row in hits] == [top] * count
        assert all(hit.text == f"text {hit.index}" for row in hits for hit in row[:3])
    exact = index.search_vectors(vectors(count, 32, seed=1), 1200, exact=True)
    assert [[hit.score for hit in row] for row in hits] == [[hit.score for hit in row] for row in exact]


def test_another_model_is_refused(model: Model, tmp_path: Path) -> None:
    Index.create(tmp_path, model).add(model, TEXTS[:3])
    size = model.config.hidden_size
    other = Model(
        model.albert, model.tokenizer, sentence_map=SentenceMap(2 * np.eye(size, dtype="f"), np.zeros(size, "f"))
    )
    with pytest.raises(ConfigError, match="makes others; give that model, with as many passes and tokens, or build"):
        Index.open(tmp_path).search(other, ["x"])
    shorter = Model(model.albert, model.tokenizer, max_length=8)
    with pytest.raises(ConfigError, match="makes others"):
        Index.open(tmp_path).add(shorter, ["x"])


def test_the_graph_is_asked_unless_all_vectors_are_wanted(model: Model, tmp_path: Path) -> None:
    peer("usearch")
    for name, order in (("right", TEXTS), ("wrong", TEXTS[::-1])):
        Index.create(tmp_path / name, model, approximate=True).add(model, order)
    graph = only(tmp_path / "right", "graph")
    only(tmp_path / "wrong", "graph").replace(graph)  # it takes the first text for the last
    index = Index.open(tmp_path / "right")
    assert index.search(model, TEXTS[:1], 1)[0][0].text == TEXTS[-1]
    assert index.search(model, TEXTS[:1], 1, exact=True)[0][0].text == TEXTS[0]
    graph.write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match=r"usearch: is damaged"):
        index.search(model, TEXTS[:1])
    assert index.search(model, TEXTS[:1], 1, exact=True)[0][0].text == TEXTS[0]


def test_vectors_after_fewer_passes_are_others(model: Model, tmp_path: Path) -> None:
    index = Index.create(tmp_path, model)
    index.add(model, TEXTS[:3])
    whole = model.passes
    model.passes = 1
    for one in (index, Index.open(tmp_path)):  # the first has seen this model before
        with pytest.raises(ConfigError, match="makes others"):
            one.search(model, ["x"])
    model.passes = whole
    assert index.search(model, TEXTS[:1], 1)[0][0].text == TEXTS[0]


def test_a_shorter_vector_is_the_beginning_of_the_whole(model: Model, tmp_path: Path) -> None:
    index = Index.create(tmp_path, model, size=8)
    index.add(model, TEXTS)
    found = unit(model.embed(TEXTS)[:, :8])
    assert index.search(model, TEXTS[:1], 2)[0][1].score == pytest.approx(np.sort(found @ found[0])[-2], abs=1e-5)
    assert np.load(only(tmp_path, "vectors")).shape == (11, 8)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"size": 33}, "size=33 must lie between 1 and 32"), ({"storage": "binary"}, "must be one of float32, int8")],
)
def test_what_cannot_be_made_is_refused(settings: Any, complaint: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Index.create(tmp_path / "index", model, **settings)
    assert not (tmp_path / "index").exists()


def test_an_index_of_signs_names_the_remedy(model: Model, tmp_path: Path) -> None:
    Index.create(tmp_path, model).add(model, TEXTS)
    settings = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    (tmp_path / "index.json").write_text(json.dumps(settings | {"storage": "binary"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"storage='binary' is no longer supported.*build the index again"):
        Index.open(tmp_path)


def test_damaged_settings_are_noticed(model: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no index \(no index.json\)"):
        Index.open(tmp_path)
    Index.create(tmp_path, model).add(model, TEXTS)
    settings = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    for change in (
        {"storage": "float64"},
        {"graph": "../x"},
        {"parts": ["many"]},
        {"names": []},
        {"names": ["../../000000-00000000"]},
        {"size": float("inf")},
    ):
        (tmp_path / "index.json").write_text(json.dumps(settings | change), encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"index\.json"):
            Index.open(tmp_path)


@pytest.mark.parametrize(
    ("what", "content", "complaint"),
    [
        ("vectors", np.zeros((3, 32), np.float32), "float32 of shape (3, 32), not float32 of (11, 32)"),
        ("vectors", np.zeros((11, 7), np.float32), "float32 of shape (11, 7), not float32 of (11, 32)"),
        ("vectors", np.zeros((11, 32)), "float64 of shape (11, 32), not float32 of (11, 32)"),
        ("vectors", np.float32(3), "float32 of shape (), not"),
        ("vectors", b"no array", "magic string"),
        ("vectors", b"", "magic string"),
        ("vectors", None, "No such file"),
        ("places", np.array([-9, *range(11)]), "the offsets of the lines do not increase from 0"),
        ("places", np.array([0, 2, 1, *range(3, 12)]), "the offsets of the lines do not increase from 0"),
        ("places", np.arange(12.0), "float64 of shape (12,), not int64 of (12,)"),
        ("places", np.arange(7), "int64 of shape (7,), not int64 of (12,)"),
        ("places", np.int64(3), "int64 of shape (), not"),
        ("texts", b'"one"\n', "6 bytes, not"),
        ("texts", None, "No such file"),
    ],
)
def test_damage_is_noticed_when_an_index_is_opened(
    what: str, content: Any, complaint: str, model: Model, tmp_path: Path
) -> None:
    Index.create(tmp_path, model).add(model, TEXTS)
    path = only(tmp_path, what)
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(CheckpointError) as caught:
        Index.open(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path}: is damaged (")
    assert complaint in message
    assert message.endswith("; build the index again")
    assert "\n" not in message


def test_text_that_is_no_text_is_noticed_when_it_is_found(model: Model, tmp_path: Path) -> None:
    Index.create(tmp_path, model).add(model, TEXTS)
    path = only(tmp_path, "texts")
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(CheckpointError, match=r"texts-.*is damaged \(text \d+: .*build the index again"):
        Index.open(tmp_path).search(model, TEXTS[:1])


def test_the_graph_of_other_vectors_is_noticed(model: Model, tmp_path: Path) -> None:
    peer("usearch")
    for name, size in (("a", 32), ("b", 16)):
        Index.create(tmp_path / name, model, size, approximate=True).add(model, TEXTS)
    only(tmp_path / "b", "graph").replace(only(tmp_path / "a", "graph"))
    with pytest.raises(CheckpointError, match=r"is damaged \(11 vectors of 16, not 11 of 32\); build the"):
        Index.open(tmp_path / "a").search(model, TEXTS[:1])
