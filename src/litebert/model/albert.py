"""ALBERT, top to bottom: settings, sizes, embeddings, one layer, and the loop that runs it again and again.

Shapes: B sequences of L columns, T tokens in rows (B * L when padded, fewer when packed), V vocabulary, E embedding,
H hidden, N heads, D = H / N channels per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from litebert.errors import ConfigError, DataError
from litebert.model.adapters import DepthAdapters
from litebert.model.attention import Backend, Dense, Layout, Packed, attend, choose_backend

Sharing = Literal["all", "attention", "ffn", "none"]
Half = Literal["attention", "ffn"]

WeightAt = Callable[[str, Tensor, int, int], Tensor]
"""(name, weight, pass, passes) -> the weight as that pass of so many sees it. Names are those of the encoder's
parameters, as in "attention.0.qkv.weight"; passes count from 0."""
Seen = dict[str, Tensor]
"""A block's parameters as one pass sees them, by name; None in its place = as they are."""

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
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


class Attention(nn.Module):
    """Self-attention, residual, LayerNorm. q, k and v are one matrix here and three on disk."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.probs_dropout = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        bias: Tensor | None,
        backend: Backend,
        seen: Seen | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T, H), or (R, H) when these rows are all that is wanted
        q, k, v = (
            _linear(self.qkv, hidden, seen, "qkv").unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        )  # (T, N, D) each
        dropout = self.probs_dropout if self.training else 0.0
        context = attend(q, k, v, layout, bias=bias, dropout=dropout, backend=backend).flatten(-2)  # (T, H)
        if rows is not None:
            hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
        mixed = _linear(self.out, context, seen, "out")
        return _norm(self.norm, hidden + self.dropout(mixed), seen)


class FeedForward(nn.Module):
    """Widen, bend, narrow, residual, LayerNorm."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.widen = nn.Linear(config.hidden_size, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, seen: Seen | None = None) -> Tensor:  # (T, H)
        wide = self.activation(_linear(self.widen, hidden, seen, "widen"))
        return _norm(self.norm, hidden + self.dropout(_linear(self.narrow, wide, seen, "narrow")), seen)


