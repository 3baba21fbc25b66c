"""The experiments as data: a variant is what one model changes in the common settings, a table a list of variants."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

TableName = Literal["embedding", "sharing", "sentence-loss", "depth", "width", "masking", "strategies", "optimizer"]
PretrainSettings = Mapping[str, Any]
"""Settings of `litebert pretrain` by name."""

EMBEDDING_SIZES = (64, 128, 256)
DEPTHS = (1, 3, 6, 12, 24, 48)
WIDTH_TABLE_LAYERS, WIDTHS = 3, (1, 2, 4, 6)  # the paper's 1024, 2048, 4096 and 6144, as multiples of the first
MASKING_KINDS, MASK_RATES = ("token", "word", "ngram", "span"), (0.15, 0.25, 0.4)
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
class ModelVariant:
    """The settings in which a model differs from the common one."""

    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, common: PretrainSettings, **settings: Any) -> ModelVariant:
        """Leaves out settings that equal the common ones, so that tables share runs of the same model."""
        return cls(tuple(sorted((name, value) for name, value in settings.items() if common.get(name) != value)))

    @property
    def key(self) -> str:
        """Its folder name."""
        name = "_".join(f"{name}-{value}" for name, value in self.changes) or "common"
        return re.sub(r"[^\w.-]+", "-", name)


@dataclass(frozen=True)
class TableRow:
    """A variant in a table."""

    name: str
    """Name in the paper's results and in the claims."""
    label: str
    cell: ModelVariant
    group: str = ""
    """Rows of one group form a line in plots."""
    x: float | None = None
    """Position on that line."""


def table_rows(table: TableName, common: PretrainSettings) -> list[TableRow]:
    """The rows of a table; `common` holds the common settings."""
    return _TABLE_BUILDERS[table](common)


def variants_with_tables(tables: Iterable[TableName], common: PretrainSettings) -> dict[ModelVariant, list[TableName]]:
    """Every variant once, in the order of the tables, with its tables."""
    tables_by_variant: dict[ModelVariant, list[TableName]] = {}
    for table in tables:
        for row in table_rows(table, common):
            tables_by_variant.setdefault(row.cell, []).append(table)
    return tables_by_variant


def _embedding_sizes(hidden_size: int) -> dict[str, int]:
    """By name; the last is the hidden size, as in BERT, where the paper has 768."""
    return {str(size): size for size in EMBEDDING_SIZES if size < hidden_size} | {"H": hidden_size}


def _size_label(name: str, size: int) -> str:
    return f"E = H = {size}" if name == "H" else f"E = {size}"


def _embedding(common: PretrainSettings) -> list[TableRow]:
    arms = {"all": "shared", "none": "not shared"}
    return [
        TableRow(
            f"{sharing}/{name}", f"{arm}, {_size_label(name, size)}",
            ModelVariant.of(common, sharing=sharing, embedding_size=size), arm, size,
        )
        for sharing, arm in arms.items()
        for name, size in _embedding_sizes(common["hidden_size"]).items()
    ]  # fmt: skip


def _sharing(common: PretrainSettings) -> list[TableRow]:
    sizes = {name: size for name, size in _embedding_sizes(common["hidden_size"]).items() if name in ("128", "H")}
    arms = {"all": "all", "attention": "attention", "ffn": "feed-forward", "none": "none"}
    return [
        TableRow(
            f"{sharing}/{name}",
            f"{arm}, {_size_label(name, size)}",
            ModelVariant.of(common, sharing=sharing, embedding_size=size),
        )
        for name, size in sizes.items()
        for sharing, arm in arms.items()
    ]


def _sentence_loss(common: PretrainSettings) -> list[TableRow]:
    arms = {"none": "none", "next": "NSP", "order": "SOP"}
    return [
        TableRow(sentences, label, ModelVariant.of(common, sentences=sentences)) for sentences, label in arms.items()
    ]


def _depth(common: PretrainSettings) -> list[TableRow]:
    return [
        TableRow(
            str(layers), f"{layers} layer{'s' * (layers > 1)}", ModelVariant.of(common, layers=layers), "shared", layers
        )
        for layers in DEPTHS
    ]


def _width(common: PretrainSettings) -> list[TableRow]:
    rows = []
    for arm in ("ALBERT", "BERT"):
        for times in WIDTHS:
            size = times * common["hidden_size"]
            shape = {"layers": WIDTH_TABLE_LAYERS, "hidden_size": size}
            if arm == "BERT":
                shape |= {"sharing": "none", "embedding_size": size}
            rows.append(TableRow(f"{arm}/{times}", f"{arm}, H = {size}", ModelVariant.of(common, **shape), arm, size))
    return rows


def _masking(common: PretrainSettings) -> list[TableRow]:
    names = {"token": "tokens", "word": "words", "ngram": "n-grams", "span": "spans"}
    return [
        TableRow(f"{mask}/{rate}", f"{names[mask]}, {rate:.0%}", ModelVariant.of(common, mask=mask, mask_rate=rate),
                 names[mask], 100 * rate)
        for mask in MASKING_KINDS
        for rate in MASK_RATES
    ]  # fmt: skip


def _strategies(common: PretrainSettings) -> list[TableRow]:
    return [TableRow(name, name, ModelVariant.of(common, **changes)) for name, changes in STRATEGIES.items()]


def _optimizer(common: PretrainSettings) -> list[TableRow]:
    names = {"adamw": "AdamW", "lamb": "LAMB", "muon": "Muon"}
    return [TableRow(name, label, ModelVariant.of(common, optimizer=name)) for name, label in names.items()]


_TABLE_BUILDERS = {
    "embedding": _embedding, "sharing": _sharing, "sentence-loss": _sentence_loss, "depth": _depth, "width": _width,
    "masking": _masking, "strategies": _strategies, "optimizer": _optimizer,
}  # fmt: skip
TABLES: tuple[TableName, ...] = (
    "embedding", "sharing", "sentence-loss", "depth", "strategies", "width", "masking", "optimizer",
)  # fmt: skip
"""In the order of their runs."""
