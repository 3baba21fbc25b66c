"""The guided tour: text to tokenizer to model to answers, offline, in a few minutes on two cores.

The text is the documentation inside the Python packages already on this machine; the tasks are sorting 360 support
messages into six queues, marking names in messages and answering questions about orders. Everything lands in --out,
with a report to look at.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litebert.errors import ConfigError
from litebert.files import atomic_write
from litebert.recipes import evaluate, finetune, prepare, pretrain, tokenizer
from litebert.recipes._demo_data import collect_prose, split_tickets, write_questions, write_tagged
from litebert.recipes._shared import INTERRUPTED, check_numbers, make_console, refuse_unwritable

if TYPE_CHECKING:
    from rich.console import Console

MARKER = ".litebert-demo"
TAGGED = {"messages": 240, "messages-test": 60}
ASKED_ABOUT = {"orders": 160, "orders-test": 20}  # four questions about each
SHOWN = 3
ASKED = (
    "i was charged twice this month, please refund one of them",
    "the parcel is a week late and tracking has not moved",
    "please add a dark theme to the editor",
)


@dataclass(frozen=True)
class Config:
    out: Path = Path("runs/demo")
    """Folder for everything the tour makes; a former tour there is replaced."""
    prose_bytes: int = 3_000_000
    """How much text to collect."""
    vocab_size: int = 4000
    """Tokens to learn."""
    steps: int = 400
    """Pre-training steps."""
    epochs: int = 25
    """Times to go through the labelled messages."""
    seed: int = 0
    """Decides everything random."""

    def __post_init__(self) -> None:
        check_numbers(self, "prose_bytes", "vocab_size", "steps", "epochs")


def run(config: Config) -> int:
    console = make_console()
    began = time.perf_counter()
    _clear(config.out)
    paths = {name: config.out / name for name in ("tokenizer", "shards", "pretrained", "classifier")}

    _say(console, 1, "collect prose from the documentation of installed Python packages")
    corpus = config.out / "prose.txt"
    atomic_write(corpus, "\n\n".join(collect_prose(config.prose_bytes, config.seed)) + "\n")
    console.print(f"{corpus.stat().st_size / 1e6:.1f} MB in {corpus}", highlight=False)

    _say(console, 2, "train a tokenizer")
    tokenizer.run(
        tokenizer.Config(out=paths["tokenizer"], input=(corpus,), vocab_size=config.vocab_size, seed=config.seed)
    )
    _say(console, 3, "prepare shards")
    prepare.run(prepare.Config(input=(corpus,), tokenizer=paths["tokenizer"], out=paths["shards"]))

    _say(console, 4, "pre-train a tiny ALBERT: hidden words and sentence order")
    settings = pretrain.Config(
        data=paths["shards"], out=paths["pretrained"], preset="tiny", steps=config.steps, batch_size=32, length=64,
        learning_rate=1e-3, mask_rate=0.3, seed=config.seed, device="cpu",
    )  # fmt: skip
    if pretrain.run(settings):
        return INTERRUPTED

    _say(console, 5, "fine-tune it on 240 labelled messages")
    train, test = split_tickets(config.out, config.seed)
    taught = finetune.Config(
        model=str(paths["pretrained"]), train=train, out=paths["classifier"], epochs=config.epochs, batch_size=16,
        length=64, learning_rate=1e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    if finetune.run(taught):
        return INTERRUPTED

    _say(console, 6, "evaluate on 120 messages it has not seen")
    result = _evaluate(paths["classifier"], test)
    scores = _scores(train, test, result.metrics["accuracy"])
    console.print(_table(scores))

    _say(console, 7, "ask it")
    answers = _ask(paths["classifier"])
    for text, answer in answers:
        console.print(f"{text!r}  →  [bold]{answer.label}[/bold] ({answer.probability:.0%})", highlight=False)

    _say(console, 8, "teach it to mark names, with 240 made-up messages")
    for name, count in TAGGED.items():
        write_tagged(config.out / f"{name}.conll", count, f"{config.seed} {name}")
    marked = _teach(config, "tag", "messages", ".conll")
    _say(console, 9, "teach it to answer questions, with 640 made-up ones; some have no answer")
    for name, count in ASKED_ABOUT.items():
        write_questions(config.out / f"{name}.json", count, f"{config.seed} {name}")
    answered = _teach(config, "answer", "orders", ".json")
    if marked is None or answered is None:
        return INTERRUPTED
    for found in (marked, answered):
        console.print(_examples(found))

    _say(console, 10, "load the classifier's folder in transformers")
    agreement = _compare_with_transformers(paths["classifier"])
    console.print(agreement, highlight=False)

    _write_report(config, result, scores, answers, (marked, answered), agreement, time.perf_counter() - began)
    console.print(
        f"\n[bold]look at {config.out / 'report.html'}[/bold]  ({time.perf_counter() - began:.0f} s in all)",
        highlight=False,
    )
    console.print(f"next: echo 'where is my order' | litebert predict --model {paths['classifier']}", highlight=False)
    return 0


def _teach(config: Config, task: Any, name: str, suffix: str) -> evaluate.Evaluation | None:
    """Fine-tune the pre-trained model and measure it; None when a stop was asked for."""
    out, train, test = config.out / task, config.out / f"{name}{suffix}", config.out / f"{name}-test{suffix}"
    settings = finetune.Config(
        model=str(config.out / "pretrained"), train=train, out=out, task=task, epochs=min(10, config.epochs),
        batch_size=16, learning_rate=5e-4, seed=config.seed, device="cpu",
    )  # fmt: skip
    return None if finetune.run(settings) else _evaluate(out, test)


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


def _evaluate(model: Path, data: Path) -> evaluate.Evaluation:
    return evaluate.evaluate(evaluate.Config(model=(str(model),), data=(data,), device="cpu"), str(model), data)


def _say(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}/10[/bold cyan] [bold]{text}[/bold]")


def _clear(out: Path) -> None:
    """Replace a former tour, and nothing else."""
    refuse_unwritable(out)
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise ConfigError(f"{out} holds something that this demo did not make; choose another --out")
        shutil.rmtree(out)
    atomic_write(out / MARKER, "made by litebert demo\n")


def _scores(train: Path, test: Path, ours: float) -> dict[str, float]:
    from litebert.measure.baselines import bag_of_words, majority
    from litebert.tasks import Classify

    seen, unseen = Classify.read(train), Classify.read(test)
    labels, truth = [str(x.label) for x in seen], [str(x.label) for x in unseen]
    return {
        "always the commonest class": majority(labels, truth),
        "bag of words (tf-idf, logistic regression)": bag_of_words(
            [x.text for x in seen], labels, [x.text for x in unseen], truth
        ),
        "litebert, pre-trained and fine-tuned just now": ours,
    }


def _table(scores: dict[str, float]) -> Any:
    from rich.table import Table

    table = Table()
    table.add_column("method")
    table.add_column("accuracy", justify="right")
    best = max(scores.values())
    for name, value in scores.items():
        table.add_row(name, f"[bold]{value:.3f}[/bold]" if value == best else f"{value:.3f}")
    return table


def _ask(folder: Path) -> list[tuple[str, Any]]:
    from litebert.predict import load

    return list(zip(ASKED, load(folder).predict(list(ASKED)), strict=True))


def _compare_with_transformers(folder: Path) -> str:
    """The largest difference between our scores and transformers' for the same folder and texts."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging
    except ImportError:
        return "transformers is not installed, so this step is skipped; pip install 'litebert[peers]' to see it"
    import torch

    from litebert.data.batches import pad
    from litebert.predict import load

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
    from litebert.measure.report import Report
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
    if scores["bag of words (tf-idf, logistic regression)"] > result.metrics["accuracy"]:
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
