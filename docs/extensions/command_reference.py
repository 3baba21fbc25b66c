"""All options of all commands, from what `litebert COMMAND --help-all` itself prints.

`reference.md` has a line that says where they go. The help is made from the settings' dataclasses by the command line,
so a default or a sentence about a setting stands in one place, and this page cannot disagree with it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from litebert.cli import COMMANDS, main

PAGE = "reference"
PLACE = "<!-- the options of every command -->"
WIDTH = "129"
"""Columns; from 130 on the flag library sets groups of flags side by side."""
HEADING = r"^\W*([\w-]+ )?options\W*$"
"""Of a group of flags: in a box, or underlined where there are no boxes."""


@dataclass(frozen=True)
class Option:
    """One setting of a command."""

    flags: str
    """As they are typed: `--resume, --no-resume`."""
    takes: str
    """What stands behind it; empty for switches."""
    default: str | None
    """None where it must be given."""
    meaning: str


def help_of(command: str) -> str:
    """What `litebert COMMAND --help-all` prints."""
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([command, "--help-all"])
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return said.getvalue()


def options_of(command: str) -> list[Option]:
    """The settings of a command, in the order of its help."""
    return list(_options(help_of(command)))


def _options(text: str) -> Iterator[Option]:
    head = re.search(HEADING, text, flags=re.MULTILINE)
    assert head is not None, text
    entries: list[str] = []
    for line in text[head.end() :].splitlines():
        if re.fullmatch(HEADING, line):
            entries.append("-h")  # what stands between a heading and its first flag belongs to no flag
            continue
        words = line.strip("│ ")
        if re.match(r"(│ | {0,4})-[\w.-]*\w", line):  # what goes on from the line before stands further right
            entries.append(words)
        elif re.search(r"[\w)]", words):
            entries[-1] += "  " + words
    for entry in entries:
        usage, _, words = re.sub(r" {2,}", "  ", entry).partition("  ")
        if usage.startswith("-h"):
            continue
        words = " ".join(words.split())
        found = re.search(r"\s*\((?:default: ?(.*?)|required)\)$", words)
        assert found is not None, entry
        flags, takes = _parts(usage)
        yield Option(flags, takes, found[1], words[: found.start()])


def _parts(usage: str) -> tuple[str, str]:
    """The flags, and what they take in words."""
    flags = ", ".join(re.findall(r"(?<!\S)--[\w.-]+", usage))
    takes = re.sub(r"(?<!\S)--[\w.-]+,?", "", usage).strip()
    takes = takes.replace("{None}|", "").replace("|{None}", "")
    return flags, re.sub(r"^\[(.*) \[\1 \.\.\.\]\]$", r"\1 ...", takes)


def markdown() -> str:
    """The options of all commands as tables."""
    return "\n".join(line for command in COMMANDS for line in _section(command))


def _section(command: str) -> Iterator[str]:
    recipe: Any = import_module(f"litebert.commands.{command.replace('-', '_')}")
    summary, _, rest = recipe.__doc__.strip().partition("\n")
    yield from (f"## {command}", "", summary, "", "```")
    yield from re.findall(r"^  (.*litebert .*)$", rest, flags=re.MULTILINE) or [f"litebert {command}"]
    options = options_of(command)
    yield from (
        "```",
        "",
        *(("| option | default | meaning |", "|---|---|---|") if options else ("It has no options.",)),
    )
    for option in options:
        takes = f" {_code(option.takes)}" if option.takes else ""
        flags = ", ".join(f"`{flag}`" for flag in option.flags.split(", "))
        yield f"| {flags}{takes} | {_default(option.default)} | {_cell(option.meaning)} |"
    yield ""


def _default(default: str | None) -> str:
    if default is None:
        return "must be given"
    words = {"": "", "''": "", "None": "", "True": "on", "False": "off"}
    return words.get(default, _code(default))


def _code(text: str) -> str:
    """Choices one by one, so that a long list of them can be broken."""
    choices = re.fullmatch(r"\[?\{(.*)\}( \.\.\.| \[\.\.\.\]\])?", text)
    if choices is not None:
        return f"{'some' if choices[2] else 'one'} of " + ", ".join(f"`{choice}`" for choice in choices[1].split(","))
    return "`" + text.replace("|", "\\|") + "`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


def _fill_in(app: Any, name: str, source: list[str]) -> None:
    if name == PAGE:
        assert PLACE in source[0]
        source[0] = source[0].replace(PLACE, markdown())


def _outdated(app: Any, environment: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """It depends on code that Sphinx does not watch."""
    return [PAGE]


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", _fill_in)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
