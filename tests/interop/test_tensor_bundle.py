"""TensorFlow's checkpoints read and written without TensorFlow: check sums, tables, bundles, and what is refused."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litebert.errors import CheckpointError
from litebert.interop.crc32c import CHUNK_BYTES, POLYNOMIAL, crc32c, mask_checksum
from litebert.interop.leveldb_table import (
    DamagedTableError,
    encode_table,
    encode_varint,
    read_table,
    snappy_decompress,
)
from litebert.interop.tensor_bundle import OBJECT_GRAPH, TensorBundle, write_bundle
from litebert.interop.weights import WEIGHT_LIMIT_BYTES

FIXTURES = Path(__file__).parent / "fixtures" / "tensorflow"
HEADER = b"\x08\x01\x1a\x02\x08\x01"


# --- check sums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "known"),
    [(b"", 0), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E),
     (b"123456789", 0xE3069283)],
)  # fmt: skip
def test_check_sums_are_those_of_the_standard(content: bytes, known: int) -> None:
    """RFC 3720, B.4."""
    assert crc32c(content) == known


def bit_by_bit(content: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (POLYNOMIAL if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@given(st.binary(max_size=300))
def test_check_sums_by_pairs_are_those_bit_by_bit(content: bytes) -> None:
    assert crc32c(content) == bit_by_bit(content)


@pytest.mark.parametrize("beyond", [-1, 0, 1, 3, 4, 7])
def test_check_sums_go_on_from_chunk_to_chunk(beyond: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES + beyond, dtype=np.uint8)
    halves = b"".join([content[:1000].tobytes(), content[1000:].tobytes()])
    assert crc32c(content) == crc32c(halves)
    assert crc32c(content) != crc32c(content[:-1])
    content[CHUNK_BYTES // 2] ^= 1
    assert crc32c(content) != crc32c(halves)


# --- tables -----------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.binary(max_size=60), st.binary(max_size=400), max_size=120))
def test_a_table_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[bytes, bytes]
) -> None:
    path = tmp_path_factory.mktemp("table") / "t.index"
    path.write_bytes(encode_table(entries))
    assert list(read_table(path).items()) == sorted(entries.items())


def test_a_real_packed_index_is_read(data: Path) -> None:
    """Older TensorFlows packed the blocks with snappy."""
    table = read_table(data / "checkpoints" / "albert_tiny_zh_index" / "albert_model.ckpt.index")
    assert len(table) == 98
    assert table[b""] == HEADER


@pytest.mark.parametrize(
    ("packed", "plain"),
    [(b"\x05\x10hello", b"hello"),
     (b"\x09\x08abc\x16\x03\x00", b"abcabcabc"),
     (b"\x08\x04ab\x09\x02", b"abababab"),
     (b"\x04\x04ab\x07\x02\0\0\0", b"abab"),
     (b"\x46\xf0\x45" + bytes(range(70)), bytes(range(70)))],
)  # fmt: skip
def test_snappy_is_unpacked(packed: bytes, plain: bytes) -> None:
    assert snappy_decompress(packed) == plain


@pytest.mark.parametrize(
    "packed",
    [b"\x05\x10hell", b"\x05\x10hello!",
     b"\x09\x08abc\x16\x04\x00", b"\x09\x08abc\x16\x00\x00", b"\x03\x08abc\x16\x03\x00",
     b"\xff\xff\xff\xff\x0f\x00a", b"\x80", b"\x04\xfc\xff\xff\xff\xffabcd"],
)  # fmt: skip
def test_snappy_that_lies_is_refused(packed: bytes) -> None:
    with pytest.raises(DamagedTableError):
        snappy_decompress(packed)


# --- bundles ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    chance = torch.Generator().manual_seed(0)
    tensors = {f"a/{n}": torch.randn(shape, generator=chance) for n, shape in enumerate([(3, 5), (7,), (), (0, 2)])}
    tensors |= {f"block/{n}/with/a/long/name": torch.randn(4, generator=chance) for n in range(200)}
    write_bundle(tmp_path / "model.ckpt", tensors)
    bundle = TensorBundle(tmp_path / "model.ckpt.index")
    assert bundle.entries.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(bundle.read(name), tensor), name


def test_our_index_has_the_very_entries_that_tensorflow_wrote(tmp_path: Path) -> None:
    """Not only do we read what we write: every entry, place and check sum included, is TensorFlow's own."""
    theirs = TensorBundle(FIXTURES / "albert_zh" / "albert_model.ckpt.index")
    write_bundle(tmp_path / "model.ckpt", {name: theirs.read(name) for name in theirs.entries})
    assert read_table(tmp_path / "model.ckpt.index") == read_table(theirs.index)
    data = ".data-00000-of-00001"
    assert (tmp_path / f"model.ckpt{data}").read_bytes() == theirs.index.with_suffix(data).read_bytes()


