"""Teach a model a task from a file of examples.

Example:
  litebert finetune --task classify --model runs/pretrain --train train.csv --valid valid.csv --out runs/finetune

train.csv has a header with the columns `text` (or `text_a` and `text_b`) and `label`. TSV, JSONL and Parquet work too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from litebert.errors import ConfigError, DataError, require_extra
from litebert.files import read_json, sha256_of, write_json
from litebert.recipes._shared import INTERRUPTED, check_numbers, make_console, refuse_overwrite, write_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from litebert.predict import Model
    from litebert.tasks import TrainableTask
    from litebert.train.loop import Step


@dataclass(frozen=True)
class Config:
    model: str
    """Model folder, or a name on the hub."""
    train: Path
    """Labelled examples to learn from."""
    out: Path
    """Folder for the taught model, its checkpoints and its log."""
    task: Literal["classify"] = "classify"
    """What to learn."""
    valid: Path | None = None
    """Labelled examples to choose the best epoch by; by default a tenth of the training examples, split off by seed."""
    epochs: int = 10
    """Times to go through the examples."""
    batch_size: int = 16
    """Examples per step."""
    length: int = 128
    """Longest text in tokens; longer ones are cut."""
    learning_rate: float | None = None
    """The highest rate; by default 2e-5 for a hidden size of 768, more for smaller models in proportion."""
    seed: int = 0
    """Decides the new head, the split and the order of the examples."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""

    def __post_init__(self) -> None:
        check_numbers(self, "epochs", "batch_size")


def run(config: Config) -> int:
    import torch

    from litebert.data.batches import collate, epoch_batch
    from litebert.model import Albert
    from litebert.predict import Model, load
    from litebert.tasks import TASKS
    from litebert.train.checkpointing import Checkpoints
    from litebert.train.log import RunLog
    from litebert.train.loop import train
    from litebert.train.optimizers import adamw, warmup_linear
    from litebert.train.runtime import pick_device

    console = make_console()
    refuse_overwrite(config.out / "finished.json", "a fine-tuned model")
    if not config.resume:
        refuse_overwrite(config.out / "checkpoints" / "latest", "an unfinished run, which --resume continues")
        refuse_overwrite(config.out / "config.json", "a finished model")
    require_extra("sklearn.metrics", "train")  # at the start, not after the first epoch
    device = pick_device(config.device)
    task_class: type[TrainableTask[Any, Any]] = TASKS[config.task]  # type: ignore[assignment]
    examples = task_class.read(config.train)
    try:
        task = task_class.learn_from(examples)
    except DataError as error:
        raise DataError(f"{config.train}: {error}") from error
    if config.valid is None:
        examples, held_out = _split(examples, task.targets(examples), config)
    else:
        held_out = task_class.read(config.valid)
    targets = task.targets(examples)
    task.targets(held_out)  # a label that training has not seen is found before training, not after

    start_from = load(config.model)
    if config.length > start_from.config.max_position_embeddings:
        limit = start_from.config.max_position_embeddings
        raise ConfigError(f"length={config.length} is over the model's {limit}; use {limit} or less")
    torch.manual_seed(config.seed)
    albert = Albert(start_from.config, {task.head_name: task.head(start_from.config)})
    albert.encoder = start_from.encoder
    model = Model(albert.to(device), start_from.tokenizer, task, config.length)
    encodings = task.encode(examples, model.tokenizer, config.length)

    steps = config.epochs * -(-len(examples) // config.batch_size)
    peak = config.learning_rate if config.learning_rate is not None else 2e-5 * 768 / model.config.hidden_size
    rate = warmup_linear(peak, steps)
    optimizer = adamw(albert, weight_decay=0.01)
    checkpoints = Checkpoints(config.out / "checkpoints", {"model": albert, "optimizer": optimizer}, background=False)
    names = ("model", "train", "valid", "task", "epochs", "batch_size", "length", "learning_rate", "seed")
    decisive = {name: str(getattr(config, name)) for name in names}
    decisive |= {f"content of {path}": sha256_of(path) for path in (config.train, config.valid) if path is not None}
    start = checkpoints.load_latest(decisive) if config.resume else 0
    write_run(config.out, "finetune", config)
    console.print(
        f"{config.task}: {len(examples):,} examples to learn from, {len(held_out):,} to choose by, {steps:,} steps "
        f"on {device}" + (f", from step {start}" if start else ""),
        highlight=False,
    )

    def batch(step: int) -> list[tuple[Any, torch.Tensor]]:
        chosen = epoch_batch(len(examples), config.batch_size, config.seed, step)
        text = collate([encodings[i] for i in chosen], model.tokenizer.pad_id)
        return [(text.to(device), targets[chosen].to(device))]

    choose = _keep_best(model, task, held_out, config.out, steps // config.epochs)

    def save(step: Step) -> None:
        if step.stopping or step.done % (steps // config.epochs) == 0:
            checkpoints.save(step.done, decisive)

    with RunLog(config.out, console, "finetune", start=start) as log:
        finished = train(
            albert,
            lambda pair: {"loss": task.loss(task.scores(albert, pair[0]), pair[1])},
            batch,
            optimizer,
            rate,
            steps=steps,
            start=start,
            seed=config.seed,
            hooks=[log, choose, save],
        )
    if not finished:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    best = read_json(config.out / "best.json")
    write_json(config.out / "finished.json", best)
    console.print(
        f"best epoch {best['epoch']}: "
        + ", ".join(f"{k} {v:.3f}" for k, v in best["metrics"].items())
        + f" on {len(held_out)} held-out examples",
        highlight=False,
    )
    console.print(f"model in {config.out}", highlight=False, markup=False)
    console.print(f"next: litebert evaluate --model {config.out} --data test.csv", highlight=False, markup=False)
    return 0


def _split(examples: list[Any], targets: Tensor, config: Config) -> tuple[list[Any], list[Any]]:
    """Split a tenth of every class off to choose by; a class of fewer than ten keeps all its examples for learning."""
    import numpy as np

    if len(examples) < 3:
        raise DataError(f"{config.train}: {len(examples)} examples are too few to split; give more, or a --valid file")
    order = np.random.default_rng(config.seed).permutation(len(examples))
    held_out: set[int] = set()
    for target in targets.unique():
        of_class = [int(i) for i in order if targets[i] == target]
        held_out.update(of_class[: len(of_class) // 10])
    if not held_out:  # only small classes: the largest can spare one
        largest = targets.mode().values
        held_out.add(next(int(i) for i in order if targets[i] == largest))
    return [examples[i] for i in order if i not in held_out], [examples[i] for i in order if i in held_out]


def _keep_best(
    model: Model, task: TrainableTask[Any, Any], held_out: list[Any], out: Path, epoch_steps: int
) -> Callable[[Step], None]:
    """A hook that evaluates after every epoch and saves the model when it is the best so far."""

    def hook(step: Step) -> None:
        if step.done % epoch_steps:
            return
        metrics = task.metrics(held_out, model.answer_records(held_out))
        score = next(iter(metrics.values()))
        best = read_json(out / "best.json") if (out / "best.json").is_file() else None
        if best is None or score > next(iter(best["metrics"].values())):
            model.save(out)
            write_json(out / "best.json", {"epoch": step.done // epoch_steps, "metrics": metrics})

    return hook
