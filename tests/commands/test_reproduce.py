"""`litebert reproduce`: every cell once, go on after anything, and verdicts that follow from the numbers."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from litebert.commands import reproduce
from litebert.console import make_console
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.measure.intervals import Estimate
from litebert.run_folder import INTERRUPTED
from litebert.studies.reproduce import plan as reproduce_plan
from litebert.studies.reproduce import runner as reproduce_runner
from litebert.studies.reproduce.evaluation import balanced_accuracy, draw_shots, probe_accuracy
from litebert.studies.reproduce.paper import CLAIMS, PAPER_RESULTS, Claim
from litebert.studies.reproduce.plan import parse_budget
from litebert.studies.reproduce.report import write_pages
from litebert.studies.reproduce.runner import Job, distribute, make_jobs
from litebert.studies.reproduce.variants import (
    STRATEGIES,
    TABLES,
    ModelVariant,
    TableName,
    table_rows,
    variants_with_tables,
)
from litebert.studies.reproduce.verdicts import Results, judge_claim, variant_effects, verdict_of
from tests.commands.conftest import Flow, litebert, once
from tests.conftest import PROSE

COMMON: dict[str, Any] = {
    "hidden_size": 768, "layers": 12, "sharing": "all", "embedding_size": 128, "sentences": "order", "mask": "ngram",
    "mask_rate": 0.15, "optimizer": "muon",
}  # fmt: skip
PLAN: dict[str, Any] = COMMON | {
    "made_up": False, "steps": 100, "batch_size": 256, "length": 128, "tasks": {}, "depth_ramp": None, "shots": 5,
}  # fmt: skip
TINY = (
    "--hidden-size", 136, "--layers", 2, "--batch-size", 4, "--length", 128, "--budget", 2048, "--rows", 64, "--shots",
    2, "--device", "cpu", "--precision", "fp32",
)  # fmt: skip


# --- what is run ------------------------------------------------------------------------------------------------------


def test_cells_that_tables_share_are_one() -> None:
    cells = variants_with_tables(TABLES, COMMON)
    meant = [row.cell for table in TABLES for row in table_rows(table, COMMON)]
    assert set(meant) == set(cells)
    assert cells[ModelVariant()] == [
        "embedding", "sharing", "sentence-loss", "depth", "strategies", "masking", "optimizer",
    ]  # fmt: skip
    assert cells[ModelVariant.of(COMMON, sharing="none", embedding_size=768)] == ["embedding", "sharing"]
    assert (len(meant), len(cells)) == (8 + 8 + 3 + 6 + 10 + 8 + 12 + 3, 48)


def test_no_two_cells_have_the_same_folder() -> None:
    keys = [cell.key for cell in variants_with_tables(TABLES, COMMON)]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[\w.-]+", key) for key in keys)


@pytest.mark.parametrize("hidden_size", [64, 128, 384, 768])
def test_no_embedding_is_larger_than_the_hidden_size(hidden_size: int) -> None:
    common = COMMON | {"hidden_size": hidden_size, "embedding_size": min(128, hidden_size)}
    sizes = [
        dict(row.cell.changes).get("embedding_size", common["embedding_size"])
        for row in table_rows("embedding", common)
    ]
    assert max(sizes) == hidden_size
    assert len({row.cell for row in table_rows("sharing", common)}) == len(table_rows("sharing", common))


def test_every_strategy_is_a_setting_of_pretrain(tmp_path: Path) -> None:
    plan = reproduce_plan.Plan(
        tmp_path, False, COMMON, {"steps": 10, "batch_size": 4, "length": 64}, 64, 64, (), 1, tmp_path, (), 5
    )
    for name, settings in STRATEGIES.items():
        config = plan.settings(ModelVariant.of(COMMON, **settings), 0, tmp_path)
        assert {key: getattr(config, key) for key in settings} == settings, name


def test_a_table_is_whole_before_the_next_one_begins() -> None:
    jobs = make_jobs(("sentence-loss", "optimizer"), 2, COMMON)
    assert [job.seed for job in jobs] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert len(set(jobs)) == len(jobs)


def test_processes_get_about_the_same_work() -> None:
    shares = distribute([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2)
    assert sorted(number for share in shares for number in share) == [0, 1, 2, 3, 4, 5]
    assert shares == [[0], [1, 2, 3, 4, 5]]
    assert distribute([], 2) == [[], []]


def test_budgets_have_names_and_units() -> None:
    assert parse_budget("paper") == 125_000 * 4096 * 512
    assert [parse_budget(text) for text in ("50M", "1.5G", "300k", "1_000", "1024")] == [
        50_000_000, 1_500_000_000, 300_000, 1000, 1024,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"budget='year' must be a number of tokens, such as 50M, or one of minutes"):
        parse_budget("year")


# --- what the paper says ----------------------------------------------------------------------------------------------


def test_the_papers_values_and_claims_are_about_rows_that_exist() -> None:
    names = {table: {row.name for row in table_rows(table, COMMON)} for table in TABLES}
    for table, values in PAPER_RESULTS.items():
        assert set(values) <= names[table], table
    for claim in CLAIMS:
        assert {claim.row, *claim.others} <= names[claim.table], claim.text
        assert claim.others or claim.kind != "above"


@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS if claim.figure != "last_angle"], ids=lambda claim: claim.text
)
def test_every_claim_is_true_of_the_papers_own_numbers(claim: Claim) -> None:
    values = [PAPER_RESULTS[claim.table][name][claim.figure or "average"] for name in (claim.row, *claim.others)]
    if claim.kind == "above":
        assert values[0] > max(values[1:])
    else:
        assert (values[0] > 55) == (claim.kind == "above chance")


# --- verdicts ---------------------------------------------------------------------------------------------------------


def write_cell(out: Path, cell: ModelVariant, seed: int, **figures: Any) -> None:
    run = {
        "cell": dict(cell.changes), "seed": seed, "device": "a GPU", "parameters": 11_813_810, "memory_bytes": 2.5e9,
        "tokens_per_second": 850_000.0, "seconds": 30.0, "tokens": 1e6, "steps": 100, "mlm": 0.4, "mlm_token": 0.5,
        "order_probe": 0.5, "next_probe": 0.5, "order_head": None, "next_head": None, "order_pairs": 2000,
        "next_pairs": 2000, "last_angle": 5.0, "distances": [3.0, 1.0], "angles": [9.0, 5.0], "few_shot": 0.6,
        "downstream": {}, "without_reading": {},
    }  # fmt: skip
    folder = Job(cell, seed).folder(out)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(run | figures))


def fake(out: Path, table: TableName, figure: str, values: dict[str, list[float]], **changes: Any) -> Results:
    """Cells of a table with known figures, by row, one for each seed; `changes` are of the plan, or of all cells."""
    plan = PLAN | {name: value for name, value in changes.items() if name in PLAN}
    others = {name: value for name, value in changes.items() if name not in PLAN}
    (out / "plan.json").write_text(json.dumps(plan))
    rows = {row.name: row.cell for row in table_rows(table, plan)}
    for name, found in values.items():
        for seed, value in enumerate(found):
            given = {"sst-2": value} if figure == "downstream" else value
            write_cell(out, rows[name], seed, **others | {figure: given})
    return Results(out)


BEST = next(claim for claim in CLAIMS if claim.row == "all/128" and claim.table == "embedding")


@pytest.mark.parametrize(
    ("best", "rival", "verdict"),
    [
        ([0.420, 0.422], [0.400, 0.402], "holds"),
        ([0.400, 0.402], [0.420, 0.422], "does not hold"),
        ([0.410, 0.412], [0.409, 0.411], "too close to tell"),
        ([0.420], [0.400], "too close to tell"),
        ([0.420, 0.422], [], "not run"),
    ],
)
def test_a_claim_is_judged_by_the_difference_and_its_margin(
    tmp_path: Path, best: list[float], rival: list[float], verdict: str
) -> None:
    values = {
        "all/128": best,
        "all/64": [0.38, 0.382][: len(best)],
        "all/256": rival,
        "all/H": [0.37, 0.372][: len(best)],
    }
    found = judge_claim(fake(tmp_path, "embedding", "mlm", values), BEST, "mlm")
    assert found.verdict == verdict
    if rival:
        assert found.estimate is not None
        assert found.estimate.value == pytest.approx(mean(best) - mean(rival))


def test_of_several_rivals_the_strongest_decides() -> None:
    assert verdict_of([Estimate(0.3, 0.1), Estimate(0.2, 0.1)]) == "holds"
    assert verdict_of([Estimate(0.3, 0.1), Estimate(0.05, 0.1)]) == "too close to tell"
    assert verdict_of([Estimate(0.3, 0.1), Estimate(0.05, 0.1), Estimate(-0.2, 0.1)]) == "does not hold"


@pytest.mark.parametrize(
    ("row", "values", "verdict"),
    [
        ("next", [0.505, 0.507], "holds"),
        ("next", [0.55, 0.552], "too close to tell"),
        ("next", [0.70, 0.702], "does not hold"),
        ("order", [0.70, 0.702], "holds"),
        ("order", [0.505, 0.507], "does not hold"),
    ],
)
def test_chance_is_a_half_and_what_lies_near_it(tmp_path: Path, row: str, values: list[float], verdict: str) -> None:
    claim = next(claim for claim in CLAIMS if claim.row == row and "chance" in claim.kind)
    figure = str(claim.figure)
    heads = {"next_head": 0.9, "order_head": 0.9}
    results = fake(
        tmp_path, "sentence-loss", figure, {"order": [0.85, 0.852], row: values, "none": [0.5, 0.502]}, **heads
    )
    assert judge_claim(results, claim, figure).verdict == verdict


def test_where_nobody_sees_order_it_says_nothing_that_one_model_does_not(tmp_path: Path) -> None:
    claim = next(claim for claim in CLAIMS if claim.row == "next")
    values = {"order": [0.5, 0.502], "next": [0.505, 0.507], "none": [0.5, 0.502]}
    results = fake(tmp_path, "sentence-loss", "order_probe", values, next_head=0.9)
    assert judge_claim(results, claim, "order_probe").verdict == "nothing learned"


@pytest.mark.parametrize("row", ["next", "order"])
def test_a_model_that_has_learned_nothing_proves_nothing(tmp_path: Path, row: str) -> None:
    claim = next(claim for claim in CLAIMS if claim.row == row and "chance" in claim.kind)
    figure = str(claim.figure)
    values = {"order": [0.9, 0.902], row: [0.505, 0.507], "none": [0.5, 0.502]}
    results = fake(tmp_path, "sentence-loss", figure, values, next_head=0.51, order_head=0.51)
    assert judge_claim(results, claim, figure).verdict == "nothing learned"


def test_a_claim_about_sizes_is_judged_by_those_that_a_narrow_model_has(tmp_path: Path) -> None:
    values = {"all/64": [0.38, 0.382], "all/128": [0.42, 0.422], "all/H": [0.40, 0.402]}
    results = fake(tmp_path, "embedding", "mlm", values, hidden_size=192)
    assert judge_claim(results, BEST, "mlm").verdict == "holds"


def test_a_strategy_helps_hurts_or_is_too_close_to_tell(tmp_path: Path) -> None:
    values = {
        "none": [0.40, 0.402], "hot start 0.5": [0.42, 0.422], "cold factor 0.5": [0.38, 0.382],
        "gradient tanh": [0.401, 0.403],
    }  # fmt: skip
    found = {
        one.row.name: one.effect
        for one in variant_effects(fake(tmp_path, "strategies", "mlm", values), "strategies", "mlm")
    }
    assert found["hot start 0.5"] == "helps"
    assert found["cold factor 0.5"] == "hurts"
    assert found["gradient tanh"] == "too close to tell"
    assert found["attention bias"] == "not run"
    assert "none" not in found


def test_a_noisy_neighbour_makes_a_table_less_sure(tmp_path: Path) -> None:
    values = {"none": [0.40, 0.402], "hot start 0.5": [0.42, 0.422], "gradient tanh": [0.1, 0.5]}
    found = variant_effects(fake(tmp_path, "strategies", "mlm", values), "strategies", "mlm")
    assert next(one for one in found if one.row.name == "hot start 0.5").effect == "too close to tell"


# --- pages ------------------------------------------------------------------------------------------------------------


def line_of(page: str, start: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture
def embedding(tmp_path: Path) -> Path:
    values = {"all/64": [0.38, 0.382], "all/128": [0.42, 0.422], "all/256": [0.40, 0.402], "none/128": [0.44, 0.46]}
    fake(tmp_path, "embedding", "downstream", values, tasks={"sst-2": []}, without_reading={"sst-2": 0.38})
    return tmp_path


def test_the_papers_value_stands_beside_ours(embedding: Path) -> None:
    write_pages(embedding, ["embedding"])
    page = (embedding / "tables.md").read_text()
    header, row = line_of(page, ""), line_of(page, "not shared, E = 128")
    told = dict(zip(header, row, strict=True))
    assert told["downstream"] == "45.0 ± 1.4"
    assert told["parameters"] == "11.8 M"
    assert told["memory"] == "2.5 GB"
    assert (told["paper: parameters"], told["paper: average"]) == ("89 M", "81.7")
    assert line_of(page, "shared, E = H = 768")[1] == "–"
    assert "not shared, E = 64 (embedding)" in page.split("## What was not run")[1]


def test_every_task_stands_beside_what_the_same_answer_always_gets(embedding: Path) -> None:
    write_pages(embedding, ["embedding", "sharing"])
    rows = (embedding / "tables.md").read_text().split("## Downstream, task by task")[1].split("\n## ")[0]
    assert line_of(rows, "always the same answer") == ["always the same answer", "38.0"]
    assert line_of(rows, "embedding: shared, E = 64")[1] == "38.1 ± 0.1"  # so it has not learned the task
    assert rows.count("E = 128") == 2  # cells that two tables share stand there once


def test_statements_are_counted_once_and_again_by_their_tasks(embedding: Path) -> None:
    write_pages(embedding, ["embedding"])
    page = (embedding / "tables.md").read_text()
    assert "Of 3 statements 0 hold here, 0 do not, 1 are too close to tell, 2 were not run." in page
    assert "By the mean of the downstream tasks, of 3, 1 hold here, 0 do not, 0 are too close" in page


def test_cells_of_before_say_nothing_of_who_always_answers_the_same(tmp_path: Path) -> None:
    fake(tmp_path, "embedding", "downstream", {"all/64": [0.38], "all/128": [0.42]}, tasks={"sst-2": []})
    write_pages(tmp_path, ["embedding"])
    assert line_of((tmp_path / "tables.md").read_text(), "always the same answer")[1] == "–"


def test_results_are_there_for_other_programs(embedding: Path) -> None:
    write_pages(embedding, ["embedding"])
    found = json.loads((embedding / "results.json").read_text())
    row = next(row for row in found["tables"]["embedding"] if row["name"] == "none/128")
    assert row["mean"]["average"] == pytest.approx(0.45)
    assert row["deviation"]["average"] == pytest.approx(0.02 / 2**0.5)
    assert row["paper"] == {"parameters": 89e6, "average": 81.7}
    assert {one["verdict"] for one in found["verdicts"]} <= {"holds", "does not hold", "too close to tell", "not run"}


def test_the_report_asks_nobody_for_anything(embedding: Path) -> None:
    write_pages(embedding, ["embedding"])
    page = (embedding / "report.html").read_text()
    assert page.count("<svg") == 4  # the table by hidden tokens and downstream, the passes, few examples
    assert not re.findall(r"<(?:script|link|img|iframe|object)|@import|url\((?!#)", page)
    assert all(link.startswith("#") for link in re.findall(r'(?:src|href)="([^"]*)"', page))
    for name in ("embedding", "embedding-downstream", "passes", "few-shot"):
        assert (embedding / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (embedding / "plots" / f"{name}.svg").read_text()


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_drawn_also_where_cells_are_missing(tmp_path: Path, table: TableName) -> None:
    names = [row.name for row in table_rows(table, PLAN)]
    fake(tmp_path, table, "mlm", {name: [0.4, 0.41] for name in names[:2]})
    write_pages(tmp_path, TABLES)
    assert (tmp_path / "plots" / f"{table}.svg").is_file()
    missing = (tmp_path / "report.html").read_text().split("What was not run")[1]
    assert next(other for other in TABLES if other not in (table, "sharing", "embedding")) in missing


def test_without_matplotlib_there_are_tables_and_a_word(
    embedding: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert litebert("reproduce", "--redraw", "--out", embedding) == 0
    assert "litebert reproduce --redraw" in capsys.readouterr().err
    assert (embedding / "tables.md").is_file()
    assert not (embedding / "report.html").exists()


def test_an_empty_folder_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no cells \(no plan.json\); give the --out of a litebert reproduce"):
        write_pages(tmp_path, TABLES)


# --- measurements -----------------------------------------------------------------------------------------------------


def test_a_probe_finds_what_is_there_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    states, wrong = torch.randn(800, 16, generator=generator), torch.randint(0, 2, (800,), generator=generator)
    told = states + wrong[:, None] * torch.ones(16)
    assert probe_accuracy((told[:400], wrong[:400]), (told[400:], wrong[400:])) > 0.95
    assert probe_accuracy((states[:400], wrong[:400]), (states[400:], wrong[400:])) == pytest.approx(0.5, abs=0.08)


def test_who_always_says_the_same_is_at_chance() -> None:
    assert balanced_accuracy(np.array([1, 1, 1, 0]), np.array([1, 1, 1, 1])) == 0.5
    assert balanced_accuracy(np.array([1, 1, 1, 0]), np.array([1, 1, 1, 0])) == 1.0


def test_handfuls_hold_as_many_of_each_class_and_come_again() -> None:
    labels = ["a", "b", "b", "a", "a", "b", "a"]
    chosen = draw_shots(labels, 2, draw=1)
    assert sorted(labels[number] for number in chosen) == ["a", "a", "b", "b"]
    assert chosen == draw_shots(labels, 2, draw=1)
    assert any(draw_shots(labels, 2, draw) != chosen for draw in range(2, 6))


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shards(flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        rng = random.Random(0)
        documents = ["\n".join(rng.sample(PROSE, 8)) for _ in range(40)]
        (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        made = ("--tokenizer", flow.tokenizer, "--out", folder / "shards", "--held-out", 0.3)
        assert litebert("prepare", "--input", folder / "corpus.txt", *made) == 0

    return once(tmp_path_factory, "reproduce", build) / "shards"


def start(flow: Flow, shards: Path, out: Path, *flags: object, tables: tuple[str, ...] = ("optimizer",)) -> int:
    given = ("--data", shards, "--out", out, "--few-shot", flow.examples, *TINY)
    return litebert("reproduce", *tables, *given, "--seeds", 1, *flags)


def results_of(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted((out / "cells").glob("*/result.json"))}


UNTIMED = ("tokens_per_second", "seconds", "memory_bytes")


def untimed(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {key: value for key, value in run.items() if key not in UNTIMED} for name, run in found.items()}


@pytest.fixture(scope="module")
def whole(flow: Flow, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reproduce") / "whole"
    assert start(flow, shards, out) == 0
    return out


def test_cells_are_measured_on_everything_and_take_little_room(whole: Path) -> None:
    found = results_of(whole)
    assert set(found) == {"common-seed-0", "optimizer-adamw-seed-0", "optimizer-lamb-seed-0"}
    for run in found.values():
        assert run["steps"] == 4
        assert run["parameters"] > 100_000
        assert 0 <= run["mlm"] <= 1
        assert 0 < run["mlm_loss"] < 10
        assert 0 <= run["order_probe"] <= 1
        assert run["order_head"] is not None
        assert run["next_head"] is None  # it was not asked that when it learned
        assert len(run["angles"]) == len(run["distances"]) == 2
        assert 0 < run["angles"][-1] < 180
        assert 0 <= run["few_shot"] <= 1
    assert not list(whole.rglob("*.safetensors"))
    assert "≈ too close" in (whole / "tables.md").read_text()  # one seed says nothing


def test_what_is_done_is_not_done_again_and_further_tables_share_it(flow: Flow, shards: Path, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.glob("cells/*/result.json")}
    assert start(flow, shards, whole, tables=("sentence-loss", "optimizer")) == 0
    after = {path: path.stat().st_mtime_ns for path in whole.glob("cells/*/result.json")}
    assert before.items() <= after.items()
    assert {path.parent.name for path in after.keys() - before.keys()} == {
        "sentences-next-seed-0", "sentences-none-seed-0",
    }  # fmt: skip
    found = results_of(whole)
    assert found["sentences-next-seed-0"]["next_head"] is not None
    assert found["sentences-none-seed-0"]["order_head"] is None


def test_other_settings_are_refused_in_the_same_folder(flow: Flow, shards: Path, whole: Path) -> None:
    config = reproduce.Config(
        out=whole, data=shards, hidden_size=136, layers=3, batch_size=4, length=128, budget="2048", rows=64, shots=2,
        few_shot=flow.examples, precision="fp32", device="cpu",
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"made with other settings: layers \(was 2, is 3\); use another --out"):
        reproduce.run(config)


def in_a_process(flow: Flow, shards: Path, out: Path) -> None:
    os.close(2)
    os.open(os.devnull, os.O_WRONLY)
    os._exit(start(flow, shards, out))


def test_a_killed_run_goes_on_with_the_cells_that_are_left(
    flow: Flow, shards: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    kills = 0
    while True:
        done = set(out.glob("cells/*/result.json"))
        stamps = {path: path.stat().st_mtime_ns for path in done}
        process = multiprocessing.get_context("fork").Process(target=in_a_process, args=(flow, shards, out))
        process.start()
        while process.is_alive() and set(out.glob("cells/*/result.json")) == done:
            time.sleep(0.01)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
        if process.exitcode == 0:
            break
    assert kills >= 2
    assert untimed(results_of(out)) == {
        name: run for name, run in untimed(results_of(whole)).items() if name in results_of(out)
    }
    assert len(results_of(out)) == 3


def test_a_cell_that_was_stopped_goes_on_from_its_checkpoint(
    flow: Flow, shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real, resumed = tmp_path / "run", reproduce_runner.pretrain, []

    def interrupted(config: Any, *rest: Any, **named: Any) -> bool:
        resumed.append(config.resume)
        stop = [lambda step: os.kill(os.getpid(), signal.SIGINT) if step.done == 2 else None]
        return real(config, *rest, **named, hooks=stop if config.optimizer == "lamb" and not config.resume else [])

    monkeypatch.setattr(reproduce_runner, "pretrain", interrupted)
    assert start(flow, shards, out) == INTERRUPTED
    assert (out / "report.html").is_file()  # of what there is
    assert len(results_of(out)) < 3
    assert start(flow, shards, out) == 0
    assert resumed.count(True) == 1
    assert untimed(results_of(out)) == {
        name: run for name, run in untimed(results_of(whole)).items() if name in results_of(out)
    }


def test_an_estimate_trains_no_cell(
    flow: Flow, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(flow, shards, tmp_path / "run", "--estimate", tables=("optimizer", "sentence-loss")) == 0
    said = capsys.readouterr().err
    assert "optimizer, sentence-loss: 5 cells (6 in the tables, shared ones once) × 1 seed, 2,048 tokens each" in said
    assert re.search(r"5 to run: 10,240 tokens, about [\d.]+ (s|min|h), by a rehearsal", said)
    assert not (tmp_path / "run" / "cells").exists()
    cost = json.loads((tmp_path / "run" / "estimate.json").read_text())
    assert cost["operations_per_second"] > 0


def test_deeper_cells_are_estimated_to_cost_more(flow: Flow, shards: Path, tmp_path: Path) -> None:
    config = reproduce.Config(out=tmp_path, data=shards, few_shot=flow.examples, shots=2, device="cpu", budget="1M")
    plan = reproduce_plan.make_plan(config, "cpu")
    runner = reproduce_runner.VariantRunner(
        plan, tmp_path, reproduce_runner.Process(0, 1, torch.device("cpu")), make_console()
    )
    cost = reproduce_runner.CostEstimate("", 1e9, 0.0)
    usual, deep, wide = (
        runner.seconds(ModelVariant.of(plan.common, **change), cost)
        for change in ({}, {"layers": 24}, {"hidden_size": 1536})
    )
    assert deep / usual == pytest.approx(2, rel=0.1)
    assert 3 < wide / usual < 4


def test_a_cell_that_fails_is_told_and_stops_no_other(
    flow: Flow, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reproduce_runner.pretrain

    def fragile(config: Any, *rest: Any, **named: Any) -> bool:
        if config.optimizer == "lamb":
            raise ConfigError("out of memory with 1 sequences at once")
        return whole(config, *rest, **named)

    monkeypatch.setattr(reproduce_runner, "pretrain", fragile)
    assert start(flow, shards, tmp_path / "run") == 0
    assert set(results_of(tmp_path / "run")) == {"common-seed-0", "optimizer-adamw-seed-0"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Failed: optimizer-lamb, seed 0: out of memory with 1 sequences at once" in page
    monkeypatch.undo()
    assert start(flow, shards, tmp_path / "run") == 0
    assert len(results_of(tmp_path / "run")) == 3
    assert "Failed" not in (tmp_path / "run" / "report.html").read_text()


def test_models_are_fine_tuned_on_the_tasks_that_are_named(flow: Flow, shards: Path, tmp_path: Path) -> None:
    task = tmp_path / "weather.toml"
    task.write_text(f'task = "classify"\ntrain = "{flow.examples}"\ntest = "{flow.examples}"\n')
    out = tmp_path / "run"
    flags = ("--tasks", task, "--task-examples", 18, "--task-epochs", 2)
    assert start(flow, shards, out, *flags, tables=("sentence-loss",)) == 0
    assert len((out / "tasks" / "weather" / "train.csv").read_text().splitlines()) == 19
    assert all(0 <= run["downstream"]["weather"] <= 1 for run in results_of(out).values())
    assert {run["without_reading"]["weather"] for run in results_of(out).values()} == {1 / 3}
    assert "| downstream |" in (out / "tables.md").read_text()


def test_a_task_file_that_names_no_files_is_refused(flow: Flow, shards: Path, tmp_path: Path) -> None:
    task = tmp_path / "odd.toml"
    task.write_text('task = "answer"\n')
    config = reproduce.Config(out=tmp_path / "run", data=shards, tasks=(task,), device="cpu")
    with pytest.raises(
        ConfigError, match=r"odd.toml: must name a task \(classify or regress\), a train file and a test"
    ):
        reproduce.run(config)


def test_shards_without_held_out_documents_are_refused(flow: Flow, tmp_path: Path) -> None:
    config = reproduce.Config(out=tmp_path / "run", data=flow.shards, device="cpu", budget="1M")
    with pytest.raises(ConfigError, match=r"tokens out, too few to measure on; prepare it with more"):
        reproduce.run(config)


def test_too_few_examples_for_a_handful_are_refused(flow: Flow, shards: Path, tmp_path: Path) -> None:
    config = reproduce.Config(
        out=tmp_path / "run", data=shards, few_shot=flow.examples, shots=20, device="cpu", budget="1M"
    )
    with pytest.raises(DataError, match=r"needs two classes or more of single texts, 22 of each"):
        reproduce.run(config)


def test_without_data_it_is_a_demonstration_and_says_so(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce_plan, "PROSE_BYTES", 60_000)
    monkeypatch.setattr(reproduce_plan, "VOCAB_SIZE", 500)
    out = tmp_path / "run"
    flags = ("--few-shot", flow.examples, "--seeds", 1, *TINY)
    assert litebert("reproduce", "optimizer", "--out", out, *flags) == 0
    assert "This is a demonstration" in (out / "report.html").read_text()


@pytest.mark.slow
def test_processes_share_the_cells_and_one_writes_the_report(
    flow: Flow, shards: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "litebert"]
    command += ["reproduce", "optimizer", "--data", shards, "--out", out, "--few-shot", flow.examples, *TINY]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [*map(str, command), "--seeds", "1"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr
    found = results_of(out)
    assert untimed(found) == {name: run for name, run in untimed(results_of(whole)).items() if name in found}
    assert len(found) == 3
    assert answer.stderr.count("look at") == 1


def test_a_device_that_cells_share_is_told_of_as_it_is_slower_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    places = [reproduce_runner.Process(0, 6, torch.device("cuda", 0), beside).place for beside in (2, 6)]
    assert places == ["a GPU", "a GPU that 3 cells share"]
