"""ALBERT, top to bottom: embeddings, one layer, and the loop that runs it again and again.

This is the reference. Other ways to run the loop are in `backends/`, and are tested against it.

Shapes: B sequences of L columns, T tokens in rows (B * L when padded, fewer when packed), V vocabulary, E embedding,
H hidden, N heads, D = H / N channels per head, R selected rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from litebert.model.attention import AttentionImplementation, attend, choose_attention, relative_position_bias
from litebert.model.backends import AutoBackend
from litebert.model.backends.base import Backend, Passes, RunBlock, batch_layout, compute_dtype
from litebert.model.config import ACTIVATIONS, AlbertConfig
from litebert.model.init import embedding_table, initialize
from litebert.model.layout import Layout, Packed, word_vectors
from litebert.model.lora import DepthAdapters
from litebert.model.pass_weights import PassWeights, WeightAt, apply_linear, apply_norm, depths_of, pass_weights


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
        implementation: AttentionImplementation,
        weights: PassWeights | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T, H), or (R, H)
        qkv = apply_linear(self.qkv, hidden, weights, "qkv")
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).unbind(-3)  # (T, N, D) each
        dropout = self.probs_dropout if self.training else 0.0
        context = attend(q, k, v, layout, bias=bias, dropout=dropout, implementation=implementation).flatten(-2)
        if rows is not None:
            hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
        mixed = apply_linear(self.out, context, weights, "out")
        return apply_norm(self.norm, hidden + self.dropout(mixed), weights)


class FeedForward(nn.Module):
    """Widen, activate, narrow, residual, LayerNorm."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.widen = nn.Linear(config.hidden_size, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, weights: PassWeights | None = None) -> Tensor:  # (T, H)
        wide = self.activation(apply_linear(self.widen, hidden, weights, "widen"))
        return apply_norm(self.norm, hidden + self.dropout(apply_linear(self.narrow, wide, weights, "narrow")), weights)


def run_block(
    attention: Attention,
    ffn: FeedForward,
    hidden: Tensor,
    layout: Layout,
    bias: Tensor | None,
    implementation: AttentionImplementation,
    attention_weights: PassWeights | None = None,
    ffn_weights: PassWeights | None = None,
    rows: Tensor | None = None,
) -> Tensor:  # (T, H), or (R, H)
    mixed = attention(hidden, layout, bias, implementation, attention_weights, rows)
    # In mixed precision LayerNorm returns float32; between passes the smaller type is enough.
    return ffn(mixed, ffn_weights).to(hidden.dtype)


