"""The guided tour: text to tokenizer to model to answers, offline, in a few minutes on two cores.

The text is the documentation inside the Python packages already on this machine; the tasks are sorting 360 support
messages into six queues, marking names in messages and answering questions about orders. With --lang zh the built-in
Chinese model fills hidden words and learns to sort 180 Chinese messages. Everything lands in --out, with a report to
look at.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.checks import check_counts_and_seed
from litebert.commands import evaluate, finetune, prepare, pretrain, tokenizer
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.files import atomic_write
from litebert.run_folder import INTERRUPTED, refuse_unwritable
from litebert.studies.demo import chinese as _demo_zh
from litebert.studies.demo.data import collect_prose, split_tickets, write_questions, write_tagged
from litebert.studies.demo.steps import COMMONEST, accuracies, ask, baselines, measured, say

if TYPE_CHECKING:
    from rich.console import Console

MARKER = ".litebert-demo"
STEPS = 10
OF_ENGLISH = ("prose_bytes", "vocab_size", "steps")
"""Settings of the tour that pre-trains."""
TAGGED = {"messages": 240, "messages-test": 60}
ASKED_ABOUT = {"orders": 160, "orders-test": 20}  # four questions about each
SHOWN = 3
WORDS = "bag of words (tf-idf, logistic regression)"
ASKED = (
    "i was charged twice this month, please refund one of them",
    "the parcel is a week late and tracking has not moved",
    "please add a dark theme to the editor",
)


@dataclass(frozen=True)
class Config:
    out: Path = Path("runs/demo")
    """Folder for everything the tour makes; a former tour there is replaced."""
    lang: Literal["en", "zh"] = "en"
    """In English from text to answers, or in Chinese with the built-in model."""
    prose_bytes: int = 3_000_000
    """For en: how much text to collect."""
    vocab_size: int = 4000
    """For en: tokens to learn."""
    steps: int = 400
    """For en: pre-training steps."""
    epochs: int = 25
    """Times to go through the labelled messages."""
    seed: int = 0
    """Decides everything random."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self, *OF_ENGLISH, "epochs")
        for name in OF_ENGLISH:
            if self.lang != "en" and getattr(self, name) != getattr(Config, name):
                raise ConfigError(f"{name} is for --lang en, and this is {self.lang}; leave it out")


def run(config: Config) -> int:
    console = make_console()
    began = time.perf_counter()
    _clear(config.out)
    tour = _demo_zh.tour if config.lang == "zh" else _tour
    classifier = tour(config, console, began)
    if classifier is None:
        return INTERRUPTED
    console.print(
        f"\n[bold]look at {config.out / 'report.html'}[/bold]  ({time.perf_counter() - began:.0f} s in all)",
        highlight=False,
    )
    asked = "我的包裹到哪里了" if config.lang == "zh" else "where is my order"
    console.print(f"next: echo '{asked}' | litebert predict --model {classifier}", highlight=False)
    return 0


