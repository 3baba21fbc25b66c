"""Fine-tune the same weights on the same data with litebert and with transformers' Trainer, and compare.

  python bench/finetuning.py --model runs/pt --tasks tasks --only mrpc cola sts-b conll --seeds 0 1 2 --rates 2e-5 5e-5

All begin with files and end with a model and its scores on the development set, which they measure after every epoch:
epochs, batch, warm-up, decay, length and the metric are the same. Of several --rates everybody takes the one that is
best for it on a tenth of the training file, without which it learns for that; these runs are not timed, and --jobs of
them go side by side. Trainer groups by length and pads to the longest of a batch. On a CPU it comes twice, as it is
(fp32) and told to use bf16, as litebert does by itself where the CPU has instructions for it; on a GPU all use bf16.
They take turns, and imports and downloads are not counted. Prints a table.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from litebert.commands import finetune
from litebert.data.batches import IGNORE_INDEX
from litebert.tasks import TASKS
from litebert.trainers.finetuning import finetune as finetune_run


@dataclass(frozen=True)
class Set:
    """A data set: which task, which files, which metric decides."""

    task: Any
    train: str
    valid: str
    metric: str


SETS = {
    "mrpc": Set("classify", "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "accuracy"),
    "cola": Set("classify", "glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", "mcc"),
    "rte": Set("classify", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", "accuracy"),
    "sst-2": Set("classify", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "accuracy"),
    "sts-b": Set("regress", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", "pearson"),
    "banking77": Set("classify", "intents/banking77/train.csv", "intents/banking77/test.csv", "accuracy"),
    "conll": Set("tag", "ner/conll2003/eng.train", "ner/conll2003/eng.testa", "f1"),
}


def ours(one: Set, options: argparse.Namespace, seed: int, rate: float, out: Path) -> tuple[float, float]:
    """The score of the last epoch and the seconds it took."""
    began = time.perf_counter()
    config = finetune.Config(
        model=str(options.model), train=options.tasks / one.train, valid=options.tasks / one.valid, out=out,
        task=one.task, epochs=options.epochs, batch_size=options.batch_size, length=options.length,
        learning_rate=rate, patience=0, seed=seed, columns=(), device="auto",
    )  # fmt: skip
    from litebert.console import make_console

    finetune_run(config, make_console())
    seconds = time.perf_counter() - began
    from litebert.train.log import read_metrics

    return read_metrics(out)[f"validation_{one.metric}"].values[-1], seconds


def theirs(one: Set, options: argparse.Namespace, seed: int, rate: float, out: Path, bf16: bool) -> tuple[float, float]:
    """The same with transformers."""
    import transformers

    began = time.perf_counter()
    task_class: Any = TASKS[one.task]
    train, valid = task_class.read(options.tasks / one.train), task_class.read(options.tasks / one.valid)
    task = task_class.learn_from(train)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    words = one.task == "tag"
    labels = (
        {"num_labels": 1, "problem_type": "regression"} if one.task == "regress" else {"num_labels": len(_names(task))}
    )
    kind = transformers.AlbertForTokenClassification if words else transformers.AlbertForSequenceClassification
    transformers.set_seed(seed)
    model = kind.from_pretrained(options.model, **labels)
    encode = _tagged if words else _whole
    collator = transformers.DataCollatorForTokenClassification if words else transformers.DataCollatorWithPadding

    def measure(prediction: Any) -> dict[str, float]:
        return {"score": _score(task, one, valid, prediction.predictions, prediction.label_ids)}

    cuda = torch.cuda.is_available()
    arguments = transformers.TrainingArguments(
        output_dir=str(out), num_train_epochs=options.epochs, per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=128 if cuda else 32, learning_rate=rate, weight_decay=0.01, warmup_steps=0.1,
        lr_scheduler_type="linear", eval_strategy="epoch", save_strategy="no", logging_strategy="epoch", bf16=bf16,
        seed=seed, report_to=[], disable_tqdm=True, train_sampling_strategy="group_by_length", dataloader_num_workers=0,
        use_cpu=not cuda,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=arguments, data_collator=collator(tokenizer), compute_metrics=measure,
        train_dataset=encode(task, train, tokenizer, options.length),
        eval_dataset=encode(task, valid, tokenizer, options.length),
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    scores = [line["eval_score"] for line in trainer.state.log_history if "eval_score" in line]
    return scores[-1], time.perf_counter() - began


def _names(task: Any) -> Sequence[str]:
    return task.tags if hasattr(task, "tags") else task.labels


def _whole(task: Any, records: Sequence[Any], tokenizer: Any, length: int) -> list[dict[str, Any]]:
    paired = records[0].text_b is not None
    texts = [[record.text for record in records]] + ([[record.text_b for record in records]] if paired else [])
    encoded = tokenizer(*texts, truncation=True, max_length=length, return_token_type_ids=True)
    targets = task.targets(records) if hasattr(task, "targets") else [record.label for record in records]
    return [{**{name: encoded[name][i] for name in encoded}, "label": target} for i, target in enumerate(targets)]


def _tagged(task: Any, records: Sequence[Any], tokenizer: Any, length: int) -> list[dict[str, Any]]:
    """The first token of a word carries its tag."""
    words = [[record.text[start:end] for start, end in record.words] for record in records]
    encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=length, return_token_type_ids=True)
    rows = []
    for number, record in enumerate(records):
        tags, before, labels = _tags(task, record), None, []
        for word in encoded.word_ids(number):
            labels.append(IGNORE_INDEX if word is None or word == before else tags[word])
            before = word
        rows.append({**{name: encoded[name][number] for name in encoded}, "labels": labels})
    return rows


def _tags(task: Any, record: Any) -> list[int]:
    """The number of the tag of every word."""
    names = ["O"] * len(record.words)
    for span in record.spans:
        inside = [i for i, (start, end) in enumerate(record.words) if start >= span.start and end <= span.end]
        for i in inside:
            names[i] = f"{'B' if i == inside[0] else 'I'}-{span.label}"
    return [task.tags.index(name) for name in names]


def _score(task: Any, one: Set, valid: Sequence[Any], predictions: Any, labels: Any) -> float:
    if one.task == "regress":
        values = predictions.squeeze(-1)
        return float(np.corrcoef(values, labels)[0, 1]) if values.std() else 0.0  # the same answer for all
    if one.task == "tag":
        from litebert.tasks.crf import word_ranges

        right = both = 0
        for row, truth in zip(predictions, labels, strict=True):
            words = truth != IGNORE_INDEX
            given, true = (set(word_ranges([task.tags[n] for n in some[words]])) for some in (row.argmax(-1), truth))
            right, both = right + len(given & true), both + len(given) + len(true)
        return 2 * right / max(1, both)
    from sklearn import metrics

    measure = {"accuracy": metrics.accuracy_score, "mcc": metrics.matthews_corrcoef}[one.metric]
    return float(measure(labels, predictions.argmax(-1)))


def contenders() -> dict[str, Any]:
    found: dict[str, Any] = {"litebert": ours, "Trainer, bf16": partial(theirs, bf16=True)}
    return found if torch.cuda.is_available() else found | {"Trainer": partial(theirs, bf16=False)}


def best_rates(options: argparse.Namespace) -> dict[tuple[str, str], float]:
    """For each set and contender."""
    tries = list(product(options.only, contenders(), options.rates))
    if len(options.rates) == 1:
        return {(name, who): rate for name, who, rate in tries}
    for name in options.only:
        _hold_out(options.tasks / SETS[name].train, options.out / "tenth" / name)
    with get_context("spawn").Pool(options.jobs) as pool:
        scores = dict(zip(tries, pool.starmap(partial(_try, options), tries), strict=True))
    for (name, who, rate), score in scores.items():
        print(f"{name}, {who}, rate {rate:g}: {score:.4f} on a tenth of the training file", file=sys.stderr)
    return {
        (name, who): max(options.rates, key=lambda rate: scores[name, who, rate])
        for name, who in product(options.only, contenders())
    }


def _try(options: argparse.Namespace, name: str, who: str, rate: float) -> float:
    _be_quiet()
    folder, suffix = options.out.resolve() / "tenth", Path(SETS[name].train).suffix
    train, valid = (str((folder / name / part).with_suffix(suffix)) for part in ("train", "valid"))
    one = replace(SETS[name], train=train, valid=valid)
    return float(contenders()[who](one, options, 0, rate, folder / f"{name}, {who}, {rate}")[0])


def _hold_out(path: Path, folder: Path) -> None:
    """Every tenth row of a table, or sentence of a file of tags, for validation."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":  # whose rows may go over several lines
        rows = [[cell.replace("\n", " ") for cell in row] for row in csv.reader(io.StringIO(text))]
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(rows)
        text = table.getvalue()
    between, header = ("\n\n", "") if "conll" in str(path) else ("\n", text.partition("\n")[0] + "\n")
    parts = text[len(header) :].strip("\n").split(between)
    folder.mkdir(parents=True)
    for name, some in (("train", [part for i, part in enumerate(parts) if i % 10]), ("valid", parts[::10])):
        written = header + between.join(some) + "\n"
        (folder / name).with_suffix(path.suffix).write_text(written, encoding="utf-8")


