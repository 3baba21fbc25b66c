"""Reading a SentencePiece `spiece.model` without sentencepiece and protobuf.

The file is one protobuf message, of which four fields matter: the pieces, their scores and types, and the compiled
normalisation rules.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from litebert.errors import CheckpointError

USER_DEFINED = 4  # sentencepiece's type of pieces that are never joined with their neighbours
UNIGRAM = 1  # the only segmentation algorithm ALBERT uses


@dataclass(frozen=True)
class SentencePieceModel:
    """Content of a `spiece.model`. The index in `pieces` is the id."""

    pieces: list[str]
    scores: list[float]
    types: list[int]
    charsmap: bytes
    """The compiled normalisation rules; empty if the model does not normalise."""

    def pieces_of_type(self, piece_type: int) -> list[str]:
        return [piece for piece, type_ in zip(self.pieces, self.types, strict=True) if type_ == piece_type]


def parse_spiece(content: bytes, source: str) -> SentencePieceModel:
    """Parse the bytes of a unigram `spiece.model`; `source` names them in errors."""
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    charsmap: bytes | None = None
    try:
        for field, value in _fields(content):
            if field == 1:  # one piece
                piece = dict(_fields(value))
                pieces.append(piece[1].decode("utf-8"))
                scores.append(struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0])
                types.append(piece.get(3, 1))
                if not math.isfinite(scores[-1]):
                    raise ValueError(f"piece {len(pieces) - 1} scores {scores[-1]}")
            elif field == 2:  # how it was trained
                algorithm = dict(_fields(value)).get(3, UNIGRAM)
                if algorithm != UNIGRAM:
                    raise CheckpointError(
                        f"{source}: segmentation algorithm {algorithm} is not unigram (1), ALBERT's; "
                        "train a unigram model"
                    )
            elif field == 3:  # how it normalises
                charsmap = bytes(memoryview(dict(_fields(value)).get(2, b"")))
    except (LookupError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(
            f"{source}: not a SentencePiece model or damaged ({error}); download or train it again"
        ) from error
    if not pieces:
        raise CheckpointError(
            f"{source}: holds no pieces, so it is not a SentencePiece model; download or train it again"
        )
    if charsmap is None:  # every model ends with normalisation rules, even if they are empty
        raise CheckpointError(
            f"{source}: truncated after {len(pieces)} pieces, without normalisation rules; download it again"
        )
    return SentencePieceModel(pieces, scores, types, charsmap)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The (field number, value) pairs of one protobuf message: integers for varints, bytes for the rest."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"a field of {size} bytes at byte {at} runs past the end")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """One little-endian base-128 integer, and where the next field starts."""
    result = 0
    for shift in range(0, 64, 7):
        byte = message[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError(f"an integer longer than 64 bits at byte {at}")
