"""The one-way flow of imports, and the public surface."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import litebert

SOURCE = Path(litebert.__file__).parent
BASE = {"errors", "files"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "tokenizer": BASE,
    "data": BASE | {"tokenizer"},
    "model": BASE,
    "tasks": BASE | {"tokenizer", "data", "model", "measure"},
    "interop": BASE | {"tokenizer", "data", "model", "tasks"},
    "builtin": set(),
    "predict": BASE | {"tokenizer", "data", "model", "tasks", "interop", "builtin"},
    "train": BASE,
    "meta": BASE | {"tokenizer", "data", "model", "tasks", "train"},
    "measure": BASE,
    "compress": BASE | {"tokenizer", "data", "model", "tasks", "interop", "predict"},
    "tuning": BASE | {"data", "model", "tasks", "predict", "train"},
    "serve": BASE | {"tokenizer", "data", "model", "tasks", "interop", "predict", "builtin"},
    "recipes": BASE
    | {
        "tokenizer",
        "data",
        "model",
        "tasks",
        "interop",
        "predict",
        "train",
        "meta",
        "tuning",
        "compress",
        "measure",
        "builtin",
        "serve",
    },
    "cli": BASE | {"recipes"},
    "__main__": {"cli"},
}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """Parts of litebert that a file imports, at its top or inside its functions."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "litebert" else [f"litebert.{a.name}" for a in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("litebert.")}
    return parts - {"__version__"}


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_flow_one_way(path: Path) -> None:
    own = part_of(path)
    assert own in MAY_IMPORT, f"{own} is a new part: give it a place in the flow"
    assert imported_parts(path) <= MAY_IMPORT[own] | {own}


def test_every_part_named_in_the_rule_exists() -> None:
    assert {part_of(path) for path in FILES} == set(MAY_IMPORT)


def test_the_public_surface_is_what_it_says() -> None:
    assert litebert.__all__ == [
        "CheckpointError", "ConfigError", "DataError", "FewShotClassifier", "LitebertError", "Model", "Tokenizer",
        "adapt", "load",
    ]  # fmt: skip
    for name in litebert.__all__:
        assert getattr(litebert, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        litebert.lod  # noqa: B018


def test_importing_litebert_imports_nothing_heavy() -> None:
    code = (
        "import sys, litebert; print([m for m in ('torch', 'numpy', 'tokenizers', 'rich', 'tyro') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


OPTIONAL = {
    "kernels", "attention_kernels", "estimator", "answers", "app", "endpoints", "job_endpoints", "metrics", "schema",
    "server", "tei_endpoints", "wording",
}  # fmt: skip


def test_only_optional_imports_reach_beyond_the_core() -> None:
    """At the top of a file stand the standard library and the core; extras are imported where they are used.

    The kernels cannot be written without Triton, the estimator without scikit-learn, nor endpoints without FastAPI, so
    those files are themselves imported only where they are used.
    """
    core = {"torch", "numpy", "safetensors", "tokenizers", "rich", "litebert", "tomli"}
    for path in FILES:
        if path.stem in OPTIONAL:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported = [*names, *(a.name for a in node.names)] if isinstance(node, ast.ImportFrom) else names
            assert not {name.split(".")[-1] for name in imported} & OPTIONAL, f"{path.name} needs an extra"
            for name in {name.split(".")[0] for name in names}:
                assert name in core or name in sys.stdlib_module_names, f"{path.name} imports {name} at its top"


def test_the_package_is_typed_and_ships_its_examples() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert {path.name for path in (SOURCE / "examples").iterdir()} == {"tickets.csv", "tickets-zh.csv"}
