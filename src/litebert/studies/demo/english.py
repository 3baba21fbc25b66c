"""The English demo: from raw text to a tokenizer, a pre-trained model and three fine-tuned ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from litebert.data.batches import pad
from litebert.data.preparation import prepare_shards
from litebert.data.prepare import CorpusConfig
from litebert.data.vocabulary import train_vocabulary
from litebert.errors import ConfigError
from litebert.files import atomic_write
from litebert.inference.evaluation import Evaluation
from litebert.loading import load
from litebert.measure.html_report import Report
from litebert.studies.demo.config import DemoConfig
from litebert.studies.demo.data import collect_prose, split_tickets, write_questions, write_tagged
from litebert.studies.demo.steps import (
    MAJORITY,
    accuracy_table,
    baselines,
    evaluate_folder,
    predict_and_print,
    print_step,
)
from litebert.train.log import read_metrics
from litebert.trainers.finetune_config import FinetuneConfig
from litebert.trainers.finetuning import finetune
from litebert.trainers.pretrain_config import PretrainConfig
from litebert.trainers.pretraining import pretrain
from litebert.trainers.training_report import write_report

STEPS = 10
TAGGED_SETS = {"messages": 240, "messages-test": 60}
QUESTION_SETS = {"orders": 160, "orders-test": 20}  # four questions about each
SHOWN_EXAMPLES = 3
BAG_OF_WORDS = "bag of words (tf-idf, logistic regression)"
QUERIES = (
    "i was charged twice this month, please refund one of them",
    "the parcel is a week late and tracking has not moved",
    "please add a dark theme to the editor",
)


def run_english(config: DemoConfig, console: Console, began: float) -> Path | None:
    """From raw text to answers; the folder of the classifier, or None when a stop was requested."""
    paths = {name: config.out / name for name in ("tokenizer", "shards", "pretrained", "classifier")}

    print_step(console, 1, STEPS, "collect prose from the documentation of installed Python packages")
    corpus = config.out / "prose.txt"
    atomic_write(corpus, "\n\n".join(collect_prose(config.prose_bytes, config.seed)) + "\n")
    console.print(f"{corpus.stat().st_size / 1e6:.1f} MB in {corpus}", highlight=False)

    print_step(console, 2, STEPS, "train a tokenizer")
    tokenizer = train_vocabulary([corpus], config.vocab_size, console, seed=config.seed)
    tokenizer.save(paths["tokenizer"])
    console.print(f"{tokenizer.vocab_size:,} tokens in {paths['tokenizer']}", highlight=False)
    print_step(console, 3, STEPS, "prepare shards")
    index = prepare_shards(CorpusConfig((corpus,)), tokenizer, paths["shards"], console)
    console.print(f"{index.tokens:,} tokens of {index.documents:,} documents in {paths['shards']}", highlight=False)

    print_step(console, 4, STEPS, "pre-train a tiny ALBERT: hidden words and sentence order")
    settings = PretrainConfig(
        data=paths["shards"], out=paths["pretrained"], preset="tiny", steps=config.steps, batch_size=32, length=64,
        learning_rate=1e-3, mask_rate=0.3, seed=config.seed, device="cpu",
    )  # fmt: skip
    if not pretrain(settings, console):
        return None
    write_report([paths["pretrained"]], paths["pretrained"] / "report.html")

    print_step(console, 5, STEPS, "fine-tune it on 240 labelled messages")
    train, test = split_tickets(config.out, config.lang, config.seed)
    finetuning = FinetuneConfig(
        model=str(paths["pretrained"]), train=train, out=paths["classifier"], epochs=config.epochs, batch_size=16,
        length=64, learning_rate=1e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    if finetune(finetuning, console) is None:
        return None

    print_step(console, 6, STEPS, "evaluate on 120 messages it has not seen")
    result = evaluate_folder(paths["classifier"], test)
    majority, words = baselines(train, test)
    ours = result.metrics["accuracy"]
    scores = {MAJORITY: majority, BAG_OF_WORDS: words, "litebert, pre-trained and fine-tuned just now": ours}
    console.print(accuracy_table(scores))

    print_step(console, 7, STEPS, "ask it")
    answers = predict_and_print(console, paths["classifier"], QUERIES)

    print_step(console, 8, STEPS, "teach it to mark names, with 240 made-up messages")
    for name, count in TAGGED_SETS.items():
        write_tagged(config.out / f"{name}.conll", count, f"{config.seed} {name}")
    tagger = _finetune_task(config, console, "tag", "messages", ".conll")
    print_step(console, 9, STEPS, "teach it to answer questions, with 640 made-up ones; some have no answer")
    for name, count in QUESTION_SETS.items():
        write_questions(config.out / f"{name}.json", count, f"{config.seed} {name}")
    reader = _finetune_task(config, console, "answer", "orders", ".json")
    if tagger is None or reader is None:
        return None
    for evaluation in (tagger, reader):
        console.print(_example_table(evaluation))

    print_step(console, 10, STEPS, "load the classifier's folder in transformers")
    agreement = _compare_with_transformers(paths["classifier"])
    console.print(agreement, highlight=False)

    _write_report(config, result, scores, answers, (tagger, reader), agreement, time.perf_counter() - began)
    return paths["classifier"]


def _finetune_task(config: DemoConfig, console: Console, task: Any, name: str, suffix: str) -> Evaluation | None:
    """Fine-tune the pre-trained model and measure it; None when a stop was asked for."""
    out, train, test = config.out / task, config.out / f"{name}{suffix}", config.out / f"{name}-test{suffix}"
    settings = FinetuneConfig(
        model=str(config.out / "pretrained"), train=train, out=out, task=task, epochs=min(10, config.epochs),
        batch_size=16, learning_rate=5e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    return None if finetune(settings, console) is None else evaluate_folder(out, test)


def _example_table(evaluation: Evaluation) -> Any:
    """Some answers beside the truth."""
    scores = ", ".join(f"{name} {value:.3f}" for name, value in evaluation.metrics.items() if name in ("f1", "exact"))
    table = Table(
        title=f"{evaluation.task}: {scores} on {evaluation.examples} that it has not seen", title_justify="left"
    )
    for name in ("text", "answer", "truth"):
        table.add_column(name, overflow="fold")
    for judgement in evaluation.judgements[:SHOWN_EXAMPLES]:
        table.add_row(judgement.text, judgement.answer, judgement.truth)
    return table


def _compare_with_transformers(folder: Path) -> str:
    """The largest difference between our scores and transformers' for the same folder and texts."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging
    except ImportError:
        return "transformers is not installed, so this step is skipped; pip install 'litebert[peers]' to see it"
    logging.disable_progress_bar()
    ours = load(folder)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(list(QUERIES), padding=True, return_tensors="pt")
    task: Any = ours.task
    batch = pad(ours.tokenizer.encode(QUERIES), ours.tokenizer.pad_id)
    with torch.inference_mode():
        difference = (task.scores(ours.albert, batch)["scores"] - theirs(**inputs).logits).abs().max().item()
    same = torch.equal(batch.input_ids, inputs["input_ids"])
    if not same or difference > 1e-4:
        raise ConfigError(
            f"transformers disagrees: same ids {same}, largest difference {difference:.1e}; please report this"
        )
    return f"same token ids, largest difference of the scores {difference:.1e}"


