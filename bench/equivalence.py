"""Does this version compute what another one did, to the bit?

  python bench/equivalence.py record before.json     # in one checkout
  python bench/equivalence.py record after.json      # in the other, on the same machine
  python bench/equivalence.py compare before.json after.json

What is recorded: the loss curves and the files of tiny runs of every command that writes a model, and what the built-in
models answer in float32 and int8, at several depths. All of it through contracts: the command line, `litebert.load` and
what a loaded model offers. One thread, since the order of a sum decides its last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

import litebert
from litebert.cli import main as run_command

TOPICS = {
    "weather": ["rain", "thunder", "storm", "clouds", "sunshine", "wind"],
    "food": ["butter", "eggs", "recipe", "sandwich", "bakery", "breakfast"],
    "travel": ["train", "station", "bridge", "map", "suitcase", "passport"],
}
FILLER = ["the", "and", "was", "on", "a", "of", "before", "every", "when", "they"]
NOT_COMPARED = {"run.json", "report.html", "finished.json", "README.md", "few_shot.json", "quantize.json"}
"""They hold times, versions and commits; what matters of metrics.jsonl is recorded as a curve."""
TIMELESS = ("loss", "mlm_accuracy", "sop_accuracy", "accuracy", "valid")
QUESTIONS = [
    "A man is playing a guitar.",
    "The bakery opened at five, and by seven the shelves were empty.",
    "Where is my order?",
    "Rain",
    "It was the best of times, it was the worst of times, and nobody in the village remembered which was which.",
] * 3
MODELS = {"litebert-base-en": (12, 6, 1), "litebert-sentences-en": (12, 6, 3), "litebert-small-zh": (12, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("record").add_argument("out", type=Path)
    comparison = modes.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.mode == "compare":
        sys.exit(compare(json.loads(options.before.read_text()), json.loads(options.after.read_text())))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = dict(record_runs(Path(folder))) | dict(record_models(Path(folder)))
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{len(found)} values in {options.out}")


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in different:
        print(f"{name}: {before.get(name, 'absent')} -> {after.get(name, 'absent')}")
    print(f"{len(before.keys() | after.keys()) - len(different)} of {len(before.keys() | after.keys())} are equal")
    return 1 if different else 0


def record_runs(folder: Path) -> Iterator[tuple[str, str]]:
    """Every command that writes something, on text made here."""
    write_data(folder)
    quick = ("--device", "cpu")
    small = ("--preset", "tiny", "--batch-size", 2, "--length", 32, "--validation-rows", 4, "--steps", 6, *quick)
    taught = ("--batch-size", 8, "--length", 24, "--epochs", 2, "--learning-rate", 5e-4, *quick)
    runs: dict[str, tuple[Any, ...]] = {
        "tok": ("tokenizer", "--input", "corpus.txt", "--vocab-size", 200),
        "shards": ("prepare", "--input", "corpus.txt", "--tokenizer", "tok"),
        "pt": ("pretrain", "--data", "shards", *small),
        "pt-unshared": ("pretrain", "--data", "shards", *small, "--sharing", "none", "--optimizer", "muon"),
        "pt-bias": ("pretrain", "--data", "shards", *small, "--attention-distance", 4, "--squash", "tanh",
                    "--cold-factor", 0.1, "--average", 0.9, "--bounds", "project"),
        "pt-strategies": ("pretrain", "--data", "shards", *small, "--layer-decay-rate", 0.9, "--sentences", "next",
                          "--unfreeze-steps", 3),
        "ft-classify": ("finetune", "--model", "pt", "--train", "train.csv", "--valid", "valid.csv", *taught),
        "ft-rdrop": ("finetune", "--model", "pt", "--train", "train.csv", *taught, "--r-drop", 0.5),
        "ft-lora": ("finetune", "--model", "pt", "--train", "train.csv", *taught, "--lora", 4),
        "ft-freelb": ("finetune", "--model", "pt", "--train", "train.csv", *taught, "--adversarial", "freelb"),
        "ft-translate": ("finetune", "--task", "translate", "--model", "pt", "--train", "targets.tsv", *taught,
                         "--target-vocab-size", 100, "--decoder-hidden-size", 32, "--decoder-heads", 2),
        "ft-multilabel": ("finetune", "--task", "multilabel", "--model", "pt", "--train", "train.csv", *taught),
        "ft-tag": ("finetune", "--task", "tag", "--model", "pt", "--train", "tags.conll", *taught),
        "ft-answer": ("finetune", "--task", "answer", "--model", "pt", "--train", "questions.json", *taught),
        "ft-similarity": ("finetune", "--task", "similarity", "--model", "pt", "--train", "pairs.jsonl", *taught),
        "distilled": ("distill", "--teacher", "ft-classify", "--data", "train.csv", "--epochs", 2, *quick),
        "elastic": ("distill", "--teacher", "ft-classify", "--data", "train.csv", "--elastic", "--epochs", 2, *quick),
        "meta": ("meta-train", "--model", "pt", "--data", "many.csv", "--episodes", "2-way", "1-2-shot", "2-queries",
                 "5-episodes", "--steps", 6, "--batch-size", 2, "--validate-every", 3, *quick),
        "maml": ("meta-train", "--model", "pt", "--data", "many.csv", "--algorithm", "maml", "--episodes", "2-way",
                 "1-2-shot", "2-queries", "5-episodes", "--steps", 3, "--batch-size", 2, "--validate-every", 3, *quick),
        "adapted": ("adapt", "--model", "litebert-base-en", "--examples", "valid.csv"),
        "int8": ("quantize", "--model", "ft-classify", "--data", "train.csv"),
        "base-int8": ("quantize", "--model", "litebert-base-en", "--data", "corpus.txt"),
    }  # fmt: skip
    here = Path.cwd()
    os.chdir(folder)
    try:
        for name, command in runs.items():
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = run_command([str(word) for word in (*command, "--out", name)])
            if code:
                print(f"{name}: exit code {code}\n{said.getvalue()[-2000:]}")
            yield f"{name}/exit code", str(code)
            yield from files_of(Path(name))
    finally:
        os.chdir(here)


def files_of(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for key in sorted({key for line in lines for key in line if "loss" in key or "accuracy" in key}):
                curve = [line[key] for line in lines if key in line]
                yield f"{path}:{key}", f"{digest(json.dumps(curve).encode())} last {curve[-1]}"
            continue
        left_out = path.name in NOT_COMPARED or path.suffix in (".png", ".svg", ".html") or "checkpoints" in path.parts
        if path.is_file() and not left_out and not path.name.startswith("events."):
            yield str(path), digest(path.read_bytes())


def record_models(folder: Path) -> Iterator[tuple[str, str]]:
    """What the built-in models answer."""
    for name, depths in MODELS.items():
        yield from record_model(name, litebert.load(name), depths)
    for name in ("base-int8", "int8"):
        yield from record_model(name, litebert.load(folder / name), (1, 2))
    model = litebert.load("litebert-base-en")
    yield "fill", digest(repr(model.fill_mask("Paris is the [MASK] of France.")).encode())
    yield "score", digest(repr(model.score(QUESTIONS[:2])).encode())
    classifier = litebert.load(folder / "elastic")
    yield "predict", digest(repr(classifier.predict(QUESTIONS)).encode())
    classifier.set_speed(1.2)
    yield "early exit", digest(repr(classifier.predict(QUESTIONS)).encode())
    adapted = litebert.load(folder / "adapted")
    yield "adapted", digest(repr(adapted.predict(QUESTIONS)).encode())


def record_model(name: str, model: Any, depths: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    yield f"{name}: embed", digest(model.embed(QUESTIONS))
    yield f"{name}: embed one", digest(model.embed(QUESTIONS[:1]))
    chance = np.random.default_rng(0)
    lengths = torch.tensor([7, 24, 1, 13])
    ids = torch.from_numpy(chance.integers(5, model.config.vocab_size, (4, 24)))
    mask = torch.arange(24)[None] < lengths[:, None]
    kinds = torch.from_numpy(chance.integers(0, 2, (4, 24)))
    with torch.inference_mode():
        for depth in depths:
            yield f"{name}: full, depth {depth}", digest(model.encoder(ids, depth=depth).numpy())
            padded = model.encoder(ids, mask, kinds, depth=depth)
            yield f"{name}: padded, depth {depth}", digest(padded.numpy())
            rows = torch.tensor([0, 24, 48, 72])
            yield f"{name}: rows, depth {depth}", digest(model.encoder(ids, mask, rows=rows, depth=depth).numpy())
            packed = model.encoder.packed(ids[mask], lengths, kinds[mask], depth=depth)
            yield f"{name}: packed, depth {depth}", digest(packed.numpy())


def digest(value: bytes | np.ndarray) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()).hexdigest()[:16]


def write_data(folder: Path) -> None:
    chance = random.Random(0)

    def text(topic: str, words: int = 8) -> str:
        return " ".join(chance.choices(FILLER, k=words // 2) + chance.choices(TOPICS[topic], k=words - words // 2))

    def write(name: str, content: str) -> None:
        (folder / name).write_text(content, encoding="utf-8")

    topics = list(TOPICS)
    write("corpus.txt", "\n\n".join(
        "\n".join(f"{text(chance.choice(topics), 12).capitalize()}." for _ in range(5)) for _ in range(60)
    ))  # fmt: skip
    for name, rows in (("train.csv", 48), ("valid.csv", 18)):
        lines = (f"{text(topics[row % 3])},{topics[row % 3]}" for row in range(rows))
        write(name, "text,label\n" + "\n".join(lines) + "\n")
    words = [word for some in TOPICS.values() for word in some]
    lines = (f"{word} {' '.join(chance.choices(FILLER, k=5))},about {word}" for word in words for _ in range(8))
    write("many.csv", "text,label\n" + "\n".join(lines) + "\n")
    tagged = (
        "\n".join(f"{word} {'O' if word in FILLER else 'B-THING'}" for word in text("food").split()) for _ in range(20)
    )
    write("tags.conll", "\n\n".join(tagged) + "\n")
    paragraphs = []
    for number in range(12):
        context = text("travel", 12)
        answer = context.split()[-1]
        asked = {"id": str(number), "question": "what is last ?",
                 "answers": [{"text": answer, "answer_start": len(context) - len(answer)}]}  # fmt: skip
        paragraphs.append({"context": context, "qas": [asked]})
    write("questions.json", json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    pairs = ({"text_a": text(a), "text_b": text(b), "score": float(a == b)} for a in topics for b in topics * 3)
    lines = (f"{sentence}\t{sentence[::-1]}" for sentence in (text(topic) for topic in topics * 8))
    write("targets.tsv", "source\ttarget\n" + "\n".join(lines) + "\n")
    write("pairs.jsonl", "\n".join(map(json.dumps, pairs)) + "\n")


if __name__ == "__main__":
    main()
