"""Reproduce the experiments of the ALBERT paper at a chosen budget, and check which of its claims hold.

Examples:
  litebert reproduce sharing --out runs/reproduce
  litebert reproduce --data shards/ --proxy --budget hour --seeds 2 --out runs/reproduce
  litebert reproduce embedding sharing --data shards/ --tasks configs/sst-2.toml configs/mrpc.toml --out runs/reproduce
  torchrun --nproc-per-node 8 -m litebert reproduce --data shards/ --budget 1G --out runs/reproduce
  litebert reproduce --redraw --out runs/reproduce

Tables: embedding, sharing, sentence-loss, depth, strategies, width, masking, optimizer. A cell is one model; those that
several tables mean are trained once. A command that was stopped goes on when it is given again, with more tables or
seeds too. Without --data it is a demonstration, of small models on documentation that is on this machine.
"""

from __future__ import annotations

from litebert.console import make_console, say
from litebert.run_folder import INTERRUPTED, refuse_other_run, refuse_unwritable
from litebert.studies.reproduce.config import ReproduceConfig as Config

__all__ = ["Config", "run"]


def run(config: Config) -> int:
    from litebert.studies.reproduce.report import write_pages

    console = make_console()
    refuse_unwritable(config.out)
    refuse_other_run(config.out, "reproduce")
    finished = True
    if not config.redraw:
        from litebert.device import pick_device
        from litebert.studies.reproduce.runner import process_group, run_variants

        with process_group(pick_device(config.device)) as process:
            console.quiet = process.rank > 0
            finished = run_variants(config, console, process)
        if process.rank or config.estimate:
            return 0 if finished else INTERRUPTED
    say(console, *write_pages(config.out, config.tables))
    if not finished:
        say(console, "stopped; to continue, run the same command again")
        return INTERRUPTED
    return 0
