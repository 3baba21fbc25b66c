"""Texts that stop early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import litebert
from litebert.data.batches import Batch
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import read_json, write_json
from litebert.inference import Model
from litebert.inference.early_exit import EarlyExitPolicy, early_exit_policy, early_scores, measured_exits, quarters
from litebert.model import Albert, AlbertConfig
from litebert.model.backends.int8 import enable_int8, has_int8, verified_native_library
from litebert.model.backends.native import NativeInt8Backend
from litebert.tasks import Classify
from litebert.tasks.classify import Exit

TEXTS = ["昨天", "我们一起去公园看花，天气很好", "他说", "这本书的内容很有意思，值得一读再读", "好"]


def taught(**changes: Any) -> Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.3}
    config = AlbertConfig(
        vocab_size=10_000, embedding_size=16, num_hidden_layers=4, num_attention_heads=4, **sizes | changes
    )
    task = Classify(["a", "b", "c"])
    tokenizer = litebert.load("litebert-small-zh").tokenizer
    model = Model(Albert(config, {task.head_name: task.head(config)}).eval(), tokenizer, task)
    if model.encoder.relative_bias is not None:  # which begins as nothing
        torch.nn.init.normal_(model.encoder.relative_bias)
    return model


@pytest.fixture
def own_code() -> None:
    if verified_native_library() is None:
        pytest.skip("no code of our own for eight bits")


def batch_of(model: Model, texts: list[str]) -> Batch:
    from litebert.data.batches import pad

    return pad(model.tokenizer.encode(texts), model.tokenizer.pad_id)


@pytest.mark.parametrize("changes", [{}, {"sharing": "none"}, {"relative_attention_distance": 3}], ids=str)
@pytest.mark.parametrize("count", [1, 5])
def test_each_text_gets_the_scores_of_the_depth_at_which_it_is_sure(changes: dict[str, object], count: int) -> None:
    model = taught(**changes)
    batch, task = batch_of(model, TEXTS[:count]), Classify(["a", "b", "c"])
    with torch.inference_mode():
        by_depth = []
        for model.passes in (1, 2, 4):
            by_depth.append(task.scores(model.albert, batch)["scores"])
        model.encoder.depth = None
        sure = [scores.softmax(-1).amax(-1) for scores in by_depth]
        for threshold in (0.0, float(sure[0].median()), 1.1):
            found, passes = early_scores(model.albert, task, batch, EarlyExitPolicy([1, 2, 4], threshold))
            for row in range(count):
                at = next((n for n in range(2) if sure[n][row] >= threshold), 2)
                assert passes[row] == [1, 2, 4][at]
                torch.testing.assert_close(found["scores"][row], by_depth[at][row], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not has_int8(), reason="this CPU has no instructions for eight bits")
def test_eight_bits_stop_early_too() -> None:
    model = taught()
    enable_int8(model.encoder)
    batch, task = batch_of(model, TEXTS), Classify(["a", "b", "c"])
    with torch.inference_mode():
        truth = task.scores(model.albert, batch)["scores"]
        found, passes = early_scores(model.albert, task, batch, EarlyExitPolicy([2, 4], 1.1))
    assert passes.tolist() == [4] * 5
    assert (found["scores"] - truth).norm() < 0.1 * truth.norm()


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"relative_attention_distance": 3},
        {"inner_group_num": 2},
        {"hidden_size": 264, "initializer_range": 0.1},  # wide enough for looks to be split among threads
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 3])
def test_native_code_looks_for_itself_and_says_the_same(
    changes: dict[str, object], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(**{"initializer_range": 0.15} | changes)  # more sure after two passes than after one
    enable_int8(model.encoder)
    texts = [(TEXTS[n % 5] * (1 + n * n % 13))[:90] for n in range(30)]  # more than one group of 384 tokens
    batch, task, before = batch_of(model, texts), Classify(["a", "b", "c"]), torch.get_num_threads()
    assert batch.real.sum() > 800
    alone, stopped = [batch_of(model, [text]) for text in texts], set[int]()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))  # or no more threads than CPUs would be used
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            seldom = surer_once_deeper(model, batch)
            for sure in (0.0, 0.4, seldom, 0.5, 0.7, 0.9, 0.95, 1.1):
                exits = EarlyExitPolicy([1, 2, 4], sure)
                found, passes = early_scores(model.albert, task, batch, exits)
                single = [early_scores(model.albert, task, one, exits) for one in alone]
                with monkeypatch.context() as patch:
                    patch.setattr(NativeInt8Backend, "classify_early", lambda *_: None)
                    usual, took = early_scores(model.albert, task, batch, exits)
                assert passes.tolist() == took.tolist() == [one[1].item() for one in single]
                stopped |= set(passes.tolist())
                torch.testing.assert_close(found["scores"], usual["scores"], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(
                    found["scores"], torch.cat([one[0]["scores"] for one in single]), atol=1e-4, rtol=1e-4
                )
    finally:
        torch.set_num_threads(before)
    assert stopped == {1, 2, 4}
    assert len(set(passes.tolist())) == 1
    head: Any = model.albert.heads[task.head_name]
    with torch.inference_mode():
        said = model.encoder.backend.classify_early(model.encoder, *native_input(batch), [1, 2, 4], head.linear, 1.1)
    assert said is not None  # so it was native code that stopped above
    torch.testing.assert_close(said[0], found["scores"])


def surer_once_deeper(model: Model, batch: Batch) -> float:
    """What some text is sure of after two passes and was not after one."""
    sure = []
    for model.passes in (1, 2):
        sure.append(model.task.scores(model.albert, batch)["scores"].softmax(-1).amax(-1))
    model.encoder.depth = None
    row = int((sure[1] - sure[0]).argmax())
    assert sure[1][row] > sure[0][row] + 0.01
    return float(sure[0][row] + sure[1][row]) / 2


def native_input(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return batch.input_ids[batch.real], batch.real.sum(1), batch.token_type_ids[batch.real]


@pytest.mark.usefixtures("own_code")
def test_native_code_refuses_sequences_of_nothing() -> None:
    model = taught()
    enable_int8(model.encoder)
    ids, lengths = torch.tensor([5, 6]), torch.tensor([2, *[0] * 100])
    with torch.inference_mode(), pytest.raises(DataError, match="or are not of 1 to 2"):
        model.encoder.backend.classify_early(
            model.encoder, ids, lengths, torch.zeros_like(ids), [2, 4], nn.Linear(32, 3), 1.0
        )


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("kind", ["depths", "a hook on the head", "a hook on the pooler", "a part of their own"])
def test_native_code_leaves_to_torch_what_it_cannot_look_at(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(given)

    model, heard = taught(depth_embedding=kind == "depths"), list[int]()
    enable_int8(model.encoder)
    batch, task = batch_of(model, TEXTS), Classify(["a", "b", "c"])
    head: Any = model.albert.heads[task.head_name]
    match kind:
        case "a hook on the head":
            head.register_forward_hook(lambda *_: heard.append(1))
        case "a hook on the pooler":
            model.encoder.pooler.register_forward_hook(lambda *_: heard.append(1))
        case "a part of their own":
            head.linear.__class__ = Doubled
    looked: list[int] = []
    run = NativeInt8Backend._run
    monkeypatch.setattr(
        NativeInt8Backend,
        "_run",
        lambda self, packed, batch: (looked.append(bool(batch.early_exit)), run(self, packed, batch))[1],
    )
    with torch.inference_mode():
        found, passes = early_scores(model.albert, task, batch, EarlyExitPolicy([2, 4], 1.1))
        truth = task.scores(model.albert, batch)["scores"]
    assert not any(looked)
    assert passes.tolist() == [4] * 5
    torch.testing.assert_close(found["scores"], truth, atol=1e-4, rtol=1e-4)
    assert bool(heard) == kind.startswith("a hook")


@pytest.mark.parametrize("depths", [[], [4, 2], [1, 1, 4]], ids=str)
@pytest.mark.parametrize("eight", [False, True])
def test_depths_that_do_not_grow_are_refused(depths: list[int], eight: bool) -> None:
    model = taught()
    if eight:
        enable_int8(model.encoder)
    batch, task = batch_of(model, TEXTS), Classify(["a", "b", "c"])
    with torch.inference_mode(), pytest.raises(ConfigError, match="must grow"):
        early_scores(model.albert, task, batch, EarlyExitPolicy(depths, 0.9))


def test_what_thresholds_come_to_is_counted() -> None:
    likely = np.array([[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.9, 0.1], [0.1, 0.9], [0.3, 0.7]]])
    found = measured_exits(np.log(likely), [2, 4])
    assert found[0] == pytest.approx((0.9, 10 / 3, 1.0))
    assert found[-1] == pytest.approx((0.6, 2.0, 2 / 3))
    assert [one.passes for one in found] == sorted((one.passes for one in found), reverse=True)
    assert measured_exits(np.log(likely[:1]), [1]) == []


def test_a_speed_is_brought_about_by_how_sure_to_be(tmp_path: Path) -> None:
    model = taught()
    with pytest.raises(ConfigError, match="has not learned to answer early"):
        model.set_speed(2)
    assert isinstance(model.task, Classify)
    model.task.exits = [Exit(0.99, 3.5, 1.0), Exit(0.9, 2.0, 0.98), Exit(0.5, 1.6, 0.9)]
    model.save(tmp_path)
    model = litebert.load(tmp_path)
    model.set_speed(2)
    assert model.exits == EarlyExitPolicy([1, 2, 3, 4], 0.9)
    labels = [one.label for one in model.predict(TEXTS)]
    assert len(labels) == model.stopped_after.total() == 5
    model.set_speed(1)
    assert model.exits is None
    with pytest.raises(ConfigError, match=r"speed=3 is more than this model has; it can be 2\.5 at most"):
        model.set_speed(3)
    with pytest.raises(ConfigError, match=r"speed=0\.5 must be 1"):
        early_exit_policy(model.task, 4, 0.5)
    settings = read_json(tmp_path / "config.json")
    settings["litebert"]["options"]["exits"] = [[0.9, "many", 1]]
    write_json(tmp_path / "config.json", settings)
    with pytest.raises(CheckpointError, match="rows of three numbers"):
        litebert.load(tmp_path)


def test_quarters_of_few_passes_are_those_that_there_are() -> None:
    assert [quarters(count) for count in (12, 4, 3, 1)] == [[3, 6, 9, 12], [1, 2, 3, 4], [1, 2, 3], [1]]
