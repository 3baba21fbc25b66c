"""An encoder that is asked to learn from a few examples, and how it does that.

Shapes: S texts of T tokens in all, H hidden, N classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from litebert.data.episodes import Episode
from litebert.errors import CheckpointError, ConfigError
from litebert.meta.settings import MOST_STEPS, Algorithm, Distance
from litebert.model import Encoder
from litebert.model.sentence_head import SentenceMap

HEAD = "head"
START_SCALE = 10.0
"""Of cosines, and of mean squared differences, before anything is learned."""
HEAD_FASTER = 100.0
"""Times the rate of the encoder, before rates are learned: its weights are a hundred times as large."""
ALL, HEAD_ONLY = ("maml", "fomaml", "reptile"), ("anil",)
"""Which algorithms change all weights for an episode, and which the head alone; the others change none."""

Weights = dict[str, Tensor]
Head = tuple[Tensor, Tensor]
"""(N, H) and (N,): scores are a text's vector times the one plus the other."""


@dataclass(frozen=True)
class Texts:
    """Laid end to end, without padding, of which texts of an episode would need much."""

    ids: Tensor
    """(T,)"""
    lengths: Tensor
    """(S,)"""
    classes: Tensor
    """(S,) counted from 0."""
    longest: int
    """A bound on the lengths."""


@dataclass(frozen=True)
class Questions:
    """An episode as the model reads it: all texts, those to learn from first."""

    texts: Texts
    way: int
    learned: int
    """How many of them are to learn from."""
    tokens: int
    """How many tokens these have."""

    @property
    def support(self) -> Texts:
        texts, end = self.texts, self.learned
        return Texts(texts.ids[: self.tokens], texts.lengths[:end], texts.classes[:end], texts.longest)

    @property
    def asked(self) -> Texts:
        texts, start = self.texts, self.learned
        return Texts(texts.ids[self.tokens :], texts.lengths[start:], texts.classes[start:], texts.longest)

    @classmethod
    def of(cls, episode: Episode, ids: Sequence[Sequence[int]], device: torch.device) -> Questions:
        """From the token ids of all texts of the table."""
        support, asked = episode.rows()
        lengths = [len(ids[row]) for row in (*support, *asked)]
        texts = Texts(
            torch.tensor([one for row in (*support, *asked) for one in ids[row]]).to(device),
            torch.tensor(lengths).to(device),
            torch.from_numpy(np.concatenate(episode.class_indices())).to(device),
            max(lengths),
        )
        return cls(texts, episode.way, len(support), sum(lengths[: len(support)]))


def _clipped(slopes: Sequence[Tensor]) -> Sequence[Tensor]:
    """Together no longer than 1, as those of the outer loop: one wild step leaves weights that tell nothing."""
    if not slopes:
        return slopes
    squared = torch.stack([slope.square().sum() for slope in slopes]).sum()
    return [slope / squared.clamp(min=1.0).sqrt() for slope in slopes]  # the root of 0 has no slope


