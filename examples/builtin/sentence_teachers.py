"""Teachers of sentence vectors: BERTs whose concatenated vectors are the target, and texts as token ids.

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
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, BertModel

TEACHER_TOKENS = 1 << 17
"""In one batch of a teacher."""
SAMPLE = 200_000
"""Texts from which the principal components are computed."""
WORKER: tuple[list[tokenizers.Tokenizer], int]
"""Tokenizers and the maximum length, in each process of `tokenise`."""


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

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> BertModel:
        if (self.folder / "model.onnx").is_file():
            model = BertModel(BertConfig.from_dict(json.loads((self.folder / "config.json").read_text())), False)
            model.load_state_dict(dequantised(self.folder / "model.onnx"))
        else:
            model = AutoModel.from_pretrained(self.folder, add_pooling_layer=False)
        nn.Module.to(model, device, dtype)
        return model.eval()

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
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def dequantise(stem: str) -> np.ndarray:
        return (values[f"{stem}_quantized"].astype(np.float32) - values[f"{stem}_zero_point"]) * values[f"{stem}_scale"]

    weights = {name: value for name, value in values.items() if name.startswith(("embeddings.LayerNorm", "encoder."))}
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.name.startswith("/encoder/"):
            name = node.name[1:].rsplit("/", 1)[0].replace("/", ".")
            weights[f"{name}.weight"] = dequantise(node.input[1].removesuffix("_quantized")).T
    for table in ("word", "position", "token_type"):
        name = f"embeddings.{table}_embeddings.weight"
        weights[name] = dequantise(name)
    return {name: torch.from_numpy(np.array(value, np.float32)) for name, value in weights.items()}


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
        ids, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
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
    """All teachers read the same ids, so they need the same vocabulary."""
    first, *others = [teacher.tokenizer().get_vocab() for teacher in teachers]
    for teacher, other in zip(teachers[1:], others, strict=True):
        if other != first:
            raise SystemExit(f"{teacher.folder}: another vocabulary than {teachers[0].folder}; teachers must share one")


def plain_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer without padding and truncation."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenise(file: Path, folders: Sequence[Path], max_length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For the tokenizer of each folder, ids of all texts of a file end to end and their lengths; cached beside it."""
    cache = file.with_suffix(f".{max_length}.npz")
    if not cache.is_file():
        start_time = time.perf_counter()
        texts = lzma.decompress(file.read_bytes()).decode("utf-8").splitlines()
        chunks = [texts[start : start + 5000] for start in range(0, len(texts), 5000)]
        with multiprocessing.get_context("fork").Pool(initializer=start_worker, initargs=(folders, max_length)) as pool:
            parts = pool.map(encode_chunk, chunks, chunksize=1)
        joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        np.savez(cache.with_suffix(".part.npz"), *joined)
        cache.with_suffix(".part.npz").rename(cache)
        print(f"{file.name}: {len(texts):,} texts, {time.perf_counter() - start_time:.0f} s", flush=True)
    with np.load(cache) as arrays:
        values = list(arrays.values())
    return list(zip(values[::2], values[1::2], strict=True))


def start_worker(folders: Sequence[Path], max_length: int) -> None:
    global WORKER
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    WORKER = [plain_tokenizer(folder) for folder in folders], max_length


def encode_chunk(texts: list[str]) -> list[np.ndarray]:
    """For each tokenizer, the ids of all texts end to end and their lengths."""
    loaded, max_length = WORKER
    arrays: list[np.ndarray] = []
    for tokenizer in loaded:
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
        ids = [row if len(row) <= max_length else [*row[: max_length - 1], row[-1]] for row in ids]
        arrays += [np.concatenate(ids).astype(np.uint16), np.array([len(row) for row in ids], np.uint8)]
    return arrays


@torch.inference_mode()
def targets_of(teachers: Sequence[Teacher], tokens: Tokens, size: int, basis_file: Path) -> Tensor:  # (N, size) float16
    """The target of every text. The centre and the rotation are read from `basis_file`, or computed and saved there."""
    device, count = tokens.ids.device, len(tokens.lengths)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    models = [teacher.model(device, dtype) for teacher in teachers]
    widths = [model.config.hidden_size for model in models]
    raw = torch.empty(count, sum(widths), dtype=torch.float16, device=device)
    order, starts = tokens.lengths.argsort(descending=True), tokens.starts
    start_time, done = time.perf_counter(), 0
    while done < count:
        rows = order[done : done + max(1, TEACHER_TOKENS // int(tokens.lengths[order[done]] + 4))]
        batch = tokens.padded(starts, rows)
        parts = [teacher.vectors(model, *batch) for teacher, model in zip(teachers, models, strict=True)]
        raw[rows.to(device)] = torch.cat(parts, 1).half()
        done += len(rows)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"teachers read {count:,} texts in {time.perf_counter() - start_time:.0f} s", flush=True)

    def concatenated(vectors: Tensor, centre: Tensor) -> Tensor:
        each = zip((vectors.float() - centre).split(widths, 1), teachers, strict=True)
        return torch.cat([F.normalize(part, dim=1) * teacher.weight for part, teacher in each], 1)

    if not basis_file.is_file():
        centre = raw.mean(0, dtype=torch.float32)
        rows = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:SAMPLE]
        sample = concatenated(raw[rows.to(device)], centre)
        variances, directions = torch.linalg.eigh((sample.T @ sample).double() / len(sample))
        rotation = directions.flip(1)[:, :size].float().contiguous()
        safetensors.torch.save_file({"centre": centre.cpu(), "rotation": rotation.cpu()}, basis_file)
        print(
            f"{size} of {sum(widths)} components hold {variances[-size:].sum() / variances.sum():.4f} of the variance"
        )
    basis = {name: value.to(device) for name, value in safetensors.torch.load_file(basis_file).items()}
    targets = torch.empty(count, size, dtype=torch.float16, device=device)
    for part in torch.arange(count, device=device).split(1 << 18):
        targets[part] = F.normalize(concatenated(raw[part], basis["centre"]) @ basis["rotation"], dim=1).half()
    return targets.clone()
