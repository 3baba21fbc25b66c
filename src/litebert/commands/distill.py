"""Teach a smaller model to answer as a larger one does, from texts without labels.

Examples:
  litebert distill --teacher runs/mine --data texts.csv --out runs/half
  litebert distill --teacher runs/mine --data texts.csv --test test.csv --passes 3 --out runs/quarter
  litebert distill --teacher runs/mine --student runs/small --data texts.csv --out runs/distilled
  litebert distill --teacher runs/mine --data texts.csv --elastic --out runs/elastic
  litebert distill --teacher litebert-base-en --data text.txt --passes 6 --out runs/half
  litebert distill --from-bert BERT_FOLDER --data text.txt --out runs/albert

By default the student is the teacher with half of its passes: a shared layer needs no other weights for that, and they
learn to say after six what they said after twelve. With --elastic it keeps all of them and learns to answer after each
quarter, so that one model serves at any of these depths (predict --passes 6). --data are texts such as the model will
read, in the form of its task, the more the better; labels in it are not looked at. A teacher that was only pre-trained
reads plain text, and the student learns its hidden states.

The teacher may be a folder of transformers, a BERT or another encoder. A --student that reads other tokens learns its
answers about whole texts, or its vectors of them. --from-bert makes an ALBERT of a BERT: smaller tables of embeddings,
and one layer, at first the mean of the BERT's, for all passes, which then learns the states that the BERT ends with.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from litebert.checks import check_counts_and_seed
from litebert.compress.evaluation import TIMED_TOKENS
from litebert.console import make_console
from litebert.errors import ConfigError
from litebert.run_folder import INTERRUPTED, is_finished

SPEEDS = (1.5, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Config:
    teacher: str | None = None
    """Folder of the model to learn from, or the name of one; or of an encoder that transformers saved."""
    from_bert: Path | None = None
    """Folder of a BERT, RoBERTa or DistilBERT, which becomes an ALBERT."""
    data: Path
    """Texts to learn on: a table as for the teacher's task, or plain text, one text per line."""
    out: Path
    """Folder for the student, its checkpoints and its log."""
    student: str | None = None
    """Folder of the model to begin with, best of the teacher's vocabulary; by default the teacher itself."""
    passes: int | None = None
    """Of the student; by default half of the teacher's, or as many as --student has; all of them with --elastic, and
    with --from-bert as many as there are layers."""
    embedding_size: int | None = None
    """Of what was a BERT; by default 128, or as many as its states have if they are fewer."""
    elastic: bool = False
    """One student for several depths: it answers after each quarter of its passes."""
    valid: Path | None = None
    """Texts to choose the best epoch by, and when easy texts may stop; by default a tenth of --data, split off by
    seed. Best such as will be asked."""
    test: Path | None = None
    """Labelled examples on which teacher and student are measured, once."""
    columns: tuple[str, ...] = ()
    """What stands where, if not under its usual name: text=sentence label=class, or text=1 label=2."""
    epochs: int | None = None
    """Times to go through the texts; by default 3 to 20, more for fewer texts."""
    batch_size: int = 32
    """Texts per step."""
    learning_rate: float | None = None
    """The highest rate; by default 1e-4 for a hidden size of 768, more for smaller students in proportion, and five
    times that with --from-bert."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU and on a CPU with instructions for it, fp32 elsewhere."""
    save_every: str = "1epoch"
    """Between checkpoints: steps ("500"), minutes ("10min") or epochs ("1epoch")."""
    seed: int = 0
    """Decides the order of the texts, and which tenth of them the best epoch is chosen by."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    json: bool = False
    """Print JSON instead of a table."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""

    def __post_init__(self) -> None:
        if (self.teacher is None) == (self.from_bert is None):
            raise ConfigError("give one of --teacher, a model to learn from, and --from-bert, a BERT to make smaller")
        if self.from_bert is None and self.embedding_size is not None:
            raise ConfigError(
                f"embedding_size={self.embedding_size} is for --from-bert; others keep theirs: leave it out"
            )
        if self.from_bert is not None and self.student is not None:
            raise ConfigError("--from-bert makes its own student; leave --student out, or give the BERT as --teacher")
        given = [name for name in ("epochs", "passes") if getattr(self, name) is not None]
        check_counts_and_seed(self, "batch_size", *given)
        if self.learning_rate is not None and not 0 < self.learning_rate < 1:
            raise ConfigError(f"learning_rate={self.learning_rate} must lie between 0 and 1; 1e-4 is usual")


