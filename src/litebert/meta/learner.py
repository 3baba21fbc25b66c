"""An encoder that adapts to the support set of an episode.

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
from litebert.meta.settings import MAX_INNER_STEPS, Algorithm, Distance
from litebert.model import Encoder
from litebert.model.sentence_head import SentenceMap

HEAD = "head"
INITIAL_SCALE = 10.0
"""The initial factor of cosines and of mean squared distances."""
HEAD_RATE_FACTOR = 100.0
"""The initial learning rate of the head, relative to the encoder: its weights are a hundred times as large."""
ADAPTS_ALL, ADAPTS_HEAD = ("maml", "fomaml", "reptile"), ("anil",)
"""Algorithms that adapt all weights to an episode, and the head only; the others adapt nothing."""

Weights = dict[str, Tensor]
Head = tuple[Tensor, Tensor]
"""Weight (N, H) and bias (N,) of the scores."""


@dataclass(frozen=True)
class PackedTexts:
    """Texts laid end to end, without padding."""

    ids: Tensor
    """(T,)"""
    lengths: Tensor
    """(S,)"""
    classes: Tensor
    """(S,) class numbers from 0."""
    longest: int
    """An upper bound of the lengths."""


@dataclass(frozen=True)
class EpisodeTexts:
    """The texts of an episode, the support set first."""

    texts: PackedTexts
    way: int
    num_support: int
    """The size of the support set."""
    num_support_tokens: int
    """The number of its tokens."""

    @property
    def support(self) -> PackedTexts:
        texts, end = self.texts, self.num_support
        return PackedTexts(
            texts.ids[: self.num_support_tokens], texts.lengths[:end], texts.classes[:end], texts.longest
        )

    @property
    def queries(self) -> PackedTexts:
        texts, start = self.texts, self.num_support
        return PackedTexts(
            texts.ids[self.num_support_tokens :], texts.lengths[start:], texts.classes[start:], texts.longest
        )

    @classmethod
    def of(cls, episode: Episode, ids: Sequence[Sequence[int]], device: torch.device) -> EpisodeTexts:
        """From the token ids of all texts of a table."""
        support, queries = episode.rows()
        lengths = [len(ids[row]) for row in (*support, *queries)]
        texts = PackedTexts(
            torch.tensor([token for row in (*support, *queries) for token in ids[row]]).to(device),
            torch.tensor(lengths).to(device),
            torch.from_numpy(np.concatenate(episode.class_indices())).to(device),
            max(lengths),
        )
        return cls(texts, episode.way, len(support), sum(lengths[: len(support)]))


def _clip_gradients(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Clip the joint norm to 1: a single large inner step would destroy the weights."""
    if not gradients:
        return gradients
    squared = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    return [gradient / squared.clamp(min=1.0).sqrt() for gradient in gradients]  # the root has no gradient at 0


