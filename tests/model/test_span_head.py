"""The joint head for answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from litebert.model import AlbertConfig
from litebert.model.span_head import MASKED, JointSpanHead


def joint_setup(size: int = 8) -> tuple[JointSpanHead, Tensor, Tensor]:
    torch.manual_seed(4)
    config = AlbertConfig(
        vocab_size=50, embedding_size=16, hidden_size=16, num_attention_heads=2, initializer_range=0.5
    )
    allowed = torch.tensor([[True, False, False, *[True] * (size - 4), False]]).repeat(2, 1)
    return JointSpanHead(config), torch.randn(2, size, 16), allowed


def test_the_joint_head_is_its_formula() -> None:
    head, hidden, allowed = joint_setup()
    starts = torch.tensor([3, 5])
    start, end, impossible = head(hidden, allowed, starts)
    for row in range(2):
        together = torch.cat([hidden[row], hidden[row, starts[row]].expand(8, -1)], -1)
        expected = head.end(head.end_norm(head.end_dense(together).tanh()))[:, 0]
        assert torch.allclose(end[row][allowed[row]], expected[allowed[row]], atol=1e-5)
        assert torch.allclose(start[row][allowed[row]], head.start(hidden[row])[:, 0][allowed[row]], atol=1e-6)
        weights = torch.zeros(8)
        weights[allowed[row]] = start[row][allowed[row]].softmax(0)
        pooled = torch.cat([weights @ hidden[row], hidden[row, 0]])
        assert impossible[row].item() == pytest.approx(
            head.impossible(head.impossible_dense(pooled).tanh()).item(), abs=1e-5
        )
    assert (end[~allowed] == MASKED).all()


@pytest.mark.parametrize("longest", [2, 30])
@pytest.mark.parametrize(("size", "columns"), [(5, 8), (12, 8), (5, 4)])
def test_a_wide_beam_is_a_full_search(longest: int, size: int, columns: int) -> None:
    head, hidden, allowed = joint_setup(columns)
    context = allowed.clone()
    context[:, 0] = False
    beam, impossible = head.beam(hidden, allowed, context, longest, size)
    start = head.start_scores(hidden, allowed)
    for row in range(2):
        expected = {}
        for i in context[row].nonzero()[:, 0].tolist():
            end = head(hidden, allowed, torch.full((2,), i))[1][row].log_softmax(0)
            for j in range(i, min(i + longest, columns)):
                if context[row, j]:
                    expected[i, j] = (start[row].log_softmax(0)[i] + end[j]).item()
        found = {
            (int(beam.starts[row, a]), int(beam.ends[row, a, b])): beam.scores[row, a, b].item()
            for a in range(size)
            for b in range(size)
            if beam.scores[row, a, b] > MASKED / 2
        }
        assert found == pytest.approx(expected, abs=1e-5)
    assert torch.allclose(impossible, head(hidden, allowed, torch.zeros(2, dtype=torch.long))[2])
