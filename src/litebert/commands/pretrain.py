"""Train an ALBERT on shards, from scratch or further: masked tokens and sentence order.

Examples:
  litebert pretrain --data shards/ --preset base --out runs/pretrain
  litebert pretrain --data shards/ --model runs/pretrain --learning-rate 2e-4 --out runs/further
  torchrun --nproc-per-node 8 -m litebert pretrain --data shards/ --batch-size 4096 --out runs/pretrain
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from litebert.checks import check_counts_and_seed
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, refuse_other_run, refuse_overwrite
from litebert.train.settings import OptimizerName, Parallel, Precision, ScheduleName, Strategies


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of every run; `Config` adds the strategies, which few runs need, behind them."""

    data: Path
    """Folder that `litebert prepare` wrote."""
    out: Path
    """Folder for the model, its checkpoints, its log and its report."""
    preset: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    """The size of the model; `litebert models` lists them."""
    model: str | None = None
    """Go on from this model, folder or hub name, instead of a new one. Its vocabulary may have grown at the end."""
    layers: int | None = None
    """Another number of layers than the preset's."""
    hidden_size: int | None = None
    """Another hidden size than the preset's; heads of 64 and a fourfold feed-forward come with it."""
    embedding_size: int | None = None
    """Another size of the word vectors than the preset's, before they are widened to the hidden size."""
    sharing: Literal["all", "attention", "ffn", "none"] = "all"
    """What all layers of a new model share."""
    attention_distance: int = 0
    """Let a new model learn how much each head minds the distance of two tokens, up to this one; 0 = off."""

    steps: int = 10_000
    """Optimizer steps."""
    batch_size: int = 512
    """Sequences per step, over all processes."""
    micro_batch: int | None = None
    """Sequences at once, on each process; by default as many as usually fit. Halved when memory runs out."""
    length: int = 128
    """Tokens per sequence. A model that has read shorter ones gets the positions it lacks."""
    batch_ramp: str = ""
    """Begin with smaller batches: "1/4:0.1,1/2:0.3" is a quarter until a tenth of the steps, then half until 0.3."""
    length_ramp: str = ""
    """Begin with shorter sequences, written in the same way."""
    depth_ramp: str | None = None
    """Begin with fewer layers, written in the same way; by default 1/4:0.6,1/2:0.8 for a new model, "" for --model."""

    mask: Literal["token", "word", "ngram", "span"] = "token"
    """Hide single tokens, whole words, runs of up to --max-ngram words, or longer spans."""
    mask_rate: float = 0.2
    """Share of the tokens to hide, up to 0.8."""
    max_ngram: int = 3
    """The longest run of words for --mask ngram."""
    mask_share: float = 0.8
    """Of the hidden tokens, the share shown as [MASK]."""
    random_share: float = 0.1
    """The share shown as another token; the rest are shown as they are."""
    mask_exclude: tuple[str, ...] = ()
    """Never hide these: `punctuation`, and files with one word per line."""
    sentences: Literal["order", "next", "none"] = "order"
    """Ask whether two segments were swapped, whether the second follows the first, or nothing."""
    order_weight: float = 1.0
    """Weight of that loss beside the masked tokens'."""
    short_share: float = 0.1
    """Share of the sequences that end early."""

    optimizer: OptimizerName = "muon"
    """Muon for the matrices and AdamW for the rest, AdamW for all, or LAMB as in the paper."""
    learning_rate: float | None = None
    """The highest rate; by default one that suits the optimizer, scaled by the square root of the batch."""
    schedule: ScheduleName = "wsd"
    """How the rate falls after the warm-up; wsd stays high and falls at the end."""
    warmup: float = 0.15
    """Share of the steps over which the rate rises."""
    hot_start: float = 0.0
    """Where it starts to rise, as a share of the highest."""
    decay_share: float = 0.4
    """For wsd: the share of the steps, at the end, over which the rate falls."""
    poly_power: float = 2.0
    """For poly: the power."""
    weight_decay: float = 0.01
    """Of the matrices."""
    clip_norm: float = 1.0
    """Gradients longer than this are shortened to it."""
    average: float = 0.0
    """Keep a moving average of the weights with this decay, say 0.999, and save that; 0 = off."""
    dropout: float = 0.0
    """Of hidden states and attention in a new model; ALBERT v2 has none."""
    precision: Precision = "auto"
    """bf16 computes in bfloat16 and keeps float32 weights; bf16-pure has bfloat16 weights too, and the optimizer
    float32 copies of them; fp8 is bf16 with the larger matrix products from eight bits, a tenth faster on an H200 at
    the same loss. auto: bf16 on a GPU and on a CPU with instructions for it, fp32 elsewhere."""
    gradient_checkpointing: bool = False
    """Recompute instead of remembering: less memory, a third more time."""
    cuda_graphs: bool = True
    """On a GPU, record the kernels of a step and replay them: no gaps between kernels, for a second step's memory."""
    compile: bool | None = None
    """Compile the layer where our own kernels do not compute it, as in fp32 or with dropout; by default on a GPU."""
    parallel: Parallel = "ddp"
    """Under torchrun: every process holds the model, or fsdp: its share of the weights and the optimizer's state."""
    workers: int = 2
    """Threads that make batches ahead of time."""

    validate_every: int | None = None
    """Steps between validations on the held-out documents; by default a twentieth of all, 50 at least."""
    validation_rows: int = 512
    """Sequences per validation."""
    save_every: str = "10min"
    """Between checkpoints: steps ("500"), minutes ("10min") or epochs ("1epoch")."""
    seed: int = 0
    """Decides the start and the data of every step."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""


@dataclass(frozen=True, kw_only=True)
class Config(Strategies, Run):
    """All settings. Those of `Run` come first, as dataclasses count from the last base."""

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
        self._refuse_idle()

    def _refuse_idle(self) -> None:
        """A setting that nothing would read is a mistake."""
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
        for names, (read, why) in needs.items():
            for name in names:
                value = getattr(self, name)
                if not read and value != defaults[name]:
                    raise ConfigError(f"{name}={value} {why}; leave it out")


def run(config: Config) -> int:
    from litebert.commands.report import write_report
    from litebert.train.distributed import started_ranks
    from litebert.trainers.pretraining import pretrain

    console = make_console()
    refuse_other_run(config.out, "pretrain")
    if config.resume and (config.out / "config.json").exists():
        raise ConfigError(
            f"{config.out}: this run is finished; to train its model further: "
            f"litebert pretrain --data {config.data} --model {config.out} --out runs/further"
        )
    refuse_overwrite(config.out / "config.json", "a finished model")
    if not config.resume:
        refuse_overwrite(config.out / "checkpoints" / "latest", "an unfinished run, which --resume continues")
    elif not (config.out / "checkpoints" / "latest").exists():
        console.print(f"no checkpoint in {config.out}: starting from the first step", highlight=False, markup=False)
    with started_ranks(config.device) as (ranks, device):
        if ranks.rank:
            console.quiet = True
        finished = pretrain(config, console, ranks, device)
    if ranks.rank:
        return 0 if finished else INTERRUPTED
    console.print(write_report([config.out], config.out / "report.html"), highlight=False, markup=False)
    if not finished:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    console.print(f"model in {config.out}", highlight=False, markup=False)
    console.print(
        f"next: litebert finetune --task classify --model {config.out} --train train.csv --out runs/finetune",
        highlight=False,
    )
    return 0
