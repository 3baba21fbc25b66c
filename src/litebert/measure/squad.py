"""How right answers found in a text are: exact match and F1, as the SQuAD and CMRC 2018 evaluations count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_IDEOGRAPH = re.compile(f"[{_CJK}]")
# an ideograph, a word or number with the points inside it, or a single sign
_SEGMENT = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])\w)+(?:[.,'](?:(?![{_CJK}])\w)+)*|[^\w\s]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# what CMRC 2018 removes; it keeps other signs, such as the full stop and brackets of ASCII
_NO_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")


def squad_metrics(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means over the questions. A question without gold answers has none, and "" is the right prediction for it; where
    there are such questions, both kinds are also told apart.

    Where most of the gold answers is Chinese, answers are compared as CMRC 2018 does it, otherwise as SQuAD does.
    """
    exact, f1 = question_scores(predictions, golds)
    metrics = {"exact": float(exact.mean()), "f1": float(f1.mean())}
    answerable = np.array([bool(_counted(gold)) for gold in golds])
    if not answerable.all():
        metrics["no_answer_accuracy"] = float(exact[~answerable].mean())
        if answerable.any():
            metrics |= {
                "has_answer_exact": float(exact[answerable].mean()),
                "has_answer_f1": float(f1[answerable].mean()),
            }
    return metrics


def question_scores(
    predictions: Sequence[str], golds: Sequence[Sequence[str]], chinese: bool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 of each question, 0 to 1, the best over its gold answers. None: the gold answers decide."""
    chinese = is_chinese(golds) if chinese is None else chinese
    exact, f1 = np.zeros(len(golds)), np.zeros(len(golds))
    for number, (prediction, gold) in enumerate(zip(predictions, golds, strict=True)):
        texts = _counted(gold)
        if not texts:
            exact[number] = f1[number] = not (_chinese_normal(prediction) if chinese else _normal(prediction))
        elif chinese:
            exact[number] = any(_chinese_normal(prediction) == _chinese_normal(text) for text in texts)
            f1[number] = max(_chinese_f1(prediction, text) for text in texts)
        else:
            exact[number] = any(_normal(prediction) == _normal(text) for text in texts)
            f1[number] = max(_f1(prediction, text) for text in texts)
    return exact, f1


def best_threshold(margins: np.ndarray, answered: np.ndarray, unanswered: np.ndarray) -> float:
    """The threshold above which no answer is given, for the largest sum of what each question gets with its answer and
    without: halfway between two margins, or one beyond the outermost."""
    order = np.argsort(margins, kind="stable")
    ordered = margins[order]
    gained = np.concatenate([[0.0], (answered - unanswered)[order].cumsum()])  # by answering the first n
    possible = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])  # a cut between equals is none
    count = int(np.where(possible, gained, -np.inf).argmax())
    if count == 0:
        return float(ordered[0] - 1)
    if count == len(ordered):
        return float(ordered[-1] + 1)
    return float((ordered[count - 1] + ordered[count]) / 2)


def is_chinese(texts: Sequence[Sequence[str]]) -> bool:
    """Whether more than half of the letters of these texts are ideographs."""
    letters = "".join(character for answers in texts for text in answers for character in text if character.isalpha())
    return 2 * len(_IDEOGRAPH.findall(letters)) > len(letters)


def segments(text: str) -> list[str]:
    """Ideographs one by one, words and numbers whole, signs one by one."""
    return _SEGMENT.findall(text)


def _counted(gold: Sequence[str]) -> list[str]:
    """The official evaluation passes over gold answers of which nothing is left to compare."""
    return [text for text in gold if _normal(text)]


def _normal(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(prediction: str, gold: str) -> float:
    predicted, true = _normal(prediction).split(), _normal(gold).split()
    same = sum((Counter(predicted) & Counter(true)).values())
    return 2 * same / (len(predicted) + len(true))


def _chinese_normal(text: str) -> str:
    return text.lower().strip().translate(_NO_CHINESE_PUNCTUATION)


def _chinese_f1(prediction: str, gold: str) -> float:
    """Of the longest stretch that both have in one piece."""
    predicted, true = segments(_chinese_normal(prediction)), segments(_chinese_normal(gold))
    if not predicted or not true:
        return 0.0
    same = SequenceMatcher(None, predicted, true, autojunk=False).find_longest_match().size
    return 2 * same / (len(predicted) + len(true))
