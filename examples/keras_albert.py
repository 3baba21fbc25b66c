"""ALBERT in Keras 3, from the weights that litebert saves; prints how far the two are apart.

    pip install keras && python examples/keras_albert.py litebert-base-en

The folder's model.safetensors and config.json are all it needs. Keras runs on torch unless KERAS_BACKEND names
another backend. Shapes: B sequences of L columns, E embedding, H hidden, N heads, D = H / N.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import safetensors.torch
import torch
from keras import layers, ops

import litebert
from litebert import builtin

ACTIVATIONS = {
    "gelu_new": partial(ops.gelu, approximate=True),
    "gelu": partial(ops.gelu, approximate=False),
    "relu": ops.relu,
    "silu": ops.silu,
}
TOLERANCE = 1e-5


def dense(size: int, path: str, activation: Any = None) -> Any:
    return layers.Dense(size, activation, name=path.replace(".", "-"))  # Hugging Face's names; Keras allows no dots


def norm(config: dict[str, Any], path: str) -> Any:
    return layers.LayerNormalization(epsilon=config["layer_norm_eps"], name=path.replace(".", "-"))


class Block(layers.Layer):
    """Attention and feed-forward, each with a residual and a LayerNorm after it."""

    def __init__(self, config: dict[str, Any], path: str) -> None:
        super().__init__()
        hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.query, self.key, self.value, self.out = (
            dense(hidden, f"{path}.attention.{part}") for part in ("query", "key", "value", "dense")
        )
        self.attention_norm = norm(config, f"{path}.attention.LayerNorm")
        self.widen = dense(config["intermediate_size"], f"{path}.ffn", ACTIVATIONS[config["hidden_act"]])
        self.narrow = dense(hidden, f"{path}.ffn_output")
        self.norm = norm(config, f"{path}.full_layer_layer_norm")

    def split(self, rows: Any) -> Any:  # (B, L, H) -> (B, N, L, D)
        return ops.transpose(ops.reshape(rows, (*rows.shape[:2], self.heads, -1)), (0, 2, 1, 3))

    def call(self, rows: Any, mask: Any) -> Any:  # (B, L, H), (B, L)
        query, key, value = self.split(self.query(rows)), self.split(self.key(rows)), self.split(self.value(rows))
        scores = query @ ops.transpose(key, (0, 1, 3, 2)) / query.shape[-1] ** 0.5  # (B, N, L, L)
        scores = ops.where(mask[:, None, None, :], scores, -1e9)
        context = ops.reshape(ops.transpose(ops.softmax(scores) @ value, (0, 2, 1, 3)), rows.shape)
        rows = self.attention_norm(rows + self.out(context))
        return self.norm(rows + self.narrow(self.widen(rows)))


class Albert(keras.Model):
    """Embed small, project, and run the same few blocks again and again."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.num_layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
        sizes = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
        self.words, self.positions, self.segments = (
            layers.Embedding(config[size], config["embedding_size"], name=f"albert-embeddings-{kind}_embeddings")
            for kind, size in sizes.items()
        )
        self.norm = norm(config, "albert.embeddings.LayerNorm")
        self.project = dense(config["hidden_size"], "albert.encoder.embedding_hidden_mapping_in")
        path = "albert.encoder.albert_layer_groups.{}.albert_layers.{}"
        inner = range(config["inner_group_num"])
        self.groups = [[Block(config, path.format(group, number)) for number in inner] for group in range(groups)]

    def call(self, ids: Any, mask: Any, segments: Any) -> Any:  # (B, L) each -> (B, L, H)
        rows = self.words(ids) + self.segments(segments) + self.positions(ops.arange(ids.shape[1]))
        rows = self.project(self.norm(rows))
        for layer in range(self.num_layers):
            for block in self.groups[int(layer / (self.num_layers / len(self.groups)))]:
                rows = block(rows, mask)
        return rows


def load(folder: Path) -> Albert:
    """The Keras model of a folder that litebert or transformers saved."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "albert":  # int8, relative position bias, …
        sys.exit(f"{folder}: has more than a plain ALBERT; give another")
    model, zeros = Albert(config), np.zeros((1, 2), dtype="int32")
    model(zeros, zeros == 0, zeros)  # creates the weights
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    tensors = {name: tensor.float().numpy() for name, tensor in saved.items()}
    for variable in model.weights:
        layer, kind = variable.path.split("/")[-2:]
        tensor = tensors[f"{layer.replace('-', '.')}.{'bias' if kind in ('bias', 'beta') else 'weight'}"]
        variable.assign(tensor.T if kind == "kernel" else tensor)  # torch's matrices map rows to columns
    return model


def main(name: str) -> int:
    folder = builtin.FOLDERS.get(name, Path(name))
    theirs, ours = load(folder), litebert.load(folder, engine="torch")
    rows = [encoding.ids for encoding in ours.tokenizer.encode(["A lite BERT reads this.", "And that, again."])]
    ids = np.array([[*row, *[ours.tokenizer.pad_id] * (max(map(len, rows)) - len(row))] for row in rows])
    mask, segments = ids != ours.tokenizer.pad_id, np.zeros_like(ids)
    outputs = ops.convert_to_numpy(theirs(ids, mask, segments))
    with torch.no_grad():
        expected = ours.encoder(*map(torch.from_numpy, (ids, mask, segments))).numpy()
    difference = np.abs(outputs - expected)[mask].max()
    print(f"Keras {keras.__version__} on {keras.backend.backend()}, {ids.size} tokens: differs by {difference:.1e}")
    return int(difference > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "litebert-base-en"))
