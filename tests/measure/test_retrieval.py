"""Scores of rankings, held against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from litebert.measure.retrieval import ranking_scores, retrieval_scores
from tests.conftest import peer


@pytest.mark.parametrize("documents", [5, 40])
def test_ndcg_and_map_are_those_of_scikit_learn(documents: int) -> None:
    metrics, random = peer("sklearn.metrics"), np.random.default_rng(0)
    for _ in range(20):
        scores, relevant = random.random(documents), set(random.choice(documents, 3, replace=False).tolist())
        truth = np.isin(np.arange(documents), list(relevant))
        found = ranking_scores(scores, relevant)
        assert found["ndcg@10"] == pytest.approx(metrics.ndcg_score([truth], [scores], k=10))
        assert found["map"] == pytest.approx(metrics.average_precision_score(truth, scores))
        order = np.argsort(-scores).tolist()
        assert found["recall@1"] == (order[0] in relevant) / 3
        assert found["mrr"] == 1 / (1 + min(order.index(place) for place in relevant))


def test_what_a_question_is_itself_does_not_count() -> None:
    vectors = np.eye(3, dtype=np.float32)
    vectors[1] = [0.8, 0.6, 0.0]
    relevant = [{1}, {0}]
    with_itself = retrieval_scores(vectors[:2], vectors, relevant)
    assert with_itself["recall@1"] == 0.0
    assert retrieval_scores(vectors[:2], vectors, relevant, own=[0, 1])["recall@1"] == 1.0
