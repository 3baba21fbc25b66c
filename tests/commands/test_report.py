"""`litebert report`: one page for one run or several, and what it says when there is nothing to draw."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from rich.console import Console

from litebert.train.log import RunLog
from litebert.train.loop import Step
from litebert.trainers.training_report import write_report
from tests.commands.conftest import litebert

GOOD = '{"step": 1, "loss": 1}'


def make_run(folder: Path, *, steps: int = 20, rate: float = 1e-3, **settings: Any) -> Path:
    """A run's folder as training leaves it."""
    with RunLog(folder, Console(file=io.StringIO()), "pretrain", tokens_per_step=1000) as log:
        for done in range(1, steps + 1):
            metrics = {
                "loss": 9 - done / 10,
                "mlm_accuracy": done / 100,
                "order_accuracy": 0.5,
                "depth": 2.0 + done // 11,
            }
            log(Step(done, steps, metrics, rate, 0.5, done == steps))
            if done % 10 == 0:
                log.validation(done, {"loss": 8.0, "perplexity": 2981.0, "mlm_accuracy": done / 110})
            if done == 11:
                log.say("depth 2 → 3")
    config = {"preset": "tiny", "steps": steps, "learning_rate": rate} | settings
    about = {"command": "pretrain", "config": config, "litebert": "9.9", "packages": {"torch": "2.0"}}
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def rows(page: str) -> dict[str, list[str]]:
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    return {row[0]: row[1:] for row in cells}


def panels(page: str) -> list[str]:
    return re.findall(r"<figure><figcaption>([^<]+)", page)


def test_a_run_is_drawn_in_its_own_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "pt")
    assert litebert("report", run) == 0
    assert capsys.readouterr().err == f"report in {run / 'report.html'}\n"
    page = (run / "report.html").read_text()
    assert "<h1>pretrain: pt</h1>" in page
    assert panels(page) == [
        "loss", "masked tokens right", "sentence order right", "learning rate", "depth (passes of the shared layer)",
        "tokens per second",
    ]  # fmt: skip


def test_the_summary_tells_what_the_run_did(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pt")
    safetensors.torch.save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, run / "model.safetensors")
    write_report([run], tmp_path / "page.html")
    told = rows((tmp_path / "page.html").read_text())
    assert told["steps"] == ["20"]
    assert told["tokens"] == ["20,000"]
    assert told["time in steps"] == ["10 s"]
    assert told["tokens per second"] == ["2,000"]
    assert told["parameters"] == ["17"]
    assert told["loss, last steps"] == ["7.000"]
    assert told["validation perplexity"] == ["2,981"]
    assert told["validation masked tokens right"] == ["18.2%"]
    assert told["11"] == ["depth 2 → 3"]
    assert told["preset"] == ["tiny"]
    assert told["torch"] == ["2.0"]


@pytest.mark.parametrize(("seconds", "text"), [(9.6, "10 s"), (125, "2 min 05 s"), (3725, "1 h 02 min")])
def test_times_are_written_for_people(tmp_path: Path, seconds: float, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0, "seconds": seconds}) + "\n")
    write_report([tmp_path], tmp_path / "page.html")
    assert rows((tmp_path / "page.html").read_text())["time in steps"] == [text]


def test_the_parameters_of_an_unfinished_run_come_from_its_last_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pt")
    for step, size in ((1, 3), (2, 4)):
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        safetensors.torch.save_file({"a": torch.zeros(size)}, folder / "model.safetensors")
    (run / "model.safetensors").write_bytes(b"half of i")
    write_report([run], tmp_path / "page.html")
    assert rows((tmp_path / "page.html").read_text())["parameters"] == ["4"]


def test_several_runs_share_the_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_run(tmp_path / "slow", rate=1e-4), make_run(tmp_path / "fast", rate=1e-2)]
    monkeypatch.chdir(tmp_path)
    assert litebert("report", *runs) == 0
    page = (tmp_path / "report.html").read_text()
    assert re.findall(r"<li><i[^>]*></i>([^<]+)", page) == ["slow", "fast"]
    drawn = page.split("<figure>")[1:]
    assert len(drawn) == 6
    assert all("var(--run0)" in panel and "var(--run1)" in panel for panel in drawn)
    differing, everything = page[page.index("Settings</h2>") :].split("<details>")
    assert rows(differing) == {"": ["slow", "fast"], "learning rate": ["0.0001", "0.01"]}
    assert rows(everything)["preset"] == ["tiny", "tiny"]
    assert re.findall(r"<td>(\w+)</td><td class=\"number\">11</td>", page) == ["slow", "fast"]


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / parent / "pt") for parent in ("a", "b")]
    write_report(runs, tmp_path / "page.html")
    assert re.findall(r"<li><i[^>]*></i>([^<]+)", (tmp_path / "page.html").read_text()) == [str(run) for run in runs]


