"""`litebert COMMAND --help` and `--help-all`: the settings that most people need, and all of them by subject.

A Config says which with two class variables, `ESSENTIAL` (names of fields) and `GROUPS` (subjects and their fields).
Flags are always parsed from the Config itself; the classes made here only decide what the flag library prints.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, get_type_hints

HELP_FLAGS = ("-h", "--help")
HELP_ALL_FLAG = "--help-all"


def print_help(config: type[Any], prog: str, description: str, everything: bool) -> None:
    """Print the help of a command and exit, as the flag library does."""
    import tyro

    names, tables = [item.name for item in fields(config)], _tables(config)
    essential = getattr(config, "ESSENTIAL", None)
    view: type[Any] = config
    if everything and essential:
        view = _by_subject(config, tables)
    elif essential:
        hidden = len(names) - len(essential) + sum(len(fields(table)) - 1 for table in tables.values())
        description += f"\n{hidden} more settings: {prog} {HELP_ALL_FLAG}"
        view = _dataclass(config, "Essential", essential)
    tyro.cli(view, prog=prog, description=description, args=["--help"])


def _by_subject(config: type[Any], tables: dict[str, type[Any]]) -> type[Any]:
    """A dataclass with one nested dataclass for each subject; tables of settings are subjects of their own."""
    groups: dict[str, Sequence[str]] = dict(config.GROUPS)
    grouped = {name for names in groups.values() for name in names}
    if rest := [item.name for item in fields(config) if item.name not in grouped]:
        groups["other"] = rest
    subjects: list[tuple[str, Any, Any]] = []
    for subject, names in groups.items():
        if plain := [name for name in names if name not in tables]:
            subjects.append((subject, _dataclass(config, subject, plain), field()))
        subjects += [(name, tables[name], field(default_factory=tables[name])) for name in names if name in tables]
    return make_dataclass("All", subjects, kw_only=True)


def _dataclass(config: type[Any], title: str, names: Sequence[str]) -> type[Any]:
    """Some fields of a Config, with its types, defaults and docstrings."""
    from tyro.conf import arg

    types, docs, known = get_type_hints(config, include_extras=True), field_docs(config), _fields_by_name(config)
    chosen: list[tuple[str, Any, Any]] = [
        (name, Annotated[types[name], arg(help=docs.get(name, ""), prefix_name=False)], _default_of(known[name]))
        for name in names
    ]
    return make_dataclass(title, chosen, kw_only=True)


def field_docs(config: type[Any]) -> dict[str, str]:
    """The docstring below each field of a dataclass, its base classes included."""
    docs: dict[str, str] = {}
    for cls in reversed([cls for cls in config.__mro__ if is_dataclass(cls)]):
        definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for item, below in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(item.target, ast.Name):
                docs[item.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs


def _tables(config: type[Any]) -> dict[str, type[Any]]:
    """Fields whose default is a dataclass."""
    factories: dict[str, Any] = {item.name: item.default_factory for item in fields(config)}
    return {name: kind for name, kind in factories.items() if isinstance(kind, type) and is_dataclass(kind)}


def _fields_by_name(config: type[Any]) -> dict[str, Field[Any]]:
    return {item.name: item for item in fields(config)}


def _default_of(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return field(default_factory=item.default_factory)
    return field() if item.default is MISSING else field(default=item.default)