def test_only_the_shard_that_is_asked_for_is_opened(tmp_path: Path) -> None:
    copy = shutil.copytree(FIXTURES / "google_shards", tmp_path / "c")
    whole = TensorBundle(copy / "model.ckpt-best.index")
    (copy / "model.ckpt-best.data-00001-of-00003").unlink()
    read = 0
    for name, entry in whole.entries.items():
        if entry.shard == 1:
            with pytest.raises(CheckpointError, match=r"data-00001-of-00003: cannot be read .* put them beside"):
                TensorBundle(copy / "model.ckpt-best.index").read(name)
        else:
            whole.read(name)
            read += 1
    assert 0 < read < len(whole.entries)


def entry(*, dtype: int = 1, shape: tuple[int, ...] = (4,), shard: int = 0, offset: int = 0, size: int = 16,
          checksum: int = 0, more: bytes = b"") -> bytes:  # fmt: skip
    sizes = b"".join(b"\x12" + encode_varint(len(d)) + d for d in (b"\x08" + encode_varint(n) for n in shape))
    places = b"".join(bytes([tag]) + encode_varint(n) for tag, n in ((0x18, shard), (0x20, offset), (0x28, size)))
    return (
        bytes([8, dtype, 0x12])
        + encode_varint(len(sizes))
        + sizes
        + places
        + b"\x35"
        + struct.pack("<I", checksum)
        + more
    )


def bundle_of(folder: Path, content: bytes, entries: dict[str, bytes], header: bytes = HEADER) -> TensorBundle:
    (folder / "m.data-00000-of-00001").write_bytes(content)
    table = {name.encode(): value for name, value in entries.items()}
    (folder / "m.index").write_bytes(encode_table(table | {b"": header}))
    return TensorBundle(folder / "m.index")


@pytest.mark.parametrize(
    ("dtype", "kind"), [(2, torch.float64), (19, torch.float16), (14, torch.bfloat16), (1, torch.float32)]
)
def test_weights_of_every_precision_are_read(tmp_path: Path, dtype: int, kind: torch.dtype) -> None:
    tensor = torch.tensor([1.5, -2.0, 0.0, 96.0], dtype=kind)
    content = tensor.view(torch.uint8).numpy().tobytes()
    made = entry(dtype=dtype, size=len(content), checksum=mask_checksum(crc32c(content)))
    assert torch.equal(bundle_of(tmp_path, content, {"w": made}).read("w"), tensor)


