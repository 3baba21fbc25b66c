"""Give a model a linear map for vectors of sentences, if one helps, and say what it is worth.

  python examples/builtin/embeddings.py --model runs/pt --corpus corpus/*.xz --sts tasks/glue/STS-B --out runs/st

The map whitens vectors of sentences of the corpus, without labels. Whether it is used, and how many directions it
keeps, is decided on a tenth of STS-B's training pairs; its development pairs are looked at once, at the end.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import litebert
from litebert.data.corpus import read_documents
from litebert.data.sentences import sentence_splitter
from litebert.model.sentences import SentenceMap, whitened
from litebert.predict import Model
from litebert.tasks import Regress
from litebert.tasks.text import TextInput
from litebert.train.runtime import has_bfloat16, pick_device

WORDS = range(5, 41)  # of a sentence that is looked at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True)
    parser.add_argument("--sts", type=Path, required=True, help="a folder with train.tsv and dev.tsv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=50_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 768])
    options = parser.parse_args()
    model = litebert.load(options.model).to(pick_device("auto"))
    model.bf16, model.after = has_bfloat16(model.device), None
    if options.sentences < 2 * model.config.hidden_size:
        parser.error(f"--sentences {options.sentences}: give {2 * model.config.hidden_size} or more")
    means = model.embed(sentences_of(options.corpus, options.sentences))
    sizes = [size for size in options.sizes if size <= means.shape[1]]
    maps: dict[str, SentenceMap | None] = {"the mean": None}
    maps |= {f"whitened, {size}": whitened(means, size) for size in sizes}
    train = Regress.read(options.sts / "train.tsv")
    tenth = random.Random(0).sample(train, len(train) // 10)
    found = {name: correlation(model, after, tenth) for name, after in maps.items()}
    for name, value in found.items():
        print(f"{name}: Spearman {value:.4f} on a tenth of the training pairs")
    best = max(found, key=lambda name: found[name])
    print(f"{best}: Spearman {correlation(model, maps[best], Regress.read(options.sts / 'dev.tsv')):.4f} on dev")
    if maps[best] is None:
        print("no map helps: the model is saved as it was")
    Model(model.to("cpu").albert, model.tokenizer, model.task, model.max_length, maps[best]).save(options.out)


def sentences_of(files: list[Path], count: int) -> list[str]:
    """Some of all files, the same every time."""
    split, found = sentence_splitter("split", "en"), list[str]()
    chance = random.Random(0)
    for document in read_documents(files):
        usable = [sentence for sentence in split(document) if len(sentence.split()) in WORDS]
        found += chance.sample(usable, min(len(usable), 10))
    return chance.sample(found, min(len(found), count))


def correlation(model: Model, after: SentenceMap | None, pairs: list[TextInput]) -> float:
    """Between cosines and what people said."""
    model.after = after
    left, right = (model.embed([getattr(pair, side) for pair in pairs]) for side in ("text", "text_b"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(spearmanr(cosines, [pair.label for pair in pairs]).statistic)


if __name__ == "__main__":
    main()
