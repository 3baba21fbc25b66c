"""The parameters of a layer and its matrix products, forward and backward: in half precision, or partly in fp8.

Shapes: T tokens in rows, H hidden, W intermediate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from litebert.model.backends import kernels
from litebert.model.backends.fp8 import FLOAT8, FLOAT8_MAX, Float8Matrix, quantize_fp8, scaled_product

MAX_GELU_GRAD, FP8_GROWTH = 1.13, 1.0625
"""The maximum of GELU's derivative, and the factor by which rounding to fp8 may enlarge a number."""


class LayerWeights(NamedTuple):
    """A layer's parameters, or their gradients."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    widen: Tensor
    widen_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor
    last_norm: Tensor
    last_norm_bias: Tensor

    @staticmethod
    def of(attention: Any, ffn: Any) -> LayerWeights:
        parts = (attention.qkv, attention.out, attention.norm, ffn.widen, ffn.narrow, ffn.norm)
        return LayerWeights(*(tensor for part in parts for tensor in (part.weight, part.bias)))

    def cast(self, dtype: torch.dtype) -> LayerWeights:
        """Matrices and their biases in another type; the kernels read LayerNorm's as they are."""
        cast = {name: getattr(self, name) for name in self._fields if "norm" not in name}
        if all(tensor.dtype == dtype for tensor in cast.values()):
            return self
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in cast.values()]
        torch._foreach_copy_(copies, list(cast.values()))
        return self._replace(**dict(zip(cast, copies, strict=True)))


class Products:
    """A layer's matrix products, in the type of its weights. An operand is an input as products take it."""

    grad_bound: Tensor | None = None
    """What no gradient after GELU exceeds, for a row of norm 1 before."""

    def __init__(self, weights: LayerWeights) -> None:
        self.weights = weights

    def first_operand(self, hidden: Tensor) -> Tensor:
        """The input of the first pass, as products take it."""
        return hidden

    def qkv(self, operand: Tensor) -> Tensor:  # (T, 3H)
        return torch.addmm(self.weights.qkv_bias, operand, self.weights.qkv.t())

    def feed_forward(self, operand: Tensor, tanh: bool, needs_grad: bool) -> tuple[Tensor, Tensor]:
        """The input of GELU, (T, W), if gradients are needed, and the output of the feed-forward block, (T, H)."""
        weights, ops = self.weights, kernels.layer()
        if needs_grad:
            wide = torch.addmm(weights.widen_bias, operand, weights.widen.t())
            activated = ops.gelu(wide, tanh)
        else:
            wide = activated = ops.product_gelu(weights.widen_bias, operand, weights.widen.t(), tanh)
        return wide, torch.addmm(weights.narrow_bias, activated, weights.narrow.t())

    def grad_wide(self, grad: Tensor, operand: Float8Matrix | None) -> Tensor:  # (T, W)
        return grad @ self.weights.narrow

    def grad_middle(
        self, grad: Tensor, grad_wide: Tensor, operand: Float8Matrix | None
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient plus that through the feed-forward block: as one tensor, or as two."""
        return grad.addmm_(grad_wide, self.weights.widen), None


class Float8Products(Products):
    """The same in fp8: queries, keys and values forward, the feed-forward block both ways.

    Outputs of LayerNorm and GELU, and the input of the first pass, have the scale 1. Gradients have a scale for each
    row. The bound of a row's gradients after GELU is known beforehand: the norm of the row before, times the largest
    norm of the vectors that it is multiplied with, times the maximum of GELU's derivative.
    """

    def __init__(self, weights: LayerWeights, needs_grad: bool) -> None:
        super().__init__(weights)
        self.dtype = weights.qkv.dtype
        self.unit_scale = torch.ones((), device=weights.qkv.device)
        self.quantized = {name: quantize_fp8(getattr(weights, name)) for name in ("qkv", "widen", "narrow")}
        if needs_grad:
            self.grad_bound = MAX_GELU_GRAD * FP8_GROWTH**2 * weights.narrow.float().norm(dim=0).amax()
            self.transposed_weights = {name: transposed(self.quantized[name]) for name in ("widen", "narrow")}

    def first_operand(self, hidden: Tensor) -> Tensor:
        return hidden.clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8)

    def qkv(self, operand: Tensor) -> Tensor:
        return self._product("qkv", operand, self.weights.qkv_bias)

    def feed_forward(self, operand: Tensor, tanh: bool, needs_grad: bool) -> tuple[Tensor, Tensor]:
        wide = self._product("widen", operand, self.weights.widen_bias)
        activated = kernels.layer().gelu(wide, tanh, fp8=True)
        return wide, self._product("narrow", activated, self.weights.narrow_bias)

    def grad_wide(self, grad: Tensor, operand: Float8Matrix | None) -> Tensor:
        assert operand is not None
        return scaled_product(operand, self.transposed_weights["narrow"], self.dtype)

    def grad_middle(
        self, grad: Tensor, grad_wide: Tensor, operand: Float8Matrix | None
    ) -> tuple[Tensor, Tensor | None]:
        assert operand is not None
        return grad, scaled_product(operand, self.transposed_weights["widen"], self.dtype)

    def _product(self, name: str, operand: Tensor, bias: Tensor) -> Tensor:
        return scaled_product(Float8Matrix(operand, self.unit_scale), self.quantized[name], self.dtype, bias)


def transposed(matrix: Float8Matrix) -> Float8Matrix:
    """The transpose, with the scale of the matrix for every row."""
    values = matrix.values.t().contiguous()
    return Float8Matrix(values, matrix.scale.expand(len(values), 1).contiguous())
