"""Classifiers from a handful of examples."""

from __future__ import annotations

import json
import pickle
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import litebert
from litebert.device import has_bfloat16
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.fewshot import Adapted
from litebert.fewshot.adapt import adapt_frozen as adapt
from litebert.fewshot.adapt import fit_adapted
from litebert.fewshot.support_set import Tuning
from litebert.inference import Model

FEW = {
    "delivery": [
        "where is my parcel", "the package has not arrived yet", "my order is still on its way after two weeks",
        "when will the delivery come",
    ],
    "refund": [
        "I want my money back", "please refund the payment", "you charged me twice, give the money back",
        "how do I get a refund",
    ],
    "password": [
        "I forgot my password", "I cannot log in to my account", "how do I change my password", "reset my login please",
    ],
}  # fmt: skip
NEW = {
    "has my package been sent": "delivery",
    "the parcel is late": "delivery",
    "can I have my money back": "refund",
    "refund my order": "refund",
    "the login does not take my password": "password",
    "change the password of my account": "password",
}


def pairs_of(examples: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    return [text for some in examples.values() for text in some], [
        label for label, some in examples.items() for _ in some
    ]


@pytest.fixture(scope="module")
def base() -> Model:
    return litebert.load("litebert-base-en")


@pytest.fixture(scope="module")
def adapted(base: Model) -> Adapted:
    return adapt(base, *pairs_of(FEW))


def labels_of(model: Model, texts: list[Any]) -> list[str]:
    return [answer.label for answer in model.predict(texts)]


def test_a_handful_is_enough(adapted: Adapted) -> None:
    assert labels_of(adapted, list(NEW)) == list(NEW.values())
    evidence = adapted.evidence
    assert (evidence.examples, evidence.classes, evidence.majority_share) == (12, 3, pytest.approx(1 / 3))
    assert evidence.accuracy is not None
    assert evidence.accuracy > 0.6
    assert evidence.accuracy_with_half is not None
    assert evidence.margin is not None
    assert 0 < evidence.margin < 0.4
    assert len(evidence.mistakes) == min(5, round(12 * (1 - evidence.accuracy)))


def test_the_base_stays_as_it_was(base: Model) -> None:
    before = {name: value.clone() for name, value in base.encoder.state_dict().items()}
    gap = "Paris is the [MASK] of France."
    filled = base.fill_mask(gap)
    adapt(base, *pairs_of(FEW)).predict(["anything"])
    assert base.fill_mask(gap) == filled
    assert all(torch.equal(before[name], value) for name, value in base.encoder.state_dict().items())


def test_answers_come_from_what_was_solved(adapted: Adapted) -> None:
    """The path through the head says what the equation did: the examples themselves are told apart."""
    texts, labels = pairs_of(FEW)
    answers = adapted.predict(texts)
    assert [answer.label for answer in answers] == labels
    for answer in answers:
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert answer.probability == max(answer.probabilities.values()) == answer.probabilities[answer.label]


def test_a_text_like_none_of_the_examples_is_the_least_known(adapted: Adapted) -> None:
    strange = ["Photosynthesis takes place in green leaves.", "Napoleon lost the battle of Waterloo in 1815."]
    usual = [answer.unknown for answer in adapted.predict(list(NEW))]
    assert min(answer.unknown for answer in adapted.predict(strange)) > max(usual)
    assert not any(answer.is_unknown for answer in adapted.predict(pairs_of(FEW)[0]))


def test_intents_are_told_apart_and_from_other_questions(base: Model, data: Path) -> None:
    """CLINC150: thirty of its classes, five examples of each."""
    with tarfile.open(data / "tasks" / "intents.tar.xz") as tar:
        file = tar.extractfile("intents/clinc150/data_full.json")
        assert file is not None
        parts = json.load(file)
    chosen = sorted({label for _, label in parts["train"]})[::5]
    few = [pair for label in chosen for pair in [one for one in parts["train"] if one[1] == label][::20]]
    asked = [pair for pair in parts["val"] if pair[1] in chosen][::3]
    base.bf16 = has_bfloat16(base.device)
    found = adapt(base, *zip(*few, strict=True))
    base.bf16 = False
    answers, others = found.predict([text for text, _ in asked]), found.predict([text for text, _ in parts["oos_val"]])
    right = [answer.label == label for answer, (_, label) in zip(answers, asked, strict=True)]
    assert np.mean(right) > 0.8
    assert found.evidence.accuracy == pytest.approx(np.mean(right), abs=0.08)
    assert np.mean([answer.probability for answer in answers]) == pytest.approx(np.mean(right), abs=0.08)
    assert np.mean([answer.is_unknown for answer in answers]) < 0.12
    assert np.mean([answer.is_unknown for answer in others]) > 0.5


def test_more_examples_and_classes_can_be_added(adapted: Adapted) -> None:
    hours = ["when do you open", "are you open on sunday", "what are your opening hours"]
    more = adapted.add_class("opening hours", hours)
    assert labels_of(more, ["until when are you open today"]) == ["opening hours"]
    assert labels_of(more, list(NEW)) == list(NEW.values())
    assert more.evidence.examples == 15
    again = more.add_examples(["is the shop closed on monday"], ["opening hours"])
    assert again.evidence.examples == 16
    assert adapted.evidence.examples == 12
    assert adapt(more, ["is the shop closed on monday"], ["opening hours"]).evidence == replace(
        again.evidence, seconds=pytest.approx(again.evidence.seconds, abs=60)
    )
    with pytest.raises(DataError, match="class 'refund' is there already"):
        adapted.add_class("refund", ["money"])


def test_what_was_asked_for_stays_when_examples_are_added(base: Model, tmp_path: Path) -> None:
    around = ["hello, I have a question", "good morning, could you help me"]
    plain = adapt(base, *pairs_of(FEW), label_names=False, unlabelled=around)
    plain.save(tmp_path)
    for one in (plain, litebert.load(tmp_path)):
        assert isinstance(one, Adapted)
        more = one.add_class("404", ["page not found", "the link is broken"])
        assert not more.evidence.label_names
        assert more.support.background.count == 2
    assert litebert.adapt(plain, ["buy milk"], ["shopping"], label_names=True).evidence.label_names
    assert adapt(base, *pairs_of(FEW)).add_class("404", ["page not found", "the link is broken"]).evidence.classes == 4


def test_the_margin_is_of_the_examples_that_were_asked(base: Model) -> None:
    texts = ["the rain", "a storm", "eggs", "bread", "a letter", "the village"]
    found = adapt(base, texts, ["weather", "weather", "food", "food", "post", "place"]).evidence
    assert (found.examples, found.num_left_out) == (6, 4)
    assert found.margin is not None
    assert found.margin >= 1.96 / 8


def test_one_example_per_class_is_enough_to_begin(base: Model) -> None:
    one = adapt(base, [some[0] for some in FEW.values()], ["1", "2", "3"])
    assert one.evidence.accuracy is None
    assert one.evidence.accuracy_with_half is None
    assert not one.evidence.label_names
    assert "only one example of '1', '2', '3'" in one.evidence.remarks[0]
    assert labels_of(one, [some[0] for some in FEW.values()]) == ["1", "2", "3"]
    assert [(answer.unknown, answer.is_unknown) for answer in one.predict(list(NEW))] == [(0.0, False)] * len(NEW)
    named = adapt(base, [some[0] for some in FEW.values()], list(FEW))
    assert named.evidence.label_names
    assert named.evidence.accuracy is None  # a name alone proves nothing


def test_a_few_of_one_class_and_many_of_another_are_both_known(base: Model) -> None:
    cities = ["Ghent", "Lyon", "Porto", "Bonn", "York", "Turin", "Oslo", "Graz", "Basel", "Lund", "Split", "Cork"]
    asked = ["the parcel to {} has not come", "where is my package for {}"]
    texts = [some.format(city) for city in cities for some in asked]
    logins = ["I forgot my password", "I cannot log in"]
    found = adapt(base, [*texts, *logins], ["delivery"] * len(texts) + ["login"] * 2)
    usual = found.predict(["the parcel to Ghent is not here", "I cannot log in, I forgot the password"])
    assert [answer.label for answer in usual] == ["delivery", "login"]
    assert not any(answer.is_unknown for answer in usual)
    strange = found.predict(["Photosynthesis takes place in green leaves."])[0]
    assert strange.unknown > max(answer.unknown for answer in usual)


def test_names_of_classes_can_be_asked_for_or_left_out(base: Model) -> None:
    texts, labels = ["zzz", "qqq"], ["delivery of a parcel", "forgotten password"]
    named = adapt(base, texts, labels, label_names=True)
    assert named.evidence.label_names
    assert labels_of(named, ["forgotten password", "delivery of a parcel"]) == labels[::-1]
    assert not adapt(base, texts, labels, label_names=False).evidence.label_names
    with pytest.raises(ConfigError, match="have no names to read"):
        adapt(base, texts, ["1", "2"], label_names=True)


def test_texts_without_labels_say_what_is_usual(base: Model) -> None:
    texts, labels = pairs_of(FEW)
    around = ["hello, I have a question", "good morning, could you help me", "thank you very much for your help"]
    told = adapt(base, texts, labels, unlabelled=around)
    assert told.evidence.examples == 12
    assert told.support.background.count == 3
    assert adapt(base, texts, labels).support.background.count == 0
    with pytest.raises(DataError, match="unlabelled must be strings"):
        adapt(base, texts, labels, unlabelled=["fine", ""])
    right = [label == truth for label, truth in zip(labels_of(told, list(NEW)), NEW.values(), strict=True)]
    assert sum(right) >= 5


def test_long_texts_are_read_to_their_end(base: Model) -> None:
    filler = "The committee met on Tuesday and talked about the budget of the coming year. " * 30
    long = {"delivery": [filler + "Where is my parcel?"], "refund": [filler + "I want my money back."]}
    told = adapt(base, *pairs_of(long), label_names=False)  # names could say more than the ends
    first, second = told.predict([text for some in long.values() for text in some])
    assert first.probabilities["delivery"] > second.probabilities["delivery"]


def test_long_examples_look_familiar(model: Model) -> None:
    chance = np.random.default_rng(0)
    words = {"weather": ["rain", "snow", "wind", "sun"], "food": ["eggs", "butter", "bread", "milk"]}
    texts, labels = [], []
    for number in range(24):
        label = ["weather", "food"][number % 2]
        texts.append(" ".join(chance.choice(words[label], 3 * model.max_length)) + f" {number}")
        labels.append(label)
    assert len(model.tokenizer.encode(texts[:1])[0].ids) > 2 * model.max_length
    answers = adapt(model, texts, labels).predict(texts)
    assert np.mean([answer.is_unknown for answer in answers]) < 0.2
    assert np.mean([answer.unknown for answer in answers]) < 0.6


# --- saved ------------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_small_and_answers_alike(adapted: Adapted, tmp_path: Path) -> None:
    adapted.save(tmp_path / "few")
    again = litebert.load(tmp_path / "few")
    assert isinstance(again, Adapted)
    assert again.predict(list(NEW)) == adapted.predict(list(NEW))
    assert again.evidence == adapted.evidence
    assert again.evidence.characters
    assert sum(path.stat().st_size for path in (tmp_path / "few").iterdir()) < 500_000
    assert again.add_class("thanks", ["thank you", "many thanks"]).evidence.classes == 4


def test_a_model_of_ones_own_is_found_beside_it(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "here" / "base")
    own = litebert.load(tmp_path / "here" / "base")
    adapt(own, ["the rain", "eggs"], ["weather", "food"]).save(tmp_path / "here" / "few")
    assert json.loads((tmp_path / "here" / "few" / "few_shot.json").read_text())["model"] == {"folder": "../base"}
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert litebert.load(tmp_path / "there" / "few").predict(["rain"])
    shutil.rmtree(tmp_path / "there" / "base")
    with pytest.raises(CheckpointError, match=r"was made from the model in .*base, which is not there"):
        litebert.load(tmp_path / "there" / "few")


def test_where_one_stands_and_links_do_not_matter(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(tmp_path / "w" / "base")
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    monkeypatch.chdir(tmp_path)
    own = litebert.load("w/base")
    monkeypatch.chdir(tmp_path / "w")
    adapted = adapt(own, ["the rain", "eggs"], ["weather", "food"])
    for place in ("few", tmp_path / "link" / "few"):
        adapted.save(place)
        assert litebert.load(place).predict(["rain"]) == adapted.predict(["rain"])


def test_a_folder_holds_one_model(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "base")
    adapted = adapt(litebert.load(tmp_path / "base"), ["the rain", "eggs"], ["weather", "food"])
    with pytest.raises(ConfigError, match="holds a whole model"):
        adapted.save(tmp_path / "base")
    adapted.save(tmp_path / "few")
    model.save(tmp_path / "few")
    with pytest.raises(CheckpointError, match="holds a whole model and an adapted one"):
        litebert.load(tmp_path / "few")


def test_the_base_may_move_and_keeps_its_mode(model: Model) -> None:
    model.albert.train()
    state = torch.get_rng_state()
    adapted = adapt(model, ["the rain", "eggs"], ["weather", "food"])
    assert torch.equal(torch.get_rng_state(), state)
    assert model.albert.training
    assert model.encoder.training
    model.albert.eval()
    assert adapted.encoder is model.encoder


def test_other_weights_than_its_own_are_refused(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "base")
    own = litebert.load(tmp_path / "base")
    adapt(own, ["the rain", "eggs"], ["weather", "food"]).save(tmp_path / "few")
    with torch.no_grad():
        own.encoder.pooler.bias.add_(1)
    own.save(tmp_path / "base")
    with pytest.raises(CheckpointError, match="which has other weights now; adapt again"):
        litebert.load(tmp_path / "few")


@pytest.mark.parametrize(
    "wrong",
    [{"labels": ["food", "food"]}, {"labels": [1, 2]}, {"levels": [1.0]}, {"levels": [0.0, 1.0]}, {"examples": []},
     {"familiar": None}, {"familiar": ["x"]}, {"evidence": {"depths": [99]}}, {"evidence": {"views": ["zzz"]}},
     {"evidence": {"bent": 1}}, {"evidence": {"characters": "yes"}}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(model: Model, tmp_path: Path, wrong: dict[str, Any]) -> None:
    model.save(tmp_path / "base")
    texts = ["the rain", "a storm", "eggs", "bread"]
    adapt(litebert.load(tmp_path / "base"), texts, ["weather"] * 2 + ["food"] * 2).save(tmp_path / "few")
    content = json.loads((tmp_path / "few" / "few_shot.json").read_text())
    content |= {k: content[k] | v if isinstance(v, dict) else v for k, v in wrong.items()}
    (tmp_path / "few" / "few_shot.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"is damaged \(.*\); adapt again"):
        litebert.load(tmp_path / "few")


@pytest.mark.parametrize("harm", ["cut", "gone", "field", "shape"])
def test_damage_is_named(adapted: Adapted, tmp_path: Path, harm: str) -> None:
    adapted.save(tmp_path)
    tensors, settings = tmp_path / "few_shot.safetensors", tmp_path / "few_shot.json"
    content = json.loads(settings.read_text())
    if harm == "cut":
        tensors.write_bytes(tensors.read_bytes()[:100])
    elif harm == "gone":
        tensors.unlink()
    elif harm == "field":
        del content["labels"]
    else:
        content["labels"].append("one more")
    settings.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"lacks labels; adapt again|is damaged \(.*\); adapt again"):
        litebert.load(tmp_path)


def test_a_folder_from_before_characters_counted_answers_as_before(adapted: Adapted, tmp_path: Path) -> None:
    """It says nothing of characters, and has none: made here of what the equation says without them."""
    sides = replace(adapted.evidence.features, depths=(2, 12), characters=False)
    earlier = fit_adapted(
        adapted.base, adapted.support, tuning=Tuning("instant", sides, adapted.evidence.label_names, 1.0)
    )
    earlier = Adapted(adapted.base, earlier.task, earlier.albert.heads["few_shot"], adapted.support, earlier.evidence)  # type: ignore[arg-type]
    earlier.save(tmp_path)
    content = json.loads((tmp_path / "few_shot.json").read_text())
    assert not content["evidence"].pop("characters")
    (tmp_path / "few_shot.json").write_text(json.dumps(content))
    assert "surprise" not in load_file(tmp_path / "few_shot.safetensors")
    again = litebert.load(tmp_path)
    assert isinstance(again, Adapted)
    assert again.predict(list(NEW)) == earlier.predict(list(NEW))
    assert again.add_class("thanks", ["thank you", "many thanks"]).evidence.characters


def test_a_folder_of_an_earlier_version_says_so(adapted: Adapted, tmp_path: Path) -> None:
    adapted.save(tmp_path)
    tensors = load_file(tmp_path / "few_shot.safetensors")
    save_file({name: tensors[name] for name in ("around", "centre", "frequency")}, tmp_path / "few_shot.safetensors")
    with pytest.raises(CheckpointError, match="saved by an earlier litebert; adapt again"):
        litebert.load(tmp_path)


def test_a_model_that_is_nowhere_cannot_be_named(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adapted in memory only"):
        adapt(model, ["the rain", "eggs"], ["weather", "food"]).save(tmp_path)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "labels", "problem"),
    [
        (["a", "b"], ["x"], "as many labels; got 2 and 1"),
        ("ab", ["x", "y"], "adapt takes a list of texts"),
        ([], [], "adapt takes a list of texts"),
        (["a", " "], ["x", "y"], "example 2: ' ' is no text"),
        (["a", 7], ["x", "y"], "example 2: '7' is no text"),
        (["a", "b"], ["x", None], "example 2: 'b' has no label"),
        (["a", "b"], ["x", float("nan")], "example 2: 'b' has no label"),
        (["a", "b"], ["x", "x"], "1 class(es) in column 'label'"),
        (["a b", "c", "A  b"], ["x", "y", "z"], "example 3: 'A  b' is 'z' here and 'x' in example 1; correct one"),
        (["t"] * 3, ["x", "y", "y"], "example 2: 't' is 'y' here and 'x' in example 1"),
        ([f"text {i}" for i in range(3001)], ["x", "y"] * 1500 + ["x"], "3,001 examples: adapt takes up to 3,000"),
    ],
)
def test_mistakes_are_named(model: Model, texts: Any, labels: Any, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        adapt(model, texts, labels)
    assert problem in str(caught.value)


def test_repetitions_count_once(model: Model) -> None:
    found = adapt(model, ["the rain", "the rain", "eggs", "butter", "eggs "], ["w", "w", "f", "f", "f"])
    assert found.evidence.examples == 3
    assert found.labels == ["f", "w"]
    with pytest.raises(DataError, match="'EGGS' is 'w' here and 'f' in 'eggs' of before"):
        found.add_examples(["EGGS"], ["w"])
    with pytest.raises(DataError, match="got 1 and 2"):
        found.add_examples(["bread"], ["w", "f"])
    with pytest.raises(DataError, match="give some that are 'new'"):
        found.add_class("new", [])
    with pytest.raises(ConfigError, match=r"give it litebert.load\(name\)"):
        adapt("litebert-base-en", ["a", "b"], ["x", "y"])  # type: ignore[arg-type]
    assert found.evidence.remarks[0] == "2 duplicate examples count once"


def test_a_hint_needs_four_of_a_class(base: Model) -> None:
    few = {label: some[:3] for label, some in FEW.items()}
    evidence = adapt(base, *pairs_of(few)).evidence
    assert evidence.accuracy_with_half is None
    assert evidence.projected_accuracy is None
    assert replace(evidence, accuracy=0.9, accuracy_with_half=0.5).projected_accuracy == 1
    assert replace(evidence, accuracy=0.5, accuracy_with_half=0.6).projected_accuracy is None


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def test_scikit_learn_knows_what_to_do_with_it(base: Model) -> None:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline

    texts, labels = pairs_of(FEW)
    estimator = litebert.FewShotClassifier()
    assert estimator.get_params() == {"model": "litebert-base-en", "label_names": None}
    copy = clone(estimator).set_params(label_names=False)
    with pytest.raises(NotFittedError):
        copy.predict(texts)
    pipeline = make_pipeline(copy).fit(texts, labels)
    assert pipeline.predict(list(NEW)).tolist() == list(NEW.values())
    assert cross_val_score(litebert.FewShotClassifier(), texts, labels, cv=4).mean() > 0.6


def test_a_fitted_classifier_can_be_sent_to_another_process(model: Model) -> None:
    estimator = litebert.FewShotClassifier(model).fit(["the rain", "eggs", "the sea"], ["w", "f", "w"])
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict_proba(["rain"]), estimator.predict_proba(["rain"]))


def test_classes_of_scikit_learn_keep_their_type_and_order(model: Model) -> None:
    estimator = litebert.FewShotClassifier(model).fit(["the rain", "eggs", "the sea"], np.array([10, 9, 101]))
    assert estimator.classes_.tolist() == [9, 10, 101]
    chances = estimator.predict_proba(["eggs", "the rain"])
    np.testing.assert_allclose(chances.sum(1), 1)
    assert estimator.predict(["eggs", "the rain"]).tolist() == [9, 10] == estimator.classes_[chances.argmax(1)].tolist()
