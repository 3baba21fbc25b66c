"""The experiments as data: a cell is what one model differs in from the common one, a table is a list of cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

TableName = Literal["embedding", "sharing", "sentence-loss", "depth", "width", "masking", "strategies", "optimizer"]
Settings = Mapping[str, Any]
"""Of `litebert pretrain`, by name."""

EMBEDDING_SIZES = (64, 128, 256)
DEPTHS = (1, 3, 6, 12, 24, 48)
WIDE_LAYERS, WIDTHS = 3, (1, 2, 4, 6)  # the paper's 1024, 2048, 4096 and 6144, as multiples of the first
MASKS, RATES = ("token", "word", "ngram", "span"), (0.15, 0.25, 0.4)
STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {},
    "layer decay 0.9": {"layer_decay_rate": 0.9},
    "embedding scale 0.5": {"scale_embedding": 0.5},
    "embedding scale 2": {"scale_embedding": 2.0},
    "weight bounds 0.2": {"bounds": "project", "bound_max": 0.2},
    "gradient tanh": {"squash": "tanh", "squash_temperature": 1e-3},
    "gradient softplus": {"squash": "softplus", "squash_temperature": 1e-3},
    "cold factor 0.5": {"cold_factor": 0.5},
    "hot start 0.5": {"hot_start": 0.5},
    "attention bias": {"attention_distance": 32},
}


@dataclass(frozen=True)
class Cell:
    """What a model differs in from the common one; nothing, if that is it."""

    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, common: Settings, **settings: Any) -> Cell:
        """What is as in the common model is no difference, so that tables that mean the same model share its run."""
        return cls(tuple(sorted((name, value) for name, value in settings.items() if common.get(name) != value)))

    @property
    def key(self) -> str:
        """Its name on disk."""
        told = "_".join(f"{name}-{value}" for name, value in self.changes) or "common"
        return re.sub(r"[^\w.-]+", "-", told)


@dataclass(frozen=True)
class Row:
    """A cell in a table."""

    name: str
    """By which the paper's values and the claims know it."""
    label: str
    cell: Cell
    group: str = ""
    """Rows of one group are a line in a drawing over numbers."""
    x: float | None = None
    """Where it stands on that line."""


def rows_of(table: TableName, common: Settings) -> list[Row]:
    """`common` holds what all cells have unless they say otherwise."""
    return _BUILDERS[table](common)


def cells_of(tables: Iterable[TableName], common: Settings) -> dict[Cell, list[TableName]]:
    """Every cell once, in the order of the tables, with the tables that it is in."""
    found: dict[Cell, list[TableName]] = {}
    for table in tables:
        for row in rows_of(table, common):
            found.setdefault(row.cell, []).append(table)
    return found


def _embedding_sizes(hidden_size: int) -> dict[str, int]:
    """By name; the last one is the hidden size, as in BERT, where the paper has 768."""
    return {str(size): size for size in EMBEDDING_SIZES if size < hidden_size} | {"H": hidden_size}


def _size_label(name: str, size: int) -> str:
    return f"E = H = {size}" if name == "H" else f"E = {size}"


def _embedding(common: Settings) -> list[Row]:
    arms = {"all": "shared", "none": "not shared"}
    return [
        Row(
            f"{sharing}/{name}", f"{arm}, {_size_label(name, size)}",
            Cell.of(common, sharing=sharing, embedding_size=size), arm, size,
        )
        for sharing, arm in arms.items()
        for name, size in _embedding_sizes(common["hidden_size"]).items()
    ]  # fmt: skip


def _sharing(common: Settings) -> list[Row]:
    sizes = {name: size for name, size in _embedding_sizes(common["hidden_size"]).items() if name in ("128", "H")}
    arms = {"all": "all", "attention": "attention", "ffn": "feed-forward", "none": "none"}
    return [
        Row(
            f"{sharing}/{name}",
            f"{arm}, {_size_label(name, size)}",
            Cell.of(common, sharing=sharing, embedding_size=size),
        )
        for name, size in sizes.items()
        for sharing, arm in arms.items()
    ]


def _sentence_loss(common: Settings) -> list[Row]:
    arms = {"none": "none", "next": "NSP", "order": "SOP"}
    return [Row(sentences, label, Cell.of(common, sentences=sentences)) for sentences, label in arms.items()]


def _depth(common: Settings) -> list[Row]:
    return [
        Row(str(layers), f"{layers} layer{'s' * (layers > 1)}", Cell.of(common, layers=layers), "shared", layers)
        for layers in DEPTHS
    ]


def _width(common: Settings) -> list[Row]:
    rows = []
    for arm in ("ALBERT", "BERT"):
        for times in WIDTHS:
            size = times * common["hidden_size"]
            shape = {"layers": WIDE_LAYERS, "hidden_size": size}
            if arm == "BERT":
                shape |= {"sharing": "none", "embedding_size": size}
            rows.append(Row(f"{arm}/{times}", f"{arm}, H = {size}", Cell.of(common, **shape), arm, size))
    return rows


def _masking(common: Settings) -> list[Row]:
    names = {"token": "tokens", "word": "words", "ngram": "n-grams", "span": "spans"}
    return [
        Row(f"{mask}/{rate}", f"{names[mask]}, {rate:.0%}", Cell.of(common, mask=mask, mask_rate=rate), names[mask],
            100 * rate)
        for mask in MASKS
        for rate in RATES
    ]  # fmt: skip


def _strategies(common: Settings) -> list[Row]:
    return [Row(name, name, Cell.of(common, **changes)) for name, changes in STRATEGIES.items()]


def _optimizer(common: Settings) -> list[Row]:
    names = {"adamw": "AdamW", "lamb": "LAMB", "muon": "Muon"}
    return [Row(name, label, Cell.of(common, optimizer=name)) for name, label in names.items()]


_BUILDERS = {
    "embedding": _embedding, "sharing": _sharing, "sentence-loss": _sentence_loss, "depth": _depth, "width": _width,
    "masking": _masking, "strategies": _strategies, "optimizer": _optimizer,
}  # fmt: skip
TABLES: tuple[TableName, ...] = (
    "embedding", "sharing", "sentence-loss", "depth", "strategies", "width", "masking", "optimizer",
)  # fmt: skip
"""In the order in which they are run."""
