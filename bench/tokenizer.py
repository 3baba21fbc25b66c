"""How fast batches of text become ids: litebert beside transformers and sentencepiece, in MB of UTF-8 per second.

Run it on a quiet machine with: .venv/bin/python bench/tokenizer.py (or make bench)

Real text is used where LITEBERT_DATA or ../shared/data is; elsewhere vocabularies are trained on a few sentences, which
are then repeated. Every round times every contender once, in turn, so that a busy moment hits all alike; the table
shows medians, and ratios to `litebert encode`. transformers runs batched and returns ids only, which is its fastest
way; sentencepiece encodes one text per call on one thread, and neither cleans text nor gives offsets, so it is a
reference and not a rival.
"""

from __future__ import annotations

import logging
import lzma
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import sentencepiece
from rich.console import Console
from rich.table import Table
from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizer

from litebert.tokenizer import Tokenizer, train_unigram, train_wordpiece

DATA = Path(os.environ.get("LITEBERT_DATA", Path(__file__).parents[2] / "shared" / "data"))
ROUNDS = 7
BATCH = 1_000
SENTENCES = {
    "English": [
        "The ferry left late, so the passengers shared their sandwiches and watched the gulls.",
        "In 1931 the mill (built by two sisters) was sold for £450 and a piano.",
        "Whoever finds the key first must open the door, light the stove and wake the others.",
    ],
    "Chinese": [
        "渡船开晚了，乘客们一起吃三明治，看着海鸥。",
        "1931年，那座由两姐妹建造的磨坊被卖掉了。",
        "谁先找到钥匙，谁就要开门、生火，并叫醒其他人。",
    ],
}

Encode = Callable[[list[str]], object]


def texts_of(language: str) -> list[str]:
    name = {"English": "corpus/en/wiki-1.txt.xz", "Chinese": "corpus/zh/wiki.txt.xz"}[language]
    if not DATA.is_dir():
        return SENTENCES[language] * (2 * BATCH)
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        return list(islice((line.rstrip("\n") for line in file if line.strip()), 6 * BATCH))


def tokenizer_of(language: str) -> Tokenizer:
    if language == "English":
        path = DATA / "vocab/english/spiece.model"
        return Tokenizer.from_spiece(path) if path.is_file() else train_unigram(SENTENCES[language] * 20, 120)
    path = DATA / "vocab/chinese/vocab.txt"
    return Tokenizer.from_vocab(path) if path.is_file() else train_wordpiece(SENTENCES[language] * 20, 120)


def contenders(language: str, folder: Path) -> dict[str, Encode]:
    """Name to a function from a batch of texts to their ids."""
    ours = tokenizer_of(language)
    ours.save(folder / "ours")
    auto = AutoTokenizer.from_pretrained(folder / "ours")
    bare = folder / "bare"
    bare.mkdir()
    if ours.spiece is not None:
        (bare / "spiece.model").write_bytes(ours.spiece)
        own = AlbertTokenizer.from_pretrained(bare)
    else:
        (bare / "vocab.txt").write_text("".join(f"{ours.token(n)}\n" for n in range(ours.vocab_size)), encoding="utf-8")
        own = BertTokenizer.from_pretrained(bare)
    ids_only = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    named: dict[str, Encode] = {
        "litebert encode": ours.encode,
        "litebert encode_ids": ours.encode_ids,
        "transformers Auto, our folder": lambda batch: auto(batch, **ids_only),
        f"transformers {type(own).__name__}": lambda batch: own(batch, **ids_only),
    }
    if ours.spiece is not None:
        processor = sentencepiece.SentencePieceProcessor(model_proto=ours.spiece)
        named["sentencepiece, single calls"] = lambda batch: [processor.encode(text) for text in batch]
    return named


def seconds(encode: Encode, batches: list[list[str]]) -> float:
    start = time.perf_counter()
    for batch in batches:
        encode(batch)
    return time.perf_counter() - start


def main() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    table = Table("text", "encoder", "MB/s", "range", "ratio")
    for language in ("English", "Chinese"):
        texts = texts_of(language)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            named = contenders(language, Path(folder))
            for encode in named.values():
                encode(batches[0])  # warm-up
            speeds: dict[str, list[float]] = {name: [] for name in named}
            for _ in range(ROUNDS):
                for name, encode in named.items():
                    speeds[name].append(megabytes / seconds(encode, batches))
        base = statistics.median(speeds["litebert encode"])
        for name, measured in speeds.items():
            median = statistics.median(measured)
            spread = f"{min(measured):.2f}-{max(measured):.2f}"
            table.add_row(f"{language} {megabytes:.1f} MB", name, f"{median:.2f}", spread, f"{median / base:.2f}")
        table.add_section()
    source = "real text" if DATA.is_dir() else "repeated sentences"
    table.title = f"{source}, {os.cpu_count()} cores, batches of {BATCH:,}, median of {ROUNDS} rounds"
    Console().print(table)


if __name__ == "__main__":
    main()
