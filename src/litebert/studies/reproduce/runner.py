"""Run the variants of `litebert reproduce`, on one or several processes, and estimate their cost."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from rich.console import Console

from litebert.errors import LitebertError
from litebert.files import read_json, write_json
from litebert.loading import load
from litebert.model import AlbertConfig
from litebert.run_folder import write_run
from litebert.studies.reproduce.config import ReproduceConfig
from litebert.studies.reproduce.evaluation import ModelEvaluator
from litebert.studies.reproduce.plan import Plan, make_plan, save_plan
from litebert.studies.reproduce.variants import (
    ModelVariant,
    PretrainSettings,
    TableName,
    table_rows,
    variants_with_tables,
)
from litebert.tasks.pretraining import flops_per_token
from litebert.train.log import read_metrics
from litebert.train.ramps import Ramp
from litebert.trainers.pretrain_config import DEPTH_RAMP
from litebert.trainers.pretraining import pretrain

ESTIMATE_STEPS = 8
BARRIER_TIMEOUT = timedelta(days=30)  # of processes that wait for each other


@dataclass(frozen=True)
class Job:
    """A variant with a seed."""

    cell: ModelVariant
    seed: int

    def folder(self, out: Path) -> Path:
        return out / "cells" / f"{self.cell.key}-seed-{self.seed}"

    def is_done(self, out: Path) -> bool:
        return (self.folder(out) / "result.json").is_file()

    def clear(self, out: Path) -> None:
        """Delete its model and checkpoints, which may take a gigabyte."""
        shutil.rmtree(self.folder(out) / "model", ignore_errors=True)


@dataclass(frozen=True)
class CostEstimate:
    """Measured speed, from a few steps of the common model."""

    device: str
    operations_per_second: float
    """FLOP/s of training by the model's formula."""
    seconds_beside: float
    """Seconds of a variant outside its steps: to build, save, load and evaluate the model."""


