"""Has somebody put hooks on a module, or changed what calling it does? Then it must be called, not computed around."""

from __future__ import annotations

import torch

STANDARD_MODULES = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Dropout, torch.nn.Embedding)


def has_own_hooks(module: torch.nn.Module) -> bool:
    """On the module itself."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def has_hooks(module: torch.nn.Module) -> bool:
    """On the module or on one inside it."""
    return any(map(has_own_hooks, module.modules()))


def is_unmodified(module: torch.nn.Module) -> bool:
    """Calling it runs the `forward` of its class, and no hook."""
    hooked = has_hooks(module) or torch.nn.modules.module._has_any_global_hook()
    return not hooked and "forward" not in vars(module)


def has_standard_children(block: torch.nn.Module) -> bool:
    """Its children are what its class made, and nothing has a hook."""
    return not has_hooks(block) and all(type(child) in STANDARD_MODULES for child in block.children())


def are_standard(*modules: torch.nn.Module) -> bool:
    """All are modules of torch, unmodified."""
    return all(type(module) in STANDARD_MODULES and is_unmodified(module) for module in modules)
