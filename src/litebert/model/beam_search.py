"""The best target that a decoder can write: greedily, or along several beams at once.

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
from litebert.model.decoder import Cache, DecoderConfig, check_whole

MOST_BEAMS, MOST_OFFSET = 64, 4096


class Writer(Protocol):
    """A decoder, or what computes the same."""

    config: DecoderConfig

    def begin(self, memory: Tensor, real: Tensor) -> Cache: ...
    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Search:
    """How to look for the best target."""

    beams: int
    """Targets that are followed at once; 1 is greedy."""
    length_penalty: float
    """α: the likelihood of a target of T tokens is divided by ((5 + T) / 6)^α, so that long ones are not worse for
    being long; 0 divides by nothing."""
    offset: int = 10
    """A target ends at the latest when it has so many tokens more than twice its source."""

    def __post_init__(self) -> None:
        check_whole("beams", self.beams)
        check_whole("offset", self.offset)
        if not 1 <= self.beams <= MOST_BEAMS:
            raise ConfigError(f"beams={self.beams} must lie between 1, which is greedy, and {MOST_BEAMS}")
        if not 0 <= self.length_penalty <= 10:
            raise ConfigError(f"length_penalty={self.length_penalty} must lie between 0 and 10; 1 is usual")
        if not 0 <= self.offset <= MOST_OFFSET:
            raise ConfigError(f"offset={self.offset} must lie between 0 and {MOST_OFFSET}; 10 is usual")

    def penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.length_penalty

    def with_room_for(self, lengths: Iterable[tuple[int, int]]) -> Search:
        """One that can write all of these: tokens of a source, and of its target with its end."""
        needed = max((target - 2 * source for source, target in lengths), default=0)
        return replace(self, offset=max(self.offset, needed))


@dataclass(frozen=True)
class Found:
    """The best target of every source."""

    ids: Tensor
    """(S, T) without its begin, up to and with its end, then `end` again."""
    looked_at: Tensor
    """(S, T) which column of the source each token comes from."""
    log_likelihood: Tensor
    """(S,) the sum over its tokens."""


@torch.no_grad()
def search(
    decoder: Writer, memory: Tensor, real: Tensor, begin: int, end: int, how: Search, banned: tuple[int, ...] = (),
    text: Tensor | None = None,
) -> Found:  # fmt: skip
    """Write targets for the sources in `memory`, (S, L, D). `banned` tokens are never written. Only columns of `text`,
    (S, L), count as looked at; by default all that are real.

    A source is done when as many targets have ended as there are beams, or when they are twice as long as it and
    `how.offset` more; it then leaves the batch, so that the others go on faster.
    """
    sources, beams, device = len(real), min(how.beams, decoder.config.vocab_size - 1), memory.device
    text = real if text is None else text
    limits = 2 * real.sum(1) + how.offset  # (S,)
    longest = int(limits.max())
    rows = torch.arange(sources, device=device).repeat_interleave(beams)
    cache = decoder.begin(memory[rows], real[rows])
    written = torch.full((sources, beams, longest), end, device=device)
    looked = torch.zeros_like(written)
    total = torch.full((sources, beams), -math.inf, device=device)
    total[:, 0] = 0.0  # all beams begin alike: follow one of them
    done = _Done(sources, beams, longest, end, device)
    left = torch.arange(sources, device=device)
    last = torch.full((sources * beams,), begin, device=device)
    for place in range(longest):
        scores, looks = decoder.step(last, cache)
        likely = scores.float().log_softmax(-1)
        likely[:, [begin, *banned]] = -math.inf
        likely = _ending(likely, end, (limits[left] <= place + 1).repeat_interleave(beams))
        every = (total[..., None] + likely.view(len(left), beams, -1)).flatten(1)  # (S, K * V)
        best, index = every.topk(2 * beams, dim=1)  # of which half may end
        beam, token = index // likely.shape[1], index % likely.shape[1]
        source = torch.arange(len(left), device=device)[:, None]
        written_now, looked_now = written[source, beam].clone(), looked[source, beam].clone()
        written_now[:, :, place] = token
        looks = looks.view(len(left), beams, -1).masked_fill(~text[left, None], -math.inf)
        looked_now[:, :, place] = looks.argmax(-1)[source, beam]
        ends = (token == end) & best.isfinite()
        ends[:, beams:] = False  # an end below the beams would not have been followed either
        done.take(left, best.where(ends, -math.inf), best / how.penalty(place + 1), written_now, looked_now)
        goes_on = best.where(token != end, -math.inf)
        total, chosen = goes_on.topk(beams, dim=1)
        written, looked = written_now[source, chosen], looked_now[source, chosen]
        last = token.gather(1, chosen).flatten()
        keep = source * beams + beam.gather(1, chosen)  # the rows that the new beams grow from
        alive = ~done.is_full(left) & total[:, 0].isfinite()
        if not bool(alive.any()):
            break
        if bool(alive.all()):
            cache.select_written(keep.flatten())
        else:
            left, total, written, looked = left[alive], total[alive], written[alive], looked[alive]
            last = last.view(-1, beams)[alive].flatten()
            cache.select(keep[alive].flatten())
    return done.best()


def _ending(likely: Tensor, end: int, over: Tensor) -> Tensor:  # (S * K, V), (S * K,)
    """Rows that have grown too long may only end."""
    others = torch.arange(likely.shape[1], device=likely.device) != end
    return likely.masked_fill(over[:, None] & others, -math.inf)


class _Done:
    """The targets that have ended, the best of each source first."""

    def __init__(self, sources: int, beams: int, longest: int, end: int, device: torch.device) -> None:
        self.score = torch.full((sources, beams), -math.inf, device=device)
        self.total = torch.full((sources, beams), -math.inf, device=device)
        self.ids = torch.full((sources, beams, longest), end, device=device)
        self.looked = torch.zeros_like(self.ids)

    def take(self, left: Tensor, total: Tensor, score: Tensor, ids: Tensor, looked: Tensor) -> None:
        """Keep the best of what there is and of what has come; what has not ended has a total of -inf."""
        score = score.where(total.isfinite(), -math.inf)
        beams = self.score.shape[1]
        self.score[left], order = torch.cat([self.score[left], score], 1).topk(beams, dim=1)
        self.total[left] = torch.cat([self.total[left], total], 1).gather(1, order)
        row = torch.arange(len(left), device=left.device)[:, None]
        self.ids[left] = torch.cat([self.ids[left], ids], 1)[row, order]
        self.looked[left] = torch.cat([self.looked[left], looked], 1)[row, order]

    def is_full(self, left: Tensor) -> Tensor:
        return self.score[left].isfinite().all(1)

    def best(self) -> Found:
        return Found(self.ids[:, 0], self.looked[:, 0], self.total[:, 0])
