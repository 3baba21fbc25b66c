"""Settings of pre-training. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError
from litebert.train.options import STRATEGY_NAMES, OptimizerName, Parallel, Precision, ScheduleName, Strategies

DEPTH_RAMP = "1/4:0.6,1/2:0.8"


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Strategies):
    data: Path
    """Folder written by `litebert prepare`."""
    out: Path
    """Folder for the model, its checkpoints, its log and its report."""
    preset: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    """Size of the new model; `litebert models` lists them."""
    model: str | None = None
    """Continue from this model (folder or hub name) instead of a new one. Its vocabulary may have grown at the end."""
    layers: int | None = None
    """Number of layers, instead of the preset's."""
    hidden_size: int | None = None
    """Hidden size, instead of the preset's; heads of 64 and a feed-forward layer four times as wide follow from it."""
    embedding_size: int | None = None
    """Size of the factorised token embeddings, instead of the preset's."""
    sharing: Literal["all", "attention", "ffn", "none"] = "all"
    """Which parameters all layers of a new model share."""
    attention_distance: int = 0
    """Maximum distance of the learned relative attention bias of a new model; 0 = no bias."""

    steps: int = 10_000
    """Optimizer steps."""
    batch_size: int = 512
    """Sequences per step, over all processes."""
    micro_batch: int | None = None
    """Sequences per forward pass on each process; by default as many as usually fit. Halved when memory runs out."""
    length: int = 128
    """Tokens per sequence. A model pre-trained on shorter ones gets the missing position embeddings."""
    batch_ramp: str = ""
    """Start with smaller batches: "1/4:0.1,1/2:0.3" uses a quarter for the first tenth of the steps, then half until
    0.3."""
    length_ramp: str = ""
    """Start with shorter sequences, in the same notation."""
    depth_ramp: str | None = None
    """Start with fewer layers, in the same notation; by default 1/4:0.6,1/2:0.8 for a new model, "" with --model."""

    mask: Literal["token", "word", "ngram", "span"] = "token"
    """What to mask: single tokens, whole words, n-grams of up to --max-ngram words, or longer spans."""
    mask_rate: float = 0.2
    """Fraction of tokens selected for prediction, up to 0.8."""
    max_ngram: int = 3
    """Longest n-gram of --mask ngram, in words."""
    mask_share: float = 0.8
    """Fraction of selected tokens replaced by [MASK]."""
    random_share: float = 0.1
    """Fraction of selected tokens replaced by a random token; the rest stay unchanged."""
    mask_exclude: tuple[str, ...] = ()
    """Tokens never selected: `punctuation`, and files with one word per line."""
    sentences: Literal["order", "next", "none"] = "order"
    """Sentence objective: sentence-order prediction, next-sentence prediction, or none."""
    order_weight: float = 1.0
    """Weight of the sentence loss; that of the masked-token loss is 1."""
    short_share: float = 0.1
    """Fraction of sequences cut to a shorter length."""

    optimizer: OptimizerName = "muon"
    """Muon for matrices with AdamW for the rest, AdamW for all parameters, or LAMB as in the paper."""
    learning_rate: float | None = None
    """Peak learning rate; by default one for the optimizer, scaled by the square root of the batch size."""
    schedule: ScheduleName = "wsd"
    """Learning-rate schedule after the warm-up; wsd stays at the peak and decays at the end."""
    warmup: float = 0.15
    """Fraction of the steps used for warm-up."""
    hot_start: float = 0.0
    """Learning rate at the first step of the warm-up, as a fraction of the peak."""
    decay_share: float = 0.4
    """For wsd: fraction of the steps, at the end, over which the rate decays."""
    poly_power: float = 2.0
    """For poly: the power."""
    weight_decay: float = 0.01
    """Weight decay of matrices; biases and LayerNorms have none."""
    clip_norm: float = 1.0
    """Maximum gradient norm; larger gradients are clipped."""
    average: float = 0.0
    """Decay of an exponential moving average of the weights, which is then the saved model; 0.999 is usual, 0 = off."""
    dropout: float = 0.0
    """Dropout of hidden states and attention in a new model; ALBERT v2 uses none."""
    precision: Precision = "auto"
    """bf16 computes in bfloat16 with float32 weights; bf16-pure also stores weights in bfloat16, with float32 master
    copies in the optimizer; fp8 is bf16 with fp8 for the larger matrix products, 10 % faster on an H200 at the same
    loss. auto: bf16 on a GPU and on a CPU with bfloat16 instructions, fp32 elsewhere."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    cuda_graphs: bool = True
    """On a GPU, record a step as a CUDA graph and replay it: faster, at the memory of a second step."""
    compile: bool | None = None
    """Use torch.compile where the fused kernels do not apply, as in fp32 or with dropout; by default on a GPU."""
    parallel: Parallel = "ddp"
    """Under torchrun: ddp copies the model to every process; fsdp shards weights and optimizer state."""
    workers: int = 2
    """Threads that prepare batches ahead of time."""

    validate_every: int | None = None
    """Steps between validations on held-out documents; by default a twentieth of all steps, at least 50."""
    validation_rows: int = 512
    """Sequences per validation."""
    save_every: str = "10min"
    """Interval between checkpoints: steps ("500"), minutes ("10min") or epochs ("1epoch")."""
    seed: int = 0
    """Random seed of the initial weights and of the data order."""
    resume: bool = False
    """Resume from the latest checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""

    ESSENTIAL: ClassVar[tuple[str, ...]] = (
        "data", "out", "preset", "model", "steps", "batch_size", "length", "learning_rate", "precision", "resume",
    )  # fmt: skip
    """What --help shows."""
    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("data", "length", "mask", "mask_rate", "max_ngram", "mask_share", "random_share", "mask_exclude",
                 "sentences", "order_weight", "short_share"),
        "model": ("preset", "model", "layers", "hidden_size", "embedding_size", "sharing", "attention_distance"),
        "optimization": ("steps", "batch_size", "micro_batch", "optimizer", "learning_rate", "schedule", "warmup",
                         "hot_start", "decay_share", "poly_power", "batch_ramp", "length_ramp", "depth_ramp"),
        "regularization": ("weight_decay", "clip_norm", "average", "dropout"),
        "strategies": STRATEGY_NAMES,
        "computation": ("precision", "gradient_checkpointing", "cuda_graphs", "compile", "parallel", "workers",
                        "device"),
        "run": ("out", "validate_every", "validation_rows", "save_every", "seed", "resume"),
    }  # fmt: skip
    """Subjects of --help-all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("layers", "hidden_size", "embedding_size", "micro_batch", "validate_every")
        given = [name for name in counts if getattr(self, name) is not None]
        check_counts_and_seed(self, "steps", "batch_size", "length", "validation_rows", *given)
        for name in ("clip_norm", "order_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("weight_decay", "workers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be 0 or more")
        if self.schedule == "wsd" and self.warmup + self.decay_share > 1:
            raise ConfigError(
                f"warmup={self.warmup} and decay_share={self.decay_share} are shares of the same steps: "
                "1 at most together"
            )
        self._refuse_unused_settings()

    def _refuse_unused_settings(self) -> None:
        """A setting that has no effect is a mistake."""
        needs = {
            ("preset", "layers", "hidden_size", "embedding_size", "sharing", "attention_distance", "dropout"): (
                self.model is None,
                "is for a new model; --model has its own",
            ),
            ("max_ngram",): (self.mask == "ngram", "is for --mask ngram"),
            ("order_weight",): (self.sentences != "none", "weighs a loss that --sentences none leaves out"),
            ("poly_power",): (self.schedule == "poly", "is for --schedule poly"),
            ("decay_share",): (self.schedule == "wsd", "is for --schedule wsd"),
            ("bound_max",): (self.bounds != "none", "is for --bounds"),
            ("squash_temperature",): (self.squash != "none", "is for --squash"),
        }
        defaults = {field.name: field.default for field in fields(self)}
        for names, (is_used, why) in needs.items():
            for name in names:
                value = getattr(self, name)
                if not is_used and value != defaults[name]:
                    raise ConfigError(f"{name}={value} {why}; leave it out")
