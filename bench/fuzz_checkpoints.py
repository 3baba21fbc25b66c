"""Damaged and hostile checkpoints by the hundred thousand: each must be read or refused in one clear line.

    python bench/fuzz_checkpoints.py --mutations 100000

Small checkpoints of every kind that litebert reads are changed at random: bytes of any file, entries of TensorFlow's
index with its check sums made right again, shapes and types of tensors in files that are whole, values of settings.
Ends with 1 if anything but a CheckpointError came out, if a message had more than one line, or if memory grew beyond
what the files weigh.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from litebert.errors import CheckpointError
from litebert.interop.formats import load_folder, read_any
from litebert.interop.google_names import to_google
from litebert.interop.huggingface import named_tensors
from litebert.interop.leveldb_table import encode_table, read_table

FIXTURES = Path(__file__).parent.parent / "tests" / "interop" / "fixtures"
CHECKPOINTS = ("tensorflow/google", "tensorflow/google_shards", "tensorflow/hub/module", "tensorflow/albert_zh",
               "tensorflow/objects", "tensorflow/bert", "keras/masked_lm", "keras/classifier")  # fmt: skip
TENSOR_FILES = (".pt", ".bin", ".safetensors")
NAMES = ("classifier.weight", "qa_outputs.weight", "embeddings.LayerNorm.gamma", "embeddings.position_ids",
         "predictions.decoder.weight", "bert.embeddings.word_embeddings_2.weight", "predictions.bias.litebert_scale",
         "albert.encoder.albert_layer_groups.99999999999.albert_layers.0.ffn.weight")  # fmt: skip
"""Of what may stand in a file beside what is there."""
NOT_READ = (".npz", ".pb")
MEMORY_BYTES = 4 << 30
"""Of address space that a mutation may take beyond what the program has; a huge allocation fails at once."""
HOSTILE: tuple[Any, ...] = (
    None, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), True, "", "x", "../../etc/passwd", [], [[]], {},
    "gelu", "preln", "bert", ["AlbertForSequenceClassification"], {"sharing": "none"}, {"task": "translate"},
)  # fmt: skip


def copy_checkpoints(folder: Path) -> list[Path]:
    """One folder of every kind."""
    made = []
    for name in CHECKPOINTS:
        copy = folder / name.replace("/", "-")
        shutil.copytree(FIXTURES / name, copy)
        made.append(copy)
    model = load_folder(FIXTURES / "tensorflow" / "google")
    tokenizer = model.tokenizer
    assert tokenizer is not None
    tensors = dict(named_tensors(model.model))
    for name, weights in (("safetensors", "model.safetensors"), ("bin", "pytorch_model.bin"), ("file", "albert.pt"),
                          ("lone", "pytorch_model.bin")):  # fmt: skip
        copy = folder / name
        copy.mkdir()
        tokenizer.save(copy)
        settings = json.loads((FIXTURES / "tensorflow/google/albert_config.json").read_text())
        if name != "file":
            settings |= {"model_type": "albert"}
        (copy / ("settings.json" if name == "file" else "config.json")).write_text(json.dumps(settings))
        if name == "safetensors":
            safetensors.torch.save_file(tensors, copy / weights)
        else:
            torch.save(by_lone_patients_names(tensors) if name == "lone" else tensors, copy / weights)
        made.append(copy)
    return made


def by_lone_patients_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Google's names as lonePatient's English code spells them, matrices as PyTorch has them."""
    found = {}
    for name, tensor in tensors.items():
        google, _ = to_google(name) or ("", False)
        stem, _, leaf = google.rpartition("/")
        if leaf.endswith("_embeddings"):
            stem, leaf = google, "weight"
        part = "bias" if leaf in ("bias", "beta", "output_bias") else "weight"
        spelled = stem.replace("attention_1", "attention").replace("ffn_1", "ffn")
        for kind in ("inner_group_", "group_"):
            spelled = spelled.replace(f"/{kind}", f"/{kind[:-1]}/")
        found[f"{spelled}/{part}".replace("/", ".")] = tensor
    return found


