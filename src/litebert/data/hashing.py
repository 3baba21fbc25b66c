"""Counter-based random numbers: a hash of (seed, purpose, index), the same on every machine.

Each number is computed without the ones before it, so a batch depends on its step alone.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

U64 = np.uint64
_GOLDEN = U64(0x9E3779B97F4A7C15)


def derive_key(seed: int, *purpose: object) -> np.uint64:
    """A key for one use of random numbers; keys of different uses are unrelated."""
    text = "/".join(map(str, (seed, *purpose)))
    return U64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def splitmix64(key: Any, index: np.ndarray) -> np.ndarray:
    """64 random bits for each index (SplitMix64, which passes the usual statistical tests)."""
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2^64 by design
        x = (index.astype(U64) + U64(1)) * _GOLDEN + key
        x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
        return x ^ (x >> U64(31))


def uniform(key: Any, index: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each index, from 53 of its bits."""
    return (splitmix64(key, index) >> U64(11)).astype(np.float64) * 2.0**-53


def random_below(key: Any, index: np.ndarray, limit: Any) -> np.ndarray:
    """An integer in [0, limit) for each index."""
    return np.minimum((uniform(key, index) * limit).astype(np.int64), np.asarray(limit) - 1)


def permute(index: np.ndarray, size: int, key: Any) -> np.ndarray:
    """The image of each index under the permutation of [0, size) that the key selects.

    A Feistel network permutes the next power of four; results outside [0, size) are permuted again (cycle walking).
    """
    half = U64(max(1, (int(size - 1).bit_length() + 1) // 2))
    mask = (U64(1) << half) - U64(1)
    out = index.astype(U64)
    key = np.broadcast_to(key, out.shape)
    todo = np.arange(len(out))
    while len(todo):
        left, right = out[todo] >> half, out[todo] & mask
        for round_ in range(4):
            left, right = right, left ^ (splitmix64(key[todo] + U64(round_), right) & mask)
        out[todo] = (left << half) | right
        todo = todo[out[todo] >= size]
    return out.astype(np.int64)
