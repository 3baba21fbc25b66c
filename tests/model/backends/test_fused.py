"""The passes written out by hand, against autograd; with kernels in plain torch. test_kernels.py has the real ones."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litebert.model import Albert, AlbertConfig, Encoder
from litebert.model.backends import AutoBackend, EagerBackend, Passes, fused, kernels, token_loss
from litebert.model.backends.products import LayerWeights
from litebert.model.layout import Dense, Layout, Packed
from tests.model.backends import plain_kernels

CPU = torch.device("cpu")
TOKENS = 31
LENGTHS = torch.tensor([5, 16, 1, 0, 9])
MASK = torch.arange(11) < torch.tensor([[3], [11], [7]])


@pytest.fixture(autouse=True)
def kernels_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "layer", lambda: plain_kernels)
    monkeypatch.setattr(kernels, "attention", lambda: plain_kernels)


def encoder(act: str = "gelu_new", **changes: Any) -> Encoder:
    shape = {"vocab_size": 50, "embedding_size": 16, "hidden_size": 48, "num_attention_heads": 3,
             "intermediate_size": 96, "num_hidden_layers": 3, "max_position_embeddings": 32}  # fmt: skip
    torch.manual_seed(0)
    made = Albert(AlbertConfig(**shape | {"hidden_act": act} | changes)).encoder.double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def layouts() -> dict[str, Layout]:
    return {"packed": Packed.of(LENGTHS), "dense": Dense(3, 11, None), "masked": Dense(3, 11, MASK)}


def plain(model: Encoder, hidden: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
    passes = model.config.num_hidden_layers
    return model.run_passes(hidden, layout, Passes(0, passes, passes), None, rows)


@pytest.mark.parametrize("layout", ["packed", "dense", "masked"])
@pytest.mark.parametrize("attention", ["triton", "sdpa"])
@pytest.mark.parametrize("act", list(fused.GELU_IS_TANH))
@pytest.mark.parametrize("rows", [None, [3, 0, 17, 17]], ids=["all", "some"])
def test_states_and_all_gradients_are_those_of_autograd(
    layout: str, attention: Any, act: str, rows: list[int] | None
) -> None:
    model, place = encoder(act), layouts()[layout]
    count = TOKENS if layout == "packed" else 33
    wanted_rows = None if rows is None else torch.tensor(rows)
    start = torch.randn(count, 48, dtype=torch.float64, requires_grad=True)
    expected = plain(model, start, place, wanted_rows)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    wanted = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert start.grad is not None
    to_start = start.grad
    model.zero_grad(set_to_none=True)
    start.grad = None
    weights = LayerWeights.of(model.attention[0], model.ffn[0])
    plan = fused.FusedPlan(
        3, 3, model.config.layer_norm_eps, fused.GELU_IS_TANH[act], place, attention, needs_grad=True
    )
    found = fused.run_fused(start, weights, plan, wanted_rows)
    found.backward(slope)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(start.grad, to_start)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name not in wanted)
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, wanted[name])


@pytest.mark.parametrize("rows", [None, [3, 0, 17, 17]], ids=["all", "some"])
def test_in_fp8_states_and_gradients_come_near(rows: list[int] | None) -> None:
    model, place = encoder().float(), layouts()["packed"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(3)  # larger ones make more of every error
    wanted = None if rows is None else torch.tensor(rows)
    start = torch.randn(TOKENS, 48, requires_grad=True)
    slope = 1e-6 * torch.randn(TOKENS if rows is None else len(rows), 48)  # as of a mean over many tokens
    found = {}
    for fp8 in (True, False):
        weights = LayerWeights.of(model.attention[0], model.ffn[0])
        plan = fused.FusedPlan(3, 3, model.config.layer_norm_eps, True, place, "triton", needs_grad=True, fp8=fp8)
        model.zero_grad(set_to_none=True)
        start.grad = None
        states = fused.run_fused(start, weights, plan, wanted)
        states.backward(slope)
        grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        found[fp8] = {"states": states.detach(), "start": start.grad} | grads
    for name, exact in found[False].items():
        error = (found[True][name] - exact).norm() / exact.norm()
        assert 0.001 < error < 0.06, name  # and they do come from eight bits
    with torch.no_grad():
        answer = fused.run_fused(start, weights, replace(plan, needs_grad=False, fp8=True), wanted)
    torch.testing.assert_close(answer, found[True]["states"])


def test_without_learning_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, place = encoder(), layouts()["packed"]
    start = torch.randn(TOKENS, 48, dtype=torch.float64)
    weights = LayerWeights.of(model.attention[0], model.ffn[0])
    left: list[weakref.ref[Tensor]] = []
    real = fused._forward

    def watched(hidden: Tensor, *rest: Any) -> Any:
        assert all(reference() is None for reference in left)
        *out, kept = real(hidden, *rest)
        left.append(weakref.ref(kept.qkv))
        return *out, kept

    monkeypatch.setattr(fused, "_forward", watched)
    with torch.no_grad():
        plan = fused.FusedPlan.of(model.config, 3, place, "sdpa", True, CPU)
        assert (plan.needs_grad, plan.attention) == (False, "triton")
        found = fused.run_fused(start, weights, plan, None)
        assert len(left) == 3
        torch.testing.assert_close(found, plain(model, start, place, None))


def test_attention_that_was_asked_for_is_kept() -> None:
    assert fused.FusedPlan.of(encoder().config, 3, layouts()["packed"], "sdpa", False, CPU).attention == "sdpa"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_half_precision_gradients_come_in_the_type_of_their_parameters(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:  # no CPU adds bf16 products in float32
        total += left.float().t() @ right.float()

    monkeypatch.setattr(kernels, "add_product", add_product)
    model, place = encoder(num_hidden_layers=4).float(), layouts()["packed"]
    found = {}
    for fuses in (True, False):
        parameters = model.to(dtype if fuses else torch.float32)
        weights = LayerWeights.of(parameters.attention[0], parameters.ffn[0])
        torch.manual_seed(1)
        start, slope = torch.randn(TOKENS, 48), torch.randn(TOKENS, 48)
        model.zero_grad(set_to_none=True)
        if fuses:
            plan = fused.FusedPlan(4, 3, model.config.layer_norm_eps, True, place, "triton", needs_grad=True)
            out = fused.run_fused(start.bfloat16(), weights, plan, None)
        else:
            out = plain(model, start, place, None)
        out.backward(slope.to(out.dtype))
        found[fuses] = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        assert all(one.grad.dtype == one.dtype for one in model.parameters() if one.grad is not None)
    for name, exact in found[False].items():
        if not name.endswith("qkv.bias"):  # of which the middle third is 0
            assert (found[True][name].float() - exact).norm() < 0.1 * exact.norm(), name


def test_a_graph_that_is_kept_can_be_gone_through_again() -> None:
    model, place = encoder(), layouts()["packed"]
    start = torch.randn(TOKENS, 48, dtype=torch.float64, requires_grad=True)
    weights = LayerWeights.of(model.attention[0], model.ffn[0])
    plan = fused.FusedPlan(3, 3, model.config.layer_norm_eps, True, place, "triton", needs_grad=True)
    found = fused.run_fused(start, weights, plan, None).square().sum()
    first, second, last = (
        torch.autograd.grad(found, [start, model.ffn[0].narrow.weight], retain_graph=keep)
        for keep in (True, True, False)
    )
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first, last)


def test_a_hook_or_another_layer_in_a_block_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litebert.model.backends.fused.has_triton", lambda device: True)
    hidden = torch.zeros(4, 48, dtype=torch.bfloat16)
    model = encoder()
    handle = model.ffn[0].narrow.register_forward_hook(lambda *_: None)
    assert not fused.can_fuse(model, hidden)
    handle.remove()
    assert fused.can_fuse(model, hidden)
    model.attention[0].qkv = torch.nn.utils.parametrizations.weight_norm(model.attention[0].qkv)
    assert not fused.can_fuse(model, hidden)
    model = encoder()
    model.attention_implementation = "eager"  # which can be differentiated twice
    assert not fused.can_fuse(model, hidden)


def test_a_mask_may_be_a_part_of_a_wider_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "can_fuse", lambda encoder, hidden: True)
    seen: list[bool] = []
    real = fused.run_fused

    def watched(hidden: Tensor, weights: Any, plan: fused.FusedPlan, rows: Any) -> Tensor:
        assert isinstance(plan.layout, Dense)
        assert plan.layout.mask is not None
        seen.append(plan.layout.mask.is_contiguous())
        return real(hidden, weights, plan, rows)

    monkeypatch.setattr("litebert.model.backends.fused.run_fused", watched)
    encoder()(torch.zeros(3, 8, dtype=torch.long), MASK[:, :8])
    assert seen == [True]


@pytest.mark.parametrize(
    ("changes", "attribute"),
    [({"sharing": "none"}, None), ({"num_hidden_groups": 3}, None), ({"inner_group_num": 2}, None),
     ({"hidden_act": "relu"}, None), ({"hidden_dropout_prob": 0.1}, None), ({"relative_attention_distance": 4}, None),
     ({"depth_embedding": True}, None), ({"lora_rank": 2}, None), ({}, ("gradient_checkpointing", True)),
     ({}, ("weight_at", lambda name, weight, depth, passes: weight))],
)  # fmt: skip
def test_what_the_function_does_not_compute_is_left_to_autograd(
    changes: dict[str, Any], attribute: tuple[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litebert.model.backends.fused.has_triton", lambda device: True)
    hidden = torch.zeros(4, 48, dtype=torch.bfloat16)
    assert fused.can_fuse(encoder(), hidden)
    assert not fused.can_fuse(encoder(), hidden.float())
    model = encoder(**changes).train()
    if attribute is not None:
        setattr(model, *attribute)
    assert not fused.can_fuse(model, hidden)


@pytest.mark.parametrize("packed", [True, False])
def test_an_encoder_that_uses_it_answers_the_same(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litebert.model.backends.fused.has_triton", lambda device: True)
    model = encoder().float()
    ids = torch.randint(0, 50, (TOKENS,)) if packed else torch.randint(0, 50, (3, 11))
    used: list[int] = []
    real = fused._forward

    def watched(*arguments: Any) -> Any:
        used.append(1)
        return real(*arguments)

    monkeypatch.setattr(fused, "_forward", watched)
    found = []
    for with_it in (True, False):
        model.backend = AutoBackend() if with_it else EagerBackend()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            found.append(model.packed(ids, LENGTHS) if packed else model(ids, MASK))
    assert len(used) == 3
    error = (found[0].float() - found[1].float()).norm() / found[1].float().norm()
    assert error < 0.02


@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("mask", [MASK, MASK.flip(1), torch.ones(3, 11, dtype=torch.bool)], ids=["right", "left", "no"])
def test_padding_is_left_out_where_there_is_much_to_do(
    some: bool, mask: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoder()
    ids, segments = torch.randint(0, 50, (3, 11)), torch.randint(0, 2, (3, 11))
    real = mask.flatten().nonzero()[:4, 0] if some else None
    found, slopes, counted, run_fused = [], [], [], fused.run_fused

    def counting(hidden: Tensor, *rest: Any) -> Tensor:
        counted.append(len(hidden))
        return run_fused(hidden, *rest)

    monkeypatch.setattr("litebert.model.backends.fused.run_fused", counting)
    monkeypatch.setattr("litebert.model.backends.is_launch_bound", lambda config, tokens, passes: False)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    count = int(mask.sum())
    for fuses, tokens in ((True, None), (True, count), (False, None)):
        monkeypatch.setattr(fused, "can_fuse", lambda encoder, hidden, fuses=fuses: fuses)
        model.zero_grad(set_to_none=True)
        with monkeypatch.context() as context:
            if tokens is not None:  # then nobody may ask the GPU
                context.setattr(Tensor, "__int__", None)
                context.setattr(Tensor, "nonzero", None)
                context.setattr(Tensor, "item", None)
            found.append(model(ids, mask, segments, rows=real, tokens=tokens))
        found[-1].square().sum().backward()
        slopes.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert counted == [count, count]
    for one in (0, 1):
        torch.testing.assert_close(found[one], found[2])
        torch.testing.assert_close(slopes[one], slopes[2])


@pytest.mark.parametrize("chunk", [3, 7, 100])
def test_token_losses_are_cross_entropy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_loss, "CHUNK", chunk)
    torch.manual_seed(0)
    states, table, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((20, 6), (40, 6), (40,)))
    labels = torch.randint(0, 40, (20,))
    labels[3] = -100
    labels[5] = (states @ table.t() + bias)[5].argmax()
    mine, theirs = ([x.clone().requires_grad_() for x in (states, table, bias)] for _ in range(2))
    loss, right = token_loss.token_losses(*mine, labels)
    (0.3 * loss).backward()
    scores = theirs[0] @ theirs[1].t() + theirs[2]
    expected = F.cross_entropy(scores, labels, reduction="sum")
    (0.3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    assert right == (scores.argmax(-1) == labels).sum()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with torch.no_grad():
        torch.testing.assert_close(token_loss.token_losses(*mine, labels)[0], expected)
    none, right = token_loss.token_losses(mine[0][:0], *mine[1:], labels[:0])  # nothing is hidden in this batch
    assert none == right == 0
    none.backward()