def _write_report(
    config: DemoConfig,
    result: Evaluation,
    scores: dict[str, float],
    answers: Any,
    further: Sequence[Evaluation],
    agreement: str,
    seconds: float,
) -> None:
    metrics = read_metrics(config.out / "pretrained")
    report = Report(
        "litebert demo", f"From raw text to answers in {seconds:.0f} s on this machine, seed {config.seed}."
    )
    report.heading("Pre-training")
    report.text(
        "A tiny ALBERT (4 passes of one shared layer, hidden size 312) reads documentation text and learns to fill "
        "in hidden words and to tell whether two passages were swapped."
    )
    report.curves({"loss": metrics["loss"]}, "Loss of every step (faint) and its running mean.")
    report.heading("Fine-tuning")
    report.table(["method", "accuracy on unseen messages"], list(scores.items()))
    if scores[BAG_OF_WORDS] > result.metrics["accuracy"]:
        report.text(
            "Bag of words wins here: a few minutes with documentation teach a model very little English. "
            "It pays to pre-train on far more text, or to start from a model that somebody has."
        )
    report.confusion(
        result.labels,
        result.confusion,
        f"{result.examples} unseen messages: rows are true labels, columns predicted labels.",
    )
    report.heading("Answers")
    report.table(
        ["message", "answer", "probability"], [[text, answer.label, answer.probability] for text, answer in answers]
    )
    for evaluation in further:
        report.heading({"tag": "Names in messages", "answer": "Questions about orders"}[evaluation.task])
        metrics_text = ", ".join(f"{name} {value:.3f}" for name, value in evaluation.metrics.items())
        report.text(f"{metrics_text}, on {evaluation.examples} made-up ones that it was not trained on.")
        rows = [
            [judgement.text, judgement.answer, judgement.truth]
            for judgement in evaluation.judgements[: 3 * SHOWN_EXAMPLES]
        ]
        report.table(["text", "answer", "truth"], rows)
    report.heading("The same folder in transformers")
    report.text(agreement[0].upper() + agreement[1:] + ".")
    report.write(config.out / "report.html")
