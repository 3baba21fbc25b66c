"""The kernels of a GPU against plain torch; test_kernels.py runs this, in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from litebert.model.backends import attention_kernels
from litebert.model.backends import layer_kernels as kernels
from litebert.model.backends.fp8 import FLOAT8
from litebert.model.layout import Dense, Layout, Packed
from tests.model.backends import plain_kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, COLUMNS, HEADS, CHANNELS = 66, 48, 3, 16
LAYOUTS: dict[str, Layout] = {
    "packed": Packed.of(torch.tensor([5, 37, 1, 0, 23], device=DEVICE)),
    "dense": Dense(3, 22, None),
    "padded": Dense(3, 22, torch.arange(22, device=DEVICE) < torch.tensor([[3], [22], [17]], device=DEVICE)),
    "masked": Dense(3, 22, torch.rand(3, 22, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0)) < 0.6),
}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each has several rows to go through."""
    monkeypatch.setattr(kernels, "MAX_PROGRAMS", 8)
    monkeypatch.setattr(kernels, "MIN_ROWS_PER_PROGRAM", 2)
    torch.manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-5)


def near(found: Tensor, expected: Tensor) -> None:
    """The same in fp8, but for a few, which Triton's interpreter rounds wrongly: 1.97 to 1, tiny ones down."""
    assert found.dtype == expected.dtype == FLOAT8
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.51, atol=2e-3)
    assert (found.float() == expected.float()).float().mean() > 0.9


@pytest.mark.parametrize("fp8", [True, False])
def test_the_norm_of_a_sum_and_its_slopes(fp8: bool) -> None:
    x, residual, grad, extra = (random(ROWS, COLUMNS) for _ in range(4))
    x[0, 0] = 1e6  # of which LayerNorm makes the largest that there can be
    weight, bias = random(COLUMNS), random(COLUMNS)
    weight[0] = 100
    found = kernels.add_norm(x.clone(), residual, weight, bias, 1e-12, True, fp8)
    expected = plain_kernels.add_norm(x.clone(), residual, weight, bias, 1e-12, True, fp8)
    assert (found[1] is found[0]) != fp8
    if fp8:
        near(found[1], expected[1])
        assert found[1][0, 0] == 448
    for mine, theirs in zip((found[0], *found[2:]), (expected[0], *expected[2:]), strict=True):
        close(mine, theirs)
    given = x.clone()
    close(kernels.add_norm(given, residual, weight, bias, 1e-12, False, fp8)[0], expected[0])
    close(given, x)
    sums, their_sums = kernels.norm_sums(ROWS, COLUMNS, DEVICE), plain_kernels.norm_sums(ROWS, COLUMNS, DEVICE)
    for added in (None, extra):  # a second pass adds to the first
        mine, quantized, row_norm = kernels.norm_backward(grad, added, found[2], weight, *found[3:], sums, fp8)
        theirs, their_quantized, their_row_norm = plain_kernels.norm_backward(
            grad, added, expected[2], weight, *expected[3:], their_sums, fp8
        )
        close(mine, theirs)
        assert (quantized is not None) == (row_norm is not None) == fp8
        if quantized is not None:
            near(quantized.values, their_quantized.values)
            close(quantized.scale, their_quantized.scale)
            close(row_norm, their_row_norm)
    close(sums.sum(0), their_sums.sum(0))


@pytest.mark.parametrize("tanh", [True, False])
def test_gelu_and_its_slope(tanh: bool) -> None:
    x, grad = 2 * random(ROWS, 300), random(ROWS, 300)
    close(kernels.gelu(x, tanh), plain_kernels.gelu(x, tanh))
    near(kernels.gelu(300 * x, tanh, fp8=True), plain_kernels.gelu(300 * x, tanh, fp8=True))
    row_norm, grad_bound = grad.norm(dim=1, keepdim=True), torch.tensor(1.2, device=DEVICE)
    for bounds in ((), (row_norm, grad_bound)):
        mine, theirs = ((x.clone(), grad.clone()) for _ in range(2))
        sums, their_sums = kernels.column_sums(ROWS, 300, DEVICE), plain_kernels.column_sums(ROWS, 300, DEVICE)
        quantized = kernels.gelu_backward(*mine, tanh, sums, *bounds)
        their_quantized = plain_kernels.gelu_backward(*theirs, tanh, their_sums, *bounds)
        for one, other in zip(mine, theirs, strict=True):
            close(one, other)
        close(sums.sum(0), their_sums.sum(0))
        assert (quantized is not None) == bool(bounds)
        if quantized is not None:
            near(quantized.values, their_quantized.values)
            close(quantized.scale, their_quantized.scale)


def test_sums_of_rows() -> None:
    x, sums = random(ROWS, 300), kernels.column_sums(ROWS, 300, DEVICE)
    kernels.sum_rows(x, sums)
    kernels.sum_rows(x, sums)
    close(sums.sum(0), 2 * x.sum(0))


@pytest.mark.parametrize("tile", [16, 128], ids=["tile by tile", "in one tile"])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_attention_within_sequences(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernels, "MAX_TILE_LENGTH", tile)
    monkeypatch.setattr(
        attention_kernels,
        "TILE_SHAPES",
        {"attend": (32, 16, 4, 1), "to_queries": (16, 32, 4, 1), "to_keys": (16, 16, 4, 1)},
    )
    layout = LAYOUTS[name]
    qkv, grad = random(ROWS, 3 * HEADS * CHANNELS), random(ROWS, HEADS * CHANNELS)
    context, logsumexps = attention_kernels.attend(qkv, layout, HEADS)
    expected, _ = plain_kernels.attend(qkv, layout, HEADS)
    close(context, expected)
    sums, their_sums = (
        which.query_sums(layout, HEADS * CHANNELS, DEVICE) for which in (attention_kernels, plain_kernels)
    )
    for _ in range(2):
        close(
            attention_kernels.attend_backward(qkv, context, logsumexps, layout, HEADS, grad, sums),
            plain_kernels.attend_backward(qkv, expected, None, layout, HEADS, grad, their_sums),
        )
    close(sums.sum(0), their_sums.sum(0))


@pytest.mark.parametrize("needs_grad", [True, False])
def test_losses_of_tokens(needs_grad: bool) -> None:
    scores, labels = random(9, 5000), torch.randint(0, 5000, (9,), device=DEVICE)
    labels[2], labels[4] = -100, scores[4].argmax()
    mine, theirs = scores.clone(), scores.clone()
    found: Any = kernels.token_loss(mine, labels, needs_grad)
    expected: Any = plain_kernels.token_loss(theirs, labels, needs_grad)
    for one, other in zip((*found, mine), (*expected, theirs), strict=True):
        close(one, other)
