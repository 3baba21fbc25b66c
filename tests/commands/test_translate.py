"""Translation through the command line: learn, evaluate, predict, export, quantize; and an encoder that is frozen."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from litebert.loading import load
from litebert.model.beam_search import BeamSearch, search
from litebert.tasks import translate
from litebert.tokenizer import train_unigram
from litebert.trainers import finetuning_setup, frozen_encoder
from tests.commands.conftest import QUICK, Flow, litebert, once
from tests.conftest import peer

WORDS = {"rain": "Regen", "thunder": "Donner", "butter": "Butter", "eggs": "Eier", "train": "Zug", "bridge": "Brücke",
         "people": "Leute", "map": "Karte"}  # fmt: skip
SMALL = (
    "--decoder-hidden-size", 32, "--decoder-intermediate-size", 64, "--decoder-layers", 1, "--decoder-reading-layers",
    1, "--decoder-dropout", 0, "--target-vocab-size", 80,
)  # fmt: skip


def write_pairs(folder: Path, name: str, count: int, seed: int) -> Path:
    """Lists of words, translated word by word."""
    rng = random.Random(seed)
    lines = [rng.sample(list(WORDS), 4) for _ in range(count)]
    (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    translated = ("".join(" ".join(WORDS[word] for word in line) + "\n") for line in lines)
    (folder / f"{name}.de").write_text("".join(translated), encoding="utf-8")
    return folder / f"{name}.en"


@pytest.fixture(scope="module")
def taught(flow: Flow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator of these words, whose encoder was frozen."""
    peer("sacrebleu")

    def build(folder: Path) -> None:
        train, valid = write_pairs(folder, "train", 480, 0), write_pairs(folder, "valid", 20, 1)
        assert litebert(
            "finetune", "--task", "translate", "--model", flow.pretrained, "--train", train, "--valid", valid, "--out",
            folder / "model", "--epochs", 20, "--batch-size", 16, "--device", "cpu", "--learning-rate", 1e-3,
            "--freeze-encoder", "--patience", 0, *SMALL,
        ) == 0  # fmt: skip

    return once(tmp_path_factory, "translator", build)


