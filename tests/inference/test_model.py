"""What `litebert.load` returns, and where it looks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import litebert
from litebert.errors import ConfigError, DataError
from litebert.inference import Model, pipeline
from litebert.inference import model as answering
from litebert.model import Albert, Encoder
from litebert.tasks import Classify
from tests.conftest import PROSE, REPOSITORY


def test_the_encoder_takes_ids_and_gives_batch_length_hidden(model: Model) -> None:
    assert model.encoder(torch.tensor([[2, 7, 3], [2, 8, 3]])).shape == (2, 3, 32)


def test_embed_gives_one_float32_vector_per_text_in_their_order(model: Model) -> None:
    texts = [PROSE[0] * 3, "one", PROSE[1]]
    together = model.embed(texts)
    assert together.shape == (3, 32)
    assert together.dtype == np.float32
    one_by_one = np.concatenate([model.embed([text]) for text in texts])
    np.testing.assert_allclose(together, one_by_one, atol=1e-5)
    assert model.embed([]).shape == (0, 32)


def test_fewer_passes_are_run_where_that_is_asked_for(model: Model) -> None:
    all_of_them, ids = model.embed(["one"]), torch.tensor([[2, 7, 3]])
    assert model.passes == model.config.num_hidden_layers
    model.passes = 1
    try:
        assert model.passes == 1
        assert not np.allclose(model.embed(["one"]), all_of_them, atol=1e-3)
        assert torch.equal(model.encoder(ids), model.encoder(ids, depth=1))
        with pytest.raises(ConfigError, match="depth=0 must lie between 1 and"):
            model.passes = 0
    finally:
        model.encoder.depth = None
    np.testing.assert_allclose(model.embed(["one"]), all_of_them, atol=1e-6)


def test_fill_mask_gives_the_likeliest_tokens_with_the_text_filled(model: Model) -> None:
    fills = model.fill_mask("the [MASK] opened at five", top=3)
    assert len(fills) == 3
    probabilities = [fill.probability for fill in fills]
    assert probabilities == sorted(probabilities, reverse=True)
    for fill in fills:
        assert fill.token.strip("▁") in fill.text
        assert "[MASK]" not in fill.text


def test_fill_mask_gives_a_list_per_mask_and_refuses_none(model: Model) -> None:
    several = model.fill_mask("the [MASK] opened at [MASK]", top=2)
    assert [len(fills) for fills in several] == [2, 2]
    with pytest.raises(litebert.DataError, match=r"no \[MASK\].*put \[MASK\] where a word is missing"):
        model.fill_mask("nothing is missing")
    with pytest.raises(litebert.ConfigError, match="top=0 must be at least 1"):
        model.fill_mask("a [MASK]", top=0)


def test_predict_answers_strings_pairs_and_mappings_alike(model: Model) -> None:
    task = Classify(["a", "b"])
    classifier = Model(Albert(model.config, {"classify": task.head(model.config)}).eval(), model.tokenizer, task)
    by_string, by_mapping = classifier.predict(["some text"])[0], classifier.predict([{"text": "some text"}])[0]
    assert by_string == by_mapping
    assert sum(by_string.probabilities.values()) == pytest.approx(1)
    assert by_string.probability == max(by_string.probabilities.values())
    pair, as_mapping = classifier.predict([("left", "right"), {"text_a": "left", "text_b": "right"}])
    assert pair.probabilities == pytest.approx(as_mapping.probabilities)
    assert classifier.predict([]) == []
    with pytest.raises(litebert.DataError, match="input 2: '3' must be a string"):
        classifier.predict(["fine", 3])
    with pytest.raises(litebert.DataError, match=r"wrap a single text: predict\(\[text\]\)"):
        classifier.predict("not a list")


def test_an_answer_does_not_depend_on_its_neighbours(model: Model) -> None:
    task = Classify(["a", "b"])
    classifier = Model(Albert(model.config, {"classify": task.head(model.config)}).eval(), model.tokenizer, task)
    alone = classifier.predict(["some text"])[0]
    beside_a_pair = classifier.predict([("left", "right"), "some text"])[1]
    assert alone.probabilities == pytest.approx(beside_a_pair.probabilities, abs=1e-7)


def test_the_batch_size_does_not_change_answers(model: Model) -> None:
    texts = [f"{text} [MASK]" for text in PROSE[:7]]
    small, large = model.predict(texts, batch_size=2), model.predict(texts, batch_size=7)
    for one, other in zip(small, large, strict=True):
        assert [fill.token for fill in one.masks[0]] == [fill.token for fill in other.masks[0]]


def test_in_bfloat16_answers_are_almost_the_same_and_still_float32(model: Model) -> None:
    task = Classify(["a", "b"])
    classifier = Model(Albert(model.config, {"classify": task.head(model.config)}).eval(), model.tokenizer, task)
    texts = PROSE[:5]
    exact, vectors = classifier.predict(texts), classifier.embed(texts)
    classifier.bf16 = True
    rough, rough_vectors = classifier.predict(texts), classifier.embed(texts)
    assert rough_vectors.dtype == np.float32
    assert 0 < np.linalg.norm(rough_vectors - vectors) / np.linalg.norm(vectors) < 0.02
    for one, other in zip(exact, rough, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=0.02)
        assert sum(other.probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert all(parameter.dtype == torch.float32 for parameter in classifier.albert.parameters())


def test_a_bare_encoder_says_that_it_answers_nothing(model: Model) -> None:
    bare = Model(Albert(model.config), model.tokenizer)
    with pytest.raises(litebert.ConfigError, match="train one with: litebert finetune"):
        bare.predict(["x"])
    with pytest.raises(litebert.ConfigError, match="no masked-token head"):
        bare.fill_mask("a [MASK]")


def test_a_folder_without_a_tokenizer_loads_and_says_so_where_text_is_read(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "whole")
    for file in ("tokenizer.json", "spiece.model", "vocab.txt"):
        (tmp_path / "whole" / file).unlink(missing_ok=True)
    bare = litebert.load(tmp_path / "whole")
    ids = torch.tensor([[2, 9, 3]])
    assert torch.equal(bare.encoder(ids), model.encoder(ids))
    for use in (bare.embed, bare.predict, lambda texts: bare.fill_mask("a [MASK]"), lambda texts: bare.tokenizer):
        with pytest.raises(
            litebert.CheckpointError, match=r"whole: has no tokenizer .*; put the one it was trained with"
        ):
            use(["x"])
    bare.save(tmp_path / "again")
    assert torch.equal(litebert.load(tmp_path / "again").encoder(ids), model.encoder(ids))


def test_answering_leaves_the_model_in_training_if_it_was(model: Model) -> None:
    model.albert.train()
    model.embed(["text"])
    assert model.albert.training


@pytest.mark.parametrize("name", ["no/such/folder", "../elsewhere", "a b"])
def test_a_name_that_is_neither_folder_nor_hub_name_says_so(name: str) -> None:
    with pytest.raises(litebert.CheckpointError, match="no such folder, and not a hub name"):
        litebert.load(name)


def test_a_hub_name_loads_from_the_hub_s_own_cache_without_network(model: Model, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--albert-test"
    model.save(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    code = "import litebert; print(litebert.load('someone/albert-test').config.hidden_size)"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "32"
    absent = code.replace("albert-test", "absent")
    refused = subprocess.run(
        [sys.executable, "-c", absent], env=environment, capture_output=True, text=True, check=False
    )
    assert "someone/absent: no such folder here, and the hub did not give it" in refused.stderr


def test_torch_hub_loads_a_folder(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    loaded = torch.hub.load(str(REPOSITORY), "albert", str(tmp_path), source="local")
    ids = torch.tensor([[2, 9, 3]])
    assert torch.equal(loaded.encoder(ids), model.encoder(ids))


def test_the_next_batch_is_begun_before_an_answer_is_waited_for(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    send = pipeline.copy_to_cpu

    def watched(values: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
        order.append("begun")
        arrived = send(values)

        def waited() -> Mapping[str, Tensor]:
            order.append("waited")
            return arrived()

        return waited

    texts = ["one", "two words", "now three words", "and now there are four or more"]
    expected = model.embed(texts)
    monkeypatch.setattr(answering, "copy_to_cpu", watched)
    np.testing.assert_allclose(model.embed(texts, batch_size=2), expected, atol=1e-5)
    assert order == ["begun", "begun", "waited", "waited"]


def tokenising() -> list[str]:
    """Threads that are at it."""
    return [one.name for one in threading.enumerate() if one.name.startswith("tokenize")]


def classifier(model: Model) -> Model:
    """It reads long texts in windows."""
    torch.manual_seed(0)
    task = Classify(["a", "b", "c"])
    albert = Albert(model.config, {task.head_name: task.head(model.config)}).eval()
    return Model(albert, model.tokenizer, task, 16)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_texts_that_are_tokenised_part_by_part_get_what_they_get_at_once(
    count: int, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [PROSE[0] * 3, "one", PROSE[1], "two", "three words more", PROSE[2] * 2, "six"][:count]
    asked = classifier(model)
    vectors, answers = model.embed(texts), asked.predict(texts)
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 3)
    np.testing.assert_allclose(model.embed(texts), vectors, atol=1e-5)
    assert [one.label for one in asked.predict(texts)] == [one.label for one in answers]
    for now, before in zip(asked.predict(texts), answers, strict=True):
        assert now.probabilities == pytest.approx(before.probabilities, abs=1e-5)
    assert not tokenising()


def test_the_text_behind_the_last_of_a_part_is_the_first_of_the_next(model: Model) -> None:
    texts = [f"the {number} opened" for number in range(answering.TOKENIZER_BATCH["cpu"] + 2)]
    edge = slice(answering.TOKENIZER_BATCH["cpu"] - 2, None)
    np.testing.assert_allclose(model.embed(texts)[edge], model.embed(texts[edge]), atol=1e-5)


def test_texts_may_come_one_by_one(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one", "two words", "three", "four"]
    expected = model.embed(texts)
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 3)
    for given in (iter(texts), dict.fromkeys(texts), np.array(texts), tuple(texts)):
        np.testing.assert_allclose(model.embed(given), expected, atol=1e-5)  # type: ignore[arg-type]


def test_one_part_is_tokenised_while_another_is_computed_and_no_more_than_one(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 1)
    begun = {text: threading.Event() for text in PROSE[:4]}
    encode, compute, computed = model.tokenizer.encode, Model.embed_examples, iter(range(4))

    def watched(texts: list[str], **rest: int | None) -> object:
        begun[texts[0]].set()
        return encode(texts, **rest)

    def waits_for_the_next(self: Model, examples: object, size: int | None = None) -> np.ndarray:
        number = next(computed)
        for one in PROSE[number + 1 : min(number + 2, 4)]:
            assert begun[one].wait(60)
        assert not any(begun[one].is_set() for one in PROSE[number + 2 : 4])
        return compute(self, examples, size)  # type: ignore[arg-type]

    monkeypatch.setattr(model.tokenizer, "encode", watched)
    monkeypatch.setattr(Model, "embed_examples", waits_for_the_next)
    assert model.embed(PROSE[:4]).shape == (4, 32)


def test_what_goes_wrong_while_tokenising_is_heard_of(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 2)
    encode = model.tokenizer.encode

    def fragile(texts: list[str], **rest: int | None) -> object:
        if "five" in texts:
            raise DataError("five is odd")
        return encode(texts, **rest)

    monkeypatch.setattr(model.tokenizer, "encode", fragile)
    with pytest.raises(DataError, match="five is odd"):
        model.embed(["one", "two", "three", "four", "five", "six", "seven"])
    assert not tokenising()


def test_what_is_no_text_is_refused_by_its_place_before_anything_is_computed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 2)
    monkeypatch.setattr(Model, "embed_examples", lambda *_: pytest.fail("computed"))
    with pytest.raises(DataError, match="text 4 is 5, a int"):
        model.embed(["one", "two", "three", "four", 5, "six"])  # type: ignore[list-item]


def test_a_batch_may_be_larger_than_what_is_tokenised_at_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 2)
    sizes, compute = list[int](), Model.embed_examples

    def counted(self: Model, examples: list[object], size: int | None = None) -> np.ndarray:
        sizes.append(len(examples))
        return compute(self, examples, size)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "embed_examples", counted)
    model.embed(["one", "two", "three", "four", "five"], batch_size=4)
    assert sizes == [4, 1]


def test_no_thread_is_left_behind_by_a_question_that_fails(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answering.TOKENIZER_BATCH, "cpu", 1)

    def fail(*args: object, **rest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Encoder, "forward", fail)
    for ask in (model.embed, classifier(model).predict):
        with pytest.raises(KeyboardInterrupt) as kept:
            ask(["one", "two", "three"])
        assert kept
        assert not tokenising()


@pytest.mark.parametrize("ask", [lambda model: model.embed(PROSE), lambda model: model.fill_mask("the [MASK] opened")])
def test_a_question_that_fails_leaves_everything_as_it_was(
    ask: Callable[[Model], object], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **rest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Encoder, "forward", fail)
    model.bf16 = True
    model.albert.train()
    try:
        with pytest.raises(KeyboardInterrupt) as kept:  # whoever keeps the error keeps its frames
            ask(model)
        assert kept
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert model.albert.training
    finally:
        model.bf16 = False
        model.albert.eval()
