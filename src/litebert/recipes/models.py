"""What is built in, and what is in the hub's cache on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Nothing to set."""


def run(config: Config) -> None:
    import torch
    from rich.console import Console
    from rich.table import Table

    from litebert.model import PRESETS, Encoder

    table = Table(title="presets (litebert pretrain --preset NAME)")
    for column in ("preset", "passes", "hidden", "heads", "feed-forward", "embedding", "parameters"):
        table.add_column(column, justify="left" if column == "preset" else "right")
    for name, preset in PRESETS.items():
        with torch.device("meta"):
            parameters = sum(p.numel() for p in Encoder(preset).parameters())
        sizes = (
            preset.num_hidden_layers,
            preset.hidden_size,
            preset.num_attention_heads,
            preset.intermediate_size,
            preset.embedding_size,
        )
        table.add_row(name, *map(str, sizes), f"{parameters:,}")
    console = Console()
    console.print(table)
    console.print(
        f"parameters of the encoder with a vocabulary of {PRESETS['base'].vocab_size:,}\n",
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


def _cached() -> list[str]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted(repo.repo_id for repo in repos if repo.repo_type == "model" and "albert" in repo.repo_id.lower())
