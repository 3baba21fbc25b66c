"""`torch.hub.load("litebert/litebert", "albert", "path-or-hub-name")`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

dependencies = ["torch", "numpy", "safetensors", "tokenizers", "huggingface_hub"]

if TYPE_CHECKING:
    from litebert.inference import Model


def albert(path_or_name: str) -> "Model":
    """Load an ALBERT with its tokenizer and task, as `litebert.load` does."""
    source = str(Path(__file__).parent / "src")  # torch.hub fetches the repository and installs nothing
    if source not in sys.path:
        sys.path.insert(0, source)
    import litebert

    return litebert.load(path_or_name)
