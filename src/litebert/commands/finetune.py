"""Teach a model a task from a file of examples.

Examples:
  litebert finetune --train train.csv --out runs/finetune
  litebert finetune --task classify --model runs/pretrain --train train.csv --valid valid.csv --out runs/finetune
  litebert finetune --task tag --model runs/pretrain --train train.conll --out runs/tagger
  litebert finetune --task similarity --train sts.tsv --out runs/similar

classify, multilabel and regress read tables (CSV, TSV, JSON lines, Parquet) with `text`, or `text_a` and `text_b`, and
`label`; tag reads CoNLL columns or JSON with spans, answer SQuAD's JSON, choose RACE's, DREAM's or C3's; similarity
reads pairs with scores or labels, triples, NLI or plain sentences; translate tables with `source` and `target`, or
train.en with train.de beside it. docs/tasks.md shows each.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, is_finished
from litebert.train.settings import Strategies
from litebert.trainers import decoder_settings as _translating

MAX_SEEDS = 100
OF_TASK = {
    "crf": ("tag",), "scheme": ("tag",), "class_weights": ("classify",), "label_smoothing": ("classify", "translate"),
    **dict.fromkeys(("loss", "pooling", "last_passes", "sizes"), ("similarity",)),
    **dict.fromkeys(_translating.NAMES, ("translate",)),
}  # fmt: skip
"""Settings of some tasks alone."""
BODIES = ("linear", "mlp", "cnn", "lstm")
HEADS_OF = {**dict.fromkeys(("classify", "multilabel", "regress", "tag"), BODIES), "answer": ("linear", "joint")}
"""Heads by task; the others have the linear one."""


@dataclass(frozen=True, kw_only=True)
class Run:
    model: str = DEFAULT
    """Model folder, or the name of one that is built in or on the hub. The head of a model that was taught another task
    is replaced."""
    train: Path
    """Labelled examples to learn from."""
    out: Path
    """Folder for the taught model, its checkpoints and its log."""
    task: Literal["classify", "multilabel", "regress", "tag", "answer", "choose", "similarity", "translate"] = (
        "classify"
    )
    """What to learn."""
    valid: Path | None = None
    """Labelled examples to choose the best epoch by; by default a tenth of the training examples, split off by seed."""
    test: Path | None = None
    """Labelled examples on which the finished model is measured, once."""
    columns: tuple[str, ...] = ()
    """What stands where, if not under its usual name: text=sentence label=class, or by number in a file without a
    header: text=1 label=2."""
    skip_bad: bool = False
    """Leave out rows that cannot be read, and list them in skipped.txt, instead of stopping at the first."""
    mix: tuple[str, ...] = ()
    """Further tasks to learn with the same encoder, one batch of each beside every batch: tag=train.conll."""

    epochs: int | None = None
    """Times to go through the examples; by default 3 to 20, more for fewer examples."""
    batch_size: int = 32
    """Examples per step."""
    length: int | None = None
    """Tokens that the model reads at once; longer texts are read in windows. By default what the model was trained on,
    or less if no text needs it."""
    learning_rate: float | None = None
    """The highest rate; by default 1e-4 for a hidden size of 768, more for smaller models in proportion."""
    metric: str | None = None
    """The score that chooses the best epoch, seed and trial; by default the task's first, such as accuracy or f1."""
    weight_decay: float = 0.01
    """Of the matrices."""
    patience: int = 5
    """Stop after so many epochs without a better score; 0 = never."""
    head: Literal["linear", "mlp", "cnn", "lstm", "joint"] = "linear"
    """What stands between the encoder and the scores; joint is for answer, mlp, cnn and lstm are not."""
    crf: bool = False
    """For tag: learn which tag follows which."""
    scheme: Literal["bio", "bioes"] = "bio"
    """For tag: mark only where names begin, or also where they end and those of one word."""
    class_weights: bool = False
    """For classify: a class counts more the rarer it is."""
    label_smoothing: float | None = None
    """For classify and translate: take this share of the certainty from what is right; by default 0, and 0.1 of a
    translation's tokens."""

    loss: Literal["auto", "cosent", "negatives", "contrast", "simcse"] = "auto"
    """For similarity: the order of scores; the own text among those of a batch; others of the same class; the same text
    read with other dropout. By default the one that fits the file; simcse reads any file without its labels."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """For similarity: what stands for a text; by default as the model has it, which is the mean."""
    last_passes: int | None = None
    """For similarity: pool the mean of the states after so many last passes; by default the last ones alone."""
    sizes: tuple[int, ...] = ()
    """For similarity: the first so many numbers of a vector are to tell by themselves too, such as 256 64."""

    dropout: float | None = None
    """Of hidden states and attention while learning; by default as the model has it, 0.1 with --r-drop and simcse."""
    r_drop: float = 0.0
    """Read every batch twice and weigh the distance between the two answers so much; 1 is usual."""
    adversarial: Literal["none", "freelb", "smart"] = "none"
    """Learn to withstand noise on the word embeddings: with FreeLB the worst of it, with SMART to answer the same."""
    lora: int = 0
    """Train nothing of the encoder but low-rank changes of this rank, at every depth another one; 8 is usual."""
    freeze_encoder: bool = False
    """Train nothing of the encoder but its pooler: every text is read once, before the first epoch, which then take a
    small part of the time; what is learned is less."""
    mixout: float = 0.0
    """At every step, see this share of the weights as they were before; 0.5 is usual."""

    seeds: int = 1
    """Do it with so many seeds, report mean and spread, and keep the one that validates best."""
    search: int = 0
    """Try so many settings of rate, batch size and layer decay, and keep the best."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU and on a CPU with instructions for it, fp32 elsewhere."""
    cuda_graphs: bool = True
    """On a GPU: record the work on small batches and replay it. The same is learned, faster."""
    save_every: str = "1epoch"
    """Between checkpoints: steps ("500"), minutes ("10min") or epochs ("1epoch")."""
    seed: int = 0
    """Decides the new head, the split and the order of the examples."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""


@dataclass(frozen=True, kw_only=True)
class Config(Strategies, _translating.Translating, Run):
    """All settings. Those of `Run` come first, as dataclasses count from the last base."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("epochs", "length", "last_passes") if getattr(self, name) is not None]
        check_counts_and_seed(self, "batch_size", "seeds", *given)
        for name in ("patience", "lora", "search"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be 0, which is off, or more")
        for name in ("mixout", "dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name}={value} must be at least 0 and below 1")
        if not 0 <= self.r_drop <= 100:
            raise ConfigError(f"r_drop={self.r_drop} must lie between 0 and 100; 1 is usual")
        for name, tasks in OF_TASK.items():
            if getattr(self, name) != getattr(Config, name) and self.task not in tasks:
                raise ConfigError(f"{name} is for --task {' or '.join(tasks)}, and this is {self.task}; leave it out")
        if self.freeze_encoder and (self.lora or self.mixout or self.unfreeze_steps or self.adversarial != "none"):
            raise ConfigError(
                "freeze_encoder leaves nothing for lora, mixout, unfreeze_steps or adversarial; choose one"
            )
        if self.task == "translate" and self.adversarial != "none":
            raise ConfigError("adversarial is for tasks that read alone, and this is translate; use --r-drop")
        heads = HEADS_OF.get(self.task, ("linear",))
        if self.head not in heads:
            raise ConfigError(
                f"head={self.head!r} is not for --task {self.task}, which has {', '.join(heads)}; leave it out"
            )
        if self.seeds > MAX_SEEDS or self.search > 1000:
            raise ConfigError(f"seeds={self.seeds}, search={self.search}: at most {MAX_SEEDS} and 1,000")
        if self.seeds > 1 and self.search:
            raise ConfigError("seeds and search are two runs: search first, then give what it found with --seeds")
        if self.r_drop and self.dropout == 0:
            raise ConfigError("r_drop compares two readings that dropout makes different, and dropout=0; leave it out")
        if self.r_drop and self.adversarial == "freelb":
            raise ConfigError(
                "r_drop and freelb each read a batch several times; use one of them, or smart with r_drop"
            )
        if self.sizes and min(self.sizes) < 1:
            raise ConfigError(f"sizes={min(self.sizes)} must be at least 1")
        if (self.last_passes or 1) > 1 and self.adversarial != "none":
            raise ConfigError("adversarial noise is learned with the last states alone; leave --last-passes out")
        if self.bounds == "view":
            raise ConfigError("bounds=view would save a model that is not what was trained; use --bounds project")


def run(config: Config) -> int:
    from litebert.trainers.finetuning import finetune
    from litebert.trainers.sweep import search, sweep

    console = make_console()
    if is_finished(config.out, "finetune", "a fine-tuned model", config.resume, console):
        return 0
    one = search if config.search else sweep if config.seeds > 1 else finetune
    if one(config, console) is None:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    console.print(f"model in {config.out}", highlight=False, markup=False)
    data = config.test or config.valid or "test.csv"
    columns = f" --columns {' '.join(map(shlex.quote, config.columns))}" if config.columns else ""
    console.print(f"next: litebert evaluate --model {config.out} --data {data}{columns}", highlight=False, markup=False)
    return 0
