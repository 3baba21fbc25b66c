"""Who is decayed, how matrices are treated, and how the rate rises and falls."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.train.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    Lamb,
    Muon,
    OptimizerName,
    ParameterOptions,
    ScheduleName,
    adamw,
    lamb,
    muon,
    orthogonalize,
    scaled_rate,
    schedule,
    warmup_linear,
)


class Fused(nn.Module):
    """The least model with every kind of parameter: table, fused matrix, plain matrix, bias, LayerNorm, head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 4)
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.heads = nn.ModuleDict({"order": nn.Linear(4, 2)})

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.table(ids)).chunk(3, dim=-1)
        return self.heads["order"](self.norm(self.out(torch.tanh(q * k + v))))


def rates(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """What the loop does before every step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rate: float = 0.01) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        rates(optimizer, rate)
        ids, target = torch.randint(0, 7, (5, 3)), torch.randn(5, 3, 2)
        optimizer.zero_grad()
        loss = (model(ids).float() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def groups_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    by_id = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    return {name: by_id[id(p)] for name, p in model.named_parameters() if id(p) in by_id}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_biases_and_layer_norms_are_not_decayed(model: Model, name: OptimizerName) -> None:
    optimizer = OPTIMIZERS[name](model.albert, weight_decay=0.1)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for module in model.albert.modules():
        for label, parameter in module.named_parameters(recurse=False):
            spared = isinstance(module, nn.LayerNorm) or label == "bias"
            assert decay[id(parameter)] == (0.0 if spared else 0.1), label


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_trainable_parameter_is_there_once(model: Model, name: OptimizerName) -> None:
    frozen = model.encoder.word_embeddings.weight.requires_grad_(False)
    optimizer = OPTIMIZERS[name](model.albert, weight_decay=0.1)
    given_ = [p for group in optimizer.param_groups for p in group["params"]]
    assert len({id(p) for p in given_}) == len(given_) == len(list(model.albert.parameters())) - 1
    assert all(p is not frozen for p in given_)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_learns(name: OptimizerName) -> None:
    model = Fused()
    losses = learn(model, OPTIMIZERS[name](model, weight_decay=0.01), range(60))
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saved_and_loaded_it_goes_on_to_the_very_same_weights(name: OptimizerName) -> None:
    model = Fused()
    optimizer = OPTIMIZERS[name](model, weight_decay=0.01, betas=(0.8, 0.9))
    learn(model, optimizer, range(4))
    other = copy.deepcopy(model)
    resumed = OPTIMIZERS[name](other, weight_decay=0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(model, optimizer, range(4, 8))
    learn(other, resumed, range(4, 8))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_betas_change_the_steps(name: OptimizerName) -> None:
    one, two = Fused(), Fused()
    learn(one, OPTIMIZERS[name](one, weight_decay=0.0), range(3))
    learn(two, OPTIMIZERS[name](two, weight_decay=0.0, betas=(0.5, 0.9)), range(3))
    assert not torch.equal(one.table.weight, two.table.weight)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tuning_scales_the_rate_and_the_decay_of_one_parameter(name: OptimizerName) -> None:
    model = Fused()
    options = {
        "out.weight": ParameterOptions(scale=0.5, decay=3.0, opens=(0.0, 4.0)),
        "out.bias": ParameterOptions(scale=0.0),
    }
    optimizer = OPTIMIZERS[name](model, weight_decay=0.1, parameter_options=options)
    groups = groups_of(optimizer, model)
    assert groups["out.weight"]["scale"] == 0.5
    assert groups["out.weight"]["weight_decay"] == pytest.approx(0.3)
    assert groups["out.weight"]["opens"] == (0.0, 4.0)
    assert {groups[other]["scale"] for other in groups if not other.startswith("out.")} == {1.0}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    learn(model, optimizer, range(1))
    assert torch.equal(model.out.bias, before["out.bias"])
    assert not torch.equal(model.out.weight, before["out.weight"])


def test_decay_shrinks_matrices_and_leaves_biases_when_there_is_no_gradient() -> None:
    layer = nn.Linear(3, 3)
    nn.init.ones_(layer.weight)
    nn.init.ones_(layer.bias)
    optimizer = adamw(layer, weight_decay=0.5)
    rates(optimizer, 0.1)
    layer.weight.grad, layer.bias.grad = torch.zeros(3, 3), torch.zeros(3)
    optimizer.step()
    assert torch.allclose(layer.weight, torch.full((3, 3), 0.95))
    assert torch.equal(layer.bias.detach(), torch.ones(3))


def reference_lamb(
    weights: dict[str, Tensor], gradients: list[dict[str, Tensor]], rate: float, decay: float
) -> dict[str, Tensor]:
    """LAMB as the ALBERT paper's code has it, one matrix at a time; q, k and v are three."""
    weights = {name: weight.clone() for name, weight in weights.items()}
    mean = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    square = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for gradient in gradients:
        for name, weight in weights.items():
            mean[name] = 0.9 * mean[name] + 0.1 * gradient[name]
            square[name] = 0.999 * square[name] + 0.001 * gradient[name] ** 2
            update = mean[name] / (square[name].sqrt() + 1e-6)
            if weight.dim() == 1:
                weights[name] = weight - rate * update
                continue
            update = update + decay * weight
            rows = len(weight) // 3 if name == "qkv.weight" else len(weight)
            for start in range(0, len(weight), rows):
                part = slice(start, start + rows)
                ratio = weight[part].norm() / update[part].norm()
                weights[name][part] = weight[part] - rate * ratio * update[part]
    return weights


def test_lamb_is_the_paper_s_with_three_views_of_qkv() -> None:
    model = Fused().double()
    names = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in names.items()}
    gradients = [{name: torch.randn_like(p) for name, p in names.items()} for _ in range(5)]
    optimizer = lamb(model, weight_decay=0.01)
    for gradient in gradients:
        rates(optimizer, 0.003)
        for name, parameter in names.items():
            parameter.grad = gradient[name]
        optimizer.step()
    expected = reference_lamb(before, gradients, 0.003, 0.01)
    for name, parameter in names.items():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-10, atol=1e-12)


