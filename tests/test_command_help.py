"""--help shows the settings that most people need, --help-all shows every one by subject."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar, Literal

import pytest

from litebert.cli import COMMANDS, main, parse
from litebert.command_help import field_docs


@dataclass(frozen=True, kw_only=True)
class Table:
    """Some settings of one part."""

    width: int = 3
    """How wide it is."""


@dataclass(frozen=True, kw_only=True)
class Base:
    seed: int = 0
    """Random seed."""


@dataclass(frozen=True, kw_only=True)
class Config(Base):
    data: str
    """What to read,
    in a file."""
    kind: Literal["a", "b"] = "a"
    """Which kind."""
    part: Table = field(default_factory=Table)
    """The part."""

    ESSENTIAL: ClassVar[tuple[str, ...]] = ("data",)
    GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {"input": ("data", "kind"), "structure": ("part",)}


def shown(config: Any, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        parse(config, "try", [flag], "A command.")
    assert stop.value.code == 0
    return capsys.readouterr().out


def help_of(command: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        main([command, flag])
    assert stop.value.code == 0
    return capsys.readouterr().out


def config_of(command: str) -> Any:
    return import_module(f"litebert.commands.{command.replace('-', '_')}").Config


GROUPED = [command for command in COMMANDS if hasattr(config_of(command), "ESSENTIAL")]


def flags_in(text: str) -> list[str]:
    return re.findall(r"^\W*--(\w[\w.-]*)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_the_essential_settings_and_how_many_there_are_more(
    flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(Config, flag, capsys, monkeypatch)
    assert flags_in(text.partition("options")[2]) == ["data"]
    assert "What to read, in a file. (required)" in text
    assert "3 more settings: litebert try --help-all" in text


def test_help_all_shows_every_setting_by_subject(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(Config, "--help-all", capsys, monkeypatch)
    assert re.findall(r"(\w+) options", text) == ["input", "part", "other"]
    assert flags_in(text.partition("options")[2]) == ["data", "kind", "part.width", "seed"]
    assert "more settings" not in text


def test_a_hidden_setting_is_read_all_the_same() -> None:
    config = parse(Config, "try", ["--data", "d", "--kind", "b", "--part.width", "5", "--seed", "7"])
    assert config == Config(data="d", kind="b", part=Table(width=5), seed=7)


def test_a_setting_of_a_base_class_keeps_its_explanation() -> None:
    assert field_docs(Config) == {
        "seed": "Random seed.", "data": "What to read, in a file.", "kind": "Which kind.", "part": "The part."
    }  # fmt: skip


@pytest.mark.parametrize("command", GROUPED)
def test_the_help_of_training_fits_a_screen(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, "--help", capsys, monkeypatch)
    options = text.partition("options")[2]
    assert options.count("\n") <= 44
    assert text.count("\n") <= 42 or command not in ("pretrain", "finetune")
    essential = {name.replace("_", "-") for name in config_of(command).ESSENTIAL}
    assert essential <= set(flags_in(options))
    assert f"more settings: litebert {command} --help-all" in text


@pytest.mark.parametrize("command", GROUPED)
def test_every_setting_of_training_has_one_subject(command: str) -> None:
    config = config_of(command)
    grouped = [name for names in config.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(item.name for item in fields(config))


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_command_with_few_settings_shows_them_all(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, "--help", capsys, monkeypatch)
    assert {item.name.replace("_", "-") for item in fields(config_of(command))} <= set(flags_in(text))
    assert help_of(command, "--help-all", capsys, monkeypatch) == text
