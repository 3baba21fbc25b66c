"""Several labels per text: records, thresholds, metrics, folders."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert.data.batches import Example, collate
from litebert.data.windows import Window
from litebert.errors import CheckpointError, DataError
from litebert.inference import Model
from litebert.tasks import Multilabel
from litebert.tasks.text import TextInput
from tests.conftest import PROSE, peer
from tests.tasks.test_text import MADE_UP, learned, scored, with_head

LABELS = ["dry", "old", "wet"]


def made_up(count: int, seed: int = 0) -> tuple[list[TextInput], torch.Tensor]:
    """Records with random labels, and scores that have to do with them."""
    random = np.random.default_rng(seed)
    truth = random.random((count, len(LABELS))) < (0.5, 0.2, 0.05)
    truth[0] = True
    records = [
        TextInput("x", label=tuple(label for label, has in zip(LABELS, row, strict=True) if has)) for row in truth
    ]
    scores = torch.from_numpy(truth * 1.5 - 1 + random.standard_normal(truth.shape)).float()
    return records, scores


def tuned(records: list[TextInput], scores: torch.Tensor) -> Multilabel:
    task = Multilabel(LABELS)
    task.tune(records, [Example([])] * len(records), [{"scores": row[None]} for row in scores])
    return task


def answers(task: Multilabel, records: list[TextInput], scores: torch.Tensor) -> list[Any]:
    return [
        task.answer(record, Example([]), {"scores": row[None]}) for record, row in zip(records, scores, strict=True)
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("wet|old", ("old", "wet")),
        (" wet | old |", ("old", "wet")),
        ('["wet", "old"]', ("old", "wet")),
        (["wet", "old", "wet"], ("old", "wet")),
        ("[3, 1]", ("1", "3")),
        (7, ("7",)),
        ("", ()),
        ([], ()),
    ],
)
def test_labels_are_lists_or_names_with_bars_between(given: Any, expected: tuple[str, ...]) -> None:
    assert Multilabel(LABELS).parse({"text": "x", "label": given}, "input 1").label == expected


@pytest.mark.parametrize("given", ["[wet", {"wet": 1}, [["wet"]]])
def test_what_is_no_list_of_labels_is_refused_with_its_place(given: Any) -> None:
    with pytest.raises(DataError, match="input 7: label="):
        Multilabel(LABELS).parse({"text": "x", "label": given}, "input 7")


def test_a_label_that_was_not_learned_is_refused_with_its_place() -> None:
    records = [TextInput("x", label=("wet", "blue"), where="t.csv, line 3")]
    with pytest.raises(DataError, match=r"t\.csv, line 3: label 'blue' is not one of the trained dry, old, wet"):
        Multilabel(LABELS).check(records)


def test_labels_are_learned_sorted_from_all_records() -> None:
    records = [TextInput("x", label=("wet",)), TextInput("x", label=()), TextInput("x", label=("dry", "old"))]
    assert Multilabel.learn_from(records).labels == LABELS
    with pytest.raises(DataError, match="0 labels in column 'label'"):
        Multilabel.learn_from(records[1:2])


def test_the_loss_is_torch_s_binary_cross_entropy() -> None:
    task, (records, scores) = Multilabel(LABELS), made_up(8)
    examples = task.training_examples(records, [Example([Window([2, 3], [0, 0], 1, 0, 0)])] * 8)
    truth = torch.tensor([[float(label in record.label) for label in LABELS] for record in records])
    expected = torch.nn.BCEWithLogitsLoss()(scores, truth)
    assert task.loss({"scores": scores}, collate(examples, 0)).item() == pytest.approx(expected.item())


def best_f1(truth: np.ndarray, probability: np.ndarray) -> float:
    """By trying every threshold that makes a difference."""
    yes = probability >= probability[:, None]  # (thresholds, records)
    return float(max(2 * (yes & truth).sum(1) / (yes.sum(1) + truth.sum())))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decimals", [1, 5])  # with many ties, and with none
def test_tuned_thresholds_give_the_best_f1_of_all_thresholds(seed: int, decimals: int) -> None:
    score = peer("sklearn.metrics").f1_score
    records, scores = made_up(120, seed)
    scores = scores.round(decimals=decimals)
    task = tuned(records, scores)
    found = answers(task, records, scores)
    for number, label in enumerate(LABELS):
        truth = np.array([label in record.label for record in records])
        answered = np.array([label in answer.labels for answer in found])
        assert score(truth, answered) == pytest.approx(best_f1(truth, scores[:, number].sigmoid().numpy()))


def test_a_label_that_no_validation_record_has_keeps_one_half() -> None:
    records, scores = made_up(30)
    bare = [TextInput("x", label=tuple(set(record.label) - {"old"})) for record in records]
    assert tuned(bare, scores).thresholds[1] == 0.5
    assert tuned(records, scores).thresholds[1] != 0.5


def test_answers_are_the_labels_over_their_thresholds_likeliest_first() -> None:
    task = Multilabel(LABELS, thresholds=[0.9, 0.1, 0.5])
    answer = task.answer(TextInput("x"), Example([]), {"scores": torch.tensor([[1.0, -1.0, 2.0]])})
    assert answer.labels == ["wet", "old"]
    assert answer.probabilities["dry"] == pytest.approx(torch.tensor(1.0).sigmoid().item())


def test_metrics_are_scikit_learn_s_and_so_are_the_figures_of_each_label() -> None:
    sklearn = peer("sklearn.metrics")
    records, scores = made_up(60)
    task = Multilabel(LABELS)
    truth = np.array([[label in record.label for label in LABELS] for record in records])
    answered = scores.sigmoid().numpy() >= 0.5
    outputs = answers(task, records, scores)
    assert task.metrics(records, outputs) == {
        "micro_f1": pytest.approx(sklearn.f1_score(truth, answered, average="micro")),
        "macro_f1": pytest.approx(sklearn.f1_score(truth, answered, average="macro")),
        "mean_average_precision": pytest.approx(sklearn.average_precision_score(truth, scores.sigmoid().numpy())),
    }
    found = task.by_label(records, outputs)
    expected = sklearn.precision_recall_fscore_support(truth, answered)
    for name, values in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        assert [found[label][name] for label in LABELS] == pytest.approx(list(values))
    assert {figures["threshold"] for figures in found.values()} == {0.5}


def test_the_baseline_is_the_best_answer_that_is_the_same_for_all() -> None:
    sklearn = peer("sklearn.metrics")
    records, _ = made_up(40)
    truth = np.array([[label in record.label for label in LABELS] for record in records])
    tried = [
        sklearn.f1_score(truth, np.tile([label in some for label in LABELS], (40, 1)), average="micro")
        for count in (1, 2, 3)
        for some in combinations(LABELS, count)
    ]
    assert Multilabel(LABELS).baseline(records)["micro_f1"] == pytest.approx(max(tried))


def test_the_prior_loss_is_that_of_the_best_constant_scores() -> None:
    task, (records, _) = Multilabel(LABELS), made_up(50)
    examples = task.training_examples(records, [Example([Window([2, 3], [0, 0], 1, 0, 0)])] * 50)
    batch = collate(examples, 0)
    assert batch.targets is not None
    constant = batch.targets.mean(0).logit().expand(50, -1)
    assert task.constant_answer_loss(examples) == pytest.approx(task.loss({"scores": constant}, batch).item(), rel=1e-5)


def test_thresholds_travel_with_the_folder(model: Model, tmp_path: Path) -> None:
    ours = with_head(model, Multilabel(LABELS, thresholds=[0.41, 0.5, 0.62]))
    ours.save(tmp_path)
    again = litebert.load(tmp_path)
    assert isinstance(again.task, Multilabel)
    assert again.task.thresholds == [0.41, 0.5, 0.62]
    assert again.predict(PROSE[:5]) == ours.predict(PROSE[:5])


@pytest.mark.parametrize("thresholds", [[0.5], [0.5, 0.5, 2.0], [0.5, 0.5, "x"]])
def test_thresholds_that_do_not_fit_the_labels_are_refused(thresholds: list[Any]) -> None:
    settings = Multilabel(LABELS).settings() | {"options": {"thresholds": thresholds}}
    with pytest.raises(CheckpointError, match=r"thresholds=.* must be a share for each of 3 labels"):
        Multilabel.from_settings(settings)


def test_transformers_gives_equal_scores_and_knows_the_kind_of_problem(model: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    ours = with_head(model, Multilabel(LABELS), max_length=64)
    ours.save(tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert theirs.config.problem_type == "multi_label_classification"
    assert theirs.config.id2label == dict(enumerate(LABELS))
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(PROSE[:4], padding=True, return_tensors="pt")
    with torch.inference_mode():
        reference = theirs(**inputs).logits.sigmoid()
    mine = torch.tensor([list(answer.probabilities.values()) for answer in ours.predict(PROSE[:4])])
    assert (mine - reference).abs().max() <= 1e-5


def test_a_folder_of_transformers_answers_with_its_labels(model: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    config = transformers.AlbertConfig(
        vocab_size=200, hidden_size=32, num_attention_heads=4, intermediate_size=64, embedding_size=16,
        num_hidden_layers=2, id2label=dict(enumerate(LABELS)), problem_type="multi_label_classification",
    )  # fmt: skip
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path)
    model.tokenizer.save(tmp_path)
    again = litebert.load(tmp_path)
    assert isinstance(again.task, Multilabel)
    assert list(again.predict(["rain"])[0].probabilities) == LABELS


def test_a_tiny_model_learns_made_up_examples_by_heart(model: Model) -> None:
    lessons = [TextInput(text, label=(text.split()[0], text.split()[3])) for text in MADE_UP]
    taught = learned(Multilabel.learn_from(lessons), lessons, model.tokenizer, model.config)
    assert scored(taught, lessons)["micro_f1"] == 1