def test_runs_of_different_kinds_can_be_compared(tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    with RunLog(tuned, Console(file=io.StringIO()), "finetune") as log:
        log(Step(1, 1, {"loss": 1.0}, 1e-5, 0.5, True))
        log.validation(1, {"accuracy": 0.9, "macro_f1": float("nan")})
    write_report([make_run(tmp_path / "pt"), tuned], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "accuracy" in panels(page)
    assert "macro f1" not in panels(page)  # nothing to draw
    assert rows(page)["validation accuracy"] == ["–", "90.0%"]
    assert rows(page)["tokens"] == ["20,000", "–"]


def test_a_real_run_can_be_drawn(flow: Any, tmp_path: Path) -> None:
    for folder in (flow.pretrained, flow.classifier):
        assert litebert("report", folder, "--out", tmp_path / "page.html") == 0
        page = (tmp_path / "page.html").read_text()
        assert "loss" in panels(page)
        assert rows(page)["seed"] == ["0"]
        assert int(rows(page)["parameters"][0].replace(",", "")) > 1_000_000


def test_names_and_events_are_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<script>alert(1)", note="<img src=x>")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 20, "event": "<b>bold</b>"}) + "\n")
        file.write(json.dumps({"step": 20, "<i>": 1.0}) + "\n")
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"<script|<img|<b>|<i>", page)


def test_without_matplotlib_the_figures_are_written_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = make_run(tmp_path / "pt")
    assert litebert("report", run) == 0
    said = capsys.readouterr().err
    assert f"metrics in {run / 'report.json'}; for plots install matplotlib: pip install 'litebert[train]'" in said
    assert not (run / "report.html").exists()
    (told,) = json.loads((run / "report.json").read_text())["runs"]
    assert told["steps"] == 20
    assert told["curves"]["validation_loss"] == {"steps": [10, 20], "values": [8.0, 8.0]}
    assert told["last"]["loss"] == 7.0
    assert told["events"] == [{"step": 11, "event": "depth 2 → 3"}]
    assert told["settings"]["preset"] == "tiny"


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "files", "says"),
    [
        (["nope"], {}, ["nope: no such folder", "--out of a litebert pretrain"]),
        (["file"], {"file": ""}, ["file: no such folder"]),
        (["empty"], {"empty/x": ""}, ["empty: has no metrics.jsonl", "--out of a litebert pretrain"]),
        (["new"], {"new/metrics.jsonl": ""}, ["new/metrics.jsonl: holds no steps", "train first"]),
        (["odd"], {"odd/metrics.jsonl": "\x00\n[1]\n{}\n"}, ["odd/metrics.jsonl: holds no steps"]),
        (["good", "nope"], {"good/metrics.jsonl": GOOD}, ["nope: no such folder"]),
        (["good", "--out", "good"], {"good/metrics.jsonl": GOOD}, ["good: is a folder"]),
        (["good", "--out", "f/x.html"], {"good/metrics.jsonl": GOOD, "f": ""}, ["cannot be written"]),
        (
            ["good"],
            {"good/metrics.jsonl": GOOD, "good/run.json": "{"},
            ["run.json: not JSON", "damaged"],
        ),
        ([], {}, ["--runs"]),
        (["--runs"], {}, ["no run named", "litebert report runs/pretrain"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistake_gets_one_line(
    arguments: list[str],
    files: dict[str, str],
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    assert litebert("report", *arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in says:
        assert part in said
    assert not list(tmp_path.rglob("report.*"))


def test_runs_can_be_named_by_their_flag_and_in_a_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pt")
    (tmp_path / "run.toml").write_text(f'runs = ["{run}"]\nout = "{tmp_path / "from-file.html"}"\n')
    assert litebert("report", "--out", tmp_path / "flag.html", "--runs", run) == 0
    assert litebert("report", "--config", tmp_path / "run.toml") == 0
    assert (tmp_path / "flag.html").read_text() == (tmp_path / "from-file.html").read_text()