class Learner(nn.Module):
    """Embeds texts, makes a head of prototypes, and adapts head and weights to an episode."""

    def __init__(
        self,
        encoder: Encoder,
        algorithm: Algorithm,
        distance: Distance = "cosine",
        inner_steps: int = 3,
        inner_rate: float = 0.01,
        sentence_map: SentenceMap | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.algorithm, self.distance, self.inner_steps = encoder, algorithm, distance, inner_steps
        self.bf16 = False
        """Encode in bfloat16. The head stays in float32: cosines would differ in the third digit."""
        if sentence_map is not None and not sentence_map.is_mean:
            raise ConfigError(
                f"the model pools by {sentence_map.pooling} over {sentence_map.passes} passes; meta-training needs the "
                "mean of the last one: take another model"
            )
        self._linear: list[Tensor] | None = None
        self.token_weights: Tensor | None = None
        """The weight of each token of the vocabulary in a mean."""
        if sentence_map is not None:
            self._linear = [torch.from_numpy(part) for part in (sentence_map.weight, sentence_map.bias)]
            self.token_weights = None if sentence_map.tokens is None else torch.from_numpy(sentence_map.tokens)
        self.log_scale = nn.Parameter(torch.tensor(math.log(INITIAL_SCALE)))
        rates = dict.fromkeys(sorted({name.split(".")[0] for name in self._adapted_parameters()}), inner_rate)
        rates |= {HEAD: HEAD_RATE_FACTOR * inner_rate} if self.is_adapting else {}
        self.log_rates = nn.ParameterDict(
            {name: nn.Parameter(torch.tensor(math.log(rate))) for name, rate in rates.items()}
        )
        """Learned rates of the inner steps, one per module of the encoder and one for the head."""
        if algorithm == "maml":
            encoder.attention_implementation = "eager"  # nothing faster can be differentiated twice

    @property
    def is_adapting(self) -> bool:
        """Whether there are inner steps."""
        return self.algorithm in ADAPTS_ALL + ADAPTS_HEAD

    def _adapted_parameters(self) -> Weights:
        """The parameters of the encoder that an episode adapts; never the pooler, which is unused."""
        named = self.encoder.named_parameters() if self.algorithm in ADAPTS_ALL else ()
        return {name: weight for name, weight in named if not name.startswith("pooler") and weight.requires_grad}

    def forward(self, texts: PackedTexts) -> Tensor:  # (S, H)
        with torch.autocast(texts.ids.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.encoder.packed(texts.ids, texts.lengths, longest=texts.longest)  # (T, H)
        numbers = torch.arange(len(texts.lengths), device=texts.ids.device)
        owner = torch.repeat_interleave(numbers, texts.lengths, output_size=len(texts.ids))
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        share = (owner == numbers[:, None]).to(dtype)  # (S, T)
        if self.token_weights is not None:
            share = share * self.token_weights.to(share)[texts.ids]
        vectors = share / share.sum(1, keepdim=True).clamp(min=1e-9) @ hidden.to(dtype)
        if self._linear is not None:
            weight, bias = (part.to(vectors) for part in self._linear)
            vectors = F.linear(vectors, weight, bias)
        return F.normalize(vectors, dim=1) if self.distance == "cosine" else vectors

    def head_from(self, prototypes: Tensor) -> Head:
        """A head with scaled cosines to the prototypes, or negative mean squared distances up to a constant."""
        scale = self.log_scale.exp()
        if self.distance == "cosine":
            return scale * F.normalize(prototypes, dim=1), scale * prototypes.new_zeros(len(prototypes))
        scale = scale / prototypes.shape[1]
        return 2 * scale * prototypes, -scale * prototypes.square().sum(1)

    def prototype_head(self, vectors: Tensor, classes: Tensor, way: int) -> Head:
        """A head of the class means of the support set."""
        member = F.one_hot(classes, way).to(vectors.dtype)
        return self.head_from((member / member.sum(0)).T @ vectors)

    def adapt(self, support: PackedTexts, way: int, second_order: bool) -> tuple[Weights, Head]:
        """The weights of the encoder and the head after the inner steps on the support set.

        The result is differentiable with respect to weights, scale and rates; through the gradients of the steps only
        with `second_order`.
        """
        vectors = self(support)
        head = self.prototype_head(vectors, support.classes, way)
        # views: the head depends on the weights too, and is constant in a step
        weights = {name: weight.view_as(weight) for name, weight in self._adapted_parameters().items()}
        rates = {name: rate.exp() for name, rate in self.log_rates.items()}
        for _ in range(self.inner_steps):
            seen = self.embed_with(weights, support) if weights else vectors
            loss = F.cross_entropy(F.linear(seen, *head), support.classes)
            gradients = torch.autograd.grad(loss, [*weights.values(), *head], create_graph=second_order)
            *moves, last, bias = gradients
            weights = {
                name: weight - rates[name.split(".")[0]] * move
                for (name, weight), move in zip(weights.items(), _clip_gradients(moves), strict=True)
            }
            head = head[0] - rates[HEAD] * last, head[1] - rates[HEAD] * bias
        return weights, head

    def embed_with(self, weights: Weights, texts: PackedTexts) -> Tensor:  # (S, H)
        """`forward` with these weights of the encoder."""
        named = {f"encoder.{name}": weight for name, weight in weights.items()}
        vectors: Tensor = functional_call(self, named, (texts,))
        return vectors

    def settings(self) -> dict[str, Any]:
        """The settings and the learned scale and rates, as JSON."""
        return {
            "algorithm": self.algorithm, "distance": self.distance, "inner_steps": self.inner_steps,
            "scale": self.log_scale.exp().item(),
            "rates": {name: rate.exp().item() for name, rate in self.log_rates.items()},
        }  # fmt: skip

    @classmethod
    def from_settings(
        cls, encoder: Encoder, settings: Mapping[str, Any], sentence_map: SentenceMap | None = None
    ) -> Learner:
        try:
            algorithm, distance, inner_steps = (settings[name] for name in ("algorithm", "distance", "inner_steps"))
            if algorithm not in get_args(Algorithm) or distance not in get_args(Distance):
                raise ValueError(f"{algorithm!r} and {distance!r} are not known")
            if inner_steps not in range(1, MAX_INNER_STEPS + 1):
                raise ValueError(f"inner_steps={inner_steps!r}")
            implementation = encoder.attention_implementation
            learner = cls(encoder, algorithm, distance, inner_steps, sentence_map=sentence_map)
            encoder.attention_implementation = implementation  # inference needs no second derivative
            if set(settings["rates"]) != set(learner.log_rates):
                raise ValueError("rates of other parts")
            known = {learner.log_scale: settings["scale"]} | {
                learner.log_rates[k]: v for k, v in settings["rates"].items()
            }
            with torch.no_grad():
                for parameter, value in known.items():
                    if not 0 < value < math.inf:
                        raise ValueError(f"{value} must be above 0")
                    parameter.fill_(math.log(value))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"meta.json is damaged ({error!r}); meta-train again") from error
        return learner.to(encoder.word_embeddings.weight.device)