def mutated(content: bytes, path: Path, chance: random.Random) -> bytes:
    """A file as it might arrive."""
    if path.suffix == ".index" and chance.random() < 0.6:
        return _other_index(path, chance)
    if path.suffix == ".json" and chance.random() < 0.8:
        return _other_settings(content, chance)
    if path.suffix in TENSOR_FILES and chance.random() < 0.6:
        return _other_tensors(content, path, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        content = chance.choice(BYTES)(content, chance)
    return content


def _other_index(path: Path, chance: random.Random) -> bytes:
    """With entries changed and check sums that are right."""
    entries = dict(read_table(path))
    for _ in range(chance.choice((1, 1, 3))):
        key = chance.choice(sorted(entries))
        value, action = entries[key], chance.random()
        if action < 0.5:
            entries[key] = chance.choice(BYTES)(value, chance)
        elif action < 0.7:
            entries[key] = chance.choice(list(entries.values()))
        elif action < 0.85:
            entries[chance.choice(BYTES)(key, chance)[:4096]] = value
        elif len(entries) > 1:
            del entries[key]
    return encode_table(entries)


def _other_tensors(content: bytes, path: Path, chance: random.Random) -> bytes:
    """A whole file with tensors of other shapes, types and names."""
    plain = path.suffix == ".safetensors"
    before = safetensors.torch.load(content) if plain else torch.load(io.BytesIO(content), weights_only=True)
    tensors = dict(before)
    for _ in range(chance.choice((1, 1, 3))):
        name = chance.choice(sorted(before))
        change = chance.choice(TENSORS if plain else TENSORS + NOT_IN_SAFETENSORS)
        tensors[chance.choice((name, name, name, *NAMES))] = change(before[name].clone(), chance)
    if plain:
        return safetensors.torch.save({name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def _cast(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool,
             torch.complex64, torch.float8_e4m3fn)  # fmt: skip
    return tensor.to(chance.choice(kinds))


def _reshaped(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    shapes = ((), (0,), (1,), (0, 16), (16, 0), (1, 1), (3, 16), (16, 16), (2, 2, 2), (1,) * 9, (0, 1 << 40))
    return torch.ones(chance.choice(shapes))


def _filled(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return torch.full_like(tensor, chance.choice((float("nan"), float("inf"), 1e38, -0.0)))


def _expanded(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    sizes = chance.choice((tuple(tensor.shape), (1 << 40,), (1 << 20, 1 << 20), (10**7, 8)))
    return torch.zeros(1).expand(sizes) if sizes else tensor


def _of_another_form(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return chance.choice((torch.Tensor.to_sparse, _on_meta, torch.Tensor.requires_grad_))(tensor)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


def _turned(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return tensor.mT if tensor.dim() > 1 else tensor.flip(0) if tensor.dim() else tensor


def _other_settings(content: bytes, chance: random.Random) -> bytes:
    try:
        settings = json.loads(content)
    except ValueError:
        return content
    if isinstance(settings, dict) and settings:
        inner = settings.get("config") if chance.random() < 0.5 else None
        chosen = inner if isinstance(inner, dict) and inner else settings
        key = chance.choice([*chosen, "litebert", "ln_type", "model_type", "num_hidden_groups"])
        chosen[key] = chance.choice(HOSTILE)
        if chance.random() < 0.2:
            chosen.pop(chance.choice(list(chosen)))
    return json.dumps(settings).encode()


def _flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\0"
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _overwrite(content: bytes, chance: random.Random) -> bytes:
    at, size = chance.randrange(len(content) + 1), chance.choice((1, 2, 4, 8, 64))
    piece = chance.choice((bytes(size), b"\xff" * size, chance.randbytes(size), b"\x80" * size))
    return content[:at] + piece + content[at + size :]


def _insert(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.randbytes(chance.choice((1, 3, 40))) + content[at:]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _remove(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + content[at + chance.choice((1, 4, 100)) :]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(content) + 1), chance.choice((2, 16, 200))
    at = chance.randrange(len(content) + 1)
    return content[:at] + content[start : start + size] + content[at:]


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _flip, _overwrite, _insert, _cut, _remove, _repeat)


TENSORS = (_cast, _reshaped, _filled, _turned)
NOT_IN_SAFETENSORS = (_expanded, _of_another_form)


def outcomes(mutations: int, seed: int, work: Path, only: tuple[str, ...] = ("",)) -> Iterator[tuple[str, str]]:
    """(what was changed, what came of it) of each mutation; what begins with "!" must not be.

    `only`: how the names of files end that are changed.
    """
    folders = copy_checkpoints(work)
    files = [(folder, path) for folder in folders for path in sorted(folder.rglob("*"))
             if path.is_file() and path.suffix not in NOT_READ and path.name.endswith(only)]  # fmt: skip
    for number in range(mutations):
        chance = random.Random(f"{seed}.{number}")
        folder, path = chance.choice(files)
        before = path.read_bytes()
        path.write_bytes(mutated(before, path, chance))
        what = f"{seed}.{number} {path.relative_to(work)}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (load_folder if chance.random() < 0.7 else read_any)(folder)
            yield what, "read"
        except CheckpointError as error:
            lines = str(error).splitlines()
            yield what, "refused" if len(lines) == 1 else f"! {len(lines)} lines: {lines[:2]}"
        except Exception as error:  # noqa: BLE001, which is looked for
            yield what, f"! {type(error).__name__}: {error}"
        finally:
            path.write_bytes(before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: Counter[str] = Counter()
    begin, start_bytes = time.perf_counter(), None
    with tempfile.TemporaryDirectory() as work:
        for number, (what, outcome) in enumerate(outcomes(options.mutations, options.seed, Path(work)), 1):
            if start_bytes is None:
                start_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
            found[outcome.split(":")[0]] += 1
            if outcome.startswith("!"):
                print(what, outcome, flush=True)
            if number % 10_000 == 0:
                print(f"{number:,} in {time.perf_counter() - begin:.0f} s: {dict(found)}", flush=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - (start_bytes or 0)
    print(f"{options.mutations:,} mutations in {time.perf_counter() - begin:.0f} s: {dict(found)}; "
          f"memory grew by {grown / 1e6:.0f} MB")  # fmt: skip
    return int(any(name.startswith("!") for name in found) or grown > 1 << 29)


if __name__ == "__main__":
    sys.exit(main())
