"""Where our own kernels can be used."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def is_current(device: torch.device) -> bool:
    """Is it where kernels of our own are launched? Those of torch find their way to any."""
    return not torch.cuda.is_available() or device.index in (None, torch.cuda.current_device())


def has_hooks(part: torch.nn.Module) -> bool:
    """Does somebody want to be told when it, or what is in it, is called?"""
    return any(map(is_told, part.modules()))


def is_told(part: torch.nn.Module) -> bool:
    """Does somebody want to be told when it is called itself?"""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks)


def is_untouched(layer: torch.nn.Module) -> bool:
    """Would calling it do what its class does, and tell nobody?"""
    told = has_hooks(layer) or torch.nn.modules.module._has_any_global_hook()
    return not told and "forward" not in vars(layer)


KNOWN = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Dropout, torch.nn.Embedding)


def is_plain(block: torch.nn.Module) -> bool:
    """Is a block what it was made as? Whoever puts something else into it wants it to be called."""
    return not has_hooks(block) and all(type(part) in KNOWN for part in block.children())


def are_plain(*parts: torch.nn.Module) -> bool:
    """Are these torch's own, and would calling them tell nobody?"""
    return all(type(part) in KNOWN and is_untouched(part) for part in parts)


@cache
def has_kernels(device: torch.device) -> bool:
    """Is there a compiler for our kernels?"""
    return device.type == "cuda" and find_spec("triton") is not None
