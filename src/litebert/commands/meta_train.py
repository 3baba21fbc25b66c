"""Teach a model to learn new classes from a few examples.

Examples:
  litebert meta-train --data intents.csv --out runs/meta
  litebert meta-train --data train.csv --valid valid.csv --algorithm anil --episodes 5-way 1-shot --out runs/meta
  litebert meta-train --data text.txt --out runs/meta

It practises on small tasks drawn from a table of many classes: a few classes, a few examples of each, and questions.
Classes are learned from, chosen by or tested on, never two of these. From a plain text it draws tasks without labels:
which word is hidden in this sentence? What comes out is a model like any other, for adapt above all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.meta.settings import MOST_STEPS, Algorithm, Distance
from litebert.run_folder import INTERRUPTED, is_finished


@dataclass(frozen=True, kw_only=True)
class Config:
    model: str = DEFAULT
    """Model folder, or the name of one that is built in or on the hub."""
    data: Path
    """Labelled texts of many classes; or a plain text, named .txt, whose words are then the classes."""
    out: Path
    """Folder for the model, its checkpoints, its log and the episodes it is measured on."""
    algorithm: Algorithm = "proto"
    """How to learn: proto and contrast arrange the vectors of texts; anil, fomaml, maml and reptile learn weights from
    which a few steps suffice."""
    valid: Path | None = None
    """Texts of other classes to choose the best step by; by default a fifth of the classes of --data, and another
    fifth is kept for tests."""
    test: Path | None = None
    """Texts of still other classes, of which episodes for litebert evaluate are written."""
    columns: tuple[str, ...] = ()
    """What stands where, if not under its usual name: text=sentence label=class, or text=1 label=2."""
    skip_bad: bool = False
    """Leave out rows that cannot be read instead of stopping at the first."""
    episodes: tuple[str, ...] = ("5-way", "1-5-shot", "5-queries", "100-episodes")
    """The small tasks: so many classes, examples and questions of each, a range where every task draws its own; and of
    how many a validation is made."""

    steps: int = 500
    """Steps of the optimizer."""
    batch_size: int = 4
    """Episodes per step."""
    length: int | None = None
    """Tokens of a text that are read; by default what the model was trained on."""
    learning_rate: float | None = None
    """The highest rate; by default 1e-4 for a hidden size of 768, more for smaller models in proportion."""
    distance: Distance = "cosine"
    """What makes two vectors near: their angle, or their squared distance."""
    inner_steps: int = 3
    """For anil, fomaml, maml and reptile: steps on the examples of an episode."""
    inner_rate: float = 0.01
    """Their rate at the beginning, for the encoder, and a hundred times that for the head; all but reptile learn them,
    one for each part."""
    validate_every: int | None = None
    """Steps between validations; by default a tenth of all."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU and on a CPU with instructions for it, fp32 elsewhere."""
    save_every: str = "10min"
    """Between checkpoints: steps ("500") or minutes ("10min")."""
    seed: int = 0
    """Decides which classes are for what, and the episodes."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""

    def __post_init__(self) -> None:
        given = [name for name in ("length", "validate_every") if getattr(self, name) is not None]
        check_counts_and_seed(self, "steps", "batch_size", "inner_steps", *given)
        if self.inner_steps > MOST_STEPS:
            raise ConfigError(f"inner_steps={self.inner_steps} must be {MOST_STEPS} or fewer; 3 are usual")
        if not 0 < self.inner_rate < 10:
            raise ConfigError(f"inner_rate={self.inner_rate} must be above 0 and below 10; 0.01 is usual")
        if self.test is not None and self.valid is None:
            raise ConfigError(f"test={self.test} goes with --valid; without both, the classes of --data are divided")


def run(config: Config) -> int:
    from litebert.trainers.meta_training import meta_train

    console = make_console()
    if is_finished(config.out, "meta-train", "a meta-trained model", config.resume, console):
        return 0
    if meta_train(config, console) is None:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    console.print(f"model in {config.out}", highlight=False, markup=False)
    tested = config.out / "test.jsonl"
    evaluate = f"litebert evaluate --model {config.model} {config.out} --episodes {tested} --methods words prototypes"
    adapt = f"litebert adapt --model {config.out} --examples few.csv --out runs/adapted"
    line = f"{evaluate}, or {adapt}" if tested.exists() else adapt
    console.print(f"next: {line}", highlight=False, markup=False, soft_wrap=True)
    return 0