def _be_quiet() -> None:
    import transformers

    warnings.simplefilter("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    transformers.logging.set_verbosity_error()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True, help="folder with glue/ and ner/")
    parser.add_argument("--only", nargs="+", default=["mrpc", "cola", "sts-b", "conll"], choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-5])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-finetuning"))
    options = parser.parse_args()
    _be_quiet()
    shutil.rmtree(options.out, ignore_errors=True)
    rates = best_rates(options)
    brief = argparse.Namespace(**{**vars(options), "epochs": 1})
    for who, run in contenders().items() if torch.cuda.is_available() else ():  # the first use of a GPU is slow
        run(SETS[options.only[0]], brief, 99, options.rates[0], options.out / f"warm-up of {who}")
    print("| set | metric | who | rate | score | seconds | litebert takes |\n|---|---|---|---|---|---|---|")
    for name in options.only:
        found: dict[str, list[tuple[float, float]]] = {who: [] for who in contenders()}
        for seed in options.seeds:
            for who, run in contenders().items():
                out = options.out / f"{name}, {who}, {seed}"
                found[who].append(run(SETS[name], options, seed, rates[name, who], out))
                score, seconds = found[who][-1]
                print(f"{name}, {who}, seed {seed}: {score:.4f} in {seconds:.1f} s", file=sys.stderr, flush=True)
        medians = {who: statistics.median(seconds for _, seconds in runs) for who, runs in found.items()}
        for who, runs in found.items():
            scores = [score for score, _ in runs]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            ratio = "" if who == "litebert" else f"{medians['litebert'] / medians[who]:.2f} of that"
            print(
                f"| {name} | {SETS[name].metric} | {who} | {rates[name, who]:g} "
                f"| {statistics.mean(scores):.4f} ± {spread:.4f} "
                f"| {medians[who]:.1f} | {ratio} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
