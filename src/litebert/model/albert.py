"""ALBERT, top to bottom: embeddings, one layer, and the loop that runs it again and again.

Shapes: B sequences of L columns, T tokens in rows (B * L when padded, fewer when packed), V vocabulary, E embedding,
H hidden, N heads, D = H / N channels per head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from litebert.errors import ConfigError, DataError
from litebert.model.attention import Backend, Dense, Layout, Packed, attend, choose_backend
from litebert.model.backends.cpu_linear import linear
from litebert.model.backends.cuda_graphs import Recorder, is_small
from litebert.model.backends.fp8 import has_eight
from litebert.model.backends.fused import TANH, Plan, Weights, run_passes
from litebert.model.config import ACTIVATIONS, AlbertConfig, Half
from litebert.model.hooks import are_plain, has_hooks, has_kernels, is_current, is_plain, is_told, is_untouched
from litebert.model.init import initialize
from litebert.model.lora import DepthAdapters

if TYPE_CHECKING:
    from litebert.model.backends.native import NativeInt8Backend

WeightAt = Callable[[str, Tensor, int, int], Tensor]
"""(name, weight, pass, passes) -> the weight as that pass of so many sees it. Names are those of the encoder's
parameters, as in "attention.0.qkv.weight"; passes count from 0."""
RunBlock = Callable[..., Tensor]
"""`run_block`, or what stands in its place."""
Seen = dict[str, Tensor]
"""A block's parameters as one pass sees them, by name; None in its place = as they are."""


