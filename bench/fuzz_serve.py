"""Malformed requests by the hundred thousand: the server must refuse or answer each, and stay as large as it was.

    python bench/fuzz_serve.py --requests 100000

Most go straight to the application in this process, some over a socket, where HTTP itself can be broken too. The models
are tiny and random. Ends with 1 if any answer was 5xx but 503 and 504, if anything was not answered, or if memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from litebert.inference import Model
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.serve.app import build_app
from litebert.serve.launch import listen
from litebert.serve.limits import Limits
from litebert.serve.middleware import AccessControl
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from litebert.tasks import Answer, Choose, Classify, Mask, Multilabel, Regress, Tag, Task
from litebert.tokenizer import train_unigram

PROSE = [
    f"The {what} of number {number} was {how} before the rain." for number in range(40) for what in ("lamp", "boat")
    for how in ("green", "late", "lost")
]  # fmt: skip
TASKS: list[Task[Any, Any]] = [
    Mask(), Classify(["a", "b"]), Multilabel(["x", "y"]), Regress(pairs=True), Tag(["O", "B-A", "I-A"]),
    Answer(allow_impossible=True), Choose(),
]  # fmt: skip
EXAMPLES = [{"text": f"the {word}", "label": label} for word, label in (("lamp", "a"), ("boat", "b"), ("rain", "b"))]
GOOD: list[tuple[str, str, Any]] = [
    ("POST", "/fill-mask", {"text": "The [MASK] was late", "top": 3}),
    ("POST", "/classify", {"texts": ["the lamp", "the boat"]}),
    ("POST", "/tag", {"text": "the lamp was lost"}),
    ("POST", "/translate", {"text": "the lamp was lost"}),
    ("POST", "/answer", {"question": "what", "context": "the lamp was late"}),
    ("POST", "/similarity", {"texts": ["the lamp", "the boat"]}),
    ("POST", "/similarity", {"a": ["the lamp"], "b": ["the boat"]}),
    ("POST", "/v1/embeddings", {"model": "mask", "input": ["the lamp"], "encoding_format": "base64"}),
    ("POST", "/v1/embeddings", {"input": [[2, 9, 3]], "dimensions": 4}),
    ("POST", "/v1/rerank", {"query": "lamp", "documents": ["the boat", "rain"], "top_n": 1}),
    ("POST", "/embed", {"inputs": ["the lamp"], "normalize": False, "truncate": False, "dimensions": 4}),
    ("POST", "/rerank", {"query": "lamp", "texts": ["the boat", "rain"], "return_text": True}),
    ("POST", "/tokenize", {"inputs": ["the lamp"], "add_special_tokens": False}),
    ("POST", "/predict/choose", {"inputs": [{"question": "a", "options": ["b", "c"], "text": "d"}]}),
    ("POST", "/predict/regress", {"inputs": [["the lamp", "the boat"]]}),
    ("POST", "/predict/mask", {"inputs": ["The [MASK]"], "passes": 1, "top": 2}),
    ("POST", "/predict/multilabel", {"inputs": ["the lamp"]}),
    ("POST", "/inside", {"text": "The [MASK] was", "model": "mask"}),
    ("POST", "/search", {"texts": ["the lamp", "the boat"]}),
    ("POST", "/search/ID", {"query": "lamp", "top": 1}),
    ("POST", "/adapt", {"examples": EXAMPLES, "label_names": None}),
    ("POST", "/adapt/ID/examples", {"examples": EXAMPLES[:1]}),
    ("POST", "/adapt/ID/explain", {"text": "lamp"}),
    ("POST", "/predict/adapted-ID", {"inputs": ["lamp"]}),
    ("GET", "/adapt/ID/download", None),
    ("DELETE", "/adapt/ID", None),
    ("DELETE", "/search/ID", None),
    ("GET", "/runs", None),
    ("GET", "/runs/ID", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/adapted-ID", None),
    ("GET", "/info", None),
    ("GET", "/metrics", None),
    ("GET", "/page/ID", None),
    ("GET", "/docs/ID", None),
]
WORDS = ["", " ", "[MASK]" * 70, "\x00", "\ud800", "🐴" * 50, "../../etc/passwd", "a" * 5000, "lamp\u202e", "0", "null",
         "%00%2e%2e", "ｆｕｌｌ", "e" + "\u0301" * 200, "[CLS] [SEP]", "'\";--", "\n\r\t", "ﷺ" * 40]  # fmt: skip
VALUES: list[Any] = [None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), [], {}, [[]], [None], {"": {}}, *WORDS]
DELIBERATE = (503, 504)


def made_models(folder: Path) -> Registry:
    tokenizer = train_unigram(PROSE, 80)
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    for task in TASKS:
        heads = pretraining_heads(config) if task.name == "mask" else {task.head_name: task.head(config)}
        Model(Albert(config, heads).eval(), tokenizer, task).save(folder / task.name)
    return Registry.load([str(folder / task.name) for task in TASKS])


def mutated(value: Any, rng: random.Random, chance: float) -> Any:
    """The same with some of its parts exchanged, left out, or multiplied."""
    if rng.random() < chance:
        return rng.choice(VALUES)
    if isinstance(value, dict):
        found = {key: mutated(one, rng, chance) for key, one in value.items() if rng.random() > chance / 2}
        if rng.random() < chance:
            found[rng.choice(WORDS)] = rng.choice(VALUES)
        return found
    if isinstance(value, list):
        return [mutated(one, rng, chance) for one in value for _ in range(rng.choice((1, 1, 1, 1, 0, 2, 300)))]
    return value


def broken(body: bytes, rng: random.Random) -> bytes:
    """No longer JSON, mostly."""
    kind = rng.randrange(8)
    if kind == 0:
        return body[: rng.randrange(len(body) + 1)]
    if kind == 1:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
    if kind == 2:
        return b"[" * rng.choice((10, 1000, 50_000))
    if kind == 3:
        return body.replace(b'"', b"'")
    if kind == 4:
        return b'{"text": ' + b"9" * rng.choice((5, 5000)) + b"}"
    if kind == 5:
        at = rng.randrange(len(body) + 1)
        return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    return body + body if kind == 6 else b"\xef\xbb\xbf" + body


def made_request(rng: random.Random, names: list[str]) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
    method, path, content = rng.choice(GOOD)
    name = rng.choice(names) if names and rng.random() < 0.7 else rng.choice(["0" * 32, "..", "%2e%2e%2f", "a" * 300])
    path = path.replace("ID", name)
    if rng.random() < 0.05:
        path = rng.choice([path + "/", "//" + path, path.upper(), "/" + "x" * 3000, path + "/../..", "/predict/%ff"])
    if rng.random() < 0.05:
        method = rng.choice(["GET", "PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "POST", "DELETE", "BREW"])
    body = b""
    if content is not None:
        text = json.dumps(mutated(content, rng, rng.choice((0.0, 0.1, 0.3))), ensure_ascii=rng.random() < 0.8)
        body = text.encode("utf-8", "surrogatepass")
        body = broken(body, rng) if rng.random() < 0.25 else body
    kind = (
        b"application/json" if rng.random() < 0.9 else rng.choice([b"text/plain", b"", b"multipart/form-data", b"\xff"])
    )
    headers = [(b"host", b"localhost"), (b"content-type", kind)]
    if rng.random() < 0.05:
        headers.append(rng.choice([
            (b"origin", b"http://evil.example"), (b"authorization", b"Bearer \xff"), (b"content-length", b"9" * 30),
            (b"host", b"["), (b"accept-encoding", b"br"), (b"range", b"bytes=9-1,-"), (b"content-encoding", b"gzip"),
        ]))  # fmt: skip
    return method, path, headers, body


async def ask(gate: Any, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes, leaves: bool) -> Any:
    """The status and the content, straight from the application; `leaves`: the client goes before the answer."""
    from urllib.parse import unquote

    path, _, query = path.partition("?")
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
             "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "headers": headers,
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "root_path": "", "state": {}}  # fmt: skip
    given, told, waiting = False, [], asyncio.Event()

    async def receive() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        if not leaves:
            await waiting.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)

    await gate(scope, receive, send)
    status = told[0]["status"] if told else (0 if leaves else -1)
    return status, b"".join(message.get("body", b"") for message in told[1:])


def memory_mb() -> float:
    """Of this process now."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def fuzz_application(gate: Any, requests: int, seed: int) -> tuple[Counter[int], list[str], list[float]]:
    rng, statuses, wrong = random.Random(seed), Counter[int](), []
    names: list[str] = []
    sizes: list[float] = []
    done = 0

    async def worker() -> None:
        nonlocal done
        while done < requests:
            done += 1
            if done % max(1, requests // 20) == 0:
                sizes.append(memory_mb())
            method, path, headers, body = made_request(rng, names)
            leaves = rng.random() < 0.02
            status, content = await ask(gate, method, path, headers, body, leaves)
            statuses[status] += 1
            if status in (-1, 500) or (status > 500 and status not in DELIBERATE):
                wrong.append(f"{status} {method} {path[:80]} {body[:200]!r} -> {content[:200]!r}")
            if status == 200 and path in ("/search", "/adapt"):
                names.append(json.loads(content)["id"])
                del names[:-8]

    await asyncio.gather(*(worker() for _ in range(16)))
    return statuses, wrong, sizes


def fuzz_socket(port: int, requests: int, seed: int) -> tuple[Counter[int], list[str], list[float]]:
    """Broken HTTP, over loopback: each on a connection of its own, and the server must live on."""
    rng, statuses, wrong = random.Random(seed), Counter[int](), []
    sizes: list[float] = []
    for number in range(requests):
        if number % max(1, requests // 20) == 0:
            sizes.append(memory_mb())
        method, path, headers, body = made_request(rng, [])
        path = "".join(c for c in path if c.isprintable() and not c.isspace()) or "/"
        lines = [f"{method} {path} HTTP/1.1".encode(), *(name + b": " + value for name, value in headers)]
        is_whole = rng.random() < 0.8
        if not any(name == b"content-length" for name, _ in headers):
            lines.append(b"content-length: %d" % (len(body) if is_whole else rng.randrange(200)))
        lines.append(b"connection: close")
        raw = b"\r\n".join(lines) + b"\r\n\r\n" + body
        if rng.random() < 0.2:
            raw, is_whole = broken(raw, rng), False
        with socket.create_connection(("127.0.0.1", port), timeout=30 if is_whole else 0.05) as connection:
            try:
                connection.sendall(raw)
                answer = connection.recv(65_536)
            except (ConnectionResetError, BrokenPipeError, TimeoutError):
                answer = b""  # it was refused before all of it was read, or the server waits for the rest
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        statuses[status] += 1
        if status >= 500 and status not in DELIBERATE:
            wrong.append(f"{status} {raw[:200]!r} -> {answer[:200]!r}")
    return statuses, wrong, [*sizes, memory_mb()]


async def run(arguments: argparse.Namespace, registry: Registry) -> bool:
    import uvicorn

    from litebert.serve.server import Server

    limits = Limits(jobs=16, timeout_s=20, body_bytes=200_000, requests=64)
    gate = build_app(lambda: Service(registry, limits), limits, AccessControl(hosts=("localhost",)))
    server = Server(uvicorn.Config(gate, log_config=None, access_log=False, lifespan="on"), gate, 0.0)
    listening = listen("127.0.0.1", 0)
    serving = asyncio.ensure_future(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    began = time.perf_counter()
    raw = arguments.requests // 10
    statuses, wrong, sizes = await fuzz_application(gate, arguments.requests - raw, arguments.seed)
    port = listening.getsockname()[1]
    over_socket, more_wrong, more_sizes = await asyncio.to_thread(fuzz_socket, port, raw, arguments.seed + 1)
    healthy = (await ask(gate, "GET", "/ready", [(b"host", b"localhost")], b"", False))[0] == 200
    server.should_exit = True
    await serving
    growth = max(some[-1] / some[len(some) // 2] - 1 for some in (sizes, more_sizes))  # each has its own warm-up
    print(json.dumps({
        "requests": arguments.requests, "seconds": round(time.perf_counter() - began, 1), "in_process": dict(statuses),
        "over_socket": dict(over_socket), "memory_mb": [[round(size) for size in some] for some in (sizes, more_sizes)],
        "growth_in_second_half": round(growth, 4), "ready_after": healthy, "wrong": (wrong + more_wrong)[:10],
    }, indent=1))  # fmt: skip
    return healthy and not wrong and not more_wrong and growth < arguments.growth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth", type=float, default=0.02, help="of memory, from the middle to the end of each part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(run(arguments, made_models(Path(folder)))) else 1


if __name__ == "__main__":
    sys.exit(main())
