"""What the server refuses, and how."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from litebert.serve import engine
from litebert.serve.json_logs import JsonFormatter
from litebert.serve.limits import Limits
from litebert.serve.middleware import AccessControl, RequestMiddleware, ServerState
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from tests.serve.conftest import EXAMPLES, TEXTS, Start, listening

KEY = "a-key-of-sixteen-or-more"


def problem(answer: Any, status: int) -> dict[str, Any]:
    """Every refusal has one form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_what_is_wrong_with_a_request_is_said_in_one_form(client: Any) -> None:
    assert problem(client.post("/fill-mask", json={"text": 5}), 400)["param"] == "text"
    assert "top" in problem(client.post("/fill-mask", json={"text": "a [MASK]", "top": 0}), 400)["message"]
    assert "[MASK]" in problem(client.post("/fill-mask", json={"text": "no gap"}), 400)["message"]
    assert "mistyped" in problem(client.post("/tag", json={"text": "a", "mistyped": 1}), 400)["message"]
    long = b'{"text": 1' + b"0" * 9999 + b"}"
    for body in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"text": "\\ud800 [MASK]"}', long):
        problem(client.post("/fill-mask", content=body, headers={"content-type": "application/json"}), 400)
    assert "'nope' is not served" in problem(client.post("/predict/nope", json={"inputs": ["a"]}), 404)["message"]
    problem(client.get("/nothing"), 404)
    problem(client.get("/fill-mask"), 405)
    assert "does classify" in problem(client.post("/tag", json={"text": "a", "model": "classify"}), 400)["message"]
    assert "passes=99" in problem(client.post("/predict/mask", json={"inputs": ["a"], "passes": 99}), 400)["message"]
    assert "own depths" in problem(client.post("/predict/few", json={"inputs": ["a"], "passes": 1}), 400)["message"]
    assert "input 2" in problem(client.post("/predict/classify", json={"inputs": ["a", {"no": 1}]}), 400)["message"]
    assert "0 to 199" in problem(client.post("/v1/embeddings", json={"input": [[1, 99_999]]}), 400)["message"]
    for empty in ("", [], [""], [[]]):
        problem(client.post("/v1/embeddings", json={"input": empty}), 400)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("fill-mask", {"text": 5}, "text=5 must be a text; put it in quotes"),
        ("fill-mask", {"text": ["a"]}, "text=[…] must be a text; put it in quotes"),
        ("fill-mask", {}, "text is missing; add it"),
        ("fill-mask", {"text": ""}, "text is empty; give a text"),
        ("fill-mask", {"text": "\ud800"}, "text holds a lone surrogate, which is not a character; send valid UTF-8"),
        ("fill-mask", {"text": "a", "top": "\ud800"}, 'top="?" must be an integer'),
        ("fill-mask", {"text": "a", "top": 0}, "top=0 must be 1 or more; raise it"),
        ("fill-mask", {"text": "a", "top": 101}, "top=101 must be 100 or less; lower it"),
        ("fill-mask", {"text": "a", "top": 1.5}, "top=1.5 must be an integer"),
        ("fill-mask", {"text": "a", "tops": 1}, "tops is an unknown field; leave it out"),
        ("fill-mask", [], "the body=[] must be an object; put it in braces"),
        ("fill-mask", b"", "the body is missing; add it"),
        ("fill-mask", b'{"text": "\xff"}', "the body cannot be read; send JSON in UTF-8"),
        ("fill-mask", b"{'text'", "the body is not JSON (expecting property name enclosed in double quotes)"),
        ("fill-mask", {"text": "a", "model": "m" * 201}, f'model="{"m" * 60}…" is longer than 200 characters'),
        ("classify", {}, "give text, or texts, a list, and not both"),
        ("classify", {"texts": []}, "texts is an empty list; give at least one item"),
        ("predict/mask", {"inputs": "a"}, 'inputs="a" must be a list; put it in square brackets'),
        ("predict/mask", {"inputs": ["a", 5]}, "inputs.1=5 must be a text, a list of texts, or an object"),
        ("adapt", {"examples": ["a"]}, 'examples.0="a" must be an object; put it in braces'),
        ("adapt", {"examples": [{"text": "a"}]}, "examples.0.label is missing; add it"),
        ("v1/rerank", {"query": "a", "documents": ["b"], "return_documents": 1}, "return_documents=1 must be true or"),
        ("v1/embeddings", {"input": ["a", 5]}, "input=[…] must be a text, a list of texts, a list of token"),
        ("v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format=\"int8\" must be 'float' or"),
        ("v1/embeddings", {"input": "a", "dimensions": 33}, "dimensions=33 exceeds this model's; give 1 to 32"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_the_value_the_rule_and_the_remedy(
    client: Any, path: str, body: Any, message: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(f"/{path}", content=content, headers={"content-type": "application/json"})
    assert problem(answer, 400)["message"].startswith(message)


def test_large_requests_are_refused(start: Start) -> None:
    client = start(Limits(body_bytes=2000, texts=3, characters=100, text_tokens=90, job_examples=4, job_texts=5))
    problem(client.post("/tag", json={"text": "a" * 3000}), 413)
    stream = (b"x" * 500 for _ in range(10))  # no length is announced
    problem(client.post("/tag", content=stream, headers={"content-type": "application/json"}), 413)
    assert "4 texts; give 1 to 3" in problem(client.post("/tag", json={"texts": ["a"] * 4}), 400)["message"]
    assert "101 characters" in problem(client.post("/tag", json={"text": "a" * 101}), 400)["message"]
    deep = {"inputs": [{"text": "a", "more": {"deep": ["b" * 101]}}]}
    assert "101 characters" in problem(client.post("/predict/tag", json=deep), 400)["message"]
    many = {"question": "a", "context": "1 2 3 4 5 6 7 8 9 " * 5}
    assert "tokens; give" in problem(client.post("/answer", json=many), 400)["message"]
    examples = [{"text": text, "label": label} for text, label in EXAMPLES]
    assert "6 in total" in problem(client.post("/adapt", json={"examples": examples}), 400)["message"]
    assert "6 texts; give 1 to 5" in problem(client.post("/search", json={"texts": ["a"] * 6}), 400)["message"]


class Held:
    """Holds the thread that computes, until the block ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.begun, self.computed = threading.Event(), threading.Event(), 0
        original = engine.TaskScoring.compute

        def compute(lane: Any, items: Any) -> Any:
            self.begun.set()
            assert self.open.wait(30)
            self.computed += len(items)
            return original(lane, items)

        monkeypatch.setattr(engine.TaskScoring, "compute", compute)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()


def in_background(ask: Any) -> threading.Thread:
    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def wait_for(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_more_than_the_queue_takes_is_refused_while_the_rest_is_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, answers = ServerState(), []
    client = start(Limits(requests=2), state=state)
    with Held(monkeypatch):
        asked = [in_background(lambda: answers.append(client.post("/tag", json={"text": "rain"}))) for _ in range(2)]
        wait_for(lambda: state.in_flight == 2)
        refused = client.post("/tag", json={"text": "one too many"})
        assert problem(refused, 429)["type"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/health").status_code == 200
    for thread in asked:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]


def test_too_many_tokens_in_the_queue_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    client, answers = start(Limits(queue_tokens=40)), []
    with Held(monkeypatch) as held:
        first = in_background(lambda: answers.append(client.post("/tag", json={"text": "rain"})))
        wait_for(held.begun.is_set)
        second = in_background(lambda: answers.append(client.post("/tag", json={"texts": [TEXTS[0]]})))
        service = client.app._app.state.service
        wait_for(lambda: service.engine.batcher.waiting_tokens > 0)
        refused = client.post("/tag", json={"texts": TEXTS})
        assert problem(refused, 429)["type"] == "overloaded"
        assert "retry-after" in refused.headers
    first.join()
    second.join()
    assert [answer.status_code for answer in answers] == [200, 200]


def test_an_answer_that_takes_too_long_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    client = start(Limits(timeout_s=0.2))
    with Held(monkeypatch) as held:
        assert problem(client.post("/tag", json={"text": "rain"}), 504)["type"] == "timeout"
        assert problem(client.post("/tag", json={"text": "roof"}), 504)["type"] == "timeout"
    wait_for(lambda: held.computed == 1)  # the second was dropped before it was computed
    assert client.get("/ready").status_code == 200


def test_teaching_that_takes_too_long_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    client = start(Limits(job_timeout_s=1.0))
    given = {"examples": [{"text": text, "label": label} for text, label in EXAMPLES]}
    batcher = client.app._app.state.service.engine.batcher
    with Held(monkeypatch) as held:
        first = in_background(lambda: client.post("/tag", json={"text": "rain"}))
        wait_for(held.begun.is_set)
        for _ in range(3):  # more than there are threads to teach in
            assert problem(client.post("/adapt", json=given), 504)["type"] == "timeout"
        wait_for(lambda: batcher.waiting_tokens == 0)
    first.join()
    wait_for(lambda: held.computed == 1)
    assert len(client.app._app.state.service.classifiers) == 0


def test_a_client_that_leaves_cancels_its_work(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, made = Limits(), []

    def service() -> Service:
        made.append(Service(registry, limits))
        return made[0]

    with Held(monkeypatch) as held, listening(service, limits) as address:
        try:
            at = urlsplit(address)
            assert at.hostname is not None
            body = json.dumps({"text": TEXTS[0]}).encode()
            request = b"POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            request += b"Content-Length: %d\r\n\r\n" % len(body) + body
            connections = [socket.create_connection((at.hostname, at.port)) for _ in range(2)]
            connections[0].sendall(request)
            wait_for(held.begun.is_set)
            connections[1].sendall(request)
            batcher = made[0].engine.batcher
            wait_for(lambda: batcher.waiting_tokens > 0)
            connections[1].close()
            wait_for(lambda: batcher.waiting_tokens == 0)
            held.open.set()
            assert connections[0].recv(100).startswith(b"HTTP/1.1 200")
            connections[0].close()
            assert held.computed == 1
        finally:
            held.open.set()


def test_what_an_endpoint_does_after_its_answer_is_not_cut_short() -> None:
    """To uvicorn a client that has the whole answer is one that has left."""
    seen, cleaned = [], []

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"all of it"})
        whole.set()
        await asyncio.sleep(0.01)
        cleaned.append(True)

    async def receive() -> dict[str, Any]:
        if not asked:
            asked.append(True)
            return {"type": "http.request"}
        await whole.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    async def run() -> None:
        scope = {"type": "http", "path": "/download", "method": "GET", "headers": []}
        await RequestMiddleware(answering, Limits(), AccessControl(), state)(scope, receive, send)

    asked: list[bool] = []
    whole, state = asyncio.Event(), ServerState()
    state.observers.append(lambda *told: seen.append(told[2]))
    asyncio.run(run())
    assert (seen, cleaned) == ([200], [True])


def test_keys_are_asked_for_where_there_are_any(start: Start) -> None:
    client = start(access=AccessControl(keys=(KEY, "another-key-of-this-server")))
    for path in ("/health", "/ready", "/", "/docs", "/openapi.json"):
        assert client.get(path).status_code == 200, path
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"X-API-Key": KEY[:-1]}):
        assert problem(client.get("/v1/models", headers=headers), 401)["type"] == "authentication_error"
        problem(client.post("/tag", json={"text": "rain"}, headers=headers), 401)
        problem(client.get("/metrics", headers=headers), 401)
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-API-Key": "another-key-of-this-server"}):
        assert client.get("/v1/models", headers=headers).status_code == 200
    assert start(access=AccessControl(keys=(KEY,), open_metrics=True)).get("/metrics").status_code == 200


def test_other_names_and_other_origins_are_refused(start: Start) -> None:
    client = start(access=AccessControl(hosts=("localhost", "127.0.0.1", "::1")))
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example:8000", "", "[", "127.0.0.1.evil"):
        problem(client.get("/v1/models", headers={"Host": host}), 403)
    own = {"Host": "localhost:8000", "Origin": "http://localhost:8000"}
    assert client.post("/tag", json={"text": "rain"}, headers=own).status_code == 200
    for origin in ("http://evil.example", "null", "http://localhost:9", "http://["):
        problem(client.post("/tag", json={"text": "rain"}, headers=own | {"Origin": origin}), 403)
    assert "access-control-allow-origin" not in client.get("/v1/models").headers


def test_ready_turns_false_first(start: Start) -> None:
    state = ServerState()
    client = start(state=state)
    assert client.get("/ready").json() == {"ready": True}
    state.draining = True
    assert client.get("/ready").status_code == 503
    answer = client.post("/tag", json={"text": "rain"})
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_logs_and_metrics_tell_what_happened_and_no_text(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    client, secret = start(), "butterscotch"
    with caplog.at_level(logging.INFO, "litebert.serve"):
        client.post("/tag", json={"text": f"{secret} rain"})
        client.post("/fill-mask", json={"text": secret})
        client.get(f"/{secret}")
        client.post(f"/predict/{secret}", json={"inputs": ["a"]})
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "litebert.serve"]
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/tag", 200), ("/fill-mask", 400), ("(unknown)", 404), ("/predict/{model}", 404)
    ]  # fmt: skip
    assert {"time", "level", "event", "id", "method", "ms", "bytes"} <= set(lines[0])
    figures = client.get("/metrics").text
    assert 'litebert_requests_total{method="POST",route="/tag",status="200"} 1.0' in figures
    assert "litebert_batch_tokens_count 1.0" in figures
    assert secret not in json.dumps(lines) + figures


def test_a_failure_of_ours_is_500_in_the_same_form_without_the_text(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(lane: Any, items: Any) -> Any:
        raise RuntimeError("butterscotch")

    monkeypatch.setattr(engine.TaskScoring, "compute", fail)
    client = start()
    assert problem(client.post("/tag", json={"text": "rain"}), 500)["type"] == "server_error"
    failure = next(record for record in caplog.records if record.getMessage() == "failure")
    assert "RuntimeError" in JsonFormatter().format(failure)
    assert "butterscotch" not in JsonFormatter().format(failure)


def test_a_half_request_is_not_waited_for(registry: Registry) -> None:
    limits = Limits(timeout_s=0.3)
    with listening(lambda: Service(registry, limits), limits) as address:
        at = urlsplit(address)
        assert at.hostname is not None
        connection = http.client.HTTPConnection(at.hostname, at.port, timeout=30)
        connection.putrequest("POST", "/tag")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "1000")
        connection.endheaders()
        connection.send(b'{"text": ')
        assert connection.getresponse().status == 408
