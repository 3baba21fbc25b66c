"""A cell of `litebert reproduce`, what it costs, and all cells one after the other."""

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
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from litebert.errors import LitebertError
from litebert.files import read_json, write_json
from litebert.loading import load
from litebert.model import AlbertConfig
from litebert.run_folder import write_run
from litebert.studies.reproduce.evaluation import Asked
from litebert.studies.reproduce.plan import Plan, keep_plan, plan_of
from litebert.studies.reproduce.variants import Cell, Settings, TableName, cells_of, rows_of
from litebert.tasks.pretraining import flops_per_token
from litebert.train.log import read_metrics
from litebert.train.ramps import Ramp
from litebert.trainers.pretrain_config import DEPTH_RAMP
from litebert.trainers.pretraining import pretrain

if TYPE_CHECKING:
    from litebert.commands.reproduce import Config

REHEARSED_STEPS = 8
PATIENCE = timedelta(days=30)  # of processes that wait for each other's cells


@dataclass(frozen=True)
class Job:
    """A cell with a seed."""

    cell: Cell
    seed: int

    def folder(self, out: Path) -> Path:
        return out / "cells" / f"{self.cell.key}-seed-{self.seed}"

    def is_done(self, out: Path) -> bool:
        return (self.folder(out) / "result.json").is_file()

    def clear(self, out: Path) -> None:
        """Delete its model, which with its checkpoints may be a gigabyte."""
        shutil.rmtree(self.folder(out) / "model", ignore_errors=True)


@dataclass(frozen=True)
class Cost:
    """What a rehearsal says."""

    device: str
    operations_per_second: float
    """Of training, by the model's formula."""
    seconds_beside: float
    """That a cell takes beside its steps: to build, save, load and measure a model."""


class Workshop:
    """Runs cells, all on the same device."""

    def __init__(self, plan: Plan, out: Path, process: Process, console: Console) -> None:
        self.plan, self.out, self.device, self.console = plan, out, process.device, console
        self.place = process.place
        self.quiet = Console(stderr=True, quiet=not console.is_terminal)
        self.asked = Asked(plan, self.device, self.quiet)

    def __call__(self, job: Job) -> bool:
        """Run a cell, or what is left of it; False when a stop was asked for. What a cell cannot do is written down."""
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
        """`steps` are for a rehearsal: so many, at full depth."""
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
        found = self.asked(load(model_folder), settings.sentences, folder / "tasks", job.seed)
        about = {"cell": dict(job.cell.changes), "seed": job.seed, "device": self.place}
        trained = read_json(folder / "training.json") | speed_of(model_folder)
        write_json(folder / "result.json", about | trained | found)
        job.clear(self.out)
        return True

    def rehearse(self) -> Cost:
        """A few steps of the common model and everything that is asked of it, which also finds mistakes early."""
        path, name = self.out / "estimate.json", self.place
        if path.is_file() and read_json(path)["device"] == name:
            return Cost(**read_json(path))
        folder, began = self.out / "rehearsal", time.perf_counter()
        shutil.rmtree(folder, ignore_errors=True)
        if not self.run(Job(Cell(), 0), folder, REHEARSED_STEPS):
            raise KeyboardInterrupt
        found = read_json(folder / "result.json")
        operations = self._operations(Cell(), ramped=False)
        beside = time.perf_counter() - began - found["seconds"]
        cost = Cost(name, found["tokens_per_second"] * operations, beside)
        shutil.rmtree(folder)
        write_json(path, asdict(cost))
        return cost

    def seconds(self, cell: Cell, cost: Cost) -> float:
        """What a cell will take, about."""
        return self.plan.tokens * self._operations(cell) / cost.operations_per_second + cost.seconds_beside

    def _operations(self, cell: Cell, ramped: bool = True) -> float:
        """For one token, at the mean depth of the run."""
        settings = self.plan.settings(cell, 0, self.out)
        layers, hidden = settings.layers or 1, settings.hidden_size or 1
        ramp = Ramp.parse(
            (DEPTH_RAMP if settings.depth_ramp is None else settings.depth_ramp) if ramped else "", "depth_ramp"
        )
        depths = [min(layers, max(2, ramp.at(step, 100, layers))) for step in range(100)]
        shape = AlbertConfig(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=1, intermediate_size=4 * hidden,
            embedding_size=settings.embedding_size or 1, vocab_size=self.asked.shards.tokenizer.vocab_size,
        )  # fmt: skip
        return flops_per_token(shape, statistics.mean(depths), settings.length, settings.mask_rate)


