"""Classifiers from a handful of examples, ours and others', on the same encoder and the same files.

  python bench/few_shot.py --tasks tasks --shots 5 10
  python bench/few_shot.py --tasks tasks --budget 60 --tiers fast full --device cuda
  python bench/few_shot.py --tasks tasks --shots 5 --setfit-steps 100

Each learns from the fixed 5 or 10 examples per class of BANKING77 and CLINC150 and is asked about the test set once.
Beside accuracy: how many points more ours gets, with the interval in which 95 % of such differences lie (paired, over
the questions); how far probabilities are off (expected calibration error, 15 bins); and for CLINC150 how well questions
of no class are told apart (area under the ROC curve, by the highest probability, or ours by `unknown`).
--budget gives ours time to tune the model, and the note says which tier it used; --tiers shows each tier, used or not.
Ours may read the names of the classes, which the others are not given. --setfit-steps times so many of SetFit's steps
and reckons what its usual schedule would take; its scores are then those of an unfinished one. With all of them
(--setfit-steps 0) it is trained to the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

import litebert
from litebert.builtin import folder_of
from litebert.predict import Adapted
from litebert.train.runtime import has_bfloat16, pick_device
from litebert.tuning import tuned
from litebert.tuning.contrast import TunedTier
from litebert.tuning.tiers import TIERS

SETS = ("BANKING77", "CLINC150")
BINS = 15


@dataclass(frozen=True)
class Found:
    """What somebody answered, and when."""

    probabilities: np.ndarray
    """(questions, classes)."""
    familiar: np.ndarray
    """(all questions,) large where a question looks like one of the classes."""
    seconds: float
    """To learn."""
    note: str = ""


def read(folder: Path) -> tuple[list[str], list[str]]:
    texts, labels = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "label"))
    return [text.strip() for text in texts], [label.strip() for label in labels]


def only(pairs: tuple[list[str], list[str]], chosen: list[str]) -> tuple[list[str], list[str]]:
    """Texts and labels of these classes."""
    kept = [(text, label) for text, label in zip(*pairs, strict=True) if label in set(chosen)]
    return [text for text, _ in kept], [label for _, label in kept]


def by_adapt(
    model: litebert.Model,
    learn: Callable[[litebert.Model, list[str], list[str]], Adapted],
    texts: list[str],
    labels: list[str],
    asked: list[str],
) -> Found:
    began = time.perf_counter()
    adapted = learn(model, texts, labels)
    seconds = time.perf_counter() - began
    answers = adapted.predict(asked)
    rows = np.array([[answer.probabilities[name] for name in sorted(set(labels))] for answer in answers])
    evidence = adapted.evidence
    note = f"left out {evidence.accuracy:.3f}, {evidence.tier}"
    note += "".join(f", {tier} {share:.3f}" for tier, share, _ in evidence.tried if share is not None)
    return Found(rows, -np.array([answer.unknown for answer in answers]), seconds, note)


def by_tier(tier: TunedTier, model: litebert.Model, texts: list[str], labels: list[str]) -> Adapted:
    return tuned(litebert.adapt(model, texts, labels, budget_s=0), tier)


def by_words(texts: list[str], labels: list[str], asked: list[str]) -> Found:
    return _fitted(make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=100, max_iter=2000)),
                   lambda some: some, texts, labels, asked)  # fmt: skip


def by_probe(model: litebert.Model, texts: list[str], labels: list[str], asked: list[str]) -> Found:
    """Logistic regression on the vectors of `embed`."""

    def vectors(some: list[str]) -> np.ndarray:
        found = model.embed(some)
        unit: np.ndarray = found / np.linalg.norm(found, axis=1, keepdims=True)
        return unit

    return _fitted(LogisticRegression(C=100, max_iter=2000), vectors, texts, labels, asked)


def _fitted(classifier: Any, seen: Callable[[list[str]], Any], texts: list[str], labels: list[str],
            asked: list[str]) -> Found:  # fmt: skip
    began = time.perf_counter()
    classifier.fit(seen(texts), labels)
    seconds = time.perf_counter() - began
    rows = classifier.predict_proba(seen(asked))
    return Found(rows, rows.max(1), seconds)


def by_setfit(folder: str, steps: int, texts: list[str], labels: list[str], asked: list[str]) -> Found:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from setfit import SetFitModel, Trainer, TrainingArguments

    names = sorted(set(labels))
    model = SetFitModel(SentenceTransformer(folder), LogisticRegression(max_iter=2000), labels=names)
    data = Dataset.from_dict({"text": texts, "label": [names.index(label) for label in labels]})
    limit = {"max_steps": steps} if steps else {}
    settings = TrainingArguments(batch_size=16, num_epochs=1, report_to="none", save_strategy="no", **limit)
    began = time.perf_counter()
    Trainer(model=model, args=settings, train_dataset=data).train()
    seconds = time.perf_counter() - began
    count = len(texts)
    positive = sum(n * (n - 1) // 2 for n in np.bincount([names.index(label) for label in labels]).tolist())
    usual = -(-2 * max(positive, count * (count - 1) // 2 - positive) // 16)  # pairs, the rarer kind repeated
    rows = np.asarray(model.predict_proba(asked, as_numpy=True))
    told = (
        f"{steps} of {usual:,} steps; all would take {seconds / steps * usual:,.0f} s" if steps else f"{usual:,} steps"
    )
    return Found(rows, rows.max(1), seconds, told)


def calibration_error(rows: np.ndarray, right: np.ndarray) -> float:
    sure = rows.max(1)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs(right[place == b].mean() - sure[place == b].mean()) * (place == b).mean()
                     for b in set(place.tolist())))  # fmt: skip


def contenders(options: argparse.Namespace) -> dict[str, Callable[[list[str], list[str], list[str]], Found]]:
    """By name, who takes texts, labels and questions; ours first."""
    model = litebert.load(options.model).to(pick_device(options.device))
    model.bf16 = has_bfloat16(model.device)
    budget = options.budget
    found: dict[str, Callable[[list[str], list[str], list[str]], Found]] = {
        "litebert adapt": partial(by_adapt, model, partial(litebert.adapt, budget_s=budget)),
        "the same without names of classes": partial(
            by_adapt, model, partial(litebert.adapt, budget_s=budget, label_names=False)
        ),
        "words, logistic regression": by_words,
        "embed, logistic regression": partial(by_probe, model),
    }
    for tier in options.tiers:
        found[f"tier {tier}"] = partial(by_adapt, model, partial(by_tier, tier))
    if options.setfit_steps is not None:
        found["SetFit"] = partial(by_setfit, str(folder_of(options.model)), options.setfit_steps)
    return found


def figures(found: Found, right: np.ndarray, ours: np.ndarray, others: int) -> dict[str, Any]:
    gap = (ours.astype(float) - right) * 100
    apart = np.r_[np.ones(len(right)), np.zeros(others)]
    return {
        "accuracy": float(right.mean()), "gap": float(gap.mean()),
        "interval": float(1.96 * gap.std() / len(gap) ** 0.5),
        "calibration_error": calibration_error(found.probabilities[: len(right)], right),
        "area": float(roc_auc_score(apart, found.familiar)) if others else None,
        "seconds": found.seconds, "note": found.note,
    }  # fmt: skip


def line_of(row: dict[str, Any]) -> str:
    gap = f"{row['gap']:+.1f} ± {row['interval']:.1f}" if row["interval"] else ""
    area = "" if row["area"] is None else f"{row['area']:.3f}"
    cells = [row["set"], row["shots"], row["who"], f"{row['accuracy']:.3f}", gap, f"{row['calibration_error']:.3f}",
             area, f"{row['seconds']:.1f}", row["note"]]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="litebert-base-en")
    parser.add_argument("--tasks", type=Path, required=True, help="holds intents/fixed_BANKING77 and fixed_CLINC150")
    parser.add_argument("--shots", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--budget", type=float, default=0.0, help="seconds that ours may take")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=(), help="shown beside it, however long they take")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--part", choices=("test", "valid"), default="test", help="what is asked; choose by valid")
    parser.add_argument("--classes", type=int, help="only so many of them, drawn by chance")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--setfit-steps", type=int, help="0: all of them")
    parser.add_argument("--out", type=Path, help="write the figures there, JSON lines")
    options = parser.parse_args()
    who_takes_part = contenders(options)
    print("| set | shots | who | accuracy | ours is better by | calibration error | other questions | seconds | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.only:
        folder = options.tasks / "intents" / f"fixed_{name}"
        others = read(folder / "oos" / options.part)[0] if (folder / "oos").is_dir() else []
        for shots in options.shots:
            texts, labels = read(folder / f"train_{shots}")
            chosen = np.random.default_rng(0).permutation(sorted(set(labels)))[: options.classes].tolist()
            texts, labels = only((texts, labels), chosen)
            asked, truth = only(read(folder / options.part), chosen)
            names, ours = sorted(set(labels)), None
            for who, learn in who_takes_part.items():
                found = learn(texts, labels, [*asked, *others])
                answers = found.probabilities[: len(asked)].argmax(1)
                right = np.array([names[answer] == label for answer, label in zip(answers, truth, strict=True)])
                ours = right if ours is None else ours
                row = {"set": name, "shots": shots, "who": who} | figures(found, right, ours, len(others))
                print(line_of(row), flush=True)
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
