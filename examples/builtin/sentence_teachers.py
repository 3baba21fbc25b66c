"""What teaches sentence vectors: BERTs whose vectors side by side are the target, and texts as both sides read them.

Shapes: N texts, B of a batch, L columns, T tokens end to end, D of the vectors.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors.torch
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, BertConfig, BertModel

TEACHER_TOKENS = 1 << 17
"""In one batch of a teacher."""
SAMPLE = 200_000
"""Texts from which the principal components are computed."""


@dataclass(frozen=True)
class Teacher:
    folder: Path
    pooling: str
    weight: float
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> Teacher:
        folder, pooling, weight, *prefix = text.split(",")
        if pooling not in ("mean", "cls"):
            raise argparse.ArgumentTypeError(f"pooling={pooling!r} must be mean or cls")
        return cls(Path(folder), pooling, float(weight), ",".join(prefix))

    def tokenizer(self) -> tokenizers.Tokenizer:
        return plain_tokenizer(self.folder)

    @cached_property
    def prefix_ids(self) -> list[int]:
        return self.tokenizer().encode(self.prefix, add_special_tokens=False).ids

    def model(self) -> BertModel:
        if not (self.folder / "model.onnx").is_file():
            return AutoModel.from_pretrained(self.folder, add_pooling_layer=False)
        weights = dequantised(self.folder / "model.onnx")
        model = BertModel(BertConfig.from_dict(json.loads((self.folder / "config.json").read_text())), False)
        model.load_state_dict(weights)
        return model

    def vectors(self, model: BertModel, ids: Tensor, lengths: Tensor) -> Tensor:  # (B, L), (B,) -> (B, D)
        prefix = ids.new_tensor(self.prefix_ids)
        ids = torch.cat([ids[:, :1], prefix.expand(len(ids), -1), ids[:, 1:]], 1)
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None] + len(prefix)  # (B, L)
        states = model(input_ids=ids, attention_mask=None if bool(real.all()) else real.long()).last_hidden_state
        if self.pooling == "cls":
            return F.normalize(states[:, 0].float(), dim=1)
        return F.normalize((states.float() * real[..., None]).sum(1), dim=1)


def dequantised(path: Path) -> dict[str, Tensor]:
    """The weights of an int8 ONNX graph of a BERT, under transformers' names."""
    import onnx

    graph = onnx.load(path).graph
    values = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}

    def real(stem: str) -> np.ndarray:
        return (values[f"{stem}_quantized"].astype(np.float32) - values[f"{stem}_zero_point"]) * values[f"{stem}_scale"]

    found = {name: value for name, value in values.items() if name.startswith(("embeddings.LayerNorm", "encoder."))}
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.name.startswith("/encoder/"):
            name = node.name[1:].rsplit("/", 1)[0].replace("/", ".")
            found[f"{name}.weight"] = real(node.input[1].removesuffix("_quantized")).T
    for table in ("word", "position", "token_type"):
        name = f"embeddings.{table}_embeddings.weight"
        found[name] = real(name)
    return {name: torch.from_numpy(np.array(value, np.float32)) for name, value in found.items()}


