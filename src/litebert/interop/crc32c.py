"""CRC-32C, the check sum of TensorFlow's files, at the speed of numpy.

A check sum is linear over bits: that of a text is the exclusive or of what each of its words becomes when the rest of
the text goes over it. So neighbours are joined pair by pair: the left one is moved on by the length of the right one,
which is a matrix of bits, and added. Each round halves the words and doubles the length.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

POLYNOMIAL = 0x82F63B78
CHUNK_BYTES = 1 << 20
"""So much is copied at a time."""
_ALL_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8


def crc32c(content: bytes | memoryview | np.ndarray) -> int:
    """The check sum of some bytes."""
    whole = np.frombuffer(content, np.uint8)
    state = _ALL_ONES
    for start in range(0, len(whole), CHUNK_BYTES):
        state = _advance(state, whole[start : start + CHUNK_BYTES])
    return state ^ _ALL_ONES


def mask_checksum(checksum: int) -> int:
    """As it is stored: a check sum of bytes that hold check sums would be worth less."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & _ALL_ONES


def _advance(state: int, chunk: np.ndarray) -> int:
    """The state after these bytes."""
    if len(chunk) < 4:
        for byte in chunk.tolist():
            state = int(_byte_table()[(state ^ byte) & 0xFF]) ^ (state >> 8)
        return state
    padded = np.zeros(-(-len(chunk) // 4) * 4, np.uint8)  # zeros in front change nothing
    padded[-len(chunk) :] = chunk
    first = len(padded) - len(chunk)
    padded[first : first + 4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)
    words = padded.view("<u4").astype(np.uint32)
    level = 0
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, np.uint32), words])
        words = _shift(words[0::2], level) ^ words[1::2]
        level += 1
    return int(_shift(words, 0)[0])


def _shift(words: np.ndarray, level: int) -> np.ndarray:
    """The words after 4 * 2**level zeros."""
    tables = _shift_tables(level)
    shifted = tables[0][words & 0xFF]
    for place in (1, 2, 3):
        shifted ^= tables[place][(words >> np.uint32(8 * place)) & 0xFF]
    return shifted


@lru_cache(maxsize=32)
def _shift_tables(level: int) -> np.ndarray:
    """(4, 256): what each value of each byte becomes."""
    values = np.arange(256, dtype=np.uint32)
    rows = np.stack([values << np.uint32(8 * place) for place in range(4)])
    if level:
        return _shift(_shift(rows.reshape(-1), level - 1), level - 1).reshape(4, 256)
    for _ in range(4):
        rows = _byte_table()[rows & 0xFF] ^ (rows >> np.uint32(8))
    return rows


@lru_cache(maxsize=1)
def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(POLYNOMIAL), table >> np.uint32(1))
    return table
