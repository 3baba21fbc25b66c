"""A folder of texts with their vectors, to search in.

    index.json                     whose vectors they are, how they are kept, which parts there are
    index.lock                     who holds it may add
    vectors-000000-1f0c92ab.npy    (N, D) of a part, read where it lies on disk
    texts-000000-1f0c92ab.jsonl    its texts, a JSON string a line
    places-000000-1f0c92ab.npy     (N + 1,) where these lines begin
    graph-000002-77d3e05c.usearch  who is near whom, for all parts so far, if that is wanted

Parts are never changed. What is added is a new part, and counts when index.json, written last, names it. Several may
add at once: each reads index.json again when its turn has come, and no two parts have one name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from secrets import token_hex
from tokenize import TokenError
from typing import Any, get_args

import numpy as np

from litebert.errors import CheckpointError, ConfigError, DataError, require_extra
from litebert.fewshot.adapt import fingerprint
from litebert.files import atomic_path, file_lock, read_json, write_json
from litebert.inference.model import Model
from litebert.search.knn import Hit, Storage, nearest, packed, shortened

SETTINGS, LOCK = "index.json", "index.lock"
AT_ONCE = 4096
"""Texts that become vectors before these are written."""
PART = 1 << 18
"""Texts of a part at most, so that a long build loses little when it is stopped."""
KINDS = {"float32": "f32", "int8": "i8", "binary": "b1"}
"""What usearch calls them."""
NUMBERS = {"float32": np.float32, "int8": np.int8, "binary": np.uint8}
"""What numpy does."""


@dataclass(frozen=True)
class Settings:
    """What index.json says."""

    model: str
    """A name, or the folder it was loaded from."""
    fingerprint: str
    """Of all that decides its vectors."""
    size: int
    """Numbers of a vector."""
    storage: Storage = "float32"
    parts: tuple[int, ...] = ()
    """How many texts each has."""
    names: tuple[str, ...] = ()
    """What the files of each are called."""
    graph: str | None = None
    """The file of it."""
    approximate: bool = False

    @classmethod
    def read(cls, path: Path) -> Settings:
        given = read_json(path)
        try:
            found = cls(**{field.name: given[field.name] for field in fields(cls)})
            parts, names = tuple(int(count) for count in found.parts), tuple(str(name) for name in found.names)
            found = replace(found, parts=parts, names=names, size=int(found.size))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{path}: is not what litebert search writes ({error}); build it again") from error
        whole = found.storage != "binary" or found.size % 8 == 0
        if found.storage not in get_args(Storage) or found.size < 1 or not whole or min(parts, default=1) < 1:
            raise CheckpointError(
                f"{path}: storage={found.storage!r}, size={found.size} or its parts cannot be; build it again"
            )
        if len(names) != len(parts) or not all(re.fullmatch(r"\d{6,}-[0-9a-f]{8}", name) for name in names):
            raise CheckpointError(f"{path}: names={names!r} are not those of {len(parts)} parts; build it again")
        if found.graph is not None and Path(str(found.graph)).name != found.graph:
            raise CheckpointError(f"{path}: graph={found.graph!r} is not a file of this folder")
        return found


class Index:
    """Texts that are found by what they mean."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self._known: tuple[Model, int] | None = None

    @classmethod
    def create(
        cls, path: Path, model: Model, size: int | None = None, storage: Storage = "float32", approximate: bool = False
    ) -> Index:
        """A new one, empty. `size`: the first so many numbers of a vector. `approximate`: with a graph, by which large
        ones are searched in far less time, and a few results missed."""
        if size is not None and not 1 <= size <= model.dimensions:
            raise ConfigError(
                f"size={size} must lie between 1 and the {model.dimensions} numbers of this model's vectors"
            )
        size = size or model.dimensions
        if storage == "binary" and size % 8:
            raise ConfigError(f"size={size} must be a multiple of 8 to keep signs; try {max(8, size // 8 * 8)}")
        if approximate:
            require_extra("usearch.index", "index")
        index = cls(path, Settings(str(model.source), identity(model), size, storage, approximate=approximate))
        others = sorted(file.name for file in path.glob("*") if file.name != LOCK)
        if others and SETTINGS not in others:
            raise ConfigError(f"{path} holds something else ({others[0]}); choose a folder for the index alone")
        with file_lock(path / LOCK):
            if (path / SETTINGS).exists():
                raise ConfigError(f"{path} is an index already; add to it, or choose another folder")
            write_json(path / SETTINGS, asdict(index.settings))
        return index

    @classmethod
    def open(cls, path: Path) -> Index:
        if not (path / SETTINGS).is_file():
            raise DataError(
                f"{path}: is no index (no {SETTINGS}); build one with: litebert search --index DIR --add FILE"
            )
        index = cls(path, Settings.read(path / SETTINGS))
        for number, count in enumerate(index.settings.parts):
            index._check_part(number, count)
        return index

    def __len__(self) -> int:
        return sum(self.settings.parts)

    def check(self, model: Model) -> None:
        """Refuse a model whose vectors are others."""
        known = self._known
        if known is not None and known[0] is model and known[1] == model.passes:  # all weights take a while to look at
            return
        if identity(model) != self.settings.fingerprint:
            raise ConfigError(
                f"{self.path} holds vectors of {self.settings.model}, and {model.source} makes others; give that "
                "model, with as many passes and tokens, or build the index again"
            )
        self._known = model, model.passes

    def add(self, model: Model, texts: Iterable[str], advance: Any = lambda count: None) -> int:
        """Make vectors of texts and keep both; how many there are now. What is finished stays if it is stopped."""
        self.check(model)
        rest = iter(texts)
        while some := list(islice(rest, PART)):
            self._add_part(np.concatenate(list(self._embedded(model, some, advance))), some)
        return len(self)

    def add_vectors(self, vectors: np.ndarray, texts: Sequence[str]) -> int:
        """The same with vectors that somebody has made already with the index's model."""
        if vectors.shape[1:] != (self.settings.size,) or len(vectors) != len(texts) or not len(texts):
            raise DataError(f"vectors of shape {vectors.shape} do not fit {len(texts)} texts and {self.settings.size}")
        for start in range(0, len(texts), PART):
            end = min(start + PART, len(texts))
            self._add_part(packed(vectors[start:end], self.settings.storage), texts[start:end])
        return len(self)

    def search(self, model: Model, queries: Sequence[str], top: int = 10, exact: bool = False) -> list[list[Hit]]:
        """The texts nearest to each query, best first; by the graph if there is one, unless `exact`."""
        self.check(model)
        return self.search_vectors(shortened(model.embed(queries), self.settings.size), top, exact)

    def search_vectors(self, queries: np.ndarray, top: int = 10, exact: bool = False) -> list[list[Hit]]:
        """The same for vectors of queries, (Q, size)."""
        if top < 1:
            raise ConfigError(f"top={top} must be at least 1")
        if self.settings.graph is not None and not (self.path / self.settings.graph).exists():
            self._read_again()  # who adds replaces the graph
        top = min(top, len(self))
        if not top or not len(queries):
            return [[] for _ in queries]
        if self.settings.graph is None or exact:
            scores, places = nearest(queries, self._all_vectors(), top, self.settings.storage)
        else:
            scores, places = self._by_graph(queries, top)
        return [
            [Hit(int(place), self.text(int(place)), float(score)) for score, place in zip(row, at, strict=True)]
            for row, at in zip(scores, places, strict=True)
        ]

    def text(self, place: int) -> str:
        """The text of a number."""
        number, row = self._row(place)
        begin, end = self._places(number)[row : row + 2].tolist()
        path = self._file("texts", number, "jsonl")
        try:
            with path.open("rb") as file:
                file.seek(begin)
                return str(json.loads(file.read(end - begin)))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(path, f"text {row}: {error}") from error

    def _check_part(self, number: int, count: int) -> None:
        """Refuse files that are not what was written, as far as can be seen without reading all of them."""
        storage, size = self.settings.storage, self.settings.size
        vectors, places = self._vectors(number), self._places(number)
        path, width = self._file("vectors", number, "npy"), size // 8 if storage == "binary" else size
        if vectors.shape != (count, width) or vectors.dtype != NUMBERS[storage]:
            raise _damaged(path, f"{vectors.dtype} of shape {vectors.shape}, not {storage} of {(count, width)}")
        path = self._file("places", number, "npy")
        if places.shape != (count + 1,) or places.dtype != np.int64:
            raise _damaged(path, f"{places.dtype} of shape {places.shape}, not int64 of {(count + 1,)}")
        if places[0] != 0 or (places[1:] <= places[:-1]).any():
            raise _damaged(path, "lines do not begin one after the other")
        path = self._file("texts", number, "jsonl")
        try:
            held = path.stat().st_size
        except OSError as error:
            raise _damaged(path, str(error.strerror)) from error
        if held != places[-1]:
            raise _damaged(path, f"{held:,} bytes, not {places[-1]:,}")

    def _embedded(self, model: Model, texts: Sequence[str], advance: Any) -> Iterator[np.ndarray]:
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE]
            yield packed(shortened(model.embed(some), self.settings.size), self.settings.storage)
            advance(len(some))

    def _add_part(self, vectors: np.ndarray, texts: Sequence[str]) -> None:
        """Write a part and name it, after those that others have added meanwhile."""
        with file_lock(self.path / LOCK):
            self._read_again()
            name, former = f"{len(self.settings.parts):06d}-{token_hex(4)}", self.settings
            try:
                graph = self._write(name, vectors, texts)
            except BaseException:  # nobody will ever name them
                for file in self.path.glob(f"*-{name}.*"):
                    file.unlink(missing_ok=True)
                raise
            parts, names = (*former.parts, len(texts)), (*former.names, name)
            settings = replace(former, parts=parts, names=names, graph=graph)
            write_json(self.path / SETTINGS, asdict(settings))
            self.settings = settings
            if former.graph is not None:
                (self.path / former.graph).unlink(missing_ok=True)

    def _read_again(self) -> None:
        """What others have added."""
        now = Settings.read(self.path / SETTINGS)
        if replace(now, parts=(), names=(), graph=None) != replace(self.settings, parts=(), names=(), graph=None):
            raise DataError(f"{self.path}: is another index than the one that was opened; open it again")
        self.settings = now

    def _write(self, name: str, vectors: np.ndarray, texts: Sequence[str]) -> str | None:
        """The files of a part; what the graph with it is called, if one is wanted."""
        lines = [(json.dumps(text, ensure_ascii=False) + "\n").encode("utf-8", "replace") for text in texts]
        with atomic_path(self.path / f"texts-{name}.jsonl") as temporary:
            temporary.write_bytes(b"".join(lines))
        _save(self.path / f"places-{name}.npy", np.cumsum([0, *map(len, lines)], dtype=np.int64))
        _save(self.path / f"vectors-{name}.npy", vectors)
        if not self.settings.approximate:
            return None
        graph = self._graph()
        graph.add(np.arange(len(self), len(self) + len(vectors)), vectors)
        with atomic_path(self.path / f"graph-{name}.usearch") as temporary:
            graph.save(str(temporary))
        return f"graph-{name}.usearch"

    def _graph(self, view: bool = False) -> Any:
        usearch = require_extra("usearch.index", "index")
        signs = self.settings.storage == "binary"
        graph = usearch.Index(
            ndim=self.settings.size, metric="hamming" if signs else "cos", dtype=KINDS[self.settings.storage]
        )
        if self.settings.graph is not None:
            path = self.path / self.settings.graph
            try:
                graph.view(str(path)) if view else graph.load(str(path))
            except (RuntimeError, ValueError, OSError) as error:
                raise _damaged(path, str(error)) from error
            if graph.ndim != self.settings.size or len(graph) != len(self):
                raise _damaged(path, f"{len(graph)} vectors of {graph.ndim}, not {len(self)} of {self.settings.size}")
        return graph

    def _by_graph(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Near ones by the graph, and their exact scores. A graph may reach fewer than are wanted, as among many equal
        texts: all vectors are looked at for such a query."""
        storage = self.settings.storage
        found = self._graph(view=True).search(
            packed(queries, storage), max(2 * top, 64) if storage == "binary" else top
        )
        counts = getattr(found, "counts", [len(found.keys)])  # usearch cuts the keys of a single query itself
        scores, places = np.zeros((len(queries), top), np.float32), np.zeros((len(queries), top), np.int64)
        short = []
        for number, (keys, count) in enumerate(zip(np.atleast_2d(found.keys), counts, strict=True)):
            if count < top:
                short.append(number)
                continue
            keys = keys[:count].astype(np.int64)
            rows = [self._row(place) for place in keys.tolist()]
            own = np.stack([self._vectors(part)[row] for part, row in rows])
            best, order = nearest(queries[number][None], [own], top, storage)
            scores[number], places[number] = best[0], keys[order[0]]
        if short:
            scores[short], places[short] = nearest(queries[short], self._all_vectors(), top, storage)
        return scores, places

    def _row(self, place: int) -> tuple[int, int]:
        """The part that a text is in, and its row there."""
        for number, count in enumerate(self.settings.parts):
            if 0 <= place < count:
                return number, place
            place -= count
        raise CheckpointError(f"{self.path}: has no such text; the graph is damaged: build the index again")

    def _all_vectors(self) -> Iterator[np.ndarray]:
        return (self._vectors(number) for number in range(len(self.settings.parts)))

    def _vectors(self, number: int) -> np.ndarray:
        return _mapped(self._file("vectors", number, "npy"))

    def _places(self, number: int) -> np.ndarray:
        return _mapped(self._file("places", number, "npy"))

    def _file(self, what: str, number: int, kind: str) -> Path:
        return self.path / f"{what}-{self.settings.names[number]}.{kind}"


def identity(model: Model) -> str:
    """Of all that decides a model's vectors: its weights, how often the layer is run, what is pooled, the map, the
    vocabulary and the length."""
    found = hashlib.sha256(fingerprint(model).encode())
    found.update(f"{model.tokenizer.fingerprint} {model.max_length} {model.passes}".encode())
    after = model.after
    if after is not None:
        found.update(f"{after.pooling} {after.passes}".encode())
        for part in (after.weight, after.bias, after.tokens):
            found.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: is damaged ({problem}); build the index again")


def _mapped(path: Path) -> np.ndarray:
    try:
        # "c": what nobody writes is not copied, and torch takes nothing that cannot be written
        found: np.ndarray = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError, SyntaxError, TokenError) as error:  # a damaged header is read as Python
        raise _damaged(path, " ".join(str(error).split())) from error
    return found


def _save(path: Path, values: np.ndarray) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, values, allow_pickle=False)
