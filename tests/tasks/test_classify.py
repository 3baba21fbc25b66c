"""Classification: records, targets, metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from litebert.data.batches import Batch, Example, collate
from litebert.data.windows import Window
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference import Model
from litebert.model import Albert
from litebert.tasks.classify import IMBALANCE_RATIO, Classify, ClassifyOutput
from litebert.tasks.text import TextInput
from tests.conftest import peer
from tests.tasks.test_text import MADE_UP, learned, scored


def records(labels: list[str]) -> list[TextInput]:
    return [TextInput("x", label=label) for label in labels]


def batch_of(targets: list[int]) -> Batch:
    return collate([Example([Window([2, 3], [0, 0], 1, 0, 0)], target) for target in targets], 0)


def answers(labels: list[str]) -> list[ClassifyOutput]:
    return [ClassifyOutput(label, 1.0, {label: 1.0}) for label in labels]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("answered", ["a", "b"])
def test_a_single_example_is_measured_without_a_warning(answered: str) -> None:
    peer("sklearn.metrics")
    measured = Classify(["a", "b"]).metrics(records(["a"]), answers([answered]))
    assert measured == {"accuracy": answered == "a", "macro_f1": answered == "a", "mcc": 0}


def test_metrics_are_scikit_learn_s() -> None:
    sklearn = peer("sklearn.metrics")
    truth = ["a", "b", "c", "a", "b", "a", "c", "c"]
    predicted = ["a", "b", "a", "a", "c", "b", "c", "c"]
    measured = Classify(["a", "b", "c"]).metrics(records(truth), answers(predicted))
    assert measured == {
        "accuracy": pytest.approx(5 / 8),
        "macro_f1": pytest.approx(sklearn.f1_score(truth, predicted, average="macro")),
        "mcc": pytest.approx(sklearn.matthews_corrcoef(truth, predicted)),
    }


def test_figures_of_each_label_are_scikit_learn_s() -> None:
    sklearn = peer("sklearn.metrics")
    truth = ["a", "b", "c", "a", "b", "a", "c", "c"]
    predicted = ["a", "b", "a", "a", "c", "b", "c", "c"]
    found = Classify(["a", "b", "c"]).by_label(records(truth), answers(predicted))
    expected = sklearn.precision_recall_fscore_support(truth, predicted, labels=["a", "b", "c"])
    assert list(found) == ["a", "b", "c"]
    for name, values in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        assert [found[label][name] for label in found] == pytest.approx(list(values))


@pytest.mark.parametrize(("answer", "expected"), [("a", 1.0), ("b", 0.0)])
def test_macro_f1_is_over_the_classes_that_occur_or_are_answered(answer: str, expected: float) -> None:
    task = Classify(["a", "b", "c"])
    assert task.metrics([TextInput("x", label="a")], answers([answer]))["macro_f1"] == expected


def test_labels_that_differ_by_case_alone_are_remarked_on() -> None:
    inputs = [TextInput("x", label=label) for label in ("spam", "Spam", "ham", "ham", "spam", "Spam")]
    assert Classify.learn_from(inputs).remarks(inputs) == [
        "'Spam', 'spam' are different classes; write them alike if they are one"
    ]


def test_a_column_of_texts_taken_for_labels_is_remarked_on() -> None:
    inputs = [TextInput("ham", label=f"text {number}") for number in range(9)]
    assert (
        "9 classes among 9 examples: is that the column of the labels?"
        in Classify.learn_from(inputs).remarks(inputs)[0]
    )


def test_labels_are_learned_sorted_and_numbers_are_names_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\none,2\ntwo,10\nthree,2\n", encoding="utf-8")
    examples = Classify.read(path)
    task = Classify.learn_from(examples)
    assert task.labels == ["10", "2"]
    assert task.targets(examples) == [1, 0, 1]


def test_settings_rebuild_the_task() -> None:
    task = Classify(["yes", "no"])
    assert Classify.from_settings(task.settings()).labels == ["yes", "no"]
    assert Classify.from_settings({"num_labels": 3}).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with pytest.raises(CheckpointError, match="must map 0, 1, 2"):
        Classify.from_settings({"id2label": {"first": "yes"}})


def test_the_loss_is_cross_entropy() -> None:
    scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    expected = -(scores.log_softmax(-1)[0, 0] + scores.log_softmax(-1)[1, 0]) / 2
    assert Classify(["a", "b"]).loss({"scores": scores}, batch_of([0, 0])) == pytest.approx(expected.item())


def test_the_second_text_reaches_the_model_as_segment_one(model: Model) -> None:
    example = Classify(["a", "b"]).features([TextInput("left", "right")], model.tokenizer, 32)[0]
    assert set(example.sequences[0].type_ids) == {0, 1}


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


@pytest.mark.parametrize(("weighted", "smoothing"), [(True, 0.0), (False, 0.1), (True, 0.2)])
def test_class_weights_and_label_smoothing_are_those_of_scikit_learn_and_torch(
    weighted: bool, smoothing: float
) -> None:
    truth = ["a"] * 13 + ["b"] * 2 + ["c"] * 5
    task = Classify.learn_from(records(truth), class_weights=weighted, label_smoothing=smoothing)
    weights = None
    if weighted:
        balanced = peer("sklearn.utils.class_weight").compute_class_weight
        weights = torch.tensor(balanced("balanced", classes=np.array(task.labels), y=truth), dtype=torch.float32)
    scores, targets = torch.randn(20, 3), task.targets(records(truth))
    expected = torch.nn.CrossEntropyLoss(weights, label_smoothing=smoothing)(scores, torch.tensor(targets))
    assert task.loss({"scores": scores}, batch_of(targets)).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_a_smoothing_that_leaves_nothing_right_is_refused(smoothing: float) -> None:
    with pytest.raises(ConfigError, match=f"label_smoothing={smoothing} must be at least 0 and below 1"):
        Classify.learn_from(records(["a", "b"]), label_smoothing=smoothing)


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match=r"1 class\(es\) in column 'label' \(a\); classification needs 2 to 10,000"):
        Classify.learn_from(records(["a", "a"]))


def spam_filter(noise: float) -> tuple[list[str], list[ClassifyOutput]]:
    random = np.random.default_rng(0)
    truth = ["spam" if chance < 0.1 else "ham" for chance in random.random(4000)]
    centre = np.array([0.7 if label == "spam" else 0.3 for label in truth])
    probability = np.clip(centre + noise * random.standard_normal(4000), 0, 1).round(3)  # with ties
    return truth, [
        ClassifyOutput("spam" if p > 0.5 else "ham", max(p, 1 - p), {"ham": 1 - p, "spam": p})
        for p in probability.tolist()
    ]


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.5])
def test_how_well_the_rarer_class_is_found_is_what_scikit_learn_and_counting_say(noise: float) -> None:
    sklearn = peer("sklearn.metrics")
    truth, outputs = spam_filter(noise)
    measured = Classify(["ham", "spam"]).metrics(records(truth), outputs)
    is_spam = np.array([label == "spam" for label in truth])
    probability = np.array([output.probabilities["spam"] for output in outputs])
    answered = [output.label for output in outputs]
    assert measured["pr_auc_of_spam"] == pytest.approx(sklearn.average_precision_score(is_spam, probability))
    for label in ("ham", "spam"):
        assert measured[f"f1_of_{label}"] == pytest.approx(sklearn.f1_score(truth, answered, pos_label=label))
    recalls = [0.0]
    for threshold in set(probability):
        caught = probability >= threshold
        if caught[~is_spam].mean() <= 0.001:
            recalls.append(caught[is_spam].mean())
    assert measured["recall_of_spam_at_0.1%_false_alarms"] == pytest.approx(max(recalls))


@pytest.mark.parametrize(("labels", "truth"), [(["a", "b", "c"], ["a", "b"]), (["a", "b"], ["a", "a"])])
def test_nothing_is_said_of_a_rarer_class_where_there_is_none(labels: list[str], truth: list[str]) -> None:
    outputs = [ClassifyOutput(label, 1.0, dict.fromkeys(labels, 0.5)) for label in truth]
    assert set(Classify(labels).metrics(records(truth), outputs)) == {"accuracy", "macro_f1", "mcc"}


def test_imbalance_is_worth_a_remark_with_the_way_out() -> None:
    task = Classify(["a", "b"])
    assert task.remarks(records(["a"] * (2 * IMBALANCE_RATIO - 1) + ["b"] * 2)) == []
    (remark,) = task.remarks(records(["a"] * 2 * IMBALANCE_RATIO + ["b"] * 2))
    assert "imbalance: 10 examples of 'a' and 2 of 'b'" in remark
    assert "--class-weights" in remark


def test_the_prior_loss_is_the_entropy_of_the_classes() -> None:
    task, truth = Classify(["a", "b", "c"]), [0] * 6 + [1] * 3 + [2]
    examples = [Example([], target) for target in truth]
    assert task.constant_answer_loss(examples) == pytest.approx(peer("scipy.stats").entropy([6, 3, 1]))
    constant = torch.tensor([0.6, 0.3, 0.1]).log().expand(10, 3)
    assert task.constant_answer_loss(examples) == pytest.approx(task.loss({"scores": constant}, batch_of(truth)).item())


@pytest.mark.parametrize(("weights", "smoothing"), [([1.0, 2.0, 6.0], 0.0), ([], 0.3)])
def test_no_constant_answer_has_a_smaller_loss_than_the_prior(weights: list[float], smoothing: float) -> None:
    task, truth = Classify(["a", "b", "c"], "linear", weights, smoothing), [0] * 6 + [1] * 3 + [2]
    prior = task.constant_answer_loss([Example([], target) for target in truth])
    assert prior is not None
    constant = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([constant], max_iter=100)

    def step() -> float:
        optimizer.zero_grad()
        loss = task.loss({"scores": constant.expand(10, 3)}, batch_of(truth))
        loss.backward()
        return loss.item()

    optimizer.step(step)
    assert step() == pytest.approx(prior, abs=1e-5)


def test_the_baseline_is_the_most_frequent_class() -> None:
    assert Classify(["a", "b"]).baseline(records(["a", "b", "b", "b"])) == {"accuracy": 0.75, "mcc": 0.0}


def test_a_tiny_model_learns_made_up_examples_by_heart(model: Model) -> None:
    lessons = [TextInput(text, label=text.split()[0]) for text in MADE_UP]
    taught = learned(Classify.learn_from(lessons), lessons, model.tokenizer, model.config)
    assert scored(taught, lessons)["accuracy"] == 1
