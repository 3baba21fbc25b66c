"""Exact match and F1 of answers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from litebert.measure.squad import best_threshold, is_chinese, question_scores, segments, squad_metrics
from tests.conftest import peer

WORDS = ["The", "the", "a", "an", "river", "Rhine,", "rhine.", "42", "forty-two", "U.S.", "(old)", "don't", "BRIDGE"]


def phrase(chance: random.Random, least: int = 1) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(least, 5)))


def test_exact_match_and_f1_are_torchmetrics() -> None:
    metric = peer("torchmetrics.text").SQuAD()
    chance = random.Random(0)
    golds = [["river " + phrase(chance) for _ in range(chance.randint(1, 3))] for _ in range(300)]
    predictions = [chance.choice(gold) if chance.random() < 0.3 else phrase(chance, 0) for gold in golds]
    metric.update(
        [{"prediction_text": text, "id": str(i)} for i, text in enumerate(predictions)],
        [{"answers": {"answer_start": [0] * len(g), "text": g}, "id": str(i)} for i, g in enumerate(golds)],
    )
    expected, measured = metric.compute(), squad_metrics(predictions, golds)
    assert measured == {
        "exact": pytest.approx(expected["exact_match"].item() / 100, abs=1e-6),
        "f1": pytest.approx(expected["f1"].item() / 100, abs=1e-6),
    }
    assert 0.2 < measured["exact"] < measured["f1"] < 0.9


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("the Rhine.", ["Rhine"], 1, 1),
        ("river Rhine", ["Rhine"], 0, 2 / 3),
        ("river Rhine", ["Danube", "old river Rhine"], 0, 4 / 5),
        ("rhine rhine", ["rhine"], 0, 2 / 3),
        ("Danube", ["Rhine"], 0, 0),
        ("", ["Rhine"], 0, 0),
        ("", [], 1, 1),
        ("Rhine", [], 0, 0),
        ("the", [], 1, 1),  # the official evaluation compares what is left
    ],
)
def test_one_answer_gets_what_the_official_evaluation_gives(
    prediction: str, gold: list[str], exact: float, f1: float
) -> None:
    found = question_scores([prediction], [gold])
    assert found[0].tolist() == [exact]
    assert found[1].tolist() == pytest.approx([f1])


def test_questions_without_an_answer_are_also_told_apart() -> None:
    golds = [["old Rhine"], [], [], [], ["bridge"]]
    assert squad_metrics(["Rhine", "", "Rhine", "", "bridge"], golds) == {
        "exact": pytest.approx(3 / 5),
        "f1": pytest.approx((2 / 3 + 1 + 0 + 1 + 1) / 5),
        "no_answer_accuracy": pytest.approx(2 / 3),
        "has_answer_exact": pytest.approx(1 / 2),
        "has_answer_f1": pytest.approx((2 / 3 + 1) / 2),
    }


def test_where_no_question_has_an_answer_only_those_are_measured() -> None:
    assert squad_metrics(["", "x"], [[], []]) == {"exact": 0.5, "f1": 0.5, "no_answer_accuracy": 0.5}


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("光荣和ω-force", ["光荣和ω-force"], 1, 1),
        ("《战国无双》", ["战国无双"], 1, 1),
        ("北京市", ["北京"], 0, 4 / 5),
        ("北大京", ["北京大"], 0, 1 / 3),  # one piece in common: 京, or 北, or 大
        ("1963年5月", ["1963年"], 0, 2 * 2 / (4 + 2)),  # 1963, 年, 5, 月
        ("Nexon公司", ["nexon 公司"], 0, 1),  # the space counts for exact match only
        ("上海", ["北京"], 0, 0),
        ("", ["北京"], 0, 0),
        ("，。", [], 1, 1),
        ("北京", [], 0, 0),
    ],
)
def test_chinese_answers_are_compared_as_cmrc_2018_does_it(
    prediction: str, gold: list[str], exact: float, f1: float
) -> None:
    found = question_scores([prediction, "中文回答很长"], [gold, ["中文回答很长"]])
    assert found[0].tolist() == [exact, 1]
    assert found[1].tolist() == pytest.approx([f1, 1])


def test_the_best_of_several_chinese_answers_counts() -> None:
    assert question_scores(["村雨城"], [["任天堂游戏谜之村雨城", "村雨"]])[1].tolist() == pytest.approx([4 / 5])


def test_most_of_the_letters_decide_which_evaluation_is_used() -> None:
    assert is_chinese([["北京", "x"], []])
    assert not is_chinese([["北京", "Beijing"]])
    assert is_chinese([["1963年"]])  # digits belong to no language
    assert not is_chinese([])


def test_the_evaluation_can_be_chosen() -> None:
    assert question_scores(["1963年5月"], [["1963年"]], chinese=False)[1].tolist() == [0]
    assert question_scores(["river Rhine"], [["Rhine river"]], chinese=True)[1].tolist() == [0.5]


def test_segments_keep_words_and_numbers_whole_and_ideographs_apart() -> None:
    assert segments("约1,200.5米，don't用ω-force𠀀！") == [
        "约", "1,200.5", "米", "，", "don't", "用", "ω", "-", "force", "𠀀", "！",
    ]  # fmt: skip


def test_scores_of_questions_average_to_the_metrics() -> None:
    golds: list[list[str]] = [["a river"], [], ["old bridge"]]
    predictions = ["river", "x", "bridge"]
    exact, f1 = question_scores(predictions, golds)
    measured = squad_metrics(predictions, golds)
    assert measured["exact"] == pytest.approx(np.mean(exact))
    assert measured["f1"] == pytest.approx(np.mean(f1))


def test_a_threshold_never_cuts_between_equals() -> None:
    margins = np.array([1.0, 1.0, 2.0])
    assert best_threshold(margins, np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0])) == 0.0
    assert best_threshold(margins, np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])) == 1.5
    assert best_threshold(margins, np.ones(3), np.zeros(3)) == 3.0
