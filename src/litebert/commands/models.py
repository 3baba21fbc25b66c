"""List the built-in models, the presets, and the models in the hub's cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from litebert.model import AlbertConfig


@dataclass(frozen=True)
class Config:
    """Nothing to set."""


def run(config: Config) -> None:
    from rich.console import Console
    from rich.table import Table

    from litebert import builtin
    from litebert.interop.huggingface import parse_config, read_settings
    from litebert.model import PRESETS

    console = Console()
    ours = Table(title="built in (litebert.load(NAME), --model NAME)")
    for column in ("name", "passes", "hidden", "vocabulary", "parameters", "MB"):
        ours.add_column(column, justify="left" if column == "name" else "right")
    for name, folder in builtin.FOLDERS.items():
        shape = parse_config(read_settings(folder), folder)
        weighs = (folder / "model.safetensors").stat().st_size / 1e6
        ours.add_row(
            name, str(shape.num_hidden_layers), str(shape.hidden_size), f"{shape.vocab_size:,}",
            f"{_parameters(shape):,}", f"{weighs:.0f}",
        )  # fmt: skip
    console.print(ours)
    console.print("about each: README.md in its folder under", markup=False, highlight=False)
    console.print(f"  {Path(builtin.__file__).parent}\n", markup=False, highlight=False, soft_wrap=True)

    table = Table(title="presets (litebert pretrain --preset NAME)")
    for column in ("preset", "passes", "hidden", "heads", "feed-forward", "embedding", "parameters"):
        table.add_column(column, justify="left" if column == "preset" else "right")
    for name, preset in PRESETS.items():
        sizes = (
            preset.num_hidden_layers,
            preset.hidden_size,
            preset.num_attention_heads,
            preset.intermediate_size,
            preset.embedding_size,
        )
        table.add_row(name, *map(str, sizes), f"{_parameters(preset):,}")
    console.print(table)
    console.print(
        f"parameters of the encoder; of presets with a vocabulary of {PRESETS['base'].vocab_size:,}\n",
        highlight=False,
        markup=False,
    )
    cached = _cached()
    console.print(
        "in the hub's cache (litebert.load(NAME)):"
        if cached
        else "no ALBERT in the hub's cache; litebert.load(NAME) fetches one",
        highlight=False,
    )
    for name in cached:
        console.print(f"  {name}", highlight=False, markup=False)


def _parameters(shape: AlbertConfig) -> int:
    import torch

    from litebert.model import Encoder

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Encoder(shape).parameters())


def _cached() -> list[str]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted(repo.repo_id for repo in repos if repo.repo_type == "model" and "albert" in repo.repo_id.lower())
