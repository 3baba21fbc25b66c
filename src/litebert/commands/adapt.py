"""Learn a classifier or a tagger from a handful of examples, in seconds.

Examples:
  litebert adapt --examples ten_per_class.csv --out runs/adapted
  litebert adapt --examples ten_per_class.csv --out runs/tuned --budget 600
  litebert adapt --model runs/adapted --examples more.csv --out runs/better
  litebert adapt --task tag --examples few.conll --out runs/tagger
  echo 'my card has not arrived' | litebert predict --model runs/adapted

The examples, a column of texts and one of labels, are read once by the model, which stays as it is; what tells them
apart is solved for. How well that works is measured on every example by what is solved without it. Where --budget has
time for it, the model is also tuned on half of the examples and asked about the others, and kept so if that is better.
An adapted model can be adapted again: examples are added to those it has, of old classes or new ones. For --task tag
the examples are sentences with marked spans; nothing is tuned, and what comes out is a whole model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.builtin import DEFAULT
from litebert.console import make_console, say
from litebert.errors import ConfigError
from litebert.run_folder import refuse_overwrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    from litebert.inference import Model


@dataclass(frozen=True)
class Config:
    examples: Path
    """Labelled texts, or pairs of them (text_a, text_b): CSV, TSV, JSONL or Parquet, a few of every class. For tag:
    CoNLL columns, or JSONL with spans."""
    out: Path
    """Folder for the examples and what was solved; it needs --model beside it."""
    task: Literal["classify", "tag"] = "classify"
    """What to learn: a class for each text, or spans in it."""
    model: str = DEFAULT
    """Model folder, or the name of one that is built in or on the hub; or an adapted one, which gets more examples."""
    unlabelled: Path | None = None
    """More texts of the kind, without labels, a line or row each: they say what is usual."""
    budget: float = 10.0
    """Seconds that it may take, about; reading the examples once is the least. On a CPU tuning takes minutes."""
    label_names: bool = True
    """Let the names of the classes count as examples where that helps."""
    columns: tuple[str, ...] = ()
    """Column names, if not the usual ones: text=sentence label=class; or column numbers: text=1 label=2."""
    skip_bad: bool = False
    """Leave out rows that cannot be read, and texts that have two labels, instead of stopping at the first."""
    json: bool = False
    """Print JSON instead of sentences."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""


def run(config: Config) -> None:
    import json

    from litebert.console import progress_bar
    from litebert.data.tables import TableOptions
    from litebert.data.texts import read_unlabelled
    from litebert.device import has_bfloat16, pick_device
    from litebert.fewshot import Adapted
    from litebert.loading import load
    from litebert.tasks import TASKS, Tag

    refuse_overwrite(config.out / "config.json", "a model")
    is_tag = config.task == Tag.name
    if is_tag and config.unlabelled is not None:
        raise ConfigError("--unlabelled says nothing of tags; leave it out")
    options = TableOptions.parse(config.columns, config.skip_bad)
    task: Any = TASKS[config.task]
    records = task.read(config.examples, options)
    unlabelled = read_unlabelled(config.unlabelled, config.columns, config.skip_bad) if config.unlabelled else []
    model, console = load(config.model).to(pick_device(config.device)), make_console()
    reader = model.base if isinstance(model, Adapted) else model
    reader.bf16 = has_bfloat16(model.device)  # twice as fast on a CPU too, and no worse
    with progress_bar(console, "reading", len(records) + len(unlabelled)) as bar:
        learn = partial(_tagger, config) if is_tag else partial(_classifier, config, unlabelled, bar)
        classifier, report, lines = learn(model, records, lambda count: bar.advance(bar.task_ids[0], count))
    classifier.save(config.out)
    if options.skipped:
        say(console, f"{len(options.skipped):,} rows left out, the first: {options.skipped[0]}")
    if config.json:
        print(json.dumps(report, ensure_ascii=False))
        return
    evaluate = f"litebert evaluate --model {config.out} --data {'test.conll' if is_tag else 'test.csv'}"
    text = '["one text", "another"]' if getattr(records[0], "text_b", None) is not None else "a new text"
    next_command = f"next: echo '{text}' | litebert predict --model {config.out}, or {evaluate}"
    say(console, *lines, f"saved in {config.out}", next_command)


def _classifier(
    config: Config, unlabelled: list[str], bar: Progress, model: Model, records: list[Any], advance: Any
) -> tuple[Model, dict[str, Any], Iterator[str]]:
    """The model, what speaks for it, and that in words."""
    from litebert.fewshot import adapt
    from litebert.fewshot.adapt import as_input
    from litebert.fewshot.summary import summarize

    def begin(title: str, steps: int) -> Callable[[], None]:
        if not bar.console.is_terminal:
            say(bar.console, title)
        task = bar.add_task(title, total=steps)
        return lambda: bar.advance(task)

    classifier = adapt(
        model,
        [as_input(record) for record in records],
        [record.label for record in records],
        budget_s=config.budget,
        unlabelled=unlabelled,
        label_names=None if config.label_names else False,
        skip_conflicts=config.skip_bad,
        places=[record.place for record in records],
        advance=advance,
        begin=begin,
    )
    evidence = classifier.evidence
    report = evidence.to_json() | {"margin": evidence.margin, "with_twice": evidence.projected_accuracy}
    return classifier, report, summarize(evidence)


def _tagger(
    config: Config, model: Model, records: list[Any], advance: Any
) -> tuple[Model, dict[str, Any], Iterator[str]]:
    """The same for spans."""
    from litebert.fewshot import Adapted
    from litebert.fewshot.summary import summarize_tagger
    from litebert.fewshot.tagger import adapt_tags

    if isinstance(model, Adapted):
        raise ConfigError(f"{config.model} tells classes already; give the --model that it was made from")
    classifier, evidence = adapt_tags(model, records, advance)
    return classifier, asdict(evidence), summarize_tagger(evidence)
