"""A number per text: records, metrics, folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert.data.batches import Example, collate
from litebert.data.windows import Window
from litebert.errors import DataError
from litebert.inference import Model
from litebert.tasks import Regress
from litebert.tasks.regress import RegressOutput
from litebert.tasks.text import TextInput
from tests.conftest import PROSE, peer
from tests.tasks.test_text import MADE_UP, learned, scored, with_head


def records(values: Any) -> list[TextInput]:
    return [TextInput("x", label=float(value)) for value in values]


def measured(true: Any, predicted: Any) -> dict[str, float]:
    return Regress().metrics(records(true), [RegressOutput(float(value)) for value in predicted])


def test_metrics_are_those_of_scipy_and_scikit_learn() -> None:
    stats, sklearn = peer("scipy.stats"), peer("sklearn.metrics")
    random = np.random.default_rng(0)
    true = random.integers(0, 6, 50).astype(float)  # with ties
    predicted = true + random.standard_normal(50)
    assert measured(true, predicted) == {
        "pearson": pytest.approx(stats.pearsonr(true, predicted).statistic),
        "spearman": pytest.approx(stats.spearmanr(true, predicted).statistic),
        "rmse": pytest.approx(sklearn.root_mean_squared_error(true, predicted)),
    }


@pytest.mark.parametrize(("true", "predicted"), [([1, 2, 3], [2, 2, 2]), ([2, 2], [1, 2]), ([1], [1])])
def test_what_does_not_vary_correlates_with_nothing(true: list[float], predicted: list[float]) -> None:
    found = measured(true, predicted)
    assert (found["pearson"], found["spearman"]) == (0, 0)


@pytest.mark.parametrize(("given", "expected"), [("3.5", 3.5), (" -2 ", -2), (7, 7), ("1e3", 1000)])
def test_labels_are_numbers_in_any_spelling(given: Any, expected: float) -> None:
    assert Regress().parse({"text": "x", "label": given}, "input 1").label == expected


@pytest.mark.parametrize("given", ["high", "nan", "inf", [1]])
def test_what_is_no_finite_number_is_refused_with_its_place(given: Any) -> None:
    with pytest.raises(DataError, match=r"input 7: label=.* must be a (finite )?number"):
        Regress().parse({"text": "x", "label": given}, "input 7")


def test_the_same_number_everywhere_is_refused() -> None:
    with pytest.raises(DataError, match="the same number everywhere; there is nothing to learn"):
        Regress.learn_from(records([3, 3, 3]))


def test_a_new_model_starts_at_the_mean_of_the_labels(model: Model) -> None:
    values = [10.0, 20.0, 60.0]
    task = Regress.learn_from(records(values))
    torch.manual_seed(0)
    albert = litebert.model.Albert(model.config, {"classify": task.head(model.config)})
    answers = Model(albert, model.tokenizer, task).predict(PROSE[:3])
    assert [answer.value for answer in answers] == pytest.approx([30.0] * 3, abs=0.5)


def test_errors_count_in_units_of_the_labels_deviation() -> None:
    values = [10.0, 20.0, 60.0]
    task = Regress.learn_from(records(values))
    examples = task.training_examples(records(values), [Example([Window([2, 3], [0, 0], 1, 0, 0)])] * 3)
    predicted = (torch.tensor([[12.0], [25.0], [40.0]]) - np.mean(values)) / np.std(values)
    expected = np.mean(np.square([2, 5, -20]) / np.var(values))
    assert task.loss({"scores": predicted}, collate(examples, 0)).item() == pytest.approx(expected)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_the_unit_of_the_labels_makes_no_difference(model: Model, unit: float) -> None:
    lessons = [TextInput(text, label=unit * (100 + number)) for number, text in enumerate(MADE_UP)]
    taught = learned(Regress.learn_from(lessons), lessons, model.tokenizer, model.config)
    assert scored(taught, lessons)["rmse"] < 2 * unit


def test_what_is_saved_answers_the_number_itself(model: Model, tmp_path: Path) -> None:
    task = Regress(mean=50.0, deviation=20.0, spread=20.0)
    learning = with_head(model, task, max_length=64)
    finished, head = task.for_saving(learning.albert.heads["classify"])
    albert = litebert.model.Albert(model.config, {"classify": head})
    albert.encoder = learning.encoder
    Model(albert, model.tokenizer, finished, 64).save(tmp_path)
    answers = [[answer.value for answer in some.predict(PROSE[:3])] for some in (learning, litebert.load(tmp_path))]
    assert answers[0] == pytest.approx(answers[1], rel=1e-5)
    assert litebert.load(tmp_path).task.spread == 20.0  # type: ignore[union-attr]


def test_the_prior_loss_is_that_of_always_the_mean() -> None:
    values = [10.0, 20.0, 60.0, 11.0]
    task = Regress.learn_from(records(values))
    examples = task.training_examples(records(values), [Example([Window([2, 3], [0, 0], 1, 0, 0)])] * 4)
    always = torch.zeros(4, 1)
    assert task.constant_answer_loss(examples) == pytest.approx(1)
    assert task.loss({"scores": always}, collate(examples, 0)).item() == pytest.approx(1)
    assert task.baseline(records(values)) == {"pearson": 0, "rmse": pytest.approx(np.std(values))}


def test_transformers_gives_equal_numbers_and_knows_the_kind_of_problem(model: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    ours = with_head(model, Regress(), max_length=64)
    ours.save(tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert (theirs.config.problem_type, theirs.config.num_labels) == ("regression", 1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(PROSE[:3], [text[:9] for text in PROSE[3:6]], padding=True, return_tensors="pt")
    with torch.inference_mode():
        reference = theirs(**inputs).logits[:, 0]
    pairs = list(zip(PROSE[:3], (text[:9] for text in PROSE[3:6]), strict=True))
    for some in (ours, litebert.load(tmp_path)):
        assert [answer.value for answer in some.predict(pairs)] == pytest.approx(reference.tolist(), abs=1e-5)


def test_a_tiny_model_learns_made_up_examples_by_heart(model: Model) -> None:
    lessons = [TextInput(text, label=100 + number) for number, text in enumerate(MADE_UP)]
    taught = learned(Regress.learn_from(lessons), lessons, model.tokenizer, model.config)
    assert scored(taught, lessons)["pearson"] > 0.97
    assert scored(taught, lessons)["rmse"] < 2


def test_in_bfloat16_numbers_far_from_zero_keep_their_digits(model: Model) -> None:
    task = Regress()
    task._mean, task._deviation = 1990.0, 15.0
    albert = with_head(model, task).albert
    saved, head = task.for_saving(albert.heads[task.head_name])
    albert.heads[task.head_name] = head
    answerer = Model(albert.eval(), model.tokenizer, saved)
    exact = [answer.value for answer in answerer.predict(PROSE[:6])]
    answerer.bf16 = True
    rough = [answer.value for answer in answerer.predict(PROSE[:6])]
    assert rough == pytest.approx(exact, abs=0.3)
    assert len({round(value, 3) for value in rough}) > 1