MOST_REAL = 0.9
"""Of the columns of a batch: with fewer real tokens than that, a CPU saves time by leaving padding out."""


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
        self.fused = True
        """On a GPU, in half precision, run all passes as one function where that is possible (`fused.py`). It cannot be
        differentiated twice."""
        self.fp8 = False
        """There, compute the larger matrix products from eight bits: faster, and less exact. `use_eight` sets it."""
        self.recorder = Recorder()
        """Replays small questions to a GPU."""
        self.gradient_checkpointing = False
        """Recompute each pass in the backward instead of keeping its activations."""
        self.run_block: RunBlock = run_block
        """One block, where passes are not one function. `torch.compile` it and every pass of every depth uses the one
        compiled block."""
        self.run_all: NativeInt8Backend | None = None
        """What computes all passes in one go, in the place of the loop over them."""
        self.unpadded = False
        """On a CPU, leave even a little padding out of all but attention."""
        self.depth: int | None = None
        """Passes to run where the caller does not say; None = all of them."""
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
        tokens: int | None = None,
    ) -> Tensor:
        """Padded batch in, (B, L, H) out; columns that `attention_mask` hides return 0.

        `inputs_embeds`, (B, L, E), stands in for the word embeddings. `depth` runs that many passes instead of all.
        `rows`, (R,), says which of the B * L tokens are wanted, real ones: (R, H) out, and the last pass leaves out
        most of its work on the others. `tokens` is how many are real: the host need not wait for a GPU to count them.
        """
        depth = self.depth if depth is None else depth
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
                 "inputs_embeds": inputs_embeds, "rows": rows}  # fmt: skip
        present = {name: tensor for name, tensor in given.items() if tensor is not None}
        if self._is_recordable(input_ids, depth):
            places = tuple(parameter.data_ptr() for parameter in self.parameters())  # from which a graph reads
            setting = (depth, self.backend, self.fused, self.fp8, _compute_dtype(self.word_embeddings.weight))
            return self.recorder(partial(self._padded, depth=depth), present, setting, places)
        return self._padded(**present, depth=depth, tokens=tokens)

    def _is_recordable(self, input_ids: Tensor | None, depth: int | None) -> bool:
        """Is it a small question to a GPU, in which nothing is drawn or learned?"""
        if input_ids is None or not input_ids.is_cuda or self.training or torch.is_grad_enabled():
            return False
        small = is_small(self.config, input_ids.numel(), self.checked_depth(depth))
        plain = self.weight_at is None and not any(has_hooks(part) for part in self.children())
        return small and plain and is_current(input_ids.device) and not torch.cuda.is_current_stream_capturing()

    def _padded(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        rows: Tensor | None = None,
        depth: int | None = None,
        tokens: int | None = None,
    ) -> Tensor:
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
        mask = None if attention_mask is None else attention_mask.bool().contiguous()
        if self.unpadded and mask is not None and bool(mask.all()):
            mask = None
        if mask is not None and self._is_worth_packing(words, mask, depth):
            return self._without_padding(words, mask, token_type_ids, depth, rows, tokens)
        columns = torch.arange(length, device=words.device)
        hidden = self._embed(words, columns, token_type_ids, length).flatten(0, 1)  # (T, H)
        hidden = self._run(hidden, Dense(batch, length, mask), depth, rows)
        if rows is not None:
            return hidden
        hidden = hidden.unflatten(0, (batch, length))
        return hidden if mask is None else hidden.where(mask[..., None], 0.0)

    def _is_worth_packing(self, words: Tensor, mask: Tensor, depth: int | None) -> bool:
        """To find the padding takes a moment, which much work makes up for."""
        if self.unpadded:
            return True
        if not self.can_fuse(words):
            return words.device.type == "cpu" and self._has_much_padding(mask)
        small = is_small(self.config, words.shape[0] * words.shape[1], self.checked_depth(depth))
        return not small and not torch.cuda.is_current_stream_capturing()

    def _has_much_padding(self, mask: Tensor) -> bool:
        """Is it worth leaving out on a CPU? Not where a graph is made that must do for other texts too, nor where
        attention is asked for by columns, which a layout without padding counts anew."""
        if self.backend == "eager" or self.relative_bias is not None or torch.compiler.is_compiling():
            return False
        return 0 < int(mask.sum()) < MOST_REAL * mask.numel()

    def _without_padding(
        self,
        words: Tensor,
        mask: Tensor,
        segments: Tensor | None,
        depth: int | None,
        rows: Tensor | None,
        tokens: int | None,
    ) -> Tensor:
        """What `_padded` gives, from real tokens alone."""
        length, flat = mask.shape[1], mask.flatten()
        tokens = int(flat.sum()) if tokens is None else tokens
        place = flat.cumsum(0) - 1  # (B * L,) of a real token among them; padding goes behind the last
        real = place.new_zeros(tokens + 1)  # (T,) and one
        real = real.scatter_(0, place.where(flat, tokens), torch.arange(len(flat), device=flat.device))[:-1]
        segments = None if segments is None else segments.flatten()[real]
        hidden = self._embed(words.flatten(0, 1)[real], real % length, segments, length)
        if rows is not None:
            rows = place.clamp(min=0)[rows]
        hidden = self._run(hidden, Packed.of(mask.sum(1), length, tokens), depth, rows)
        if rows is not None:
            return hidden
        return _columns(hidden, real, mask.shape)

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
        depth = self.depth if depth is None else depth
        layout = Packed.of(lengths, longest, len(input_ids))
        hidden = self._embed(self.word_embeddings(input_ids), layout.column, token_type_ids, layout.length)
        return self._run(hidden, layout, depth, rows)

    def after_passes(
        self,
        depths: Sequence[int],
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> list[Tensor]:
        """The hidden states, (B, L, H), after each of these numbers of passes; in the padding stands anything."""
        length = input_ids.shape[1]
        columns = torch.arange(length, device=input_ids.device)
        layout, real = self._laid_out(input_ids, attention_mask)
        hidden = _rows(self._embed(self.word_embeddings(input_ids), columns, token_type_ids, length), real)
        found: dict[int, Tensor] = dict.fromkeys(depths, hidden)
        if max(depths):
            self._run(hidden, layout, max(depths), None, found)
        return [_columns(found[depth], real, input_ids.shape) for depth in depths]

    def onwards(self, hidden: Tensor, attention_mask: Tensor, done: int, depth: int | None = None) -> Tensor:
        """The hidden states, (B, L, H), after `depth` passes or the last, from those after `done`: what learns above
        need not read again."""
        layout, real = self._laid_out(attention_mask, attention_mask)
        last = self._run(_rows(hidden, real), layout, depth, None, done=done)
        return _columns(last, real, attention_mask.shape)

    def _laid_out(self, ids: Tensor, attention_mask: Tensor | None) -> tuple[Layout, Tensor | None]:
        """How (B, L) texts are laid out, and which of the B * L tokens are left, (T,), if not all."""
        mask = None if attention_mask is None else attention_mask.bool().contiguous()
        if mask is None or mask.is_cuda or not self._has_much_padding(mask):
            return Dense(ids.shape[0], ids.shape[1], mask), None  # a length would be a number in a graph
        real = mask.flatten().nonzero().squeeze(1)
        return Packed.of(mask.sum(1), mask.shape[1], len(real)), real

    def until(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        token_type_ids: Tensor,
        depths: Sequence[int],
        stops: Callable[[Tensor, Tensor, int], Tensor],
    ) -> None:
        """Sequences of these `lengths` laid end to end, (T,), go through passes until they are told to stop.

        After each of the `depths`, `stops` hears the states of the first tokens of those that are left, (S, H), which
        sequences they are, (S,), and the depth, and says which of them stop, (S,). The others are a shorter batch.
        """
        depths, left = self._checked_depths(depths), torch.arange(len(lengths), device=lengths.device)
        first = lengths.cumsum(0) - lengths
        longest, done = int(lengths.max()), 0
        hidden = self._begun(input_ids, lengths, first, token_type_ids, longest)
        layout = self._end_to_end(lengths, longest, len(hidden))
        for depth in depths:
            hidden, done = self._run(hidden, layout, depth, None, done=done), depth
            goes_on = ~stops(hidden.index_select(0, first), left, depth)
            if bool(goes_on.all()):
                continue
            hidden = hidden[goes_on.repeat_interleave(lengths)]
            left, lengths = left[goes_on], lengths[goes_on]
            if not len(left):
                return
            first = lengths.cumsum(0) - lengths
            layout = self._end_to_end(lengths, longest, len(hidden))

    def until_sure(
        self, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor, depths: Sequence[int], head: nn.Linear,
        sure: float,
    ) -> tuple[Tensor, Tensor] | None:  # (S, C), (S,)  # fmt: skip
        """`until` for a classifier, where native code can look for itself: what the head says of each pooled sequence
        when it is so sure, and after how many passes."""
        if self.run_all is None or self.depth_embeddings is not None or not are_plain(self.pooler, head):
            return None
        depths = self._checked_depths(depths)
        first, longest = lengths.cumsum(0) - lengths, int(lengths.max())
        hidden = self._begun(input_ids, lengths, first, token_type_ids, longest)
        return self.run_all.classify_early(self, hidden, lengths, self.attention_bias(longest), depths, head, sure)

    def vectors(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        token_type_ids: Tensor,
        linear: nn.Linear | None,
        counts: Tensor | None,
    ) -> Tensor | None:  # (S, D)
        """A map of the mean of the last states of each sequence, where native code computes all of that; `counts`,
        (V,), say how much each token counts in it."""
        if self.run_all is None or self.training or torch.is_grad_enabled() or not len(lengths):
            return None
        tables = (self.word_embeddings, self.segment_embeddings, self.position_embeddings)
        known = are_plain(*tables, self.embedding_norm, self.embedding_dropout, self.project)
        if is_told(self) or not known or (linear is not None and not are_plain(linear)):
            return None
        longest = int(lengths.max())
        self._check_length(longest)
        return self.run_all.embed(
            self, input_ids, lengths, token_type_ids, self.attention_bias(longest), linear, counts
        )

    def _checked_depths(self, depths: Sequence[int]) -> list[int]:
        if not depths or any(now >= later for now, later in pairwise(depths)):
            raise ConfigError(f"depths={list(depths)} must grow, each larger than the one before; sort them")
        return [self.checked_depth(one) for one in depths]

    def _begun(
        self, input_ids: Tensor, lengths: Tensor, first: Tensor, token_type_ids: Tensor, longest: int
    ) -> Tensor:  # (T, H)
        column = torch.arange(len(input_ids), device=lengths.device) - first.repeat_interleave(lengths)
        return self._embed(self.word_embeddings(input_ids), column, token_type_ids, longest)

    @staticmethod
    def _end_to_end(lengths: Tensor, longest: int, tokens: int) -> Layout:
        return Dense(1, tokens, None) if len(lengths) == 1 else Packed.of(lengths, longest, tokens)

    def pool(self, first: Tensor) -> Tensor:
        """The vector that sentence-level heads read, from the hidden state of [CLS]: (B, H) in, (B, H) out."""
        return torch.tanh(self.pooler(first))

    def depths_of(self, depth: int | None = None) -> dict[str, tuple[int, ...]]:
        """Which passes use a parameter, by name; -1 stands for what comes before the first pass.

        What is not in here belongs to no layer: the pooler, the relative bias, the depth embeddings, the adapters.
        """
        passes = range(self.checked_depth(depth))
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
        self._check_length(longest)
        segments = torch.zeros_like(positions) if segments is None else segments
        # in transformers' order of addition, so that even the rounding is the same
        embedded = words + self.segment_embeddings(segments) + self.position_embeddings(positions)
        return self.project(self.embedding_dropout(self.embedding_norm(embedded)))

    def _check_length(self, longest: int) -> None:
        limit = self.config.max_position_embeddings
        if longest > limit:
            raise DataError(
                f"a sequence of {longest} tokens is longer than the model's {limit}; truncate it to {limit}"
            )

    def _run(
        self, hidden: Tensor, layout: Layout, depth: int | None, rows: Tensor | None,
        wanted_after: dict[int, Tensor] | None = None, done: int = 0,
    ) -> Tensor:  # (T or R, H)  # fmt: skip
        """All passes but those that are `done`. `wanted_after` gets the states after those that it names."""
        bias = self.attention_bias(layout.length)
        passes = self.checked_depth(depth)
        if self.run_all is not None:
            for end in sorted({*(wanted_after or ()), passes} - {*range(done + 1)}):
                hidden = self.run_all(self, hidden, layout, range(done, end), bias, rows if end == passes else None)
                done = end
                if wanted_after is not None and end in wanted_after:
                    wanted_after[end] = hidden
            return hidden
        backend = self.backend
        if backend == "auto":  # decided out here, once for all passes, where no compiler has to follow
            dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
            backend = choose_backend(_compute_dtype(hidden), hidden.is_cuda, layout, bias, dropout)
        if wanted_after is None and not done and self.can_fuse(hidden):
            weights = Weights.of(self.attention[0], self.ffn[0])
            plan = Plan.of(self.config, passes, layout, backend, self.backend == "auto", hidden.device, self.fp8)
            return run_passes(hidden.to(_compute_dtype(hidden)), weights, plan, rows)
        for layer in range(done, passes):
            wanted = rows if layer == passes - 1 else None
            if self.gradient_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(
                    self._pass, hidden, layer, passes, layout, bias, backend, wanted, use_reentrant=False
                )
            else:
                hidden = self._pass(hidden, layer, passes, layout, bias, backend, wanted)
            if wanted_after is not None and layer + 1 in wanted_after:
                wanted_after[layer + 1] = hidden
        return hidden

    def can_fuse(self, hidden: Tensor) -> bool:
        """Can all passes of these be one function?"""
        config = self.config
        one_block = config.sharing == "all" and config.num_hidden_groups == config.inner_group_num == 1
        dropout = self.training and (config.hidden_dropout_prob or config.attention_probs_dropout_prob)
        added = (self.weight_at, self.adapters, self.relative_bias, self.depth_embeddings)
        fits = one_block and not dropout and config.hidden_act in TANH and all(part is None for part in added)
        fits = fits and not self.gradient_checkpointing and self.backend != "eager"
        half = _compute_dtype(hidden) in (torch.bfloat16, torch.float16)
        able = has_kernels(hidden.device) and is_current(hidden.device)
        return self.fused and fits and half and able and all(map(is_plain, (*self.attention, *self.ffn)))

    def use_eight(self, wanted: bool) -> None:
        """Compute the larger matrix products from eight bits, or as they are."""
        weight, shape = self.word_embeddings.weight, self.config
        with torch.autocast(weight.device.type, torch.bfloat16):
            fits = shape.hidden_size % 16 == shape.intermediate_size % 16 == 0 and self.can_fuse(weight)
        if wanted and not has_eight(weight.device):
            raise ConfigError("precision=fp8 needs an NVIDIA GPU that computes with eight bits (H100, H200); use bf16")
        if wanted and not fits:
            raise ConfigError(
                "precision=fp8 needs what our kernels compute: Triton, one shared layer with GELU and sizes that 16 "
                "divides, no LoRA, relative bias, depth embedding or hook, and in training no dropout, no "
                "checkpointing and no strategy that changes weights from pass to pass; use bf16"
            )
        self.fp8 = wanted

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

    def attention_bias(self, length: int) -> Tensor | None:  # (N, L, L)
        """The learned bias by relative distance, spread out once for all passes."""
        if self.relative_bias is None:
            return None
        limit = self.config.relative_attention_distance
        column = torch.arange(length, device=self.relative_bias.device)
        distance = (column[:, None] - column[None, :]).clamp(-limit, limit) + limit
        return self.relative_bias[distance].permute(2, 0, 1)

    def checked_depth(self, depth: int | None) -> int:
        """How many passes that is; what the model cannot run is refused."""
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


def run_block(
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
    if seen is not None:
        return F.linear(rows, seen[f"{name}.weight"], seen[f"{name}.bias"])
    if type(layer) is nn.Linear and is_untouched(layer):
        return linear(rows, layer.weight, layer.bias)
    return layer(rows)


def _norm(layer: nn.LayerNorm, rows: Tensor, seen: Seen | None) -> Tensor:
    if seen is None:
        return layer(rows)
    return F.layer_norm(rows, layer.normalized_shape, seen["norm.weight"], seen["norm.bias"], layer.eps)


def _rows(columns: Tensor, real: Tensor | None) -> Tensor:  # (B, L, H) -> (T, H)
    """All of them, or those of the B * L that are real."""
    return columns.flatten(0, 1) if real is None else columns.flatten(0, 1)[real]


def _columns(rows: Tensor, real: Tensor | None, shape: tuple[int, ...]) -> Tensor:  # (T, H) -> (B, L, H)
    if real is None:
        return rows.unflatten(0, shape)
    return rows.new_zeros(math.prod(shape), rows.shape[1]).index_copy(0, real, rows).unflatten(0, shape)


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    """What matrix products will run in."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _table(rows: int, size: int) -> nn.Embedding:
    """An embedding table without torch's own start, which we replace anyway and which is slow on the meta device."""
    return nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
