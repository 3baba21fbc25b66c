"""How large and how tangled is the code? Figures for the table in docs/architecture.md.

python bench/code_size.py            # this checkout
python bench/code_size.py ../other   # another one, such as the version before
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parents[1])
    checkout = parser.parse_args().checkout.resolve()
    for name, value in figures_of(checkout).items():
        print(f"{name:<52}{value}")


def figures_of(checkout: Path) -> dict[str, str]:
    source = checkout / "src" / "litebert"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    native = {
        path: len(path.read_text().splitlines()) for ending in ("cpp", "h") for path in source.rglob(f"*.{ending}")
    }
    longest = max(lines, key=lambda path: lines[path])
    functions = [(length, path, name) for path, tree in trees.items() for name, length in functions_of(tree)]
    length, path, name = max(functions, key=lambda function: function[0])
    modules = {
        module_of(path, source): imports_of(tree, module_of(path, source), texts, source)
        for path, tree in trees.items()
    }
    loops = cycles(modules)
    private = [
        name
        for folder in ("src", "tests", "bench", "examples")
        for path in (checkout / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("litebert")
        for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        if name.startswith("_") and not name.startswith("__")
    ]
    return {
        "Python files in src": f"{len(lines)}",
        "lines of Python in src": f"{sum(lines.values()):,}",
        "lines of C++ in src": f"{sum(native.values()):,}, longest file {max(native.values())}",
        "longest Python file": f"{lines[longest]} ({longest.relative_to(source)})",
        "longest function": f"{length} ({path.relative_to(source)}: {name})",
        "Python files above 400 / 450 lines": f"{over(lines.values(), 400)} / {over(lines.values(), 450)}",
        "functions above 50 / 60 lines": " / ".join(f"{over([f[0] for f in functions], limit)}" for limit in (50, 60)),
        "import cycles (groups of modules)": f"{len(loops)}",
        "modules in them": f"{sum(map(len, loops))}",
        "private names imported by other modules": f"{len(private)}",
        "flags": ", ".join(f"{command} {count}" for command, count in flags_of(checkout).items()),
    }


def over(sizes: Iterable[int], limit: int) -> int:
    return sum(size > limit for size in sizes)


def functions_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def module_of(path: Path, source: Path) -> str:
    if not path.is_relative_to(source):
        return path.name
    return ".".join(("litebert", *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__")


def imports_of(tree: ast.AST, own: str, texts: dict[Path, str], source: Path) -> set[str]:
    known = {module_of(path, source) for path in texts}
    targets = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("litebert"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= (names & known) or {node.module or ""}
    return targets - {own, "litebert"}


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    reach = {module: reached(module) for module in graph}
    groups = {frozenset(other for other in reach[module] if module in reach.get(other, set())) for module in graph}
    return [set(group) for group in groups if len(group) > 1]


def flags_of(checkout: Path) -> dict[str, int]:
    """Settings of each command."""
    sys.path.insert(0, str(checkout / "src"))
    package = next(name for name in ("commands", "recipes") if (checkout / "src" / "litebert" / name).is_dir())
    files = sorted((checkout / "src" / "litebert" / package).glob("[a-z]*.py"))
    found = {}
    for path in files:
        config = import_module(f"litebert.{package}.{path.stem}").Config
        found[path.stem.replace("_", "-")] = len(dataclasses.fields(config))
    return found


if __name__ == "__main__":
    main()
