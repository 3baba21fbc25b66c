"""What the tests of fine-tuning share: a model so small that a run takes a fraction of a second, and files to teach."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.files import read_json
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.studies.demo.data import write_questions, write_tagged
from litebert.tasks import TASKS, Mask
from litebert.tokenizer import Tokenizer
from tests.commands.conftest import WORDS, litebert, make_examples, once, write_csv

EXAMPLES = 23  # the classes are not of the same size
QUICK = ("--batch-size", 8, "--length", 24, "--device", "cpu")


def small_config(tokenizer: Tokenizer) -> AlbertConfig:
    return AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )


def small_start(tokenizer: Tokenizer, factory: pytest.TempPathFactory) -> Path:
    """A model to start from."""

    def build(folder: Path) -> None:
        config = small_config(tokenizer)
        torch.manual_seed(0)
        Model(Albert(config, pretraining_heads(config)), tokenizer, Mask(), 24).save(folder)

    return once(factory, "small-start", build)


def untrained(name: str, train: Path, tokenizer: Tokenizer, out: Path) -> Path:
    """A model whose task follows a file and whose weights are random: it answers, and knows nothing."""
    kind: Any = TASKS[name]
    task, config = kind.learn_from(kind.read(train)), small_config(tokenizer)
    torch.manual_seed(0)
    Model(Albert(config, {task.head_name: task.head(config)}), tokenizer, task, 24).save(out)
    return out


def small_examples(factory: pytest.TempPathFactory) -> Path:
    """A table of separable examples."""
    return once(factory, "small-examples", lambda folder: write_examples(folder / "t.csv")) / "t.csv"


def write_examples(path: Path) -> None:
    write_csv(path, make_examples(EXAMPLES))


def command(start: Path, train: Path, out: Path, *flags: object) -> tuple[object, ...]:
    """A short fine-tuning; of a flag given twice the later one counts."""
    return ("finetune", "--model", start, "--train", train, "--out", out, "--epochs", 2, *QUICK, *flags)


def taught_once(factory: pytest.TempPathFactory, name: str, start: Path, train: Path, *flags: object) -> Path:
    """The folder of a fine-tuned model that several tests look at."""

    def build(folder: Path) -> None:
        assert litebert(*command(start, train, folder / "out", *flags)) == 0

    return once(factory, name, build) / "out"


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def logged(folder: Path, figure: str) -> dict[int, Any]:
    """A figure of the log, by step."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["step"]: line[figure] for line in lines if figure in line}


def finished(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / "finished.json"))


# --- files of every task ----------------------------------------------------------------------------------------------


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_labels(path: Path, label: Callable[[dict[str, str]], object], seed: int) -> Path:
    rows = [{"text": example["text"], "label": label(example)} for example in make_examples(18, seed)]
    return write_jsonl(path.with_suffix(".jsonl"), rows)


def write_choices(path: Path, seed: int) -> Path:
    asked = {"question": "what is it about", "options": list(WORDS)}
    rows = [asked | {"text": example["text"], "answer": example["label"]} for example in make_examples(12, seed)]
    return write_jsonl(path.with_suffix(".jsonl"), rows)


def write_pairs(path: Path, seed: int) -> Path:
    """Neighbours, and how many letters they differ by."""
    texts = [example["text"] for example in make_examples(19, seed)]
    rows = [{"text_a": a, "text_b": b, "score": abs(len(a) - len(b)) / 2 + 0.5} for a, b in pairwise(texts)]
    return write_jsonl(path.with_suffix(".jsonl"), rows)


FILES: dict[str, Callable[[Path, int], Path]] = {
    "classify": lambda path, seed: write_labels(path, lambda example: example["label"], seed),
    "multilabel": lambda path, seed: write_labels(path, lambda x: [x["label"], f"{len(x['text']) % 2}"], seed),
    "regress": lambda path, seed: write_labels(path, lambda example: len(example["text"]), seed),
    "tag": lambda path, seed: write_tagged(path.with_suffix(".conll"), 16, str(seed)),
    "answer": lambda path, seed: write_questions(path.with_suffix(".json"), 4, str(seed)),
    "choose": write_choices,
    "similarity": write_pairs,
}
