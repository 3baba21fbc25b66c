"""Classification: records, targets, metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from litebert.errors import CheckpointError, DataError
from litebert.model import Albert
from litebert.predict import Model
from litebert.tasks.classify import Classify, ClassifyInput, ClassifyOutput
from tests.conftest import peer


def answers(labels: list[str]) -> list[ClassifyOutput]:
    return [ClassifyOutput(label, 1.0, {label: 1.0}) for label in labels]


def test_metrics_are_scikit_learn_s() -> None:
    sklearn = peer("sklearn.metrics")
    truth = ["a", "b", "c", "a", "b", "a", "c", "c"]
    predicted = ["a", "b", "a", "a", "c", "b", "c", "c"]
    measured = Classify(["a", "b", "c"]).metrics([ClassifyInput("x", label=t) for t in truth], answers(predicted))
    assert measured == {
        "accuracy": pytest.approx(5 / 8),
        "macro_f1": pytest.approx(sklearn.f1_score(truth, predicted, average="macro")),
        "mcc": pytest.approx(sklearn.matthews_corrcoef(truth, predicted)),
    }


def test_a_class_that_never_occurs_counts_as_wrong_in_macro_f1() -> None:
    task = Classify(["a", "b", "c"])
    assert task.metrics([ClassifyInput("x", label="a")], answers(["a"]))["macro_f1"] == pytest.approx(1 / 3)


def test_labels_are_learned_sorted_and_numbers_are_names_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\none,2\ntwo,10\nthree,2\n", encoding="utf-8")
    examples = Classify.read(path)
    task = Classify.learn_from(examples)
    assert task.labels == ["10", "2"]
    assert task.targets(examples).tolist() == [1, 0, 1]


def test_settings_rebuild_the_task() -> None:
    task = Classify(["yes", "no"])
    assert Classify.from_settings(task.settings()).labels == ["yes", "no"]
    assert Classify.from_settings({"num_labels": 3}).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with pytest.raises(CheckpointError, match="must map 0, 1, 2"):
        Classify.from_settings({"id2label": {"first": "yes"}})


def test_the_loss_is_cross_entropy() -> None:
    scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    expected = -(scores.log_softmax(-1)[0, 0] + scores.log_softmax(-1)[1, 0]) / 2
    assert Classify(["a", "b"]).loss(scores, torch.tensor([0, 0])) == pytest.approx(expected.item())


def test_the_second_text_reaches_the_model_as_segment_one(model: Model) -> None:
    encoding = Classify(["a", "b"]).encode([ClassifyInput("left", "right")], model.tokenizer, 32)[0]
    assert set(encoding.type_ids) == {0, 1}


def test_dropout_of_the_head_follows_the_config(model: Model) -> None:
    task = Classify(["a", "b"])
    head = task.head(model.config)
    assert head.dropout.p == model.config.classifier_dropout_prob == 0.1  # type: ignore[union-attr]
    albert = Albert(model.config, {"classify": head})
    assert albert.heads["classify"].linear.out_features == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("item", [3, None, ("one",), ("a", 3), {"txt": "x"}, {"text": 3}, {"text": "x", "text_b": 4}])
def test_what_is_not_a_text_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(DataError, match="input 7"):
        Classify(["a", "b"]).parse(item, "input 7")
