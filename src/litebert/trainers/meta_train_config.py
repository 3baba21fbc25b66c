"""Settings of meta-training. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError
from litebert.meta.settings import MAX_INNER_STEPS, Algorithm, Distance


@dataclass(frozen=True, kw_only=True)
class MetaTrainConfig:
    model: str = DEFAULT
    """Model folder, or the name of a built-in or hub model."""
    data: Path
    """Labelled texts of many classes; or plain text, named .txt, whose words then serve as classes."""
    out: Path
    """Folder for the model, its checkpoints, its log and its test episodes."""
    algorithm: Algorithm = "proto"
    """Algorithm: proto and contrast learn a metric space of text vectors; anil, fomaml, maml and reptile learn an
    initialisation that adapts in a few steps."""
    valid: Path | None = None
    """Texts of other classes for choosing the best step; by default a fifth of the classes of --data, and another fifth
    is held out for tests."""
    test: Path | None = None
    """Texts of yet other classes, from which test episodes for litebert evaluate are drawn."""
    columns: tuple[str, ...] = ()
    """Column names, if not the usual ones: text=sentence label=class, or text=1 label=2."""
    skip_bad: bool = False
    """Skip unreadable rows instead of stopping at the first."""
    episodes: tuple[str, ...] = ("5-way", "1-5-shot", "5-queries", "100-episodes")
    """Shape of an episode: classes, examples (shots) and queries per class; a range is drawn anew for each episode.
    Episodes is their number per validation."""

    steps: int = 500
    """Optimizer steps."""
    batch_size: int = 4
    """Episodes per step."""
    length: int | None = None
    """Maximum tokens per text; by default the length the model was trained on."""
    learning_rate: float | None = None
    """Peak learning rate; by default 1e-4 for a hidden size of 768, inversely proportional to the hidden size."""
    distance: Distance = "cosine"
    """Distance between two vectors: cosine or squared Euclidean."""
    inner_steps: int = 3
    """For anil, fomaml, maml and reptile: adaptation steps per episode."""
    inner_rate: float = 0.01
    """Initial learning rate of these steps for the encoder; the head's is a hundred times that. All but reptile learn
    one rate per part."""
    validate_every: int | None = None
    """Steps between validations; by default a tenth of all steps."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU and on a CPU with bfloat16 instructions, fp32 elsewhere."""
    save_every: str = "10min"
    """Interval between checkpoints: steps ("500") or minutes ("10min")."""
    seed: int = 0
    """Random seed of the class split and of the episodes."""
    resume: bool = False
    """Resume from the latest checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""

    ESSENTIAL: ClassVar[tuple[str, ...]] = (
        "model", "data", "out", "algorithm", "valid", "test", "episodes", "steps", "learning_rate", "resume",
    )  # fmt: skip
    """What --help shows."""
    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "valid", "test", "columns", "skip_bad", "episodes", "length"),
        "model": ("model", "algorithm", "distance", "inner_steps", "inner_rate"),
        "optimization": ("steps", "batch_size", "learning_rate"),
        "computation": ("precision", "device"),
        "run": ("out", "validate_every", "save_every", "seed", "resume"),
    }
    """Subjects of --help-all."""

    def __post_init__(self) -> None:
        given = [name for name in ("length", "validate_every") if getattr(self, name) is not None]
        check_counts_and_seed(self, "steps", "batch_size", "inner_steps", *given)
        if self.inner_steps > MAX_INNER_STEPS:
            raise ConfigError(f"inner_steps={self.inner_steps} must be {MAX_INNER_STEPS} or fewer; 3 are usual")
        if not 0 < self.inner_rate < 10:
            raise ConfigError(f"inner_rate={self.inner_rate} must be above 0 and below 10; 0.01 is usual")
        if self.test is not None and self.valid is None:
            raise ConfigError(f"test={self.test} goes with --valid; without both, the classes of --data are divided")
