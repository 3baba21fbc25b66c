"""Similarity and search: what is learned, and how fast, beside sentence-transformers with the same weights and data.

  python bench/similarity.py encode --tasks tasks
  python bench/similarity.py train --tasks tasks --epochs 1 --rows 640
  python bench/similarity.py sts --tasks tasks --epochs 4
  python bench/similarity.py unlabelled --tasks tasks --epochs 1
  python bench/similarity.py chinese --tasks tasks --epochs 3
  python bench/similarity.py index --vectors 1000000 --size 768

encode: real sentences to vectors, in turns. train: the same loss, batch and rate, seconds from the model to its score
on a quarter as many pairs (litebert scores in float32, by the epoch; the other in what it learns in).
sts: STS-B, after the SNLI pairs that are there, chosen by the development pairs, the test pairs once; unlabelled: the
same without any label. chinese: LCQMC, learned from its development pairs, beside tf-idf of characters. index: made-up
vectors, memory and milliseconds. Prints tables.
"""

from __future__ import annotations

import argparse
import csv
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import litebert
from litebert.commands import finetune
from litebert.console import make_console
from litebert.model.sentence_head import unit
from litebert.search.index import Index
from litebert.tasks import Similarity
from litebert.tasks.similarity import best_threshold
from litebert.tasks.similarity_files import NLI, SimilarInput
from litebert.trainers.finetuning import finetune as finetune_run


def pairs_of(path: Path, columns: tuple[int, int, int], skip: int = 0) -> list[SimilarInput]:
    """First text, second text and label, by their places."""
    lines = path.read_text(encoding="utf-8").splitlines()[skip:]
    cells = [line.split("\t") for line in lines]
    first, second, label = columns
    return [SimilarInput(row[first], row[second], float(row[label])) for row in cells if len(row) > max(columns)]


def sts(tasks: Path, part: str) -> list[SimilarInput]:
    folder = tasks / "glue" / "STS-B"
    return pairs_of(folder / "sts-test.tsv", (5, 6, 4)) if part == "test" else Similarity.read(folder / f"{part}.tsv")


def drawn(records: list[SimilarInput], count: int | None, seed: int = 0) -> list[SimilarInput]:
    """Some of them by chance, or all: the files stand in order of genre and score."""
    if count is None or count >= len(records):
        return records
    return [records[place] for place in np.random.default_rng(seed).permutation(len(records))[:count]]


def write(path: Path, records: list[SimilarInput], name: Callable[[Any], Any] = lambda label: label) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text_a", "text_b", "label"])
        rows.writerows([record.text, record.text_b, name(record.label)] for record in records)
    return path


def ours(options: argparse.Namespace, out: Path, model: str, train: Path, **settings: Any) -> dict[str, float]:
    """What a run reaches on its test, or on its validation pairs."""
    given = {"epochs": options.epochs, "batch_size": options.batch_size, "seed": options.seed, **settings}
    if options.rate is not None:
        given["learning_rate"] = options.rate
    config = finetune.Config(task="similarity", model=model, train=train, out=out, **given)
    result = finetune_run(config, make_console())
    assert result is not None
    return result.test or result.metrics


