"""What the command line must know before torch is imported."""

from __future__ import annotations

from typing import Literal

Algorithm = Literal["proto", "contrast", "reptile", "fomaml", "maml", "anil"]
Distance = Literal["cosine", "squared"]
MOST_STEPS = 1000
"""On the examples of an episode."""
