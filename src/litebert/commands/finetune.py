"""Fine-tune a model on labelled examples of a task.

Examples:
  litebert finetune --train train.csv --out runs/finetune
  litebert finetune --task classify --model runs/pretrain --train train.csv --valid valid.csv --out runs/finetune
  litebert finetune --task tag --model runs/pretrain --train train.conll --out runs/tagger
  litebert finetune --task similarity --train sts.tsv --out runs/similar

classify, multilabel and regress read tables (CSV, TSV, JSON lines, Parquet) with `text`, or `text_a` and `text_b`, and
`label`; tag reads CoNLL columns or JSON with spans, answer SQuAD's JSON, choose RACE's, DREAM's or C3's; similarity
reads pairs with scores or labels, triples, NLI or plain sentences; translate tables with `source` and `target`, or
train.en with train.de beside it. docs/tasks.md shows each.
"""

from __future__ import annotations

import shlex

from litebert.console import make_console
from litebert.run_folder import INTERRUPTED, is_finished
from litebert.trainers.finetune_config import FinetuneConfig as Config

__all__ = ["Config", "run"]


def run(config: Config) -> int:
    from litebert.trainers.finetuning import finetune
    from litebert.trainers.sweep import finetune_seeds, search_settings

    console = make_console()
    if is_finished(config.out, "finetune", "a fine-tuned model", config.resume, console):
        return 0
    train = search_settings if config.search else finetune_seeds if config.seeds > 1 else finetune
    if train(config, console) is None:
        console.print("stopped; to go on, run the same command with --resume", highlight=False, markup=False)
        return INTERRUPTED
    console.print(f"model in {config.out}", highlight=False, markup=False)
    data = config.test or config.valid or "test.csv"
    columns = f" --columns {' '.join(map(shlex.quote, config.columns))}" if config.columns else ""
    console.print(f"next: litebert evaluate --model {config.out} --data {data}{columns}", highlight=False, markup=False)
    return 0
