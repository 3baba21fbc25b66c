"""All passes of one shared layer as one function with a handwritten backward, for GPUs.

Left to autograd, every pass would cast the weights, keep what can be computed again, launch a kernel for every small
step, and add its share of a weight's gradient in bfloat16. Here weights are cast once, a pass is eight kernels forward
and about fifteen backward, and matrix products add their shares in float32 to where the others' are.

Shapes: T tokens in rows, H hidden, W intermediate, N heads, R wanted rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from litebert.model.attention import AttentionImplementation, attend
from litebert.model.backends import kernels
from litebert.model.backends.base import AnyEncoder, Backend, Passes, compute_dtype, has_triton, is_current_device
from litebert.model.backends.products import Float8Products, LayerWeights, Products
from litebert.model.config import AlbertConfig
from litebert.model.hooks import has_standard_children
from litebert.model.layout import Layout

GELU_IS_TANH = {"gelu_new": True, "gelu": False}
"""The activations that have kernels, and whether each is the tanh approximation."""


FusedAttention = AttentionImplementation | Literal["triton"]
"""How a fused pass computes attention; "triton" is our own kernels."""


@dataclass(frozen=True)
class FusedPlan:
    """What to compute, apart from the tensors."""

    passes: int
    heads: int
    eps: float
    tanh: bool
    layout: Layout
    attention: FusedAttention
    needs_grad: bool
    fp8: bool = False
    """Compute the larger matrix products in fp8."""

    @staticmethod
    def of(
        config: AlbertConfig, passes: int, layout: Layout, attention: FusedAttention, is_free: bool,
        device: torch.device, fp8: bool = False,
    ) -> FusedPlan:  # fmt: skip
        """`is_free`: the caller has not asked for this attention, so our own kernels may take its place."""
        heads = config.num_attention_heads
        if is_free and kernels.attention().can_attend(config.hidden_size // heads, device):
            attention = "triton"
        return FusedPlan(
            passes, heads, config.layer_norm_eps, GELU_IS_TANH[config.hidden_act], layout, attention,
            torch.is_grad_enabled(), fp8,
        )  # fmt: skip


@dataclass(frozen=True)
class FusedBackend(Backend):
    """All passes of one shared layer, in half precision on a GPU. It cannot be differentiated twice."""

    fp8: bool = False
    """Compute the larger matrix products in fp8: faster, and less exact. `enable_fp8` sets it."""

    def supports(self, encoder: AnyEncoder, hidden: Tensor, passes: Passes) -> bool:
        return passes.start == 0 and not passes.partial and can_fuse(encoder, hidden)

    def __call__(
        self, encoder: AnyEncoder, hidden: Tensor, layout: Layout, passes: Passes, bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        attention, is_free = encoder.attention_for(hidden, layout, bias), encoder.attention_implementation == "auto"
        plan = FusedPlan.of(encoder.config, passes.stop, layout, attention, is_free, hidden.device, self.fp8)
        weights = LayerWeights.of(encoder.attention[0], encoder.ffn[0])
        return run_fused(hidden.to(compute_dtype(hidden)), weights, plan, rows)


def can_fuse(encoder: AnyEncoder, hidden: Tensor) -> bool:
    """Whether all passes of this encoder can be one function."""
    config: AlbertConfig = encoder.config
    one_block = config.sharing == "all" and config.num_hidden_groups == config.inner_group_num == 1
    dropout = encoder.training and (config.hidden_dropout_prob or config.attention_probs_dropout_prob)
    added = (encoder.weight_at, encoder.adapters, encoder.relative_bias, encoder.depth_embeddings)
    fits = one_block and not dropout and config.hidden_act in GELU_IS_TANH and all(part is None for part in added)
    fits = fits and not encoder.gradient_checkpointing and encoder.attention_implementation != "eager"
    half = compute_dtype(hidden) in (torch.bfloat16, torch.float16)
    able = has_triton(hidden.device) and is_current_device(hidden.device)
    return fits and half and able and all(map(has_standard_children, (*encoder.attention, *encoder.ffn)))


def run_fused(hidden: Tensor, weights: LayerWeights, plan: FusedPlan, rows: Tensor | None) -> Tensor:  # (T or R, H)
    return _FusedPasses.apply(hidden, rows, plan, *weights)


class _SavedPass(NamedTuple):
    """What a pass saves for its backward."""

    hidden: Tensor
    qkv: Tensor
    attended: Any
    context: Tensor
    normed: tuple[Tensor, ...]
    middle: Tensor
    wide: Tensor
    last_normed: tuple[Tensor, ...]


class _FusedPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rows: Tensor | None, plan: FusedPlan, *parameters: Tensor) -> Tensor:
        weights = LayerWeights(*parameters).cast(hidden.dtype)
        saved = []
        with torch.autocast(hidden.device.type, enabled=False):
            products = Float8Products(weights, plan.needs_grad) if plan.fp8 else Products(weights)
            operand = products.first_operand(hidden)
            for number in range(plan.passes):
                selected = rows if number == plan.passes - 1 else None
                hidden, operand, saved_pass = _forward(hidden, operand, weights, products, plan, selected)
                if plan.needs_grad:
                    saved.append(saved_pass)
                del saved_pass  # else it would stay in memory through the next pass
        ctx.plan, ctx.weights, ctx.products, ctx.rows, ctx.saved_passes = plan, weights, products, rows, saved
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        return hidden

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sums = _WeightGrads(ctx.weights, ctx.plan, len(ctx.saved_passes[0].hidden))
        rows = ctx.rows
        with torch.autocast(grad.device.type, enabled=False):
            grad, saved, retained = grad.contiguous(), list(ctx.saved_passes), kernels.is_graph_retained()
            if not retained:
                ctx.saved_passes.clear()
            while saved:  # the memory of a pass is freed with it
                saved_pass = saved.pop()
                if retained:  # its backward writes there
                    saved_pass = saved_pass._replace(wide=saved_pass.wide.clone())
                grad = _backward(grad, saved_pass, ctx.weights, ctx.products, ctx.plan, rows, sums)
                rows = None
        return grad, None, None, *(total.to(dtype) for total, dtype in zip(sums.total(), ctx.dtypes, strict=True))


class _WeightGrads:
    """Gradients of the parameters, to which every pass adds."""

    def __init__(self, weights: LayerWeights, plan: FusedPlan, rows: int) -> None:
        ops, device, hidden = kernels.layer(), weights.qkv.device, weights.out.shape[0]
        self.qkv, self.out, self.widen, self.narrow = (
            torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
            for weight in (weights.qkv, weights.out, weights.widen, weights.narrow)
        )
        self.norm, self.last_norm = (ops.norm_sums(rows, hidden, device) for _ in range(2))
        self.weights, self.has_triton_attention = weights, plan.attention == "triton"
        if self.has_triton_attention:
            self.qkv_bias = kernels.attention().query_sums(plan.layout, hidden, device)
        else:
            self.qkv_bias = ops.column_sums(rows, 3 * hidden, device)
        self.widen_bias = ops.column_sums(rows, len(weights.widen), device)

    def total(self) -> LayerWeights:
        norm, norm_bias, out_bias = self.norm.sum(0)
        last_norm, last_norm_bias, narrow_bias = self.last_norm.sum(0)
        qkv_bias = self.qkv_bias.sum(0)
        if self.has_triton_attention:  # that of keys is 0, and that of values follows from that of the contexts
            values_bias = out_bias @ self.weights.out.to(out_bias.dtype)
            qkv_bias = torch.cat([qkv_bias, torch.zeros_like(qkv_bias), values_bias])
        return LayerWeights(
            self.qkv, qkv_bias, self.out, out_bias, norm, norm_bias,
            self.widen, self.widen_bias.sum(0), self.narrow, narrow_bias, last_norm, last_norm_bias,
        )  # fmt: skip


def _forward(
    hidden: Tensor, operand: Tensor, weights: LayerWeights, products: Products, plan: FusedPlan, rows: Tensor | None
) -> tuple[Tensor, Tensor, _SavedPass]:
    """`operand` is `hidden` as products take it, and so is the second output."""
    ops = kernels.layer()
    qkv = products.qkv(operand)  # (T, 3H)
    context, attended = _attend(qkv, plan)
    residual = hidden
    if rows is not None:
        residual, context = hidden.index_select(0, rows), context.index_select(0, rows)
    mixed = torch.addmm(weights.out_bias, context, weights.out.t())
    middle, operand, *normed = ops.add_norm(
        mixed, residual, weights.norm, weights.norm_bias, plan.eps, plan.needs_grad, plan.fp8
    )
    wide, narrow = products.feed_forward(operand, plan.tanh, plan.needs_grad)
    out, operand, *last_normed = ops.add_norm(
        narrow, middle, weights.last_norm, weights.last_norm_bias, plan.eps, plan.needs_grad, plan.fp8
    )
    return out, operand, _SavedPass(hidden, qkv, attended, context, tuple(normed), middle, wide, tuple(last_normed))


def _backward(
    grad: Tensor,
    saved: _SavedPass,
    weights: LayerWeights,
    products: Products,
    plan: FusedPlan,
    rows: Tensor | None,
    sums: _WeightGrads,
) -> Tensor:
    """From the gradient of the output of a pass to that of its input."""
    ops = kernels.layer()
    total, *moments = saved.last_normed
    grad, operand, row_norm = ops.norm_backward(
        grad, None, total, weights.last_norm, *moments, sums.last_norm, plan.fp8
    )
    grad_wide = products.grad_wide(grad, operand)  # (T, W)
    # from here on saved.wide is the output of GELU
    operand = ops.gelu_backward(saved.wide, grad_wide, plan.tanh, sums.widen_bias, row_norm, products.grad_bound)
    kernels.add_product(sums.narrow, grad, saved.wide)
    kernels.add_product(sums.widen, grad_wide, saved.middle)
    grad, extra = products.grad_middle(grad, grad_wide, operand)
    total, *moments = saved.normed
    grad, *_ = ops.norm_backward(grad, extra, total, weights.norm, *moments, sums.norm, False)
    kernels.add_product(sums.out, grad, saved.context)
    grad_context = grad @ weights.out
    if rows is not None:
        grad_context, grad = (
            torch.zeros_like(saved.hidden).index_add(0, rows, selected) for selected in (grad_context, grad)
        )
    grad_qkv = _attend_backward(grad_context, saved, plan, sums)
    kernels.add_product(sums.qkv, grad_qkv, saved.hidden)
    return grad.addmm_(grad_qkv, weights.qkv)


def _attend(qkv: Tensor, plan: FusedPlan) -> tuple[Tensor, Any]:
    """(T, H), and what the backward needs."""
    if plan.attention == "triton":
        context, logsumexps = kernels.attention().attend(qkv, plan.layout, plan.heads)
        return context, (context, logsumexps)
    with torch.set_grad_enabled(plan.needs_grad):
        leaf = qkv.detach().requires_grad_(plan.needs_grad)
        q, k, v = leaf.unflatten(-1, (3, plan.heads, -1)).unbind(-3)
        out = attend(q, k, v, plan.layout, implementation=plan.attention).flatten(-2)
    return out.detach(), (leaf, out)


def _attend_backward(grad: Tensor, saved: _SavedPass, plan: FusedPlan, sums: _WeightGrads) -> Tensor:  # (T, 3H)
    if plan.attention == "triton":
        grad_own: Tensor = kernels.attention().attend_backward(
            saved.qkv, *saved.attended, plan.layout, plan.heads, grad, sums.qkv_bias
        )
        return grad_own
    leaf, out = saved.attended
    (grad_qkv,) = torch.autograd.grad(out, leaf, grad)
    kernels.layer().sum_rows(grad_qkv, sums.qkv_bias)
    return grad_qkv