class Learner(nn.Module):
    """Texts to vectors; the middles of classes to a head; and a head and weights that suit an episode better."""

    def __init__(
        self,
        encoder: Encoder,
        algorithm: Algorithm,
        distance: Distance = "cosine",
        inner_steps: int = 3,
        inner_rate: float = 0.01,
        after: SentenceMap | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.algorithm, self.distance, self.inner_steps = encoder, algorithm, distance, inner_steps
        self.bf16 = False
        """Read in bfloat16. What comes after is computed in float32 all the same: cosines differ in the third digit."""
        if after is not None and not after.is_mean:
            raise ConfigError(
                f"the model pools by {after.pooling} over {after.passes} passes, and this learns with means of the last"
            )
        self.after = None if after is None else [torch.from_numpy(part) for part in (after.weight, after.bias)]
        self.counts = None if after is None or after.tokens is None else torch.from_numpy(after.tokens)
        """What each token of the vocabulary counts in a mean."""
        self.log_scale = nn.Parameter(torch.tensor(math.log(START_SCALE)))
        rates = dict.fromkeys(sorted({name.split(".")[0] for name in self._changing()}), inner_rate)
        rates |= {HEAD: HEAD_FASTER * inner_rate} if self.is_adapting else {}
        self.log_rates = nn.ParameterDict(
            {name: nn.Parameter(torch.tensor(math.log(rate))) for name, rate in rates.items()}
        )
        """The rates of the inner steps, one for each part of the encoder and one for the head."""
        if algorithm == "maml":
            encoder.attention_implementation = "eager"  # nothing faster can be differentiated twice

    @property
    def is_adapting(self) -> bool:
        """Are there inner steps?"""
        return self.algorithm in ALL + HEAD_ONLY

    def _changing(self) -> Weights:
        """What an episode changes of the encoder, by name there. Nothing here reads the pooler."""
        named = self.encoder.named_parameters() if self.algorithm in ALL else ()
        return {name: weight for name, weight in named if not name.startswith("pooler") and weight.requires_grad}

    def forward(self, texts: Texts) -> Tensor:  # (S, H)
        with torch.autocast(texts.ids.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.encoder.packed(texts.ids, texts.lengths, longest=texts.longest)  # (T, H)
        numbers = torch.arange(len(texts.lengths), device=texts.ids.device)
        owner = torch.repeat_interleave(numbers, texts.lengths, output_size=len(texts.ids))
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        share = (owner == numbers[:, None]).to(dtype)  # (S, T)
        if self.counts is not None:
            share = share * self.counts.to(share)[texts.ids]
        vectors = share / share.sum(1, keepdim=True).clamp(min=1e-9) @ hidden.to(dtype)
        if self.after is not None:
            weight, bias = (part.to(vectors) for part in self.after)
            vectors = F.linear(vectors, weight, bias)
        return F.normalize(vectors, dim=1) if self.distance == "cosine" else vectors

    def head(self, middles: Tensor) -> Head:
        """Scores grow with the cosine to a middle, or fall with the mean squared difference from it, but for what is
        the same for all of them."""
        scale = self.log_scale.exp()
        if self.distance == "cosine":
            return scale * F.normalize(middles, dim=1), scale * middles.new_zeros(len(middles))
        scale = scale / middles.shape[1]
        return 2 * scale * middles, -scale * middles.square().sum(1)

    def head_of(self, vectors: Tensor, classes: Tensor, way: int) -> Head:
        """From the means of examples."""
        member = F.one_hot(classes, way).to(vectors.dtype)
        return self.head((member / member.sum(0)).T @ vectors)

    def adapted(self, support: Texts, way: int, second_order: bool) -> tuple[Weights, Head]:
        """The weights of the encoder and the head after some steps on these examples, from what was learned so far.

        All that comes out can be differentiated with respect to weights, scale and rates; the steps themselves only
        with `second_order`, else their slopes count as given.
        """
        vectors = self(support)
        head = self.head_of(vectors, support.classes, way)
        # a view, because the head depends on the weights too, and a step holds it still
        weights = {name: weight.view_as(weight) for name, weight in self._changing().items()}
        rates = {name: rate.exp() for name, rate in self.log_rates.items()}
        for _ in range(self.inner_steps):
            seen = self.with_weights(weights, support) if weights else vectors
            loss = F.cross_entropy(F.linear(seen, *head), support.classes)
            slopes = torch.autograd.grad(loss, [*weights.values(), *head], create_graph=second_order)
            *moves, last, bias = slopes
            weights = {
                name: weight - rates[name.split(".")[0]] * move
                for (name, weight), move in zip(weights.items(), _clipped(moves), strict=True)
            }
            head = head[0] - rates[HEAD] * last, head[1] - rates[HEAD] * bias
        return weights, head

    def with_weights(self, weights: Weights, texts: Texts) -> Tensor:  # (S, H)
        """`forward`, seen with these weights of the encoder."""
        named = {f"encoder.{name}": weight for name, weight in weights.items()}
        found: Tensor = functional_call(self, named, (texts,))
        return found

    def settings(self) -> dict[str, Any]:
        """Beside the encoder's weights, what was learned and how; JSON."""
        return {
            "algorithm": self.algorithm, "distance": self.distance, "inner_steps": self.inner_steps,
            "scale": self.log_scale.exp().item(),
            "rates": {name: rate.exp().item() for name, rate in self.log_rates.items()},
        }  # fmt: skip

    @classmethod
    def of_settings(cls, encoder: Encoder, settings: Mapping[str, Any], after: SentenceMap | None = None) -> Learner:
        try:
            algorithm, distance, inner_steps = (settings[name] for name in ("algorithm", "distance", "inner_steps"))
            if algorithm not in get_args(Algorithm) or distance not in get_args(Distance):
                raise ValueError(f"{algorithm!r} and {distance!r} are not known")
            if inner_steps not in range(1, MOST_STEPS + 1):
                raise ValueError(f"inner_steps={inner_steps!r}")
            implementation = encoder.attention_implementation
            found = cls(encoder, algorithm, distance, inner_steps, after=after)
            encoder.attention_implementation = implementation  # answers are differentiated once at most
            if set(settings["rates"]) != set(found.log_rates):
                raise ValueError("rates of other parts")
            known = {found.log_scale: settings["scale"]} | {found.log_rates[k]: v for k, v in settings["rates"].items()}
            with torch.no_grad():
                for parameter, value in known.items():
                    if not 0 < value < math.inf:
                        raise ValueError(f"{value} must be above 0")
                    parameter.fill_(math.log(value))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"meta.json is damaged ({error!r}); meta-train again") from error
        return found.to(encoder.word_embeddings.weight.device)
