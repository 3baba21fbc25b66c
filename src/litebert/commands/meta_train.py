"""Meta-train a model to learn new classes from a few examples.

Examples:
  litebert meta-train --data intents.csv --out runs/meta
  litebert meta-train --data train.csv --valid valid.csv --algorithm anil --episodes 5-way 1-shot --out runs/meta
  litebert meta-train --data text.txt --out runs/meta

Training episodes are small tasks drawn from a table of many classes: a few classes, a few examples of each, and
queries. A class is used for training, for validation or for tests, never for two of these. From plain text it draws
episodes without labels: which word is masked in this sentence? The result is a model like any other, best for adapt.
"""

from __future__ import annotations

from litebert.console import make_console
from litebert.run_folder import INTERRUPTED, is_finished
from litebert.trainers.meta_train_config import MetaTrainConfig as Config

__all__ = ["Config", "run"]


def run(config: Config) -> int:
    from litebert.trainers.meta_training import meta_train

    console = make_console()
    if is_finished(config.out, "meta-train", "a meta-trained model", config.resume, console):
        return 0
    if meta_train(config, console) is None:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    console.print(f"model in {config.out}", highlight=False, markup=False)
    tested = config.out / "test.jsonl"
    evaluate = f"litebert evaluate --model {config.model} {config.out} --episodes {tested} --methods words prototypes"
    adapt = f"litebert adapt --model {config.out} --examples few.csv --out runs/adapted"
    line = f"{evaluate}, or {adapt}" if tested.exists() else adapt
    console.print(f"next: {line}", highlight=False, markup=False, soft_wrap=True)
    return 0