def test_lamb_s_step_ignores_the_size_of_the_gradient() -> None:
    moved = []
    for size in (1.0, 100.0):
        weight = nn.Parameter(torch.ones(4, 4, dtype=torch.double))
        optimizer = Lamb([{"params": [weight]}], eps=0.0)
        rates(optimizer, 0.1)
        weight.grad = size * torch.arange(1.0, 17.0, dtype=torch.double).view(4, 4)
        optimizer.step()
        moved.append(weight.detach())
    torch.testing.assert_close(*moved)
    assert (moved[0] - 1).norm() == pytest.approx(0.1 * 4)  # the rate's share of the weight's own length


def test_lamb_moves_a_matrix_of_zeros() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = Lamb([{"params": [weight]}])
    rates(optimizer, 0.1)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.isfinite(weight).all()
    assert (weight < 0).all()


@pytest.mark.parametrize("shape", [(32, 32), (64, 32), (32, 64)])
def test_muon_is_torch_s_on_plain_matrices(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    start = ours.detach().clone()
    optimizer = Muon([{"params": [ours], "weight_decay": 0.1}])
    oracle = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        rates(optimizer, 0.02)
        optimizer.step()
        oracle.step()
    assert (ours - theirs).norm() < 0.02 * (theirs - start).norm()  # the oracle iterates in bf16, which has 8 bits


def test_muon_orthogonalises_q_k_and_v_each_for_itself() -> None:
    torch.manual_seed(0)
    parts = [nn.Parameter(torch.randn(8, 8)) for _ in range(3)]
    fused = nn.Parameter(torch.cat([p.detach() for p in parts]))
    gradients = [torch.randn(8, 8) * size for size in (1.0, 10.0, 0.1)]
    fused.grad = torch.cat(gradients)
    for part, gradient in zip(parts, gradients, strict=True):
        part.grad = gradient
    optimizers = [Muon([{"params": [fused], "views": 3}]), Muon([{"params": parts}])]
    for optimizer in optimizers:
        rates(optimizer, 0.01)
        optimizer.step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in parts]))


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    given_ = [torch.randn(16, 48), torch.randn(48, 16), torch.randn(16, 32), torch.randn(16, 48)]
    for matrix, orthogonal in zip(given_, orthogonalize(given_), strict=True):
        assert 0.6 < torch.linalg.svdvals(orthogonal).min() < torch.linalg.svdvals(orthogonal).max() < 1.3
        torch.testing.assert_close(orthogonal, orthogonalize([matrix])[0])


def test_muon_takes_the_hidden_matrices_and_leaves_tables_heads_and_vectors_to_adamw(model: Model) -> None:
    optimizer = muon(model.albert, weight_decay=0.1)
    groups = groups_of(optimizer, model.albert)
    taken = {name.removeprefix("encoder.") for name, group in groups.items() if group["orthogonal"]}
    assert taken == {
        "project.weight", "pooler.weight", "attention.0.qkv.weight", "attention.0.out.weight",
        "ffn.0.widen.weight", "ffn.0.narrow.weight",
    }  # fmt: skip
    assert {name for name, group in groups.items() if group["views"] == 3} == {"encoder.attention.0.qkv.weight"}


