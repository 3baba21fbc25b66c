"""Vectors of sentences without labels, several ways at once on one GPU, and what labels add to the best of them.

  litebert prepare --input corpus --tokenizer litebert-base-en --exclude runs/evaluation.txt --out runs/shards
  python bench/sentence_vectors.py --data runs/shards --tasks tasks --seconds 45 --out runs/bench-vectors

First every arm of ARMS is learned by `examples/builtin/sentences.py`, all at the same time and each for --seconds, then
the best --starts of them again for --more. The plain sentences beside the shards (of STS-B's training pairs, SNLI and
Multi30k, no labels, and none that STS-B's development and test pairs have) are collected here. The arm that orders
STS-B's training pairs best is asked about its test pairs, once. Then the best arms learn from labels: SNLI's pairs or
not, then STS-B's training pairs, at several rates; the development pairs choose, and the chosen way is repeated with
--seeds seeds, of which each is asked about the test pairs once. Prints tables, and leaves results.json and the models
in bfloat16, in pieces of 15 MB: `cat unlabelled.tar.* | tar x`. With --teacher, a folder of sentence-transformers, a
student of its vectors is made beside; that is another thing, as the teacher has seen labels.
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
from pathlib import Path
from typing import Any

import litebert
from litebert.builtin import DEFAULT
from litebert.data.labelled import read_text
from litebert.data.shards import Shards
from litebert.recipes import distill, finetune
from litebert.tasks import Similarity
from litebert.tasks._similar_files import NLI
from litebert.train.runtime import has_bfloat16, pick_device
from similarity import pairs_of, sts, write

EXAMPLES = Path(__file__).parents[1] / "examples" / "builtin"
sys.path.append(str(EXAMPLES))
from sentences import Pool, correlation, some_of  # noqa: E402

PIECE_BYTES = 15 << 20
ARMS = {
    "neighbours": "",
    "fast": "--learning-rate 6e-4",
    "slow": "--learning-rate 1e-4",
    "two passes": "--passes 2",
    "six passes": "--passes 6",
    "groups": "--group 4",
    "nothing dropped": "--drop 0",
    "mixed": "--near 0.6 --shared 0.2 --drop 0.4 --text-share 0.2",
}
"""What differs from the defaults of `examples/builtin/sentences.py`."""
RATES = (5e-5, 1e-4, 2e-4)
MYSELF = [sys.executable, __file__, "--data", "-", "--tasks", "-", "--out", "-", "--one"]
"""In another process, one run of a recipe with the settings that follow."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--data", type=Path, required=True, help="shards")
    parser.add_argument("--tasks", type=Path, required=True, help="folder with glue/, pairs/ and mt/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90, help="of learning, for each arm")
    parser.add_argument("--more", type=float, default=60, help="seconds, for the best arms once more")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--flags", default="", help="for every arm, such as '--batch-size 32'")
    parser.add_argument("--starts", type=int, default=2, help="arms that learn from labels")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--teacher", type=Path, help="folder of sentence-transformers, to learn its vectors beside")
    parser.add_argument("--taught-passes", type=int, default=6, help="of its student")
    parser.add_argument("--taught-texts", type=int, default=300_000, help="sentences of the shards for it")
    parser.add_argument("--taught-epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, help="labelled pairs to learn from, instead of all")
    parser.add_argument("--jobs", type=int, default=16, help="processes at once")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        learn_one(options.one)
        return
    began = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    files = files_of(options.tasks, options.out / "files", options.rows)
    results: dict[str, Any] = {"seconds": {}}

    def done(what: str) -> None:
        results["seconds"][what] = time.perf_counter() - began
        write_results(options.out, results)

    ranked = unlabelled(options, files, {name: ARMS[name] for name in options.arms}, options.seconds, results)
    done("arms")
    student = None if options.teacher is None else begun(teaching(options, files), options.out / "logs" / "student.log")
    if options.more:
        longer = {f"{name}, longer": ARMS[name] for name in ranked[: max(1, options.starts)]}
        again = unlabelled(options, files, longer, options.more, results)
        ranked = sorted([*again, *ranked], key=lambda name: -results["arms"][name]["train"])
        done("longer")
    results["without labels"] = {ranked[0]: asked(files, options.out / "arms" / ranked[0])}
    pack(options.out / "arms" / ranked[0], options.out / "unlabelled")
    done("without labels")
    if options.starts:
        labelled(options, files, ranked[: options.starts], results)
        done("labels")
    if student is not None:
        student.wait()
        print((options.out / "logs" / "student.log").read_text()[-2000:])
        results["by a teacher"] = asked(files, options.out / "student")
        litebert.load(options.out / "student").save(options.out / "student-half", half=True)
        pack(options.out / "student-half", options.out / "taught")
        done("by a teacher")
    print(json.dumps(results["seconds"]))


def files_of(tasks: Path, out: Path, rows: int | None) -> dict[str, Path]:
    """Tables for the recipe, and plain sentences that none of the pairs that are asked about has."""
    parts = {part: sts(tasks, part) for part in ("train", "dev", "test")}
    snli = [pair for part in ("dev", "test") for pair in pairs_of(tasks / "pairs" / "snli" / f"{part}.txt", (0, 1, 2))]
    files = {part: write(out / f"{part}.csv", records[:rows]) for part, records in parts.items()}
    files["nli"] = write(out / "nli.csv", snli[:rows], lambda label: NLI[int(label)])
    captions = read_text(tasks / "mt" / "multi30k" / "train.en.gz").splitlines()
    asked_about = {text.lower() for part in ("dev", "test") for pair in parts[part] for text in pair.texts}
    known = dict.fromkeys([text for pair in (*parts["train"], *snli) for text in pair.texts] + captions)
    files["text"] = out / "sentences.txt"
    files["text"].write_text("".join(f"{text}\n" for text in known if text.lower() not in asked_about))
    return files


def unlabelled(
    options: argparse.Namespace, files: dict[str, Path], arms: dict[str, str], seconds: float, results: dict[str, Any]
) -> list[str]:
    """The arms, best first."""
    script = EXAMPLES / "sentences.py"
    commands = {
        name: [
            sys.executable, str(script), "--model", options.model, "--data", str(options.data), "--half",
            "--sts", str(options.tasks / "glue" / "STS-B"), "--text", str(files["text"]), "--steps", "1000000",
            "--seconds", str(seconds), "--out", str(options.out / "arms" / name),
            *f"{flags} {options.flags}".split(),
        ]
        for name, flags in arms.items()
    }  # fmt: skip
    at_once(commands, options.out / "logs", options.jobs)
    found = {}
    for name in commands:
        file = options.out / "arms" / name / "result.json"
        if file.is_file():
            found[name] = json.loads(file.read_text())["found"]
        print(f"\n--- {name} {arms[name]}\n{(options.out / 'logs' / f'{name}.log').read_text()[-1500:]}", flush=True)
    results["arms"] = results.get("arms", {}) | found
    ranked = sorted(found, key=lambda name: -found[name]["train"])
    print("\n| arm | training pairs | development pairs |\n|---|---|---|")
    for name in ranked:
        print(f"| {name} | {found[name]['train']:.4f} | {found[name]['dev']:.4f} |", flush=True)
    return ranked


def asked(files: dict[str, Path], folder: Path) -> dict[str, float]:
    """As it was saved."""
    model = litebert.load(folder).to(pick_device("auto"))
    model.bf16 = has_bfloat16(model.device)
    found = {part: correlation(model, Similarity.read(files[part])) for part in ("train", "dev", "test")}
    print(f"{folder.name}: " + ", ".join(f"{part} {value:.4f}" for part, value in found.items()), flush=True)
    return found


def teaching(options: argparse.Namespace, files: dict[str, Path]) -> list[str]:
    """The command that teaches a student the teacher's vectors."""
    settings = {
        "recipe": "distill", "teacher": str(options.teacher), "student": options.model, "passes": options.taught_passes,
        "data": str(files["text"]), "shards": str(options.data), "texts": options.taught_texts, "batch_size": 256,
        "learning_rate": 2e-4, "epochs": options.taught_epochs, "save_every": "1000000",
        "out": str(options.out / "student"),
    }  # fmt: skip
    return [*MYSELF, json.dumps(settings)]


def labelled(options: argparse.Namespace, files: dict[str, Path], starts: list[str], results: dict[str, Any]) -> None:
    """What labels add; the development pairs choose, the test pairs are asked by what was chosen."""
    runs, dev = options.out / "labelled", str(files["dev"])
    base = {"task": "similarity", "valid": dev, "precision": "bf16", "patience": 0, "save_every": "1000000"}
    folders = {name: str(options.out / "arms" / name) for name in starts}
    nli = {f"{name}, NLI": base | {"model": folder, "train": str(files["nli"]), "epochs": 2, "batch_size": 128,
                                   "out": str(runs / f"{name}, NLI")} for name, folder in folders.items()}  # fmt: skip
    taught = learn_all(nli, options)
    results["NLI"] = {name: one["metrics"] for name, one in taught.items()}
    folders |= {name: str(runs / name) for name in taught}
    base |= {"train": str(files["train"]), "epochs": options.epochs}
    ways = {f"{name}, {rate:g}": base | {"model": folder, "learning_rate": rate, "out": str(runs / f"{name}, {rate:g}")}
            for name, folder in folders.items() for rate in options.rates}  # fmt: skip
    tried = learn_all(ways, options)
    results["labels"] = {name: one["metrics"] | {"epoch": one["epoch"]} for name, one in tried.items()}
    best = max(tried, key=lambda name: tried[name]["metrics"]["spearman"])
    repeated = {f"{best}, seed {seed}": ways[best] | {"seed": seed, "test": str(files["test"]),
                "out": str(runs / f"{best}, seed {seed}")} for seed in range(options.seeds)}  # fmt: skip
    found = learn_all(repeated, options)
    results["chosen"] = {name: {"dev": one["metrics"], "test": one["test"]} for name, one in found.items()}
    for what, table in (("development pairs", tried), ("development pairs, seeds", found)):
        print(f"\n| from, rate | {what} | epoch |\n|---|---|---|")
        for name, one in table.items():
            print(f"| {name} | {one['metrics']['spearman']:.4f} | {one['epoch']} |")
    tests = [one["test"]["spearman"] for one in found.values()]
    print(f"{best}: test pairs {statistics.mean(tests):.4f} ({', '.join(f'{one:.4f}' for one in tests)})", flush=True)
    kept = max(found, key=lambda name: found[name]["metrics"]["spearman"])
    print(f"kept: {kept}, {found[kept]['test']}")
    litebert.load(runs / kept).save(options.out / "half", half=True)
    pack(options.out / "half", options.out / "labelled-best")


def learn_all(runs: dict[str, dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """What each of these runs came to; one that failed says why and is left out."""
    at_once({name: [*MYSELF, json.dumps(one)] for name, one in runs.items()}, options.out / "logs", options.jobs)
    files = {name: Path(one["out"]) / "finished.json" for name, one in runs.items()}
    for name, file in files.items():
        if not file.is_file():
            print(f"{name} failed: {(options.out / 'logs' / f'{name}.log').read_text()[-1500:]}", flush=True)
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def learn_one(settings: dict[str, Any]) -> None:
    paths = {name: Path(settings[name]) for name in ("train", "valid", "test", "data", "out") if name in settings}
    settings = settings | paths
    if settings.pop("recipe", "") != "distill":
        finetune.run(finetune.Config(**settings))
        return
    shards, count = Shards(Path(settings.pop("shards"))), settings.pop("texts")
    further = some_of(Pool.of(shards), shards.tokenizer, count)
    settings["data"] = settings["out"].with_suffix(".txt")
    settings["data"].write_text("\n".join([paths["data"].read_text().strip(), *further]) + "\n")
    distill.run(distill.Config(**settings))


def begun(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


def at_once(commands: dict[str, list[str]], logs: Path, jobs: int) -> None:
    """Run them, so many at a time, each with its own log."""
    waiting, running = list(commands.items()), list[subprocess.Popen[bytes]]()
    while waiting or running:
        running = [one for one in running if one.poll() is None]
        while waiting and len(running) < jobs:
            name, command = waiting.pop(0)
            running.append(begun(command, logs / f"{name}.log"))
        time.sleep(0.2)


def pack(folder: Path, out: Path) -> None:
    """What differs from the model that all began with, in pieces."""
    whole = out.with_suffix(".tar")
    with tarfile.open(whole, "w") as tar:
        for file in sorted(folder.rglob("*")):
            if (
                file.is_file()
                and file.name not in ("tokenizer.json", "spiece.model")
                and "checkpoints" not in str(file)
            ):
                tar.add(file, file.relative_to(folder))
    content = whole.read_bytes()
    whole.unlink()
    for number, start in enumerate(range(0, len(content), PIECE_BYTES)):
        Path(f"{whole}.{number}").write_bytes(content[start : start + PIECE_BYTES])


def write_results(out: Path, results: dict[str, Any]) -> None:
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
