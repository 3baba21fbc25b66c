"""Turn text files into shards that pre-training reads.

Text files hold one sentence or paragraph per line, and a blank line between documents.

Example:
  litebert prepare --input a.txt b.txt.xz --tokenizer tok/ --out shards/
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from litebert.errors import ConfigError
from litebert.recipes._shared import make_console, refuse_overwrite, write_run

DOCUMENTS_AT_ONCE = 256


@dataclass(frozen=True)
class Config:
    input: tuple[Path, ...]
    """Text files, plain or .gz .bz2 .xz .zst."""
    tokenizer: Path
    """Folder that `litebert tokenizer` wrote, or any model folder."""
    out: Path
    """Folder to write the shards to."""


def run(config: Config) -> None:
    from litebert.data.corpus import read_documents, size_on_disk
    from litebert.data.shards import ShardWriter
    from litebert.tokenizer import Tokenizer
    from litebert.train.log import counting

    if not config.input:
        raise ConfigError("--input names no files; give at least one text file")
    refuse_overwrite(config.out / "index.json", "finished shards")
    console = make_console()
    total = size_on_disk(config.input)
    tokenizer = Tokenizer.load(config.tokenizer)
    with ShardWriter(config.out, tokenizer) as writer, counting(console, "preparing", total) as progress:
        task = progress.task_ids[0]
        documents = read_documents(config.input, lambda read: progress.advance(task, read))
        while some := list(islice(documents, DOCUMENTS_AT_ONCE)):
            sentences = iter(tokenizer.encode_ids([line for document in some for line in document]))
            writer.add([list(islice(sentences, len(document))) for document in some])
        index = writer.finish()
    write_run(config.out, "prepare", config)
    console.print(
        f"{index.tokens:,} tokens of {index.documents:,} documents in {config.out}", highlight=False, markup=False
    )
    console.print(
        f"next: litebert pretrain --data {config.out} --preset tiny --out runs/pretrain", highlight=False, markup=False
    )
