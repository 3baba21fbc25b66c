"""Teach translation from the built-in encoder and from the same encoder with random weights, and compare.

  python bench/translate.py --data tasks/mt/multi30k                              # one GPU: the whole encoder learns
  python bench/translate.py --data tasks/mt/multi30k --frozen --epochs 7 --small  # two CPU cores

The folder holds train, val and test_2016_flickr, each as .en and .de, packed or not. Epochs are chosen by val, searched
greedily; the test is read once per run, with beams. Both runs have the same settings, vocabulary and number of steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import litebert
from litebert.builtin import DEFAULT
from litebert.commands import finetune

LARGE = {"decoder_hidden_size": 512, "decoder_intermediate_size": 1024, "decoder_layers": 6, "decoder_heads": 8}
SMALL = {
    "decoder_hidden_size": 256, "decoder_intermediate_size": 512, "decoder_layers": 3, "decoder_depths": (0, 4),
    "decoder_dropout": 0.15, "learning_rate": 8e-5,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-translate"))
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--starts", nargs="+", choices=("learned", "random"), default=["learned", "random"])
    parser.add_argument("--test", default="test_2016_flickr")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frozen", action="store_true", help="only the decoder learns")
    parser.add_argument("--small", action="store_true", help="a decoder for CPUs")
    options = parser.parse_args()
    for start in options.starts:
        model = (
            options.model if start == "learned" else untrained(options.model, options.out / "untrained", options.seed)
        )
        out = options.out / start
        config = finetune.Config(
            task="translate", model=model, train=file(options.data, "train"), valid=file(options.data, "val"),
            test=file(options.data, options.test), out=out, epochs=options.epochs, batch_size=options.batch_size,
            seed=options.seed, freeze_encoder=options.frozen, target_vocab_size=4000, patience=0,
            **(SMALL if options.small else LARGE),
        )  # fmt: skip
        if finetune.run(config) == 0:
            print(summary(start, json.loads((out / "finished.json").read_text())))


def file(folder: Path, name: str) -> Path:
    return next(path for path in (folder / f"{name}.en", folder / f"{name}.en.gz") if path.is_file())


def untrained(name: str, out: Path, seed: int) -> str:
    """The same model with new weights."""
    if not (out / "config.json").is_file():
        model = litebert.load(name)
        torch.manual_seed(seed)
        model.encoder.reset_parameters()
        model.save(out)
    return str(out)


def summary(start: str, found: dict[str, Any]) -> str:
    valid, test = (
        ", ".join(f"{name} {value:.2f}" for name, value in found[part].items()) for part in ("metrics", "test")
    )
    return f"{start}: epoch {found['epoch']}, val {valid}; test {test}; {found['seconds']:.0f} s"


if __name__ == "__main__":
    main()
