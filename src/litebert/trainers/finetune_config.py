"""Settings of fine-tuning. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from litebert.builtin import DEFAULT
from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError
from litebert.train.options import STRATEGY_NAMES, Strategies

MAX_SEEDS = 100
MAX_TRIALS = 1000
ENCODER_HEADS = ("linear", "mlp", "cnn", "lstm")
HEADS_BY_TASK = {
    **dict.fromkeys(("classify", "multilabel", "regress", "tag"), ENCODER_HEADS),
    "answer": ("linear", "joint"),
}
"""The other tasks have the linear head only."""


@dataclass(frozen=True, kw_only=True)
class DecoderSettings:
    """The decoder of --task translate."""

    layers: int = 4
    """Layers with self-attention, which write."""
    reading_layers: int = 2
    """Layers between the encoder and those; with --freeze-encoder all that learns to read."""
    hidden_size: int = 256
    """Hidden size of both."""
    intermediate_size: int = 1024
    """Width of the feed-forward layers."""
    heads: int = 4
    """Attention heads."""
    sharing: Literal["all", "none"] = "none"
    """Parameter sharing as in ALBERT: all = one reading and one writing layer, each applied repeatedly."""
    dropout: float = 0.3
    """Dropout while training."""
    depths: tuple[int, ...] = ()
    """Encoder depths whose hidden states the decoder reads (0: before the first pass), mixed by learned weights; by
    default after each third of the passes."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Strategies):
    model: str = DEFAULT
    """Model folder, or the name of a built-in or hub model. A head for another task is replaced."""
    train: Path
    """Labelled training examples."""
    out: Path
    """Folder for the model, its checkpoints and its log."""
    task: Literal["classify", "multilabel", "regress", "tag", "answer", "choose", "similarity", "translate"] = (
        "classify"
    )
    """Task to learn."""
    valid: Path | None = None
    """Labelled examples for choosing the best epoch; by default a tenth of the training examples, split off by seed."""
    test: Path | None = None
    """Labelled examples on which the final model is evaluated once."""
    columns: tuple[str, ...] = ()
    """Column names, if not the usual ones: text=sentence label=class; or column numbers in a file without a header:
    text=1 label=2."""
    skip_bad: bool = False
    """Skip unreadable rows and list them in skipped.txt, instead of stopping at the first."""
    mix: tuple[str, ...] = ()
    """Auxiliary tasks trained with the same encoder, one batch of each per step: tag=train.conll."""

    epochs: int | None = None
    """Passes over the examples; by default 3 to 20, more for fewer examples."""
    batch_size: int = 32
    """Examples per step."""
    length: int | None = None
    """Maximum tokens per window; longer texts are split into windows. By default the length the model was trained on,
    or less if no text needs it."""
    learning_rate: float | None = None
    """Peak learning rate; by default 1e-4 for a hidden size of 768, inversely proportional to the hidden size."""
    metric: str | None = None
    """Metric that selects the best epoch, seed and trial; by default the task's first, such as accuracy or f1."""
    weight_decay: float = 0.01
    """Weight decay of matrices; biases and LayerNorms have none."""
    patience: int = 5
    """Stop early after this many epochs without a better score; 0 = never."""
    head: Literal["linear", "mlp", "cnn", "lstm", "joint"] = "linear"
    """Task head on top of the encoder; joint is for answer, where mlp, cnn and lstm do not exist."""
    crf: bool = False
    """For tag: add a conditional random field over tag transitions."""
    scheme: Literal["bio", "bioes"] = "bio"
    """For tag: tagging scheme."""
    class_weights: bool = False
    """For classify: weight classes by inverse frequency."""
    label_smoothing: float | None = None
    """For classify and translate: label smoothing; by default 0, and 0.1 for translate."""

    loss: Literal["auto", "cosent", "negatives", "contrast", "simcse"] = "auto"
    """For similarity: ranking of scores (CoSENT), in-batch negatives, supervised contrast, or SimCSE. By default the
    one that fits the file; simcse reads any file without its labels."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """For similarity: pooling of token states; by default that of the model, else mean."""
    last_passes: int | None = None
    """For similarity: pool the mean hidden states of this many last passes; by default of the last one."""
    sizes: tuple[int, ...] = ()
    """For similarity: vector sizes to which vectors may be truncated (Matryoshka), such as 256 64."""

    target_vocab_size: int = 8000
    """For translate: size of the target vocabulary, which is learned from the targets."""
    target_tokenizer: Path | None = None
    """For translate: tokenizer folder for the target, instead of a new vocabulary."""
    beams: int = 5
    """For translate: beam size of the final model; 1 is greedy search, which validation uses."""
    length_penalty: float = 1.0
    """For translate: the log-likelihood of T tokens is divided by ((5 + T) / 6) to this power; 0 prefers short
    targets."""
    decoder: DecoderSettings = field(default_factory=DecoderSettings)

    dropout: float | None = None
    """Dropout of hidden states and attention; by default the model's, and 0.1 with --r-drop and simcse."""
    r_drop: float = 0.0
    """Weight of the R-Drop consistency loss between two forward passes; 1 is usual."""
    adversarial: Literal["none", "freelb", "smart"] = "none"
    """Adversarial perturbation of the embeddings: FreeLB or SMART."""
    lora: int = 0
    """Rank of low-rank adapters, one per depth, instead of training the encoder; 8 is usual, 0 = off."""
    freeze_encoder: bool = False
    """Train only the pooler and the head. Hidden states are computed once before the first epoch, so that epochs take a
    fraction of the time, at lower accuracy."""
    mixout: float = 0.0
    """Mixout: probability that a weight is replaced by its initial value in a step; 0.5 is usual."""

    seeds: int = 1
    """Number of seeds to train with; reports mean and deviation, and keeps the best on validation."""
    search: int = 0
    """Number of trials of a hyper-parameter search over learning rate, batch size and layer decay; keeps the best."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU and on a CPU with bfloat16 instructions, fp32 elsewhere."""
    cuda_graphs: bool = True
    """On a GPU, record steps on small batches as CUDA graphs and replay them: the same result, faster."""
    save_every: str = "1epoch"
    """Interval between checkpoints: steps ("500"), minutes ("10min") or epochs ("1epoch")."""
    seed: int = 0
    """Random seed of the new head, the validation split and the data order."""
    resume: bool = False
    """Resume from the latest checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""

    ESSENTIAL: ClassVar[tuple[str, ...]] = (
        "task", "model", "train", "valid", "test", "out", "epochs", "batch_size", "learning_rate", "resume",
    )  # fmt: skip
    """What --help shows."""
    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("task", "train", "valid", "test", "columns", "skip_bad", "mix", "length"),
        "model": ("model", "head", "lora", "freeze_encoder"),
        "optimization": ("epochs", "batch_size", "learning_rate", "metric", "patience", "seeds", "search"),
        "regularization": ("weight_decay", "dropout", "label_smoothing", "class_weights", "r_drop", "adversarial",
                           "mixout"),
        "strategies": STRATEGY_NAMES,
        "tagging": ("crf", "scheme"),
        "similarity": ("loss", "pooling", "last_passes", "sizes"),
        "translation": ("target_vocab_size", "target_tokenizer", "beams", "length_penalty", "decoder"),
        "computation": ("precision", "cuda_graphs", "device"),
        "run": ("out", "save_every", "seed", "resume"),
    }  # fmt: skip
    """Subjects of --help-all."""
    TASK_SETTINGS: ClassVar[dict[str, tuple[str, ...]]] = {
        "crf": ("tag",), "scheme": ("tag",), "class_weights": ("classify",),
        "label_smoothing": ("classify", "translate"),
        **dict.fromkeys(GROUPS["similarity"], ("similarity",)),
        **dict.fromkeys(GROUPS["translation"], ("translate",)),
    }  # fmt: skip
    """Settings that only some tasks have, with these tasks."""

    def task_options(self) -> dict[str, Any]:
        """What the task is told of its settings; what is None keeps the task's own default."""
        options = {name: getattr(self, name) for name in ("head", *self.TASK_SETTINGS) if name != "decoder"}
        options |= {f"decoder_{name}": value for name, value in asdict(self.decoder).items()}
        return {name: value for name, value in options.items() if value is not None}

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
        if self.seeds > MAX_SEEDS or self.search > MAX_TRIALS:
            raise ConfigError(f"seeds={self.seeds}, search={self.search}: at most {MAX_SEEDS} and {MAX_TRIALS:,}")
        if self.sizes and min(self.sizes) < 1:
            raise ConfigError(f"sizes={min(self.sizes)} must be at least 1")
        self._refuse_settings_of_other_tasks()
        self._refuse_conflicts()

    def _refuse_settings_of_other_tasks(self) -> None:
        defaults = FinetuneConfig.__dataclass_fields__
        for name, tasks in self.TASK_SETTINGS.items():
            default = DecoderSettings() if name == "decoder" else defaults[name].default
            if getattr(self, name) != default and self.task not in tasks:
                raise ConfigError(f"{name} is for --task {' or '.join(tasks)}, and this is {self.task}; leave it out")
        heads = HEADS_BY_TASK.get(self.task, ("linear",))
        if self.head not in heads:
            raise ConfigError(
                f"head={self.head!r} is not for --task {self.task}, which has {', '.join(heads)}; leave it out"
            )
        if self.task == "translate" and self.adversarial != "none":
            raise ConfigError("adversarial is for tasks that read alone, and this is translate; use --r-drop")

    def _refuse_conflicts(self) -> None:
        if self.freeze_encoder and (self.lora or self.mixout or self.unfreeze_steps or self.adversarial != "none"):
            raise ConfigError(
                "freeze_encoder leaves nothing for lora, mixout, unfreeze_steps or adversarial; choose one"
            )
        if self.seeds > 1 and self.search:
            raise ConfigError("seeds and search are two runs: search first, then give what it found with --seeds")
        if self.r_drop and self.dropout == 0:
            raise ConfigError("r_drop compares two readings that dropout makes different, and dropout=0; leave it out")
        if self.r_drop and self.adversarial == "freelb":
            raise ConfigError(
                "r_drop and freelb each read a batch several times; use one of them, or smart with r_drop"
            )
        if (self.last_passes or 1) > 1 and self.adversarial != "none":
            raise ConfigError("adversarial noise is learned with the last states alone; leave --last-passes out")
        if self.bounds == "view":
            raise ConfigError("bounds=view would save a model that is not what was trained; use --bounds project")
