"""Baselines that a model must beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from litebert.errors import require_extra

MIN_SPACE_SHARE = 0.05  # share of spaces above which a text has words between them


def majority(train_labels: Sequence[str], test_labels: Sequence[str]) -> float:
    """Accuracy of always predicting the majority class of the training labels."""
    commonest = Counter(train_labels).most_common(1)[0][0]
    return sum(label == commonest for label in test_labels) / len(test_labels)


def bag_of_words(
    train_texts: Sequence[str], train_labels: Sequence[str], test_texts: Sequence[str], test_labels: Sequence[str]
) -> float:
    """Accuracy of logistic regression on tf-idf features: strong on small data, and takes a second."""
    require_extra("sklearn", "train")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    vectors = TfidfVectorizer(sublinear_tf=True, **tfidf_analyzer(train_texts))
    pipeline = make_pipeline(vectors, LogisticRegression(C=10, max_iter=1000))
    pipeline.fit(list(train_texts), list(train_labels))
    return float(pipeline.score(list(test_texts), list(test_labels)))


def tfidf_analyzer(texts: Sequence[str]) -> dict[str, Any]:
    """Settings of tf-idf: word unigrams and bigrams, or character n-grams for texts without spaces."""
    spaces = sum(text.count(" ") for text in texts) / max(1, sum(map(len, texts)))
    return {"ngram_range": (1, 2)} if spaces > MIN_SPACE_SHARE else {"ngram_range": (1, 3), "analyzer": "char"}
