"""The tour in Chinese: what the built-in model knows, and what it learns from a few messages and from more of them."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from litebert.builtin import CHINESE
from litebert.device import has_bfloat16
from litebert.fewshot.adapt import adapt_frozen
from litebert.inference.evaluation import Evaluation
from litebert.loading import load
from litebert.measure.html_report import Report
from litebert.studies.demo.config import DemoConfig
from litebert.studies.demo.data import split_tickets
from litebert.studies.demo.steps import (
    MAJORITY,
    accuracy_table,
    baselines,
    evaluate_folder,
    predict_and_print,
    print_step,
)
from litebert.tasks import Classify
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning import finetune

STEPS = 5
SHOTS = 5
"""Examples of a class to adapt from."""
SCRIPT = (
    "The model has read simplified characters only. Convert texts in traditional ones first, by OpenCC's t2s for "
    "example (pip install opencc)."
)
BAG = "bag of characters"
WORSE = (
    "A bag of characters of the same messages is better than {}: the model has read little text, and less of what "
    "customers write."
)
MASKED_TEXTS = (
    "他们结婚后生了两个[MASK]。",
    "该书于1987年由商务印书馆[MASK]。",
    "他是一位著名的中国[MASK]。",
    "北京是中国的[MASK]。",
    "他毕业于北京[MASK]。",
)
QUERIES = (
    "这个月多扣了我二十块钱，请退给我",
    "包裹晚了一个星期，物流信息一直没有更新",
    "能不能给编辑器加一个夜间主题",
)


def run_chinese(config: DemoConfig, console: Console, began: float) -> Path | None:
    """From hidden words to answers; the adapted classifier, or None when a stop was asked for."""
    print_step(console, 1, STEPS, f"fill hidden words with {CHINESE}, which comes along")
    console.print(SCRIPT, highlight=False)
    fills = _fills()
    console.print(_grid(("text", "likeliest words"), fills))

    train, test = split_tickets(config.out, config.lang, config.seed)
    few, counts = _few(train)
    print_step(console, 2, STEPS, f"adapt it to {len(counts)} queues from {SHOTS} messages of each")
    of_few, seen = f"{SHOTS} of each class", sum(counts.values())
    of_all = f"all {seen}"
    models = {f"litebert adapt, {of_few}": _adapted(few)}

    print_step(console, 3, STEPS, f"adapt it to all {seen} labelled messages, and fine-tune it on them")
    settings = FinetuneConfig(
        model=CHINESE, train=train, out=config.out / "finetuned", epochs=config.epochs, batch_size=16,
        learning_rate=1e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    models |= {f"litebert adapt, {of_all}": _adapted(train), f"litebert finetune, {of_all}": settings.out}
    if finetune(settings, console) is None:
        return None

    print_step(console, 4, STEPS, "evaluate all of them on messages that they have not seen")
    (majority, characters), (_, few_characters) = baselines(train, test), baselines(few, test)
    evaluations = {name: evaluate_folder(folder, test) for name, folder in models.items()}
    scores = {
        MAJORITY: majority,
        f"{BAG}, {of_few}": few_characters,
        f"{BAG}, {of_all}": characters,
        **{name: evaluation.metrics["accuracy"] for name, evaluation in evaluations.items()},
    }
    console.print(accuracy_table(scores))
    shown_model = f"litebert adapt, {of_all}"
    worse = worse_than_bag(scores)
    if worse:
        console.print(worse, highlight=False)

    print_step(console, 5, STEPS, f"ask the one that was adapted to {of_all}")
    answers = predict_and_print(console, models[shown_model], QUERIES)
    _write_report(
        config, fills, scores, evaluations[shown_model], shown_model, worse, answers, time.perf_counter() - began
    )
    return models[shown_model]


def worse_than_bag(scores: Mapping[str, float]) -> str:
    """A sentence about the models that a bag of characters of the same messages beats, if any. Names are `METHOD,
    MESSAGES`."""
    seen = {name: name.partition(", ")[2] for name in scores if name.startswith("litebert")}
    losers = " and ".join(name for name, messages in seen.items() if scores[name] < scores[f"{BAG}, {messages}"])
    return WORSE.format(losers) if losers else ""


def _fills() -> list[tuple[str, str]]:
    """Texts with what the model would put there."""
    model = load(CHINESE)
    words: Any = [model.fill_mask(text, top=3) for text in MASKED_TEXTS]
    filled = (
        "  ".join(f"{fill.token.strip('▁') or 'a space'} {fill.probability:.0%}" for fill in fills) for fills in words
    )
    return list(zip(MASKED_TEXTS, filled, strict=True))


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    table = Table(*header)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _adapted(examples: Path) -> Path:
    out = examples.with_name(f"adapted-{examples.stem}")
    records = Classify.read(examples)
    model = load(CHINESE)
    model.bf16 = has_bfloat16(model.device)  # as litebert adapt
    adapt_frozen(model, [record.text for record in records], [record.label for record in records]).save(out)
    return out


def _few(train: Path) -> tuple[Path, Counter[str]]:
    """A file with the first of every class, and how many of each there are in all."""
    counts: Counter[str] = Counter()
    few = train.with_name("few.csv")
    with train.open(encoding="utf-8", newline="") as file, few.open("w", encoding="utf-8", newline="") as out:
        reader = csv.DictReader(file)
        writer = csv.DictWriter(out, reader.fieldnames or ())
        writer.writeheader()
        for row in reader:
            counts[row["label"]] += 1
            if counts[row["label"]] <= SHOTS:
                writer.writerow(row)
    return few, counts


def _write_report(
    config: DemoConfig,
    fills: Sequence[tuple[str, str]],
    scores: Mapping[str, float],
    result: Evaluation,
    shown_model: str,
    worse: str,
    answers: Any,
    seconds: float,
) -> None:
    report = Report(
        "litebert demo --lang zh", f"What {CHINESE} does, in {seconds:.0f} s on this machine, seed {config.seed}."
    )
    report.heading("Hidden words")
    report.table(["text", "likeliest words"], fills)
    report.text(SCRIPT)
    report.heading("Sorting messages")
    report.text(
        f"Customers' messages in {len(result.labels)} queues: 账单 billing, 账号 account, 物流 delivery, 故障 faults, "
        "建议 wishes, 表扬 praise."
    )
    report.table(["method", f"accuracy on {result.examples} unseen messages"], list(scores.items()))
    if worse:
        report.text(worse)
    report.confusion(
        result.labels,
        result.confusion,
        f"{result.examples} unseen messages: rows are true labels, columns the predictions of {shown_model}.",
    )
    report.heading("Answers")
    report.table(
        ["message", "answer", "probability"], [[text, answer.label, answer.probability] for text, answer in answers]
    )
    report.heading("All unseen messages")
    report.table(
        ["message", "answer", "truth"],
        [[judgement.text, judgement.answer, judgement.truth] for judgement in result.judgements],
        folded=f"{result.examples} messages, with the answers of {shown_model}",
    )
    report.write(config.out / "report.html")
