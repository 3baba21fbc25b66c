"""The weights of an encoder as the library reads them: int8, padded and packed in panels.

Shapes: H hidden, E embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.model.backends.native.build import NativeLibrary
from litebert.model.backends.native.structs import (
    AttentionBlock,
    FeedForwardBlock,
    LayerNorm,
    Network,
    QuantizedLinear,
    addresses,
)
from litebert.model.quantize import quantize_per_row

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
"""In the order of activations.h."""
MAX_GROUP_COLUMNS = 768
"""Columns of the intermediate layer that share a scale, at most."""


class PackedWeights:
    """A `Network` and the memory that it points to."""

    def __init__(self, encoder: Any, library: NativeLibrary, version: tuple[Any, ...] = ()) -> None:
        config, self.version = encoder.config, version
        self._panel, self._tile = library.panel, library.tile
        self._memory: list[Tensor] = []
        channels = config.hidden_size // config.num_attention_heads
        heads_per_bundle = min(config.num_attention_heads, max(1, self._panel // channels))
        attention = [
            AttentionBlock(
                self._qkv(block.qkv, heads_per_bundle * channels), self._linear(block.out), self._norm(block.norm)
            )
            for block in encoder.attention
        ]
        feed_forward = [
            FeedForwardBlock(
                self._linear(block.widen), self._linear(block.narrow, MAX_GROUP_COLUMNS), self._norm(block.norm)
            )
            for block in encoder.ffn
        ]
        self.network = Network(
            (AttentionBlock * len(attention))(*attention), (FeedForwardBlock * len(feed_forward))(*feed_forward),
            config.hidden_size, config.num_attention_heads, heads_per_bundle, ACTIVATIONS.index(config.hidden_act),
            config.layer_norm_eps,
        )  # fmt: skip
        self.projection = self._embedding_projection(encoder.project)

    def _embedding_projection(self, layer: nn.Linear) -> tuple[int, int]:
        """Addresses of weight, (columns / panel, E, panel), and bias: float32."""
        padding = -layer.out_features % self._panel
        weight = F.pad(layer.weight.detach().float(), (0, 0, 0, padding)).view(-1, self._panel, layer.in_features)
        bias = F.pad(layer.bias.detach().float(), (0, padding))
        return self._address(weight.transpose(1, 2)), self._address(bias)

    def _qkv(self, layer: nn.Linear, width: int) -> QuantizedLinear:
        """For each bundle of heads, `width` columns of q, of k and of v, each padded to whole panels."""
        weight, bias = layer.weight.detach(), layer.bias.detach()
        hidden = weight.shape[1]
        columns = F.pad(torch.arange(hidden, device="cpu"), (0, -hidden % width), value=hidden).view(-1, width)
        columns = F.pad(columns, (0, -width % self._panel), value=hidden)  # (bundles, width); `hidden` = zeros

        def reordered(values: Tensor) -> Tensor:  # (3 * H, ...) -> (columns, ...)
            padding = (0, 0) * (values.dim() - 1) + (0, 1)
            return F.pad(values.unflatten(0, (3, hidden)), padding)[:, columns].transpose(0, 1).flatten(0, 2)

        return self._quantized(reordered(weight), reordered(bias))

    def _linear(self, layer: nn.Linear, max_group: int | None = None) -> QuantizedLinear:
        return self._quantized(layer.weight.detach(), layer.bias.detach(), max_group)

    def _quantized(self, weight: Tensor, bias: Tensor, max_group: int | None = None) -> QuantizedLinear:
        """In panels; with `max_group`, inputs are quantized in groups of at most so many columns."""
        panel = self._panel
        if not bool(weight.isfinite().all()):
            raise ConfigError("a weight of this model is not a number, or infinite; it cannot be quantized to int8")
        quantized, scale = quantize_per_row(weight.detach().float())
        padding = [-size % panel for size in quantized.shape]
        quantized = F.pad(quantized, (0, padding[1], 0, padding[0]))
        columns, depth = quantized.shape
        groups = depth // (panel * _largest_divisor(depth // panel, max_group // panel)) if max_group else 1
        column_sums = quantized.view(columns, groups, -1).sum(-1, dtype=torch.float32).T
        tile_columns, tile_words = self._tile
        tiles = quantized.view(columns // tile_columns, tile_columns, depth // 4 // tile_words, tile_words, 4)
        scale, bias = (F.pad(values.detach().float(), (0, padding[0])) for values in (scale, bias))
        parts = (tiles.permute(0, 2, 3, 1, 4), scale, bias, column_sums)
        return QuantizedLinear(*map(self._address, parts), columns, depth, groups)

    def _norm(self, norm: nn.LayerNorm) -> LayerNorm:
        return LayerNorm(*(self._address(values.detach().float()) for values in (norm.weight, norm.bias)))

    def _address(self, values: Tensor) -> int:
        self._memory.append(values.contiguous().clone())
        return next(addresses(self._memory[-1]))


def weights_of(encoder: Any) -> Iterator[Tensor]:
    """The parameters that are packed."""
    yield from (encoder.project.weight, encoder.project.bias)
    for block in (*encoder.attention, *encoder.ffn):
        for layer in block.children():  # several times as fast as block.parameters(), and called for every batch
            yield from (weight for weight in layer._parameters.values() if weight is not None)


def weight_version(weight: Tensor) -> tuple[int, int, int]:
    """Changes when its memory or its values change."""
    return weight.untyped_storage()._cdata, weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _largest_divisor(number: int, limit: int) -> int:
    return max(divisor for divisor in range(1, min(number, max(1, limit)) + 1) if number % divisor == 0)
