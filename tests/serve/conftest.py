"""A tiny model for every task, all with one encoder, and a server in this process that answers with them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import litebert
from litebert.cli import main
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig, pretraining_heads
from litebert.serve.launch import listen
from litebert.serve.limits import Limits
from litebert.serve.middleware import AccessControl, ServerState
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from litebert.tasks import Answer, Choose, Classify, Mask, Multilabel, Regress, Tag, Task, Translate
from litebert.tasks.translate import TranslateInput
from litebert.tokenizer import Tokenizer
from litebert.trainers.finetune_config import DecoderSettings, FinetuneConfig
from tests.conftest import peer

TEXTS = ["The lighthouse keeper wrote down the weather.", "Rain fell on the tin roof.", "The baker opened at five."]
EXAMPLES = [
    ("Rain fell on the roof", "weather"), ("thunder and rain every morning", "weather"), ("the weather", "weather"),
    ("butter and 3 eggs", "food"), ("two sandwiches for breakfast", "food"), ("the baker opened", "food"),
]  # fmt: skip
TASKS: dict[str, Task[Any, Any]] = {
    "mask": Mask(),
    "classify": Classify(["food", "weather"]),
    "multilabel": Multilabel(["hot", "new", "old"]),
    "regress": Regress(pairs=True),
    "tag": Tag(["O", "B-WHO", "I-WHO"]),
    "answer": Answer(allow_impossible=True),
    "choose": Choose(),
}
TRANSLATED = [TranslateInput(text, text.upper()) for text in TEXTS]
INPUTS: dict[str, list[Any]] = {
    "mask": ["the [MASK] opened at five", {"text": "[MASK] fell on the [MASK] roof"}],
    "classify": [TEXTS[0], {"text": TEXTS[1]}, ""],
    "multilabel": [*TEXTS, " "],
    "regress": [["the baker", "opened at five"], {"text_a": "rain", "text_b": "thunder"}],
    "tag": [TEXTS[0] * 9, TEXTS[1]],
    "answer": [{"question": "When did the baker open", "context": TEXTS[2]}, ["Who wrote", TEXTS[0]]],
    "translate": [TEXTS[0], {"source": TEXTS[1] * 9}, ""],
    "choose": [{"question": "When", "options": ["at five", "at six", "never"], "text": TEXTS[2]}],
    "few": [TEXTS[0], {"text": TEXTS[1]}, ""],
}
"""By the folder of the model."""


def close(one: Any, other: Any) -> bool:
    """Equal, numbers but for the rounding of other batches."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, abs=1e-5)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)


def by_the_command(folder: Path, inputs: list[Any], place: Path) -> list[Any]:
    """What `litebert predict` writes for these, a line each."""
    lines = [item if isinstance(item, str) else json.dumps(item) for item in inputs]
    (place / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = ["--input", str(place / "in.txt"), "--output", str(place / "out.jsonl")]
    assert main(["predict", "--model", str(folder), "--device", "cpu", "--precision", "fp32", *given]) == 0
    return [json.loads(line) for line in (place / "out.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    """One for each task, and `few`, which was adapted to examples from `mask`."""
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    place, base = tmp_path_factory.mktemp("models"), Albert(config, pretraining_heads(config))
    found = {}
    settings = FinetuneConfig(
        task="translate", train=place, out=place, target_vocab_size=64, decoder=DecoderSettings(hidden_size=16)
    )
    writes = Translate.learn_from(TRANSLATED, **settings.task_options())
    writes, _ = writes.for_saving(writes.head(config))
    for name, task in (TASKS | {"translate": writes}).items():
        heads = pretraining_heads(config) if name == "mask" else {task.head_name: task.head(config)}
        albert = base if name == "mask" else Albert(config, heads)
        albert.encoder = base.encoder
        found[name] = place / name
        Model(albert.eval(), tokenizer, task).save(found[name])
    few = litebert.adapt(litebert.load(found["mask"]), *map(list, zip(*EXAMPLES, strict=True)))
    few.save(place / "few")
    return found | {"few": place / "few"}


@pytest.fixture(scope="session")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    """As a user has them."""
    return {name: litebert.load(path) for name, path in folders.items()}


@pytest.fixture(scope="session")
def registry(folders: dict[str, Path]) -> Registry:
    return Registry.load([str(path) for path in folders.values()])


Start = Callable[..., Any]


@pytest.fixture
def start(registry: Registry) -> Iterator[Start]:
    """Start a server in this process: `start(limits)` gives a client. `served` are the models, by default all."""
    peer("fastapi")
    from starlette.testclient import TestClient

    from litebert.serve.app import build_app

    with contextlib.ExitStack() as stack:

        def begin(
            limits: Limits | None = None,
            access: AccessControl | None = None,
            state: ServerState | None = None,
            served: Registry | None = None,
            **more: Any,
        ) -> Any:
            given = limits or Limits()
            gate = build_app(
                lambda: Service(served or registry, given, **more), given, access or AccessControl(), state
            )
            return stack.enter_context(TestClient(gate, base_url="http://localhost"))

        yield begin


@pytest.fixture
def client(start: Start) -> Any:
    return start()


@contextlib.contextmanager
def listening(service: Callable[[], Service], limits: Limits, access: AccessControl | None = None) -> Iterator[str]:
    """A real server on loopback, in a thread; its address."""
    import uvicorn

    from litebert.serve.app import build_app
    from litebert.serve.server import Server

    gate = build_app(service, limits, access or AccessControl())
    server = Server(uvicorn.Config(gate, log_config=None, access_log=False, lifespan="on"), gate, 0.0)
    socket = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
