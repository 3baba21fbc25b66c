"""The command line: what it lists, how it reads its settings, how it complains, how it ends."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import litebert
from litebert.cli import COMMANDS, main, parse
from litebert.commands import prepare, pretrain
from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.trainers.finetune_config import DecoderSettings, FinetuneConfig
from tests.conftest import PROSE

CONTRACT = [
    "demo", "models", "tokenizer", "prepare", "pretrain", "finetune", "evaluate", "predict", "report", "meta-train",
    "adapt", "embed", "search", "distill", "quantize", "export", "convert", "serve", "bench", "reproduce",
]  # fmt: skip
HEAVY = ("torch", "numpy", "tokenizers", "rich", "tyro")


def in_a_process(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "litebert", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )


def help_of(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "129")
    with pytest.raises(SystemExit) as stop:
        main([command, "--help-all"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail, and return the one line it says."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    return said.err


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert set(CONTRACT) <= listed
    assert set(COMMANDS) == set(CONTRACT)


@pytest.mark.parametrize("arguments", [[], ["-h"]])
def test_no_command_and_a_short_flag_give_the_same_help(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["--help"]) == 0
    full = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == full


def test_help_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from litebert.cli import main; main(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_help_of_a_command_does_not_import_torch() -> None:
    code = (
        "import sys; from litebert.cli import main\n"
        "try: main(['pretrain', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(("under_torchrun", "shut_down"), [(False, ["shut down"]), (True, [])])
def test_a_rank_ends_without_the_shutdown_that_may_abort_it(under_torchrun: bool, shut_down: list[str]) -> None:
    environment = dict(os.environ) | ({"TORCHELASTIC_RUN_ID": "1"} if under_torchrun else {})
    code = (
        "import atexit, sys; from litebert.cli import command\n"
        "atexit.register(print, 'shut down')\n"
        "print('said'); sys.argv[1:] = ['no-such-command']; command()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (answer.returncode, answer.stdout.split("\n")[:-1]) == (2, ["said", *shut_down])
    assert "no-such-command" in answer.stderr


def test_the_version_is_the_packages() -> None:
    answer = in_a_process("--version")
    assert (answer.returncode, answer.stdout) == (0, f"litebert {litebert.__version__}\n")


def fields_of(command: str) -> list[str]:
    config = import_module(f"litebert.commands.{command.replace('-', '_')}").Config
    names = []
    for field in dataclasses.fields(config):
        table: Any = field.default_factory
        entries = dataclasses.fields(table) if dataclasses.is_dataclass(table) else ()
        names += [f"{field.name}.{entry.name}" for entry in entries] or [field.name]
    return [name.replace("_", "-") for name in names]


@pytest.mark.parametrize(("command", "flag"), [(command, flag) for command in COMMANDS for flag in fields_of(command)])
def test_every_flag_is_explained(
    command: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = re.sub(r"[│╭╮╰╯─]", " ", help_of(command, capsys, monkeypatch))
    options = text[text.index(" options ") :]
    entry = re.search(rf"^ {{1,4}}--{flag}[ ,](.*?)(?=^ {{1,4}}--|\Z)", options, flags=re.MULTILINE | re.DOTALL)
    assert entry is not None
    explained = re.search(r"([A-Z][^()]+[.;:])", entry[1])
    assert explained is not None, entry[0]
    assert len(explained[1].split()) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does_and_that_it_takes_a_file(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, capsys, monkeypatch)
    purpose = import_module(f"litebert.commands.{command.replace('-', '_')}").__doc__.splitlines()[0]
    assert purpose in text
    assert "--config FILE" in text


# --- commands that are not there --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "meant"), [("pretrian", "pretrain"), ("fine-tune", "finetune"), ("adpat", "adapt")])
def test_an_unknown_command_suggests_the_near_one(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint([typed], capsys)
    assert f"{typed!r} is not a command (did you mean {meant!r}?)" in line
    assert "litebert --help" in line


def test_a_command_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in complaint(["xyzzy"], capsys)


# --- flags ------------------------------------------------------------------------------------------------------------

NEEDED = ["--data", "d", "--out", "o"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([*NEEDED, "--stepz", "3"], ["--stepz", "--steps"]),
        ([*NEEDED, "--steps", "many"], ["--steps", "'many'"]),
        ([*NEEDED, "--preset", "huge"], ["'huge'", "'tiny'", "'xxlarge'"]),
        (["--data", "d"], ["--out"]),
        ([*NEEDED, "--steps"], ["--steps"]),
        ([*NEEDED, "more"], ["more"]),
        ([*NEEDED, "--steps", "0"], ["steps=0 must be at least 1"]),
    ],
    ids=["unknown flag", "wrong type", "wrong choice", "missing flag", "missing value", "stray word", "out of range"],
)
def test_a_wrong_flag_gets_one_line(flags: list[str], says: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(["pretrain", *flags], capsys)
    for part in says:
        assert part in line


def test_a_wrong_flag_ends_a_process_with_code_2_and_one_line() -> None:
    answer = in_a_process("pretrain", *NEEDED, "--steps", "many")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("litebert: ")
    assert answer.stderr.count("\n") == 1


def test_a_message_of_several_lines_is_told_in_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "two\nlines.csv"
    assert "lines.csv" in complaint(["finetune", "--model", "m", "--train", str(odd), "--out", str(tmp_path)], capsys)


# --- settings from a file ---------------------------------------------------------------------------------------------


def settings(text: str, tmp_path: Path, *flags: str, config: Any = pretrain.Config) -> Any:
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    return parse(config, "pretrain", ["--config", str(tmp_path / "run.toml"), *flags])


def test_a_file_counts_over_defaults_and_flags_over_the_file(tmp_path: Path) -> None:
    config = settings('data = "d"\nsteps = 7\nlength = 64\n', tmp_path, "--out", "o", "--length", "32")
    assert (config.batch_size, config.steps, config.length) == (pretrain.Config.batch_size, 7, 32)
    assert (config.data, config.out) == (Path("d"), Path("o"))


def test_a_flag_may_stand_before_the_file_and_still_counts(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = 7")
    path = str(tmp_path / "run.toml")
    assert parse(pretrain.Config, "pretrain", [*NEEDED, "--steps", "9", "--config", path]).steps == 9


def test_the_file_may_be_given_with_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = 7")
    assert parse(pretrain.Config, "pretrain", [*NEEDED, f"--config={tmp_path / 'run.toml'}"]).steps == 7


@pytest.mark.parametrize("key", ["learning_rate", "learning-rate"])
def test_keys_are_spelled_like_fields_or_like_flags(tmp_path: Path, key: str) -> None:
    assert settings(f"{key} = 0.5", tmp_path, *NEEDED).learning_rate == 0.5


@pytest.mark.parametrize(("value", "flag", "expected"), [
    ("true", [], True), ("false", [], False), ("true", ["--no-resume"], False), ("false", ["--resume"], True),
])  # fmt: skip
def test_switches_are_booleans(tmp_path: Path, value: str, flag: list[str], expected: bool) -> None:
    assert settings(f"resume = {value}", tmp_path, *NEEDED, *flag).resume is expected


def test_lists_are_lists_and_a_flag_replaces_them_whole(tmp_path: Path) -> None:
    text, rest = 'input = ["a.txt", "b.txt"]', ("--tokenizer", "t", "--out", "o")
    assert settings(text, tmp_path, *rest, config=prepare.Config).input == (Path("a.txt"), Path("b.txt"))
    assert settings(text, tmp_path, *rest, "--input", "c.txt", config=prepare.Config).input == (Path("c.txt"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "stepz = 7",
            r"run\.toml: 'stepz' is not a setting of this command \(did you mean 'steps'\?\); it has .*steps",
        ),
        ("xyzzy = 7", r"run\.toml: 'xyzzy' is not a setting of this command; it has"),
        ("steps = = 7", r"run\.toml: not TOML \(.*line 1.*\); write lines such as: steps = 1000"),
        ("steps = 'many'", r"--steps.*'many'"),
        ("[steps]\nx = 1", r"run\.toml: \[steps\] is a table; write settings as lines of their own"),
        ("preset = 'huge'", r"'huge'.*'tiny'"),
        ("steps = 0", r"steps=0 must be at least 1"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(text, tmp_path, *NEEDED)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes("out = 'é'".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.toml: not TOML"):
        parse(pretrain.Config, "pretrain", ["--config", str(tmp_path / "run.toml")])


@pytest.mark.parametrize(("path", "reason"), [("nope.toml", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"cannot be read \({reason}.*\); give a TOML file"):
        parse(pretrain.Config, "pretrain", [*NEEDED, "--config", str(tmp_path / path)])


def test_a_missing_name_after_config_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--config needs a TOML file after it" in complaint(["pretrain", *NEEDED, "--config"], capsys)


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_run_json_holds_the_resolved_settings_versions_and_seed(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(PROSE), encoding="utf-8")
    (tmp_path / "run.toml").write_text("vocab_size = 120\nseed = 5\nlowercase = false\n", encoding="utf-8")
    files = ["--input", str(tmp_path / "corpus.txt"), "--out", str(tmp_path / "tok")]
    assert main(["tokenizer", *files, "--config", str(tmp_path / "run.toml"), "--vocab-size", "130"]) == 0
    run = json.loads((tmp_path / "tok" / "run.json").read_text())
    assert run["command"] == "tokenizer"
    assert run["config"] == {
        "out": str(tmp_path / "tok"), "input": [str(tmp_path / "corpus.txt")], "import_from": None, "vocab_size": 130,
        "kind": "unigram", "lowercase": False, "strip_accents": True, "fold_punctuation": False, "seed": 5,
        "text_column": "text", "encoding": "auto", "add": None,
    }  # fmt: skip
    assert run["litebert"] == litebert.__version__
    assert run["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "numpy", "tokenizers", "safetensors", "sentencepiece"} <= set(run["packages"])
    assert run["packages"]["torch"] is not None
    assert "git_commit" in run


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_a_command_silently(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    (tmp_path / "gaps.txt").write_text("the [MASK] opened at five\n" * 300)
    process = subprocess.Popen(
        [sys.executable, "-m", "litebert", "predict", "--model", "model", "--input", "gaps.txt", "--batch-size", "1"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["masks"]
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


def test_an_interrupt_ends_a_command_with_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("litebert.commands.models"), "run", interrupted)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "litebert: interrupted\n"


def test_models_lists_the_presets_with_their_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("tiny", "small", "base", "large", "xlarge", "xxlarge"))
    assert "11,683,584" in shown  # ALBERT-base, as transformers counts it


# --- tables -----------------------------------------------------------------------------------------------------------

REQUIRED = ("--task", "translate", "--train", "t.tsv", "--out", "out")


@pytest.mark.parametrize(
    "flags",
    [
        ("--decoder", "layers=2", "depths=0,3", "sharing=all"),
        ("--decoder.layers", "2", "--decoder.depths", "0", "3", "--decoder.sharing", "all"),
        ("--decoder-layers", "2", "--decoder-depths", "0", "3", "--decoder-sharing", "all"),
    ],
    ids=["a table", "dotted", "as before 0.2"],
)
def test_settings_of_the_decoder_are_one_table(flags: tuple[str, ...]) -> None:
    config = parse(FinetuneConfig, "finetune", [*REQUIRED, *flags])
    assert config.decoder == DecoderSettings(layers=2, depths=(0, 3), sharing="all")


def test_a_table_in_a_file_is_read_and_flags_count_over_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("epochs = 3\n[decoder]\nlayers = 2\ndepths = [0, 3]\n")
    config = parse(FinetuneConfig, "finetune", ["--config", str(file), *REQUIRED, "--decoder", "layers=6"])
    assert (config.epochs, config.decoder) == (3, DecoderSettings(layers=6, depths=(0, 3)))


def test_a_wrong_entry_of_a_table_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"decoder: 'layer' is not one of its settings \(did you mean 'layers'\?\)"):
        parse(FinetuneConfig, "finetune", [*REQUIRED, "--decoder", "layer=2"])
    with pytest.raises(ConfigError, match="write it as KEY=VALUE, such as --decoder layers=2"):
        parse(FinetuneConfig, "finetune", [*REQUIRED, "--decoder", "small"])
