"""Hidden states by the framework that a checkpoint was made for, beside ours.

TensorFlow has no ALBERT of its own, so Google's is written out here, from TensorFlow's own reader and operations.
Shapes: B sequences of L columns, H hidden, N heads.
"""

from __future__ import annotations

import math
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from litebert.interop.checkpoint_source import Checkpoint
from litebert.interop.google_names import SECOND_EMBEDDINGS, WORD_EMBEDDINGS
from litebert.interop.huggingface import build_model, parse_config
from litebert.interop.tensor_bundle import INDEX_SUFFIX, TensorBundle
from litebert.interop.weights import read_file
from litebert.model.config import AlbertConfig

SEQUENCE_COUNT, MAX_LENGTH = 3, 32
_GROUP_PARTS = ("attention_1/self", "attention_1/output/dense", "LayerNorm", "ffn_1/intermediate/dense",
             "ffn_1/intermediate/output/dense", "LayerNorm_1")  # fmt: skip
_SHARED_LAYER_PARTS = ("attention/self", "attention/output/dense", "attention/output/LayerNorm", "intermediate/dense",
              "output/dense", "output/LayerNorm")  # fmt: skip


def hidden_state_difference(source: Checkpoint) -> float | str:
    """The largest difference at real tokens, or why there is none."""
    framework = source.framework
    if not framework:
        return "not verified: no library of today computes this kind of checkpoint"
    if find_spec(framework) is None:
        return f"not verified: {framework.replace('_', '-')} is not installed here; it computes this kind of checkpoint"
    if own := _litebert_only_parts(source):
        return f"not verified: {framework.replace('_', '-')} has no ALBERT with {' and '.join(own)}"
    model, _ = build_model(source.folder, dict(source.settings), dict(source.tensors))
    inputs = _random_inputs(model.config)
    with torch.inference_mode():
        ours = model.encoder(*inputs)
    theirs = {"tensorflow": _run_tensorflow, "transformers": _run_transformers, "keras_hub": _run_keras}[framework]
    return float((ours - theirs(source, inputs))[inputs[1].bool()].abs().max())


def _litebert_only_parts(source: Checkpoint) -> list[str]:
    """What of the encoder litebert alone computes; another library would ignore it and give something else."""
    config, ours = parse_config(source.settings, source.folder), source.settings.get("litebert", {})
    parts = {
        "a relative bias": config.relative_attention_distance,
        "an embedding of depth": config.depth_embedding,
        "adapters": config.lora_rank,
        "weights in eight bits": "int8" in ours,
    }
    return [name for name, there in parts.items() if there]


