"""Settings of `finetune` that are for translation alone. Those that begin with `decoder_` shape what writes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Translating:
    target_vocab_size: int = 8000
    """For translate: pieces of the target's vocabulary, which is learned from the targets."""
    target_tokenizer: Path | None = None
    """For translate: a folder with a vocabulary of the target, in place of a new one."""
    decoder_layers: int = 4
    """For translate: layers that write."""
    decoder_reading_layers: int = 2
    """For translate: layers between the encoder and those; with --freeze-encoder all that learns to read."""
    decoder_hidden_size: int = 256
    """For translate: the width of both."""
    decoder_intermediate_size: int = 1024
    """For translate: the width between."""
    decoder_heads: int = 4
    """For translate: parts that attention is cut into."""
    decoder_sharing: Literal["all", "none"] = "none"
    """For translate: all = one layer that reads and one that writes, run again and again, as in ALBERT."""
    decoder_dropout: float = 0.3
    """For translate: while learning."""
    decoder_depths: tuple[int, ...] = ()
    """For translate: after which passes the encoder is read, 0 being before the first; they are mixed as is learned. By
    default after each third of them."""
    beams: int = 5
    """For translate: how many targets the finished model follows at once; 1 is greedy, as epochs are validated."""
    length_penalty: float = 1.0
    """For translate: the likelihood of T tokens is divided by ((5 + T) / 6) to this power; 0 prefers short targets."""


NAMES = tuple(field.name for field in fields(Translating))
