"""What clients of text-embeddings-inference ask for, and one of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from litebert.inference import Model
from litebert.serve.limits import Limits
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from tests.conftest import peer
from tests.serve.conftest import TEXTS, Start, listening


def test_a_client_of_the_hub_gets_vectors(registry: Registry, models: dict[str, Model]) -> None:
    hub = peer("huggingface_hub")
    with listening(lambda: Service(registry, Limits()), Limits()) as address:
        client = hub.InferenceClient(f"{address}/embed")
        found = client.feature_extraction(TEXTS[0], normalize=False)
    np.testing.assert_allclose(found, models["mask"].embed(TEXTS[:1]), atol=1e-5)


def test_vectors_are_of_length_one_cut_and_shortened_as_asked(client: Any, models: dict[str, Model]) -> None:
    plain = models["mask"].embed(TEXTS)
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(client.post("/embed", json={"inputs": TEXTS}).json(), unit, atol=1e-5)
    tokens = models["mask"].tokenizer.encode(TEXTS[:1])[0].ids
    raw = client.post("/embed", json={"inputs": [tokens], "normalize": False, "dimensions": 5, "prompt_name": "x"})
    np.testing.assert_allclose(raw.json(), plain[:1, :5], atol=1e-5)
    long = {"inputs": ["rain", "rain " * 100]}
    assert client.post("/embed", json=long).status_code == 200
    for inputs, count in ((long["inputs"], 202), ([[5], [5] * 100], 100)):
        answer = client.post("/embed", json={"inputs": inputs, "truncate": False})
        assert answer.status_code == 413
        message = f"inputs.1: {count} tokens; give 64 at most, or leave out truncate"
        assert answer.json()["error"]["message"] == message
    assert client.post("/embed", json={"inputs": TEXTS, "truncate": False}).status_code == 200


def test_texts_are_ranked_as_by_v1_rerank(client: Any) -> None:
    ours = client.post("/v1/rerank", json={"query": "rain", "documents": TEXTS}).json()["results"]
    asked = {"query": "rain", "texts": TEXTS, "raw_scores": True, "return_text": True}
    found = client.post("/rerank", json=asked).json()
    assert [(one["index"], one["score"]) for one in found] == [(one["index"], one["relevance_score"]) for one in ours]
    assert [one["text"] for one in found] == [TEXTS[one["index"]] for one in found]
    assert "text" not in client.post("/rerank", json={"query": "rain", "texts": TEXTS}).json()[0]


def test_tokens_stand_where_the_text_has_them(client: Any, models: dict[str, Model]) -> None:
    (found,) = client.post("/tokenize", json={"inputs": TEXTS[1]}).json()
    encoding = models["mask"].tokenizer.encode(TEXTS[1:2])[0]
    assert [one["id"] for one in found] == encoding.ids
    assert [one["text"] for one in found] == encoding.tokens
    assert [one["special"] for one in found] == [True, *[False] * (len(found) - 2), True]
    assert found[0]["start"] is found[-1]["stop"] is None
    (inner,) = client.post("/tokenize", json={"inputs": [TEXTS[1]], "add_special_tokens": False}).json()
    assert inner == found[1:-1]
    assert [(one["start"], one["stop"]) for one in inner] == encoding.offsets[1:-1]
    assert TEXTS[1][inner[-1]["start"] : inner[-1]["stop"]] == "."


def test_it_tells_what_it_takes(start: Start) -> None:
    told = start(Limits(texts=7, requests=9)).get("/info").json()
    assert told["model_id"] == "mask"
    assert (told["max_client_batch_size"], told["max_concurrent_requests"]) == (7, 9)
    assert told["max_input_length"] == 64