def test_muon_s_other_parameters_move_as_with_adamw() -> None:
    one, two = Fused(), Fused()
    learn(one, muon(one, weight_decay=0.1), range(1))
    learn(two, adamw(two, weight_decay=0.1), range(1))
    for name in ("table.weight", "norm.weight", "heads.order.weight", "heads.order.bias"):
        assert torch.equal(one.get_parameter(name), two.get_parameter(name)), name
    assert not torch.equal(one.qkv.weight, two.qkv.weight)


def test_the_rate_rises_for_a_tenth_of_the_steps_then_falls_in_a_straight_line() -> None:
    rate = warmup_linear(1.0, 100)
    assert [rate(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert [rate(step) for step in (10, 55, 99)] == pytest.approx([1.0, 0.5, 1 / 90])


@pytest.mark.parametrize("name", SCHEDULES)
@given(peak=st.floats(1e-8, 10), steps=st.integers(1, 300), share=st.floats(0, 1), hot=st.floats(0, 1))
def test_the_rate_stays_above_zero_rises_to_its_peak_and_falls(
    name: ScheduleName, peak: float, steps: int, share: float, hot: float
) -> None:
    rate = schedule(name, peak, steps, warmup_share=share, hot_start=hot)
    values = [rate(step) for step in range(steps)]
    top = values.index(max(values))
    assert min(values) > 0
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top:] == sorted(values[top:], reverse=True)
    if name not in ("wsd",):  # whose decay may begin before a long warm-up ends
        assert max(values) == pytest.approx(peak)


@pytest.mark.parametrize(
    ("name", "halfway", "last"),
    [
        ("linear", 0.5, 0.01),
        ("cosine", 0.5, (1 - math.cos(math.pi / 100)) / 2),
        ("poly", 0.25, 0.0001),
        ("wsd", 1.0, 0.05),
        ("constant", 1.0, 1.0),
    ],
)
def test_each_schedule_has_its_shape(name: ScheduleName, halfway: float, last: float) -> None:
    rate = schedule(name, 1.0, 101, warmup_share=0.0, decay_share=0.2)
    assert rate(0) == rate(1) == 1.0
    assert rate(51) == pytest.approx(halfway)
    assert rate(100) == pytest.approx(last)


def test_power_bends_poly() -> None:
    assert schedule("poly", 1.0, 100, warmup_share=0.0, power=1.0)(50) == pytest.approx(50 / 99)
    assert schedule("poly", 1.0, 100, warmup_share=0.0, power=3.0)(50) == pytest.approx((50 / 99) ** 3)


def test_wsd_falls_over_its_last_share_only() -> None:
    for share, first_fall in ((0.1, 91), (0.5, 51)):
        rate = schedule("wsd", 1.0, 100, decay_share=share)
        assert next(step for step in range(21, 100) if rate(step) < 1.0) == first_fall


def test_a_hot_start_begins_at_its_share_of_the_peak() -> None:
    cold, warm, hot = (schedule("linear", 2.0, 100, hot_start=share) for share in (0.0, 0.5, 1.0))
    assert [cold(0), warm(0), hot(0)] == pytest.approx([0.2, 1.1, 2.0])
    assert cold(9) == warm(9) == hot(9) == 2.0
    assert cold(50) == warm(50) == hot(50)


@pytest.mark.parametrize("peak", [0.0, -1e-3, math.nan, math.inf])
def test_a_rate_that_cannot_train_is_refused(peak: float) -> None:
    with pytest.raises(ConfigError, match=f"learning_rate={peak} must be above 0"):
        warmup_linear(peak, 10)


@pytest.mark.parametrize("setting", ["warmup_share", "hot_start", "decay_share"])
def test_a_share_outside_zero_to_one_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}=1.5 must be a share between 0 and 1"):
        schedule("wsd", 1.0, 10, **{setting: 1.5})  # type: ignore[arg-type]


def test_a_schedule_s_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"schedule='sine' must be one of linear, cosine, poly, wsd, constant"):
        schedule("sine", 1.0, 10)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"power=0.0 must be above 0"):
        schedule("poly", 1.0, 10, power=0.0)


def test_a_rate_goes_with_the_square_root_of_the_batch() -> None:
    assert scaled_rate(0.00176, 4096) == 0.00176
    assert scaled_rate(0.00176, 1024) == pytest.approx(0.00088)
    with pytest.raises(ConfigError, match="batch_size=0 must be at least 1"):
        scaled_rate(0.1, 0)