def encode(options: argparse.Namespace) -> None:
    """In turns; sentence-transformers by its backends too, where its extras `onnx` and `openvino` are installed."""
    from sentence_transformers import SentenceTransformer

    texts = [text for record in sts(options.tasks, "dev") for text in record.texts][: options.rows]
    folder = options.out / "model"
    litebert.load(options.model).save(folder)
    loaded = {f"litebert, {kind}": litebert.load(folder, engine=kind) for kind in ("torch", "bf16", "int8")}
    contenders: dict[str, Callable[[], Any]] = {name: partial(model.embed, texts) for name, model in loaded.items()}
    theirs = SentenceTransformer(str(folder), device="cpu")

    def of_peer(bf16: bool) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):  # its WordWeights take no model of bfloat16
            return theirs.encode(texts, batch_size=32, show_progress_bar=False)

    contenders |= {
        "sentence-transformers": lambda: of_peer(False),
        "sentence-transformers, bf16": lambda: of_peer(True),
    } | {
        f"sentence-transformers, {name}": (lambda model=model: model.encode(texts, show_progress_bar=False))
        for name, model in by_backends(folder, texts, options.out).items()
    }
    truth = unit(contenders["litebert, torch"]())
    for call in contenders.values():
        call()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, call in contenders.items():
            began, worked = time.perf_counter(), time.process_time()
            call()
            found[name].append((time.perf_counter() - began, time.process_time() - worked))
    print("| who | texts/s | texts per CPU second | least cosine with float32 |\n|---|---|---|---|")
    for name, runs in found.items():
        least = (unit(np.asarray(contenders[name](), dtype=np.float32)) * truth).sum(1).min()
        speeds = [len(texts) / statistics.median(run[which] for run in runs) for which in range(2)]
        print(f"| {name} | {speeds[0]:.1f} | {speeds[1]:.1f} | {least:.5f} |", flush=True)


def by_backends(folder: Path, texts: list[str], out: Path) -> dict[str, Any]:
    """What ONNX Runtime and OpenVINO compute for it, as it stands and in eight bits as its manual says; OpenVINO's are
    fitted to some of the texts."""
    if not find_spec("optimum"):
        return {}
    from sentence_transformers import SentenceTransformer, backend

    found: dict[str, Any] = {}
    for kind in ("onnx", "openvino"):
        exported, kept = SentenceTransformer(str(folder), device="cpu", backend=kind), out / kind
        exported.save_pretrained(str(kept))
        if kind == "onnx":
            backend.export_dynamic_quantized_onnx_model(exported, "avx512_vnni", str(kept))
        else:  # which quantizes what it is given, too
            write(kept / "texts" / "train.csv", [SimilarInput(text, "") for text in texts[:300]])
            backend.export_static_quantized_openvino_model(
                exported, None, str(kept), dataset_name=str(kept / "texts"), dataset_config_name="default",
                dataset_split="train", column_name="text_a",
            )  # fmt: skip
        for file in sorted((kept / kind).iterdir()):
            if file.suffix in (".onnx", ".xml"):
                name = f"{kind}, eight bits" if "qint8" in file.name else kind
                found[name] = SentenceTransformer(
                    str(kept), device="cpu", backend=kind, model_kwargs={"file_name": f"{kind}/{file.name}"}
                )
    return found


def theirs_trained(
    options: argparse.Namespace, train: list[SimilarInput], valid: list[SimilarInput], bf16: bool, seed: int
) -> float:
    """Its own fit, as documented or in bfloat16, which it has no switch for on a CPU."""
    from sentence_transformers import InputExample, SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)  # the order of its batches
    model: Any = SentenceTransformer(str(options.out / "model"), device="cpu")
    model.max_seq_length = 128
    examples = [InputExample(texts=list(record.texts), label=float(record.label or 0)) for record in train]
    loader: Any = DataLoader(examples, shuffle=True, batch_size=options.batch_size)  # type: ignore[arg-type]
    steps = options.epochs * len(loader)
    # around each call and not around all of them: weights in bfloat16 are kept until it ends, however they change
    model.forward = torch.autocast("cpu", torch.bfloat16, enabled=bf16)(model.forward)
    model.old_fit(
        train_objectives=[(loader, CoSENTLoss(model))], epochs=options.epochs, warmup_steps=steps // 10,
        optimizer_params={"lr": options.rate}, show_progress_bar=False,
    )  # fmt: skip
    return spearman(lambda texts: model.encode(texts, show_progress_bar=False), valid)


def spearman(embed: Callable[[list[str]], Any], pairs: list[SimilarInput]) -> float:
    from scipy.stats import spearmanr

    left, right = (unit(np.asarray(embed([getattr(pair, side) for pair in pairs]))) for side in ("text", "text_b"))
    return float(spearmanr((left * right).sum(1), [pair.label for pair in pairs])[0])


