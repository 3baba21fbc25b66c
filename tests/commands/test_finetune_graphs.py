"""Fine-tuning with recorded steps: the same is learned. The recording itself needs a GPU (bench/check_gpu.py)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from litebert.tokenizer import Tokenizer
from litebert.trainers.finetuning import FinetuningTrainer
from tests.commands.conftest import litebert
from tests.commands.finetuning import command, logged, small_examples, small_start, weights
from tests.train.graphing import ComputedGraphs


class Unrecorded(ComputedGraphs):
    """Batches of the same shapes, without any recording."""

    def __call__(self, loss: Any, batch: Any) -> Any:
        return loss(batch)


@pytest.fixture
def start(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_start(tokenizer, tmp_path_factory)


@pytest.fixture
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_examples(tmp_path_factory)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[ComputedGraphs]], list[ComputedGraphs]]:
    """Record from now on as on a GPU, with graphs of the kind given; all that are made."""

    real = FinetuningTrainer.__init__

    def begin(kind: type[ComputedGraphs]) -> list[ComputedGraphs]:
        made: list[ComputedGraphs] = []

        def init(self: FinetuningTrainer, *arguments: Any, **named: Any) -> None:
            real(self, *arguments, **named)
            if self.config.cuda_graphs and self.can_record():
                made.append(kind([p for p in self.albert.parameters() if p.requires_grad]))
                self.graphs = made[-1]

        monkeypatch.setattr(FinetuningTrainer, "__init__", init)
        return made

    return begin


@pytest.mark.parametrize(
    "flags",
    [("--dropout", 0.1), ("--lora", 2), ("--head", "mlp"), ("--label-smoothing", 0.1), ("--layer-decay-rate", 0.8),
     ("--r-drop", 1), ("--squash", "tanh"), ("--mix", "classify={}")],
)  # fmt: skip
def test_recorded_steps_teach_what_the_others_do(
    recording: Any, start: Path, examples: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    always = [flag.format(examples) if isinstance(flag, str) else flag for flag in flags]
    always += ["--epochs", 4, "--precision", "fp32"]
    for kind in (ComputedGraphs, Unrecorded):
        made = recording(kind)
        assert litebert(*command(start, examples, tmp_path / kind.__name__, *always)) == 0
        assert (made[0].replays > 3) == (kind is ComputedGraphs)
    folders = [tmp_path / kind.__name__ for kind in (ComputedGraphs, Unrecorded)]
    assert logged(folders[0], "loss") == logged(folders[1], "loss")
    assert weights(folders[0]) == weights(folders[1])


def test_a_run_resumed_learns_what_one_in_one_go_does(
    recording: Any, start: Path, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which steps are replays differs between the two."""
    recording(ComputedGraphs)
    flags = ("--epochs", 4, "--precision", "fp32", "--save-every", "1")
    assert litebert(*command(start, examples, tmp_path / "whole", *flags)) == 0
    real = FinetuningTrainer.after_step

    def stop(self: FinetuningTrainer, step: Any) -> None:
        if step.done == 5:
            raise KeyboardInterrupt
        real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(FinetuningTrainer, "after_step", stop)
        assert litebert(*command(start, examples, tmp_path / "parts", *flags)) != 0
    assert litebert(*command(start, examples, tmp_path / "parts", *flags, "--resume")) == 0
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("flags", "recorded"),
    [((), True), (("--layer-decay-rate", 0.8), True), (("--r-drop", 1), True), (("--no-cuda-graphs",), False),
     (("--class-weights",), False), (("--head", "lstm"), False), (("--adversarial", "smart"), False),
     (("--mixout", 0.5), False), (("--unfreeze-steps", 3), False)],
)  # fmt: skip
def test_what_varies_or_asks_is_not_recorded(
    recording: Any, start: Path, examples: Path, tmp_path: Path, flags: tuple[object, ...], recorded: bool
) -> None:
    made = recording(ComputedGraphs)
    assert litebert(*command(start, examples, tmp_path, "--epochs", 1, *flags)) == 0
    assert bool(made) == recorded


def test_a_length_that_is_no_round_number_fits(recording: Any, start: Path, examples: Path, tmp_path: Path) -> None:
    widths: list[int] = []
    real = FinetuningTrainer.loss

    def watched(self: FinetuningTrainer, micro_batch: Any) -> Any:
        widths.append(micro_batch.batch.input_ids.shape[1])
        return real(self, micro_batch)

    recording(ComputedGraphs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinetuningTrainer, "loss", watched)
        assert litebert(*command(start, examples, tmp_path, "--length", 13)) == 0
    assert set(widths) <= {8, 13}


def test_a_finished_attempt_is_let_go(recording: Any, start: Path, examples: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    recording(Unrecorded)  # the stand-in for a recording holds the loss, and so the attempt
    real = FinetuningTrainer.run

    def watched(self: FinetuningTrainer) -> bool:
        seen.append(weakref.ref(self))
        return real(self)

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FinetuningTrainer, "run", watched)
            assert litebert(*command(start, examples, tmp_path, "--epochs", 3)) == 0
        assert [reference() for reference in seen] == [None]
    finally:
        gc.enable()
