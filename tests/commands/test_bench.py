"""Side by side: who is measured, on what, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from litebert.commands import bench
from litebert.errors import ConfigError
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.studies.benchmark.harness import Harness, forward_flops, transformers_model
from litebert.studies.benchmark.runner import Result, result_table
from litebert.studies.benchmark.training import RoundRobinHook
from litebert.train.loop import Step
from tests.commands.conftest import Flow, litebert
from tests.conftest import peer

QUICK = ("--preset", "tiny", "--rounds", 2, "--batch-size", 2, "--length", 16, "--device", "cpu")


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert litebert("bench", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_texts_are_read_by_both_many_and_one_at_a_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    peer("transformers")
    found = figures(capsys, "infer", *QUICK, "--out", tmp_path)
    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    assert cases[0] == "2 texts of 16"
    assert cases[1].startswith("16 texts of ")
    assert cases[2:] == ["one text of 16", "one text of 64", "one text of 128"]
    assert [row["who"] for row in found["rows"]] == ["transformers", "litebert"] * len(cases)
    first = found["rows"][0]
    assert first["tokens_per_second"] == pytest.approx(32 / first["milliseconds"] * 1e3)
    matmul = found["matmul_operations_per_second"]["float32"]
    assert first["of_matmul"] == pytest.approx(first["operations_per_second"] / matmul)
    assert found["copy_bytes_per_second"] > 1e8
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg role="img"') == 3
    assert all(case in page for case in cases)
    assert litebert("bench", "infer", *QUICK, "--out", tmp_path) == 2  # what was measured is kept


def test_the_texts_of_a_file_are_as_long_as_its_tokenizer_says(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("transformers")
    texts = tmp_path / "texts.txt"
    texts.write_text("the rain\n\neggs and butter for breakfast\n", encoding="utf-8")
    given = ("--model", flow.pretrained, "--data", texts, "--rounds", 1, "--length", 12, "--device", "cpu")
    found = figures(capsys, "infer", *given)
    from litebert import load

    encoded = load(flow.pretrained).tokenizer.encode(["the rain", "eggs and butter for breakfast"])
    lengths = sorted(min(12, len(one.ids)) for one in encoded)
    assert f"2 texts of {lengths[0]} to {lengths[1]}" in {row["case"] for row in found["rows"]}


def test_the_words_of_a_file_are_read(flow: Flow, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the rain\n\neggs and butter for breakfast\n", encoding="utf-8")
    config = bench.Config(model=str(flow.pretrained), data=texts, length=(64,))
    arena = Harness(config, torch.device("cpu"), Console(quiet=True))
    (group,) = arena.groups(8)
    assert arena.model is not None
    assert [arena.model.tokenizer.decode(text) for text in group] == ["eggs and butter for breakfast", "the rain"]
    ids, real = arena.batch_of(group)
    assert real is not None
    assert [row[kept].tolist() for row, kept in zip(ids, real, strict=True)] == group


def test_steps_of_a_classifier_are_measured_on_texts_of_all_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    peer("transformers")
    rows = figures(capsys, "finetune", *QUICK)["rows"]
    assert [row["who"] for row in rows] == ["transformers", "litebert"]
    assert rows[0]["case"].startswith("fine-tuning, 8 × 2 texts of ")
    tokens = {round(row["tokens_per_second"] * row["milliseconds"] / 1e3) for row in rows}
    assert len(tokens) == 1
    assert 16 * 4 <= tokens.pop() <= 16 * 16


def test_steps_of_pretraining_are_measured_whole(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    peer("transformers")
    ours, theirs = (
        {row["who"]: row for row in figures(capsys, "pretrain", *QUICK, "--data", flow.shards)["rows"]}[who]
        for who in ("litebert", "transformers")
    )
    assert ours["case"] == theirs["case"] == "pre-training, 2 × 16"
    tokens = [row["tokens_per_second"] * row["milliseconds"] / 1e3 for row in (ours, theirs)]
    assert tokens[1] == pytest.approx(32)
    assert 16 < tokens[0] <= 32  # of ours only real ones count


def test_pretraining_needs_text() -> None:
    with pytest.raises(ConfigError, match="give the shards of litebert prepare with --data"):
        bench.Config(what=("pretrain",))


def test_eight_bits_are_for_reading_and_pretraining() -> None:
    with pytest.raises(ConfigError, match="finetune takes no eight bits"):
        bench.Config(precision="fp8")


def test_texts_of_all_lengths_are_read_as_many_tokens_at_once() -> None:
    arena = Harness(bench.Config(preset="tiny", length=(16,)), torch.device("cpu"), Console(quiet=True))
    groups = arena.groups(8, 8 * 16)
    assert sum(map(len, groups)) == 64
    assert all(len(group) * max(map(len, group)) <= 8 * 16 for group in groups)
    assert len({len(group) for group in groups}) > 1


def test_a_request_to_stop_ends_the_bench(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("transformers")
    monkeypatch.setattr("litebert.studies.benchmark.training.pretrain", lambda *_, **__: False)
    assert litebert("bench", "pretrain", *QUICK, "--data", flow.shards) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_length_beyond_the_model_is_refused_at_once(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    peer("transformers")
    assert litebert("bench", "infer", "--model", flow.pretrained, "--length", 1000) == 2
    assert "length=1000 must fit the model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 0},
        {"length": ()},
        {"length": (4,)},
        {"what": ()},
        {"batch_size": 0},
        {"what": ("infer", "pretrain"), "data": Path("shards")},
        {"data": Path("texts.txt")},
    ],
    ids=str,
)
def test_nothing_to_measure_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        bench.Config(**changes)


def test_the_peer_computes_the_same_and_the_formula_counts_its_operations(tiny_config: AlbertConfig) -> None:
    peer("transformers")
    albert = Albert(tiny_config).eval()
    theirs, ids = transformers_model(albert, "AlbertModel").eval(), torch.randint(5, 30, (3, 9))
    theirs.config._attn_implementation = "eager"  # the counter does not know the fused one on a CPU
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        expected = theirs(input_ids=ids).last_hidden_state
    torch.testing.assert_close(albert.encoder(ids), expected, atol=1e-5, rtol=1e-4)
    embedding = 2 * 3 * 9 * tiny_config.embedding_size * tiny_config.hidden_size
    assert counter.get_total_flops() == forward_flops(tiny_config, [9] * 3) + embedding


def test_the_peer_for_training_has_both_heads(tiny_config: AlbertConfig) -> None:
    peer("transformers")
    albert = Albert(tiny_config, pretraining_heads(tiny_config)).eval()
    theirs, ids = transformers_model(albert, "AlbertForPreTraining").eval(), torch.randint(5, 30, (3, 9))
    with torch.no_grad():
        found = theirs(input_ids=ids)
        hidden = albert.encoder(ids)
        logits = albert.heads["mlm"](hidden, albert.encoder.word_embeddings.weight)
        order = albert.heads["order"](albert.encoder.pool(hidden[:, 0]))
    torch.testing.assert_close(logits, found.prediction_logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(order, found.sop_logits, atol=1e-4, rtol=1e-4)


def test_others_take_as_many_steps_as_we_do_and_the_first_and_last_turn_do_not_count() -> None:
    taken: list[int] = []
    turns = RoundRobinHook({"other": lambda: taken.append(1)}, torch.device("cpu"), lambda: None)
    for done in range(1, 21):
        turns(Step(done, 20, {"tokens": float(done)}, 0.1, 0.0, False))
    assert len(taken) == 20
    assert {who: len(timing.seconds) for who, timing in turns.timings().items()} == {"other": 2, "litebert": 2}
    assert turns.tokens == 10.5


def test_speed_is_told_against_the_first_of_each_case() -> None:
    rows = [Result("a", "them", 10.0, 0.1, 4.0, 1.0, 0.5, 9.0, None),
            Result("a", "litebert", 2.0, 0.1, 10.0, 1.0, 0.5, 9.0, None),
            Result("b", "them", 1.0, 0.1, 5.0, 1.0, 0.5, 9.0, 10**9)]  # fmt: skip
    table = result_table(rows)
    speeds = next(column for column in table.columns if column.header == "speed")
    assert list(speeds.cells) == ["1.00×", "2.50×", "1.00×"]  # by tokens, of which a step of ours may have fewer
    assert [column.header for column in table.columns][-1] == "memory"
