"""Pre-train an ALBERT on shards, from scratch or from a model: masked tokens and sentence order.

Examples:
  litebert pretrain --data shards/ --preset base --out runs/pretrain
  litebert pretrain --data shards/ --model runs/pretrain --learning-rate 2e-4 --out runs/further
  torchrun --nproc-per-node 8 -m litebert pretrain --data shards/ --batch-size 4096 --out runs/pretrain
"""

from __future__ import annotations

from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, refuse_other_run, refuse_overwrite
from litebert.trainers.pretrain_config import PretrainConfig as Config

__all__ = ["Config", "run"]


def run(config: Config) -> int:
    from litebert.train.distributed import started_ranks
    from litebert.trainers.pretraining import pretrain
    from litebert.trainers.training_report import write_report

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
        finished = pretrain(config, console, ranks=ranks, device=device)
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
