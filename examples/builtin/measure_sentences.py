"""Sentence vectors of several models on the same texts in one run: similarity, messages, intents.

  python examples/builtin/measure_sentences.py --tasks tasks litebert-sentences-en runs/sentences/model@3,6,12 \\
      --teacher minilm,mean,1 --sets dev

Spearman on STS-B, STS12 to STS16 (all pairs of a year together) and SICK, of cosines and scores; accuracy of a logistic
regression on unit vectors for the demo's messages (240 for training, 120 for testing) and BANKING77 with 10 examples
of each class. `--sets dev` scores STS-B's development pairs alone; the other sets are for the end of a study.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_teachers import Teacher, Tokens
from sklearn.linear_model import LogisticRegression

import litebert
from litebert.device import pick_device
from litebert.model.sentence_head import unit
from litebert.studies.demo.data import split_tickets
from litebert.tasks import Similarity

Embed = Callable[[Sequence[str]], np.ndarray]
Pairs = list[tuple[str, str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="NAME or FOLDER, with @PASSES[,PASSES] where not all")
    parser.add_argument("--teacher", type=Teacher.parse, action="append", default=[])
    parser.add_argument("--tasks", type=Path, required=True, help="folder with glue/, similar/ and intents/")
    parser.add_argument("--sets", choices=["dev", "all"], default="dev")
    parser.add_argument("--dimensions", type=int, nargs="*", default=[], help="of each model, cut to so many as well")
    parser.add_argument("--out", type=Path, help="JSON")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for name, embed in [*students(options.models), *teachers(options.teacher)]:
        for size in [None, *options.dimensions]:
            cut = embed if size is None else lambda texts, embed=embed, size=size: embed(texts)[:, :size]
            label = name if size is None else f"{name}, {size} dimensions"
            results[label] = measure(cut, options.tasks, options.sets)
            print(label, " ".join(f"{key} {value:.4f}" for key, value in results[label].items()), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def students(names: Sequence[str]) -> list[tuple[str, Embed]]:
    embedders: list[tuple[str, Embed]] = []
    for name in names:
        folder, _, passes = name.partition("@")
        model = litebert.load(folder).to(pick_device("auto"))
        for count in map(int, passes.split(",") if passes else [model.passes]):

            def embed(texts: Sequence[str], model: litebert.Model = model, count: int = count) -> np.ndarray:
                model.passes = count
                return unit(model.embed(texts))

            embedders.append((f"{Path(folder).name}, {count} passes", embed))
    return embedders


def teachers(chosen: Sequence[Teacher]) -> list[tuple[str, Embed]]:
    def embed_of(teacher: Teacher) -> Embed:
        device = pick_device("auto")
        model, tokenizer = teacher.model(device), teacher.tokenizer()
        tokenizer.enable_truncation(256)

        def embed(texts: Sequence[str]) -> np.ndarray:
            ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
            flat = torch.tensor([number for row in ids for number in row], device=device)
            tokens = Tokens(flat, torch.tensor([len(row) for row in ids]))
            vectors = torch.empty(len(ids), model.config.hidden_size)
            starts = tokens.starts
            with torch.inference_mode():
                for rows in tokens.lengths.argsort().split(64):
                    vectors[rows] = teacher.vectors(model, *tokens.padded(starts, rows)).cpu()
            return vectors.numpy()

        return embed

    return [(teacher.folder.name, embed_of(teacher)) for teacher in chosen]


def measure(embed: Embed, tasks: Path, sets: str) -> dict[str, float]:
    scores = {"STS-B dev": correlation(embed, sts_b(tasks / "glue/STS-B/dev.tsv"))}
    if sets == "dev":
        return scores
    scores["STS-B test"] = correlation(embed, sts_b(tasks / "glue/STS-B/sts-test.tsv"))
    years = [f"STS{year}" for year in range(12, 17)]
    for year in years:
        files = sorted((tasks / f"similar/semeval-sts/20{year[3:]}").glob("*.test.tsv"))
        scores[year] = correlation(embed, [pair for file in files for pair in scored(file)])
    scores["SICK"] = correlation(embed, sick(tasks / "similar/sick2014/SICK_test_annotated.txt"))
    scores["STS12-16, SICK"] = float(np.mean([scores[name] for name in (*years, "SICK")]))
    with tempfile.TemporaryDirectory() as folder:
        parts = split_tickets(Path(folder), "en", seed=0)
        train, test = ([(row["text"], row["label"]) for row in csv.DictReader(part.open())] for part in parts)
    scores["messages"] = accuracy(embed, train, test, strength=1)
    train, test = (lines(tasks / f"intents/fixed_BANKING77/{part}") for part in ("train_10", "test"))
    for strength in (1, 10):
        scores[f"BANKING77, C={strength}"] = accuracy(embed, train, test, strength=strength)
    return scores


def correlation(embed: Embed, pairs: Pairs) -> float:
    vectors = unit(embed([text for pair in pairs for text in pair[:2]]))
    return float(spearmanr((vectors[::2] * vectors[1::2]).sum(1), [score for *_, score in pairs])[0])


def accuracy(embed: Embed, train: list[tuple[str, str]], test: list[tuple[str, str]], strength: float) -> float:
    (train_texts, train_labels), (test_texts, test_labels) = (zip(*part, strict=True) for part in (train, test))
    classifier = LogisticRegression(C=strength, max_iter=2000).fit(unit(embed(train_texts)), train_labels)
    return float(classifier.score(unit(embed(test_texts)), test_labels))


def sts_b(file: Path) -> Pairs:
    """With a header, or as the benchmark itself comes."""
    if "sentence1" in file.open(encoding="utf-8").readline():
        return [(pair.text, str(pair.text_b), float(pair.label or 0)) for pair in Similarity.read(file)]
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    return [(row[5], row[6], float(row[4])) for row in rows if len(row) >= 7]


def scored(file: Path) -> Pairs:
    """Score, text, text; some pairs of a year have no score."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    return [(row[1], row[2], float(row[0])) for row in rows if len(row) >= 3 and row[0].strip()]


def sick(file: Path) -> Pairs:
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    return [(row[1], row[2], float(row[3])) for row in rows if len(row) >= 4]


def lines(folder: Path) -> list[tuple[str, str]]:
    texts, labels = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "label"))
    return list(zip(texts, labels, strict=True))


if __name__ == "__main__":
    main()
