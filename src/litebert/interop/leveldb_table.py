"""A table of sorted keys and values, as LevelDB writes it and TensorFlow keeps the index of a checkpoint in it.

The file is a row of blocks and a footer of 48 bytes, which says where the block is that says where the others are.
After each block stand a byte that tells how it is packed and a check sum. Within a block a key says how much of the
one before it goes on, and every sixteenth is written out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from litebert.errors import CheckpointError
from litebert.interop.crc32c import crc32c, mask_checksum

MAGIC = bytes.fromhex("57fb808b247547db")
TABLE_LIMIT_BYTES = 16 << 20
"""Of a file, and of what its blocks unpack to; that of an ALBERT has some thousands."""
KEY_LIMIT_BYTES, ENTRY_LIMIT = 1 << 12, 100_000
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_UNCOMPRESSED, _SNAPPY = 0, 1
_BLOCK_BYTES, _RESTART_EVERY = 1 << 12, 16


class DamagedTableError(ValueError):
    """What is wrong with some bytes; who reads them adds the file and the remedy."""


def is_table(path: Path) -> bool:
    """Does the file end as a table does?"""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(MAGIC)))
        return size >= _FOOTER_BYTES and file.read() == MAGIC


def read_table(path: Path) -> dict[bytes, bytes]:
    """All keys and values, in order. Every block is held against its check sum."""
    try:
        size = path.stat().st_size
        if size > TABLE_LIMIT_BYTES:
            raise DamagedTableError(f"{size:,} bytes is over the limit of {TABLE_LIMIT_BYTES:,} for an index")
        content = path.read_bytes()
        if len(content) < _FOOTER_BYTES or not content.endswith(MAGIC):
            raise DamagedTableError("it does not end as a table does, so it was cut short or is something else")
        return _read_entries(content)
    except DamagedTableError as error:
        raise CheckpointError(f"{path}: not the index of a TensorFlow checkpoint, or damaged ({error}); "
                              "copy or download it again") from error  # fmt: skip
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def encode_table(entries: Mapping[bytes, bytes]) -> bytes:
    """The bytes of a table."""
    written, places = bytearray(), {}
    for block in _split_blocks(sorted(entries.items())):
        places[block[-1][0]] = append_block(written, encode_block(block))
    nothing = append_block(written, encode_block([]))
    index = append_block(written, encode_block(sorted(places.items())))
    return bytes(written) + (nothing + index).ljust(_FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


def decode_varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits to a byte, lowest first, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise DamagedTableError("a number does not end")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def encode_varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _read_entries(content: bytes) -> dict[bytes, bytes]:
    footer = content[-_FOOTER_BYTES:]
    _, at = decode_varint(footer, 0)  # the first two numbers speak of a block that is always empty
    _, at = decode_varint(footer, at)
    index, _ = _read_block(content, footer[at:], 0)
    entries: dict[bytes, bytes] = {}
    unpacked = end = 0
    for _, handle in _block_entries(index):
        block, end = _read_block(content, handle, end)
        unpacked += len(block)
        if unpacked > TABLE_LIMIT_BYTES:
            raise DamagedTableError(f"its blocks unpack to more than {TABLE_LIMIT_BYTES:,} bytes")
        last = next(reversed(entries), None)
        for key, value in _block_entries(block):
            if last is not None and key <= last:
                raise DamagedTableError(f"the key {key!r} stands after {last!r}")
            if len(entries) == ENTRY_LIMIT:
                raise DamagedTableError(f"it has more than {ENTRY_LIMIT:,} entries")
            entries[key], last = value, key
    return entries


def _read_block(content: bytes, handle: bytes, after: int) -> tuple[bytes, int]:
    """A block, which may not begin before `after`, and where it ends. Blocks that overlap would unpack without end."""
    start, at = decode_varint(handle, 0)
    size, _ = decode_varint(handle, at)
    end = start + size
    if start < after or end + _TRAILER_BYTES > len(content) - _FOOTER_BYTES:
        raise DamagedTableError(f"a block of {size:,} bytes at {start:,} does not fit where it should stand")
    packing, checksum = struct.unpack_from("<BI", content, end)
    if mask_checksum(crc32c(memoryview(content)[start : end + 1])) != checksum:
        raise DamagedTableError(f"the check sum of the block at {start:,} is wrong")
    if packing not in (_UNCOMPRESSED, _SNAPPY):
        raise DamagedTableError(f"the block at {start:,} is packed in way {packing}, which is not known")
    block = content[start:end]
    return (snappy_decompress(block) if packing == _SNAPPY else block), end + _TRAILER_BYTES


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise DamagedTableError("a block is too short")
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    if end < 0:
        raise DamagedTableError("a block has more restarts than bytes")
    at, key = 0, b""
    while at < end:
        shared, at = decode_varint(block, at)
        own, at = decode_varint(block, at)
        size, at = decode_varint(block, at)
        if shared > len(key) or at + own + size > end or shared + own > KEY_LIMIT_BYTES:
            raise DamagedTableError("a key or a value reaches beyond its block")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


def snappy_decompress(packed: bytes) -> bytes:
    """Unpack what snappy packed: a row of literals and of repetitions of what came before."""
    size, at = decode_varint(packed, 0)
    if size > TABLE_LIMIT_BYTES:
        raise DamagedTableError(f"a block says that it unpacks to {size:,} bytes")
    unpacked = bytearray()
    while at < len(packed):
        kind, number = packed[at] & 3, packed[at] >> 2
        at += 1
        if kind == 0:
            extra = max(0, number - 59)
            length = (int.from_bytes(packed[at : at + extra], "little") if extra else number) + 1
            at += extra + length
            unpacked += packed[at - length : at]
            whole = at <= len(packed)
        else:
            wide = (0, 1, 2, 4)[kind]
            offset = int.from_bytes(packed[at : at + wide], "little") | ((number >> 3) << 8 if kind == 1 else 0)
            length = 4 + (number & 7) if kind == 1 else number + 1
            at += wide
            whole = at <= len(packed) and 0 < offset <= len(unpacked)
            if whole:
                repeated = bytes(unpacked[-offset:])
                unpacked += (repeated * (length // offset + 1))[:length]
        if not whole or len(unpacked) > size:
            raise DamagedTableError("a packed block is damaged")
    if len(unpacked) != size:
        raise DamagedTableError(f"a packed block gives {len(unpacked):,} bytes and not {size:,}")
    return bytes(unpacked)


def _split_blocks(entries: list[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    block, size = [], 0
    for key, value in entries:
        block.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def encode_block(entries: list[tuple[bytes, bytes]]) -> bytes:
    written, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % _RESTART_EVERY == 0:
            restarts.append(len(written))
        else:
            while shared < min(len(before), len(key)) and before[shared] == key[shared]:
                shared += 1
        written += (
            encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value)) + key[shared:] + value
        )
        before = key
    restarts = restarts or [0]
    return bytes(written) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def append_block(written: bytearray, block: bytes) -> bytes:
    """Add a block to what is written; says where it stands."""
    handle = encode_varint(len(written)) + encode_varint(len(block))
    block += bytes([_UNCOMPRESSED])
    written += block + struct.pack("<I", mask_checksum(crc32c(block)))
    return handle