def speed_of(folder: Path) -> dict[str, float]:
    """Of a run's log: its steps, tokens and seconds, and how many tokens a second it made with all of its layers."""
    curves = read_metrics(folder)
    depths, rates = curves["depth"].values, curves["tokens_per_second"].values
    full = [rate for depth, rate in zip(depths, rates, strict=True) if depth == depths[-1]]
    return {
        "steps": len(curves["loss"].steps),
        "tokens": sum(curves["tokens"].values),
        "seconds": sum(curves["seconds"].values),
        "tokens_per_second": statistics.median(full[len(full) // 2 :]),  # the first ones compile and record
    }


def shared_out(costs: Sequence[float], processes: int) -> list[list[int]]:
    """Which jobs each process takes, so that all are done at about the same time; each in the given order."""
    loads, shares = [0.0] * processes, [list[int]() for _ in range(processes)]
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += costs[number]
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Process:
    """This one among those that torchrun started; by itself without."""

    rank: int
    world: int
    device: torch.device
    beside: int = 1
    """How many there are on this machine."""

    @property
    def place(self) -> str:
        """What it computes on, and with how many others: a device that is shared is slower for each."""
        if self.device.type != "cuda":
            return f"CPU, {torch.get_num_threads()} threads"
        name = torch.cuda.get_device_name(self.device)
        return f"{name} that {self.sharing} cells share" if self.sharing > 1 else name

    @property
    def sharing(self) -> int:
        """How many compute on its device."""
        return -(-self.beside // torch.cuda.device_count()) if self.device.type == "cuda" else 1

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            torch.distributed.barrier()


@contextmanager
def processes(device: torch.device) -> Iterator[Process]:
    """Every process trains models of its own; all they exchange is that they are done."""
    world = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if world == 1:
        yield Process(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        yield Process(torch.distributed.get_rank(), world, device, beside)
    finally:
        torch.distributed.destroy_process_group()


def work(config: Config, console: Console, process: Process) -> bool:
    """Run the cells that are missing, this process its part of them; False when a stop was asked for."""
    if process.rank:
        process.wait()  # until the first one has made what all of them read
    plan = plan_of(config, process.device.type)
    if not process.rank:
        keep_plan(plan, config.out)
        write_run(config.out, "reproduce", config)
    workshop = Workshop(plan, config.out, process, console)
    jobs = jobs_of(config.tables, config.seeds, plan.common)
    left = [job for job in jobs if not job.is_done(config.out)]
    for job in set(jobs) - set(left) if not process.rank else ():
        job.clear(config.out)  # somebody killed us right after a result was written
    seconds: list[float] = []
    if left or config.estimate:
        cost = workshop.rehearse()
        seconds = [workshop.seconds(job.cell, cost) for job in left]
    if not process.rank:
        process.wait()
    shares = shared_out(seconds, process.world)
    longest = max(sum(seconds[number] for number in share) for share in shares)
    announce(console, config, plan, len(jobs), seconds, longest, process.sharing)
    process.wait()  # until all have seen what is missing
    mine = [(left[number], seconds[number]) for number in shares[process.rank]]
    finished = config.estimate or _run_all(mine, workshop)
    process.wait()
    return finished


def jobs_of(tables: Sequence[TableName], seeds: int, common: Settings) -> list[Job]:
    """Table by table, each with all seeds before the next one, so that what is done when time is up is whole."""
    cells = cells_of(tables, common)
    return [
        Job(cell, seed)
        for table in tables
        for seed in range(seeds)
        for cell, users in cells.items()
        if users[0] == table
    ]


def announce(
    console: Console, config: Config, plan: Plan, jobs: int, seconds: Sequence[float], longest: float, sharing: int
) -> None:
    """What is about to happen, and what it will take."""
    meant = sum(len(rows_of(table, plan.common)) for table in config.tables)
    cells = jobs // config.seeds
    told = f"{cells} cells" + (f" ({meant} in the tables, shared ones once)" if meant > cells else "")
    done = jobs - len(seconds)
    lines = [
        f"{', '.join(config.tables)}: {told} × {config.seeds} seed{'s' * (config.seeds > 1)}, "
        f"{plan.tokens:,} tokens each" + (f"; {done} of {jobs} are done" if done else "")
    ]
    if seconds:
        lines.append(
            f"{len(seconds)} to run: {plan.tokens * len(seconds):,} tokens, about {duration(longest)}, by a rehearsal "
            "of the common model" + (f" alone; {sharing} that share a GPU take longer" if sharing > 1 else "")
        )
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _run_all(jobs: Sequence[tuple[Job, float]], workshop: Workshop) -> bool:
    began, expected = time.perf_counter(), 0.0
    for number, (job, seconds) in enumerate(jobs, start=1):
        if not workshop(job):
            return False
        expected += seconds
        spent = time.perf_counter() - began
        ahead = sum(later for _, later in jobs[number:]) * spent / expected
        after = f"; about {duration(ahead)} left" if number < len(jobs) else ""
        line = f"{number}/{len(jobs)} {told(job, workshop.out)}{after}"
        workshop.console.print(line, highlight=False, markup=False)
    return True


def told(job: Job, out: Path) -> str:
    """A cell and what it came to, in a line."""
    name = f"{job.cell.key}, seed {job.seed}"
    if not job.is_done(out):
        return f"{name}: failed"
    found = read_json(job.folder(out) / "result.json")
    return (
        f"{name}: hidden tokens {found['mlm']:.1%}, SOP {found['order_probe']:.1%}, "
        f"NSP {found['next_probe']:.1%}, few-shot {found['few_shot']:.1%}"
    )


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