@dataclass(frozen=True)
class Result:
    """What a student came to. In lists the teacher's comes first, then the student's after each of its depths."""

    passes: list[int]
    milliseconds: list[float]
    """For one text of 64 tokens, the encoder alone, on this CPU."""
    parameters: tuple[int, int]
    distance: tuple[float, float]
    """From the teacher on the texts that were held out, before the first step and after the best epoch; the mean over
    all depths."""
    epoch: int
    """The best."""
    seconds: float
    metric: str = ""
    scores: list[float] | None = None
    exits: list[tuple[float, float, float]] = field(default_factory=list)
    """Of an elastic classifier: how sure, the mean number of passes, and the share of texts that get the answer that
    all passes give, on the texts that were held out."""
    score_before: float | None = None
    """Of what was a BERT, before the first step."""
    early: list[tuple[float, float]] = field(default_factory=list)
    """Where easy texts stop early on the test, at some speeds: the mean number of passes, and the score."""


def run(config: Config) -> int:
    from litebert.trainers.distillation import distill

    console = make_console()
    if is_finished(config.out, "distill", "a distilled model", config.resume, console):
        return 0
    found = distill(config, console)
    if found is None:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    _print(config, found)
    console.print(f"model in {config.out}{_drawn(config, found)}", highlight=False, markup=False)
    console.print(
        f"next: litebert quantize --model {config.out} --data {config.data} --out {config.out}-int8", highlight=False,
        markup=False,
    )  # fmt: skip
    return 0


def _drawn(config: Config, found: Result) -> str:
    """Draw the score against the speed, if there are several to choose from."""
    if found.scores is None or len(found.passes) < 3 or find_spec("matplotlib") is None:
        return ""
    from litebert.files import atomic_write
    from litebert.measure.plots import draw_trade

    passes, scores = found.passes[1:], found.scores[1:]
    lines = {
        "all texts alike": [
            (passes[-1] / count, score, f"{count}") for count, score in zip(passes, scores, strict=True)
        ]
    }
    if found.early:
        lines["easy texts stop early"] = [(passes[-1] / count, score, f"{count:.1f}") for count, score in found.early]
    caption = f"{found.metric} against speed, by passes"
    drawing = draw_trade(lines, caption, "times as fast as all passes (at each point: passes, the mean)", found.metric)
    atomic_write(config.out / "speed.svg", drawing)
    return f", drawing in {config.out / 'speed.svg'}"


def _print(config: Config, found: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    if config.json:
        print(json.dumps(asdict(found)))
        return
    table = Table()
    scored = () if found.scores is None else (found.metric, "of the teacher's")
    for name in ("", "passes", f"{TIMED_TOKENS} tokens, ms", "times as fast", *scored):
        table.add_column(name, justify="right" if name else "left")
    for number, (passes, times) in enumerate(zip(found.passes, found.milliseconds, strict=True)):
        who, ratio = "student" if number else "teacher", found.milliseconds[0] / times
        cells = [who, str(passes), f"{times:.1f}", f"{ratio:.1f}"]
        if found.scores is not None:
            first, score = found.scores[0], found.scores[number]
            cells += [f"{score:.4f}", f"{score / first:.1%}" if first > 0 else ""]
        table.add_row(*cells)
    Console().print(table)
    first, last = found.distance
    was, now = found.parameters
    print(
        "distance from the teacher (answers, and states or vectors as a share of their length, squared) "
        f"{first:.3f} before, "
        f"{last:.3f} after epoch {found.epoch}, the best"
    )
    if found.score_before is not None:
        print(f"{found.metric} before the first step {found.score_before:.4f}")
    if was != now:
        print(f"parameters {was:,} and {now:,}")
    for speed in SPEEDS if found.exits else ():
        known = next((one for one in found.exits if one[1] <= found.passes[-1] / speed), None)
        if known is not None:
            same = f"{known[2]:.1%} of the answers are those of all passes"
            print(f"--speed {speed}: {known[1]:.1f} passes on the average, {same}")
    for passes_taken, score in found.early:
        print(f"on the test {passes_taken:.1f} passes on the average, {found.metric} {score:.4f}")
