"""The pages: what their code prints, what the generated parts hold, and that nothing is fetched."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import litebert
from litebert.cli import COMMANDS, main
from litebert.files import read_toml
from litebert.inference import Model
from litebert.tokenizer.pipelines import UNIGRAM_SPECIALS, WORDPIECE_SPECIALS
from tests.conftest import REPOSITORY, missing
from tests.test_architecture import IMPORTS, ORDER, package_of

DOCS = REPOSITORY / "docs"
RUNNABLE = ("start", "api", "misconceptions", "walk", "architecture")
"""Pages whose Python is run from top to bottom, and prints what the block behind it shows."""
TINY = re.compile(r"\b\d(?:\.\d)?e-\d\d\b|\b0e\+00\b")
"""A difference by rounding, which other processors round otherwise."""


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return imported(DOCS / "extensions" / "command_reference.py")


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_python_of_a_page_prints_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, flags=re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    for code, shown in found:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, f"docs/{page}.md", "exec"), names)
        assert TINY.sub("tiny", said.getvalue()) == TINY.sub("tiny", shown)
        assert all(float(number) < 1e-5 for number in TINY.findall(said.getvalue()))


# --- tutorials --------------------------------------------------------------------------------------------------------

TASKS_PAGE = (DOCS / "tasks.md").read_text(encoding="utf-8")
SIX = ("tickets", "troubles", "stars", "names", "questions", "orders")


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    return imported(REPOSITORY / "examples" / "task_samples.py")


def lesson(name: str) -> str:
    """The section of a tutorial, by the folder of its model."""
    sections = re.split(r"^###? ", TASKS_PAGE, flags=re.MULTILINE)
    return next(section for section in sections if f"--out runs/{name}\n" in section)


@pytest.mark.parametrize("name", SIX)
def test_a_tutorial_runs_on_its_files_and_answers_as_it_shows(
    name: str, samples: ModuleType, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    samples.write_samples(Path("samples"), train=24, test=8)
    model.save("tiny")
    text = lesson(name)
    (command,) = re.findall(r"^litebert (finetune .*)$", text, flags=re.MULTILINE)
    assert main([*shlex.split(command), "--model", "tiny", "--epochs", "1"]) == 0
    said = capsys.readouterr()
    assert "baseline" in text
    assert f"samples/{name}-test" in said.out + said.err
    (asked,) = re.findall(rf"^echo '(.*)' \| litebert predict --model runs/{name}$", text, flags=re.MULTILINE)
    shown = re.findall(r"^```json\n(\{[^`]*\})\n```$", text, flags=re.MULTILINE)[-1]  # the first may be the file
    item = json.loads(asked) if asked.startswith("{") else asked
    answer = dataclasses.asdict(litebert.load(f"runs/{name}").predict([item])[0])
    assert list(json.loads(shown)) == list(answer)


def test_samples_on_the_page_are_lines_of_the_files(samples: ModuleType, tmp_path: Path) -> None:
    samples.write_samples(tmp_path)
    for name in ("tickets.csv", "troubles.csv", "stars.csv", "names.conll", "orders.csv"):
        block = re.findall(r"^```\n(.*?)^```$", lesson(name.split(".")[0]), flags=re.MULTILINE | re.DOTALL)[0]
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        assert block.splitlines()[0] == lines[0], name
        assert set(block.splitlines()) <= set(lines), name


# --- all options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_in_the_reference(command: str, reference: ModuleType) -> None:
    config = import_module(f"litebert.commands.{command.replace('-', '_')}").Config
    fields = dict(flags_of(config))
    options = {option.flags.split(", ")[0]: option for option in reference.options_of(command)}
    assert sorted(options) == sorted(fields)
    for flag, field in fields.items():
        option = options[flag]
        assert len(option.meaning.split()) >= 2, option
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        assert (option.default is None) == required, option
        if isinstance(field.default, str | int | float) and not isinstance(field.default, bool) and field.default != "":
            assert option.default == str(field.default)


def flags_of(config: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Each flag with its field; a field that is a dataclass, such as `decoder`, has a flag per field of its own."""
    for field in dataclasses.fields(config):
        flag = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(field.default_factory):
            yield from flags_of(field.default_factory, f"{flag}.")
        else:
            yield flag, field


def test_the_reference_has_a_table_for_each_command(reference: ModuleType) -> None:
    text = reference.markdown()
    assert re.findall(r"^## ([\w-]+)$", text, flags=re.MULTILINE) == list(COMMANDS)
    rows = [line for line in text.splitlines() if line.startswith("| `--")]
    assert len(rows) == sum(len(reference.options_of(command)) for command in COMMANDS)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows), "a cell would be torn apart"
    assert "`--preset` one of `tiny`, `small`" in text
    assert "| `--data` `PATH` | must be given |" in text


def test_the_reference_stands_where_its_page_says(reference: ModuleType) -> None:
    source = [(DOCS / f"{reference.PAGE}.md").read_text(encoding="utf-8")]
    reference._fill_in(None, "another-page", source)
    assert reference.PLACE in source[0]
    reference._fill_in(None, reference.PAGE, source)
    assert reference.PLACE not in source[0]
    assert "## reproduce" in source[0]


