"""Train a tokenizer on text files, or import one.

Examples:
  litebert tokenizer --input a.txt b.txt.zst --vocab-size 30000 --out tok/
  litebert tokenizer --input zh.txt --kind wordpiece --vocab-size 21128 --out tok/
  litebert tokenizer --import-from spiece.model --out tok/
  litebert tokenizer --import-from runs/pretrain --add words.txt --out tok/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from litebert import builtin
from litebert.checks import check_counts_and_seed
from litebert.console import make_console, say
from litebert.errors import ConfigError
from litebert.run_folder import refuse_overwrite, write_run

if TYPE_CHECKING:
    from litebert.tokenizer import Tokenizer


@dataclass(frozen=True)
class Config:
    out: Path
    """Folder to write; transformers' AutoTokenizer reads it too."""
    input: tuple[Path, ...] = ()
    """Files (.txt .jsonl .parquet, plain or .gz .bz2 .xz .zst), folders that hold such files, or globs."""
    text_column: str = "text"
    """Column of JSON lines and Parquet that holds the text."""
    encoding: str = "auto"
    """How text is encoded: auto tells UTF-8, UTF-16 and GB18030 apart, or name one, such as big5."""
    import_from: Path | None = None
    """Take over a spiece.model, vocab.txt or tokenizer.json instead of training."""
    vocab_size: int = 30000
    """How many tokens to learn; a small text may give fewer."""
    kind: Literal["unigram", "wordpiece"] = "unigram"
    """SentencePiece unigram for languages with spaces and any other; WordPiece as the Chinese models use it."""
    lowercase: bool = True
    """Fold upper case to lower case."""
    strip_accents: bool = True
    """Fold é to e. Vowel signs and tones of other scripts are always kept."""
    add: Path | None = None
    """File of words, one per line, to put at the end of the vocabulary: `pretrain --model` can go on with it."""
    fold_punctuation: bool = False
    """With an imported vocab.txt: map curly quotes, dashes and full-width letters to what the vocabulary has."""
    seed: int = 0
    """Seed of the sample of lines when the text is large."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self)


def run(config: Config) -> None:
    if bool(config.input) == (config.import_from is not None):
        raise ConfigError("give either --input FILES to train on, or --import-from FILE to take a vocabulary over")
    if config.input and config.fold_punctuation:
        raise ConfigError(
            "--fold-punctuation is for an imported vocab.txt; a wordpiece vocabulary trained here folds anyway"
        )
    refuse_overwrite(config.out / "tokenizer.json", "a finished tokenizer")
    console = make_console()
    if config.import_from is not None:
        tokenizer = _import(config, config.import_from)
    else:
        from litebert.data.vocabulary import train_vocabulary

        tokenizer = train_vocabulary(
            config.input, config.vocab_size, console, kind=config.kind, text_column=config.text_column,
            encoding=config.encoding, lowercase=config.lowercase, strip_accents=config.strip_accents, seed=config.seed,
        )  # fmt: skip
    if config.add is not None:
        from litebert.data.corpus import read_lines

        tokenizer = tokenizer.extended([line.strip() for line in read_lines([config.add]) if line.strip()])
    tokenizer.save(config.out)
    write_run(config.out, "tokenizer", config)
    requested = (
        f" (asked for {config.vocab_size:,})" if config.input and tokenizer.vocab_size != config.vocab_size else ""
    )
    say(
        console,
        f"{tokenizer.vocab_size:,} tokens{requested} in {config.out}",
        f"next: litebert prepare --input FILES --tokenizer {config.out} --out shards/",
    )


def _import(config: Config, path: Path) -> Tokenizer:
    from litebert.tokenizer import Tokenizer

    if path.suffix == ".txt":
        return Tokenizer.from_vocab(
            path,
            lowercase=config.lowercase,
            strip_accents=None if config.strip_accents else False,
            fold_punctuation=config.fold_punctuation,
        )
    if config.fold_punctuation:
        raise ConfigError(f"--fold-punctuation is for a vocab.txt; {path.name} normalises its own way")
    if path.suffix == ".model":
        return Tokenizer.from_spiece(path, lowercase=config.lowercase, keep_accents=not config.strip_accents)
    if not (config.lowercase and config.strip_accents):
        raise ConfigError(f"{path.name} normalises its own way; leave out --no-lowercase and --no-strip-accents")
    return Tokenizer.load(builtin.folder_of(path))
