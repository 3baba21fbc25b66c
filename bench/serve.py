"""The server under load on this machine's loopback: against the library without it, and against a rival, in one run.

    python bench/serve.py                                # the built-in model, five minutes
    python bench/serve.py --model runs/int8 --no-rival   # who cannot read eight bits

Rounds of offline `model.embed`, of requests over HTTP, and of the rival (sentence-transformers behind plain FastAPI,
the same weights) take turns; the medians count. The load comes from this process, which shares the cores with the
server. Then three times as many requests come as the server has answered: what is accepted must stay fast, and the rest
must get 429 at once. Needs pip install '.[serve,peers]'; without sentence-transformers the rival is left out.
`bench/soak_serve.py` is about memory.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import litebert
from litebert.builtin import DEFAULT, folder_of

RIVAL = """
import os, socket, sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model, app = SentenceTransformer(sys.argv[1], device="cpu"), FastAPI()

class Given(BaseModel):
    input: list[str]

@app.post("/v1/embeddings")
def embeddings(given: Given):
    rows = model.encode(given.input, batch_size=32, show_progress_bar=False)
    return {"data": [{"index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]}

listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listening.bind(("127.0.0.1", 0))
listening.listen(2048)
print(f"http://127.0.0.1:{listening.getsockname()[1]}/", file=sys.stderr, flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])
"""
MIB = 1 << 20
BLOCK = 64
WARM_UP_S = 3.0
ALONE = "model.embed alone"
LEAST = 0.7
"""Of its speed must be left over HTTP."""


@dataclass
class Told:
    """What became of some requests."""

    accepted_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    texts: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        return {
            "texts_per_second": round(self.texts / self.seconds, 1),
            "cpu_ms_per_text": round(1e3 * self.cpu_seconds / max(1, self.texts), 2), "requests": len(self.accepted_s),
            "refused": len(self.refused_s), "failed": len(self.failed), **_spread("latency_ms", self.accepted_s),
            **_spread("refused_ms", self.refused_s),
        }  # fmt: skip


def _spread(name: str, seconds: list[float]) -> dict[str, Any]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {name: {"p50": round(1e3 * cuts[49], 1), "p99": round(1e3 * cuts[98], 1),
                   "max": round(1e3 * max(seconds), 1)}}  # fmt: skip


class Connection:
    """As little of HTTP as it takes: what the load costs, the server cannot have."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=16 * MIB)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None
        await reader.readexactly(int(length[1]))
        if b"connection: close" in answer.lower():
            self.close()
        return int(answer[9:12])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@contextmanager
def started(command: list[str]) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server in a process of its own; its port."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    try:
        assert process.stderr is not None
        port = None
        while port is None:
            line = process.stderr.readline()
            if not line:
                raise SystemExit(f"{command[:3]} did not start")
            if found := re.search(r"http://[^ ]*:(\d+)/", line):
                port = int(found[1])
        yield port, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def bodies_of(texts: list[str], size: int, base64: bool) -> list[bytes]:
    """Requests of so many texts each; the rival knows numbers alone."""
    more = {"encoding_format": "base64"} if base64 else {}
    cut = [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]
    return [json.dumps({"input": some} | more).encode() for some in cut]


async def closed_loop(port: int, bodies: list[bytes], size: int, clients: int, seconds: float) -> Told:
    """So many clients, each of which asks again when it has its answer."""
    told, place, end = Told(), 0, time.perf_counter() + seconds

    async def client() -> None:
        nonlocal place
        connection = Connection(port)
        while time.perf_counter() < end:
            body, place = bodies[place % len(bodies)], place + 1
            began = time.perf_counter()
            status = await connection.post("/v1/embeddings", body)
            if status == 200:
                told.accepted_s.append(time.perf_counter() - began)
                told.texts += size
            else:
                told.failed.append(str(status))
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    told.seconds = time.perf_counter() - began
    return told


async def open_loop(port: int, bodies: list[bytes], size: int, per_second: float, seconds: float) -> Told:
    """Requests come when they come, whether the last ones are answered or not."""
    told, idle, asking = Told(), list[Connection](), set[asyncio.Task[None]]()

    async def ask(number: int) -> None:
        connection = idle.pop() if idle else Connection(port)
        began = time.perf_counter()
        try:
            status = await connection.post("/v1/embeddings", bodies[number % len(bodies)])
        except (OSError, asyncio.IncompleteReadError) as error:
            told.failed.append(type(error).__name__)
            return
        spent = time.perf_counter() - began
        idle.append(connection)
        if status == 200:
            told.accepted_s.append(spent)
            told.texts += size
        elif status == 429:
            told.refused_s.append(spent)
        else:
            told.failed.append(str(status))

    began, number = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < seconds:
        while number < now * per_second:
            asking.add(task := asyncio.ensure_future(ask(number)))
            task.add_done_callback(asking.discard)
            number += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*asking)
    told.seconds = time.perf_counter() - began
    for connection in idle:
        connection.close()
    return told


def offline(model: Any, texts: list[str], seconds: float) -> Told:
    """The library alone, 64 texts at a time."""
    told, began, used = Told(), time.perf_counter(), time.process_time()
    while (spent := time.perf_counter() - began) < seconds:
        start = told.texts % (len(texts) - BLOCK)
        model.embed(texts[start : start + BLOCK])
        told.texts += BLOCK
    told.seconds, told.cpu_seconds = spent, time.process_time() - used
    return told


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """That a process has had. On a machine that others use too they say more than the clock."""
    words = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def texts_from(path: Path) -> list[str]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [row["text"] for row in csv.DictReader(file)]
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def memory_mb(process: subprocess.Popen[str]) -> float:
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


@dataclass(frozen=True)
class Serving:
    """A server that takes part; `knows_base64`: as OpenAI's client asks for vectors, which the rival does not know."""

    name: str
    port: int
    process: subprocess.Popen[str]
    knows_base64: bool

    def round(self, texts: list[str], size: int, clients: int, seconds: float) -> Told:
        used, bodies = cpu_seconds(self.process), bodies_of(texts, size, self.knows_base64)
        told = asyncio.run(closed_loop(self.port, bodies, size, clients, seconds))
        told.cpu_seconds = cpu_seconds(self.process) - used
        return told


@dataclass(frozen=True)
class Row:
    """The round in the middle, of one contestant with requests of one size."""

    name: str
    size: int
    clients: int
    told: Told
    by_clock: float
    """Its speed as a share of the library's alone."""
    by_cpu: float

    def record(self) -> dict[str, Any]:
        shares = {"share_by_clock": round(self.by_clock, 3), "share_by_cpu_time": round(self.by_cpu, 3)}
        return {"name": self.name, "texts_a_request": self.size, "clients": self.clients} | self.told.record() | shares


def compare(given: argparse.Namespace, texts: list[str], servers: list[Serving]) -> list[Row]:
    """The library alone and the servers, in turns."""
    model = litebert.load(given.model)
    model.embed(texts[:BLOCK])
    for server in servers:
        server.round(texts, 16, 4, WARM_UP_S)  # the first batches are slower
    rows = []
    for size, clients in ((1, given.clients), (16, max(2, given.clients // 4))):
        found: dict[str, list[Told]] = {}
        for _ in range(given.rounds):
            found.setdefault(ALONE, []).append(offline(model, texts, given.seconds))
            for server in servers:
                found.setdefault(server.name, []).append(server.round(texts, size, clients, given.seconds))
        middle = {name: sorted(rounds, key=rate_of)[len(rounds) // 2] for name, rounds in found.items()}
        alone = middle[ALONE]
        for name, told in middle.items():
            by_cpu = (alone.cpu_seconds / alone.texts) / (told.cpu_seconds / told.texts)
            rows.append(Row(name, size, clients, told, rate_of(told) / rate_of(alone), by_cpu))
    return rows


def rate_of(told: Told) -> float:
    return told.texts / told.seconds


@contextmanager
def contestants(given: argparse.Namespace) -> Iterator[list[Serving]]:
    """Ours, and the rival where it is installed; who is not asked takes no time of the other's."""
    ours = ["-m", "litebert", "serve", given.model, "--port", "0", "--quiet", "--max-requests", str(given.queue)]
    with ExitStack() as stack:
        servers = [Serving("litebert serve", *stack.enter_context(started(ours)), knows_base64=True)]
        if find_spec("sentence_transformers") is not None and given.rival:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "rival.py"
            file.write_text(RIVAL, encoding="utf-8")
            rival = stack.enter_context(started([str(file), str(folder_of(given.model))]))
            servers.append(Serving("sentence-transformers", *rival, knows_base64=False))
        yield servers


def show(rows: list[Row], overload: Told, asked: float, title: str) -> None:
    columns = (
        "texts a request",
        "clients",
        "texts/s",
        "CPU ms/text",
        "speed by clock",
        "by CPU time",
        "p50 ms",
        "p99 ms",
    )
    table = Table("", *columns, title=title)
    for row in rows:
        told = row.told.record()
        load = ("", "") if row.name == ALONE else (str(row.size), str(row.clients))
        speed = (told["texts_per_second"], told["cpu_ms_per_text"], f"{row.by_clock:.0%}", f"{row.by_cpu:.0%}")
        latency = told.get("latency_ms", {"p50": "", "p99": ""})
        table.add_row(row.name, *load, *map(str, speed), str(latency["p50"]), str(latency["p99"]))
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    console.print(table)
    told = overload.record()
    console.print(f"three times too much, {asked:.0f} requests a second for {overload.seconds:.0f} s:")
    console.print(f"  {told['requests']} answered, ms: {told.get('latency_ms')}")
    console.print(f"  {told['refused']} refused with 429, ms: {told.get('refused_ms')}")
    console.print(f"  {told['failed']} anything else")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--data", type=Path, default=Path(litebert.__file__).parent / "examples" / "tickets.csv")
    parser.add_argument("--seconds", type=float, default=10.0, help="of every round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--queue", type=int, default=32, help="requests that the server takes at once")
    parser.add_argument("--no-rival", dest="rival", action="store_false", help="who cannot read eight bits, say")
    parser.add_argument("--out", type=Path, help="write the figures there, JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers end too
    texts = texts_from(given.data)
    with contestants(given) as servers:
        rows = compare(given, texts, servers)
        ours = rows[1].told
        asked = 3 * len(ours.accepted_s) / ours.seconds
        overload = asyncio.run(open_loop(servers[0].port, bodies_of(texts, 1, True), 1, asked, given.seconds))
    show(rows, overload, asked, f"{given.model}, {torch.get_num_threads()} threads, medians of {given.rounds} rounds")
    if given.out:
        too_much = {"asked_per_second": round(asked, 1), **overload.record()}
        report = {"model": given.model, "rows": [row.record() for row in rows], "three_times_too_much": too_much}
        given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(
        min(row.by_clock for row in rows if row.name.startswith(servers[0].name)) < LEAST or overload.failed != []
    )


if __name__ == "__main__":
    sys.exit(main())