@dataclass(frozen=True)
class Tokens:
    """Framed ids of many texts, end to end."""

    ids: Tensor
    """(T,) uint16 or wider"""
    lengths: Tensor
    """(N,) int64, on the CPU"""

    @property
    def starts(self) -> Tensor:  # (N,)
        return self.lengths.cumsum(0) - self.lengths

    @staticmethod
    def joined(parts: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device) -> Tokens:
        ids, lengths = (np.concatenate(some) for some in zip(*parts, strict=True))
        return Tokens(torch.from_numpy(ids.astype(np.int32)).to(device), torch.from_numpy(lengths.astype(np.int64)))

    def packed(self, starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:  # (B,) -> (T,), (B,)
        """Ids of these texts end to end, and their lengths. `rows` are on the CPU, so the device need not be asked."""
        lengths, begins = self.lengths[rows], starts[rows]
        total, device = int(lengths.sum()), self.ids.device
        lengths, begins = lengths.to(device, non_blocking=True), begins.to(device, non_blocking=True)
        offset = (begins - lengths.cumsum(0) + lengths).repeat_interleave(lengths, output_size=total)
        return self.ids[torch.arange(total, device=device) + offset].long(), lengths

    def padded(self, starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:  # (B,) -> (B, L), (B,)
        ids, lengths = self.packed(starts, rows)
        real = torch.arange(int(self.lengths[rows].max()), device=ids.device) < lengths[:, None]
        return ids.new_zeros(real.shape).masked_scatter(real, ids), lengths


def check_vocabularies(teachers: Sequence[Teacher]) -> None:
    """They are given the same ids."""
    first, *others = [one.tokenizer().get_vocab() for one in teachers]
    for teacher, other in zip(teachers[1:], others, strict=True):
        if other != first:
            raise SystemExit(f"{teacher.folder}: another vocabulary than {teachers[0].folder}; all teachers need one")


def plain_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    found.no_padding()
    found.no_truncation()
    return found


def tokenise(file: Path, folders: Sequence[Path], max_length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For the tokenizer of each folder, ids of all texts of a file end to end and their lengths; kept beside it."""
    cache = file.with_suffix(f".{max_length}.npz")
    if not cache.is_file():
        began = time.perf_counter()
        texts = lzma.decompress(file.read_bytes()).decode("utf-8").splitlines()
        chunks = [texts[start : start + 5000] for start in range(0, len(texts), 5000)]
        with multiprocessing.get_context("fork").Pool(initializer=begin_worker, initargs=(folders, max_length)) as pool:
            parts = pool.map(encode_chunk, chunks, chunksize=1)
        joined = [np.concatenate(some) for some in zip(*parts, strict=True)]
        np.savez(cache.with_suffix(".part.npz"), *joined)
        cache.with_suffix(".part.npz").rename(cache)
        print(f"{file.name}: {len(texts):,} texts, {time.perf_counter() - began:.0f} s", flush=True)
    with np.load(cache) as arrays:
        values = list(arrays.values())
    return list(zip(values[::2], values[1::2], strict=True))


def begin_worker(folders: Sequence[Path], max_length: int) -> None:
    global WORKER
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    WORKER = [plain_tokenizer(folder) for folder in folders], max_length


def encode_chunk(texts: list[str]) -> list[np.ndarray]:
    found, max_length = [], WORKER[1]
    for tokenizer in WORKER[0]:
        ids = [one.ids for one in tokenizer.encode_batch_fast(texts)]
        ids = [one if len(one) <= max_length else [*one[: max_length - 1], one[-1]] for one in ids]
        found += [np.concatenate(ids).astype(np.uint16), np.array([len(one) for one in ids], np.uint8)]
    return found


@torch.inference_mode()
def teach(teachers: Sequence[Teacher], tokens: Tokens, size: int, kept: Path) -> Tensor:  # (N, size) float16
    """The target of every text. The centre and the rotation are read from `kept`, or computed and kept there."""
    device, count = tokens.ids.device, len(tokens.lengths)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    models = [teacher.model().to(device, dtype).eval() for teacher in teachers]
    raw = torch.empty(count, sum(model.config.hidden_size for model in models), dtype=torch.float16, device=device)
    order, starts = tokens.lengths.argsort(descending=True), tokens.starts
    began, done = time.perf_counter(), 0
    while done < count:
        rows = order[done : done + max(1, TEACHER_TOKENS // int(tokens.lengths[order[done]] + 4))]
        batch = tokens.padded(starts, rows)
        parts = [one.vectors(model, *batch) for one, model in zip(teachers, models, strict=True)]
        raw[rows.to(device)] = torch.cat(parts, 1).half()
        done += len(rows)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"teachers read {count:,} texts in {time.perf_counter() - began:.0f} s", flush=True)
    widths = [model.config.hidden_size for model in models]

    def centred(some: Tensor, centre: Tensor) -> Tensor:
        each = zip((some.float() - centre).split(widths, 1), teachers, strict=True)
        return torch.cat([F.normalize(part, dim=1) * teacher.weight for part, teacher in each], 1)

    if not kept.is_file():
        centre = raw.mean(0, dtype=torch.float32)
        rows = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:SAMPLE]
        sample = centred(raw[rows.to(device)], centre)
        variances, directions = torch.linalg.eigh((sample.T @ sample).double() / len(sample))
        rotation = directions.flip(1)[:, :size].float().contiguous()
        safetensors.torch.save_file({"centre": centre.cpu(), "rotation": rotation.cpu()}, kept)
        print(
            f"{size} of {sum(widths)} components hold {variances[-size:].sum() / variances.sum():.4f} of the variance"
        )
    basis = {name: value.to(device) for name, value in safetensors.torch.load_file(kept).items()}
    found = torch.empty(count, size, dtype=torch.float16, device=device)
    for part in torch.arange(count, device=device).split(1 << 18):
        found[part] = F.normalize(centred(raw[part], basis["centre"]) @ basis["rotation"], dim=1).half()
    return found.clone()