def train(options: argparse.Namespace) -> None:
    """One after the other, several times, each time with another seed."""
    options.rate = options.rate or 5e-5
    learned, valid = drawn(sts(options.tasks, "train"), options.rows), sts(options.tasks, "dev")
    valid = drawn(valid, len(learned) // 4)
    start = litebert.load(options.model)
    start.save(options.out / "model")
    print(f"before: Spearman {spearman(start.embed, valid):.4f}", flush=True)
    files = {"train": write(options.out / "train.csv", learned), "valid": write(options.out / "valid.csv", valid)}
    contenders: dict[str, Callable[[int], float]] = {
        "litebert": lambda seed: ours(options, options.out / f"ours {seed}", str(options.out / "model"), **files,
                                      seed=seed)["spearman"],
        "sentence-transformers": lambda seed: theirs_trained(options, learned, valid, False, seed),
        "sentence-transformers, bf16": lambda seed: theirs_trained(options, learned, valid, True, seed),
    }  # fmt: skip
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contenders}
    for number in range(options.rounds):
        for name, run in contenders.items():
            began, worked = time.perf_counter(), time.process_time()
            score = run(options.seed + number)
            found[name].append((time.perf_counter() - began, time.process_time() - worked, score))
    print("| who | seconds | of ours | CPU seconds | of ours | Spearman | spread |\n|---|---|---|---|---|---|---|")
    ours_took = [statistics.median(run[which] for run in found["litebert"]) for which in range(2)]
    for name, runs in found.items():
        cells = []
        for which, base in enumerate(ours_took):
            median = statistics.median(run[which] for run in runs)
            cells += [f"{median:.1f}", f"{median / base:.2f}"]
        scores = [run[2] for run in runs]
        print(f"| {name} | {' | '.join(cells)} | {statistics.mean(scores):.4f} | {np.std(scores):.4f} |")


def learned_sts(options: argparse.Namespace) -> None:
    """NLI first, scores after."""
    snli = [
        pair
        for part in ("dev", "test")
        for pair in pairs_of(options.tasks / "pairs" / "snli" / f"{part}.txt", (0, 1, 2))
    ]
    nli = write(options.out / "nli.csv", snli, lambda label: NLI[int(label)])
    valid = write(options.out / "valid.csv", sts(options.tasks, "dev"))
    test = write(options.out / "test.csv", sts(options.tasks, "test"))
    first = options.out / "nli"
    scores = {"NLI": ours(options, first, options.model, nli, valid=valid, test=test)}
    taught = options.tasks / "glue" / "STS-B" / "train.tsv"
    second = {"valid": valid, "test": test, "sizes": (256, 64)}
    scores["NLI, then STS-B"] = ours(options, options.out / "sts", str(first), taught, **second)
    _table(scores)


def unlabelled(options: argparse.Namespace) -> None:
    valid = write(options.out / "valid.csv", sts(options.tasks, "dev"))
    test = write(options.out / "test.csv", sts(options.tasks, "test"))
    train = options.tasks / "glue" / "STS-B" / "train.tsv"
    found = ours(options, options.out / "simcse", options.model, train, valid=valid, test=test, loss="simcse")
    _table({"SimCSE on the sentences of STS-B": found})


