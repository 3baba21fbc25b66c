"""How well a ranking finds what belongs to a question.

Shapes: Q questions, M documents, D of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

AT = (1, 10)
"""Places that recall looks at."""
GAIN_AT = 10
"""Places that nDCG looks at."""
AT_ONCE = 256  # questions: their scores of all documents are in memory


def retrieval_scores(
    questions: np.ndarray, documents: np.ndarray, relevant: Sequence[set[int]], own: Sequence[int] | None = None
) -> dict[str, float]:
    """Means over the questions of what cosines of (Q, D) and (M, D) give, whose lengths are 1.

    `relevant` are the documents of each question, one or more; `own` is the document that a question is itself, which
    does not count.
    """
    totals: dict[str, float] = {}
    for start in range(0, len(questions), AT_ONCE):
        scores = questions[start : start + AT_ONCE] @ documents.T
        for place, (row, wanted) in enumerate(zip(scores, relevant[start : start + AT_ONCE], strict=True), start):
            if own is not None:
                row[own[place]] = -np.inf
            for name, value in ranking_scores(row, wanted).items():
                totals[name] = totals.get(name, 0.0) + value
    return {name: total / max(1, len(questions)) for name, total in totals.items()}


def ranking_scores(scores: np.ndarray, relevant: set[int]) -> dict[str, float]:
    """Of one question: average precision, the reciprocal of the first place, recall and nDCG."""
    order = np.argsort(-scores, kind="stable")
    hits = np.isin(order, list(relevant))
    places = np.flatnonzero(hits)  # counted from 0
    gains = 1 / np.log2(np.arange(2, GAIN_AT + 2))
    ideal = gains[: len(relevant)].sum()
    return {
        f"ndcg@{GAIN_AT}": float((hits[:GAIN_AT] * gains[: len(hits)]).sum() / ideal),
        "map": float((np.arange(1, len(places) + 1) / (places + 1)).sum() / len(relevant)),
        "mrr": 1 / (1 + int(places[0])),
        **{f"recall@{count}": float(hits[:count].sum() / len(relevant)) for count in AT},
    }
