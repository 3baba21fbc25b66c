"""Settings of distillation. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError

SPEEDS = (1.5, 2, 3)
"""Speed-ups at which an elastic student with early exit is measured."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    teacher: str | None = None
    """Teacher: a model folder, the name of a model, or an encoder folder saved by transformers."""
    from_bert: Path | None = None
    """Folder of a BERT, RoBERTa or DistilBERT to convert into an ALBERT."""
    data: Path
    """Texts to learn from: a table as for the teacher's task, or plain text with one text per line."""
    out: Path
    """Folder for the student, its checkpoints and its log."""
    student: str | None = None
    """Model to start from, best with the teacher's vocabulary; by default the teacher itself."""
    passes: int | None = None
    """Passes of the student; by default half of the teacher's, or those of --student; all of them with --elastic, and
    the number of layers with --from-bert."""
    embedding_size: int | None = None
    """For --from-bert: embedding size of the ALBERT; by default 128, at most the hidden size."""
    elastic: bool = False
    """Train one student for several depths: it answers after each quarter of its passes."""
    valid: Path | None = None
    """Texts for choosing the best epoch and calibrating early exit; by default a tenth of --data, split off by seed."""
    test: Path | None = None
    """Labelled examples on which teacher and student are evaluated once, at the end."""
    columns: tuple[str, ...] = ()
    """Column names, if not the usual ones: text=sentence label=class, or text=1 label=2."""
    epochs: int | None = None
    """Passes over the texts; by default 3 to 20, more for fewer texts."""
    batch_size: int = 32
    """Texts per step."""
    learning_rate: float | None = None
    """Peak learning rate; by default 1e-4 for a hidden size of 768, inversely proportional to the hidden size, and five
    times that with --from-bert."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU and on a CPU with bfloat16 instructions, fp32 elsewhere."""
    save_every: str = "1epoch"
    """Interval between checkpoints: steps ("500"), minutes ("10min") or epochs ("1epoch")."""
    seed: int = 0
    """Random seed of the data order and of the validation split."""
    resume: bool = False
    """Resume from the latest checkpoint in --out."""
    json: bool = False
    """Print JSON instead of a table."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""

    ESSENTIAL: ClassVar[tuple[str, ...]] = (
        "teacher", "from_bert", "data", "out", "passes", "elastic", "test", "epochs", "learning_rate", "resume",
    )  # fmt: skip
    """What --help shows."""
    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "valid", "test", "columns"),
        "model": ("teacher", "from_bert", "student", "passes", "embedding_size", "elastic"),
        "optimization": ("epochs", "batch_size", "learning_rate"),
        "computation": ("precision", "device"),
        "run": ("out", "save_every", "seed", "resume", "json"),
    }
    """Subjects of --help-all."""

    def __post_init__(self) -> None:
        if (self.teacher is None) == (self.from_bert is None):
            raise ConfigError("give one of --teacher, a model to learn from, and --from-bert, a BERT to make smaller")
        if self.from_bert is None and self.embedding_size is not None:
            raise ConfigError(
                f"embedding_size={self.embedding_size} is for --from-bert; others keep theirs: leave it out"
            )
        if self.from_bert is not None and self.student is not None:
            raise ConfigError("--from-bert makes its own student; leave --student out, or give the BERT as --teacher")
        given = [name for name in ("epochs", "passes") if getattr(self, name) is not None]
        check_counts_and_seed(self, "batch_size", *given)
        if self.learning_rate is not None and not 0 < self.learning_rate < 1:
            raise ConfigError(f"learning_rate={self.learning_rate} must lie between 0 and 1; 1e-4 is usual")
