"""Our Triton kernels, imported where they are first used, and what else their autograd functions share."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor


@cache
def layer() -> ModuleType:
    from litebert.model.backends import layer_kernels

    return layer_kernels


@cache
def attention() -> ModuleType:
    from litebert.model.backends import attention_kernels

    return attention_kernels


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left.T @ right, in the total's type."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    else:
        torch.addmm(total, left.t(), right, out_dtype=total.dtype, out=total)


def is_graph_retained() -> bool:
    """Whether the backward under way was called with `retain_graph`."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())
