"""`litebert COMMAND ...`: find the command, turn its dataclass into flags, run it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from litebert import __version__
from litebert.errors import ConfigError, LitebertError
from litebert.files import read_toml
from litebert.run_folder import INTERRUPTED

COMMANDS = (
    "demo",
    "models",
    "tokenizer",
    "prepare",
    "pretrain",
    "finetune",
    "meta-train",
    "adapt",
    "distill",
    "quantize",
    "export",
    "convert",
    "evaluate",
    "predict",
    "embed",
    "search",
    "serve",
    "report",
    "bench",
    "reproduce",
)
USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    name, *flags = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name in ("-V", "--version"):
        print(f"litebert {__version__}")
        return 0
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _run(name, flags)
    except LitebertError as error:
        print("litebert:", " ".join(str(error).splitlines()), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("litebert: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print("litebert: warning:", " ".join(str(message).splitlines()), file=sys.stderr)


def _run(name: str, flags: list[str]) -> int:
    if name not in COMMANDS:
        raise ConfigError(f"{name!r} is not a command{_did_you_mean(name, COMMANDS)}; `litebert --help` lists them")
    module = import_module(f"litebert.commands.{name.replace('-', '_')}")
    return int(module.run(parse(module.Config, name, flags, module.__doc__ or "")) or 0)


def parse(config: type[Any], name: str, flags: Sequence[str], description: str = "") -> Any:
    """Defaults, then the TOML file of `--config`, then the flags."""
    import tyro

    from litebert.command_help import HELP_ALL_FLAG, HELP_FLAGS, print_help

    flags = _with_toml(config, _with_tables(config, _named(config, list(flags))))
    description = f"{description.strip()}\n\n--config FILE takes settings from a TOML file; flags override them."
    if requested := {*HELP_FLAGS, HELP_ALL_FLAG}.intersection(flags):
        print_help(config, f"litebert {name}", description, everything=HELP_ALL_FLAG in requested)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(config, prog=f"litebert {name}", description=description, args=flags)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(f"{_one_line(complaint.getvalue())}; see litebert {name} --help") from None


def _named(config: type[Any], flags: list[str]) -> list[str]:
    """Words before the first flag belong to the setting that a command takes without its name, or to several."""
    names = getattr(config, "POSITIONAL", ())
    count = next((number for number, flag in enumerate(flags) if flag.startswith("-")), len(flags))
    if not names or not count:
        return flags
    if isinstance(names, str):
        return [f"--{names}", *flags]
    if count > len(names):
        raise ConfigError(f"{flags[len(names)]!r} is one word too many; there are {' and '.join(names)}")
    return [part for pair in zip(names, flags[:count], strict=False) for part in (f"--{pair[0]}", pair[1])] + flags[
        count:
    ]


def _with_toml(config: type[Any], flags: list[str]) -> list[str]:
    """Put the settings of a `--config FILE` before the flags."""
    flags = [part for flag in flags for part in (flag.split("=", 1) if flag.startswith("--config=") else [flag])]
    if "--config" not in flags:
        return flags
    at = flags.index("--config")
    if at + 1 == len(flags):
        raise ConfigError("--config needs a TOML file after it; for example --config run.toml")
    path = Path(flags[at + 1])
    flags = flags[:at] + flags[at + 2 :]
    known = {field.name for field in dataclasses.fields(config)}
    tables = _tables(config)
    given: list[str] = []
    for key, value in read_toml(path).items():
        field = key.replace("-", "_")
        if field not in known:
            raise ConfigError(
                f"{path}: {key!r} is not a setting of this command{_did_you_mean(field, sorted(known))}; "
                f"it has {', '.join(sorted(known))}"
            )
        if isinstance(value, dict) and field in tables:
            for entry, content in value.items():
                given += _as_flag(_table_flag(field, tables[field], entry), content)
            continue
        if isinstance(value, dict):
            raise ConfigError(
                f"{path}: [{key}] is a table; write settings as lines of their own, such as: steps = 1000"
            )
        given += _as_flag(field.replace("_", "-"), value)
    return given + flags  # of a flag given twice the later one counts


def _tables(config: type[Any]) -> dict[str, type[Any]]:
    """Settings that are dataclasses of their own, such as `decoder`: a table in TOML, key=value as a flag."""
    kinds: dict[str, Any] = {field.name: field.default_factory for field in dataclasses.fields(config)}
    return {name: kind for name, kind in kinds.items() if dataclasses.is_dataclass(kind) and isinstance(kind, type)}


def _table_flag(name: str, table: type[Any], key: str) -> str:
    known = [field.name for field in dataclasses.fields(table)]
    if key.replace("-", "_") not in known:
        raise ConfigError(
            f"{name}: {key!r} is not one of its settings{_did_you_mean(key, known)}; it has {', '.join(known)}"
        )
    return f"{name}.{key.replace('_', '-')}"


def _with_tables(config: type[Any], flags: list[str]) -> list[str]:
    """`--decoder layers=2 heads=8` and the former `--decoder-layers 2` as the flags `--decoder.layers 2 ...`."""
    for name, table in _tables(config).items():
        flags = [re.sub(rf"^--{name}[-_](?=\w)", f"--{name}.", flag) for flag in flags]
        while f"--{name}" in flags:
            at = flags.index(f"--{name}")
            end = next((n for n in range(at + 1, len(flags)) if flags[n].startswith("-")), len(flags))
            expanded: list[str] = []
            for pair in flags[at + 1 : end]:
                key, equals, value = pair.partition("=")
                if not equals:
                    raise ConfigError(f"--{name} {pair}: write it as KEY=VALUE, such as --{name} layers=2")
                expanded += [f"--{_table_flag(name, table, key)}", *value.split(",")]
            flags = flags[:at] + expanded + flags[end:]
    return flags


def _as_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, list) else [value])]


def _one_line(box: str) -> str:
    """The flag library draws its complaints in a box; keep the words."""
    lines = [re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.splitlines()[1:]]
    words = [line for line in lines if line and not re.match(r"For full helptext|litebert [\w-]+ --help", line)]
    return re.sub(r"\s+", " ", " ".join(words)).strip().rstrip(".") or "the flags could not be read"


def _did_you_mean(word: str, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _overview() -> str:
    lines = [
        "litebert: make an ALBERT from raw text, teach it a task and use it.",
        "",
        "usage: litebert COMMAND [OPTIONS]",
        "",
    ]
    for name in COMMANDS:
        summary = (import_module(f"litebert.commands.{name.replace('-', '_')}").__doc__ or "").splitlines()[0]
        lines.append(f"  {name:<12}{summary.rstrip('.')}")
    lines += [
        "",
        "litebert COMMAND --help   its options",
        "litebert --version",
    ]
    return "\n".join(lines)


def command() -> NoReturn:
    """What `litebert` and `python -m litebert` run."""
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun
        # A thread of the process group may still hold the tensor of the last exchange, and the process is aborted when
        # the thread lets go of it while the interpreter shuts down (pytorch/pytorch#179291). Nothing is left to do
        # here but to end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    command()