class VariantRunner:
    """Trains and evaluates variants on one device."""

    def __init__(self, plan: Plan, out: Path, process: Process, console: Console) -> None:
        self.plan, self.out, self.device, self.console = plan, out, process.device, console
        self.place = process.place
        self.quiet = Console(stderr=True, quiet=not console.is_terminal)
        self.evaluator = ModelEvaluator(plan, self.device, self.quiet)

    def __call__(self, job: Job) -> bool:
        """Run or resume a job; False when a stop was requested. Failures are recorded in failed.json."""
        folder = job.folder(self.out)
        (folder / "failed.json").unlink(missing_ok=True)
        try:
            return self.run(job, folder)
        except (LitebertError, RuntimeError) as error:  # torch's own complaint, of memory or a kernel, is the latter
            reason = " ".join(str(error).split())
            write_json(folder / "failed.json", {"reason": reason, "cell": dict(job.cell.changes), "seed": job.seed})
            self.console.print(f"{folder.name} failed: {reason}", highlight=False, markup=False)
            return True

    def run(self, job: Job, folder: Path, steps: int | None = None) -> bool:
        """`steps` overrides the plan for a cost estimate, at full depth."""
        model_folder = folder / "model"
        resume = (model_folder / "checkpoints" / "latest").exists()
        changes = {} if steps is None else {"steps": steps, "validate_every": steps, "depth_ramp": ""}
        settings = self.plan.settings(job.cell, job.seed, model_folder, resume=resume, **changes)
        if not (model_folder / "config.json").exists():
            if self.device.type == "cuda":
                gc.collect()  # graphs of the last cell's steps hold each other, and memory
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(self.device)
            if not pretrain(settings, self.quiet, device=self.device):
                return False
            peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
            write_json(folder / "training.json", {"memory_bytes": peak})
        scores = self.evaluator(load(model_folder), settings.sentences, folder / "tasks", job.seed)
        about = {"cell": dict(job.cell.changes), "seed": job.seed, "device": self.place}
        trained = read_json(folder / "training.json") | read_speed(model_folder)
        write_json(folder / "result.json", about | trained | scores)
        job.clear(self.out)
        return True

    def estimate_cost(self) -> CostEstimate:
        """Run a few steps of the common model and its evaluation, which also finds mistakes early."""
        path, name = self.out / "estimate.json", self.place
        if path.is_file() and read_json(path)["device"] == name:
            return CostEstimate(**read_json(path))
        folder, began = self.out / "rehearsal", time.perf_counter()
        shutil.rmtree(folder, ignore_errors=True)
        if not self.run(Job(ModelVariant(), 0), folder, ESTIMATE_STEPS):
            raise KeyboardInterrupt
        result = read_json(folder / "result.json")
        operations = self._operations(ModelVariant(), ramped=False)
        beside = time.perf_counter() - began - result["seconds"]
        cost = CostEstimate(name, result["tokens_per_second"] * operations, beside)
        shutil.rmtree(folder)
        write_json(path, asdict(cost))
        return cost

    def seconds(self, cell: ModelVariant, cost: CostEstimate) -> float:
        """Estimated seconds of a variant."""
        return self.plan.tokens * self._operations(cell) / cost.operations_per_second + cost.seconds_beside

    def _operations(self, cell: ModelVariant, ramped: bool = True) -> float:
        """Operations per token at the mean depth of the run."""
        settings = self.plan.settings(cell, 0, self.out)
        layers, hidden = settings.layers or 1, settings.hidden_size or 1
        ramp = Ramp.parse(
            (DEPTH_RAMP if settings.depth_ramp is None else settings.depth_ramp) if ramped else "", "depth_ramp"
        )
        depths = [min(layers, max(2, ramp.at(step, 100, layers))) for step in range(100)]
        shape = AlbertConfig(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=1, intermediate_size=4 * hidden,
            embedding_size=settings.embedding_size or 1, vocab_size=self.evaluator.shards.tokenizer.vocab_size,
        )  # fmt: skip
        return flops_per_token(shape, statistics.mean(depths), settings.length, settings.mask_rate)


