"""What a pre-trained model knows of documents that it was not trained on.

  python examples/builtin/held_out.py --model runs/pt --data shards --text held-out.txt

Prints, for every --length, how many of 15 % single tokens are guessed, all of them hidden, and as the paper asks (a
tenth of them shown as they are, a tenth replaced); and of how many pairs of segments the order is told. With --text the
documents are written down, for `litebert evaluate --data held-out.txt` to say how many bits a character takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import litebert
from litebert.data.masking import Masking
from litebert.data.pretraining import PretrainingData, TrainingStage
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, Shards
from litebert.device import has_bfloat16, pick_device
from litebert.tasks.pretraining import PretrainingObjective

TOKENS = 8192  # at once
LINE = 100  # tokens
ALL_HIDDEN = Masking("token", 0.15, mask_share=1.0, random_share=0.0)
AS_THE_PAPER = Masking("token", 0.15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="what litebert prepare wrote")
    parser.add_argument("--length", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="to look at, for each length")
    parser.add_argument("--text", type=Path, help="write the documents there")
    options = parser.parse_args()
    model, shards = litebert.load(options.model).to(pick_device("auto")), Shards(options.data)
    if shards.tokenizer.fingerprint != model.tokenizer.fingerprint:
        parser.error(f"--data {options.data}: made with another vocabulary than the model's")
    model.bf16 = has_bfloat16(model.device)
    for length in options.length:
        (hidden, *_), (guessed, ordered, pairs) = (
            figures(model, shards, length, options.tokens, masking) for masking in (ALL_HIDDEN, AS_THE_PAPER)
        )
        told = f"tokens right {hidden:.1%} (all hidden), {guessed:.1%} (as in the paper)"
        print(f"length {length}: {told}; order right {ordered:.1%} of {pairs:,} pairs", flush=True)
    if options.text:
        options.text.write_text("\n".join(lines_of(shards)) + "\n", encoding="utf-8")


@torch.inference_mode()
def figures(
    model: litebert.Model, shards: Shards, length: int, tokens: int, masking: Masking
) -> tuple[float, float, int]:
    rows = max(1, TOKENS // length)
    data = PretrainingData(shards.held_out, shards.tokenizer, [TrainingStage(0, rows, length)], seed=1, masking=masking)
    objective, one = PretrainingObjective(model.albert.eval()), torch.ones((), device=model.device)
    steps = -(-min(tokens, shards.held_out.tokens) // (rows * length))
    right, masked, ordered, pairs = 0.0, 0, 0.0, 0
    for step in track(range(steps), f"length {length}", console=Console(stderr=True)):
        batch = data.batch(step)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.bf16):
            found = objective(batch.to(model.device), model.config.num_hidden_layers, length, one, one)
        right, masked = right + found["mlm_accuracy"].item(), masked + len(batch.labels)
        ordered, pairs = ordered + found["order_accuracy"].item(), pairs + len(batch.swapped)
    return right / masked, ordered / max(1, pairs), pairs


def lines_of(shards: Shards) -> Iterator[str]:
    """The text in lines of whole sentences, as many as fit; a blank one between documents."""
    for number, (ids, bits) in enumerate(zip(shards.held_out.ids, shards.held_out.bits, strict=True)):
        starts = [*np.flatnonzero(bits & (SENTENCE_START | DOCUMENT_START)).tolist(), len(ids)]
        first = 0
        for here, after in pairwise(starts):
            is_new = bool(bits[here] & DOCUMENT_START)
            if here > first and (is_new or after - first > LINE):
                yield shards.tokenizer.decode(ids[first:here].tolist())
                first = here
            if is_new and (here or number):
                yield ""
        yield shards.tokenizer.decode(ids[first:].tolist())


if __name__ == "__main__":
    main()