def _random_inputs(config: AlbertConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Made-up ids, mask and segments; all sequences but the first have padding."""
    length = min(MAX_LENGTH, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (SEQUENCE_COUNT, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for row in range(1, SEQUENCE_COUNT):
        mask[row, max(1, length // (row + 1)) :] = 0
    segments = (torch.arange(length) >= length // 2).long() * mask * (config.type_vocab_size > 1)
    return ids, mask, segments


def _run_transformers(source: Checkpoint, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    transformers = import_module("transformers")
    ids, mask, segments = inputs
    transformers.logging.set_verbosity_error()
    options: dict[str, Any] = {"pretrained_model_name_or_path": source.path}
    if source.path.is_file():  # which need not be called as transformers calls it, nor its settings
        config = transformers.AlbertConfig.from_dict(source.settings)
        options = {"pretrained_model_name_or_path": None, "config": config, "state_dict": read_file(source.path)}
    model = transformers.AlbertModel.from_pretrained(**options).float().eval()
    with torch.inference_mode():
        return model(ids, attention_mask=mask, token_type_ids=segments).last_hidden_state


def _run_keras(source: Checkpoint, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    models = import_module("keras_hub").models
    ids, mask, segments = (tensor.numpy() for tensor in inputs)
    backbone = models.Backbone.from_preset(str(source.folder))
    states = backbone({"token_ids": ids, "segment_ids": segments, "padding_mask": mask})["sequence_output"]
    return torch.from_numpy(import_module("keras").ops.convert_to_numpy(states))


def _run_tensorflow(source: Checkpoint, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    network = _TensorFlowAlbert(source)
    return torch.from_numpy(network.hidden_states(*(tensor.numpy() for tensor in inputs)).numpy())


class _TensorFlowAlbert:
    """Google's ALBERT, and albert_zh's, of a checkpoint's variables."""

    def __init__(self, source: Checkpoint) -> None:
        self.tf = import_module("tensorflow")
        self.config = parse_config(source.settings, source.path)
        self._reader = self.tf.train.load_checkpoint(
            str(source.path.with_name(source.path.name.removesuffix(INDEX_SUFFIX)))
        )
        names = {name: key for key, name in TensorBundle(source.path).names().items()}
        prefix = next(
            name for name in names if name == WORD_EMBEDDINGS or name.endswith(f"/{WORD_EMBEDDINGS}")
        ).removesuffix(WORD_EMBEDDINGS)
        self._keys = {name.removeprefix(prefix): key for name, key in names.items()}

    def hidden_states(self, ids: Any, mask: Any, segments: Any) -> Any:  # (B, L) each -> (B, L, H)
        tf, config = self.tf, self.config
        rows = tf.gather(self._get(WORD_EMBEDDINGS), ids)
        if theirs := SECOND_EMBEDDINGS in self._keys:
            rows = rows @ self._get(SECOND_EMBEDDINGS)
        rows += tf.gather(self._get("bert/embeddings/token_type_embeddings"), segments)
        rows += self._get("bert/embeddings/position_embeddings")[: ids.shape[1]]
        rows = self._norm(rows, "bert/embeddings/LayerNorm")
        if "bert/encoder/embedding_hidden_mapping_in/kernel" in self._keys:
            rows = self._dense(rows, "bert/encoder/embedding_hidden_mapping_in")
        bias = (1 - tf.cast(mask, tf.float32))[:, None, None, :] * -10000.0
        for layer in range(config.num_hidden_layers):
            for inner in range(config.inner_group_num):
                group = int(layer / config.num_hidden_layers * config.num_hidden_groups)
                shared = f"bert/encoder/layer_shared/{_SHARED_LAYER_PARTS[1]}/kernel" in self._keys
                own = "layer_shared" if shared else f"layer_{layer}"
                scope = own if theirs else f"transformer/group_{group}/inner_group_{inner}"
                parts = _SHARED_LAYER_PARTS if theirs else _GROUP_PARTS
                rows = self._block(rows, bias, [f"bert/encoder/{scope}/{part}" for part in parts])
        return rows

    def _block(self, rows: Any, bias: Any, names: list[str]) -> Any:
        attend, out, first_norm, widen, narrow, last_norm = names
        rows = self._norm(rows + self._dense(self._attention(rows, bias, attend), out), first_norm)
        wide = self._dense(rows, widen)
        by_tanh = self.config.hidden_act == "gelu_new"
        wide = self.tf.nn.relu(wide) if self.config.hidden_act == "relu" else self.tf.nn.gelu(wide, approximate=by_tanh)
        return self._norm(rows + self._dense(wide, narrow), last_norm)

    def _attention(self, rows: Any, bias: Any, name: str) -> Any:
        tf, (batch, length, size), heads = self.tf, rows.shape, self.config.num_attention_heads
        parts = (self._dense(rows, f"{name}/{part}") for part in ("query", "key", "value"))
        query, key, value = (tf.reshape(part, (batch, length, heads, size // heads)) for part in parts)
        scores = tf.einsum("bqnd,bknd->bnqk", query, key) / math.sqrt(size // heads) + bias
        return tf.reshape(tf.einsum("bnqk,bknd->bqnd", tf.nn.softmax(scores), value), rows.shape)

    def _dense(self, rows: Any, name: str) -> Any:
        return rows @ self._get(f"{name}/kernel") + self._get(f"{name}/bias")

    def _norm(self, rows: Any, name: str) -> Any:
        mean, variance = self.tf.nn.moments(rows, axes=[-1], keepdims=True)
        return (rows - mean) / self.tf.sqrt(variance + 1e-12) * self._get(f"{name}/gamma") + self._get(f"{name}/beta")

    def _get(self, name: str) -> Any:
        return self.tf.cast(self.tf.constant(self._reader.get_tensor(self._keys[name])), self.tf.float32)
