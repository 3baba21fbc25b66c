"""What the README shows works, and both READMEs say the same."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from litebert.cli import COMMANDS, parse
from tests.conftest import REPOSITORY

READMES = {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")}
PAGES = READMES | {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for path in sorted(REPOSITORY.glob("docs/**/*.md"))
    if "_build" not in path.parts
}


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks in this language."""
    fenced = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fenced if name == language]


def commands(text: str) -> list[list[str]]:
    """Every `litebert …` line of the code blocks and tables, as words."""
    lines = [line for block in blocks(text) for line in block.splitlines()] + re.findall(r"`(litebert [^`]+)`", text)
    found = []
    for line in lines:
        match = re.search(r"\blitebert (\S.*)", line.split("#")[0])
        if match and not line.startswith(("pip", "src")):
            words = shlex.split(re.sub(r"\[(--[\w-]+)\]", r"\1", match[1]))
            if words[0] in COMMANDS:
                found.append(words)
    return found


def figures(text: str) -> list[list[str]]:
    """The numbers of each row of its tables."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [sorted(re.findall(r"\d[\d,.]*\d|\d", row)) for row in rows]


@pytest.mark.parametrize("name", READMES)
def test_the_python_of_the_readme_runs_and_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    code = blocks(READMES[name], "python")[0]
    shown = blocks(READMES[name])[1].splitlines()
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == shown


@pytest.mark.parametrize("name", PAGES)
def test_every_command_shown_has_these_flags(name: str) -> None:
    for command, *flags in commands(PAGES[name]):
        if flags:  # without any, a page may just speak of the command
            recipe = import_module(f"litebert.commands.{command.replace('-', '_')}")
            parse(recipe.Config, command, flags)


def test_the_readme_shows_every_command() -> None:
    for text in READMES.values():
        assert {words[0] for words in commands(text)} == set(COMMANDS)


def test_both_readmes_show_the_same_code_and_numbers() -> None:
    english, chinese = READMES.values()
    assert commands(english) == commands(chinese)
    assert [re.sub("#.*", "", b) for b in blocks(english, "python")] == [
        re.sub("#.*", "", b) for b in blocks(chinese, "python")
    ]
    assert figures(english) == figures(chinese)
    assert figures(PAGES["docs/measured.md"]) == figures(PAGES["docs/zh/measured.md"])


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_left_to_fill_in(name: str) -> None:
    assert "@@" not in PAGES[name]


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", re.sub(r"```.*?```", "", PAGES[name], flags=re.DOTALL)):
        assert (REPOSITORY / name).parent.joinpath(target).exists(), target
