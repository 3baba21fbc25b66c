"""int8 blocks by oneDNN's matrix products, as torch ships them: for CPUs with VNNI on which nothing can be compiled.

Weights are int8 with a scale per row, quantized and packed once for all passes. Activations are unsigned 8-bit with one
scale and zero point per tensor: from recorded ranges, or from the tensor itself.

Shapes: T tokens in rows, R wanted rows, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.model.attention import AttentionImplementation, attend
from litebert.model.backends.base import Backend, Passes, cpu_batch_layout, int8_batch_layout
from litebert.model.config import Half
from litebert.model.layout import BatchLayout, Layout
from litebert.model.quantize import quantize_per_row

LEVELS = 255
ONEDNN_GELU = {"gelu": "none", "gelu_new": "tanh"}
"""Activations that oneDNN fuses with a matrix product, and its name for their variant."""
BF16_ATTENTION_MIN_LENGTH, MAX_EAGER_SCORES = 128, 1 << 20
"""Attention over sequences this long runs in bfloat16 on CPUs with instructions for it, and by the plain formula up to
so many scores per head: it is faster, and int8 loses far more."""
ActivationRanges = dict[str, tuple[float, float]]
"""Smallest and largest input of each quantized product, by its name, as in "attention.0.given". Inputs are `given` and
`context` in an attention block, `given` and `wide` in a feed-forward block; all passes of a block share them."""


def has_onednn_int8() -> bool:
    """Whether this CPU has VNNI instructions. Without them oneDNN's int8 products may overflow."""
    return bool(torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported())


class QuantizationParameters(NamedTuple):
    """The scale and the zero point of a tensor."""

    scale: float
    zero_point: int
    shift: Tensor
    """The zero point and one half: conversion to int truncates."""

    @staticmethod
    def from_range(smallest: float, largest: float) -> QuantizationParameters:
        smallest, largest = min(smallest, 0.0), max(largest, 0.0)  # the range must include 0
        scale = max((largest - smallest) / LEVELS, 1e-12)
        zero_point = round(-smallest / scale)
        return QuantizationParameters(scale, zero_point, torch.tensor(zero_point + 0.5))

    @staticmethod
    def from_tensor(rows: Tensor) -> QuantizationParameters:
        bounds = (bound.item() for bound in torch.aminmax(rows)) if len(rows) else (0.0, 0.0)
        return QuantizationParameters.from_range(*bounds)

    def quantize(self, rows: Tensor) -> Tensor:  # uint8
        return torch.add(self.shift, rows, alpha=1 / self.scale).clamp_(0, LEVELS).to(torch.uint8)


