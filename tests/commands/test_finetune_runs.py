"""Fine-tuning runs: when they end, what happens when they collapse or are killed, and several of them in a row."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from litebert.data.batches import Example
from litebert.data.squad import AnswerInput
from litebert.files import read_json
from litebert.tasks import Answer, Classify, Similarity, TrainableTask
from litebert.tasks.text import TextInput
from litebert.tokenizer import Tokenizer
from litebert.train.loop import Step
from litebert.trainers import finetuning
from litebert.trainers.finetuning import FinetuningTrainer, MicroBatch
from litebert.trainers.finetuning_setup import FinetuningSetup, TrainingTask
from litebert.trainers.sweep import spread_table
from litebert.trainers.validation_split import split
from tests.commands.conftest import litebert, make_examples, once, write_csv
from tests.commands.finetuning import (
    command,
    finished,
    logged,
    small_examples,
    small_start,
    taught_once,
    weights,
)
from tests.conftest import peer


@pytest.fixture(scope="session")
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_examples(tmp_path_factory)


# --- what stands together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "mixed"), [(Similarity(), True), (Classify(["a", "b"]), False)], ids=["compared", "alone"]
)
def test_texts_that_are_compared_meet_whatever_their_length_and_others_those_of_theirs(
    task: TrainableTask[Any, Any], mixed: bool
) -> None:
    texts: list[Any] = [SimpleNamespace(ids=[5] * length) for length in range(1, 257)]
    training_task = TrainingTask(task, [], [Example([text]) for text in texts], seed=0)
    batches = [[example.length for example in training_task.batch(step, 8)] for step in range(32)]
    assert sorted(length for batch in batches for length in batch) == list(range(1, 257))
    widths = [max(batch) - min(batch) for batch in batches]
    assert min(widths) > 50 if mixed else max(widths) == 7


# --- when to stop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("patience", "epochs"), [(1, 2), (2, 3), (0, 5)])
def test_a_run_that_no_longer_improves_ends_after_its_patience(
    start: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], patience: int, epochs: int
) -> None:
    # of this metric it is not known what an answer without reading gets, so waiting counts from the start
    flags = ("--epochs", 5, "--patience", patience, "--learning-rate", 1e-12, "--metric", "macro_f1")
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    said = f"no better score for {patience} epochs: stopping (--patience)"
    assert (said in capsys.readouterr().err) == (patience > 0)
    assert (said in logged(tmp_path, "event").values()) == (patience > 0)
    assert list(logged(tmp_path, "validation_accuracy")) == [3 * (epoch + 1) for epoch in range(epochs)]


def test_nobody_gives_up_before_something_is_learned(start: Path, examples: Path, tmp_path: Path) -> None:
    flags = ("--epochs", 5, "--patience", 1, "--learning-rate", 1e-12)
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    assert finished(tmp_path)["metrics"]["accuracy"] <= finished(tmp_path)["baseline"]["accuracy"]
    assert len(logged(tmp_path, "validation_accuracy")) == 5


def test_a_metric_that_does_not_exist_is_refused_with_those_that_do(
    start: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert litebert(*command(start, examples, tmp_path, "--metric", "f2")) == 2
    assert "metric='f2' is none of accuracy, macro_f1" in capsys.readouterr().err


def test_of_equal_epochs_the_one_that_learned_longer_is_kept(start: Path, examples: Path, tmp_path: Path) -> None:
    flags = ("--epochs", 3, "--learning-rate", 1e-12)
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    assert len(set(logged(tmp_path, "validation_accuracy").values())) == 1
    assert finished(tmp_path)["epoch"] == 3


def test_a_run_that_stopped_early_stays_so_when_it_is_resumed(start: Path, examples: Path, tmp_path: Path) -> None:
    """Killed after the last epoch, before it wrote what it came to."""
    flags = ("--epochs", 9, "--patience", 1, "--learning-rate", 1e-12, "--batch-size", 64, "--metric", "macro_f1")
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    before = weights(tmp_path), finished(tmp_path)["epoch"]
    (tmp_path / "finished.json").unlink()
    assert litebert(*command(start, examples, tmp_path, *flags), "--resume") == 0
    assert (weights(tmp_path), finished(tmp_path)["epoch"]) == before


# --- collapse ---------------------------------------------------------------------------------------------------------

NO_BETTER = "does not beat the baseline"
# 105 steps, of which the 100th is the first that is looked at
HOPELESS = ("--epochs", 21, "--batch-size", 4, "--learning-rate", 0.05, "--patience", 0, "--save-every", 30)


@pytest.fixture(scope="session")
def random_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty times the same text, each time with another label."""

    def build(folder: Path) -> None:
        write_csv(folder / "t.csv", [{"text": "the rain", "label": "ab"[n % 2]} for n in range(20)])

    return once(tmp_path_factory, "random-labels", build) / "t.csv"


