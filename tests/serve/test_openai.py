"""The real client of OpenAI, and a fuzzer that reads the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from litebert.inference import Model
from litebert.serve.limits import Limits
from litebert.serve.middleware import AccessControl
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from tests.conftest import peer
from tests.serve.conftest import TEXTS, Start, listening

KEY = "a-key-of-sixteen-or-more"
CASES = 12
"""Of each endpoint."""
PYDANTICS = re.compile("nput should|ield required|xtra inputs|Value error|String should|List should")
"""Words that are not ours."""


def test_openais_client_gets_vectors_models_and_errors_that_it_knows(
    registry: Registry, models: dict[str, Model]
) -> None:
    openai = peer("openai")
    limits = Limits(texts=4)
    with listening(lambda: Service(registry, limits), limits, AccessControl(keys=(KEY,))) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
        found = client.embeddings.create(model="mask", input=TEXTS)  # which asks for base64
        vectors = models["mask"].embed(TEXTS)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose([one.embedding for one in found.data], vectors, atol=1e-5)
        assert found.usage.prompt_tokens > 0
        plain = client.embeddings.create(model="mask", input=TEXTS[0], encoding_format="float", user="somebody")
        np.testing.assert_allclose(plain.data[0].embedding, vectors[0], atol=1e-5)
        tokens = models["mask"].tokenizer.encode(TEXTS[:1])[0].ids
        short = client.embeddings.create(model="mask", input=[tokens], dimensions=8).data[0].embedding
        np.testing.assert_allclose(short, vectors[0, :8] / np.linalg.norm(vectors[0, :8]), atol=1e-5)
        listed = {one.id: one for one in client.models.list()}
        assert client.models.retrieve("mask") == listed["mask"]
        with pytest.raises(openai.NotFoundError, match="'gpt' is not served here; available: mask"):
            client.models.retrieve("gpt")
        with pytest.raises(openai.BadRequestError, match="5 texts; give 1 to 4"):
            client.embeddings.create(model="mask", input=["a"] * 5)
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.embeddings.create(model="gpt", input="a")
        stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


@pytest.mark.parametrize("kind", ["POSITIVE", "NEGATIVE"])
def test_the_openapi_document_is_kept(kind: str, registry: Registry) -> None:
    """Requests that follow it, or break it, a few hundred: no 5xx, refusals where they are due, answers as it says."""
    schemathesis = peer("schemathesis")
    import hypothesis
    from schemathesis.specs.openapi.checks import positive_data_acceptance as accepts_all

    limits, asked = Limits(jobs=10_000), 0
    with listening(lambda: Service(registry, limits), limits) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for operation in schema.get_all_operations():
            strategy = operation.ok().as_strategy(generation_mode=schemathesis.GenerationMode[kind])

            @hypothesis.settings(
                max_examples=CASES, database=None, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )  # fmt: skip
            @hypothesis.given(case=strategy)
            def ask(case: Any) -> None:
                nonlocal asked
                asked += 1
                answer = case.call_and_validate(excluded_checks=[accepts_all])  # a text may lack its [MASK], say
                assert not PYDANTICS.search(answer.text if answer.status_code == 400 else "")

            try:
                ask()
            except hypothesis.errors.Unsatisfiable:
                assert kind == "NEGATIVE"  # what takes nothing cannot be asked wrongly
    assert asked > 150


def test_the_examples_of_the_document_work_as_they_are(client: Any) -> None:
    """What "Try it out" of /docs sends."""
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]

    def example_of(path: str) -> Any:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        return schemas[content["schema"]["$ref"].rsplit("/", 1)[-1]]["examples"][0]

    ids = {path: client.post(path, json=example_of(path)).json()["id"] for path in ("/adapt", "/search")}
    asked = [path for path, operations in document["paths"].items() if "post" in operations]
    assert len(asked) > 15
    for path in asked:
        at = path.format(model="mask", id=ids.get(f"/{path.split('/')[1]}"))
        answer = client.post(at, json=example_of(path))
        assert answer.status_code == 200, (at, answer.text)
        assert "model" not in example_of(path)


def test_the_document_says_where_a_key_is_needed_and_that_bad_bodies_get_400(start: Start) -> None:
    plain = start().get("/openapi.json").json()
    assert "securitySchemes" not in plain["components"]
    assert not [name for name in plain["components"]["schemas"] if "Validation" in name]
    locked = start(access=AccessControl(keys=(KEY,))).get("/openapi.json").json()
    assert locked["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert locked["paths"]["/tag"]["post"]["security"] == [{"key": []}]
    assert "security" not in locked["paths"]["/health"]["get"]
    for operations in locked["paths"].values():
        assert all("422" not in operation["responses"] for operation in operations.values())