def read_speed(folder: Path) -> dict[str, float]:
    """Steps, tokens and seconds of a run's log, and its tokens per second at full depth."""
    curves = read_metrics(folder)
    depths, rates = curves["depth"].values, curves["tokens_per_second"].values
    full = [rate for depth, rate in zip(depths, rates, strict=True) if depth == depths[-1]]
    return {
        "steps": len(curves["loss"].steps),
        "tokens": sum(curves["tokens"].values),
        "seconds": sum(curves["seconds"].values),
        "tokens_per_second": statistics.median(full[len(full) // 2 :]),  # the first ones compile and record
    }


def distribute(costs: Sequence[float], processes: int) -> list[list[int]]:
    """Distribute jobs over processes so that all finish at about the same time; each keeps the order."""
    loads, shares = [0.0] * processes, [list[int]() for _ in range(processes)]
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += costs[number]
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Process:
    """This process among those of torchrun."""

    rank: int
    world: int
    device: torch.device
    beside: int = 1
    """Processes on this machine."""

    @property
    def place(self) -> str:
        """The device, and how many processes share it."""
        if self.device.type != "cuda":
            return f"CPU, {torch.get_num_threads()} threads"
        name = torch.cuda.get_device_name(self.device)
        return f"{name} that {self.sharing} cells share" if self.sharing > 1 else name

    @property
    def sharing(self) -> int:
        """Processes on its device."""
        return -(-self.beside // torch.cuda.device_count()) if self.device.type == "cuda" else 1

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            torch.distributed.barrier()


@contextmanager
def process_group(device: torch.device) -> Iterator[Process]:
    """Join the processes of torchrun. Each trains its own models; they only wait for each other."""
    world = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if world == 1:
        yield Process(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("gloo", timeout=BARRIER_TIMEOUT)
    try:
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        yield Process(torch.distributed.get_rank(), world, device, beside)
    finally:
        torch.distributed.destroy_process_group()


def run_variants(config: ReproduceConfig, console: Console, process: Process) -> bool:
    """Run this process's part of the missing jobs; False when a stop was requested."""
    if process.rank:
        process.wait()  # until the first one has made what all of them read
    plan = make_plan(config, process.device.type)
    if not process.rank:
        save_plan(plan, config.out)
        write_run(config.out, "reproduce", config)
    runner = VariantRunner(plan, config.out, process, console)
    jobs = make_jobs(config.tables, config.seeds, plan.common)
    left = [job for job in jobs if not job.is_done(config.out)]
    for job in set(jobs) - set(left) if not process.rank else ():
        job.clear(config.out)  # somebody killed us right after a result was written
    seconds: list[float] = []
    if left or config.estimate:
        cost = runner.estimate_cost()
        seconds = [runner.seconds(job.cell, cost) for job in left]
    if not process.rank:
        process.wait()
    shares = distribute(seconds, process.world)
    longest = max(sum(seconds[number] for number in share) for share in shares)
    print_plan(console, config, plan, len(jobs), seconds, longest, process.sharing)
    process.wait()  # until all have seen what is missing
    mine = [(left[number], seconds[number]) for number in shares[process.rank]]
    finished = config.estimate or _run_jobs(mine, runner)
    process.wait()
    return finished


def make_jobs(tables: Sequence[TableName], seeds: int, common: PretrainSettings) -> list[Job]:
    """Table by table, each with all seeds, so that an interrupted run leaves complete tables."""
    cells = variants_with_tables(tables, common)
    return [
        Job(cell, seed)
        for table in tables
        for seed in range(seeds)
        for cell, users in cells.items()
        if users[0] == table
    ]


def print_plan(
    console: Console,
    config: ReproduceConfig,
    plan: Plan,
    jobs: int,
    seconds: Sequence[float],
    longest: float,
    sharing: int,
) -> None:
    """Print the number of jobs and the estimated time."""
    meant = sum(len(table_rows(table, plan.common)) for table in config.tables)
    cells = jobs // config.seeds
    count = f"{cells} cells" + (f" ({meant} in the tables, shared ones once)" if meant > cells else "")
    done = jobs - len(seconds)
    lines = [
        f"{', '.join(config.tables)}: {count} × {config.seeds} seed{'s' * (config.seeds > 1)}, "
        f"{plan.tokens:,} tokens each" + (f"; {done} of {jobs} are done" if done else "")
    ]
    if seconds:
        lines.append(
            f"{len(seconds)} to run: {plan.tokens * len(seconds):,} tokens, about {format_duration(longest)}, by a "
            "rehearsal of the common model" + (f" alone; {sharing} that share a GPU take longer" if sharing > 1 else "")
        )
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _run_jobs(jobs: Sequence[tuple[Job, float]], runner: VariantRunner) -> bool:
    began, expected = time.perf_counter(), 0.0
    for number, (job, seconds) in enumerate(jobs, start=1):
        if not runner(job):
            return False
        expected += seconds
        spent = time.perf_counter() - began
        ahead = sum(later for _, later in jobs[number:]) * spent / expected
        after = f"; about {format_duration(ahead)} left" if number < len(jobs) else ""
        line = f"{number}/{len(jobs)} {describe_job(job, runner.out)}{after}"
        runner.console.print(line, highlight=False, markup=False)
    return True


def describe_job(job: Job, out: Path) -> str:
    """A job and its scores, in one line."""
    name = f"{job.cell.key}, seed {job.seed}"
    if not job.is_done(out):
        return f"{name}: failed"
    result = read_json(job.folder(out) / "result.json")
    return (
        f"{name}: hidden tokens {result['mlm']:.1%}, SOP {result['order_probe']:.1%}, "
        f"NSP {result['next_probe']:.1%}, few-shot {result['few_shot']:.1%}"
    )


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
