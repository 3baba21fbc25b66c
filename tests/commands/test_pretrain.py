"""Pre-training as a recipe: every setting counts, and what must not count does not."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from litebert import load
from litebert.commands import pretrain
from litebert.data.pretraining import PretrainingBatch, PretrainingData
from litebert.data.shards import Shards
from litebert.errors import ConfigError
from litebert.model.backends import fused, kernels
from litebert.tasks.pretraining import PretrainingObjective
from litebert.train.save_schedule import SaveSchedule
from litebert.trainers.pretraining import PretrainingTrainer
from tests.commands.conftest import UNUSUAL, Flow, litebert
from tests.model.backends import plain_kernels
from tests.train.graphing import ComputedGraphs

STEPS = 8
SMALL: dict[str, Any] = {
    "preset": "tiny", "layers": 4, "hidden_size": 64, "steps": STEPS, "batch_size": 4, "length": 64, "device": "cpu",
    "validation_rows": 4, "validate_every": 1, "warmup": 0.5,
}  # fmt: skip


def settings(flow: Flow, out: Path, **changes: Any) -> pretrain.Config:
    return pretrain.Config(out=out, **{"data": flow.shards} | SMALL | changes)


def further(flow: Flow, out: Path, model: Path, **changes: Any) -> pretrain.Config:
    """Go on from a model, without going anywhere."""
    own = {name: value for name, value in SMALL.items() if name not in ("preset", "layers", "hidden_size")}
    more = {"data": flow.shards, "model": str(model), "learning_rate": 1e-9, "steps": 2}
    return pretrain.Config(out=out, **own | more | changes)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    assert pretrain.run(settings(flow, out)) == 0
    return out


CHANGES: list[dict[str, Any]] = [
    {"mask": "word"}, {"mask": "ngram"}, {"mask": "span"}, {"mask": "ngram", "max_ngram": 2}, {"mask_share": 0.5},
    {"random_share": 0.0}, {"mask_exclude": ("punctuation",)}, {"sentences": "next"}, {"sentences": "none"},
    {"order_weight": 0.1}, {"short_share": 0.9}, {"batch_ramp": "1/2:0.5"}, {"length_ramp": "3/4:0.5"},
    {"depth_ramp": ""}, {"optimizer": "adamw"}, {"optimizer": "lamb"}, {"schedule": "linear"}, {"schedule": "cosine"},
    {"schedule": "poly"}, {"schedule": "poly", "poly_power": 1.0}, {"schedule": "constant"}, {"warmup": 0.1},
    {"hot_start": 0.5}, {"decay_share": 0.2}, {"weight_decay": 0.5}, {"clip_norm": 0.1}, {"average": 0.9},
    {"dropout": 0.1}, {"precision": UNUSUAL}, {"precision": "bf16-pure"}, {"sharing": "attention"}, {"sharing": "ffn"},
    {"sharing": "none"}, {"layers": 3}, {"hidden_size": 128}, {"embedding_size": 32}, {"attention_distance": 4},
    {"layer_decay_rate": 0.5}, {"scale_embedding": 0.1},
    {"depth_factors": (0.1, 1.0, 1.0, 1.0)}, {"layer_weight_decay": 0.1, "weight_decay": 0.5}, {"unfreeze_steps": 8},
    {"bounds": "project", "bound_max": 0.02}, {"squash": "tanh", "squash_temperature": 1e-4},
    {"squash": "softplus", "squash_temperature": 1e-4}, {"cold_factor": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: " ".join(f"{k}={v}" for k, v in change.items()))
def test_every_setting_changes_what_is_learned(flow: Flow, plain: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    assert pretrain.run(settings(flow, tmp_path / "run", **change)) == 0
    assert not same(tmp_path / "run", plain)
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "run").values())
    load(str(tmp_path / "run")).fill_mask("the [MASK] stopped")


@pytest.mark.parametrize(
    "change",
    [{"workers": 0}, {"workers": 4}, {"validate_every": 3}, {"save_every": "1"}, {"gradient_checkpointing": True}],
    ids=str,
)
def test_what_does_not_decide_does_not_change_a_bit(
    flow: Flow, plain: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert pretrain.run(settings(flow, tmp_path / "run", **change)) == 0
    assert same(tmp_path / "run", plain)


def test_micro_batches_learn_the_same_as_whole_ones(flow: Flow, plain: Path, tmp_path: Path) -> None:
    assert pretrain.run(settings(flow, tmp_path / "run", micro_batch=1)) == 0
    losses = [[line["loss"] for line in lines_of(run) if "loss" in line] for run in (plain, tmp_path / "run")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_run_that_is_out_of_memory_goes_on_with_smaller_micro_batches(
    flow: Flow, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = PretrainingObjective.forward

    def short_of_memory(self: Any, batch: PretrainingBatch, *more: Any) -> dict[str, torch.Tensor]:
        if self.training and len(batch.lengths) > 3:
            raise torch.OutOfMemoryError("that was too much")
        return whole(self, batch, *more)

    monkeypatch.setattr(PretrainingObjective, "forward", short_of_memory)
    assert pretrain.run(settings(flow, tmp_path / "run")) == 0
    assert "out of memory with 4 sequences at once: going on with 2" in capsys.readouterr().err
    losses = [[line["loss"] for line in lines_of(run) if "loss" in line] for run in (plain, tmp_path / "run")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.1}, {"sharing": "none"}], ids=str)
def test_recorded_steps_learn_the_same(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """As on a GPU: batches in sizes that come again, steps recorded; the recording itself needs one."""
    real, init, made = PretrainingData.batch, PretrainingTrainer.__init__, list[ComputedGraphs]()
    pad_id = Shards(flow.shards).tokenizer.pad_id
    monkeypatch.setattr(
        PretrainingData, "batch", lambda self, *a: real(self, *a).padded_to_buckets(SMALL["length"], pad_id)
    )
    config = {"precision": "fp32", "steps": 24, "depth_ramp": "2/4:0.5", "validate_every": 24} | changes
    assert pretrain.run(settings(flow, tmp_path / "plain", **config)) == 0

    def recorded(self: PretrainingTrainer, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(ComputedGraphs([one for one in self.setup.albert.parameters() if one.requires_grad]))
        self.graphs = made[0]

    def emptied(self: ComputedGraphs) -> ComputedGraphs:
        made.append(ComputedGraphs(self.parameters))
        return made[-1]

    monkeypatch.setattr(PretrainingTrainer, "__init__", recorded)
    monkeypatch.setattr(ComputedGraphs, "emptied", emptied)
    assert pretrain.run(settings(flow, tmp_path / "recorded", **config)) == 0
    assert same(tmp_path / "plain", tmp_path / "recorded")
    assert len(made) == 2  # those of two passes are dropped when there are four
    assert all(graphs.replays for graphs in made)


def test_memory_is_first_looked_for_in_recordings(
    flow: Flow, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init, whole = PretrainingTrainer.__init__, PretrainingObjective.forward
    runs: list[PretrainingTrainer] = []

    def recorded(self: PretrainingTrainer, *arguments: Any) -> None:
        init(self, *arguments)
        self.graphs = ComputedGraphs([one for one in self.setup.albert.parameters() if one.requires_grad])
        runs.append(self)

    def short_of_memory(self: Any, *arguments: Any) -> dict[str, torch.Tensor]:
        if self.training and runs[0].graphs is not None and runs[0].graphs.replays:
            raise torch.OutOfMemoryError("that was too much")
        return whole(self, *arguments)

    monkeypatch.setattr(PretrainingTrainer, "__init__", recorded)
    monkeypatch.setattr(PretrainingObjective, "forward", short_of_memory)
    assert pretrain.run(settings(flow, tmp_path / "run")) == 0
    assert runs[0].graphs is None
    assert "out of memory: going on without recorded steps" in capsys.readouterr().err
    losses = [[line["loss"] for line in lines_of(run) if "loss" in line] for run in (plain, tmp_path / "run")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_eight_bits_learn_nearly_the_same(flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of a GPU in plain torch; its matrix products from eight bits exist on CPUs too."""

    def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        total += left.float().t() @ right.float()

    for name, value in {"layer": lambda: plain_kernels, "attention": lambda: plain_kernels,
                        "add_product": add_product}.items():  # fmt: skip
        monkeypatch.setattr(kernels, name, value)
    for name in ("fused.has_triton", "supports_fp8"):
        monkeypatch.setattr(f"litebert.model.backends.{name}", lambda device: True)
    used: list[tuple[bool, bool]] = []
    of = fused.FusedPlan.of

    def watched(*arguments: Any) -> fused.FusedPlan:
        plan = of(*arguments)
        used.append((plan.needs_grad, plan.fp8))
        return plan

    monkeypatch.setattr(fused.FusedPlan, "of", staticmethod(watched))
    losses = []
    for precision in ("bf16", "fp8"):
        used.clear()
        assert pretrain.run(settings(flow, tmp_path / precision, precision=precision)) == 0
        assert set(used) == {(True, precision == "fp8"), (False, False)}  # validated as it will be used
        losses.append([line["loss"] for line in lines_of(tmp_path / precision) if "loss" in line])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_eight_bits_are_refused_where_there_are_none(flow: Flow, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision=fp8 needs an NVIDIA GPU .* use bf16"):
        pretrain.run(settings(flow, tmp_path / "run", precision="fp8"))


def test_the_log_tells_what_a_step_did_and_what_the_model_is_worth(plain: Path) -> None:
    steps = [line for line in lines_of(plain) if "loss" in line]
    assert [line["depth"] for line in steps] == [2] * 6 + [4] * 2
    assert all({"mlm_loss", "mlm_accuracy", "gradient_norm", "tokens"} <= set(line) for line in steps)
    assert any("order_accuracy" in line for line in steps)
    validations = [line for line in lines_of(plain) if "validation_loss" in line]
    assert [line["step"] for line in validations] == list(range(1, STEPS + 1))
    last = validations[-1]
    assert last["validation_perplexity"] == pytest.approx(math.exp(last["validation_mlm_loss"]))
    assert last["validation_loss"] == last["validation_mlm_loss"]  # one held-out document, of one sentence a row
    assert [line["event"] for line in lines_of(plain) if "event" in line] == ["step 6: from 2 to 4 passes"]
    assert (plain / "report.html").is_file()


def test_the_loss_of_a_validation_is_that_of_a_step(flow: Flow, tmp_path: Path) -> None:
    """Held-out text that is the training text, and hardly any learning: both ask tokens and order, with one weight."""
    shards = tmp_path / "shards"
    shutil.copytree(flow.shards, shards)
    index = json.loads((shards / "index.json").read_text())
    for suffix in ("ids", "bits"):
        shutil.copy(shards / f"shard-00000.{suffix}", shards / f"held-out-00000.{suffix}")
        index["sha256"][f"held-out-00000.{suffix}"] = index["sha256"][f"shard-00000.{suffix}"]
    index["tokens"] = 2 * Shards(flow.shards).training.tokens
    (shards / "index.json").write_text(json.dumps(index))
    config = settings(
        flow, tmp_path / "run", data=shards, steps=1, learning_rate=1e-9, batch_size=64, validation_rows=64,
        order_weight=3.0,
    )  # fmt: skip
    assert pretrain.run(config) == 0
    validation, step = lines_of(tmp_path / "run")
    assert validation["validation_mlm_loss"] == pytest.approx(step["mlm_loss"], abs=0.2)
    assert validation["validation_loss"] - validation["validation_mlm_loss"] == pytest.approx(3 * math.log(2), abs=0.3)
    assert step["loss"] - step["mlm_loss"] == pytest.approx(3 * math.log(2), abs=0.3)


def test_a_batch_decides_the_rate_and_a_line_says_so(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain.run(settings(flow, tmp_path / "run", batch_size=16, warmup=0.0, steps=2))
    assert "learning rate 3.13e-04: 0.005 for muon with 4096 sequences, × √(16/4096)" in capsys.readouterr().err
    assert lines_of(tmp_path / "run")[0]["step"] == 1
    rates = [line["learning_rate"] for line in lines_of(tmp_path / "run") if "loss" in line]
    assert rates[0] == pytest.approx(0.005 * (16 / 4096) ** 0.5)


def test_training_goes_on_from_a_model(flow: Flow, plain: Path, tmp_path: Path) -> None:
    assert pretrain.run(further(flow, tmp_path / "further", plain)) == 0
    before, after = weights(plain), weights(tmp_path / "further")
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_training_goes_on_with_a_vocabulary_that_has_grown(flow: Flow, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("quokka\nthunderstorm\n")
    tok, shards = tmp_path / "tok", tmp_path / "shards"
    assert litebert("tokenizer", "--import-from", plain, "--add", tmp_path / "words.txt", "--out", tok) == 0
    assert litebert("prepare", "--input", flow.corpus, "--tokenizer", tok, "--out", shards) == 0
    assert pretrain.run(further(flow, tmp_path / "run", plain, data=shards)) == 0
    before, after = load(str(plain)), load(str(tmp_path / "run"))
    assert after.config.vocab_size == before.config.vocab_size + 2
    table = after.encoder.word_embeddings.weight
    assert torch.allclose(table[:-2], before.encoder.word_embeddings.weight, atol=1e-6)
    assert torch.allclose(table[-1], before.encoder.word_embeddings.weight.mean(dim=0), atol=1e-6)


def test_longer_sequences_get_positions_that_go_on(
    flow: Flow, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = load(str(plain))
    known = short.max_length
    with torch.no_grad():
        short.encoder.position_embeddings.weight[:known].mul_(50)  # as after a long training
    short.save(tmp_path / "short")
    assert pretrain.run(further(flow, tmp_path / "long", tmp_path / "short", length=2 * known)) == 0
    assert f"has read sequences of up to {known} tokens: its positions up to {2 * known}" in capsys.readouterr().err
    norms = load(str(tmp_path / "long")).encoder.position_embeddings.weight.norm(dim=1)
    assert norms[known : 2 * known].min() > 10 * norms[2 * known :].max()


def test_a_model_with_another_vocabulary_is_refused(flow: Flow, trained_albert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"its vocabulary is not the shards' .* --tokenizer"):
        pretrain.run(further(flow, tmp_path / "run", trained_albert))


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn"])
def test_bounds_that_no_file_can_hold_are_refused(flow: Flow, tmp_path: Path, sharing: str) -> None:
    with pytest.raises(ConfigError, match=r"bounds=view .* use --bounds project, or --sharing none"):
        pretrain.run(settings(flow, tmp_path / "run", bounds="view", sharing=sharing))
    assert not (tmp_path / "run").exists()


def test_a_model_goes_on_at_its_full_depth(flow: Flow, tmp_path: Path) -> None:
    """A ramp would have trained a few of its layers, and overwritten the others with copies of them."""
    assert pretrain.run(settings(flow, tmp_path / "first", sharing="none", steps=2)) == 0
    assert pretrain.run(further(flow, tmp_path / "then", tmp_path / "first")) == 0
    assert [line["depth"] for line in lines_of(tmp_path / "then") if "loss" in line] == [4, 4]
    before, after = weights(tmp_path / "first"), weights(tmp_path / "then")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    with pytest.raises(ConfigError, match=r'--model: not while layers .* add --depth-ramp ""'):
        pretrain.run(further(flow, tmp_path / "ramp", tmp_path / "first", depth_ramp="1/2:0.5"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"workers": -1}, "workers=-1 must be 0 or more"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 must be 0 or more"),
        ({"order_weight": float("nan")}, "order_weight=nan must be above 0"),
        ({"max_ngram": 2}, "max_ngram=2 is for --mask ngram; leave it out"),
        ({"sentences": "none", "order_weight": 2.0}, "order_weight=2.0 weighs a loss that --sentences none leaves out"),
        ({"poly_power": 3.0}, "poly_power=3.0 is for --schedule poly"),
        ({"schedule": "cosine", "decay_share": 0.1}, "decay_share=0.1 is for --schedule wsd"),
        ({"warmup": 0.8, "decay_share": 0.5}, "1 at most together"),
        ({"bound_max": 1.0}, "bound_max=1.0 is for --bounds"),
        ({"squash_temperature": 2.0}, "squash_temperature=2.0 is for --squash"),
        ({"model": "somewhere", "layers": None, "hidden_size": None}, "preset=tiny is for a new model"),
        ({"mask_exclude": ("nowhere",)}, "mask_exclude=nowhere: neither `punctuation` nor a file"),
        ({"sharing": "none", "unfreeze_steps": 4}, '--unfreeze-steps: not while layers .* add --depth-ramp ""'),
        ({"parallel": "fsdp"}, "parallel=fsdp with optimizer=muon"),
        ({"parallel": "fsdp", "optimizer": "adamw", "average": 0.9}, "no --average"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(
    flow: Flow, tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        pretrain.run(settings(flow, tmp_path / "run", **change))
    assert not (tmp_path / "run").exists()


def test_a_finished_run_says_how_to_go_further(flow: Flow, plain: Path) -> None:
    before = weights(plain)
    with pytest.raises(ConfigError, match=r"this run is finished; to train its model further: .* --model"):
        pretrain.run(settings(flow, plain, resume=True))
    after = weights(plain)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_resuming_what_was_never_begun_is_said(flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain.run(settings(flow, tmp_path / "run", steps=1, resume=True)) == 0
    assert "no checkpoint in" in capsys.readouterr().err


def test_the_best_by_validation_is_kept(plain: Path) -> None:
    losses = {line["step"]: line["validation_loss"] for line in lines_of(plain) if "validation_loss" in line}
    at_full_depth = {step: loss for step, loss in losses.items() if step > 5}
    best = min(at_full_depth, key=lambda step: at_full_depth[step])
    assert (plain / "checkpoints" / "best").read_text().strip() == f"step-{best:08d}"


@pytest.mark.parametrize(
    ("text", "steps", "seconds"), [("500", 500, 0), ("10min", 0, 600), ("2epochs", 80, 0), ("0.5epoch", 20, 0)]
)
def test_save_every_takes_steps_minutes_or_epochs(text: str, steps: int, seconds: int) -> None:
    every = SaveSchedule.parse(text, epoch_steps=40)
    assert (every.steps, every.seconds) == (steps, seconds)


@pytest.mark.parametrize("text", ["", "0", "-5", "ten", "5 hours", "min"])
def test_save_every_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(ConfigError, match=r"save_every=.*10min"):
        SaveSchedule.parse(text, epoch_steps=40)
