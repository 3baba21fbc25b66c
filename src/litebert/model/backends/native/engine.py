"""The native int8 backend: all passes of a batch in one call of the compiled library.

Activations are quantized token by token, so an answer does not depend on the other texts of its batch.

Shapes: S sequences, L columns of the longest, T tokens in rows, R wanted rows, H hidden, V vocabulary, C classes,
D size of a sentence vector.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from ctypes import byref, pointer
from functools import lru_cache
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from litebert.errors import ConfigError, DataError
from litebert.model.backends.base import Backend, Passes, int8_batch_layout
from litebert.model.backends.native.build import NativeLibrary, native_library
from litebert.model.backends.native.structs import Batch, EarlyExit, Embeddings, LayerNorm, Pooling, addresses
from litebert.model.backends.native.weights import PackedWeights, weight_version, weights_of
from litebert.model.config import AlbertConfig, Half
from litebert.model.early_exit import checked_depths, embed_packed
from litebert.model.hooks import are_standard, has_own_hooks
from litebert.model.layout import BatchLayout, Layout, Packed

WORKSPACE_ALIGNMENT = 64
MAX_KEPT_WORKSPACE = 64 << 20
"""Bytes of workspace that a thread keeps from one batch to the next."""


class NativeInt8Backend(Backend):
    """Runs all passes in one call. `encoder` is an `Encoder`, which albert.py defines."""

    has_fast_paths = True

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._packed: PackedWeights | None = None
        self._storages: list[StorageWeakRef] = []
        """Of the packed weights: while these references live, no other storage has the same number."""
        self._thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy packs its weights anew."""
        return _restored, ()

    def __call__(
        self, encoder: Any, hidden: Tensor, layout: Layout, passes: Passes, bias: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:  # (T or R, H)  # fmt: skip
        _check_use(encoder, hidden)
        if passes.start >= passes.stop:
            return hidden
        with torch.no_grad():
            return self._run_passes(encoder, hidden, layout, range(passes.start, passes.stop), bias, rows)

    def batch_layout(
        self, encoder: Any, hidden: Tensor, mask: Tensor, passes: Passes, tokens: int | None
    ) -> BatchLayout:
        return int8_batch_layout(mask, tokens)

    def _run_passes(
        self, encoder: Any, hidden: Tensor, layout: Layout, passes: range, bias: Tensor | None, rows: Tensor | None
    ) -> Tensor:  # (T or R, H)
        hidden = hidden.float().contiguous()
        output = hidden.new_empty(len(hidden) if rows is None else len(rows), hidden.shape[1])
        if not output.numel():
            return output
        blocks, step_embeddings = _step_blocks(encoder.config, passes), _step_embeddings(encoder, passes)
        bias = None if bias is None else bias.float().contiguous()
        rows = None if rows is None else rows.to(torch.int64).contiguous()
        if isinstance(layout, Packed):
            starts = layout.starts.to(torch.int32)
        else:
            starts = torch.arange(0, len(hidden) + 1, layout.length, dtype=torch.int32, device="cpu")
        _check_bounds(starts, layout.length, rows, len(hidden))
        batch = Batch(
            *addresses(hidden, output, starts, blocks, step_embeddings, bias, rows), sequences=len(starts) - 1,
            steps=len(blocks), max_length=layout.length, wanted_count=0 if rows is None else len(rows),
        )  # fmt: skip
        self._run(self._packed_weights(encoder), batch)
        return output

    def classify_early(
        self, encoder: Any, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor, depths: Sequence[int],
        head: nn.Linear, threshold: float,
    ) -> tuple[Tensor, Tensor] | None:  # (S, C), (S,)  # fmt: skip
        """The logits of each sequence at the first of the depths at which a class is as likely as the threshold, and
        these depths. One call: evaluating the head in torch takes half as long as a pass of a short text."""
        if encoder.depth_embeddings is not None or not are_standard(encoder.pooler, head):
            return None
        depths = checked_depths(encoder, depths)
        hidden = embed_packed(encoder, input_ids, lengths, token_type_ids).float().contiguous()
        bias = encoder.attention_bias(int(lengths.max()))
        _check_use(encoder, hidden)
        starts, max_length = _sequence_starts(lengths, len(hidden))
        blocks = _step_blocks(encoder.config, range(depths[-1]))
        bias = None if bias is None else bias.float().contiguous()
        layers = (encoder.pooler, head)
        weights = [weight.detach().float().contiguous() for layer in layers for weight in layer.parameters()]
        exit_steps = torch.tensor(depths, dtype=torch.int32, device="cpu") * encoder.config.inner_group_num
        logits = torch.empty(len(lengths), len(head.bias), device="cpu")
        exit_of = torch.empty(len(lengths), dtype=torch.int32, device="cpu")
        early_exit = EarlyExit(
            *addresses(*weights, exit_steps, logits, exit_of), len(head.bias), len(depths), threshold
        )  # fmt: skip
        batch = Batch(
            *addresses(hidden, None, starts, blocks, None, bias, None), early_exit=pointer(early_exit),
            sequences=len(lengths), steps=len(blocks), max_length=max_length,
        )  # fmt: skip
        self._run(self._packed_weights(encoder), batch)
        return logits, torch.tensor(depths, device="cpu")[exit_of.long() - 1]

    def embed(
        self, encoder: Any, input_ids: Tensor, lengths: Tensor, token_type_ids: Tensor,
        linear: nn.Linear | None, token_weights: Tensor | None,
    ) -> Tensor | None:  # (S, D)  # fmt: skip
        """From packed token ids to the mean of the last hidden states, weighted by token (V,), through a linear map;
        None if a weight is not float32. One call: for a short text, the steps before and after the passes take torch as
        long as two or three passes."""
        if not len(lengths) or not _is_standard(encoder, linear):
            return None
        encoder.config.check_length(int(lengths.max()))
        bias = encoder.attention_bias(int(lengths.max()))
        norm, names = encoder.embedding_norm, ("word_embeddings", "segment_embeddings", "position_embeddings")
        tables = [getattr(encoder, name).weight for name in names]
        _check_use(encoder, tables[0])
        pooling_weights = (token_weights, *((None, None) if linear is None else (linear.weight, linear.bias)))
        used = (*tables, norm.weight, norm.bias, *pooling_weights)
        if not all(map(_is_readable, used)):
            return None
        packed = self._packed_weights(encoder)
        token_ids, token_type_ids = (ids.to(torch.int64).contiguous() for ids in (input_ids, token_type_ids))
        starts, max_length = _sequence_starts(lengths, len(token_ids))
        _check_pooling(encoder.config, len(tables[0]), linear, token_weights)
        if len(token_type_ids) != len(token_ids):
            raise DataError(
                f"{len(token_type_ids)} token_type_ids do not fit {len(token_ids)} input_ids; give one for each"
            )
        passes = range(encoder.checked_depth(encoder.depth))
        blocks, step_embeddings = _step_blocks(encoder.config, passes), _step_embeddings(encoder, passes)
        bias = None if bias is None else bias.float().contiguous()
        embeddings = Embeddings(
            *addresses(token_ids, token_type_ids, *tables), LayerNorm(*addresses(norm.weight, norm.bias)),
            *packed.projection, encoder.config.embedding_size, len(tables[0]), len(tables[1]),
        )  # fmt: skip
        size = encoder.config.hidden_size if linear is None else linear.out_features
        output = torch.empty(len(lengths), size, device="cpu")
        pooling = Pooling(*addresses(*pooling_weights, output), size)
        batch = Batch(
            *addresses(None, None, starts, blocks, step_embeddings, bias, None), embeddings=pointer(embeddings),
            pooling=pointer(pooling), sequences=len(lengths), steps=len(blocks), max_length=max_length,
        )  # fmt: skip
        if not self._library.functions.litebert_validate_ids(byref(batch)):
            raise DataError(
                f"input_ids must lie between 0 and {len(tables[0]) - 1} and token_type_ids between 0 and "
                f"{len(tables[1]) - 1}; is this the tokenizer that the model came with?"
            )
        self._run(packed, batch)
        return output

    def _run(self, packed: PackedWeights, batch: Batch) -> None:
        threads, functions = min(torch.get_num_threads(), len(os.sched_getaffinity(0))), self._library.functions
        arguments = byref(packed.network), byref(batch)
        memory = self._workspace(functions.litebert_workspace_size(*arguments, threads) + WORKSPACE_ALIGNMENT)
        batch.workspace = -(-memory.data_ptr() // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        functions.litebert_run(*arguments, threads, self._library.parallel, self._library.team_size)

    def _workspace(self, size: int) -> Tensor:
        """Memory of the calling thread, kept for its next batch unless it is large."""
        workspace: Tensor | None = getattr(self._thread, "workspace", None)
        if workspace is not None and len(workspace) >= size:
            return workspace
        workspace = torch.empty(size, dtype=torch.uint8, device="cpu")
        if size <= MAX_KEPT_WORKSPACE:
            self._thread.workspace = workspace
        return workspace

    def _packed_weights(self, encoder: Any) -> PackedWeights:
        """Packed again when the encoder's weights have changed."""
        weights = list(weights_of(encoder))
        version = tuple(map(weight_version, weights))
        if self._packed is None or self._packed.version != version:
            self._packed = PackedWeights(encoder, self._library, version)
            self._storages = [StorageWeakRef(weight.untyped_storage()) for weight in weights]
        return self._packed


def _is_readable(weight: Tensor | None) -> bool:
    """Whether the library reads it where it is."""
    return weight is None or (weight.dtype == torch.float32 and weight.is_contiguous())


def _is_standard(encoder: Any, linear: nn.Linear | None) -> bool:
    """Nothing is learned, and no hook or replaced layer wants to be called between token ids and vectors."""
    if encoder.training or torch.is_grad_enabled() or has_own_hooks(encoder):
        return False
    tables = (encoder.word_embeddings, encoder.segment_embeddings, encoder.position_embeddings)
    layers = (encoder.embedding_norm, encoder.embedding_dropout, encoder.project)
    return are_standard(*tables, *layers) and (linear is None or are_standard(linear))


def _check_use(encoder: Any, hidden: Tensor) -> None:
    if (encoder.training and torch.is_grad_enabled()) or encoder.weight_at is not None:
        raise ConfigError("an int8 model cannot be trained; train the model that it was quantized from")
    if hidden.device.type != "cpu":
        raise ConfigError(f"the model is on {hidden.device}, and int8 runs on CPUs only; move it with model.to('cpu')")


@lru_cache
def _step_blocks(config: AlbertConfig, passes: range) -> Tensor:  # (steps, 2)
    """The attention and the feed-forward block of each step."""
    steps = [(layer, inner) for layer in passes for inner in range(config.inner_group_num)]
    numbers = [[config.block_at(half, *step) for half in get_args(Half)] for step in steps]
    return torch.tensor(numbers, dtype=torch.int32, device="cpu")


def _step_embeddings(encoder: Any, passes: range) -> Tensor | None:  # (steps, H)
    """What is added before each step: the depth embedding, before the first step of a pass."""
    if encoder.depth_embeddings is None:
        return None
    inner = encoder.config.inner_group_num
    added: Tensor = encoder.depth_embeddings.weight.new_zeros(len(passes), inner, encoder.config.hidden_size)
    added[:, 0] = encoder.depth_embeddings.weight[list(passes)]
    return added.flatten(0, 1).float()


def _sequence_starts(lengths: Tensor, tokens: int) -> tuple[Tensor, int]:  # (S + 1,)
    """Where packed sequences start, each of a token or more, and the length of the longest."""
    starts, max_length = torch.zeros(len(lengths) + 1, dtype=torch.int32, device="cpu"), int(lengths.max())
    starts[1:] = lengths.cumsum(0)
    _check_bounds(starts, max_length, None, tokens, min_length=1)
    return starts, max_length


def _check_bounds(starts: Tensor, max_length: int, rows: Tensor | None, tokens: int, min_length: int = 0) -> None:
    """The library reads and writes unchecked."""
    lengths = starts.diff()
    if int(lengths.min()) < min_length or int(lengths.max()) > max_length or int(starts[-1]) != tokens:
        raise DataError(
            f"sequences of {lengths.tolist()} tokens do not fit {tokens} rows, or are not of {min_length} to "
            f"{max_length}"
        )
    if rows is not None and not 0 <= int(rows.min()) <= int(rows.max()) < tokens:
        raise DataError(f"wanted rows must lie between 0 and {tokens - 1}; there are {tokens} real tokens")


def _check_pooling(
    config: AlbertConfig, table_rows: int, linear: nn.Linear | None, token_weights: Tensor | None
) -> None:
    if linear is not None and linear.in_features != config.hidden_size:
        raise DataError(f"a linear map of {linear.in_features} inputs does not fit hidden_size={config.hidden_size}")
    if token_weights is not None and token_weights.shape != (table_rows,):
        raise DataError(f"{len(token_weights)} token weights do not fit a vocabulary of {table_rows}")


def _restored() -> NativeInt8Backend:
    library = native_library()
    if library is None:
        raise ConfigError(
            "this model was pickled with the native int8 engine, which cannot be compiled here (that needs a C++ "
            "compiler, and AVX2 or ARM's dot product extension); load its folder instead, which chooses another backend"
        )
    return NativeInt8Backend(library)
