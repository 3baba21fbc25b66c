"""The pages in Chinese do what they say: their files and commands are a run, their Python prints what stands below.

Commands are run with stand-ins that have the names and vocabularies of the built-in models, but next to no weights.
Where a page shows what Python prints, it is the real model that prints it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import litebert
from litebert import builtin
from litebert.cli import COMMANDS, main
from litebert.model import AlbertConfig
from litebert.tokenizer import Tokenizer
from tests.conftest import REPOSITORY, peer
from tests.interop.test_huggingface import random_model

FOLDER = REPOSITORY / "docs" / "zh"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
FENCED = re.compile(r"^```([^\n]*)\n((?::[^\n]*\n)*)(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
TENSORFLOW = REPOSITORY / "tests" / "interop" / "fixtures" / "tensorflow"
CHECKPOINTS = {"albert_base_v2": "google", "albert_small_zh": "google_shards", "albert_tiny_zh": "albert_zh"}
NOT_RUN = (
    "litebert demo", "litebert serve", "BERT_FOLDER",  # no folder of that name
    "--steps 5500", "--steps 900",  # for a GPU, for minutes
    # tests/commands/test_convert.py has these
    "convert albert_hub", "convert old_transformers", "convert lone_patient", "convert preset",
)  # fmt: skip
FOREIGN = ("python bench/", "python examples/", "torchrun", "opencc")
"""Programs with flags of their own."""


def parts_of(page: str) -> list[tuple[str, str, str]]:
    """Fenced blocks: what they are, their file, what they hold."""
    return [
        (kind.strip(), (re.search(r":caption: (\S+)", options) or ["", ""])[1], content)
        for kind, options, content in FENCED.findall(page)
    ]


def lines_of(page: str) -> list[str]:
    """The commands to run, from blocks and tables, with what is piped into them."""
    plain = FENCED.sub(lambda block: "" if block[1] else block[3], page)  # of blocks only those with commands are left
    return re.findall(
        r"^(?:\|.*`(?=litebert [^`]+` \|))?((?:echo '.*' \| )?litebert [^`\n]+)", plain, flags=re.MULTILINE
    )


RUN = [name for name in PAGES if name != "measured" and any("litebert " in line for line in lines_of(PAGES[name]))]
"""What that page names takes a GPU, or hours."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small models under the names of those that are built in, and what else pages speak of."""
    for name, folder in builtin.FOLDERS.items():
        tokenizer = Tokenizer.load(folder)
        config = AlbertConfig(
            vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=32, num_hidden_layers=8,
            num_attention_heads=2, intermediate_size=64, max_position_embeddings=512,
        )  # fmt: skip
        random_model(config, tokenizer).save(tmp_path / name)
    for name, fixture in CHECKPOINTS.items():
        shutil.copytree(TENSORFLOW / fixture, tmp_path / name)
    shutil.copy(TENSORFLOW / "albert_zh" / "vocab.txt", tmp_path)
    tickets = Path("src", "litebert", "examples", "tickets-zh.csv")
    (tmp_path / tickets).parent.mkdir(parents=True)
    some = (REPOSITORY / tickets).read_text(encoding="utf-8").splitlines(keepends=True)[:31]
    (tmp_path / tickets).write_text("".join(some), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    piped = re.match(r"echo '(.*)' \| ", line)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{piped[1] if piped else ''}\n".encode())))
    return main(shlex.split(line[piped.end() if piped else 0 :], comments=True)[1:])


@pytest.mark.filterwarnings(
    "ignore:.* are unknown to this vocabulary"
)  # of the small checkpoints, which have 45 tokens
@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_page_work_one_after_the_other(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in ("sklearn", "matplotlib", "rjieba", "opencc", "onnxruntime", "sacrebleu"):
        peer(extra)
    parts = parts_of(PAGES[name])
    for _, file, content in parts:
        if file:
            (place / file).write_text(content, encoding="utf-8")
    for line in lines_of(PAGES[name]):
        if not any(part in line for part in NOT_RUN):
            assert run_line(line, monkeypatch) == 0, line
    for number, (kind, _, content) in enumerate(parts):
        if kind == "python" and not is_printed(parts, number):
            exec(compile(content, name, "exec"), {})


def is_printed(parts: list[tuple[str, str, str]], number: int) -> bool:
    """Does the page show below the code what it prints?"""
    return number + 1 < len(parts) and not parts[number + 1][0] and "litebert " not in parts[number + 1][2]


@pytest.mark.filterwarnings("ignore:.* are unknown to this vocabulary")  # of traditional characters, as the page says
@pytest.mark.parametrize("name", [name for name in PAGES if "```python" in PAGES[name]])
def test_the_python_of_a_page_prints_what_the_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = parts_of(PAGES[name])
    for number, (kind, _, content) in enumerate(parts):
        if kind == "python" and is_printed(parts, number):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(content, name, "exec"), {})
            assert said.getvalue() == parts[number + 1][2]


def test_the_clients_of_the_page_on_serving_are_answered() -> None:
    peer("openai")
    from litebert.serve.limits import Limits
    from litebert.serve.registry import Registry
    from litebert.serve.service import Service
    from tests.serve.conftest import listening

    clients = [content for kind, _, content in parts_of(PAGES["serve"]) if kind == "{code-block} python"]
    assert len(clients) == 2
    registry = Registry.load([builtin.CHINESE])
    with (
        listening(lambda: Service(registry, Limits()), Limits()) as address,
        contextlib.redirect_stdout(io.StringIO()) as said,
    ):
        for client in clients:
            names: dict[str, Any] = {}
            exec(compile(client.replace("http://127.0.0.1:8000", address), "serve.md", "exec"), names)
            if "vectors" in names:
                assert [len(one.embedding) for one in names["vectors"].data] == [512, 512]
    assert said.getvalue() == "物流\n"


@pytest.mark.parametrize("name", PAGES)
def test_every_flag_that_a_page_names_exists(name: str) -> None:
    configs = (import_module(f"litebert.commands.{recipe.replace('-', '_')}").Config for recipe in COMMANDS)
    known = {field.name for config in configs for field in fields(config)} | {"config"}
    spans = [line for _, _, content in parts_of(PAGES[name]) for line in content.splitlines()]
    spans += re.findall(r"`([^`\n]+)`", FENCED.sub("", PAGES[name]))
    for span in spans:
        if not any(program in span for program in FOREIGN):
            for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", span):
                assert flag.removeprefix("no-").replace("-", "_") in known, span


def test_the_index_has_every_page() -> None:
    listed = [line for kind, _, content in parts_of(PAGES["index"]) if "toctree" in kind for line in content.split()]
    assert sorted(name for name in listed if "/" not in name) == sorted(set(PAGES) - {"index"})


def test_the_scores_are_those_of_the_card() -> None:
    card = (builtin.FOLDERS[builtin.CHINESE] / "README.md").read_text(encoding="utf-8")
    figures = [re.findall(r"\d+\.\d", line) for line in PAGES["index"].splitlines() if re.match(r"\| [A-Z]", line)]
    in_card = [
        re.findall(r"\d+\.\d", line) for line in card.splitlines() if "development set" in line or "test, acc" in line
    ]
    assert figures == [row for row in in_card if row][: len(figures)]
    assert litebert.load(builtin.CHINESE).config.hidden_size == 512
