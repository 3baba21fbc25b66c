"""Train an ALBERT from scratch on shards: masked tokens and sentence order.

Example:
  litebert pretrain --data shards/ --preset base --out runs/pretrain
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from litebert.errors import ConfigError
from litebert.recipes._shared import INTERRUPTED, check_numbers, make_console, refuse_overwrite, write_run


@dataclass(frozen=True)
class Config:
    data: Path
    """Folder that `litebert prepare` wrote."""
    out: Path
    """Folder for the model, its checkpoints and its log."""
    preset: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    """The size of the model; `litebert models` lists them."""
    steps: int = 10_000
    """Optimizer steps."""
    batch_size: int = 32
    """Sequences per step."""
    length: int = 128
    """Tokens per sequence."""
    learning_rate: float = 3e-4
    """The highest rate, reached after a tenth of the steps."""
    mask_rate: float = 0.15
    """Share of the tokens to hide."""
    seed: int = 0
    """Decides the start and the data of every step."""
    save_every: int = 500
    """Steps between checkpoints."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""

    def __post_init__(self) -> None:
        check_numbers(self, "steps", "save_every")


def run(config: Config) -> int:
    import torch

    from litebert.data.pretraining import PretrainingBatch, PretrainingData
    from litebert.data.shards import Shards
    from litebert.model import Albert, preset, pretraining_heads
    from litebert.predict import Model
    from litebert.tasks import Mask
    from litebert.tasks.pretraining import depth_at, pretraining_loss
    from litebert.train.checkpointing import Checkpoints
    from litebert.train.log import RunLog
    from litebert.train.loop import Step, train
    from litebert.train.optimizers import adamw, warmup_linear
    from litebert.train.runtime import pick_device

    console = make_console()
    refuse_overwrite(config.out / "config.json", "a finished model")
    if not config.resume:
        refuse_overwrite(config.out / "checkpoints" / "latest", "an unfinished run, which --resume continues")
    device = pick_device(config.device)
    shards = Shards(config.data)
    shards.verify()
    data = PretrainingData(
        shards,
        batch_size=config.batch_size,
        length=config.length,
        mask_rate=config.mask_rate,
        seed=config.seed,
    )
    shape = preset(config.preset, vocab_size=shards.tokenizer.vocab_size, pad_token_id=shards.tokenizer.pad_id)
    if config.length > shape.max_position_embeddings:
        raise ConfigError(
            f"length={config.length} is over the model's {shape.max_position_embeddings}; "
            f"use {shape.max_position_embeddings} or less"
        )
    rate = warmup_linear(config.learning_rate, config.steps)
    torch.manual_seed(config.seed)
    albert = Albert(shape, pretraining_heads(shape)).to(device)
    optimizer = adamw(albert, weight_decay=0.01, betas=(0.9, 0.98))
    checkpoints = Checkpoints(config.out / "checkpoints", albert, optimizer)
    decisive = {
        key: str(getattr(config, key))
        for key in ("preset", "steps", "batch_size", "length", "learning_rate", "mask_rate", "seed")
    }
    decisive |= {"tokenizer": shards.index.fingerprint, "shards": shards.index.digest}
    start = checkpoints.load_latest(decisive) if config.resume else 0
    write_run(config.out, "pretrain", config)
    parameters = sum(p.numel() for p in albert.parameters())
    console.print(
        f"ALBERT {config.preset}: {parameters:,} parameters, {shards.index.tokens:,} tokens of text, on {device}"
        + (f", from step {start}" if start else ""),
        highlight=False,
    )

    def save(step: Step) -> None:
        if step.stopping or step.done % config.save_every == 0:
            checkpoints.save(step.done, decisive)

    def batch(step: int) -> tuple[PretrainingBatch, int]:
        return data.batch(step).to(device), depth_at(step, config.steps, shape.num_hidden_layers)

    with RunLog(config.out, console, "pretrain", tokens_per_step=config.batch_size * config.length, start=start) as log:
        finished = train(
            albert,
            lambda pair: pretraining_loss(albert, *pair),
            batch,
            optimizer,
            rate,
            steps=config.steps,
            start=start,
            seed=config.seed,
            hooks=[save, log],
        )
    if not finished:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    Model(albert.cpu().eval(), shards.tokenizer, Mask(), config.length).save(config.out)
    console.print(f"model in {config.out}", highlight=False, markup=False)
    console.print(
        f"next: litebert finetune --task classify --model {config.out} --train train.csv --out runs/finetune",
        highlight=False,
    )
    return 0
