"""How one pass sees the weights of a shared layer: as they are, changed by a hook, or with a low-rank addition.

Without either nothing is paid for it: `weights` is None, and layers are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from litebert.model.backends.cpu_linear import linear
from litebert.model.config import AlbertConfig, Half
from litebert.model.hooks import is_unmodified
from litebert.model.lora import DepthAdapters

WeightAt = Callable[[str, Tensor, int, int], Tensor]
"""(name, weight, pass, passes) -> the weight as that pass of so many sees it. Names are those of the encoder's
parameters, as in "attention.0.qkv.weight"; passes count from 0."""
PassWeights = dict[str, Tensor]
"""The parameters of a block as one pass sees them, by name in the block."""


def pass_weights(
    block: nn.Module, path: str, layer: int, passes: int, adapters: DepthAdapters | None, weight_at: WeightAt | None
) -> PassWeights | None:
    if weight_at is None and adapters is None:
        return None
    weights: PassWeights = {}
    for name, weight in block.named_parameters():
        weight = weight if adapters is None else adapters(f"{path}.{name}", weight, layer)
        weights[name] = weight if weight_at is None else weight_at(f"{path}.{name}", weight, layer, passes)
    return weights


def apply_linear(layer: nn.Module, rows: Tensor, weights: PassWeights | None, name: str) -> Tensor:
    if weights is not None:
        return F.linear(rows, weights[f"{name}.weight"], weights[f"{name}.bias"])
    if type(layer) is nn.Linear and is_unmodified(layer):
        return linear(rows, layer.weight, layer.bias)
    transformed: Tensor = layer(rows)
    return transformed


def apply_norm(layer: nn.LayerNorm, rows: Tensor, weights: PassWeights | None) -> Tensor:
    if weights is None:
        normed: Tensor = layer(rows)
        return normed
    return F.layer_norm(rows, layer.normalized_shape, weights["norm.weight"], weights["norm.bias"], layer.eps)


def depths_of(encoder: nn.Module, config: AlbertConfig, passes: int) -> dict[str, tuple[int, ...]]:
    """Which passes use a parameter, by name; -1 stands for what comes before the first pass.

    What is not in here belongs to no layer: the pooler, the relative bias, the depth embeddings, the adapters.
    """
    before = ("word_", "position_", "segment_", "embedding_", "project")
    users: dict[str, tuple[int, ...]] = {
        name: (-1,) for name, _ in encoder.named_parameters() if name.startswith(before)
    }
    for half in get_args(Half):
        blocks: Any = getattr(encoder, half)
        for number, block in enumerate(blocks):
            inner = number % config.inner_group_num
            used = tuple(layer for layer in range(passes) if config.block_at(half, layer, inner) == number)
            users |= {f"{half}.{number}.{name}": used for name, _ in block.named_parameters()}
    return users
