"""The kernels of a GPU against plain torch; test_kernels.py runs this, in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from litebert.model.backends import attention_kernels
from litebert.model.backends import layer_kernels as kernels
from litebert.model.backends.fp8 import EIGHT
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
    monkeypatch.setattr(kernels, "PROGRAMS", 8)
    monkeypatch.setattr(kernels, "ROWS_EACH", 2)
    torch.manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-5)


def near(found: Tensor, expected: Tensor) -> None:
    """The same in eight bits, but for a few, which Triton's interpreter rounds wrongly: 1.97 to 1, tiny ones down."""
    assert found.dtype == expected.dtype == EIGHT
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.51, atol=2e-3)
    assert (found.float() == expected.float()).float().mean() > 0.9


@pytest.mark.parametrize("eight", [True, False])
def test_the_norm_of_a_sum_and_its_slopes(eight: bool) -> None:
    x, residual, slope, more = (random(ROWS, COLUMNS) for _ in range(4))
    x[0, 0] = 1e6  # of which LayerNorm makes the largest that there can be
    weight, bias = random(COLUMNS), random(COLUMNS)
    weight[0] = 100
    found = kernels.add_norm(x.clone(), residual, weight, bias, 1e-12, True, eight)
    expected = plain_kernels.add_norm(x.clone(), residual, weight, bias, 1e-12, True, eight)
    assert (found[1] is found[0]) != eight
    if eight:
        near(found[1], expected[1])
        assert found[1][0, 0] == 448
    for mine, theirs in zip((found[0], *found[2:]), (expected[0], *expected[2:]), strict=True):
        close(mine, theirs)
    given = x.clone()
    close(kernels.add_norm(given, residual, weight, bias, 1e-12, False, eight)[0], expected[0])
    close(given, x)
    sums, their_sums = kernels.norm_sums(ROWS, COLUMNS, DEVICE), plain_kernels.norm_sums(ROWS, COLUMNS, DEVICE)
    for added in (None, more):  # a second pass adds to the first
        mine, small, length = kernels.norm_backward(slope, added, found[2], weight, *found[3:], sums, eight)
        theirs, their_small, their_length = plain_kernels.norm_backward(
            slope, added, expected[2], weight, *expected[3:], their_sums, eight
        )
        close(mine, theirs)
        assert (small is not None) == (length is not None) == eight
        if small is not None:
            near(small.values, their_small.values)
            close(small.unit, their_small.unit)
            close(length, their_length)
    close(sums.sum(0), their_sums.sum(0))


@pytest.mark.parametrize("tanh", [True, False])
def test_gelu_and_its_slope(tanh: bool) -> None:
    x, slope = 2 * random(ROWS, 300), random(ROWS, 300)
    close(kernels.gelu(x, tanh), plain_kernels.gelu(x, tanh))
    near(kernels.gelu(300 * x, tanh, eight=True), plain_kernels.gelu(300 * x, tanh, eight=True))
    length, reach = slope.norm(dim=1, keepdim=True), torch.tensor(1.2, device=DEVICE)
    for bounds in ((), (length, reach)):
        mine, theirs = ((x.clone(), slope.clone()) for _ in range(2))
        sums, their_sums = kernels.column_sums(ROWS, 300, DEVICE), plain_kernels.column_sums(ROWS, 300, DEVICE)
        small = kernels.gelu_backward(*mine, tanh, sums, *bounds)
        their_small = plain_kernels.gelu_backward(*theirs, tanh, their_sums, *bounds)
        for one, other in zip(mine, theirs, strict=True):
            close(one, other)
        close(sums.sum(0), their_sums.sum(0))
        assert (small is not None) == bool(bounds)
        if small is not None:
            near(small.values, their_small.values)
            close(small.unit, their_small.unit)


def test_sums_of_rows() -> None:
    x, sums = random(ROWS, 300), kernels.column_sums(ROWS, 300, DEVICE)
    kernels.sum_rows(x, sums)
    kernels.sum_rows(x, sums)
    close(sums.sum(0), 2 * x.sum(0))


@pytest.mark.parametrize("tile", [16, 128], ids=["tile by tile", "in one tile"])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_attention_within_sequences(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernels, "LONGEST", tile)
    monkeypatch.setattr(
        attention_kernels, "SHAPES", {"attend": (32, 16, 4, 1), "to_queries": (16, 32, 4, 1), "to_keys": (16, 16, 4, 1)}
    )
    layout = LAYOUTS[name]
    qkv, slope = random(ROWS, 3 * HEADS * CHANNELS), random(ROWS, HEADS * CHANNELS)
    context, peaks = attention_kernels.attend(qkv, layout, HEADS)
    expected, _ = plain_kernels.attend(qkv, layout, HEADS)
    close(context, expected)
    sums, their_sums = (
        which.query_sums(layout, HEADS * CHANNELS, DEVICE) for which in (attention_kernels, plain_kernels)
    )
    for _ in range(2):
        close(
            attention_kernels.attend_backward(qkv, context, peaks, layout, HEADS, slope, sums),
            plain_kernels.attend_backward(qkv, expected, None, layout, HEADS, slope, their_sums),
        )
    close(sums.sum(0), their_sums.sum(0))


@pytest.mark.parametrize("learns", [True, False])
def test_losses_of_tokens(learns: bool) -> None:
    scores, labels = random(9, 5000), torch.randint(0, 5000, (9,), device=DEVICE)
    labels[2], labels[4] = -100, scores[4].argmax()
    mine, theirs = scores.clone(), scores.clone()
    found: Any = kernels.token_loss(mine, labels, learns)
    expected: Any = plain_kernels.token_loss(theirs, labels, learns)
    for one, other in zip((*found, mine), (*expected, theirs), strict=True):
        close(one, other)