class Encoder(nn.Module):
    """Tokens to vectors. Call it for padded batches, `packed` for sequences laid end to end."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.backend: Backend = "auto"
        """Which attention kernel to use; "auto" picks the fastest that computes the case."""
        self.gradient_checkpointing = False
        """Recompute each pass in the backward instead of keeping its activations."""
        self.run_block = _run_block
        """One block. `torch.compile` it and every pass of every depth uses the one compiled block."""
        self.weight_at: WeightAt | None = None
        """How a pass sees the weights of its layer, biases and LayerNorms included; None = as they are."""

        self.word_embeddings = _table(config.vocab_size, config.embedding_size)
        self.position_embeddings = _table(config.max_position_embeddings, config.embedding_size)
        self.segment_embeddings = _table(config.type_vocab_size, config.embedding_size)
        self.embedding_norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.embedding_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.project = nn.Linear(config.embedding_size, config.hidden_size)

        # Sharing: a block that several layers use stands here once, and they all look it up.
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.blocks_of("attention")))
        self.ffn = nn.ModuleList(FeedForward(config) for _ in range(config.blocks_of("ffn")))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

        distance = config.relative_attention_distance
        self.relative_bias = (
            nn.Parameter(torch.empty(2 * distance + 1, config.num_attention_heads)) if distance else None
        )
        self.depth_embeddings = _table(config.num_hidden_layers, config.hidden_size) if config.depth_embedding else None
        rank = config.lora_rank
        self.adapters = DepthAdapters(config.num_hidden_layers, config.hidden_size, rank) if rank else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initialize(self, self.config.initializer_range)
        # Zeros leave the function as it was, so either can be switched on for a trained model.
        if self.relative_bias is not None:
            nn.init.zeros_(self.relative_bias)
        if self.depth_embeddings is not None:
            nn.init.zeros_(self.depth_embeddings.weight)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        depth: int | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Padded batch in, (B, L, H) out; columns that `attention_mask` hides return 0.

        `inputs_embeds`, (B, L, E), stands in for the word embeddings. `depth` runs that many passes instead of all.
        `rows`, (R,), says which of the B * L tokens are wanted: (R, H) out, and the last pass leaves out most of its
        work on the others.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise DataError("give the encoder exactly one of input_ids and inputs_embeds")
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # (B, L, E)
        if words.dim() != 3 or words.shape[-1] != self.config.embedding_size:
            wanted = (
                "input_ids (batch, length)"
                if inputs_embeds is None
                else f"inputs_embeds (batch, length, {self.config.embedding_size})"
            )
            raise DataError(
                f"got {tuple(words.shape[: 2 if inputs_embeds is None else None])}; the encoder takes {wanted}"
            )
        batch, length = words.shape[:2]
        mask = None if attention_mask is None else attention_mask.bool()
        columns = torch.arange(length, device=words.device)
        hidden = self._embed(words, columns, token_type_ids, length).flatten(0, 1)  # (T, H)
        hidden = self._run(hidden, Dense(batch, length, mask), depth, rows)
        if rows is not None:
            return hidden
        hidden = hidden.unflatten(0, (batch, length))
        return hidden if mask is None else hidden.where(mask[..., None], 0.0)

    def packed(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        depth: int | None = None,
        longest: int | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Sequences of these `lengths` laid end to end, (T,) in, (T, H) out. No padding is ever computed.

        `longest` is a bound on the lengths; without it they are read, for which the host waits for a GPU. `rows` are
        the wanted ones, as above.
        """
        layout = Packed.of(lengths, longest, len(input_ids))
        hidden = self._embed(self.word_embeddings(input_ids), layout.column, token_type_ids, layout.length)
        return self._run(hidden, layout, depth, rows)

    def pool(self, first: Tensor) -> Tensor:
        """The vector that sentence-level heads read, from the hidden state of [CLS]: (B, H) in, (B, H) out."""
        return torch.tanh(self.pooler(first))

    def depths_of(self, depth: int | None = None) -> dict[str, tuple[int, ...]]:
        """Which passes use a parameter, by name; -1 stands for what comes before the first pass.

        What is not in here belongs to no layer: the pooler, the relative bias, the depth embeddings, the adapters.
        """
        passes = range(self._checked_depth(depth))
        before = ("word_", "position_", "segment_", "embedding_", "project")
        users: dict[str, tuple[int, ...]] = {
            name: (-1,) for name, _ in self.named_parameters() if name.startswith(before)
        }
        for half in get_args(Half):
            for number, block in enumerate(getattr(self, half)):
                inner = number % self.config.inner_group_num
                used = tuple(layer for layer in passes if self.config.block_at(half, layer, inner) == number)
                users |= {f"{half}.{number}.{name}": used for name, _ in block.named_parameters()}
        return users

    def _embed(
        self, words: Tensor, positions: Tensor, segments: Tensor | None, longest: int
    ) -> Tensor:  # (..., E) -> (..., H)
        limit = self.config.max_position_embeddings
        if longest > limit:
            raise DataError(
                f"a sequence of {longest} tokens is longer than the model's {limit}; truncate it to {limit}"
            )
        segments = torch.zeros_like(positions) if segments is None else segments
        # in transformers' order of addition, so that even the rounding is the same
        embedded = words + self.segment_embeddings(segments) + self.position_embeddings(positions)
        return self.project(self.embedding_dropout(self.embedding_norm(embedded)))

    def _run(self, hidden: Tensor, layout: Layout, depth: int | None, rows: Tensor | None) -> Tensor:  # (T or R, H)
        bias = self._attention_bias(layout.length)
        passes = self._checked_depth(depth)
        backend = self.backend
        if backend == "auto":  # decided out here, once for all passes, where no compiler has to follow
            dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
            backend = choose_backend(_compute_dtype(hidden), hidden.is_cuda, layout, bias, dropout)
        for layer in range(passes):
            wanted = rows if layer == passes - 1 else None
            if self.gradient_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(
                    self._pass, hidden, layer, passes, layout, bias, backend, wanted, use_reentrant=False
                )
            else:
                hidden = self._pass(hidden, layer, passes, layout, bias, backend, wanted)
        return hidden

    def _pass(
        self,
        hidden: Tensor,
        layer: int,
        passes: int,
        layout: Layout,
        bias: Tensor | None,
        backend: Backend,
        rows: Tensor | None,
    ) -> Tensor:  # (T or R, H)
        """One layer: the blocks of its group, in order."""
        if self.depth_embeddings is not None:
            hidden = hidden + self.depth_embeddings.weight[layer]
        for inner in range(self.config.inner_group_num):
            attention, attention_seen = self._block("attention", layer, inner, passes)
            ffn, ffn_seen = self._block("ffn", layer, inner, passes)
            wanted = rows if inner == self.config.inner_group_num - 1 else None
            hidden = self.run_block(attention, ffn, hidden, layout, bias, backend, attention_seen, ffn_seen, wanted)
        return hidden

    def _block(self, half: Half, layer: int, inner: int, passes: int) -> tuple[Any, Seen | None]:
        """A block and its parameters as this pass sees them.

        The hook is called out here, so that a compiled `run_block` gets tensors and serves every pass and every hook.
        """
        number = self.config.block_at(half, layer, inner)
        block = self.attention[number] if half == "attention" else self.ffn[number]
        if self.weight_at is None and self.adapters is None:
            return block, None
        seen: Seen = {}
        for name, weight in block.named_parameters():
            path = f"{half}.{number}.{name}"
            weight = weight if self.adapters is None else self.adapters(path, weight, layer)
            seen[name] = weight if self.weight_at is None else self.weight_at(path, weight, layer, passes)
        return block, seen

    def _attention_bias(self, length: int) -> Tensor | None:  # (N, L, L)
        """The learned bias by relative distance, spread out once for all passes."""
        if self.relative_bias is None:
            return None
        limit = self.config.relative_attention_distance
        column = torch.arange(length, device=self.relative_bias.device)
        distance = (column[:, None] - column[None, :]).clamp(-limit, limit) + limit
        return self.relative_bias[distance].permute(2, 0, 1)

    def _checked_depth(self, depth: int | None) -> int:
        layers = self.config.num_hidden_layers
        if depth is None:
            return layers
        one_layer = self.config.sharing == "all" and self.config.num_hidden_groups == 1
        endless = one_layer and self.depth_embeddings is None and self.adapters is None
        if depth < 1 or (depth > layers and not endless):
            raise ConfigError(
                f"depth={depth} must lie between 1 and {layers}; only one fully shared layer can run deeper"
            )
        return depth


