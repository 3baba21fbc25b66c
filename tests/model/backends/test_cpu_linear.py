"""Products by oneDNN are those of torch, whatever happens to the weights, and step aside where they cannot be used."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from litebert.model import AlbertConfig
from litebert.model.albert import Encoder
from litebert.model.backends import cpu_linear as products

pytestmark = pytest.mark.skipif(
    not (products.X86 and torch.backends.mkldnn.is_available()), reason="needs an x86 CPU and oneDNN"
)
CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=16, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4
)


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 80)


def close(found: Tensor, layer: nn.Linear, rows: Tensor) -> bool:
    return torch.allclose(found, F.linear(rows, layer.weight, layer.bias), atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 16, 64, 500])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_torch(layer: nn.Linear, count: int, with_bias: bool) -> None:
    rows, bias = torch.randn(count, 48), layer.bias if with_bias else None
    with torch.inference_mode():
        found = products.linear(rows, layer.weight, bias)
        assert found.shape == (count, 80)
        assert torch.allclose(found, F.linear(rows, layer.weight, bias), atol=1e-5)
        assert layer.weight in products._reordered


def test_rows_need_not_lie_one_after_the_other(layer: nn.Linear) -> None:
    rows = torch.randn(48, 20).T
    with torch.no_grad():
        assert close(products.linear(rows, layer.weight, layer.bias), layer, rows)


def test_changed_weights_are_laid_out_again(layer: nn.Linear) -> None:
    rows = torch.randn(5, 48)
    with torch.no_grad():
        products.linear(rows, layer.weight, layer.bias)
        layer.weight.mul_(2)
        assert close(products.linear(rows, layer.weight, layer.bias), layer, rows)
        layer.load_state_dict(nn.Linear(48, 80).state_dict())
        assert close(products.linear(rows, layer.weight, layer.bias), layer, rows)
        layer.weight.data = torch.randn(80, 48)
        assert close(products.linear(rows, layer.weight, layer.bias), layer, rows)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 256])
def test_weights_that_were_rounded_in_between_are_laid_out_again(half: torch.dtype, size: int) -> None:
    for _ in range(20):  # the address is often that of before
        layer, rows = nn.Linear(size, size), torch.randn(4, size)
        with torch.no_grad():
            products.linear(rows, layer.weight, layer.bias)
            layer.to(half).float()
            assert torch.allclose(
                products.linear(rows, layer.weight, layer.bias), F.linear(rows, layer.weight, layer.bias), atol=1e-5
            )


def test_derivatives_tools_and_mistakes_see_what_torch_does(layer: nn.Linear) -> None:
    rows = torch.randn(5, 48)
    with torch.no_grad():
        moved = torch.func.jvp(lambda x: products.linear(x, layer.weight, layer.bias), (rows,), (rows,))[1]
        assert torch.allclose(moved, rows @ layer.weight.T, atol=1e-5)
        with FlopCounterMode(display=False) as counted:
            products.linear(rows, layer.weight, layer.bias)
        assert counted.get_total_flops() == 2 * 5 * 48 * 80
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            products.linear(torch.randn(2, 9), layer.weight, layer.bias)


def test_a_torch_without_onednn_answers(layer: nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "HAS_ONEDNN", False)
    with torch.no_grad():
        assert torch.equal(products.linear(torch.ones(2, 48), layer.weight, None), torch.ones(2, 48) @ layer.weight.T)
    assert layer.weight not in products._reordered


def test_a_step_of_training_is_seen_even_if_it_is_not_counted(layer: nn.Linear) -> None:
    rows = torch.randn(5, 48)
    with torch.no_grad():
        products.linear(rows, layer.weight, layer.bias)
    products.linear(rows, layer.weight, layer.bias).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.data.sub_(layer.weight.grad)
    with torch.no_grad():
        assert close(products.linear(rows, layer.weight, layer.bias), layer, rows)


def test_layouts_go_with_their_weights() -> None:
    gc.collect()  # of other tests
    before = len(products._reordered)
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        products.linear(torch.randn(2, 8), layer.weight, layer.bias)
        assert len(products._reordered) == before + 1
        other = copy.deepcopy(layer)
        assert close(products.linear(torch.ones(2, 8), other.weight, other.bias), layer, torch.ones(2, 8))
    del layer, other
    gc.collect()
    assert len(products._reordered) == before


def test_other_types_and_other_wishes_go_the_usual_way(layer: nn.Linear) -> None:
    rows = torch.randn(3, 48)
    assert products.linear(rows, layer.weight, layer.bias).requires_grad
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert products.linear(rows, layer.weight, layer.bias).dtype == torch.bfloat16
    half = copy.deepcopy(layer).bfloat16()
    with torch.no_grad():
        assert products.linear(rows.bfloat16(), half.weight, half.bias).dtype == torch.bfloat16
        with torch.backends.mkldnn.flags(enabled=False):
            assert torch.equal(products.linear(rows, layer.weight, layer.bias), layer(rows))
        assert not {layer.weight, half.weight} & set(products._reordered)


def test_an_encoder_exports_and_hooks_are_called() -> None:
    encoder = Encoder(CONFIG).eval()
    ids, called = torch.arange(6)[None], []
    with torch.inference_mode():
        found = encoder(ids)
    assert torch.allclose(found, encoder(ids), atol=1e-5)  # with gradients, by torch
    with torch.no_grad():
        exported = torch.export.export(encoder, (ids,), strict=False)
        assert "mkldnn" not in str(exported.graph)
        assert torch.allclose(exported.module()(ids), found, atol=1e-5)
        handle = encoder.attention[0].qkv.register_forward_hook(lambda *given: called.append(1))
        encoder(ids)
        handle.remove()
        assert len(called) == CONFIG.num_hidden_layers
        plain = encoder(ids)
        handle = nn.modules.module.register_module_forward_hook(lambda *given: called.append(1))
        encoder(ids)
        handle.remove()
        assert len(called) > 4 * CONFIG.num_hidden_layers
        encoder.ffn[0].widen.forward = lambda rows: 0 * nn.Linear.forward(encoder.ffn[0].widen, rows)
        assert not torch.allclose(encoder(ids), plain)