def test_it_learns_and_is_evaluated_with_signatures(taught: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert litebert("evaluate", "--model", taught / "model", "--data", taught / "valid.en", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["metrics"]["bleu"] > 50 > figures["baseline"]["bleu"]
    assert figures["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert litebert("evaluate", "--model", taught / "model", "--data", taught / "valid.en") == 0
    told = capsys.readouterr().out
    assert "bleu: nrefs:1" in told
    assert "chrf: nrefs:1" in told


def test_a_frozen_encoder_stays_as_it_was(flow: Flow, taught: Path) -> None:
    before, after = load_file(flow.pretrained / "model.safetensors"), load_file(taught / "model" / "model.safetensors")
    encoder = [name for name in before if name.startswith("albert.") and "pooler" not in name]
    assert encoder
    assert all(torch.equal(before[name], after[name]) for name in encoder)
    assert json.loads((taught / "model" / "config.json").read_text())["model_type"] == "litebert"


def test_lines_are_translated_one_by_one(taught: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert litebert("predict", "--model", taught / "model", "--input", taught / "valid.en", "--output", out) == 0
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    truth = (taught / "valid.de").read_text(encoding="utf-8").splitlines()
    assert len(answers) == len(truth)
    assert set(answers[0]) == {"translation", "log_likelihood", "unknown"}
    assert sum(one["translation"] == true for one, true in zip(answers, truth, strict=True)) > len(truth) / 2


def test_graphs_translate_the_same(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = peer("onnxruntime")
    out = tmp_path / "onnx"
    given = ("--model", taught / "model", "--test", taught / "valid.en", "--json")
    assert litebert("export", *given, "--out", out) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["off"] < 1e-4
    assert figures["scores"][0] == pytest.approx(figures["scores"][1])
    assert (out / "target" / "tokenizer.json").is_file()
    writes = onnxruntime.InferenceSession(out / "decoder.onnx", providers=["CPUExecutionProvider"])
    reads = onnxruntime.InferenceSession(out / "encoder.onnx", providers=["CPUExecutionProvider"])
    model = load(taught / "model")
    encoded = model.tokenizer.encode(["rain thunder map train"])[0].ids
    inputs = {"input_ids": encoded, "attention_mask": [1] * len(encoded), "token_type_ids": [0] * len(encoded)}
    wanted = {one.name for one in reads.get_inputs()}
    (source,) = reads.run(["source"], {name: np.array([x]) for name, x in inputs.items() if name in wanted})
    written, ids = source[:, :, :, :, :0], [model.task.target.cls_id]  # type: ignore[union-attr]
    while ids[-1] != model.task.target.sep_id and len(ids) < 30:  # type: ignore[union-attr]
        scores, _, written = writes.run(
            ["scores", "looks", "written_now"],
            {"ids": np.array(ids[-1:]), "attention_mask": np.ones((1, len(encoded)), dtype=np.int64),
             "source": source, "written": written},
        )  # fmt: skip
        ids.append(int(scores.argmax()))
    model.task.search = BeamSearch(1, 1.0)  # type: ignore[union-attr]
    (greedy,) = model.predict(["rain thunder map train"])
    assert model.task.target.decode(ids[1:-1]) == greedy.translation  # type: ignore[union-attr]
    assert litebert("export", *given, "--int8", "--out", tmp_path / "eight") == 0
    assert json.loads(capsys.readouterr().out)["scores"][1] > 40
    assert litebert("export", "--model", taught / "model", "--format", "torch", "--out", tmp_path / "t") == 2
    assert "leave out --format" in capsys.readouterr().err


def test_the_encoder_is_computed_from_eight_bits_where_that_is_asked(taught: Path) -> None:
    from litebert.model.backends.int8 import has_int8

    if not has_int8():
        pytest.skip("this CPU has no instructions for eight bits")
    plain, eight = (load(taught / "model", engine=engine) for engine in ("torch", "int8"))  # type: ignore[arg-type]
    texts = (taught / "valid.en").read_text(encoding="utf-8").splitlines()
    both = zip(plain.predict(texts), eight.predict(texts), strict=True)
    same = [one.translation == two.translation for one, two in both]
    assert eight.answers_in_int8
    assert sum(same) >= 0.8 * len(same)


def test_a_run_is_not_resumed_with_other_targets(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, out = write_pairs(tmp_path, "train", 20, 0), tmp_path / "out"
    given = ("--task", "translate", "--model", flow.pretrained, "--train", train, "--out", out, "--epochs", 1, *SMALL)
    assert litebert("finetune", *given) == 0
    (out / "finished.json").unlink()  # as if it had been stopped
    (tmp_path / "train.de").write_text("Butter\n" * 20, encoding="utf-8")
    capsys.readouterr()
    assert litebert("finetune", *given, "--resume") == 2
    assert "train.de" in capsys.readouterr().err


def test_a_run_is_not_resumed_with_another_vocabulary(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, out, vocabulary = write_pairs(tmp_path, "train", 20, 0), tmp_path / "out", tmp_path / "vocabulary"
    words = " ".join(WORDS.values())
    swapped = words.translate(str.maketrans("RgDoBt", "gRoDtB"))
    one, other = (train_unigram([text] * 20, 64, lowercase=False) for text in (words, swapped))
    assert one.vocab_size == other.vocab_size
    one.save(vocabulary)
    given = (
        "--task", "translate", "--model", flow.pretrained, "--train", train, "--out", out, "--epochs", 1, *SMALL[:-2],
        "--target-tokenizer", vocabulary,
    )  # fmt: skip
    assert litebert("finetune", *given) == 0
    (out / "finished.json").unlink()  # as if it had been stopped
    shutil.rmtree(vocabulary)
    other.save(vocabulary)
    capsys.readouterr()
    assert litebert("finetune", *given, "--resume") == 2
    assert f"content of {vocabulary}" in capsys.readouterr().err.replace("\n", "")


def test_every_setting_of_the_decoder_reaches_the_model(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dropout and the smoothing of learning, the rate of the decoder, its sharing, and the search."""
    train = write_pairs(tmp_path, "train", 20, 0)
    searched: list[int] = []
    monkeypatch.setattr(
        translate, "search", lambda *given, real=search: searched.append(given[5].beams) or real(*given)
    )

    def weights(name: str, *given: object, rate: float | None = None) -> torch.Tensor:
        with monkeypatch.context() as patch:
            if rate is not None:
                patch.setattr(translate.Translate, "head_learning_rate_factor", rate)
            assert litebert(
                "finetune", "--task", "translate", "--model", flow.pretrained, "--train", train, "--out",
                tmp_path / name, "--epochs", 1, "--batch-size", 8, "--freeze-encoder", "--device", "cpu", *SMALL,
                *given,
            ) == 0  # fmt: skip
        return load_file(tmp_path / name / "model.safetensors")["litebert_heads.translate.words.weight"]

    usual = weights("usual")
    assert set(searched) == {1}
    for name, given, rate in (
        ("dropout", ("--decoder", "dropout=0.5"), None),
        ("smoothing", ("--label-smoothing", 0.4), None),
        ("rate", (), 1.0),
    ):
        assert not torch.equal(usual, weights(name, *given, rate=rate))
    weights("search", "--beams", 3, "--length-penalty", 0.5, "--decoder-layers", 2, "--decoder-sharing", "all")
    model = load(tmp_path / "search")
    searched.clear()
    model.predict(["rain"])
    assert searched == [3]
    assert model.task.search == BeamSearch(3, 0.5)  # type: ignore[union-attr]
    assert len(model.albert.heads["translate"].writing) == 1  # type: ignore[arg-type]


def test_fewer_passes_are_refused(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    given = ("--model", taught / "model", "--input", taught / "valid.en", "--output", out)
    assert litebert("predict", *given, "--passes", 1) == 2
    assert "passes=1: translate reads at depths of its own choice; leave it out" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_a_frozen_encoder_is_asked_once_if_there_is_room(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """For any task: it learns the same whether states are kept or read again at every step."""
    monkeypatch.setattr(finetuning_setup, "MAX_STATES_BYTES", limit)
    asked = []
    monkeypatch.setattr(
        frozen_encoder, "states_after", lambda *given, real=frozen_encoder.states_after: asked.append(1) or real(*given)
    )
    out = tmp_path / "out"
    assert litebert(
        "finetune", "--model", flow.pretrained, "--train", flow.examples, "--valid", flow.examples, "--out", out,
        "--freeze-encoder", "--epochs", 2, "--precision", "fp32", *QUICK,
    ) == 0  # fmt: skip
    assert bool(asked) == bool(limit)
    assert ("too many to keep" in capsys.readouterr().err) == (not limit)
    before, after = load_file(flow.pretrained / "model.safetensors"), load_file(out / "model.safetensors")
    changed = {name for name in before if name in after and not torch.equal(before[name], after[name])}
    assert changed == {"albert.pooler.weight", "albert.pooler.bias"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--task", "tag", "--beams", 3), "beams is for --task translate"),
        (("--task", "translate", "--adversarial", "smart"), "adversarial is for tasks that read alone"),
        (("--freeze-encoder", "--lora", 8), "freeze_encoder leaves nothing for lora"),
        (("--task", "translate", "--decoder-heads", 5), "multiple of its 5 heads"),
        (("--task", "translate", "--beams", 0), "beams=0 must lie between 1"),
        (("--task", "translate", "--train", "/none/train.en"), "/none/train.en: cannot be read"),
        (("--task", "translate", "--columns", "target=a/b"), "target='a/b' must be a language"),
        (("--task", "translate", "--mix", "translate=x.en"), "translate cannot be an auxiliary task"),
    ],
)
def test_what_does_not_fit_is_refused(
    given: tuple[object, ...], said: str, flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_pairs(tmp_path, "train", 20, 0)
    out = tmp_path / "out"
    assert litebert("finetune", "--model", flow.pretrained, "--train", train, "--out", out, *given) == 2
    assert said in capsys.readouterr().err
    assert not (out / "run.json").exists()
