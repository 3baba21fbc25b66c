"""One tiny flow through the command line, from raw text to a classifier, that the recipes' tests share."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from litebert.cli import main
from litebert.device import has_bfloat16
from tests.conftest import PROSE

WORDS = {
    "weather": ["rain", "thunder", "seconds", "roof", "morning", "weather"],
    "food": ["butter", "eggs", "recipe", "sandwiches", "baker", "breakfast"],
    "travel": ["train", "stations", "bridge", "map", "stopped", "people"],
}
FILLER = ["the", "and", "was", "on", "a", "of", "before", "every", "when", "they"]
EXAMPLES = 24
QUICK = ("--batch-size", 6, "--length", 12, "--device", "cpu")
UNUSUAL = "fp32" if has_bfloat16(torch.device("cpu")) else "bf16"
"""The precision that is not this machine's own."""
SMALL = ("--preset", "tiny", "--batch-size", "2", "--length", "16", "--device", "cpu", "--validation-rows", "4")


@dataclass(frozen=True)
class Flow:
    """Where every stage left its result."""

    corpus: Path
    tokenizer: Path
    shards: Path
    pretrained: Path
    examples: Path
    """A table of separable examples."""
    classifier: Path


def litebert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def make_examples(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Short texts whose class is told by their words."""
    rng = random.Random(seed)
    examples = []
    for number in range(count):
        label = list(WORDS)[number % len(WORDS)]
        words = rng.choices(FILLER, k=3) + rng.choices(WORDS[label], k=3)
        examples.append({"text": " ".join(rng.sample(words, len(words))), "label": label})
    return examples


def write_csv(path: Path, rows: list[dict[str, str]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are the same to the last bit only when the same threads make them; and workers share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """A folder that one of the test workers builds and all of them read."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, built = shared / name, shared / f"{name}.built"
    with FileLock(shared / f"{name}.lock"):
        if not built.exists():
            folder.mkdir()
            build(folder)
            built.touch()
    return folder


def stages(folder: Path) -> Flow:
    return Flow(
        *(folder / name for name in ("corpus.txt", "tok", "shards", "pretrained", "examples.csv", "classifier"))
    )


def build_flow(folder: Path) -> None:
    flow = stages(folder)
    documents = [PROSE[at : at + 5] for at in range(0, len(PROSE), 5)]
    flow.corpus.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n", encoding="utf-8")
    write_csv(flow.examples, make_examples(EXAMPLES))
    assert litebert("tokenizer", "--input", flow.corpus, "--vocab-size", 200, "--out", flow.tokenizer) == 0
    assert litebert("prepare", "--input", flow.corpus, "--tokenizer", flow.tokenizer, "--out", flow.shards) == 0
    assert litebert("pretrain", "--data", flow.shards, "--out", flow.pretrained, "--steps", 4, *SMALL) == 0
    assert litebert(
        "finetune", "--task", "classify", "--model", flow.pretrained, "--train", flow.examples,
        "--valid", flow.examples, "--out", flow.classifier, "--epochs", 10, *QUICK, "--learning-rate", 5e-4,
    ) == 0  # fmt: skip


@pytest.fixture(scope="session")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Flow:
    return stages(once(tmp_path_factory, "flow", build_flow))
