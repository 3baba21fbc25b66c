"""The loss over the vocabulary without ever holding all of its logits.

Shapes: M masked tokens, V vocabulary, E embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from litebert.model.backends import kernels

CHUNK = 1024
"""Rows of logits at once: they stay in the cache of a large GPU."""


def token_losses(states: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross entropy and the number of correct predictions of the logits `states @ table.T + bias`, which are
    never in memory all at once.

    (M, E), (V, E), (V,), (M,) in; labels below 0 are ignored.
    """
    return _TokenLosses.apply(states, table, bias, labels, torch.is_grad_enabled())


class _TokenLosses(torch.autograd.Function):
    """Gradients are computed in the forward, chunk by chunk, while the logits of the chunk are in the cache."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, bias: Tensor, labels: Tensor, needs_grad: bool
    ) -> tuple[Tensor, Tensor]:
        ops = kernels.layer()
        weight, offset = (tensor.to(states.dtype) for tensor in (table, bias))
        grad_states = torch.empty_like(states)
        grad_table = torch.zeros_like(table, dtype=torch.promote_types(states.dtype, torch.float32))
        grad_bias = ops.column_sums(CHUNK, len(bias), states.device)
        chunks = [(states.new_zeros(0, dtype=torch.float32),) * 2]  # there may be no rows
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, len(states), CHUNK):
                chunk = slice(start, start + CHUNK)
                scores = torch.addmm(offset, states[chunk], weight.t())  # (CHUNK, V)
                chunks.append(ops.token_loss(scores, labels[chunk], needs_grad))
                if needs_grad:
                    torch.mm(scores, weight, out=grad_states[chunk])
                    kernels.add_product(grad_table, scores, states[chunk])
                    ops.sum_rows(scores, grad_bias)
        ctx.grads = grad_states, grad_table, grad_bias.sum(0)
        ctx.dtypes = table.dtype, bias.dtype
        losses, correct = (torch.cat(parts).sum() for parts in zip(*chunks, strict=True))
        ctx.mark_non_differentiable(correct)
        return losses, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_table, grad_bias = ctx.grads
        if not kernels.is_graph_retained():
            ctx.grads = None
        table, bias = ctx.dtypes
        grads = (grad * grad_states).to(grad_states.dtype), (grad * grad_table).to(table), (grad * grad_bias).to(bias)
        return *grads, None, None
