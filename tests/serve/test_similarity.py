"""A model that was taught similarity makes the vectors of all endpoints that use some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litebert
from litebert.inference import Model
from litebert.model.sentence_head import SentenceMap, unit
from litebert.serve.limits import Limits
from litebert.serve.middleware import AccessControl
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from litebert.tasks import Similarity
from tests.conftest import peer
from tests.serve.conftest import TEXTS, by_the_command, close


@pytest.fixture
def taught(models: dict[str, Model], tmp_path: Path) -> Path:
    """Its vectors are 24 numbers that nobody else gives."""
    base, random = models["mask"], np.random.default_rng(0)
    made = SentenceMap(random.standard_normal((24, 32)).astype("f"), np.ones(24, "f"), pooling="max")
    Model(base.albert.with_heads({}), base.tokenizer, Similarity(), sentence_map=made).save(tmp_path / "taught")
    return tmp_path / "taught"


def test_vectors_of_a_server_are_those_of_the_taught_model(
    folders: dict[str, Path], taught: Path, tmp_path: Path
) -> None:
    peer("fastapi")
    from starlette.testclient import TestClient

    from litebert.serve.app import build_app

    registry, limits = Registry.load([str(folders["mask"]), str(taught)]), Limits()
    model = litebert.load(taught)
    vectors = unit(model.embed(TEXTS))
    with TestClient(
        build_app(lambda: Service(registry, limits), limits, AccessControl(), None), base_url="http://localhost"
    ) as it:
        client: Any = it
        plain = client.post("/v1/embeddings", json={"model": "taught", "input": TEXTS}).json()
        np.testing.assert_allclose([one["embedding"] for one in plain["data"]], vectors, atol=1e-5)
        # where no model is named, the one that was taught to compare texts does
        alike = client.post("/similarity", json={"texts": TEXTS}).json()
        assert alike["model"] == "taught"
        np.testing.assert_allclose(alike["scores"], vectors @ vectors.T, atol=1e-5)
        ranked = client.post("/v1/rerank", json={"query": TEXTS[0], "documents": TEXTS[1:]}).json()["results"]
        assert ranked[0]["relevance_score"] == pytest.approx((vectors[0] @ vectors[1:].T).max(), abs=1e-5)
        name = client.post("/search", json={"texts": TEXTS}).json()["id"]
        (found,) = client.post(f"/search/{name}", json={"query": TEXTS[2], "top": 1}).json()["results"]
        assert found[0]["index"] == 2
        pairs = [TEXTS[:2], {"text_a": TEXTS[1], "text_b": TEXTS[2]}]
        asked = client.post("/predict/taught", json={"inputs": pairs}).json()
        assert close(asked["answers"], by_the_command(taught, pairs, tmp_path))
        assert asked["answers"][0] == {"score": pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)}
        listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
        assert (listed["taught"]["task"], listed["taught"]["dimensions"]) == ("similarity", 24)