# --- tables and drawings ----------------------------------------------------------------------------------------------


def test_the_table_of_packages_is_the_order_that_is_tested() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    section = text[text.index("## Which package may import which") : text.index("## Rules that hold everywhere")]
    packages = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert packages == [package for package in reversed(ORDER) if package != "__main__"]


def test_the_drawings_are_what_their_script_draws() -> None:
    draw = imported(DOCS / "images" / "draw.py")
    for name, drawing in draw.DRAWINGS.items():
        assert (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8") == drawing().svg()
    height = {part: number for number, row in enumerate(reversed(draw.LAYERS)) for part in row}
    for module, imports in IMPORTS.items():
        own = package_of(module)
        for other in {package_of(name) for name in imports} - {own}:
            if own != "__main__":
                assert height[other] < height[own], f"{own} stands below {other}, which it imports"
    assert set(height) == set(ORDER) - {"__main__"}


def test_the_records_of_the_api_page_are_those_of_the_tasks() -> None:
    from litebert.fewshot import task as few_shot
    from litebert.tasks import answer, choose, classify, mask, multilabel, regress, similarity, tag, translate

    outputs = [
        classify.ClassifyOutput, few_shot.FewShotOutput, multilabel.MultilabelOutput, regress.RegressOutput,
        tag.TagOutput, answer.AnswerOutput, choose.ChooseOutput, similarity.SimilarOutput, translate.TranslateOutput,
        mask.MaskOutput,
    ]  # fmt: skip
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    section = text[text.index("### Inputs and outputs") : text.index("## Few-shot learning")]
    rows = re.findall(r"^\| `(\w+)`.*\| ([^|]*) \|$", section, flags=re.MULTILINE)
    assert len(rows) == len(outputs)
    for (task, told), output in zip(rows, outputs, strict=True):
        names = [field.name for field in dataclasses.fields(output)]
        if output is few_shot.FewShotOutput:
            names = ["unknown", "is_unknown"]  # and those of classify
        assert set(names) <= set(re.findall(r"`(\w+)`", told)), task


def test_special_tokens_are_told_for_both_kinds_of_vocabulary() -> None:
    for page in ("tokenizer", "faq"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for specials in (UNIGRAM_SPECIALS, WORDPIECE_SPECIALS):
            assert f"`{specials['pad']} {specials['unk']}" in text, page


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` builds them."""
    if importlib.util.find_spec("sphinx") is None:
        missing("sphinx")
    out = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-d", str(out / "trees"), str(DOCS)]
    run = subprocess.run([*command, str(out / "html")], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return out / "html"


IMPORT_WITHOUT = """
import sys
from importlib import import_module
absent, names = (given.split() for given in sys.argv[1:])
sys.modules.update(dict.fromkeys(absent))
for name in names:
    module, _, member = name.rpartition(".")
    getattr(import_module(module), member)
"""


def test_the_docs_extra_is_enough_for_what_the_pages_import() -> None:
    extras = read_toml(REPOSITORY / "pyproject.toml")["project"]["optional-dependencies"]
    named = {extra: {re.split(r"[^\w-]", given)[0] for given in extras[extra]} for extra in extras}
    others = set().union(*named.values()) - named["docs"] - {"litebert"}
    absent = [module for module, owners in packages_distributions().items() if others & set(owners)]
    assert "sacrebleu" in absent
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, flags=re.MULTILINE)
    command = [sys.executable, "-c", IMPORT_WITHOUT, " ".join(absent), " ".join(names)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_page_is_in_the_contents(built: Path) -> None:
    contents = (built / "index.html").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or f'href="{page.stem}.html"' in contents, page.name


def test_the_pages_load_nothing_from_elsewhere(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 25
    loading = re.compile(
        r"<(?:script|img|iframe|source|object|embed|link)\b[^>]*?(?:src|href|data)=\"(?:https?:)?//[^\"]*"
    )
    for page in pages:
        assert not loading.search(page.read_text(encoding="utf-8")), page.name
    for sheet in built.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name
    for picture in (DOCS / "images").glob("*.svg"):
        shapes = re.sub(
            r"xmlns(:\w+)?=\"[^\"]*\"|<!DOCTYPE.*?>|<metadata>.*?</metadata>",
            "",
            picture.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        assert not re.search(r"(?:href|src)=\"https?:|url\(https?:", shapes), picture.name


def test_the_built_pages_hold_what_is_generated(built: Path) -> None:
    reference = (built / "reference.html").read_text(encoding="utf-8")
    assert all(f'id="{command}"' in reference for command in COMMANDS)
    assert "--gradient-checkpointing" in reference
    api = (built / "api.html").read_text(encoding="utf-8")
    assert all(f'id="litebert.{name}"' in api for name in ("load", "adapt", "Model", "Model.predict", "Model.encoder"))
    assert "def _run_layer" in re.sub("<[^>]+>", "", (built / "walk.html").read_text(encoding="utf-8"))
