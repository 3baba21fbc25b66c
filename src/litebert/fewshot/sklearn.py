"""`litebert.adapt` as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litebert.builtin import DEFAULT
from litebert.errors import ConfigError, DataError, require_extra
from litebert.fewshot.adapt import Adapted, adapt_frozen
from litebert.fewshot.persistence import load_any
from litebert.inference.model import Model

require_extra("sklearn", "train")
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402  # after a friendlier error
from sklearn.utils.validation import check_is_fitted  # noqa: E402


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A few-shot text classifier for pipelines, cross-validation and grid searches.

    `model`: a loaded model, a folder or a name; by default the built-in English one. `label_names`: use the names of
    the classes as examples; None: if that helps. Nothing is tuned: it is `litebert.adapt` with a budget of 0 s.
    """

    def __init__(self, model: str | Path | Model = DEFAULT, label_names: bool | None = None) -> None:
        self.model = model
        self.label_names = label_names

    def fit(self, X: Sequence[str], y: Sequence[Any]) -> FewShotClassifier:
        """Read the texts `X` with the labels `y`; `adapted_` is then what `litebert.adapt` returns."""
        self.classes_ = np.unique(np.asarray(y))
        names = [str(label).strip() for label in self.classes_.tolist()]
        if len(set(names)) < len(names):
            raise ConfigError(f"some of the labels {names[:10]} are written alike; give each class a name of its own")
        model = self.model if isinstance(self.model, Model) else load_any(self.model)
        self.adapted_: Adapted = adapt_frozen(model, list(X), np.asarray(y).tolist(), label_names=self.label_names)
        self._names = names
        return self

    def predict_proba(self, X: Sequence[str]) -> np.ndarray:
        """(N, C), the probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        if isinstance(X, str):
            raise DataError("predict takes a list; wrap a single text: predict([text])")
        answers = self.adapted_.predict(list(X))
        rows = [[answer.probabilities[name] for name in self._names] for answer in answers]
        probabilities = np.array(rows, dtype=np.float64).reshape(-1, len(self.classes_))
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """(N,), the likeliest of `classes_` for each text."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(1)]
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags
