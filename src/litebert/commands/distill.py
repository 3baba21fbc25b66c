"""Distill a model into a smaller one, on texts without labels.

Examples:
  litebert distill --teacher runs/mine --data texts.csv --out runs/half
  litebert distill --teacher runs/mine --data texts.csv --test test.csv --passes 3 --out runs/quarter
  litebert distill --teacher runs/mine --student runs/small --data texts.csv --out runs/distilled
  litebert distill --teacher runs/mine --data texts.csv --elastic --out runs/elastic
  litebert distill --teacher litebert-base-en --data text.txt --passes 6 --out runs/half
  litebert distill --from-bert BERT_FOLDER --data text.txt --out runs/albert

By default the student is the teacher with half of its passes: a shared layer needs no other weights for that. With
--elastic it keeps all passes and learns to answer after each quarter of them, so that one model serves at several
depths (predict --passes 6). --data are texts like those that the model will read, in the format of its task, the more
the better; labels are ignored. A teacher that was only pre-trained reads plain text, and the student learns its hidden
states.

The teacher may be a BERT or another encoder saved by transformers. A --student with another tokenizer learns the
teacher's outputs for whole texts: answers, or sentence vectors. --from-bert converts a BERT into an ALBERT: factorised
embeddings, and one shared layer, initialised with the mean of the BERT's layers, that learns the BERT's final states.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from litebert.compress.evaluation import TIMED_TOKENS
from litebert.console import make_console
from litebert.run_folder import INTERRUPTED, is_finished
from litebert.trainers.distill_config import SPEEDS
from litebert.trainers.distill_config import DistillConfig as Config

if TYPE_CHECKING:
    from litebert.trainers.distillation import DistillationResult

__all__ = ["Config", "run"]


def run(config: Config) -> int:
    from litebert.trainers.distillation import distill

    console = make_console()
    if is_finished(config.out, "distill", "a distilled model", config.resume, console):
        return 0
    result = distill(config, console)
    if result is None:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    _print(config, result)
    console.print(f"model in {config.out}{_drawn(config, result)}", highlight=False, markup=False)
    console.print(
        f"next: litebert quantize --model {config.out} --data {config.data} --out {config.out}-int8", highlight=False,
        markup=False,
    )  # fmt: skip
    return 0


def _drawn(config: Config, result: DistillationResult) -> str:
    """Draw the score against the speed, if there are several to choose from."""
    if result.scores is None or len(result.passes) < 3 or find_spec("matplotlib") is None:
        return ""
    from litebert.files import atomic_write
    from litebert.measure.plots import draw_tradeoff

    passes, scores = result.passes[1:], result.scores[1:]
    lines = {
        "all texts alike": [
            (passes[-1] / count, score, f"{count}") for count, score in zip(passes, scores, strict=True)
        ]
    }
    if result.early:
        lines["easy texts stop early"] = [(passes[-1] / count, score, f"{count:.1f}") for count, score in result.early]
    caption = f"{result.metric} against speed, by passes"
    drawing = draw_tradeoff(
        lines, caption, "times as fast as all passes (at each point: passes, the mean)", result.metric
    )
    atomic_write(config.out / "speed.svg", drawing)
    return f", drawing in {config.out / 'speed.svg'}"


def _print(config: Config, result: DistillationResult) -> None:
    from rich.console import Console
    from rich.table import Table

    if config.json:
        print(json.dumps(asdict(result)))
        return
    table = Table()
    scored = () if result.scores is None else (result.metric, "of the teacher's")
    for name in ("", "passes", f"{TIMED_TOKENS} tokens, ms", "times as fast", *scored):
        table.add_column(name, justify="right" if name else "left")
    for number, (passes, times) in enumerate(zip(result.passes, result.milliseconds, strict=True)):
        who, ratio = "student" if number else "teacher", result.milliseconds[0] / times
        cells = [who, str(passes), f"{times:.1f}", f"{ratio:.1f}"]
        if result.scores is not None:
            first, score = result.scores[0], result.scores[number]
            cells += [f"{score:.4f}", f"{score / first:.1%}" if first > 0 else ""]
        table.add_row(*cells)
    Console().print(table)
    first, last = result.distance
    was, now = result.parameters
    print(
        "distance from the teacher (answers, and states or vectors as a share of their length, squared) "
        f"{first:.3f} before, "
        f"{last:.3f} after epoch {result.epoch}, the best"
    )
    if result.score_before is not None:
        print(f"{result.metric} before the first step {result.score_before:.4f}")
    if was != now:
        print(f"parameters {was:,} and {now:,}")
    for speed in SPEEDS if result.exits else ():
        known = next((one for one in result.exits if one[1] <= result.passes[-1] / speed), None)
        if known is not None:
            same = f"{known[2]:.1%} of the answers are those of all passes"
            print(f"--speed {speed}: {known[1]:.1f} passes on average, {same}")
    for passes_taken, score in result.early:
        print(f"on the test {passes_taken:.1f} passes on average, {result.metric} {score:.4f}")
