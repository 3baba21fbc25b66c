"""Settings that the command line needs before torch is imported."""

from __future__ import annotations

from typing import Literal

Algorithm = Literal["proto", "contrast", "reptile", "fomaml", "maml", "anil"]
Distance = Literal["cosine", "squared"]
MAX_INNER_STEPS = 1000
"""Gradient steps on the support set of an episode."""
