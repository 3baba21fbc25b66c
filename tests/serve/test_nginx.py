"""deploy/nginx.conf, with a real nginx before two servers."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.serve.conftest import TEXTS
from tests.serve.test_process import Served, served

AROUND = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{
    log_format who '$upstream_addr';
    access_log {folder}/asked who;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {documented}
}}
"""
BODY = {"texts": TEXTS}
MOST = 8
"""Requests that a server takes at once."""


class Balanced:
    """nginx, and the servers behind it."""

    def __init__(self, port: int, servers: list[Served], log: Path) -> None:
        self.port, self.servers, self._log = port, servers, log

    def ask(self, body: Any = BODY, **headers: str) -> tuple[int, Any, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/tag", json.dumps(body), {"Content-Type": "application/json"} | headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text.startswith(b"{") else text, answer.headers

    def asked(self) -> Counter[str]:
        """How often each server was, by address."""
        return Counter(self._log.read_text(encoding="ascii").split())

    def asked_at_last(self) -> Counter[str]:
        """The same once nginx, which writes a moment after it answers, writes no more."""
        found, before = self.asked(), None
        while found != before:
            time.sleep(0.2)
            found, before = self.asked(), found
        return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def documented(port: int, servers: list[Served]) -> str:
    """The file as it is, but for what it cannot know: addresses and the certificate."""
    text = (REPOSITORY / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    text = re.sub(r"ssl_certificate.*\n", "", text).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    for number, server in enumerate(servers, start=1):
        text = text.replace(f"10.0.0.{number}:8000", f"127.0.0.1:{server.port}")
    return text


@pytest.fixture
def balanced(folders: dict[str, Path], tmp_path: Path) -> Iterator[Balanced]:
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed (apt-get install nginx)")
    with ExitStack() as stack:
        flags = ("--max-requests", MOST, "--drain-s", 1)
        servers = [stack.enter_context(served(folders["tag"], *flags)) for _ in range(2)]
        port = free_port()
        config = AROUND.format(folder=tmp_path, documented=documented(port, servers))
        (tmp_path / "nginx.conf").write_text(config, encoding="utf-8")
        command = [program, "-p", str(tmp_path), "-e", str(tmp_path / "errors"), "-c", str(tmp_path / "nginx.conf")]
        process = subprocess.Popen(command)
        try:
            _wait_until_it_listens(port, process)
            yield Balanced(port, servers, tmp_path / "asked")
        finally:
            process.terminate()
            process.wait()


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)


@contextmanager
def full(server: Served) -> Iterator[None]:
    """As many requests as it takes, none of which is sent to its end."""
    with ExitStack() as stack:
        for _ in range(10 * MOST):  # some may be turned away while an answer before them still counts
            if _requests(server) == MOST:
                break
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            half.sendall(b"POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.02)
        assert _requests(server) == MOST
        yield
    until = time.monotonic() + 30
    while _requests(server):
        assert time.monotonic() < until
        time.sleep(0.01)


def _requests(server: Served) -> int:
    told = re.search(r"litebert_requests_in_flight (\d+)\.0", str(server.ask("GET", "/metrics")[1]))
    assert told is not None
    return int(told[1])


def test_requests_are_spread_and_pages_of_the_same_name_may_ask(balanced: Balanced) -> None:
    for _ in range(10):
        assert balanced.ask(Origin=f"http://127.0.0.1:{balanced.port}")[0] == 200
    assert sorted(balanced.asked_at_last().values()) == [5, 5]
    assert balanced.ask(Origin="http://evil.example")[0] == 403


def test_large_bodies_reach_the_servers_and_are_refused_in_their_words(balanced: Balanced) -> None:
    two_mb = {"texts": ["a" * 50_000] * 40}
    assert balanced.ask(two_mb | {"model": "nobody"})[1]["error"]["message"].startswith("model='nobody'")
    status, content, _ = balanced.ask({"texts": ["a" * 50_000] * 90})
    assert (status, content["error"]["type"]) == (413, "too_large")


def test_a_full_server_is_passed_over_and_two_are_told_to_the_client(balanced: Balanced) -> None:
    first, second = balanced.servers
    with full(first):
        for _ in range(4):
            assert balanced.ask()[0] == 200
        with full(second):
            for _ in range(4):  # and never 502, as if they were gone
                status, content, headers = balanced.ask()
                assert (status, content["error"]["type"]) == (429, "overloaded")
                assert int(headers["Retry-After"]) >= 1
        assert balanced.ask()[0] == 200  # at once
    before = balanced.asked_at_last()
    for _ in range(4):
        assert balanced.ask()[0] == 200
    assert sorted((balanced.asked_at_last() - before).values()) == [2, 2]


def test_a_server_that_ends_under_load_loses_nothing(balanced: Balanced) -> None:
    statuses: list[int] = []
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            statuses.append(balanced.ask()[0])

    # so few that one server takes them all; a request counts until a moment after its answer
    asking = [threading.Thread(target=go_on) for _ in range(MOST // 3)]
    for thread in asking:
        thread.start()
    ending, staying = balanced.servers
    while len(balanced.asked()) < 2:
        time.sleep(0.01)
    ending.process.send_signal(signal.SIGTERM)
    assert ending.process.wait(60) == 0
    alone = len(statuses) + 20
    while len(statuses) < alone and all(thread.is_alive() for thread in asking):
        time.sleep(0.01)
    stop.set()
    for thread in asking:
        thread.join()
    assert set(statuses) == {200}
    assert staying.process.poll() is None
