"""All passes of one shared layer as one function, its backward written out: what a GPU runs.

Left to autograd, every pass would cast the weights, keep what can be computed again, launch a kernel for every small
step, and add its share of a weight's gradient in bfloat16. Here weights are cast once, a pass is eight kernels forward
and about fifteen backward, and matrix products add their shares in float32 to where the others' are.

Shapes: T tokens in rows, H hidden, W intermediate, N heads, R wanted rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from litebert.model.attention import AttentionImplementation, attend
from litebert.model.backends.base import AnyEncoder, Backend, Passes, compute_dtype, has_triton, is_current_device
from litebert.model.backends.fp8 import EIGHT, MOST, Eight, product, to_eight
from litebert.model.config import AlbertConfig
from litebert.model.hooks import has_standard_children
from litebert.model.layout import Layout

CHUNK = 1024
"""Rows of vocabulary scores at once: they stay in the cache of a large GPU."""
STEEPEST, ROUNDED = 1.13, 1.0625
"""GELU's slope, and how much larger a number can become in eight bits."""
TANH = {"gelu_new": True, "gelu": False}
"""The activations that there are kernels for, and whether each is the approximation."""


class Weights(NamedTuple):
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
    def of(attention: Any, ffn: Any) -> Weights:
        parts = (attention.qkv, attention.out, attention.norm, ffn.widen, ffn.narrow, ffn.norm)
        return Weights(*(tensor for part in parts for tensor in (part.weight, part.bias)))

    def cast(self, dtype: torch.dtype) -> Weights:
        """Matrices and their biases in another type; the kernels read LayerNorm's as they are."""
        cast = {name: getattr(self, name) for name in self._fields if "norm" not in name}
        if all(tensor.dtype == dtype for tensor in cast.values()):
            return self
        small = [torch.empty_like(tensor, dtype=dtype) for tensor in cast.values()]
        torch._foreach_copy_(small, list(cast.values()))
        return self._replace(**dict(zip(cast, small, strict=True)))