CONTENT = bytes(range(64))
LIES: dict[str, tuple[dict[str, bytes], bytes, str]] = {
    "wrong check sum": ({"w": entry()}, HEADER, "the check sum of w is wrong"),
    "beyond the file": ({"w": entry(offset=60)}, HEADER, "w reaches to byte 76 of m.data-00000-of-00001, which has 64"),
    "a huge size": ({"w": entry(shape=(1 << 40,), size=1 << 42)}, HEADER, "reaches to byte 4,398,046,511,104"),
    "a shape without bytes": ({"w": entry(shape=(1 << 40,))}, HEADER, "cannot have 16 bytes"),
    "a product beyond every number": ({"w": entry(shape=(1 << 40,) * 8)}, HEADER, "cannot have 16 bytes"),
    "nothing of a huge shape": ({"w": entry(shape=(0, 1 << 62), size=0)}, HEADER, "is empty and larger than"),
    "overlapping": ({"v": entry(), "w": entry(offset=8)}, HEADER, "w overlaps another tensor"),
    "the same bytes": ({"v": entry(), "w": entry()}, HEADER, "w overlaps another tensor"),
    "no such shard": ({"w": entry(shard=1)}, HEADER, "w stands in shard 1 of 1"),
    "many shards": ({"w": entry()}, b"\x08\xff\xff\x03", "65,535 shards"),
    "no shards": ({"w": entry()}, b"", "speaks of 0 shards"),
    "big-endian": ({"w": entry()}, HEADER + b"\x10\x01", "big-endian"),
    "too many dimensions": ({"w": entry(shape=(1,) * 9)}, HEADER, "9 dimensions"),
    "a negative offset": ({"w": entry(offset=(1 << 64) - 1)}, HEADER, "not a whole number from 0"),
    "not a message": ({"w": b"\x0f\xff"}, HEADER, "damaged"),
    "in parts": ({"w": entry(more=b"\x3a\x00")}, HEADER, "a partitioned variable"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_refused_in_one_line(tmp_path: Path, lie: str) -> None:
    entries, header, complaint = LIES[lie]
    with pytest.raises(CheckpointError) as caught:
        bundle_of(tmp_path, CONTENT, entries, header).read("w")
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda c: c[:-9], "does not end as a table does"),
    "empty": (lambda c: b"", "does not end as a table does"),
    "a flipped bit": (lambda c: c[:100] + bytes([c[100] ^ 1]) + c[101:], "the check sum of the block at 0 is wrong"),
    "a footer of nines": (lambda c: c[:-48] + b"\x99" * 40 + c[-8:], "a number does not end"),
    "a block beyond the end": (lambda c: c[:-48] + (b"\0\0\x01" + encode_varint(1 << 40)).ljust(40, b"\0") + c[-8:],
                               "does not fit where it should stand"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    harm, complaint = DAMAGES[damage]
    path = tmp_path / "m.index"
    path.write_bytes(harm((FIXTURES / "google" / "model.ckpt-best.index").read_bytes()))
    with pytest.raises(CheckpointError, match=complaint) as caught:
        TensorBundle(path)
    assert "copy or download it again" in str(caught.value)


def test_an_index_as_large_as_a_model_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.index"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="over the limit"):
        TensorBundle(path)


def test_blocks_that_are_named_twice_are_refused(tmp_path: Path) -> None:
    """An index of a few bytes could else unpack one block a million times."""
    from litebert.interop.leveldb_table import MAGIC, append_block, encode_block

    written = bytearray()
    block = append_block(written, encode_block([(b"a", b"1")]))
    index = append_block(written, encode_block([(b"a", block), (b"b", block)]))
    path = tmp_path / "m.index"
    path.write_bytes(bytes(written) + (block + index).ljust(40, b"\0") + MAGIC)
    with pytest.raises(CheckpointError, match="does not fit where it should stand"):
        read_table(path)


def test_a_text_longer_than_every_file_is_refused_in_one_line(tmp_path: Path) -> None:
    content = encode_varint(1 << 66) + b"abcdefgh"
    graph = entry(dtype=7, shape=(), size=len(content), checksum=mask_checksum(crc32c(content)))
    with pytest.raises(CheckpointError, match=r"a text of 73,786,976,294,838,206,464 bytes does not fit the 18 of"):
        bundle_of(tmp_path, content, {OBJECT_GRAPH: graph}).names()


def test_shards_larger_than_any_albert_are_not_opened(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, CONTENT, {"w": entry()})
    with (tmp_path / "m.data-00000-of-00001").open("r+b") as file:
        file.truncate(WEIGHT_LIMIT_BYTES + 1)
    with pytest.raises(CheckpointError, match="8,589,934,593 bytes of the checkpoint, over the limit"):
        bundle.read("w")


def test_a_name_that_cannot_be_printed_is_refused_in_one_line(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model.ckpt", {"kernel\n": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"cannot be printed: 'kernel\\n'") as caught:
        TensorBundle(tmp_path / "model.ckpt.index")
    assert len(str(caught.value).splitlines()) == 1
