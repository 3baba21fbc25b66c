"""The ALBERT paper's head for SQuAD 2: the end of an answer depends on its start, and a third part scores whether there
is an answer.

Shapes: S sequences, L columns, H hidden, K beam.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from litebert.model.config import AlbertConfig
from litebert.model.heads import float32_linear
from litebert.model.init import initialize

BEAM = 5  # starts, and ends of each
MASKED = -1e4
"""The score of positions that may not be chosen: practically -inf, but finite, so that differences are not NaN."""


@dataclass(frozen=True)
class Beam:
    """The best spans of each sequence. One that may not be chosen has a score below MASKED / 2."""

    starts: Tensor
    """(S, K) columns."""
    ends: Tensor
    """(S, K, K) columns, for each start."""
    scores: Tensor
    """(S, K, K) log probability of start and end."""


class JointSpanHead(nn.Module):
    """Start, then end given the start, and whether there is an answer."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.start = nn.Linear(size, 1)
        self.end_dense = nn.Linear(2 * size, size)
        self.end_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.end = nn.Linear(size, 1)
        self.impossible_dense = nn.Linear(2 * size, size)
        self.impossible = nn.Linear(size, 1)
        initialize(self, config.initializer_range)

    def forward(self, hidden: Tensor, allowed: Tensor, true_starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(S, L, H), (S, L) True where an answer or the mark for none may stand, (S,) columns; scores of the starts and
        of the ends given these starts, (S, L) each, and of there being no answer, (S,)."""
        start = self.start_scores(hidden, allowed)
        end = self.end_scores(hidden, allowed, true_starts[:, None])[:, 0]
        return start, end, self.impossible_scores(hidden, start)

    def start_scores(self, hidden: Tensor, allowed: Tensor) -> Tensor:  # (S, L)
        return float32_linear(self.start, hidden)[..., 0].masked_fill(~allowed, MASKED)

    def end_scores(self, hidden: Tensor, allowed: Tensor, starts: Tensor) -> Tensor:  # (S, K) -> (S, K, L)
        at_start = hidden.gather(1, starts[..., None].expand(-1, -1, hidden.shape[-1]))  # (S, K, H)
        # one product for each half of the weight: the pairs of all columns and starts are never laid side by side
        for_token, for_start = self.end_dense.weight.chunk(2, dim=1)
        mixed = nn.functional.linear(hidden, for_token, self.end_dense.bias)[:, None]  # (S, 1, L, H)
        mixed = mixed + nn.functional.linear(at_start, for_start)[:, :, None]  # (S, K, L, H)
        return float32_linear(self.end, self.end_norm(mixed.tanh()))[..., 0].masked_fill(~allowed[:, None], MASKED)

    def impossible_scores(self, hidden: Tensor, start: Tensor) -> Tensor:  # (S,)
        expected = torch.einsum("sl,slh->sh", start.softmax(-1).to(hidden.dtype), hidden)
        mixed = self.impossible_dense(torch.cat([expected, hidden[:, 0]], -1)).tanh()
        return float32_linear(self.impossible, mixed)[..., 0]

    def beam(
        self, hidden: Tensor, allowed: Tensor, context: Tensor, longest: int, size: int = BEAM
    ) -> tuple[Beam, Tensor]:
        """The likeliest spans of at most `longest` tokens in the (S, L) columns of the context, and the scores of there
        being no answer."""
        start = self.start_scores(hidden, allowed)
        start_scores, starts = _top_scores(start.log_softmax(-1).masked_fill(~context, MASKED), size)  # (S, K)
        end = self.end_scores(hidden, allowed, starts).log_softmax(-1)  # (S, K, L)
        columns = torch.arange(hidden.shape[1], device=hidden.device)
        distance = columns - starts[..., None]
        fits = context[:, None] & (distance >= 0) & (distance < longest)
        end_scores, ends = _top_scores(end.masked_fill(~fits, MASKED), size)  # (S, K, K)
        return Beam(starts, ends, start_scores[..., None] + end_scores), self.impossible_scores(hidden, start)


def _top_scores(scores: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The best of the last dimension, padded with MASKED where there are fewer."""
    best = scores.topk(min(size, scores.shape[-1]), -1)
    missing = (0, size - best.values.shape[-1])
    return nn.functional.pad(best.values, missing, value=MASKED), nn.functional.pad(best.indices, missing)
