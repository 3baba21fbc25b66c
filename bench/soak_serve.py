"""Half an hour of everything that clients ask for, at a bounded rate: the server must stay as large as it was.

    OMP_NUM_THREADS=1 python bench/soak_serve.py --minutes 30 --rate 3

Two clients go through the endpoints in turns, with texts of one word to a few hundred, lists that are uploaded and
deleted, classifiers that are taught, asked, explained, downloaded and deleted, and requests that are refused. A soak is
about memory, not speed, so it leaves the machine to others: `--rate` is requests per second. Ends with 1 if anything
was not answered as it should be, or the peak of the last third is by more than `--growth` above that of the first.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import litebert
from litebert.builtin import DEFAULT
from serve import memory_mb, started, texts_from

CLIENTS = 2
SAMPLE_S = 10.0


@dataclass
class Told:
    """What became of the requests so far."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)


class Client:
    """Asks one thing after another over one connection, so many per second."""

    def __init__(self, port: int, per_second: float, told: Told, end: float) -> None:
        self._connection = http.client.HTTPConnection("localhost", port, timeout=120)
        self._pause_s, self.told, self._end = 1 / per_second, told, end
        self._next = time.monotonic()

    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def ask(self, method: str, path: str, content: Any = None, status: int = 200) -> Any:
        """The answer, if it is JSON; whatever has another status than it should is noted."""
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next + self._pause_s, time.monotonic())
        body = None if content is None else json.dumps(content)
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        read = answer.read()
        route = "/".join(part if len(part) < 24 else "ID" for part in path.split("/"))
        self.told.statuses[f"{method} {route} {answer.status}"] += 1
        if answer.status != status:
            self.told.wrong.append(f"{answer.status} instead of {status}: {method} {path} {read[:200]!r}")
        return json.loads(read) if "json" in (answer.getheader("Content-Type") or "") else None


def read_vectors(client: Client, texts: list[str], rng: random.Random) -> None:
    for encoding in ("float", "base64"):
        some = rng.sample(texts, rng.randint(1, 8))
        client.ask("POST", "/v1/embeddings", {"input": some, "encoding_format": encoding})
    client.ask("POST", "/similarity", {"texts": rng.sample(texts, 4)})
    client.ask("POST", "/v1/rerank", {"query": rng.choice(texts), "documents": rng.sample(texts, 4)})


def fill_masks(client: Client, texts: list[str], rng: random.Random, model: dict[str, Any]) -> None:
    words = rng.choice(texts).split()
    words[rng.randrange(min(4, len(words)))] = "[MASK]"  # among what a small model reads too
    client.ask("POST", "/fill-mask", {"text": " ".join(words), "top": rng.randint(1, 20)})
    passes = rng.randint(1, model["passes"])
    client.ask("POST", f"/predict/{model['id']}", {"inputs": [" ".join(words)], "passes": passes})
    client.ask("POST", "/inside", {"text": " ".join(words[:5])})


def search(client: Client, texts: list[str], rng: random.Random) -> None:
    made = client.ask("POST", "/search", {"texts": rng.sample(texts, 12)})["id"]
    for _ in range(4):
        client.ask("POST", f"/search/{made}", {"query": rng.choice(texts), "top": 5})
    client.ask("DELETE", f"/search/{made}")


def teach(client: Client, texts: list[str], rng: random.Random) -> None:
    examples = [{"text": text, "label": "ab"[place % 2]} for place, text in enumerate(rng.sample(texts, 8))]
    made = client.ask("POST", "/adapt", {"examples": examples})["id"]
    client.ask("POST", f"/predict/adapted-{made}", {"inputs": rng.sample(texts, 2)})
    client.ask("POST", f"/adapt/{made}/examples", {"examples": examples[:2]})
    client.ask("POST", f"/adapt/{made}/explain", {"text": rng.choice(texts)})
    client.ask("GET", f"/adapt/{made}/download")
    client.ask("DELETE", f"/adapt/{made}")


def look_around(client: Client, rng: random.Random) -> None:
    for path in ("/v1/models", "/metrics", "/ready", "/", "/page/app.js", "/openapi.json"):
        client.ask("GET", path)
    client.ask("POST", "/fill-mask", {"text": rng.random()}, status=400)
    client.ask("POST", "/v1/embeddings", {"input": []}, status=400)
    client.ask("GET", f"/nothing-{rng.random()}", status=404)


def go_round(client: Client, texts: list[str], model: dict[str, Any], seed: int) -> None:
    """Vectors and masks most often, as clients ask."""
    rng, number = random.Random(seed), seed
    steps: list[Callable[[], None]] = [
        lambda: search(client, texts, rng), lambda: teach(client, texts, rng), lambda: look_around(client, rng),
    ]  # fmt: skip
    try:
        while not client.is_over():
            for _ in range(4):
                read_vectors(client, texts, rng)
                fill_masks(client, texts, rng, model)
                if client.is_over():
                    return
            steps[number % len(steps)]()
            number += 1
    except (OSError, http.client.HTTPException, KeyError, TypeError) as error:  # no answer, or not the one that is due
        client.told.wrong.append(f"the client gave up: {error!r}")


def soak(given: argparse.Namespace, texts: list[str]) -> Told:
    told, end = Told(), time.monotonic() + 60 * given.minutes
    with started(["-m", "litebert", "serve", given.model, "--port", "0", "--quiet", "--runs", ""]) as (port, process):
        model = Client(port, 1e3, Told(), end).ask("GET", "/v1/models")["data"][0]
        clients = [Client(port, given.rate / CLIENTS, told, end) for _ in range(CLIENTS)]
        threads = [
            threading.Thread(target=go_round, args=(client, texts, model, seed), daemon=True)
            for seed, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(SAMPLE_S, 2 * given.minutes))
            told.memory_mb.append(memory_mb(process))
            print(f"{sum(told.statuses.values()):,} requests, {told.memory_mb[-1]:.1f} MiB", file=sys.stderr)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--data", type=Path, default=Path(litebert.__file__).parent / "examples" / "tickets.csv")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=3.0, help="requests per second")
    parser.add_argument("--growth", type=float, default=0.02, help="of memory: more is a failure")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server ends too
    tickets = texts_from(given.data)
    words, long = (text.split()[0] for text in tickets), map(" ".join, zip(*[iter(tickets)] * 12, strict=False))
    told = soak(given, list(dict.fromkeys([*tickets, *words, *long])))
    third = len(told.memory_mb) // 3
    growth = max(told.memory_mb[-third:]) / max(told.memory_mb[:third]) - 1
    shown = [round(size, 1) for size in told.memory_mb[:: max(1, len(told.memory_mb) // 30)]]
    print(json.dumps({
        "model": given.model, "minutes": given.minutes, "rate": given.rate, "requests": sum(told.statuses.values()),
        "by_endpoint": dict(sorted(told.statuses.items())), "wrong": told.wrong[:10], "memory_mb": shown,
        "growth": round(growth, 4),
    }, indent=1))  # fmt: skip
    return int(bool(told.wrong) or growth > given.growth)


if __name__ == "__main__":
    sys.exit(main())