class Encoder(nn.Module):
    """Token ids to hidden states. Call it for padded batches, `packed` for sequences laid end to end."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config
        self.backend: Backend = AutoBackend()
        """What runs the passes."""
        self.attention_implementation: AttentionImplementation = "auto"
        """How attention is computed; "auto" picks the fastest way that computes the case."""
        self.gradient_checkpointing = False
        """Recompute each pass in the backward instead of keeping its activations."""
        self.depth: int | None = None
        """Passes to run where the caller does not say; None = all of them."""
        self.weight_at: WeightAt | None = None
        """How a pass sees the weights of its layer, biases and LayerNorms included; None = as they are."""

        # Embeddings, factorised: V x E tables, then one E x H projection.
        self.word_embeddings = embedding_table(config.vocab_size, config.embedding_size)
        self.position_embeddings = embedding_table(config.max_position_embeddings, config.embedding_size)
        self.segment_embeddings = embedding_table(config.type_vocab_size, config.embedding_size)
        self.embedding_norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.embedding_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.project = nn.Linear(config.embedding_size, config.hidden_size)

        # Sharing: a block that several layers use stands here once, and they all look it up.
        self.attention = nn.ModuleList(Attention(config) for _ in range(config.blocks_of("attention")))
        self.ffn = nn.ModuleList(FeedForward(config) for _ in range(config.blocks_of("ffn")))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

        # Off unless asked for.
        layers, distance, rank = config.num_hidden_layers, config.relative_attention_distance, config.lora_rank
        self.relative_bias = (
            nn.Parameter(torch.empty(2 * distance + 1, config.num_attention_heads)) if distance else None
        )
        self.depth_embeddings = embedding_table(layers, config.hidden_size) if config.depth_embedding else None
        self.adapters = DepthAdapters(layers, config.hidden_size, rank) if rank else None
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

        `inputs_embeds`, (B, L, E), replaces the word embeddings. `depth` runs that many passes instead of all. `rows`,
        (R,), selects real tokens by their places among the B * L: (R, H) out, and the last pass skips most of its work
        for the others. `tokens` is the number of real tokens, so that the host need not wait for a GPU to count them.
        """
        named = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
                 "inputs_embeds": inputs_embeds, "rows": rows}  # fmt: skip
        inputs = {name: tensor for name, tensor in named.items() if tensor is not None}
        depth = self.depth if depth is None else depth
        replayed = self.backend.replay(self, inputs, depth)
        return self.encode_padded(depth, tokens, **inputs) if replayed is None else replayed

    def encode_padded(self, depth: int | None, tokens: int | None = None, **inputs: Tensor) -> Tensor:
        """`forward`, step by step: where it pays, padding is removed before the embeddings and put back at the end."""
        words = word_vectors(self.word_embeddings, inputs.get("input_ids"), inputs.get("inputs_embeds"))  # (B, L, E)
        segments, rows, length = inputs.get("token_type_ids"), inputs.get("rows"), words.shape[1]
        stop = self.checked_depth(depth)
        passes = Passes(0, stop, stop)
        batch = batch_layout(self, words, inputs.get("attention_mask"), passes, tokens)
        segments = None if segments is None else batch.from_padded(segments)
        hidden = self.embed(batch.from_padded(words), batch.positions(words.device), segments, length).flatten(0, -2)
        hidden = self.backend(self, hidden, batch.layout, passes, self.attention_bias(length), batch.rows_at(rows))
        return batch.to_padded(hidden, zero_padding=True) if rows is None else hidden

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

        `longest` is an upper bound of the lengths; without it they are read, for which the host waits for a GPU. `rows`
        selects tokens as above.
        """
        stop = self.checked_depth(self.depth if depth is None else depth)
        layout = Packed.of(lengths, longest, len(input_ids))
        hidden = self.embed(self.word_embeddings(input_ids), layout.column, token_type_ids, layout.length)
        return self.backend(self, hidden, layout, Passes(0, stop, stop), self.attention_bias(layout.length), rows)

    def hidden_states_at(
        self,
        depths: Sequence[int],
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> list[Tensor]:
        """The hidden states, (B, L, H), after each of these numbers of passes; at padding they are undefined."""
        length = input_ids.shape[1]
        columns = torch.arange(length, device=input_ids.device)
        hidden = self.embed(self.word_embeddings(input_ids), columns, token_type_ids, length)  # (B, L, H)
        last = self.checked_depth(max(depths)) if max(depths) else 0
        batch = batch_layout(self, hidden, attention_mask, Passes(0, last, last, partial=True))
        states, bias = {0: batch.from_padded(hidden).flatten(0, -2)}, self.attention_bias(length)
        for start, stop in pairwise(sorted({0, *depths})):
            passes = Passes(start, stop, last, partial=True)
            states[stop] = self.backend(self, states[start], batch.layout, passes, bias)
        return [batch.to_padded(states[depth]) for depth in depths]

    def resume(self, hidden: Tensor, attention_mask: Tensor, start: int, depth: int | None = None) -> Tensor:
        """The hidden states, (B, L, H), after `depth` passes or the last, from those after `start` passes."""
        stop = self.checked_depth(depth)
        passes = Passes(start, stop, stop, partial=True)
        batch = batch_layout(self, hidden, attention_mask, passes)
        rows, bias = batch.from_padded(hidden).flatten(0, -2), self.attention_bias(hidden.shape[1])
        return batch.to_padded(self.backend(self, rows, batch.layout, passes, bias))

    def pool(self, first: Tensor) -> Tensor:
        """The vector that sentence-level heads read, from the hidden state of [CLS]: (B, H) in, (B, H) out."""
        return torch.tanh(self.pooler(first))

    def embed(
        self, words: Tensor, positions: Tensor, segments: Tensor | None, longest: int
    ) -> Tensor:  # (..., E) -> (..., H)
        self.config.check_length(longest)
        segments = torch.zeros_like(positions) if segments is None else segments
        # in transformers' order of addition, so that even the rounding is the same
        embedded = words + self.segment_embeddings(segments) + self.position_embeddings(positions)
        return self.project(self.embedding_dropout(self.embedding_norm(embedded)))

    def run_passes(
        self,
        hidden: Tensor,
        layout: Layout,
        passes: Passes,
        bias: Tensor | None,
        rows: Tensor | None,
        block: RunBlock | None = None,
    ) -> Tensor:  # (T, H), or (R, H)
        """The loop in eager PyTorch: the reference for all backends, and what runs where none is faster.

        `block` takes the place of `run_block`; it may be the same, compiled.
        """
        implementation = self.attention_for(hidden, layout, bias)  # chosen once, where no compiler has to follow
        for layer in range(passes.start, passes.stop):
            selected = rows if layer == passes.stop - 1 else None
            arguments = hidden, layer, passes.total, layout, bias, implementation, selected, block or run_block
            if self.gradient_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(self._run_layer, *arguments, use_reentrant=False)
            else:
                hidden = self._run_layer(*arguments)
        return hidden

    def _run_layer(
        self,
        hidden: Tensor,
        layer: int,
        passes: int,
        layout: Layout,
        bias: Tensor | None,
        implementation: AttentionImplementation,
        rows: Tensor | None,
        block: RunBlock,
    ) -> Tensor:  # (T, H), or (R, H)
        """One pass: the blocks of its layer's group, in order."""
        config, hook = self.config, (self.adapters, self.weight_at)
        if self.depth_embeddings is not None:
            hidden = hidden + self.depth_embeddings.weight[layer]
        for inner in range(config.inner_group_num):
            numbers = config.block_at("attention", layer, inner), config.block_at("ffn", layer, inner)
            attention, ffn = self.attention[numbers[0]], self.ffn[numbers[1]]
            # The hook is called out here, so that one compiled block serves every pass and every hook.
            attention_weights = pass_weights(attention, f"attention.{numbers[0]}", layer, passes, *hook)
            ffn_weights = pass_weights(ffn, f"ffn.{numbers[1]}", layer, passes, *hook)
            selected = rows if inner == config.inner_group_num - 1 else None
            hidden = block(
                attention, ffn, hidden, layout, bias, implementation, attention_weights, ffn_weights, selected
            )
        return hidden

    def attention_for(self, hidden: Tensor, layout: Layout, bias: Tensor | None) -> AttentionImplementation:
        """How attention is computed: as the caller has set it, or the fastest way."""
        if self.attention_implementation != "auto":
            return self.attention_implementation
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        return choose_attention(compute_dtype(hidden), hidden.is_cuda, layout, bias, dropout)

    def attention_bias(self, length: int) -> Tensor | None:  # (N, L, L)
        return None if self.relative_bias is None else relative_position_bias(self.relative_bias, length)

    def depths_of(self, depth: int | None = None) -> dict[str, tuple[int, ...]]:
        """Which passes use a parameter, by name; see `pass_weights.depths_of`."""
        return depths_of(self, self.config, self.checked_depth(depth))

    def checked_depth(self, depth: int | None) -> int:
        return self.config.checked_depth(depth)
