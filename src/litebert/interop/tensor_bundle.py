"""TensorFlow's checkpoints without TensorFlow: an index of what stands where, and shards of plain numbers.

`NAME.index` is a table of tensors' names and, as protobuf messages, their types, shapes and places;
`NAME.data-00000-of-00003` and so on hold the numbers. Shards are mapped into memory, so that of a checkpoint with an
optimizer's states only the weights are read. Names of files come from the path that was given, never from the content.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from litebert.errors import CheckpointError
from litebert.files import atomic_path, atomic_write
from litebert.interop.crc32c import crc32c, mask_checksum
from litebert.interop.leveldb_table import DamagedTableError, decode_varint, encode_table, encode_varint, read_table
from litebert.interop.weights import WEIGHT_LIMIT_BYTES

INDEX_SUFFIX = ".index"
MAX_SHARDS, MAX_RANK = 4096, 8
FLOAT, STRING = 1, 7
WEIGHT_DTYPES = {FLOAT: "float32", 2: "float64", 14: "bfloat16", 19: "float16"}
"""TensorFlow's numbers for what a weight can be."""
OTHER_DTYPES = {3: "int32", 4: "uint8", 6: "int8", STRING: "string", 9: "int64", 10: "bool"}
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""In checkpoints of TensorFlow 2: what the names in them stand for."""

Message = dict[int, list[int | bytes]]


@dataclass(frozen=True)
class BundleEntry:
    """What the index says of a tensor."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool
    """Is it stored in parts, as a partitioned variable is?"""

    @property
    def kind(self) -> str:
        return WEIGHT_DTYPES.get(self.dtype) or OTHER_DTYPES.get(self.dtype) or f"type {self.dtype}"

    @property
    def is_weight(self) -> bool:
        return self.dtype in WEIGHT_DTYPES


class TensorBundle:
    """A checkpoint, open for reading. Nothing is read from the shards but what is asked for."""

    def __init__(self, index: Path) -> None:
        self.index = index
        self._shards: dict[int, mmap.mmap] = {}
        table = read_table(index)
        try:
            self._count = _shard_count(table.pop(b"", None))
            self.entries = {_decode_name(key): _decode_entry(value) for key, value in table.items()}
            self._check_ranges()
        except DamagedTableError as error:
            raise self._damaged(str(error)) from error

    def read(self, name: str) -> Tensor:
        """A weight, held against its check sum."""
        entry = self.entries[name]
        if entry.sliced:
            raise CheckpointError(f"{self.index}: {name} is stored in parts (a partitioned variable), which is not "
                                  "read; save the checkpoint again without a partitioner")  # fmt: skip
        kind = WEIGHT_DTYPES[entry.dtype]
        if entry.size != math.prod(entry.shape) * _item_size(kind):
            raise self._damaged(f"{name} of shape {entry.shape} cannot have {entry.size:,} bytes")
        if not entry.size and math.prod(max(size, 1) for size in entry.shape) > WEIGHT_LIMIT_BYTES:
            raise self._damaged(f"{name} of shape {entry.shape} is empty and larger than any weight")
        content = self._bytes_of(name)
        if mask_checksum(crc32c(content)) != entry.checksum:
            raise self._damaged(f"the check sum of {name} is wrong")
        if kind == "bfloat16":
            return torch.from_numpy(content.view("<i2").copy()).view(torch.bfloat16).reshape(entry.shape)
        plain = content.view(np.dtype(kind).newbyteorder("<")).astype(kind)
        return torch.from_numpy(plain.reshape(entry.shape))

    def names(self) -> dict[str, str]:
        """What each tensor is called by the program that made it: in checkpoints of objects the index has paths."""
        entry = self.entries.get(OBJECT_GRAPH)
        if entry is None or entry.dtype != STRING or entry.shape:
            return {name: name for name in self.entries}
        try:
            called = _object_graph_names(self._string(entry))
        except DamagedTableError as error:
            raise self._damaged(f"{OBJECT_GRAPH}: {error}") from error
        return {name: called.get(name, name) for name in self.entries}

    def shard_path(self, number: int) -> Path:
        stem = self.index.name.removesuffix(INDEX_SUFFIX)
        return self.index.with_name(f"{stem}.data-{number:05d}-of-{self._count:05d}")

    def _string(self, entry: BundleEntry) -> bytes:
        """A tensor of one text: its length, a check sum of that, the text."""
        content = self._bytes_of(OBJECT_GRAPH).tobytes()
        size, at = decode_varint(content, 0)
        if size != len(content) - at - 4:
            raise DamagedTableError(f"a text of {size:,} bytes does not fit the {len(content):,} of its tensor")
        checked = size.to_bytes(4 if size < 1 << 32 else 8, "little") + content[at:]
        if mask_checksum(crc32c(checked)) != entry.checksum:
            raise DamagedTableError("its check sum is wrong")
        return content[at + 4 :]

    def _bytes_of(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        shard = self._shard(entry.shard)
        if entry.offset + entry.size > len(shard):
            raise self._damaged(f"{name} reaches to byte {entry.offset + entry.size:,} of "
                                f"{self.shard_path(entry.shard).name}, which has {len(shard):,}")  # fmt: skip
        return np.frombuffer(shard, np.uint8, entry.size, entry.offset)

    def _shard(self, number: int) -> mmap.mmap:
        if number not in self._shards:
            path = self.shard_path(number)
            self._check_size(path)
            try:
                with path.open("rb") as file:
                    self._shards[number] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # an empty file cannot be mapped
                raise CheckpointError(f"{path}: cannot be read ({error}); a checkpoint is its .index and all of its "
                                      ".data files: put them beside each other") from error  # fmt: skip
        return self._shards[number]

    def _check_size(self, path: Path) -> None:
        """That of all shards which are open, for there may be thousands."""
        size = sum(map(len, self._shards.values())) + (path.stat().st_size if path.is_file() else 0)
        if size > WEIGHT_LIMIT_BYTES:
            raise CheckpointError(f"{path}: makes {size:,} bytes of the checkpoint, over the limit of "
                                  f"{WEIGHT_LIMIT_BYTES:,}; the largest ALBERT is under 1 GB")  # fmt: skip

    def _check_ranges(self) -> None:
        """No two tensors may claim the same bytes."""
        ends = [0] * self._count
        for name, entry in sorted(self.entries.items(), key=lambda one: (one[1].offset, one[1].size)):
            if entry.sliced:
                continue  # its parts have entries of their own
            if entry.shard >= self._count:
                raise DamagedTableError(f"{name} stands in shard {entry.shard} of {self._count}")
            if entry.offset < ends[entry.shard]:
                raise DamagedTableError(f"{name} overlaps another tensor")
            ends[entry.shard] = entry.offset + entry.size

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.index}: {what}; the checkpoint is damaged: copy or download it again")


