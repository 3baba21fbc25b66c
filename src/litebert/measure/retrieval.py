"""Retrieval metrics: nDCG, MAP, MRR and recall.

Shapes: Q questions, M documents, D of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RECALL_CUTOFFS = (1, 10)
"""Cut-offs of recall@k."""
NDCG_CUTOFF = 10
"""Cut-off of nDCG@k."""
QUERY_BATCH = 256  # queries whose scores of all documents are in memory together


def retrieval_scores(
    questions: np.ndarray, documents: np.ndarray, relevant: Sequence[set[int]], own: Sequence[int] | None = None
) -> dict[str, float]:
    """Means over the questions of what cosines of (Q, D) and (M, D) give, whose lengths are 1.

    `relevant` are the documents of each question, one or more; `own` is the document that a question is itself, which
    does not count.
    """
    totals: dict[str, float] = {}
    for start in range(0, len(questions), QUERY_BATCH):
        scores = questions[start : start + QUERY_BATCH] @ documents.T
        for place, (row, wanted) in enumerate(zip(scores, relevant[start : start + QUERY_BATCH], strict=True), start):
            if own is not None:
                row[own[place]] = -np.inf
            for name, value in ranking_scores(row, wanted).items():
                totals[name] = totals.get(name, 0.0) + value
    return {name: total / max(1, len(questions)) for name, total in totals.items()}


def ranking_scores(scores: np.ndarray, relevant: set[int]) -> dict[str, float]:
    """Of one query: average precision, reciprocal rank, recall and nDCG."""
    order = np.argsort(-scores, kind="stable")
    hits = np.isin(order, list(relevant))
    places = np.flatnonzero(hits)  # counted from 0
    gains = 1 / np.log2(np.arange(2, NDCG_CUTOFF + 2))
    ideal = gains[: len(relevant)].sum()
    return {
        f"ndcg@{NDCG_CUTOFF}": float((hits[:NDCG_CUTOFF] * gains[: len(hits)]).sum() / ideal),
        "map": float((np.arange(1, len(places) + 1) / (places + 1)).sum() / len(relevant)),
        "mrr": 1 / (1 + int(places[0])),
        **{f"recall@{count}": float(hits[:count].sum() / len(relevant)) for count in RECALL_CUTOFFS},
    }
