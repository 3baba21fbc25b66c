"""Several processes under torchrun: each takes its part of every batch, and all of them hold the same weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from litebert.device import pick_device
from litebert.errors import ConfigError
from litebert.train.options import Parallel
from litebert.train.ranks import SINGLE_PROCESS, Ranks

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@contextmanager
def started_ranks(device: Literal["auto", "cpu", "cuda"]) -> Iterator[tuple[Ranks, torch.device]]:
    """This process among those that torchrun started, and its device; alone without torchrun."""
    place = pick_device(device)
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield SINGLE_PROCESS, place
        return
    if place.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local + 1} of this machine has no GPU: there are {torch.cuda.device_count()}; "
                f"start as many with torchrun --nproc-per-node {torch.cuda.device_count()}"
            )
        place = torch.device("cuda", local)
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size()), place
    finally:
        dist.destroy_process_group()


def distribute(module: nn.Module, ranks: Ranks, parallel: Parallel, unused: bool) -> tuple[nn.Module, Ranks]:
    """The module as every rank must call it. `unused` says that a step may leave parameters without a gradient."""
    if ranks.world_size == 1:
        return module, ranks
    if parallel == "fsdp":
        # One group for the whole model: its layer runs many times per forward and is small beside what it computes,
        # so it is gathered once, and the optimizer's state, the larger part, is what is spread out.
        fully_shard(module)
        return module, Ranks(ranks.rank, ranks.world_size, lambda: _unsynchronised(module))
    wrapped = DistributedDataParallel(module, find_unused_parameters=unused)
    return wrapped, Ranks(ranks.rank, ranks.world_size, wrapped.no_sync)


@contextmanager
def _unsynchronised(module: nn.Module) -> Iterator[None]:
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


class GatheredModelState:
    """The state of a sharded model in one piece, for checkpoints. Every rank must ask for it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> Mapping[str, Any]:
        return get_model_state_dict(self.model, options=WHOLE)

    def load_state_dict(self, state: Any, /) -> None:
        set_model_state_dict(self.model, state, options=StateDictOptions(full_state_dict=True))


class GatheredOptimizerState:
    """The same for its optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> Mapping[str, Any]:
        return get_optimizer_state_dict(self.model, self.optimizer, options=WHOLE)

    def load_state_dict(self, state: Any, /) -> None:
        set_optimizer_state_dict(self.model, self.optimizer, state, options=StateDictOptions(full_state_dict=True))


def check_parallel(parallel: Parallel, optimizer: str, precision: str, average: float) -> None:
    """LAMB and Muon look at whole matrices, masters and averages at whole parameters: no rank has them under FSDP."""
    if parallel == "fsdp" and (optimizer != "adamw" or precision == "bf16-pure" or average):
        raise ConfigError(
            f"parallel=fsdp with optimizer={optimizer}, precision={precision} and average={average}: it spreads every "
            "matrix over the ranks, so use --optimizer adamw with --precision bf16 or fp32 and no --average; "
            "or --parallel ddp"
        )