def write_bundle(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint of one shard. The index comes last: without it there is no checkpoint."""
    entries, offset = {b"": b"\x08\x01\x1a\x02\x08\x01"}, 0  # one shard, little-endian, version 1
    with atomic_path(prefix.with_name(f"{prefix.name}.data-00000-of-00001")) as temporary, temporary.open("wb") as file:
        for name, tensor in sorted(tensors.items(), key=lambda one: one[0].encode()):
            content = tensor.detach().float().contiguous().numpy().astype("<f4").reshape(-1).view(np.uint8)
            file.write(content.data)
            entries[name.encode()] = _encode_entry(tuple(tensor.shape), offset, content)
            offset += len(content)
    atomic_write(prefix.with_name(prefix.name + INDEX_SUFFIX), encode_table(entries))


def _encode_entry(shape: tuple[int, ...], offset: int, content: np.ndarray) -> bytes:
    sizes = [b"\x08" + encode_varint(size) if size else b"" for size in shape]
    dimensions = b"".join(b"\x12" + encode_varint(len(size)) + size for size in sizes)
    place = b"\x20" + encode_varint(offset) if offset else b""  # what is zero is not written
    return (
        bytes([0x08, FLOAT, 0x12]) + encode_varint(len(dimensions)) + dimensions + place
        + b"\x28" + encode_varint(len(content)) + b"\x35" + struct.pack("<I", mask_checksum(crc32c(content)))
    )  # fmt: skip


def _shard_count(header: bytes | None) -> int:
    if header is None:
        raise DamagedTableError("the index does not say how many shards there are")
    message = _decode_message(header)
    count = _integer_field(message, 1)
    if not 1 <= count <= MAX_SHARDS:
        raise DamagedTableError(f"it speaks of {count:,} shards")
    if _integer_field(message, 2) != 0:
        raise DamagedTableError("it was written by a big-endian machine, which is not read")
    return count


def _decode_entry(content: bytes) -> BundleEntry:
    message = _decode_message(content)
    dimensions = _decode_message(_bytes_field(message, 2)).get(2, [])
    if len(dimensions) > MAX_RANK:
        raise DamagedTableError(f"a tensor has {len(dimensions)} dimensions")
    shape = tuple(_integer_field(_decode_message(size if isinstance(size, bytes) else b"\0"), 1) for size in dimensions)
    return BundleEntry(
        dtype=_integer_field(message, 1), shape=shape, shard=_integer_field(message, 3),
        offset=_integer_field(message, 4), size=_integer_field(message, 5), checksum=_integer_field(message, 6),
        sliced=7 in message,
    )  # fmt: skip


def _object_graph_names(graph: bytes) -> dict[str, str]:
    """Keys of the checkpoint, and the names of the variables behind them."""
    names = {}
    for node in _decode_message(graph).get(1, []):
        for attribute in _decode_message(node if isinstance(node, bytes) else b"\0").get(2, []):
            message = _decode_message(attribute if isinstance(attribute, bytes) else b"\0")
            name, key = _decode_name(_bytes_field(message, 2)), _decode_name(_bytes_field(message, 3))
            if name and key:
                names[key] = name.removesuffix(":0")
    return names


def _decode_message(content: bytes) -> Message:
    """A protobuf message: the values of each field, by its number."""
    values_by_field: Message = {}
    for number, value in _iterate_fields(content):
        values_by_field.setdefault(number, []).append(value)
    return values_by_field


def _iterate_fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        tag, at = decode_varint(content, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = decode_varint(content, at)
            yield number, value
            continue
        size, at = decode_varint(content, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if size < 0 or at + size > len(content) or number == 0:
            raise DamagedTableError("a message of the index is damaged")
        piece = content[at : at + size]
        yield number, piece if kind == 2 else int.from_bytes(piece, "little")
        at += size


def _integer_field(message: Message, field: int) -> int:
    value = message.get(field, [0])[-1]
    if not isinstance(value, int) or value >= 1 << 63:
        raise DamagedTableError(f"field {field} of a message is not a whole number from 0")
    return value


def _bytes_field(message: Message, field: int) -> bytes:
    value = message.get(field, [b""])[-1]
    if not isinstance(value, bytes):
        raise DamagedTableError(f"field {field} of a message is not text")
    return value


def _decode_name(content: bytes) -> str:
    try:
        name = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedTableError("a name is not UTF-8") from error
    if not name.isprintable():  # it would break the line in which it is named
        raise DamagedTableError(f"a name holds what cannot be printed: {name!a}")
    return name


def _item_size(kind: str) -> int:
    return 2 if kind == "bfloat16" else np.dtype(kind).itemsize
