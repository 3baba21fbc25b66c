"""BLEU and chrF of translations, and how scripts without spaces are counted and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litebert.data.encode import is_chinese
from litebert.errors import require_extra
from litebert.tokenizer.scripts import HAN, HANGUL, KANA, UNSPACED_SCRIPTS, is_mostly


def bleu_words(references: Sequence[str]) -> str:
    """sacreBLEU's tokenizer: by spaces and punctuation, or by characters where a sentence would be one word, and for
    Korean, whose words between spaces are long."""
    if is_chinese(references):
        return "zh"
    return "char" if is_mostly(UNSPACED_SCRIPTS + HANGUL, "".join(references)) else "13a"


def corpus_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF, from 0 to 100."""
    metrics = _metrics(references)
    return {name: float(metric.corpus_score(list(texts), [list(references)]).score) for name, metric in metrics.items()}


def metric_signatures(references: Sequence[str]) -> dict[str, str]:
    metrics = _metrics(references)
    for metric in metrics.values():
        metric.corpus_score(["a"], [["a"]])  # it knows how many references there are when it has seen some
    return {name: str(metric.get_signature()) for name, metric in metrics.items()}


def join_sentences(sentences: Sequence[str]) -> str:
    """Sentences in sequence, with spaces between them except in Chinese and Japanese."""
    return ("" if is_mostly(HAN + KANA, "".join(sentences)) else " ").join(filter(None, sentences))


def _metrics(references: Sequence[str]) -> dict[str, Any]:
    metrics = require_extra("sacrebleu.metrics", "train")
    return {"bleu": metrics.BLEU(tokenize=bleu_words(references)), "chrf": metrics.CHRF()}