class OneDnnLinear(NamedTuple):
    """A linear layer in int8, packed as oneDNN wants it. Its input is quantized."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor
    bias: Tensor

    @staticmethod
    def from_linear(layer: nn.Linear) -> OneDnnLinear:
        weight, scale = quantize_per_row(layer.weight.detach().float())
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        return OneDnnLinear(packed, scale, torch.zeros(len(scale), dtype=torch.int32), layer.bias.detach().float())

    def __call__(
        self, rows: Tensor, input_parameters: QuantizationParameters, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return self._multiply(rows, input_parameters, 1.0, 0, dtype, "none", [], "")

    def with_gelu(
        self, rows: Tensor, input_parameters: QuantizationParameters, output: QuantizationParameters, variant: str
    ) -> Tensor:
        """Followed by GELU and quantized for the next product."""
        return self._multiply(rows, input_parameters, output.scale, output.zero_point, torch.uint8, "gelu", [], variant)

    def add_to(self, residual: Tensor, rows: Tensor, input_parameters: QuantizationParameters) -> Tensor:
        """Adds to the residual in place: faster than new memory."""
        total: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            rows, input_parameters.scale, input_parameters.zero_point, self.weight, self.scale, self.zero_point,
            residual, self.bias, 1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, "none", [], "",
        )  # fmt: skip
        return total

    def _multiply(self, rows: Tensor, input_parameters: QuantizationParameters, *output: Any) -> Tensor:
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, input_parameters.scale, input_parameters.zero_point, self.weight, self.scale, self.zero_point,
            self.bias, *output,
        )  # fmt: skip
        return product


class OneDnnInt8(Backend):
    """The loop of albert.py with blocks in int8. Activations are quantized by the given ranges, else by the
    range of each tensor."""

    def __init__(self, encoder: Any, ranges: Mapping[str, tuple[float, float]] | None = None) -> None:
        if encoder.adapters is not None:
            raise ConfigError("int8 cannot hold LoRA adapters, which change the weights at every pass; use float32")
        if not has_onednn_int8():
            raise ConfigError(
                "int8: this CPU has no instructions for it (AVX-512 VNNI or AMX; with a C++ compiler AVX2 or ARM's dot "
                "products will do); use engine='torch'"
            )
        self._known = {name: QuantizationParameters.from_range(*bounds) for name, bounds in (ranges or {}).items()}
        self._gelu = ONEDNN_GELU.get(encoder.config.hidden_act)
        self._names = block_names(encoder)
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        self._has_bfloat16 = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
        self._packed: dict[nn.Module, OneDnnLinear] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy packs its weights anew."""
        return vars(self) | {"_packed": {}}

    def __call__(
        self, encoder: Any, hidden: Tensor, layout: Layout, passes: Passes, bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T or R, H)  # fmt: skip
        states: Tensor = encoder.run_passes(hidden, layout, passes, bias, rows, self._run_block)
        return states

    def batch_layout(
        self, encoder: Any, hidden: Tensor, mask: Tensor, passes: Passes, tokens: int | None
    ) -> BatchLayout:
        return cpu_batch_layout(encoder, hidden, mask, tokens) if passes.partial else int8_batch_layout(mask, tokens)

    def _run_block(
        self,
        attention: Any,
        ffn: Any,
        hidden: Tensor,
        layout: Layout,
        bias: Tensor | None,
        implementation: AttentionImplementation,
        attention_weights: dict[str, Tensor] | None = None,
        ffn_weights: dict[str, Tensor] | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T or R, H)
        if (attention.training and torch.is_grad_enabled()) or attention_weights is not None or ffn_weights is not None:
            raise ConfigError("an int8 model cannot be trained; train the model that it was quantized from")
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            hidden = self._attention(attention, hidden.float(), layout, bias, implementation, rows)
            return ffn.norm(self._feed_forward(ffn, hidden))

    def _attention(
        self, block: Any, hidden: Tensor, layout: Layout, bias: Tensor | None, implementation: AttentionImplementation,
        rows: Tensor | None,
    ) -> Tensor:  # (T or R, H)  # fmt: skip
        parameters = self._parameters(block, "given", hidden)
        use_bf16 = layout.length >= BF16_ATTENTION_MIN_LENGTH and self._has_bfloat16
        if use_bf16 and implementation == "sdpa" and layout.batch * layout.length**2 <= MAX_EAGER_SCORES:
            implementation = "eager"
        dtype = torch.bfloat16 if use_bf16 else torch.float32
        qkv = self._linear(block.qkv)(parameters.quantize(hidden), parameters, dtype)
        q, k, v = qkv.unflatten(-1, (3, block.num_heads, -1)).unbind(-3)  # (T, N, D) each
        context = attend(q, k, v, layout, bias=bias, implementation=implementation).flatten(-2).float()  # (T, H)
        if rows is not None:
            hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
        parameters = self._parameters(block, "context", context)
        residual = hidden.clone() if rows is None else hidden  # the caller may still need it
        return block.norm(self._linear(block.out).add_to(residual, parameters.quantize(context), parameters))

    def _feed_forward(self, ffn: Any, hidden: Tensor) -> Tensor:  # (R, H)
        parameters, widen = self._parameters(ffn, "given", hidden), self._linear(ffn.widen)
        quantized = parameters.quantize(hidden)
        inner = self._known.get(f"{self._names[ffn]}.wide")
        if inner is None or self._gelu is None:
            intermediate = ffn.activation(widen(quantized, parameters))
            inner = self._parameters(ffn, "wide", intermediate)
            intermediate = inner.quantize(intermediate)
        else:
            intermediate = widen.with_gelu(quantized, parameters, inner, self._gelu)
        return self._linear(ffn.narrow).add_to(hidden, intermediate, inner)

    def _linear(self, layer: nn.Linear) -> OneDnnLinear:
        if layer not in self._packed:
            self._packed[layer] = OneDnnLinear.from_linear(layer)
        return self._packed[layer]

    def _parameters(self, block: nn.Module, name: str, rows: Tensor) -> QuantizationParameters:
        return self._known.get(f"{self._names[block]}.{name}") or QuantizationParameters.from_tensor(rows)


def block_names(encoder: Any) -> dict[nn.Module, str]:
    """As in "attention.0"."""
    return {block: f"{half}.{number}" for half in get_args(Half) for number, block in enumerate(getattr(encoder, half))}
