"""`litebert.load`: from a folder or a name to a model that answers."""

from __future__ import annotations

from pathlib import Path

from litebert.fewshot.persistence import load_any
from litebert.inference.loading import Engine
from litebert.inference.model import Model


def load(path_or_name: str | Path, engine: Engine = "auto") -> Model:
    """Load a model from a folder, a built-in model or one of the Hugging Face hub by its name.

    TensorFlow and Keras checkpoints and other ALBERT files load too: give their folder or file. `litebert convert`
    says what they hold.

    `engine`, on a CPU: "int8" is several times as fast as float32 and slightly less exact, "bf16" lies between the two,
    "torch" is float32. "auto" is int8 for a folder that `litebert quantize` wrote, if the CPU has int8 instructions,
    else float32. int8 uses the native kernel, compiled at first use, if there is a C++ compiler, else oneDNN.
    """
    return load_any(path_or_name, engine)