def _tour(config: Config, console: Console, began: float) -> Path | None:
    """From text to answers in English; the classifier, or None when a stop was asked for."""
    paths = {name: config.out / name for name in ("tokenizer", "shards", "pretrained", "classifier")}

    say(console, 1, STEPS, "collect prose from the documentation of installed Python packages")
    corpus = config.out / "prose.txt"
    atomic_write(corpus, "\n\n".join(collect_prose(config.prose_bytes, config.seed)) + "\n")
    console.print(f"{corpus.stat().st_size / 1e6:.1f} MB in {corpus}", highlight=False)

    say(console, 2, STEPS, "train a tokenizer")
    tokenizer.run(
        tokenizer.Config(out=paths["tokenizer"], input=(corpus,), vocab_size=config.vocab_size, seed=config.seed)
    )
    say(console, 3, STEPS, "prepare shards")
    prepare.run(prepare.Config(input=(corpus,), tokenizer=paths["tokenizer"], out=paths["shards"]))

    say(console, 4, STEPS, "pre-train a tiny ALBERT: hidden words and sentence order")
    settings = pretrain.Config(
        data=paths["shards"], out=paths["pretrained"], preset="tiny", steps=config.steps, batch_size=32, length=64,
        learning_rate=1e-3, mask_rate=0.3, seed=config.seed, device="cpu",
    )  # fmt: skip
    if pretrain.run(settings):
        return None

    say(console, 5, STEPS, "fine-tune it on 240 labelled messages")
    train, test = split_tickets(config.out, config.lang, config.seed)
    taught = finetune.Config(
        model=str(paths["pretrained"]), train=train, out=paths["classifier"], epochs=config.epochs, batch_size=16,
        length=64, learning_rate=1e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    if finetune.run(taught):
        return None

    say(console, 6, STEPS, "evaluate on 120 messages it has not seen")
    result = measured(paths["classifier"], test)
    commonest, words = baselines(train, test)
    ours = result.metrics["accuracy"]
    scores = {COMMONEST: commonest, WORDS: words, "litebert, pre-trained and fine-tuned just now": ours}
    console.print(accuracies(scores))

    say(console, 7, STEPS, "ask it")
    answers = ask(console, paths["classifier"], ASKED)

    say(console, 8, STEPS, "teach it to mark names, with 240 made-up messages")
    for name, count in TAGGED.items():
        write_tagged(config.out / f"{name}.conll", count, f"{config.seed} {name}")
    marked = _teach(config, "tag", "messages", ".conll")
    say(console, 9, STEPS, "teach it to answer questions, with 640 made-up ones; some have no answer")
    for name, count in ASKED_ABOUT.items():
        write_questions(config.out / f"{name}.json", count, f"{config.seed} {name}")
    answered = _teach(config, "answer", "orders", ".json")
    if marked is None or answered is None:
        return None
    for found in (marked, answered):
        console.print(_examples(found))

    say(console, 10, STEPS, "load the classifier's folder in transformers")
    agreement = _compare_with_transformers(paths["classifier"])
    console.print(agreement, highlight=False)

    _write_report(config, result, scores, answers, (marked, answered), agreement, time.perf_counter() - began)
    return paths["classifier"]


def _teach(config: Config, task: Any, name: str, suffix: str) -> evaluate.Evaluation | None:
    """Fine-tune the pre-trained model and measure it; None when a stop was asked for."""
    out, train, test = config.out / task, config.out / f"{name}{suffix}", config.out / f"{name}-test{suffix}"
    settings = finetune.Config(
        model=str(config.out / "pretrained"), train=train, out=out, task=task, epochs=min(10, config.epochs),
        batch_size=16, learning_rate=5e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    return None if finetune.run(settings) else measured(out, test)


def _examples(found: evaluate.Evaluation) -> Any:
    """Some answers beside the truth."""
    from rich.table import Table

    told = ", ".join(f"{name} {value:.3f}" for name, value in found.metrics.items() if name in ("f1", "exact"))
    table = Table(title=f"{found.task}: {told} on {found.examples} that it has not seen", title_justify="left")
    for name in ("text", "answer", "truth"):
        table.add_column(name, overflow="fold")
    for one in found.judgements[:SHOWN]:
        table.add_row(one.text, one.answer, one.truth)
    return table


def _clear(out: Path) -> None:
    """Replace a former tour, and nothing else."""
    refuse_unwritable(out)
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise ConfigError(f"{out} holds something that this demo did not make; choose another --out")
        shutil.rmtree(out)
    atomic_write(out / MARKER, "made by litebert demo\n")


def _compare_with_transformers(folder: Path) -> str:
    """The largest difference between our scores and transformers' for the same folder and texts."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging
    except ImportError:
        return "transformers is not installed, so this step is skipped; pip install 'litebert[peers]' to see it"
    import torch

    from litebert.data.batches import pad
    from litebert.loading import load

    logging.disable_progress_bar()
    ours = load(folder)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(list(ASKED), padding=True, return_tensors="pt")
    task: Any = ours.task
    batch = pad(ours.tokenizer.encode(ASKED), ours.tokenizer.pad_id)
    with torch.inference_mode():
        difference = (task.scores(ours.albert, batch)["scores"] - theirs(**inputs).logits).abs().max().item()
    same = torch.equal(batch.input_ids, inputs["input_ids"])
    if not same or difference > 1e-4:
        raise ConfigError(
            f"transformers disagrees: same ids {same}, largest difference {difference:.1e}; please report this"
        )
    return f"same token ids, largest difference of the scores {difference:.1e}"


def _write_report(
    config: Config,
    result: evaluate.Evaluation,
    scores: dict[str, float],
    answers: Any,
    further: Sequence[evaluate.Evaluation],
    agreement: str,
    seconds: float,
) -> None:
    from litebert.measure.html_report import Report
    from litebert.train.log import read_metrics

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
    if scores[WORDS] > result.metrics["accuracy"]:
        report.text(
            "Bag of words wins here: a few minutes with documentation teach a model very little English. "
            "It pays to pre-train on far more text, or to start from a model that somebody has."
        )
    report.confusion(
        result.labels,
        result.confusion,
        f"{result.examples} unseen messages: rows are the truth, columns the model's answers.",
    )
    report.heading("Answers")
    report.table(
        ["message", "answer", "probability"], [[text, answer.label, answer.probability] for text, answer in answers]
    )
    for found in further:
        report.heading({"tag": "Names in messages", "answer": "Questions about orders"}[found.task])
        told = ", ".join(f"{name} {value:.3f}" for name, value in found.metrics.items())
        report.text(f"{told}, on {found.examples} made-up ones that it has not seen.")
        rows = [[one.text, one.answer, one.truth] for one in found.judgements[: 3 * SHOWN]]
        report.table(["text", "answer", "truth"], rows)
    report.heading("The same folder in transformers")
    report.text(agreement[0].upper() + agreement[1:] + ".")
    report.write(config.out / "report.html")
