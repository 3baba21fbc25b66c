"""Semantic search in a list of texts.

Examples:
  litebert search --index runs/index --add texts.txt more.csv
  litebert search --index runs/index --query 'where is my order'
  litebert search --index runs/index --input questions.txt > answers.jsonl

--add makes a folder of texts and their vectors, or adds to it; what is there stays as it is. A query gets a JSON line
with the nearest texts, best first. All vectors are looked at: with --approximate, and pip install 'litebert[index]', a
graph is kept beside them that finds nearly the same in far less time where there are millions.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litebert.builtin import SENTENCES
from litebert.checks import check_counts_and_seed
from litebert.console import make_console, say
from litebert.errors import ConfigError, DataError
from litebert.run_folder import refuse_unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from litebert.inference import Model
    from litebert.search.index import Index

CREATION_SETTINGS = ("size", "storage", "approximate")
QUERY_BATCH = 256  # queries


@dataclass(frozen=True, kw_only=True)
class Config:
    index: Path
    """Folder of texts and their vectors."""
    add: tuple[Path, ...] = ()
    """Files of texts to add: a text per line, or tables."""
    query: tuple[str, ...] = ()
    """Queries to search for."""
    input: str | None = None
    """File of queries, one per line; - is standard input."""
    top: int = 10
    """Number of results for each query."""
    model: str | None = None
    """Model folder or name; by default the one that the index was made with, of a new one
    litebert-sentences-en."""
    columns: tuple[str, ...] = ()
    """Column of the texts to add in a table, if not the usual name: text=question."""
    size: int | None = None
    """Of a new index: truncate vectors to this size, for models that were trained with such --sizes."""
    storage: Literal["float32", "int8"] = "float32"
    """Of a new index: four bytes for each dimension, or one."""
    approximate: bool = False
    """Of a new index: keep a graph for approximate search too."""
    exact: bool = False
    """Exact search although there is a graph."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Numeric precision. auto: bf16 on a GPU that has it, fp32 elsewhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self, "top", *(["size"] if self.size is not None else []))
        if not (self.add or self.query or self.input):
            raise ConfigError("nothing to do: give --add FILE, --query TEXT or --input FILE")


def run(config: Config) -> None:
    from litebert.data.texts import read_texts

    console = make_console()
    old = _existing(config)
    # all files are read before anything is made or added: a command that fails changes nothing
    texts = [text for path in config.add for text in read_texts(str(path), config.columns)]
    if config.add and not texts:
        raise DataError(f"{', '.join(map(str, config.add))}: no text to add; give a file with a text per line")
    queries = [*config.query, *(read_texts(config.input) if config.input else ())]
    index, model = _opened(config, old)
    if texts:
        _add(config, index, model, texts, console)
    for start in range(0, len(queries), QUERY_BATCH):
        batch = queries[start : start + QUERY_BATCH]
        for query, hits in zip(batch, index.search(model, batch, config.top, config.exact), strict=True):
            print(json.dumps({"query": query, "results": [asdict(hit) for hit in hits]}, ensure_ascii=False))


def _existing(config: Config) -> Index | None:
    """The index, if there is one already."""
    from litebert.search.index import SETTINGS, Index

    for path in config.add:
        if not path.is_file():
            raise DataError(f"{path}: no such file; check the path")
    if config.add and not (config.index / SETTINGS).is_file():
        refuse_unwritable(config.index)
        return None
    old = Index.open(config.index)
    for name in CREATION_SETTINGS:
        if getattr(config, name) not in (getattr(Config, name), getattr(old.settings, name)):
            raise ConfigError(f"{name} is decided when an index is made, and {config.index} is; leave it out")
    return old


def _opened(config: Config, old: Index | None) -> tuple[Index, Model]:
    from litebert.device import pick_device
    from litebert.loading import load
    from litebert.search.index import Index

    name = config.model or (SENTENCES if old is None else old.settings.model)
    model = load(name).to(pick_device(config.device))
    model.configure(config.precision)
    if old is not None:
        old.check(model)
        return old, model
    return Index.create(config.index, model, config.size, config.storage, config.approximate), model


def _add(config: Config, index: Index, model: Model, texts: list[str], console: Console) -> None:
    from litebert.console import progress_bar

    with progress_bar(console, f"reading {len(texts):,} texts", len(texts)) as bar:
        index.add(model, texts, lambda count: bar.advance(bar.task_ids[0], count))
    say(console, f"{len(index):,} texts in {config.index}")
    if not (config.query or config.input):
        say(console, f"next: litebert search --index {config.index} --query 'a question'")
