"""Beam search for the target of highest likelihood; one beam is greedy search.

Shapes: S sources, K beams, T tokens, L columns of a source, V vocabulary. Beams of one source stand in rows together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from litebert.errors import ConfigError
from litebert.model.decoder import Cache, DecoderConfig, check_integer

MAX_BEAMS, MAX_OFFSET = 64, 4096


class StepDecoder(Protocol):
    """A decoder that can be run token by token."""

    config: DecoderConfig

    def begin(self, memory: Tensor, real: Tensor) -> Cache: ...
    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class BeamSearch:
    """Settings of the search."""

    beams: int
    """Hypotheses per source; 1 is greedy."""
    length_penalty: float
    """α: the likelihood of a target of T tokens is divided by ((5 + T) / 6)^α, so that long ones are not worse for
    being long; 0 is no penalty."""
    offset: int = 10
    """A target has at most so many tokens more than twice its source."""

    def __post_init__(self) -> None:
        check_integer("beams", self.beams)
        check_integer("offset", self.offset)
        if not 1 <= self.beams <= MAX_BEAMS:
            raise ConfigError(f"beams={self.beams} must lie between 1, which is greedy, and {MAX_BEAMS}")
        if not 0 <= self.length_penalty <= 10:
            raise ConfigError(f"length_penalty={self.length_penalty} must lie between 0 and 10; 1 is usual")
        if not 0 <= self.offset <= MAX_OFFSET:
            raise ConfigError(f"offset={self.offset} must lie between 0 and {MAX_OFFSET}; 10 is usual")

    def penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.length_penalty

    def with_room_for(self, lengths: Iterable[tuple[int, int]]) -> BeamSearch:
        """Settings that allow all of these: the tokens of a source, and those of its target with its end token."""
        required = max((target - 2 * source for source, target in lengths), default=0)
        return replace(self, offset=max(self.offset, required))


@dataclass(frozen=True)
class SearchResult:
    """The best target of every source."""

    ids: Tensor
    """(S, T) without the begin token, with the end token, which also fills the rest."""
    source_columns: Tensor
    """(S, T) the column of the source that each token attends to most."""
    log_likelihood: Tensor
    """(S,) the sum over its tokens."""


@torch.no_grad()
def search(
    decoder: StepDecoder, memory: Tensor, real: Tensor, begin: int, end: int, how: BeamSearch,
    banned: tuple[int, ...] = (), text: Tensor | None = None,
) -> SearchResult:  # fmt: skip
    """Write targets for the sources in `memory`, (S, L, D). `banned` tokens are never written. Source columns are
    taken from those in `text`, (S, L); by default all real tokens.

    A source is finished when as many targets have ended as there are beams, or at the maximum length; it then leaves
    the batch, so that the others run faster.
    """
    sources, beams, device = len(real), min(how.beams, decoder.config.vocab_size - 1), memory.device
    text = real if text is None else text
    limits = 2 * real.sum(1) + how.offset  # (S,)
    longest = int(limits.max())
    rows = torch.arange(sources, device=device).repeat_interleave(beams)
    cache = decoder.begin(memory[rows], real[rows])
    written = torch.full((sources, beams, longest), end, device=device)
    columns = torch.zeros_like(written)
    total = torch.full((sources, beams), -math.inf, device=device)
    total[:, 0] = 0.0  # all beams start equal: follow one
    finished = _Finished(sources, beams, longest, end, device)
    active = torch.arange(sources, device=device)
    previous = torch.full((sources * beams,), begin, device=device)
    for position in range(longest):
        scores, attention = decoder.step(previous, cache)
        log_probabilities = scores.float().log_softmax(-1)
        log_probabilities[:, [begin, *banned]] = -math.inf
        log_probabilities = _force_end(
            log_probabilities, end, (limits[active] <= position + 1).repeat_interleave(beams)
        )
        candidates = (total[..., None] + log_probabilities.view(len(active), beams, -1)).flatten(1)  # (S, K * V)
        best, index = candidates.topk(2 * beams, dim=1)  # half of them may be end tokens
        beam, token = index // log_probabilities.shape[1], index % log_probabilities.shape[1]
        source = torch.arange(len(active), device=device)[:, None]
        written_now, columns_now = written[source, beam].clone(), columns[source, beam].clone()
        written_now[:, :, position] = token
        attention = attention.view(len(active), beams, -1).masked_fill(~text[active, None], -math.inf)
        columns_now[:, :, position] = attention.argmax(-1)[source, beam]
        ends = (token == end) & best.isfinite()
        ends[:, beams:] = False  # candidates below the beams are not followed, nor are their ends
        finished.take(active, best.where(ends, -math.inf), best / how.penalty(position + 1), written_now, columns_now)
        goes_on = best.where(token != end, -math.inf)
        total, chosen = goes_on.topk(beams, dim=1)
        written, columns = written_now[source, chosen], columns_now[source, chosen]
        previous = token.gather(1, chosen).flatten()
        keep = source * beams + beam.gather(1, chosen)  # the rows that the new beams continue
        alive = ~finished.is_full(active) & total[:, 0].isfinite()
        if not bool(alive.any()):
            break
        if bool(alive.all()):
            cache.select_written(keep.flatten())
        else:
            active, total, written, columns = active[alive], total[alive], written[alive], columns[alive]
            previous = previous.view(-1, beams)[alive].flatten()
            cache.select(keep[alive].flatten())
    return finished.best()


def _force_end(log_probabilities: Tensor, end: int, too_long: Tensor) -> Tensor:  # (S * K, V), (S * K,)
    """Hypotheses of maximum length can only end."""
    others = torch.arange(log_probabilities.shape[1], device=log_probabilities.device) != end
    return log_probabilities.masked_fill(too_long[:, None] & others, -math.inf)


class _Finished:
    """Finished targets, the best of each source first."""

    def __init__(self, sources: int, beams: int, longest: int, end: int, device: torch.device) -> None:
        self.score = torch.full((sources, beams), -math.inf, device=device)
        self.total = torch.full((sources, beams), -math.inf, device=device)
        self.ids = torch.full((sources, beams, longest), end, device=device)
        self.columns = torch.zeros_like(self.ids)

    def take(self, active: Tensor, total: Tensor, score: Tensor, ids: Tensor, columns: Tensor) -> None:
        """Keep the best of the old and the new targets; a new one that has not ended has a total of -inf."""
        score = score.where(total.isfinite(), -math.inf)
        beams = self.score.shape[1]
        self.score[active], order = torch.cat([self.score[active], score], 1).topk(beams, dim=1)
        self.total[active] = torch.cat([self.total[active], total], 1).gather(1, order)
        row = torch.arange(len(active), device=active.device)[:, None]
        self.ids[active] = torch.cat([self.ids[active], ids], 1)[row, order]
        self.columns[active] = torch.cat([self.columns[active], columns], 1)[row, order]

    def is_full(self, active: Tensor) -> Tensor:
        return self.score[active].isfinite().all(1)

    def best(self) -> SearchResult:
        return SearchResult(self.ids[:, 0], self.columns[:, 0], self.total[:, 0])
