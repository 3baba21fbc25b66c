"""The one-way flow of imports, and the public surface."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import litebert
from tests.conftest import REPOSITORY

SOURCE = Path(litebert.__file__).parent
ORDER = (
    "errors", "files", "console", "checks", "device", "cuda_graphs", "run_folder", "builtin", "tokenizer", "data",
    "model", "train", "measure", "tasks", "interop", "search", "inference", "fewshot", "loading", "compress", "meta",
    "trainers", "studies", "serve", "commands", "command_help", "cli", "__main__",
)  # fmt: skip
"""Packages and modules of the top level. Each may import what stands before it, and nothing else."""
MODEL = {"errors", "files", "cuda_graphs"}
LEAVES = {"errors": set(), "builtin": set(), "tokenizer": {"errors", "files"}, "model": MODEL,
          "train": MODEL | {"console", "device"}}  # fmt: skip
"""Packages that may import less than the order allows, so that each can be read, or taken out, alone."""


def package_of(module: str) -> str:
    return module.split(".")[1]


def imports_of(path: Path) -> set[str]:
    """Modules of litebert that a file imports, at its top or inside its functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("litebert.")}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "litebert":
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}": node.module for alias in node.names}
            modules |= {name if name in MODULES else module for name, module in names.items() if module}
    return modules - {"litebert"}


def name_of(path: Path) -> str:
    return ".".join(("litebert", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
MODULES = {name_of(path) for path in FILES}
IMPORTS = {name_of(path): imports_of(path) for path in FILES}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_packages_import_only_what_stands_before_them(module: str) -> None:
    own = package_of(module)
    assert own in ORDER, f"{own} is a new package: give it a place in the order"
    allowed = LEAVES.get(own, set(ORDER[: ORDER.index(own)]))
    wrong = {f"{own} > {package_of(name)}" for name in IMPORTS[module] if package_of(name) not in allowed | {own}}
    assert not wrong


def test_every_package_of_the_order_exists() -> None:
    assert {package_of(module) for module in MODULES} <= set(ORDER)


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, set()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                components.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(IMPORTS) == []


def test_every_exception_to_the_order_is_used() -> None:
    for package, allowed in LEAVES.items():
        used = {package_of(name) for module in MODULES if package_of(module) == package for name in IMPORTS[module]}
        assert allowed <= used, f"{package} may import {allowed - used} and does not"


def test_no_command_imports_a_command() -> None:
    for module in MODULES:
        if package_of(module) == "commands":
            assert {name for name in IMPORTS[module] if package_of(name) == "commands"} <= {"litebert.commands"}


CODE = [path for folder in ("src", "tests", "bench", "examples") for path in (REPOSITORY / folder).rglob("*.py")]


def test_nothing_private_crosses_a_module() -> None:
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("litebert"):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                private = [part for part in parts if part.startswith("_") and not part.startswith("__")]
                assert not private, f"{path.relative_to(REPOSITORY)} imports {', '.join(private)}"


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
    "layer_kernels", "attention_kernels", "sklearn", "response_schema", "app", "endpoints", "client_endpoints",
    "metrics", "request_schema", "server", "tei_endpoints", "validation_messages",
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
