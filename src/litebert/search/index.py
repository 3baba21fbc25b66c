"""A vector index on disk: a folder of texts and their vectors.

    index.json                     which model made the vectors, how they are stored, and the list of parts
    index.lock                     held while a part is added
    vectors-000000-1f0c92ab.npy    (N, D) vectors of a part, memory-mapped
    texts-000000-1f0c92ab.jsonl    its texts, one JSON string per line
    places-000000-1f0c92ab.npy     (N + 1,) byte offsets of these lines
    graph-000002-77d3e05c.usearch  an approximate nearest-neighbour graph over all parts so far, if asked for

Parts never change. Adding writes a new part, which counts once index.json, written last, names it. Several processes
may add at once: each reads index.json again under the lock, and part names are unique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from secrets import token_hex
from tokenize import TokenError
from typing import Any, Protocol, get_args

import numpy as np

from litebert.errors import CheckpointError, ConfigError, DataError, require_extra
from litebert.files import atomic_path, file_lock, read_json, write_json
from litebert.search.knn import Hit, Storage, nearest, quantize, truncate

SETTINGS, LOCK = "index.json", "index.lock"
EMBED_BATCH = 4096
"""Texts that are embedded before their vectors are kept."""
MAX_PART_TEXTS = 1 << 18
"""A larger addition becomes several parts, so that an interrupted build loses little."""
USEARCH_TYPES = {"float32": "f32", "int8": "i8"}
NUMPY_TYPES = {"float32": np.float32, "int8": np.int8}
REMOVED_STORAGE = "binary"
"""Signs alone found 18 % of the exact ten (docs/log.md)."""


class Embedder(Protocol):
    """What makes the vectors, such as a model that `litebert.load` returns."""

    source: str | Path | None

    @property
    def dimensions(self) -> int: ...

    @property
    def passes(self) -> int: ...

    def embed(self, texts: Sequence[str], /) -> np.ndarray: ...

    def embedding_fingerprint(self) -> str:
        """A hash of everything that decides the vectors."""


@dataclass(frozen=True)
class Settings:
    """The content of index.json."""

    model: str
    """The name of the model, or the folder it was loaded from."""
    fingerprint: str
    """`Embedder.embedding_fingerprint` of that model."""
    size: int
    """Dimensions of a vector."""
    storage: Storage = "float32"
    parts: tuple[int, ...] = ()
    """The number of texts in each part."""
    names: tuple[str, ...] = ()
    """The name in the files of each part."""
    graph: str | None = None
    """The file of the graph."""
    approximate: bool = False

    @classmethod
    def read(cls, path: Path) -> Settings:
        content = read_json(path)
        try:
            settings = cls(**{field.name: content[field.name] for field in fields(cls)})
            parts, names = tuple(int(count) for count in settings.parts), tuple(str(name) for name in settings.names)
            settings = replace(settings, parts=parts, names=names, size=int(settings.size))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{path}: is not what litebert search writes ({error}); build it again") from error
        if content["storage"] == REMOVED_STORAGE:
            raise CheckpointError(
                f"{path}: storage='binary' is no longer supported, it found 18 % of the exact results; build the index "
                "again with --storage int8"
            )
        if settings.storage not in get_args(Storage) or settings.size < 1 or min(parts, default=1) < 1:
            raise CheckpointError(
                f"{path}: storage={settings.storage!r}, size={settings.size} or its parts are invalid; build it again"
            )
        if len(names) != len(parts) or not all(re.fullmatch(r"\d{6,}-[0-9a-f]{8}", name) for name in names):
            raise CheckpointError(f"{path}: names={names!r} do not name {len(parts)} parts; build it again")
        if settings.graph is not None and Path(str(settings.graph)).name != settings.graph:
            raise CheckpointError(f"{path}: graph={settings.graph!r} is not a file of this folder; build it again")
        return settings


class Index:
    """Texts to be found by their meaning."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self._checked_model: tuple[Embedder, int] | None = None

    @classmethod
    def create(
        cls, path: Path, model: Embedder, size: int | None = None, storage: Storage = "float32",
        approximate: bool = False,
    ) -> Index:  # fmt: skip
        """Make an empty index. `size`: keep the first dimensions only. `approximate`: keep a graph, which searches
        millions of vectors far faster and misses a few results."""
        if size is not None and not 1 <= size <= model.dimensions:
            raise ConfigError(
                f"size={size} must lie between 1 and {model.dimensions}, the dimensions of this model's vectors"
            )
        if storage not in get_args(Storage):
            raise ConfigError(f"storage={storage!r} must be one of {', '.join(get_args(Storage))}")
        if approximate:
            require_extra("usearch.index", "index")
        fingerprint = model.embedding_fingerprint()
        settings = Settings(str(model.source), fingerprint, size or model.dimensions, storage, approximate=approximate)
        other_files = sorted(file.name for file in path.glob("*") if file.name != LOCK)
        if other_files and SETTINGS not in other_files:
            raise ConfigError(f"{path} holds other files ({other_files[0]}); choose a folder for the index alone")
        with file_lock(path / LOCK):
            if (path / SETTINGS).exists():
                raise ConfigError(f"{path} is an index already; add to it, or choose another folder")
            write_json(path / SETTINGS, asdict(settings))
        return cls(path, settings)

    @classmethod
    def open(cls, path: Path) -> Index:
        if not (path / SETTINGS).is_file():
            raise DataError(
                f"{path}: is no index (no {SETTINGS}); build one with: litebert search --index DIR --add FILE"
            )
        index = cls(path, Settings.read(path / SETTINGS))
        for part, count in enumerate(index.settings.parts):
            index._check_part(part, count)
        return index

    def __len__(self) -> int:
        return sum(self.settings.parts)

    def check(self, model: Embedder) -> None:
        """Refuse a model that makes other vectors than those in the index."""
        checked = self._checked_model
        if checked is not None and checked[0] is model and checked[1] == model.passes:  # hashing all weights takes time
            return
        if model.embedding_fingerprint() != self.settings.fingerprint:
            raise ConfigError(
                f"{self.path} holds vectors of {self.settings.model}, and {model.source} makes others; give that "
                "model, with as many passes and tokens, or build the index again"
            )
        self._checked_model = model, model.passes

    def add(self, model: Embedder, texts: Iterable[str], advance: Callable[[int], Any] = lambda count: None) -> int:
        """Embed texts and add them; returns the number of texts in the index. Finished parts survive an interrupt."""
        self.check(model)
        remaining = iter(texts)
        while part := list(islice(remaining, MAX_PART_TEXTS)):
            self._add_part(np.concatenate(list(self._embed(model, part, advance))), part)
        return len(self)

    def add_vectors(self, vectors: np.ndarray, texts: Sequence[str]) -> int:
        """Add texts whose vectors the index's model has made already."""
        if vectors.shape[1:] != (self.settings.size,) or len(vectors) != len(texts) or not len(texts):
            raise DataError(f"vectors of shape {vectors.shape} do not fit {len(texts)} texts and {self.settings.size}")
        for start in range(0, len(texts), MAX_PART_TEXTS):
            part = slice(start, start + MAX_PART_TEXTS)
            self._add_part(quantize(vectors[part], self.settings.storage), texts[part])
        return len(self)

    def search(self, model: Embedder, queries: Sequence[str], top: int = 10, exact: bool = False) -> list[list[Hit]]:
        """The texts nearest to each query, best first; by the graph if there is one, unless `exact`."""
        self.check(model)
        return self.search_vectors(truncate(model.embed(queries), self.settings.size), top, exact)

    def search_vectors(self, queries: np.ndarray, top: int = 10, exact: bool = False) -> list[list[Hit]]:
        """`search` for the vectors of queries, (Q, size)."""
        if top < 1:
            raise ConfigError(f"top={top} must be at least 1")
        if self.settings.graph is not None and not (self.path / self.settings.graph).exists():
            self._reload()  # another process has added a part and replaced the graph
        top = min(top, len(self))
        if not top or not len(queries):
            return [[] for _ in queries]
        if self.settings.graph is None or exact:
            scores, indices = nearest(queries, self._all_vectors(), top, self.settings.storage)
        else:
            scores, indices = self._search_graph(queries, top)
        return [
            [Hit(index, self.text(index), float(score)) for score, index in zip(row_scores, row, strict=True)]
            for row_scores, row in zip(scores, indices.tolist(), strict=True)
        ]

    def text(self, index: int) -> str:
        """The text at this position."""
        part, row = self._locate(index)
        begin, end = self._offsets(part)[row : row + 2].tolist()
        path = self._file("texts", part, "jsonl")
        try:
            with path.open("rb") as file:
                file.seek(begin)
                return str(json.loads(file.read(end - begin)))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(path, f"text {row}: {error}") from error

    def _check_part(self, part: int, count: int) -> None:
        """Refuse damaged files, as far as can be seen without reading all of them."""
        storage, size = self.settings.storage, self.settings.size
        vectors, offsets = self._vectors(part), self._offsets(part)
        path = self._file("vectors", part, "npy")
        if vectors.shape != (count, size) or vectors.dtype != NUMPY_TYPES[storage]:
            raise _damaged(path, f"{vectors.dtype} of shape {vectors.shape}, not {storage} of {(count, size)}")
        path = self._file("places", part, "npy")
        if offsets.shape != (count + 1,) or offsets.dtype != np.int64:
            raise _damaged(path, f"{offsets.dtype} of shape {offsets.shape}, not int64 of {(count + 1,)}")
        if offsets[0] != 0 or (offsets[1:] <= offsets[:-1]).any():
            raise _damaged(path, "the offsets of the lines do not increase from 0")
        path = self._file("texts", part, "jsonl")
        try:
            file_size = path.stat().st_size
        except OSError as error:
            raise _damaged(path, str(error.strerror)) from error
        if file_size != offsets[-1]:
            raise _damaged(path, f"{file_size:,} bytes, not {offsets[-1]:,}")

    def _embed(self, model: Embedder, texts: Sequence[str], advance: Callable[[int], Any]) -> Iterator[np.ndarray]:
        for start in range(0, len(texts), EMBED_BATCH):
            batch = texts[start : start + EMBED_BATCH]
            yield quantize(truncate(model.embed(batch), self.settings.size), self.settings.storage)
            advance(len(batch))

    def _add_part(self, vectors: np.ndarray, texts: Sequence[str]) -> None:
        """Write a part and name it, after those that others have added meanwhile."""
        with file_lock(self.path / LOCK):
            self._reload()
            name, before = f"{len(self.settings.parts):06d}-{token_hex(4)}", self.settings
            try:
                graph = self._write_part(name, vectors, texts)
            except BaseException:  # index.json will never name these files
                for file in self.path.glob(f"*-{name}.*"):
                    file.unlink(missing_ok=True)
                raise
            parts, names = (*before.parts, len(texts)), (*before.names, name)
            settings = replace(before, parts=parts, names=names, graph=graph)
            write_json(self.path / SETTINGS, asdict(settings))
            self.settings = settings
            if before.graph is not None:
                (self.path / before.graph).unlink(missing_ok=True)

    def _reload(self) -> None:
        """Read the parts that others have added."""
        now = Settings.read(self.path / SETTINGS)
        if replace(now, parts=(), names=(), graph=None) != replace(self.settings, parts=(), names=(), graph=None):
            raise DataError(f"{self.path}: is another index than the one that was opened; open it again")
        self.settings = now

    def _write_part(self, name: str, vectors: np.ndarray, texts: Sequence[str]) -> str | None:
        """Write the files of a part; returns the file name of the new graph, if one is kept."""
        lines = [(json.dumps(text, ensure_ascii=False) + "\n").encode("utf-8", "replace") for text in texts]
        with atomic_path(self.path / f"texts-{name}.jsonl") as temporary:
            temporary.write_bytes(b"".join(lines))
        _save_array(self.path / f"places-{name}.npy", np.cumsum([0, *map(len, lines)], dtype=np.int64))
        _save_array(self.path / f"vectors-{name}.npy", vectors)
        if not self.settings.approximate:
            return None
        graph = self._graph()
        graph.add(np.arange(len(self), len(self) + len(vectors)), vectors)
        with atomic_path(self.path / f"graph-{name}.usearch") as temporary:
            graph.save(str(temporary))
        return f"graph-{name}.usearch"

    def _graph(self, memory_mapped: bool = False) -> Any:
        usearch, size = require_extra("usearch.index", "index"), self.settings.size
        graph = usearch.Index(ndim=size, metric="cos", dtype=USEARCH_TYPES[self.settings.storage])
        if self.settings.graph is not None:
            path = self.path / self.settings.graph
            try:
                graph.view(str(path)) if memory_mapped else graph.load(str(path))
            except (RuntimeError, ValueError, OSError) as error:
                raise _damaged(path, str(error)) from error
            if graph.ndim != size or len(graph) != len(self):
                raise _damaged(path, f"{len(graph)} vectors of {graph.ndim}, not {len(self)} of {size}")
        return graph

    def _search_graph(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Neighbours by the graph, with exact scores. A graph may reach fewer than `top`, as among many equal texts:
        such a query is compared with all vectors."""
        storage = self.settings.storage
        matches = self._graph(memory_mapped=True).search(quantize(queries, storage), top)
        counts = getattr(matches, "counts", [len(matches.keys)])  # usearch cuts the keys of a single query itself
        scores, indices = np.zeros((len(queries), top), np.float32), np.zeros((len(queries), top), np.int64)
        incomplete = []
        for query, (keys, count) in enumerate(zip(np.atleast_2d(matches.keys), counts, strict=True)):
            if count < top:
                incomplete.append(query)
                continue
            keys = keys[:count].astype(np.int64)
            rows = [self._locate(index) for index in keys.tolist()]
            vectors = np.stack([self._vectors(part)[row] for part, row in rows])
            best, order = nearest(queries[query][None], [vectors], top, storage)
            scores[query], indices[query] = best[0], keys[order[0]]
        if incomplete:
            scores[incomplete], indices[incomplete] = nearest(queries[incomplete], self._all_vectors(), top, storage)
        return scores, indices

    def _locate(self, index: int) -> tuple[int, int]:
        """The part that holds a text, and its row there."""
        row = index
        for part, count in enumerate(self.settings.parts):
            if 0 <= row < count:
                return part, row
            row -= count
        raise CheckpointError(f"{self.path}: has no text {index}; the graph is damaged: build the index again")

    def _all_vectors(self) -> Iterator[np.ndarray]:
        return (self._vectors(part) for part in range(len(self.settings.parts)))

    def _vectors(self, part: int) -> np.ndarray:
        return _memory_map(self._file("vectors", part, "npy"))

    def _offsets(self, part: int) -> np.ndarray:
        return _memory_map(self._file("places", part, "npy"))

    def _file(self, content: str, part: int, suffix: str) -> Path:
        return self.path / f"{content}-{self.settings.names[part]}.{suffix}"


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: is damaged ({problem}); build the index again")


def _memory_map(path: Path) -> np.ndarray:
    try:
        # mode "c", copy on write: torch takes no read-only memory, and nothing here writes
        array: np.ndarray = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError, SyntaxError, TokenError) as error:  # a damaged header is read as Python
        raise _damaged(path, " ".join(str(error).split())) from error
    return array


def _save_array(path: Path, values: np.ndarray) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, values, allow_pickle=False)