def _run_block(
    attention: Attention,
    ffn: FeedForward,
    hidden: Tensor,
    layout: Layout,
    bias: Tensor | None,
    backend: Backend,
    attention_seen: Seen | None = None,
    ffn_seen: Seen | None = None,
    rows: Tensor | None = None,
) -> Tensor:  # (T or R, H)
    # In mixed precision LayerNorm answers in float32; between the passes the smaller type is enough.
    return ffn(attention(hidden, layout, bias, backend, attention_seen, rows), ffn_seen).to(hidden.dtype)


def _linear(layer: nn.Module, rows: Tensor, seen: Seen | None, name: str) -> Tensor:
    return layer(rows) if seen is None else F.linear(rows, seen[f"{name}.weight"], seen[f"{name}.bias"])


def _norm(layer: nn.LayerNorm, rows: Tensor, seen: Seen | None) -> Tensor:
    if seen is None:
        return layer(rows)
    return F.layer_norm(rows, layer.normalized_shape, seen["norm.weight"], seen["norm.bias"], layer.eps)


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    """What matrix products will run in."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _table(rows: int, size: int) -> nn.Embedding:
    """An embedding table without torch's own start, which we replace anyway and which is slow on the meta device."""
    return nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)


def initialize(module: nn.Module, std: float) -> None:
    """ALBERT's start: truncated normal matrices and tables, zero biases, unit LayerNorms."""
    if next(module.parameters()).is_meta:
        return  # a model without memory, about to be filled from a file
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
