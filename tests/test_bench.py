"""Every script of bench/ imports. bench/few_shot.py reads FewCLUE's texts and pairs and averages over its splits."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from litebert.tokenizer import Tokenizer
from tests.commands.conftest import FILLER, WORDS
from tests.commands.finetuning import small_start
from tests.conftest import REPOSITORY

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = spec_from_file_location("bench_few_shot", REPOSITORY / "bench" / "few_shot.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["bench_few_shot"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def topics(chance: random.Random, count: int) -> Rows:
    """As in tnews: labels are numbers."""
    return [
        {
            "label": 100 + number,
            "label_desc": name,
            "sentence": " ".join([*chance.sample(FILLER, 3), chance.choice(WORDS[name])]),
        }
        for number, name in enumerate(WORDS)
        for _ in range(count)
    ]


def pairs(chance: random.Random, count: int) -> Rows:
    """As in bustm: are they alike?"""
    rows = []
    for _ in range(count):
        same, other = (" ".join(chance.sample(FILLER, 5)) for _ in range(2))
        rows += [
            {"sentence1": same, "sentence2": same + " too", "label": "1"},
            {"sentence1": same, "sentence2": other, "label": "0"},
        ]
    return rows


def write_set(folder: Path, make: Callable[[random.Random, int], Rows]) -> None:
    folder.mkdir(parents=True)
    names = [f"{part}_{number}" for part in ("train", "dev") for number in range(5)]
    for seed, (name, count) in enumerate([*((name, 4) for name in names), ("test_public", 10)]):
        rows = make(random.Random(seed), count)
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_set(folder / "zh" / "fewclue" / "tnews", topics)
    write_set(folder / "zh" / "fewclue" / "bustm", pairs)
    return folder


def rows_of(bench: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch, *flags: object) -> dict[str, dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["few_shot.py", "--device", "cpu", "--out", str(out), *map(str, flags)])
    bench.main()
    return {row["who"]: row for row in map(json.loads, out.read_text(encoding="utf-8").splitlines())}


@pytest.mark.parametrize("name", ["fewclue-tnews", "fewclue-bustm"])
def test_every_split_is_learned_and_the_test_set_asked(
    bench: ModuleType, start: Path, tasks: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = ("--tasks", tasks, "--model", start, "--sets", name)
    rows = rows_of(bench, tmp_path / "test.jsonl", monkeypatch, *given)
    for row in rows.values():
        assert len(row["splits"]) == 5
        assert row["accuracy"] == pytest.approx(statistics.mean(row["splits"]))
        assert row["spread"] == pytest.approx(statistics.stdev(row["splits"]))
        assert row["shots"] == 4
    share = 1 / 3 if name == "fewclue-tnews" else 1 / 2
    assert len(rows) == (5 if name == "fewclue-tnews" else 4)  # of pairs names say nothing
    assert rows["the commonest class"]["splits"] == pytest.approx([share] * 5)
    ours, words = rows["litebert adapt"], rows["words, logistic regression"]
    assert ours["accuracy"] > share + 0.1
    assert ours["gap"] == ours["interval"] == 0
    assert words["gap"] == pytest.approx(100 * (ours["accuracy"] - words["accuracy"]))
    assert words["interval"] > 0
    assert f"{words['accuracy']:.3f}, sd {words['spread']:.3f}" in capsys.readouterr().out
    valid = rows_of(bench, tmp_path / "valid.jsonl", monkeypatch, *given, "--part", "valid")
    counts = [24 * right for right in valid["words, logistic regression"]["splits"]]  # of 12 or 8 questions
    assert counts == pytest.approx([round(count) for count in counts])
    assert valid["words, logistic regression"]["splits"] != words["splits"]


def test_one_training_file_has_no_spread(
    bench: ModuleType, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tasks" / "intents" / "fixed_BANKING77"
    for seed, (part, count) in enumerate((("train_5", 5), ("test", 8))):
        rows = topics(random.Random(seed), count)
        (folder / part).mkdir(parents=True)
        (folder / part / "seq.in").write_text("\n".join(row["sentence"] for row in rows), encoding="utf-8")
        (folder / part / "label").write_text("\n".join(row["label_desc"] for row in rows), encoding="utf-8")
    given = ("--tasks", tmp_path / "tasks", "--model", start, "--sets", "BANKING77", "--shots", 5)
    found = rows_of(bench, tmp_path / "out.jsonl", monkeypatch, *given)
    assert all(row["spread"] is None and row["shots"] == 5 for row in found.values())
    assert len(found) == 5


def test_short_pairs_without_spaces_are_cut_into_characters(bench: ModuleType) -> None:
    texts = [("天气好", "今天"), ("天气坏", "明天"), ("吃饭了", "早上"), ("吃面了", "晚上")]
    found = bench.by_words(texts, ["weather", "weather", "food", "food"], [("吃了吗", "昨天"), ("天气呢", "上午")])
    assert found.probabilities.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("script", sorted((REPOSITORY / "bench").glob("*.py")), ids=lambda path: path.stem)
def test_every_script_imports_and_has_a_main(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"bench_{script.stem}"
    spec = spec_from_file_location(name, script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.syspath_prepend(str(script.parent))  # some import others
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    assert callable(module.main)
