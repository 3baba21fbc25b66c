"""The command as a process: it starts, it is asked, it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from litebert.cli import main
from litebert.commands.serve import Config, settings_of
from litebert.serve import json_logs as logs
from litebert.serve import launch
from litebert.serve.json_logs import JsonFormatter
from litebert.serve.launch import ServerSettings, listen
from tests.conftest import peer
from tests.serve.conftest import TEXTS

SOURCE = Path(__file__).parents[2] / "src"


class Served:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, method: str, path: str, body: Any = None, connection: Any = None) -> tuple[int, Any, Any]:
        """Status, content and headers."""
        used = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = None if body is None else json.dumps(body)
        used.request(method, path, content, {"Content-Type": "application/json"} if content else {})
        answer = used.getresponse()
        text = answer.read()
        if connection is None:
            used.close()
        return answer.status, json.loads(text) if text.startswith(b"{") else text, answer.headers


@contextmanager
def served(*arguments: object, **environment: str) -> Iterator[Served]:
    """A server in a process of its own, at a port that is free."""
    peer("uvicorn")
    command = [sys.executable, "-m", "litebert", "serve", *map(str, arguments), "--port", "0"]
    known = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | environment
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=known)
    assert process.stderr is not None
    lines: list[str] = []
    port = None
    while port is None:
        line = process.stderr.readline()
        lines.append(line)
        assert line, "".join(lines)
        if found := re.search(r"http://[^ ]*:(\d+)/", line):
            port = int(found[1])
    reading = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    reading.start()
    try:
        one = Served(process, port)
        for _ in range(600):
            try:
                if one.ask("GET", "/ready")[0] == 200:
                    break
            except OSError:
                pass
            assert process.poll() is None, "".join(lines)
            time.sleep(0.05)
        yield one
    finally:
        process.kill()
        process.wait()
        reading.join()


def ask_until_told_to_leave(server: Served, answers: list[int], failures: list[str], begun: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    while True:
        try:
            status, _, headers = server.ask("POST", "/tag", {"texts": TEXTS}, connection)
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
            return
        answers.append(status)
        begun.set()
        if headers.get("connection") == "close":
            return


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_answers_all_and_ends_well(workers: int, folders: dict[str, Path]) -> None:
    with served(folders["tag"], "--workers", workers, "--drain-s", 2) as server:
        answers: list[int] = []
        failures: list[str] = []
        begun = [threading.Event() for _ in range(8)]
        asking = [
            threading.Thread(target=ask_until_told_to_leave, args=(server, answers, failures, one)) for one in begun
        ]
        for thread in asking:
            thread.start()
        for one in begun:
            assert one.wait(60)
        server.process.send_signal(signal.SIGTERM)
        for thread in asking:
            thread.join()
        assert server.process.wait(60) == 0
        assert failures == []
        assert set(answers) == {200}


def test_a_request_that_is_being_computed_is_answered_after_sigterm(folders: dict[str, Path]) -> None:
    with served(folders["tag"], "--drain-s", 0, "--max-wait-ms", 800) as server:  # it waits for a fuller batch
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(server.ask("POST", "/tag", {"texts": TEXTS})[0]))
        asking.start()
        while "in_flight 1.0" not in str(server.ask("GET", "/metrics")[1]):
            assert asking.is_alive()
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        asking.join()
        assert found == [200]
        assert server.process.wait(60) == 0


def test_keys_come_from_a_file_or_the_environment(folders: dict[str, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key-one-of-the-file\nkey-two-of-the-file\n", encoding="utf-8")
    with served(folders["tag"], "--api-key-file", keys, LITEBERT_API_KEYS="key-of-the-environment") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for key, status in (("key-two-of-the-file", 200), ("key-of-the-environment", 200), ("wrong", 401)):
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status, key
        connection.request("GET", "/v1/models", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 403


def test_workers_add_up_their_metrics_and_share_their_state(folders: dict[str, Path], tmp_path: Path) -> None:
    with served(folders["mask"], "--workers", 2, "--state-dir", tmp_path) as server:
        listed = server.ask("POST", "/search", {"texts": TEXTS})[1]["id"]
        for _ in range(10):  # a new connection each, so that both are asked
            status, found, _ = server.ask("POST", f"/search/{listed}", {"query": TEXTS[1], "top": 1})
            assert (status, found["results"][0][0]["text"]) == (200, TEXTS[1])
        wanted = 'litebert_requests_total{method="POST",route="/search/{id}",status="200"} 10.0'
        for _ in range(100):  # a request is counted when its answer has been sent
            figures = server.ask("GET", "/metrics")[1].decode()
            if wanted in figures:
                break
            time.sleep(0.1)
        assert wanted in figures
        assert "litebert_worker_deaths_total 0.0" in figures


def die_at_first(settings: ServerSettings, listening: Any) -> None:
    """In the place of a worker: one dies, all others wait for their end."""
    assert settings.state_dir is not None
    try:
        (settings.state_dir / "died").mkdir()
    except FileExistsError:
        time.sleep(60)
    os._exit(3)


def test_a_worker_that_dies_is_told_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer("prometheus_client")
    monkeypatch.setattr(launch, "_serve_in_worker", die_at_first)
    monkeypatch.setattr(launch, "MIN_LIFETIME_S", 0.0)
    monkeypatch.setattr(logs, "log_to_stderr", lambda level: None)
    starts: list[object] = []
    original = launch._WorkerSupervisor._start

    def start(processes: Any) -> None:
        original(processes)
        starts.append(processes)
        if len(starts) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(launch._WorkerSupervisor, "_start", start)
    settings = replace(settings_of(Config(port=0)), workers=2, state_dir=tmp_path)
    listening = listen("127.0.0.1", 0)
    assert launch.launch(settings, listening, lambda: None) == 0
    listening.close()
    (line,) = [
        json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "litebert.serve"
    ]
    assert (line["event"], line["level"], line["exit_code"]) == ("worker died", "error", 3)
    assert line["pid"] > 0
    assert line["lived_s"] >= 0


def test_mistakes_of_the_command_are_told_in_one_line(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import socket

    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    (tmp_path / "short").write_text("abc\n", encoding="utf-8")
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    for flags, said in (
        (["--port", str(taken.getsockname()[1])], "cannot listen there"),
        (["--port", "99999"], "port=99999"),
        (["--workers", "0"], "workers=0 must be at least 1"),
        (["--timeout-s", "0"], "timeout_s=0.0 must be above 0"),
        (["--api-key-file", str(tmp_path / "short")], "too easy to guess"),
        (["--api-key-file", str(tmp_path / "empty")], "holds no key"),
        (["--api-key-file", str(tmp_path / "none")], "cannot be read"),
    ):
        assert main(["serve", str(folders["tag"]), *flags]) == 2
        assert said in capsys.readouterr().err
    taken.close()
    assert main(["serve", str(tmp_path / "nothing"), "--port", "0"]) == 2


CHANGED: dict[str, Any] = {
    "models": ("a",), "host": "0.0.0.0", "port": 1, "engine": "torch", "open_metrics": True, "allowed_hosts": ("b",),
    "workers": 2, "state_dir": "c", "runs": "", "drain_s": 9.0, "quiet": True,
}  # fmt: skip
BY_FILE = "api_key_file"


@pytest.mark.parametrize("name", [field.name for field in fields(Config)])
def test_every_flag_reaches_the_server(name: str, tmp_path: Path) -> None:
    plain = Config()
    (tmp_path / "keys").write_text("a-key-of-sixteen-or-more", encoding="utf-8")
    value = str(tmp_path / "keys") if name == BY_FILE else CHANGED.get(name, 7)
    assert settings_of(replace(plain, **{name: value})) != settings_of(plain)


def test_only_this_machine_is_served_unless_told_otherwise() -> None:
    assert settings_of(Config()).allowed_hosts == ("localhost", "127.0.0.1", "::1")
    assert settings_of(Config(host="localhost")).is_local
    assert settings_of(Config(host="::1")).is_local
    everywhere = settings_of(Config(host="0.0.0.0"))
    assert not everywhere.is_local
    assert everywhere.allowed_hosts == ()


def test_answers_are_sent_without_delay() -> None:
    """The second part of an answer must not wait until the first is acknowledged."""
    import asyncio
    import socket

    delays = []

    async def run() -> None:
        def accepted() -> asyncio.Protocol:
            class Looking(asyncio.Protocol):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    connection = transport.get_extra_info("socket")
                    delays.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

            return Looking()

        listening = listen("127.0.0.1", 0)
        server = await asyncio.get_running_loop().create_server(accepted, sock=listening)
        _, writer = await asyncio.open_connection(*listening.getsockname())
        while not delays:
            await asyncio.sleep(0.01)
        writer.close()
        server.close()

    asyncio.run(run())
    assert delays != [0]


def test_a_server_for_others_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    from litebert.commands import serve

    monkeypatch.setattr(launch, "launch", lambda *_: 0)
    with pytest.warns(UserWarning, match="anybody who can reach it may use it"):
        serve.run(Config(host="0.0.0.0", port=0))
    monkeypatch.setenv("LITEBERT_API_KEYS", "a-key-of-sixteen-or-more")
    with pytest.warns(UserWarning, match="other machines can reach this server$"):
        serve.run(Config(host="0.0.0.0", port=0))