@pytest.fixture(scope="module")
def collapsed(start: Path, random_labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hopeless run; said.txt beside it is what it reported."""

    def build(folder: Path) -> None:
        with (folder / "said.txt").open("w", encoding="utf-8") as said, contextlib.redirect_stderr(said):
            assert litebert(*command(start, random_labels, folder / "out", "--valid", random_labels, *HOPELESS)) == 0

    return once(tmp_path_factory, "collapsed", build) / "out"


def test_a_run_that_collapses_begins_again_once_with_a_third_of_the_rate(collapsed: Path) -> None:
    said = (collapsed.parent / "said.txt").read_text(encoding="utf-8")
    assert said.count("beginning again with a third of the rate, 0.017") == 1
    assert "the same answer for all gives 0.693" in said
    assert NO_BETTER in said
    rates = logged(collapsed, "learning_rate")
    assert max(rates.values()) == pytest.approx(0.05 / 3)
    assert list(rates) == list(range(1, 21 * 5 + 1))  # the second attempt, whole, and nothing of the first


def test_a_healthy_run_is_not_begun_again(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": text, "label": text} for text in ("rain", "eggs") for _ in range(10)]
    train = write_csv(tmp_path / "t.csv", rows)
    flags = ("--valid", train, *HOPELESS, "--learning-rate", 2e-3)
    assert litebert(*command(start, train, tmp_path / "out", *flags)) == 0
    assert "beginning again" not in capsys.readouterr().err
    assert not (tmp_path / "out" / "checkpoints-again").exists()
    assert finished(tmp_path / "out")["metrics"]["accuracy"] == 1


def test_of_a_handful_of_held_out_examples_nothing_is_claimed_and_the_test_file_judges(
    start: Path, random_labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": text, "label": text} for text in ("rain", "eggs") for _ in range(10)]
    easy, one = write_csv(tmp_path / "easy.csv", rows), write_csv(tmp_path / "one.csv", rows[:1])
    two = write_csv(tmp_path / "two.csv", [{"text": "the rain", "label": label} for label in "ab"])
    learns = ("--epochs", 20, "--learning-rate", 2e-3, "--patience", 0)
    for name, train, flags, claimed in (
        ("learned", easy, ("--valid", one, "--test", easy, *learns), False),
        ("few", random_labels, ("--valid", two), False),
        ("few-tested", random_labels, ("--valid", random_labels, "--test", two), False),
        ("enough", random_labels, ("--valid", random_labels), True),
        ("tested", random_labels, ("--valid", two, "--test", random_labels), True),
    ):
        assert litebert(*command(start, train, tmp_path / name, *flags)) == 0
        assert (NO_BETTER in capsys.readouterr().err) == claimed, name
    assert finished(tmp_path / "learned")["test"]["accuracy"] > 0.5


def test_a_metric_of_the_rarer_class_may_be_another_on_the_test(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(name: str, **counts: int) -> Path:
        rows = [{"text": word, "label": word} for word, count in counts.items() for _ in range(count)]
        return write_csv(tmp_path / name, rows)

    valid, test = some("valid.csv", rain=30, eggs=10), some("test.csv", rain=10, eggs=30)
    flags = ("--valid", valid, "--test", test, "--metric", "pr_auc_of_eggs", "--epochs", 1)
    assert litebert(*command(start, some("train.csv", rain=10, eggs=10), tmp_path / "out", *flags)) == 0
    assert "pr_auc_of_rain" in capsys.readouterr().err
    assert "pr_auc_of_eggs" not in finished(tmp_path / "out")["test"]


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def kill_at(moment: Callable[[FinetuningTrainer, Step], bool], *arguments: object) -> None:
    """Attempt a command in a process of its own that dies when a step ends for which this is true."""

    def run() -> None:
        os.close(2)  # its reports are nobody's business here
        os.open(os.devnull, os.O_WRONLY)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # pytest's has no file behind it
        after_step = FinetuningTrainer.after_step

        def fatal(self: FinetuningTrainer, step: Step) -> None:
            if moment(self, step):
                os.kill(os.getpid(), signal.SIGKILL)
            after_step(self, step)

        FinetuningTrainer.after_step = fatal  # type: ignore[method-assign]
        os._exit(litebert(*arguments))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(timeout=120)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    "flags",
    [("--dropout", 0.2), ("--r-drop", 1), ("--mixout", 0.5), ("--adversarial", "freelb"), ("--unfreeze-steps", 6)],
    ids=lambda flags: flags[0],
)
def test_a_run_killed_within_an_epoch_resumes_to_the_same_bits(
    start: Path, examples: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    flags = (*flags, "--save-every", 1, "--epochs", 3, "--valid", examples)
    kill_at(lambda _, step: step.done == 5, *command(start, examples, tmp_path / "killed", *flags))
    assert (tmp_path / "killed" / "checkpoints" / "latest").read_text().strip() in ("step-00000003", "step-00000004")
    assert litebert(*command(start, examples, tmp_path / "killed", *flags), "--resume") == 0
    assert litebert(*command(start, examples, tmp_path / "whole", *flags)) == 0
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert logged(tmp_path / "killed", "loss") == logged(tmp_path / "whole", "loss")


@pytest.mark.parametrize("step", [3, 70], ids=["before its first checkpoint", "later"])
def test_a_second_attempt_that_is_killed_resumes_to_the_same_bits(
    start: Path, random_labels: Path, collapsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    arguments = command(start, random_labels, tmp_path, "--valid", random_labels, *HOPELESS)
    kill_at(lambda run, at: run.is_retry and at.done == step, *arguments)
    has_begun = (tmp_path / "checkpoints-again" / "latest").exists()
    assert has_begun == (step > 30)
    capsys.readouterr()
    assert litebert(*arguments, "--resume") == 0
    assert ("beginning again" in capsys.readouterr().err) != has_begun  # the first attempt is not made twice
    assert weights(tmp_path) == weights(collapsed)
    assert logged(tmp_path, "learning_rate") == logged(collapsed, "learning_rate")
    assert finished(tmp_path)["metrics"] == finished(collapsed)["metrics"]


# --- several runs -----------------------------------------------------------------------------------------------------


SEEDS = ("--seeds", 2, "--seed", 4, "--epochs", 3, "--learning-rate", 3e-3)


@pytest.fixture(scope="module")
def two_seeds(start: Path, examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_once(tmp_path_factory, "two-seeds", start, examples, *SEEDS, "--test", examples)


def test_several_seeds_give_mean_and_spread_and_the_better_model(two_seeds: Path) -> None:
    found = finished(two_seeds)
    runs = {seed: finished(two_seeds / f"seed-{seed}") for seed in (4, 5)}
    assert found["seeds"] == {str(seed): run for seed, run in runs.items()}
    scores = [run["metrics"]["accuracy"] for run in runs.values()]
    assert found["spread"]["accuracy"]["mean"] == pytest.approx(sum(scores) / 2)
    assert found["spread"]["accuracy"]["deviation"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    tests = [run["test"]["accuracy"] for run in runs.values()]
    assert found["test_spread"]["accuracy"]["mean"] == pytest.approx(sum(tests) / 2)
    best = max(runs, key=lambda seed: runs[seed]["metrics"]["accuracy"])
    assert found["best"] == f"seed-{best}"
    assert weights(two_seeds) == weights(two_seeds / f"seed-{best}")
    assert weights(two_seeds / "seed-4") != weights(two_seeds / "seed-5")


def test_metrics_that_only_one_of_the_files_has_leave_a_cell_empty() -> None:
    one = {"mean": 0.5, "deviation": 0.1}
    table = spread_table({"validation": {"f1": one, "pr_auc_of_no": one}, "test": {"f1": one, "pr_auc_of_yes": one}})
    cells = [list(column.cells) for column in table.columns]
    told = "0.5000 ± 0.1000"
    assert cells == [["f1", "pr_auc_of_no", "pr_auc_of_yes"], [told, told, ""], [told, "", told]]


def test_a_sweep_that_was_interrupted_between_seeds_runs_what_is_left_and_shows_all(
    start: Path, examples: Path, two_seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(start, examples, tmp_path, *SEEDS, "--test", examples)
    kill_at(lambda run, _: run.config.seed == 5, *arguments)
    first = [(tmp_path / "seed-4" / name).read_bytes() for name in ("finished.json", "metrics.jsonl")]
    capsys.readouterr()
    assert litebert(*arguments, "--resume") == 0
    spread = finished(two_seeds)["spread"]["accuracy"]
    said = capsys.readouterr().err
    assert f"{spread['mean']:.4f} ± {spread['deviation']:.4f}" in said
    assert f"{finished(tmp_path)['best']} is the best of 2 by accuracy" in said
    assert all(len(line) <= 80 for line in said.splitlines() if "│" in line)
    assert weights(tmp_path) == weights(two_seeds)
    assert [(tmp_path / "seed-4" / name).read_bytes() for name in ("finished.json", "metrics.jsonl")] == first


@pytest.mark.parametrize(
    "flags", [(), ("--resume", "--learning-rate", 1e-4)], ids=["without --resume", "with another rate"]
)
def test_an_unfinished_sweep_is_not_taken_for_another(
    start: Path, examples: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    arguments = command(start, examples, tmp_path, *SEEDS, "--epochs", 1)
    kill_at(lambda run, _: run.config.seed == 5, *arguments)
    assert litebert(*arguments, *flags) == 2


def test_a_search_keeps_the_best_of_its_trials(
    start: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("optuna")
    flags = ("--search", 2, "--valid", examples, "--learning-rate", 2e-3)
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    trials = [read_json(tmp_path / f"trial-{n}" / "run.json")["config"] for n in range(2)]
    tried = ("learning_rate", "batch_size", "layer_decay_rate")
    assert [trials[0][name] for name in tried] != [trials[1][name] for name in tried]
    assert all(5e-4 <= trial["learning_rate"] <= 1.6e-2 for trial in trials)
    found = finished(tmp_path)
    scores = [finished(tmp_path / f"trial-{n}")["metrics"]["accuracy"] for n in range(2)]
    assert [one["metrics"] for one in found["trials"]] == [
        finished(tmp_path / f"trial-{n}")["metrics"] for n in range(2)
    ]
    assert found["metrics"]["accuracy"] == max(scores)
    assert weights(tmp_path) == weights(tmp_path / found["best"])
    said = capsys.readouterr().err
    assert f"{found['best']} is the best of 2 by accuracy, {max(scores):.4f}, and is kept" in said
    assert "mean ± deviation" not in said  # trials differ in their settings, so a mean of them means nothing
    assert all(len(line) <= 80 for line in said.splitlines() if "│" in line)


def test_a_search_without_optuna_says_how_to_get_it(
    start: Path, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert litebert(*command(start, examples, tmp_path / "out", "--search", 2)) == 2
    assert capsys.readouterr().err == (
        "litebert: optuna is not installed and is needed here; run: pip install 'litebert[search]'\n"
    )
    assert not (tmp_path / "out").exists()


# --- what must not be taken for trouble -------------------------------------------------------------------------------


def test_a_mixed_task_does_not_make_a_healthy_run_look_collapsed(start: Path, examples: Path, tmp_path: Path) -> None:
    """Together two losses are above the prior of one; the guard must hear the one that it judges."""
    flags = ("--mix", f"classify={examples}", "--epochs", 45, "--learning-rate", 3e-3, "--patience", 0)
    assert litebert(*command(start, examples, tmp_path, *flags)) == 0
    assert finished(tmp_path)["rate"] == 3e-3
    assert finished(tmp_path)["collapsed"] is None
    assert not (tmp_path / "checkpoints-again").exists()


def test_numbers_that_lie_far_apart_are_learned_from_and_not_left_out(start: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [{"text": f"rain {word}", "label": f"{np.exp(3 * random.standard_normal()):.4f}"} for word in range(60)]
    train = write_csv(tmp_path / "t.csv", rows)
    flags = ("--task", "regress", "--epochs", 3, "--batch-size", 2, "--learning-rate", 1e-3)
    assert litebert(*command(start, train, tmp_path / "out", *flags)) == 0
    assert not logged(tmp_path / "out", "event")


def test_when_memory_runs_out_a_batch_is_cut_and_the_same_is_learned(
    start: Path, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--dropout", 0.0, "--epochs", 2)
    assert litebert(*command(start, examples, tmp_path / "whole", *flags)) == 0
    real = FinetuningTrainer.loss

    def scarce(self: FinetuningTrainer, batch: MicroBatch) -> dict[str, Tensor]:
        if batch.batch.examples > 4:
            raise torch.OutOfMemoryError
        return real(self, batch)

    monkeypatch.setattr(FinetuningTrainer, "loss", scarce)
    assert litebert(*command(start, examples, tmp_path / "cut", *flags)) == 0
    assert "out of memory with 8 examples at once: going on with 4" in capsys.readouterr().err
    # dropout of the head falls otherwise, so the losses are near and not equal
    losses = [list(logged(tmp_path / name, "loss").values()) for name in ("whole", "cut")]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_a_search_measures_the_kept_model_alone_on_the_test_file(start: Path, examples: Path, tmp_path: Path) -> None:
    peer("optuna")
    assert litebert(*command(start, examples, tmp_path, "--search", 2, "--epochs", 1, "--test", examples)) == 0
    assert finished(tmp_path)["test"]
    assert [finished(tmp_path / f"trial-{n}")["test"] for n in range(2)] == [{}, {}]


def test_seeds_are_compared_on_the_same_examples(start: Path, examples: Path, tmp_path: Path) -> None:
    records = Classify.read(examples)
    held_out = [split(records, Classify.learn_from(records), seed, examples)[1] for seed in (0, 1)]
    assert held_out[0] != held_out[1]
    seen: list[list[Any]] = []
    real = finetuning.prepare_finetuning

    def watched(*arguments: Any) -> FinetuningSetup:
        setup = real(*arguments)
        seen.append(setup.held_out)
        return setup

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "prepare_finetuning", watched)
        assert litebert(*command(start, examples, tmp_path, "--seeds", 2, "--epochs", 1)) == 0
    assert seen == [held_out[0]] * 2


def test_labels_with_brackets_are_only_text(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"text": row["text"], "label": f"[/{row['label'][:1]}]"} for row in make_examples(24) if row["label"] != "food"
    ]
    train = write_csv(tmp_path / "t.csv", rows)
    assert litebert(*command(start, train, tmp_path / "out", "--valid", train)) == 0
    assert "f1_of_[/w]" in capsys.readouterr().err
    assert litebert("evaluate", "--model", tmp_path / "out", "--data", train) == 0
    assert litebert(*command(start, train, tmp_path / "sweep", "--valid", train, "--seeds", 2)) == 0


# --- the split --------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=12), seed=st.integers(0, 1000))
def test_a_split_takes_about_a_tenth_of_all_and_never_a_whole_class(sizes: list[int], seed: int) -> None:
    records = [TextInput(f"{label} {n}", label=str(label)) for label, size in enumerate(sizes) for n in range(size)]
    if len(records) < 3:
        return
    learned, held_out = split(records, Classify([str(n) for n in range(len(sizes))]), seed, Path("t.csv"))
    assert sorted(map(str, [*learned, *held_out])) == sorted(map(str, records))
    assert held_out
    assert len(held_out) <= len(records) / 10 + 1
    if max(sizes) > 1:
        assert {record.label for record in learned} == {record.label for record in records}


def test_rare_classes_reach_the_held_out_examples_as_often_as_they_should() -> None:
    records = [TextInput(str(n), label="rare" if n % 111 == 0 else "common") for n in range(1000)]
    task = Classify(["common", "rare"])
    rare = [sum(x.label == "rare" for x in split(records, task, seed, Path("t.csv"))[1]) for seed in range(40)]
    assert 0.5 < np.mean(rare) < 1.5  # of ten rare ones a tenth


def test_the_questions_about_one_passage_stay_together() -> None:
    records = [AnswerInput("who?", f"context {n // 4}", ()) for n in range(200)]
    learned, held_out = split(records, Answer(), 0, Path("t.json"))
    assert len(held_out) == 20
    assert not {x.context for x in learned} & {x.context for x in held_out}
