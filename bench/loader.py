"""How fast shards become pre-training batches: tokens per second for each way of masking, alone and by threads.

Run it on a quiet machine with: .venv/bin/python bench/loader.py [--data SHARDS] [--workers N]

Without --data the text is synthetic: documents of about 600 tokens, sentences of about 25, words of 1.4, in memory.
Every round times every contender once, in turn, so that a busy moment hits all alike; the table shows medians. Tokens
are those of the batch without its padding. A step needs one batch, so the loader keeps up where its tokens per second
exceed the model's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from litebert.data.masking import Masking, MaskUnit
from litebert.data.prefetch import Prefetcher
from litebert.data.pretraining import PretrainingBatch, PretrainingData, TrainingStage
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, WORD_START, Shards, TokenStream
from litebert.tokenizer import Tokenizer, train_unigram

SYNTHETIC_TOKENS, SHARDS = 8_000_000, 4
TEXT = ["The ferry left late, so the passengers shared their sandwiches; 0 1 2 3 4 5 6 7 8 9!"] * 20


def synthetic() -> tuple[TokenStream, Tokenizer]:
    rng = np.random.default_rng(0)
    tokenizer = train_unigram(TEXT, 64)
    size = SYNTHETIC_TOKENS // SHARDS
    ids, bits = [], []
    for _ in range(SHARDS):
        chance = rng.random(size)
        document, sentence, word = chance < 1 / 600, chance < 1 / 25, chance < 1 / 1.4
        document[0] = sentence[0] = word[0] = True
        ids.append(rng.integers(10, 30_000, size, dtype=np.uint16))
        bits.append((document * DOCUMENT_START + sentence * SENTENCE_START + word * WORD_START).astype(np.uint8))
    return TokenStream(ids, bits), tokenizer


def tokens_per_second(make: Callable[[int], PretrainingBatch], first: int, steps: int) -> float:
    began = time.perf_counter()
    tokens = 0
    for step in range(first, first + steps):
        batch = make(step)
        tokens += len(batch.input_ids) - batch.padding
    return tokens / (time.perf_counter() - began)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of shards that litebert prepare made")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="threads of the prefetch")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="batches per round and contender")
    return parser.parse_args()


def main() -> None:
    flags = parse()
    if flags.data is None:
        stream, tokenizer = synthetic()
    else:
        shards = Shards(flags.data)
        stream, tokenizer = shards.training, shards.tokenizer
    stages = [TrainingStage(0, flags.batch_size, flags.length)]
    contenders: dict[tuple[str, str], Callable[[int], PretrainingBatch]] = {}
    for kind in get_args(MaskUnit):
        data = PretrainingData(stream, tokenizer, stages, seed=0, masking=Masking(kind=kind))
        contenders[kind, "alone"] = data.batch
        contenders[kind, "threads"] = Prefetcher(data.batch, flags.workers, ahead=2 * flags.workers)
    for make in contenders.values():
        make(0)
    found: dict[tuple[str, str], list[float]] = {name: [] for name in contenders}
    for number in range(flags.rounds):
        for name, make in contenders.items():
            found[name].append(tokens_per_second(make, 1 + number * flags.steps, flags.steps))
            if isinstance(make, Prefetcher):
                make.clear()  # or it would begin the next round with batches made during the others'
    for make in contenders.values():
        if isinstance(make, Prefetcher):
            make.close()
    source = flags.data or f"{SYNTHETIC_TOKENS:,} synthetic tokens"
    table = Table("mask", "one thread, M tokens/s", f"{flags.workers} threads, M tokens/s", title=str(source))
    for kind in get_args(MaskUnit):
        medians = [statistics.median(found[kind, way]) / 1e6 for way in ("alone", "threads")]
        table.add_row(kind, *(f"{median:.2f}" for median in medians))
    console = Console()
    console.print(table)
    console.print(f"batches of {flags.batch_size} x {flags.length}, medians of {flags.rounds} rounds")


if __name__ == "__main__":
    main()