def chinese(options: argparse.Namespace) -> None:
    """Learned from the development pairs, of which a tenth chooses; the test pairs once. Cosines of characters
    get the best threshold, and a logistic regression of what both texts have and what only one has the labels too."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    known, test = (pairs_of(options.tasks / "zh" / "lcqmc" / f"{part}.txt", (0, 1, 2)) for part in ("dev", "test"))
    known = drawn(known, options.rows)
    vectors = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    vectors.fit([text for record in known for text in record.texts])

    def both(records: list[SimilarInput]) -> tuple[Any, Any]:
        left, right = (vectors.transform([getattr(record, side) for record in records]) for side in ("text", "text_b"))
        return left.multiply(right), hstack([left.multiply(right), abs(left - right)])

    (products, seen), (test_products, test_seen) = both(known), both(test)
    cosines, test_cosines = (np.asarray(one.sum(1)).ravel() for one in (products, test_products))
    alike, truth = (np.array([record.label for record in records]) > 0 for records in (known, test))
    fitted = LogisticRegression(C=10, max_iter=1000).fit(seen, alike)
    scores = {
        "tf-idf of characters, cosine": {
            "accuracy": float(((test_cosines >= best_threshold(cosines, alike)) == truth).mean())
        },
        "tf-idf of characters, logistic regression": {"accuracy": float(fitted.score(test_seen, truth))},
    }
    files = {"train": write(options.out / "zh.csv", known), "test": write(options.out / "zh-test.csv", test)}
    scores["litebert-small-zh"] = ours(options, options.out / "zh", "litebert-small-zh", **files)
    _table(scores)


def _table(found: dict[str, dict[str, float]]) -> None:
    for name, scores in found.items():
        print(f"{name}: " + ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()), flush=True)


def index(options: argparse.Namespace) -> None:
    """Vectors around some middles, as real ones are not spread evenly; texts are their numbers."""
    model = litebert.load(options.model)
    random, at_once = np.random.default_rng(0), 1 << 16
    middles = random.standard_normal((1000, options.size)).astype(np.float32)
    queries = unit(middles[:20] + 0.5 * random.standard_normal((20, options.size)).astype(np.float32))
    print("| storage | MB on disk | vectors/s added | ms a query | 20 at once, ms each | top 10 as exact | peak MB |")
    print("|---|---|---|---|---|---|---|")
    truth: list[set[int]] | None = None
    for storage, approximate in [("float32", False), ("int8", False)] + [("int8", True)] * options.approximate:
        made: Any = storage
        folder = options.out / f"{storage}{approximate}"
        kept = Index.create(folder, model, options.size, made, approximate)
        random, seconds = np.random.default_rng(1), 0.0
        for start in range(0, options.vectors, at_once):
            count = min(at_once, options.vectors - start)
            near = middles[random.integers(0, len(middles), count)]
            rows = near + random.standard_normal((count, options.size), dtype=np.float32)
            began = time.perf_counter()
            kept.add_vectors(rows, [f"text {start + i}" for i in range(count)])
            seconds += time.perf_counter() - began
        times = []
        for query in queries:
            began = time.perf_counter()
            kept.search_vectors(query[None])
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        hits = kept.search_vectors(queries)
        together = (time.perf_counter() - began) / len(queries)
        places = [{hit.index for hit in row} for row in hits]
        truth = places if truth is None else truth
        same = statistics.mean(len(a & b) / len(b) for a, b in zip(places, truth, strict=True))
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        name = f"{storage}{', graph' if approximate else ''}"
        speed, each = options.vectors / seconds, 1e3 * statistics.median(times)
        print(f"| {name} | {size:,.0f} | {speed:,.0f} | {each:.0f} | {1e3 * together:.0f} | {same:.2f} | {peak:,.0f} |",
              flush=True)  # fmt: skip
        shutil.rmtree(folder)


PARTS = {
    "encode": encode,
    "train": train,
    "sts": learned_sts,
    "unlabelled": unlabelled,
    "chinese": chinese,
    "index": index,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--model", default="litebert-base-en")
    parser.add_argument("--tasks", type=Path, default=Path("tasks"), help="folder with glue/, pairs/ and zh/")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, help="by default litebert's usual one; 5e-5 for train")
    parser.add_argument("--rows", type=int, help="take so many pairs by chance, or for encode the first texts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=768)
    parser.add_argument("--approximate", action="store_true", help="with a graph too, which takes its time to build")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-similarity"))
    options = parser.parse_args()
    options.out = options.out / options.part
    shutil.rmtree(options.out, ignore_errors=True)
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
