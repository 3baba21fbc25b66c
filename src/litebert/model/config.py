"""The shape of an ALBERT: its settings, what they allow, and the sizes that have names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from litebert.errors import ConfigError, DataError

Sharing = Literal["all", "attention", "ffn", "none"]
Half = Literal["attention", "ffn"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),  # which can be pickled, as scikit-learn's tools do
    "relu": F.relu,
    "silu": F.silu,
}
ACTIVATION_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}


@dataclass(frozen=True)
class AlbertConfig:
    """The shape of an ALBERT. Field names are those of Hugging Face's config.json, plus four of our own at the end."""

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    num_hidden_groups: int = 1
    """Layers fall into this many groups of neighbours; sharing happens within a group."""
    inner_group_num: int = 1
    """Distinct blocks that every layer runs one after the other."""
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    sharing: Sharing = "all"
    """Which half of a layer its group shares: both, the attention, the feed-forward, or neither."""
    relative_attention_distance: int = 0
    """Learn a bias per head and relative distance up to this one; 0 = off. Costs (2 * distance + 1) * heads
    parameters and the mask-free attention kernels. transformers cannot express it."""
    depth_embedding: bool = False
    """Add a learned vector per pass, so that a shared layer knows its depth. Costs layers * hidden parameters and one
    addition per pass. transformers cannot express it."""
    lora_rank: int = 0
    """Low-rank changes of the attention's queries and values at every pass, of this rank; 0 = off. Costs
    4 * layers * hidden * rank parameters. transformers cannot express it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_act", ACTIVATION_ALIASES.get(self.hidden_act, self.hidden_act))
        may_be_zero = {"relative_attention_distance", "pad_token_id", "lora_rank"}
        counts = {"num_hidden_layers", "num_hidden_groups", "inner_group_num", "num_attention_heads"}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                least = 0 if field.name in may_be_zero else 1
                most = 1_000 if field.name in counts else 10_000_000
                if type(value) is not int or not least <= value <= most:
                    raise ConfigError(f"{field.name}={value!r} must be a whole number between {least} and {most:,}")
            if field.type == "float" and (type(value) not in (int, float) or not 0 <= value <= 1):
                raise ConfigError(f"{field.name}={value!r} must be a number between 0 and 1")
        if self.hidden_size % self.num_attention_heads:
            fits = max(n for n in range(1, self.num_attention_heads) if self.hidden_size % n == 0)
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must divide hidden_size={self.hidden_size}; try {fits}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act={self.hidden_act!r} must be one of {', '.join(ACTIVATIONS)}")
        if self.sharing not in get_args(Sharing):
            raise ConfigError(f"sharing={self.sharing!r} must be one of {', '.join(get_args(Sharing))}")
        if self.pad_token_id >= self.vocab_size:
            raise ConfigError(f"pad_token_id={self.pad_token_id} must be below vocab_size={self.vocab_size}")
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ConfigError(
                f"num_hidden_groups={self.num_hidden_groups} must not exceed "
                f"num_hidden_layers={self.num_hidden_layers}; "
                f"try {self.num_hidden_layers}, one group per layer"
            )

    def group(self, layer: int) -> int:
        """The group a layer belongs to, in transformers' very formula: another order of division rounds differently."""
        group = int(layer / (self.num_hidden_layers / self.num_hidden_groups))
        return min(group, self.num_hidden_groups - 1)  # a run deeper than the model goes on with the last group

    def blocks_of(self, half: Half) -> int:
        """How many distinct blocks of this half exist."""
        owners = self.num_hidden_groups if self.shares(half) else self.num_hidden_layers
        return owners * self.inner_group_num

    def block_at(self, half: Half, layer: int, inner: int) -> int:
        """Which of them inner block `inner` of layer `layer` uses."""
        owner = self.group(layer) if self.shares(half) else layer
        return owner * self.inner_group_num + inner

    def checked_depth(self, depth: int | None) -> int:
        """The number of passes to run, all of them for None. What the model cannot run is refused."""
        layers = self.num_hidden_layers
        if depth is None:
            return layers
        one_layer = self.sharing == "all" and self.num_hidden_groups == 1
        endless = one_layer and not self.depth_embedding and not self.lora_rank
        if depth < 1 or (depth > layers and not endless):
            raise ConfigError(
                f"depth={depth} must lie between 1 and {layers}; only one fully shared layer can run deeper"
            )
        return depth

    def check_length(self, longest: int) -> None:
        limit = self.max_position_embeddings
        if longest > limit:
            raise DataError(
                f"a sequence of {longest} tokens is longer than the model's {limit}; truncate it to {limit}"
            )

    def shares(self, half: Half) -> bool:
        return self.sharing in ("all", half)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


PRESETS: dict[str, AlbertConfig] = {
    "tiny": AlbertConfig(num_hidden_layers=4, hidden_size=312, num_attention_heads=12, intermediate_size=1248),
    "small": AlbertConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536),
    "base": AlbertConfig(),
    "large": AlbertConfig(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
    "xlarge": AlbertConfig(num_hidden_layers=24, hidden_size=2048, num_attention_heads=16, intermediate_size=8192),
    "xxlarge": AlbertConfig(num_hidden_layers=12, hidden_size=4096, num_attention_heads=64, intermediate_size=16384),
}


def preset(name: str, **changes: Any) -> AlbertConfig:
    """A named size, with some settings changed: `preset("base", vocab_size=8000)`."""
    if name not in PRESETS:
        raise ConfigError(f"preset={name!r} must be one of {', '.join(PRESETS)}")
    known = {field.name for field in fields(AlbertConfig)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: no such setting; an ALBERT has {', '.join(sorted(known))}")
    return replace(PRESETS[name], **changes)