@dataclass(frozen=True)
class Plan:
    """What is computed, beside the tensors."""

    passes: int
    heads: int
    eps: float
    tanh: bool
    layout: Layout
    attention: AttentionImplementation | Literal["triton"]
    learns: bool
    """Will there be a backward?"""
    fp8: bool = False
    """Are the larger matrix products computed from eight bits?"""

    @staticmethod
    def of(
        config: AlbertConfig, passes: int, layout: Layout, attention: AttentionImplementation, is_free: bool,
        device: torch.device, fp8: bool = False,
    ) -> Plan:  # fmt: skip
        """`is_free`: the caller has not asked for this attention, so our own kernels may take its place."""
        heads = config.num_attention_heads
        own = is_free and _attention().can_attend(config.hidden_size // heads, device)
        return Plan(
            passes, heads, config.layer_norm_eps, TANH[config.hidden_act], layout, "triton" if own else attention,
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
        plan = Plan.of(encoder.config, passes.stop, layout, attention, is_free, hidden.device, self.fp8)
        weights = Weights.of(encoder.attention[0], encoder.ffn[0])
        return run_fused(hidden.to(compute_dtype(hidden)), weights, plan, rows)


def can_fuse(encoder: AnyEncoder, hidden: Tensor) -> bool:
    """Whether all passes of this encoder can be one function."""
    config: AlbertConfig = encoder.config
    one_block = config.sharing == "all" and config.num_hidden_groups == config.inner_group_num == 1
    dropout = encoder.training and (config.hidden_dropout_prob or config.attention_probs_dropout_prob)
    added = (encoder.weight_at, encoder.adapters, encoder.relative_bias, encoder.depth_embeddings)
    fits = one_block and not dropout and config.hidden_act in TANH and all(part is None for part in added)
    fits = fits and not encoder.gradient_checkpointing and encoder.attention_implementation != "eager"
    half = compute_dtype(hidden) in (torch.bfloat16, torch.float16)
    able = has_triton(hidden.device) and is_current_device(hidden.device)
    return fits and half and able and all(map(has_standard_children, (*encoder.attention, *encoder.ffn)))


def run_fused(hidden: Tensor, weights: Weights, plan: Plan, rows: Tensor | None) -> Tensor:  # (T or R, H)
    return _Passes.apply(hidden, rows, plan, *weights)


class _Pass(NamedTuple):
    """What a pass leaves for its backward."""

    hidden: Tensor
    qkv: Tensor
    attended: Any
    context: Tensor
    normed: tuple[Tensor, ...]
    middle: Tensor
    wide: Tensor
    last_normed: tuple[Tensor, ...]


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rows: Tensor | None, plan: Plan, *parameters: Tensor) -> Tensor:
        weights = Weights(*parameters).cast(hidden.dtype)
        kept = []
        with torch.autocast(hidden.device.type, enabled=False):
            products = _Eighths(weights, plan.learns) if plan.fp8 else _Products(weights)
            small = products.begin(hidden)
            for number in range(plan.passes):
                wanted = rows if number == plan.passes - 1 else None
                hidden, small, this = _forward(hidden, small, weights, products, plan, wanted)
                if plan.learns:
                    kept.append(this)
                del this  # else it would stay through the next pass
        ctx.plan, ctx.weights, ctx.products, ctx.rows, ctx.kept = plan, weights, products, rows, kept
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        return hidden

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        sums = _Sums(ctx.weights, ctx.plan, len(ctx.kept[0].hidden))
        rows = ctx.rows
        with torch.autocast(slope.device.type, enabled=False):
            slope, kept, again = slope.contiguous(), list(ctx.kept), _is_kept_for_another()
            if not again:
                ctx.kept.clear()
            while kept:  # what a pass has kept is let go with it
                this = kept.pop()
                if again:  # its backward writes there
                    this = this._replace(wide=this.wide.clone())
                slope = _backward(slope, this, ctx.weights, ctx.products, ctx.plan, rows, sums)
                rows = None
        return slope, None, None, *(total.to(dtype) for total, dtype in zip(sums.total(), ctx.dtypes, strict=True))


class _Sums:
    """Gradients of the parameters, to which every pass adds."""

    def __init__(self, weights: Weights, plan: Plan, rows: int) -> None:
        ops, device, hidden = _kernels(), weights.qkv.device, weights.out.shape[0]
        self.qkv, self.out, self.widen, self.narrow = (
            torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
            for weight in (weights.qkv, weights.out, weights.widen, weights.narrow)
        )
        self.norm, self.last_norm = (ops.norm_sums(rows, hidden, device) for _ in range(2))
        self.weights, self.own = weights, plan.attention == "triton"
        if self.own:
            self.qkv_bias = _attention().query_sums(plan.layout, hidden, device)
        else:
            self.qkv_bias = ops.column_sums(rows, 3 * hidden, device)
        self.widen_bias = ops.column_sums(rows, len(weights.widen), device)

    def total(self) -> Weights:
        norm, norm_bias, out_bias = self.norm.sum(0)
        last_norm, last_norm_bias, narrow_bias = self.last_norm.sum(0)
        qkv_bias = self.qkv_bias.sum(0)
        if self.own:  # of the keys it is 0, and that of the values what has come to the contexts
            to_values = out_bias @ self.weights.out.to(out_bias.dtype)
            qkv_bias = torch.cat([qkv_bias, torch.zeros_like(qkv_bias), to_values])
        return Weights(
            self.qkv, qkv_bias, self.out, out_bias, norm, norm_bias,
            self.widen, self.widen_bias.sum(0), self.narrow, narrow_bias, last_norm, last_norm_bias,
        )  # fmt: skip


class _Products:
    """A layer's matrix products, as they are."""

    reach: Tensor | None = None

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def begin(self, hidden: Tensor) -> Tensor:
        """What comes before the first pass, as products take it."""
        return hidden

    def qkv(self, small: Tensor) -> Tensor:  # (T, 3H)
        return torch.addmm(self.weights.qkv_bias, small, self.weights.qkv.t())

    def feed(self, small: Tensor, tanh: bool, learns: bool) -> tuple[Tensor, Tensor]:
        """What GELU gets, (T, W), where something is learned; and what the half gives, (T, H)."""
        weights, ops = self.weights, _kernels()
        if learns:
            wide = torch.addmm(weights.widen_bias, small, weights.widen.t())
            bent = ops.gelu(wide, tanh)
        else:
            wide = bent = ops.product_gelu(weights.widen_bias, small, weights.widen.t(), tanh)
        return wide, torch.addmm(weights.narrow_bias, bent, weights.narrow.t())

    def to_wide(self, slope: Tensor, small: Eight | None) -> Tensor:  # (T, W)
        return slope @ self.weights.narrow

    def to_middle(self, slope: Tensor, to_wide: Tensor, small: Eight | None) -> tuple[Tensor, Tensor | None]:
        """The slope with what comes through the feed-forward half, or that beside it."""
        return slope.addmm_(to_wide, self.weights.widen), None


class _Eighths(_Products):
    """The same from eight bits: queries, keys and values forward, the feed-forward half both ways.

    LayerNorm and GELU give numbers that need no unit but one, and so does what comes before the first pass. Slopes have
    one for each row. How far those of a row may reach after GELU is known beforehand: no further than the row's length
    before, times the longest of the vectors that it is multiplied with, times GELU's steepest slope.
    """

    def __init__(self, weights: Weights, learns: bool) -> None:
        super().__init__(weights)
        self.dtype = weights.qkv.dtype
        self.one = torch.ones((), device=weights.qkv.device)
        self.eights = {name: to_eight(getattr(weights, name)) for name in ("qkv", "widen", "narrow")}
        if learns:
            self.reach = STEEPEST * ROUNDED**2 * weights.narrow.float().norm(dim=0).amax()
            self.turned = {name: _turned(self.eights[name]) for name in ("widen", "narrow")}

    def begin(self, hidden: Tensor) -> Tensor:
        return hidden.clamp(-MOST, MOST).to(EIGHT)

    def qkv(self, small: Tensor) -> Tensor:
        return self._product("qkv", small, self.weights.qkv_bias)

    def feed(self, small: Tensor, tanh: bool, learns: bool) -> tuple[Tensor, Tensor]:
        wide = self._product("widen", small, self.weights.widen_bias)
        bent = _kernels().gelu(wide, tanh, eight=True)
        return wide, self._product("narrow", bent, self.weights.narrow_bias)

    def to_wide(self, slope: Tensor, small: Eight | None) -> Tensor:
        assert small is not None
        return product(small, self.turned["narrow"], self.dtype)

    def to_middle(self, slope: Tensor, to_wide: Tensor, small: Eight | None) -> tuple[Tensor, Tensor | None]:
        assert small is not None
        return slope, product(small, self.turned["widen"], self.dtype)

    def _product(self, name: str, small: Tensor, bias: Tensor) -> Tensor:
        return product(Eight(small, self.one), self.eights[name], self.dtype, bias)


def _turned(matrix: Eight) -> Eight:
    """The transpose, with its unit for every row."""
    values = matrix.values.t().contiguous()
    return Eight(values, matrix.unit.expand(len(values), 1).contiguous())


def _forward(
    hidden: Tensor, small: Tensor, weights: Weights, products: _Products, plan: Plan, rows: Tensor | None
) -> tuple[Tensor, Tensor, _Pass]:
    """`small` is `hidden` as products take it, and so is the second of what comes out."""
    ops = _kernels()
    qkv = products.qkv(small)  # (T, 3H)
    context, attended = _attend(qkv, plan)
    residual = hidden
    if rows is not None:
        residual, context = hidden.index_select(0, rows), context.index_select(0, rows)
    mixed = torch.addmm(weights.out_bias, context, weights.out.t())
    middle, small, *normed = ops.add_norm(
        mixed, residual, weights.norm, weights.norm_bias, plan.eps, plan.learns, plan.fp8
    )
    wide, narrow = products.feed(small, plan.tanh, plan.learns)
    out, small, *last_normed = ops.add_norm(
        narrow, middle, weights.last_norm, weights.last_norm_bias, plan.eps, plan.learns, plan.fp8
    )
    return out, small, _Pass(hidden, qkv, attended, context, tuple(normed), middle, wide, tuple(last_normed))


def _backward(
    slope: Tensor, kept: _Pass, weights: Weights, products: _Products, plan: Plan, rows: Tensor | None, sums: _Sums
) -> Tensor:
    """From the slope of what a pass gave to the slope of what it got."""
    ops = _kernels()
    total, *moments = kept.last_normed
    slope, small, length = ops.norm_backward(slope, None, total, weights.last_norm, *moments, sums.last_norm, plan.fp8)
    to_wide = products.to_wide(slope, small)  # (T, W)
    # from here on kept.wide is what GELU gave
    small = ops.gelu_backward(kept.wide, to_wide, plan.tanh, sums.widen_bias, length, products.reach)
    _add_product(sums.narrow, slope, kept.wide)
    _add_product(sums.widen, to_wide, kept.middle)
    slope, more = products.to_middle(slope, to_wide, small)
    total, *moments = kept.normed
    slope, *_ = ops.norm_backward(slope, more, total, weights.norm, *moments, sums.norm, False)
    _add_product(sums.out, slope, kept.context)
    to_context = slope @ weights.out
    if rows is not None:
        to_context, slope = (torch.zeros_like(kept.hidden).index_add(0, rows, some) for some in (to_context, slope))
    to_qkv = _attend_backward(to_context, kept, plan, sums)
    _add_product(sums.qkv, to_qkv, kept.hidden)
    return slope.addmm_(to_qkv, weights.qkv)


def _attend(qkv: Tensor, plan: Plan) -> tuple[Tensor, Any]:
    """(T, H), and what the backward needs."""
    if plan.attention == "triton":
        context, peaks = _attention().attend(qkv, plan.layout, plan.heads)
        return context, (context, peaks)
    with torch.set_grad_enabled(plan.learns):
        leaf = qkv.detach().requires_grad_(plan.learns)
        q, k, v = leaf.unflatten(-1, (3, plan.heads, -1)).unbind(-3)
        out = attend(q, k, v, plan.layout, implementation=plan.attention).flatten(-2)
    return out.detach(), (leaf, out)


def _attend_backward(slope: Tensor, kept: _Pass, plan: Plan, sums: _Sums) -> Tensor:  # (T, 3H)
    if plan.attention == "triton":
        own: Tensor = _attention().attend_backward(
            kept.qkv, *kept.attended, plan.layout, plan.heads, slope, sums.qkv_bias
        )
        return own
    leaf, out = kept.attended
    (to_qkv,) = torch.autograd.grad(out, leaf, slope)
    _kernels().sum_rows(to_qkv, sums.qkv_bias)
    return to_qkv


def token_losses(states: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss and the number of right answers, of scores `states @ table.T + bias` that are never all there.

    (M, E), (V, E), (V,), (M,) in; labels below 0 ask nothing.
    """
    return _TokenLosses.apply(states, table, bias, labels, torch.is_grad_enabled())


class _TokenLosses(torch.autograd.Function):
    """The slopes are made in the forward, a chunk of rows after the other, while its scores are in the cache."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, bias: Tensor, labels: Tensor, learns: bool
    ) -> tuple[Tensor, Tensor]:
        ops = _kernels()
        small = [tensor.to(states.dtype) for tensor in (table, bias)]
        to_states = torch.empty_like(states)
        to_table = torch.zeros_like(table, dtype=torch.promote_types(states.dtype, torch.float32))
        to_bias = ops.column_sums(CHUNK, len(bias), states.device)
        found = [(states.new_zeros(0, dtype=torch.float32),) * 2]  # there may be none
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, len(states), CHUNK):
                chunk = slice(start, start + CHUNK)
                scores = torch.addmm(small[1], states[chunk], small[0].t())  # (CHUNK, V)
                found.append(ops.token_loss(scores, labels[chunk], learns))
                if learns:
                    torch.mm(scores, small[0], out=to_states[chunk])
                    _add_product(to_table, scores, states[chunk])
                    ops.sum_rows(scores, to_bias)
        ctx.slopes = to_states, to_table, to_bias.sum(0)
        ctx.dtypes = table.dtype, bias.dtype
        losses, right = (torch.cat(parts).sum() for parts in zip(*found, strict=True))
        ctx.mark_non_differentiable(right)
        return losses, right

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_states, to_table, to_bias = ctx.slopes
        if not _is_kept_for_another():
            ctx.slopes = None
        table, bias = ctx.dtypes
        slopes = (slope * to_states).to(to_states.dtype), (slope * to_table).to(table), (slope * to_bias).to(bias)
        return *slopes, None, None


def _is_kept_for_another() -> bool:
    """Was the backward under way asked for with `retain_graph`?"""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left.T @ right, in the total's type."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
    else:
        torch.addmm(total, left.t(), right, out_dtype=total.dtype, out=total)


@cache
def _kernels() -> ModuleType:
    from litebert.model.backends import layer_kernels as kernels

    return kernels


@cache
def _attention() -> ModuleType:
    from litebert.model.backends import attention_kernels

    return attention_kernels
