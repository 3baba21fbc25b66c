"""Classifiers from a handful of examples, ours and others', on the same encoder and the same files.

  python bench/few_shot.py --tasks tasks --shots 5 10
  python bench/few_shot.py --tasks tasks --budget 60 --tiers fast full --device cuda
  python bench/few_shot.py --tasks tasks --shots 5 --setfit-steps 100
  python bench/few_shot.py --tasks tasks --sets fewclue-tnews fewclue-bustm --model runs/chinese --tiers fast

Each learns from the fixed 5 or 10 examples per class of BANKING77 and CLINC150 and is asked about the test set once.
FewCLUE's sets (Chinese) have five small training files: each is learned from and the public test set asked, and
accuracy is the mean of the five, with their standard deviation.
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
from collections import Counter
from collections.abc import Callable, Iterator
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
from litebert.data.tables import TableOptions
from litebert.device import has_bfloat16, pick_device
from litebert.fewshot import Adapted, adapt_with_tier
from litebert.fewshot.adapt import as_input
from litebert.fewshot.contrastive import TunedTier
from litebert.fewshot.tuning import TIERS
from litebert.measure.baselines import tfidf_analyzer
from litebert.measure.intervals import paired_difference, sample_deviation
from litebert.tasks import Classify

INTENTS = ("BANKING77", "CLINC150")
FEWCLUE = ("fewclue-tnews", "fewclue-eprstmt", "fewclue-csldcp", "fewclue-bustm", "fewclue-ocnli")
SPLITS = 5  # of FewCLUE
BINS = 15
NAMELESS = "the same without names of classes"
Text = str | tuple[str, str]
Learn = Callable[[list[Text], list[str], list[Text]], "Found"]
"""Takes texts, labels and questions."""


@dataclass(frozen=True)
class Split:
    """What is learned from, and what is asked."""

    texts: list[Text]
    labels: list[str]
    asked: list[Text]
    truth: list[str]
    others: list[Text]
    """Questions of no class."""


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


def read(folder: Path) -> tuple[list[Text], list[str]]:
    texts, labels = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "label"))
    return [text.strip() for text in texts], [label.strip() for label in labels]


def read_table(path: Path) -> tuple[list[Text], list[str]]:
    records = Classify.read(path, TableOptions())
    return [as_input(record) for record in records], [str(record.label) for record in records]


def only(pairs: tuple[list[Text], list[str]], chosen: set[str]) -> tuple[list[Text], list[str]]:
    """Texts and labels of these classes."""
    kept = [(text, label) for text, label in zip(*pairs, strict=True) if label in chosen]
    return [text for text, _ in kept], [label for _, label in kept]


def splits_of(name: str, options: argparse.Namespace) -> Iterator[tuple[int, list[Split]]]:
    """By the number of examples of a class, what is learned and asked."""

    def split(given: tuple[list[Text], list[str]], asked: tuple[list[Text], list[str]], others: list[Text]) -> Split:
        names = sorted(set(given[1]))
        chosen = set(np.random.default_rng(0).permutation(names)[: options.classes].tolist())
        return Split(*only(given, chosen), *only(asked, chosen), others)

    if name in FEWCLUE:
        folder = options.tasks / "zh" / "fewclue" / name.removeprefix("fewclue-")
        asked = [f"dev_{number}" if options.part == "valid" else "test_public" for number in range(SPLITS)]
        found = [
            split(read_table(folder / f"train_{number}.json"), read_table(folder / f"{asked[number]}.json"), [])
            for number in range(SPLITS)
        ]
        yield round(len(found[0].labels) / len(set(found[0].labels))), found
        return
    folder = options.tasks / "intents" / f"fixed_{name}"
    others = read(folder / "oos" / options.part)[0] if (folder / "oos").is_dir() else []
    for shots in options.shots:
        yield shots, [split(read(folder / f"train_{shots}"), read(folder / options.part), others)]


def by_adapt(
    model: litebert.Model,
    learn: Callable[[litebert.Model, list[Text], list[str]], Adapted],
    texts: list[Text],
    labels: list[str],
    asked: list[Text],
) -> Found:
    began = time.perf_counter()
    adapted = learn(model, texts, labels)
    seconds = time.perf_counter() - began
    answers = adapted.predict(asked)
    rows = np.array([[answer.probabilities[name] for name in sorted(set(labels))] for answer in answers])
    evidence = adapted.evidence
    note = f"left out {evidence.accuracy:.3f}, {evidence.tier}"
    note += "".join(f", {tier} {share:.3f}" for tier, share, _ in evidence.tier_results if share is not None)
    return Found(rows, -np.array([answer.unknown for answer in answers]), seconds, note)


def by_tier(tier: TunedTier, model: litebert.Model, texts: list[Text], labels: list[str]) -> Adapted:
    return adapt_with_tier(litebert.adapt(model, texts, labels, budget_s=0), tier)


def by_majority(texts: list[Text], labels: list[str], asked: list[Text]) -> Found:
    shares = [count / len(labels) for _, count in sorted(Counter(labels).items())]
    rows = np.tile(shares, (len(asked), 1))
    return Found(rows, rows.max(1), 0.0)


def joined(texts: list[Text]) -> list[str]:
    """For who takes no pairs."""
    return [text if isinstance(text, str) else " ".join(text) for text in texts]


def by_words(texts: list[Text], labels: list[str], asked: list[Text]) -> Found:
    parts = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
    vectors = TfidfVectorizer(**tfidf_analyzer(parts))  # the space between two texts says nothing of the writing
    return _fitted(make_pipeline(vectors, LogisticRegression(C=100, max_iter=2000)), joined, texts, labels, asked)


def by_probe(model: litebert.Model, texts: list[Text], labels: list[str], asked: list[Text]) -> Found:
    """Logistic regression on the vectors of `embed`."""

    def vectors(some: list[Text]) -> np.ndarray:
        found = model.embed(joined(some))
        unit: np.ndarray = found / np.linalg.norm(found, axis=1, keepdims=True)
        return unit

    return _fitted(LogisticRegression(C=100, max_iter=2000), vectors, texts, labels, asked)


def _fitted(classifier: Any, seen: Callable[[list[Text]], Any], texts: list[Text], labels: list[str],
            asked: list[Text]) -> Found:  # fmt: skip
    began = time.perf_counter()
    classifier.fit(seen(texts), labels)
    seconds = time.perf_counter() - began
    rows = classifier.predict_proba(seen(asked))
    return Found(rows, rows.max(1), seconds)


def by_setfit(folder: str, steps: int, texts: list[Text], labels: list[str], asked: list[Text]) -> Found:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from setfit import SetFitModel, Trainer, TrainingArguments

    names = sorted(set(labels))
    model = SetFitModel(SentenceTransformer(folder), LogisticRegression(max_iter=2000), labels=names)
    data = Dataset.from_dict({"text": joined(texts), "label": [names.index(label) for label in labels]})
    limit = {"max_steps": steps} if steps else {}
    settings = TrainingArguments(batch_size=16, num_epochs=1, report_to="none", save_strategy="no", **limit)
    began = time.perf_counter()
    Trainer(model=model, args=settings, train_dataset=data).train()
    seconds = time.perf_counter() - began
    count = len(texts)
    positive = sum(n * (n - 1) // 2 for n in np.bincount([names.index(label) for label in labels]).tolist())
    usual = -(-2 * max(positive, count * (count - 1) // 2 - positive) // 16)  # pairs, the rarer kind repeated
    rows = np.asarray(model.predict_proba(joined(asked), as_numpy=True))
    told = (
        f"{steps} of {usual:,} steps; all would take {seconds / steps * usual:,.0f} s" if steps else f"{usual:,} steps"
    )
    return Found(rows, rows.max(1), seconds, told)


def calibration_error(rows: np.ndarray, right: np.ndarray) -> float:
    sure = rows.max(1)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs(right[place == b].mean() - sure[place == b].mean()) * (place == b).mean()
                     for b in set(place.tolist())))  # fmt: skip


def contenders(options: argparse.Namespace) -> dict[str, Learn]:
    """By name, who takes part; ours first."""
    model = litebert.load(options.model).to(pick_device(options.device))
    model.bf16 = has_bfloat16(model.device)
    budget = options.budget
    found: dict[str, Learn] = {
        "litebert adapt": partial(by_adapt, model, partial(litebert.adapt, budget_s=budget)),
        NAMELESS: partial(by_adapt, model, partial(litebert.adapt, budget_s=budget, label_names=False)),
        "the commonest class": by_majority,
        "words, logistic regression": by_words,
        "embed, logistic regression": partial(by_probe, model),
    }
    for tier in options.tiers:
        found[f"tier {tier}"] = partial(by_adapt, model, partial(by_tier, tier))
    if options.setfit_steps is not None:
        found["SetFit"] = partial(by_setfit, str(folder_of(options.model)), options.setfit_steps)
    return found


def rights(split: Split, found: Found) -> list[float]:
    names, answers = sorted(set(split.labels)), found.probabilities[: len(split.asked)].argmax(1)
    return [float(names[answer] == label) for answer, label in zip(answers, split.truth, strict=True)]


def figures(
    splits: list[Split], found: list[Found], right: list[list[float]], ours: list[list[float]]
) -> dict[str, Any]:
    """Means over the splits. A question that several of them ask counts once."""
    same = all(split.asked == splits[0].asked for split in splits)
    ours_by_question, right_by_question = (
        (np.mean(some, 0) if same else np.concatenate(some)).tolist() for some in (ours, right)
    )
    gap = paired_difference(ours_by_question, right_by_question)
    each = [float(np.mean(some)) for some in right]
    errors = [
        calibration_error(one.probabilities[: len(some)], np.array(some))
        for one, some in zip(found, right, strict=True)
    ]
    areas = [
        float(roc_auc_score(np.r_[np.ones(len(split.asked)), np.zeros(len(split.others))], one.familiar))
        for split, one in zip(splits, found, strict=True) if split.others
    ]  # fmt: skip
    return {
        "accuracy": float(np.mean(each)), "spread": sample_deviation(each), "splits": each,
        "gap": 100 * gap.value, "interval": 100 * gap.margin, "calibration_error": float(np.mean(errors)),
        "area": float(np.mean(areas)) if areas else None, "seconds": float(np.mean([one.seconds for one in found])),
        "note": "; ".join(filter(None, (one.note for one in found))),
    }  # fmt: skip


def line_of(row: dict[str, Any]) -> str:
    gap = f"{row['gap']:+.1f} ± {row['interval']:.1f}" if row["interval"] else ""
    area = "" if row["area"] is None else f"{row['area']:.3f}"
    spread = "" if row["spread"] is None else f", sd {row['spread']:.3f}"
    cells = [row["set"], row["shots"], row["who"], f"{row['accuracy']:.3f}{spread}", gap,
             f"{row['calibration_error']:.3f}", area, f"{row['seconds']:.1f}", row["note"]]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="litebert-base-en")
    parser.add_argument(
        "--tasks", type=Path, required=True, help="holds intents/fixed_BANKING77, zh/fewclue/tnews and others"
    )
    parser.add_argument("--sets", nargs="+", choices=(*INTENTS, *FEWCLUE), default=INTENTS)
    parser.add_argument("--shots", type=int, nargs="+", default=[5, 10], help="of BANKING77 and CLINC150")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds that ours may take")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=(), help="shown beside it, however long they take")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--part", choices=("test", "valid"), default="test", help="what is asked; choose by valid")
    parser.add_argument("--classes", type=int, help="only so many of them, drawn by chance")
    parser.add_argument("--setfit-steps", type=int, help="0: all of them")
    parser.add_argument("--out", type=Path, help="write the figures there, JSON lines")
    options = parser.parse_args()
    who_takes_part = contenders(options)
    print("| set | shots | who | accuracy | ours is better by | calibration error | other questions | seconds | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.sets:
        for shots, splits in splits_of(name, options):
            ours: list[list[float]] = []
            for who, learn in who_takes_part.items():
                if who == NAMELESS and not isinstance(splits[0].texts[0], str):
                    continue  # of pairs names say nothing
                found = [learn(split.texts, split.labels, [*split.asked, *split.others]) for split in splits]
                right = [rights(*two) for two in zip(splits, found, strict=True)]
                ours = ours or right
                row = {"set": name, "shots": shots, "who": who} | figures(splits, found, right, ours)
                print(line_of(row), flush=True)
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
