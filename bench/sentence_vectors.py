"""Vectors of sentences without labels, several ways at once on one GPU, and what labels add to the best of them.

  litebert prepare --input corpus --tokenizer litebert-base-en --exclude runs/evaluation.txt --out runs/shards
  python bench/sentence_vectors.py --data runs/shards --tasks tasks --seconds 80 --out runs/bench-vectors

First every arm of ARMS is learned by `examples/builtin/sentences.py`, all at the same time and each for --seconds;
means of the weights of arms are candidates too. What orders STS-B's training pairs best is asked about its test pairs,
once. Then the two best learn from labels: SNLI's pairs, then STS-B's training
pairs at several rates, twice each. What is best on the development pairs is repeated with further seeds, and the means
of the weights of seeds are held against single ones there; the test pairs are asked by the seeds of the best way, and
by what the development pairs chose in the end. Prints tables, and leaves results.json and the models in bfloat16, in
pieces of 15 MB: `cat unlabelled.tar.* | tar x`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import litebert
from litebert.builtin import DEFAULT
from litebert.commands import finetune
from litebert.data.shards import Shards
from litebert.device import has_bfloat16, pick_device
from litebert.inference import Model
from litebert.tasks import Similarity
from litebert.tasks.similarity_files import NLI
from similarity import pairs_of, sts, write

EXAMPLES = Path(__file__).parents[1] / "examples" / "builtin"
sys.path.append(str(EXAMPLES))
from sentences import LOOKED_AT, Pool, correlation, settled, some_of  # noqa: E402

PIECE_BYTES = 15 << 20
ARMS = {
    "fast": "--learning-rate 8e-4",
    "faster": "--learning-rate 1.5e-3",
}
"""What differs from the defaults of `examples/builtin/sentences.py`."""
MYSELF = [sys.executable, __file__, "--data", "-", "--tasks", "-", "--out", "-", "--one"]
"""In another process, one run of `finetune` with the settings that follow."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--data", type=Path, required=True, help="shards")
    parser.add_argument("--tasks", type=Path, required=True, help="folder with glue/ and pairs/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=80, help="of learning, for each arm")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--flags", default="", help="for every arm, such as '--batch-size 32'")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 2e-4, 3e-4])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--until", type=float, default=180, help="seconds, after which no further seeds begin")
    parser.add_argument("--rows", type=int, help="labelled pairs to learn from, instead of all")
    parser.add_argument("--jobs", type=int, default=16, help="processes at once")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        settings: dict[str, Any] = options.one
        paths = {name: Path(settings[name]) for name in ("train", "valid", "out")}
        finetune.run(finetune.Config(**settings | paths))
        return
    options.began = time.perf_counter()
    if options.out.exists() and any(options.out.iterdir()):
        raise SystemExit(f"--out {options.out} holds an older run, which would be mistaken for this one; remove it")
    options.out.mkdir(parents=True, exist_ok=True)
    files = files_of(options.tasks, options.out / "files", options.rows)
    results: dict[str, Any] = {"seconds": {}}

    def done(what: str) -> None:
        results["seconds"][what] = time.perf_counter() - options.began
        (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        print(f"{what}: {results['seconds'][what]:.0f} s", flush=True)

    ranked = unlabelled(options, results)
    done("arms")
    if len(ranked) > 1:
        ranked = with_means(options, files, ranked, results)
    results["without labels"] = {ranked[0]: kept(options, files, options.out / "arms" / ranked[0], "unlabelled")}
    done("without labels")
    labelled(options, files, ranked[:2], results, done)


def files_of(tasks: Path, out: Path, rows: int | None) -> dict[str, Path]:
    """Tables for the recipe."""
    parts = {part: sts(tasks, part) for part in ("train", "dev", "test")}
    snli = [pair for part in ("dev", "test") for pair in pairs_of(tasks / "pairs" / "snli" / f"{part}.txt", (0, 1, 2))]
    files = {part: write(out / f"{part}.csv", records[:rows]) for part, records in parts.items()}
    files["nli"] = write(out / "nli.csv", snli[:rows], lambda label: NLI[int(label)])
    return files


def unlabelled(options: argparse.Namespace, results: dict[str, Any]) -> list[str]:
    """The arms, best first."""
    commands = {
        name: [
            sys.executable, str(EXAMPLES / "sentences.py"), "--model", options.model, "--data", str(options.data),
            "--sts", str(options.tasks / "glue" / "STS-B"), "--steps", "1000000", "--seconds", str(options.seconds),
            "--out", str(options.out / "arms" / name),
            *f"{ARMS[name]} {options.flags}".split(),
        ]
        for name in options.arms
    }  # fmt: skip
    at_once(commands, options.out / "logs", options.jobs)
    found = {}
    for name in commands:
        print(f"\n--- {name} {ARMS[name]}\n{(options.out / 'logs' / f'{name}.log').read_text()[-1500:]}", flush=True)
        file = options.out / "arms" / name / "result.json"
        if file.is_file():
            found[name] = json.loads(file.read_text())["found"]
    if not found:
        raise SystemExit(f"no arm came to its end; {options.out / 'logs'} says why")
    results["arms"] = found
    return sorted(found, key=lambda name: -found[name]["train"])


def with_means(
    options: argparse.Namespace, files: dict[str, Path], ranked: list[str], results: dict[str, Any]
) -> list[str]:
    """The arms, and means of the weights of the best two and of all, best first."""
    folders, found = options.out / "arms", results["arms"]
    pairs = {part: Similarity.read(files[part]) for part in ("train", "dev")}
    shards = Shards(options.data)
    texts = some_of(Pool.of(shards), shards.tokenizer, LOOKED_AT)
    for count in {2, len(ranked)}:
        model, name = ready(mean_of(folders / one for one in ranked[:count])), f"mean of {count}"
        found[name] = settled(model, texts, pairs["train"]) | {"dev": correlation(model, pairs["dev"])}
        model.to("cpu").save(folders / name)
    print("\n| arm | training pairs | development pairs |\n|---|---|---|")
    for name in sorted(found, key=lambda name: -found[name]["train"]):
        ways = {way: value for way, value in found[name].items() if way[0].isdigit()}
        told = f"{found[name]['train']:.4f} | {found[name]['dev']:.4f} | {max(ways, key=lambda way: ways[way])}"
        print(f"| {name} | {told} |", flush=True)
    return sorted(found, key=lambda name: -found[name]["train"])


def mean_of(folders: Iterable[Path]) -> Model:
    """One model of which every weight is the mean of theirs."""
    model, *others = [litebert.load(folder) for folder in folders]
    states = [one.albert.state_dict() for one in (model, *others)]
    with torch.no_grad():
        for name, weight in model.albert.state_dict().items():
            if weight.is_floating_point():
                weight.copy_(torch.stack([state[name].float() for state in states]).mean(0))
    return model


def ready(model: Model) -> Model:
    model = model.to(pick_device("auto"))
    model.bf16 = has_bfloat16(model.device)
    return model


def kept(options: argparse.Namespace, files: dict[str, Path], folder: Path, name: str) -> dict[str, float]:
    """Packed in bfloat16, and what that answers."""
    half = options.out / "half" / name
    litebert.load(folder).save(half, half=True)
    pack(half, options.out / name)
    model = ready(litebert.load(half))
    found = {part: correlation(model, Similarity.read(files[part])) for part in ("train", "dev", "test")}
    print(f"{folder.name}: " + ", ".join(f"{part} {value:.4f}" for part, value in found.items()), flush=True)
    return found


def labelled(
    options: argparse.Namespace, files: dict[str, Path], starts: list[str], results: dict[str, Any], done: Any
) -> None:
    """What labels add; the development pairs choose, the test pairs are asked by what was chosen."""
    runs, dev = options.out / "labelled", Similarity.read(files["dev"])
    base = {
        "task": "similarity",
        "valid": str(files["dev"]),
        "precision": "bf16",
        "patience": 0,
        "save_every": "9999999",
    }
    first = base | {"train": str(files["nli"]), "epochs": 2, "batch_size": 128, "last_passes": 1}
    first["learning_rate"] = 1e-4
    nli = {
        f"{name}, NLI": first | {"model": str(options.out / "arms" / name), "out": str(runs / f"{name}, NLI")}
        for name in starts
    }
    results["NLI"] = learn_all(nli, options)
    done("NLI")
    base |= {"train": str(files["train"]), "epochs": options.epochs}

    def learned(ways: Iterable[tuple[str, float]], seeds: range) -> dict[tuple[str, float, int], float]:
        names = {f"{name}, {rate:g}, {seed}": (name, rate, seed) for name, rate in ways for seed in seeds}
        settings = {
            name: base | {"model": str(runs / start), "learning_rate": rate, "seed": seed, "out": str(runs / name)}
            for name, (start, rate, seed) in names.items()
        }
        return {names[name]: value for name, value in learn_all(settings, options).items()}

    found = learned([(name, rate) for name in results["NLI"] for rate in options.rates], range(2))
    done("labels")
    ways = {one[:2]: statistics.mean(value for other, value in found.items() if other[:2] == one[:2]) for one in found}
    best = max(ways, key=lambda way: ways[way])
    if time.perf_counter() - options.began < options.until:
        found |= learned([best], range(2, options.seeds))
        done("seeds")
    ranked = sorted(found, key=lambda one: -found[one])
    seeds, siblings = [one for one in ranked if one[:2] == best], [one for one in ranked if one[0] == best[0]]
    groups = {"the best run": ranked[:1], "mean of its seeds": seeds, "mean of all from its start": siblings,
              "mean of the best half": siblings[: (len(siblings) + 1) // 2]}  # fmt: skip
    candidates = {}
    print("\n| from, rate, seed | development pairs |\n|---|---|")
    for one in ranked:
        print(f"| {', '.join(map(str, one))} | {found[one]:.4f} |")
    for name, group in groups.items():
        model = mean_of(folder_of(runs, one) for one in group)
        model.save(runs / name)
        candidates[name] = correlation(ready(model), dev)
        print(f"| {name} ({len(group)}) | {candidates[name]:.4f} |", flush=True)
    results["labels"] = {", ".join(map(str, one)): value for one, value in found.items()}
    results["candidates"] = candidates
    chosen = max(candidates, key=lambda name: candidates[name])
    results["with labels"] = {chosen: kept(options, files, runs / chosen, "labelled")}
    done("with labels")
    test = Similarity.read(files["test"])
    results["seeds"] = [correlation(ready(litebert.load(folder_of(runs, one))), test) for one in seeds]
    told = ", ".join(f"{value:.4f}" for value in results["seeds"])
    print(f"seeds of {best}: test pairs {statistics.mean(results['seeds']):.4f} ({told})")
    done("seeds asked")


def folder_of(runs: Path, one: tuple[str, float, int]) -> Path:
    return runs / f"{one[0]}, {one[1]:g}, {one[2]}"


def learn_all(runs: dict[str, dict[str, Any]], options: argparse.Namespace) -> dict[str, float]:
    """What each of these runs has on the development pairs; one that failed says why and is left out."""
    at_once({name: [*MYSELF, json.dumps(one)] for name, one in runs.items()}, options.out / "logs", options.jobs)
    found = {}
    for name, one in runs.items():
        file = Path(one["out"]) / "finished.json"
        if file.is_file():
            found[name] = json.loads(file.read_text())["metrics"]["spearman"]
        else:
            print(f"{name} failed: {(options.out / 'logs' / f'{name}.log').read_text()[-1500:]}", flush=True)
    return found


def at_once(commands: dict[str, list[str]], logs: Path, jobs: int) -> None:
    """Run them, so many at a time, each with its own log."""
    logs.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    waiting, running = list(commands.items()), list[subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            running = [one for one in running if one.poll() is None]
            while waiting and len(running) < jobs:
                name, command = waiting.pop(0)
                with (logs / f"{name}.log").open("wb") as file:
                    running.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment))
            time.sleep(0.2)
    finally:
        for one in running:
            one.terminate()


def pack(folder: Path, out: Path) -> None:
    """What differs from the model that all began with, in pieces."""
    whole = out.with_suffix(".tar")
    with tarfile.open(whole, "w") as tar:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name not in ("tokenizer.json", "spiece.model"):
                tar.add(file, file.relative_to(folder))
    content = whole.read_bytes()
    whole.unlink()
    for number, start in enumerate(range(0, len(content), PIECE_BYTES)):
        Path(f"{whole}.{number:03}").write_bytes(content[start : start + PIECE_BYTES])


if __name__ == "__main__":
    main()
