"""What stands between the encoder and the scores of a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from litebert.data.batches import Batch, pad
from litebert.errors import ConfigError
from litebert.model import Albert, AlbertConfig, HeadKind, TextHead, TokenHead
from litebert.tasks import Classify
from litebert.tasks.base import hidden_states
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE

KINDS = get_args(HeadKind)
each_kind = pytest.mark.parametrize("kind", KINDS)


def lively(module: torch.nn.Module) -> Any:
    """Weights large enough for every path to be seen in the scores."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return module.eval()


def text_scores(albert: Albert, batch: Batch) -> Tensor:  # (S, C)
    kind: HeadKind = albert.kind  # type: ignore[assignment]
    return Classify(["a", "b", "c"], kind).scores(albert, batch)["scores"]


def token_scores(albert: Albert, batch: Batch) -> Tensor:  # (S, L, C)
    return albert.heads["tag"](hidden_states(albert.encoder, batch), batch.real)


def albert_with(config: AlbertConfig, kind: HeadKind) -> Albert:
    albert = lively(Albert(config, {"classify": TextHead(config, 3, kind), "tag": TokenHead(config, 3, kind)}))
    albert.kind = kind
    return albert


def batches(tokenizer: Tokenizer) -> tuple[Batch, Batch, int]:
    """A text alone, the same beside longer ones, and its length."""
    short, *longer = tokenizer.encode(["rain fell", PROSE[0][:60], PROSE[1][:40]])
    return pad([short], tokenizer.pad_id), pad([longer[0], short, longer[1]], tokenizer.pad_id), len(short)


@each_kind
def test_the_scores_of_a_text_do_not_depend_on_padding(
    tiny_config: AlbertConfig, tokenizer: Tokenizer, kind: HeadKind
) -> None:
    alone, together, _ = batches(tokenizer)
    albert = albert_with(tiny_config, kind)
    with torch.no_grad():
        expected, found = text_scores(albert, alone)[0], text_scores(albert, together)
    assert (found[1] - expected).abs().max() <= 1e-5
    assert (found[0] - expected).abs().max() > 1e-2


@each_kind
def test_the_scores_of_tokens_do_not_depend_on_padding(
    tiny_config: AlbertConfig, tokenizer: Tokenizer, kind: HeadKind
) -> None:
    alone, together, length = batches(tokenizer)
    albert = albert_with(tiny_config, kind)
    with torch.no_grad():
        expected, found = token_scores(albert, alone)[0], token_scores(albert, together)[1, :length]
    assert expected.shape == (length, 3)
    assert (found - expected).abs().max() <= 1e-5
    assert (expected[1] - expected[2]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["cnn", "lstm"])
@pytest.mark.parametrize("head", [TextHead, TokenHead])
def test_what_stands_in_the_padding_does_not_matter(tiny_config: AlbertConfig, kind: HeadKind, head: Any) -> None:
    module, hidden = lively(head(tiny_config, 2, kind)), torch.randn(2, 7, 32)
    real = torch.arange(7) < torch.tensor([[4], [7]])
    other = hidden.where(real[..., None], 100.0)
    found, expected = (module(given, real) for given in (other, hidden))
    keep = ... if head is TextHead else real
    assert torch.allclose(found[keep], expected[keep], atol=1e-5)


@each_kind
@pytest.mark.parametrize("scores_of", [text_scores, token_scores])
def test_gradients_reach_the_encoder_and_all_of_the_head(
    tiny_config: AlbertConfig, tokenizer: Tokenizer, kind: HeadKind, scores_of: Any
) -> None:
    albert = albert_with(tiny_config, kind)
    _, batch, _ = batches(tokenizer)
    scores_of(albert, batch).logsumexp(-1).sum().backward()
    used = albert.heads["classify" if scores_of is text_scores else "tag"]
    for name, parameter in (*used.named_parameters(), *albert.encoder.named_parameters()):
        if name.startswith("pooler") and (scores_of is token_scores or kind in ("cnn", "lstm")):
            assert parameter.grad is None  # these read the tokens
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("head", [TextHead, TokenHead])
def test_the_kinds_differ_in_what_they_can_see(tiny_config: AlbertConfig, head: Any) -> None:
    """The linear and the mlp head of a token read it alone, cnn its neighbours too, lstm the whole text."""
    hidden, real = torch.randn(1, 7, 32), torch.ones(1, 7, dtype=torch.bool)
    hidden.requires_grad_()
    seen = {}
    for kind in KINDS:
        module = lively(head(tiny_config, 2, kind))
        if head is TextHead:
            scores = (module(hidden[:, 0]) if kind in ("linear", "mlp") else module(hidden, real)).sum()
        else:
            scores = module(hidden, real)[0, 3].sum()
        (slope,) = torch.autograd.grad(scores, hidden)
        seen[kind] = set((slope[0].abs().sum(-1) > 0).nonzero().flatten().tolist())
    if head is TokenHead:
        assert seen == {"linear": {3}, "mlp": {3}, "cnn": {2, 3, 4}, "lstm": set(range(7))}
    else:
        assert seen["linear"] == seen["mlp"] == {0}
        assert len(seen["cnn"]) > 1
        assert seen["lstm"] == set(range(7))


@each_kind
@pytest.mark.parametrize("head", [TextHead, TokenHead])
def test_dropout_is_on_while_learning_alone(tiny_config: AlbertConfig, kind: HeadKind, head: Any) -> None:
    module = lively(head(tiny_config, 2, kind, 0.5))
    hidden, real = torch.randn(2, 5, 32), torch.ones(2, 5, dtype=torch.bool)
    given = (hidden[:, 0],) if head is TextHead and kind in ("linear", "mlp") else (hidden, real)
    assert torch.equal(module(*given), module(*given))
    module.train()
    assert not torch.equal(module(*given), module(*given))


def test_an_lstm_needs_an_even_size(tiny_config: AlbertConfig) -> None:
    odd = replace(tiny_config, hidden_size=33, num_attention_heads=3)
    with pytest.raises(ConfigError, match="head='lstm' halves the hidden size, and 33 is odd; use another head"):
        TextHead(odd, 2, "lstm")
