"""Every endpoint answers what the library answers."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import litebert
from litebert.inference import Model
from litebert.model.attention_maps import attention_maps
from litebert.model.backends.int8 import has_int8
from litebert.serve.attention_maps import inspect_text
from litebert.serve.limits import Limits
from litebert.serve.registry import Registry
from litebert.serve.service import Service
from tests.serve.conftest import EXAMPLES, INPUTS, TEXTS, Start, by_the_command, close, listening


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    length = np.linalg.norm
    found: np.ndarray = left @ right.T / np.outer(length(left, axis=1), length(right, axis=1))
    return found


@pytest.mark.parametrize("name", INPUTS)
def test_predict_gives_the_records_of_the_command(
    name: str, client: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    """A line of a file is a text, a pair or an object; so is an input of a request."""
    answer = client.post(f"/predict/{name}", json={"inputs": INPUTS[name]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["task"] == ("few-shot" if name == "few" else name)
    assert close(answer.json()["answers"], by_the_command(folders[name], INPUTS[name], tmp_path))


def test_fewer_passes_and_more_candidates_are_obeyed(client: Any, folders: dict[str, Path]) -> None:
    text, model = "the [MASK] opened", litebert.load(folders["mask"])
    model.passes = 1
    expected = [vars_of(fill) for fill in model.fill_mask(text, top=7)]
    asked = {"inputs": [text], "passes": 1, "top": 7}
    assert close(client.post("/predict/mask", json=asked).json()["answers"][0]["masks"][0], expected)
    plain = client.post("/predict/mask", json={"inputs": [text], "top": 7}).json()["answers"][0]["masks"][0]
    assert not close(plain, expected)  # the next request has all passes again


def vars_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def test_a_task_has_an_endpoint_of_its_own(client: Any, models: dict[str, Model]) -> None:
    filled = client.post("/fill-mask", json={"text": "the [MASK] opened", "top": 3}).json()
    assert close(filled["masks"][0], [vars_of(fill) for fill in models["mask"].fill_mask("the [MASK] opened", 3)])
    question = {"question": "When did the baker open", "context": TEXTS[2]}
    answer = client.post("/answer", json=question).json()
    expected = models["answer"].predict([question])[0]
    assert (answer["text"], answer["start"], answer["model"]) == (expected.text, expected.start, "answer")
    translated = client.post("/translate", json={"text": TEXTS[0]}).json()["answers"][0]
    assert close(translated, vars_of(models["translate"].predict([TEXTS[0]])[0]))
    spans = client.post("/tag", json={"text": TEXTS[0]}).json()["answers"][0]["spans"]
    assert close(spans, [vars_of(span) for span in models["tag"].predict([TEXTS[0]])[0].spans])
    for name in ("classify", "few"):
        told = client.post("/classify", json={"texts": TEXTS, "model": name}).json()["answers"]
        assert [one["label"] for one in told] == [one.label for one in models[name].predict(TEXTS)]


def test_vectors_are_those_of_embed(client: Any, models: dict[str, Model]) -> None:
    vectors = models["mask"].embed(TEXTS)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # as OpenAI's are
    plain = client.post("/v1/embeddings", json={"model": "mask", "input": TEXTS}).json()
    np.testing.assert_allclose([one["embedding"] for one in plain["data"]], vectors, atol=1e-5)
    tokens = sum(len(one) for one in models["mask"].tokenizer.encode(TEXTS))
    assert plain["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    coded = client.post("/v1/embeddings", json={"input": TEXTS[0], "encoding_format": "base64"}).json()
    decoded = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(decoded, vectors[0], atol=1e-5)
    ids = [list(one.ids) for one in models["mask"].tokenizer.encode(TEXTS)]
    for given in (ids, [one[1:-1] for one in ids]):
        by_ids = client.post("/v1/embeddings", json={"input": given}).json()
        np.testing.assert_allclose([one["embedding"] for one in by_ids["data"]], vectors, atol=1e-5)
    short = client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": 8}).json()
    first = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose([one["embedding"] for one in short["data"]], first, atol=1e-5)


def test_a_body_that_is_not_said_to_be_json_is_told_how(client: Any) -> None:
    answer = client.post("/classify", content=b'{"text": "a"}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


def test_similarity_and_search_go_by_the_cosine(client: Any, models: dict[str, Model]) -> None:
    vectors = models["mask"].embed(TEXTS)
    all_pairs = client.post("/similarity", json={"texts": TEXTS}).json()["scores"]
    np.testing.assert_allclose(all_pairs, cosines(vectors, vectors), atol=1e-5)
    some = client.post("/similarity", json={"a": TEXTS[:1], "b": TEXTS[1:]}).json()["scores"]
    np.testing.assert_allclose(some, cosines(vectors[:1], vectors[1:]), atol=1e-5)
    name = client.post("/search", json={"texts": TEXTS}).json()["id"]
    found = client.post(f"/search/{name}", json={"queries": [TEXTS[1], TEXTS[2]], "top": 2}).json()["results"]
    assert [[len(one), one[0]["index"], one[0]["text"]] for one in found] == [[2, 1, TEXTS[1]], [2, 2, TEXTS[2]]]
    assert found[0][1]["score"] == pytest.approx(np.sort(cosines(vectors, vectors)[1])[-2], abs=1e-5)
    assert client.delete(f"/search/{name}").status_code == 200
    assert client.post(f"/search/{name}", json={"query": "rain"}).status_code == 404


def test_documents_are_sorted_by_vectors_or_by_a_model_of_pairs(client: Any, models: dict[str, Model]) -> None:
    query, documents = "rain", [*TEXTS]
    vectors = models["mask"].embed([query, *documents])
    by_vectors = client.post("/v1/rerank", json={"query": query, "documents": documents}).json()["results"]
    scores = cosines(vectors[:1], vectors[1:])[0]
    assert [one["index"] for one in by_vectors] == np.argsort(-scores).tolist()
    asked = {"query": query, "documents": documents, "model": "regress", "top_n": 2, "return_documents": True}
    answer = client.post("/v1/rerank", json=asked).json()
    by_pairs, pairs = answer["results"], [(query, document) for document in documents]
    read = sum(map(len, models["regress"].tokenizer.encode([query] * len(documents), documents)))
    assert answer["usage"] == {"total_tokens": read}
    values = [one.value for one in models["regress"].predict(pairs)]
    assert [one["index"] for one in by_pairs] == np.argsort(-np.array(values)).tolist()[:2]
    assert by_pairs[0]["document"]["text"] == documents[by_pairs[0]["index"]]
    assert by_pairs[0]["relevance_score"] == pytest.approx(max(values), abs=1e-5)


def examples(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in pairs]


def test_a_classifier_is_taught_used_extended_downloaded_and_deleted(
    client: Any, models: dict[str, Model], tmp_path: Path
) -> None:
    taught = client.post("/adapt", json={"examples": examples(EXAMPLES)}).json()
    expected = litebert.adapt(models["mask"], *map(list, zip(*EXAMPLES, strict=True)))
    assert taught["classes"] == expected.labels
    assert taught["accuracy_left_out"] == expected.evidence.accuracy
    assert taught["margin"] == pytest.approx(expected.evidence.margin)
    assert [tuple(one.values()) for one in taught["mistakes"]] == list(expected.evidence.mistakes)
    answers = client.post(f"/predict/{taught['model']}", json={"inputs": TEXTS}).json()["answers"]
    assert close([one["probabilities"] for one in answers], [one.probabilities for one in expected.predict(TEXTS)])
    more = [("the train stopped between stations", "travel"), ("a map of the bridge", "travel")]
    again = client.post(f"/adapt/{taught['id']}/examples", json={"examples": examples(more)}).json()
    assert (again["classes"], again["examples"]) == (["food", "travel", "weather"], 8)
    larger = expected.add_examples(*map(list, zip(*more, strict=True)))
    answers = client.post(f"/predict/{taught['model']}", json={"inputs": TEXTS}).json()["answers"]
    assert close([one["probabilities"] for one in answers], [one.probabilities for one in larger.predict(TEXTS)])
    archive = client.get(f"/adapt/{taught['id']}/download")
    assert archive.headers["content-type"] == "application/zip"
    zipfile.ZipFile(io.BytesIO(archive.content)).extractall(tmp_path)
    loaded = litebert.load(next(tmp_path.iterdir()))
    assert close([one.probabilities for one in loaded.predict(TEXTS)], [o.probabilities for o in larger.predict(TEXTS)])
    assert client.delete(f"/adapt/{taught['id']}").json()["deleted"] is True
    assert client.post(f"/predict/{taught['model']}", json={"inputs": TEXTS}).status_code == 404


def test_an_explanation_adds_up_to_the_score(client: Any, models: dict[str, Model]) -> None:
    taught = client.post("/adapt", json={"examples": examples(EXAMPLES), "label_names": True}).json()
    assert taught["label_names"] is True
    told = client.post(f"/adapt/{taught['id']}/explain", json={"text": TEXTS[1]}).json()
    expected = litebert.adapt(models["mask"], *map(list, zip(*EXAMPLES, strict=True)), label_names=True)
    assert told["label"] == expected.predict([TEXTS[1]])[0].label
    score = expected.scores_of([expected.parse(TEXTS[1], "")])[0][expected.labels.index(told["label"])]
    assert len(told["nearest"]) == len(EXAMPLES) + 2  # the names of the classes are among them
    assert sum(one["weight"] for one in told["nearest"]) == pytest.approx(score, abs=1e-4)
    known = {(*example, False) for example in EXAMPLES} | {("food", "food", True), ("weather", "weather", True)}
    assert {(one["text"], one["label"], one["is_name"]) for one in told["nearest"]} == known


def test_models_are_listed_with_what_they_can(client: Any, models: dict[str, Model]) -> None:
    listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert list(listed) == list(models)
    assert listed["classify"]["labels"] == ["food", "weather"]
    assert listed["few"]["adapted"] is True
    assert "/predict/tag" in listed["tag"]["endpoints"]
    assert "/tag" in listed["tag"]["endpoints"]
    assert {one["max_length"] for one in listed.values()} == {64}


def test_a_taught_classifier_is_listed_with_what_takes_it(client: Any) -> None:
    taught = client.post("/adapt", json={"examples": examples(EXAMPLES)}).json()
    at, name = f"/adapt/{taught['id']}", taught["model"]
    listed = client.get(f"/v1/models/{name}").json()["endpoints"]
    bodies: dict[str, Any] = {
        f"/predict/{name}": {"inputs": TEXTS}, "/classify": {"text": TEXTS[0], "model": name},
        "/inside": {"text": TEXTS[0], "model": name}, f"{at}/explain": {"text": TEXTS[0]},
        f"{at}/examples": {"examples": examples([("a cold morning", "weather")])},
    }  # fmt: skip
    assert set(listed) == {*bodies, f"{at}/download"}
    for path, body in bodies.items():
        assert client.post(path, json=body).status_code == 200, path
    assert client.get(f"{at}/download").status_code == 200
    refused = client.post("/similarity", json={"texts": TEXTS, "model": name})
    assert refused.status_code == 404


def test_all_answers_at_once_are_those_one_by_one(client: Any, models: dict[str, Model]) -> None:
    """Many requests share batches, and everybody gets his own."""
    from concurrent.futures import ThreadPoolExecutor

    texts = [" ".join(TEXTS[number % 3].split()[: 1 + number % 7]) for number in range(60)]

    def ask(text: str) -> dict[str, float]:
        found: dict[str, float] = client.post("/classify", json={"text": text}).json()["answers"][0]["probabilities"]
        return found

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, texts))
    assert close(answers, [one.probabilities for one in models["classify"].predict(texts)])


def test_the_docs_and_the_page_come_from_here_alone(client: Any) -> None:
    import re

    for path in ("/docs", "/", "/openapi.json", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "content-security-policy" in answer.headers
    for path in ("/docs", "/"):
        assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", client.get(path).text)


@pytest.mark.parametrize("path", ["/", "/health", "/ready"])
def test_a_watcher_may_ask_for_the_head_alone(path: str, registry: Registry) -> None:
    with listening(lambda: Service(registry, Limits()), Limits()) as address:
        head, whole = httpx.head(f"{address}{path}"), httpx.get(f"{address}{path}")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_curves_of_runs_are_read_and_nothing_else(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "sweep" / "one"
    run.mkdir(parents=True)
    lines = [{"step": step, "loss": 1 / (step + 1)} for step in range(1200)] + [{"step": 3, "validation_loss": 0.5}]
    text = "\n".join(map(json.dumps, [*lines, {"step": 4, "event": "x"}]))
    (run / "metrics.jsonl").write_text(text + '\n{"step": 5, "lo', encoding="utf-8")
    (run / "run.json").write_text('{"command": "finetune"}', encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "secret": 1}\n', encoding="utf-8")
    client = start(runs=tmp_path / "runs")
    listed = client.get("/runs").json()["runs"]
    assert [(one["name"], one["command"], one["finished"]) for one in listed] == [("sweep:one", "finetune", False)]
    curves = client.get("/runs/sweep:one").json()["curves"]
    assert curves["validation_loss"] == [[3.0, 0.5]]
    assert len(curves["loss"]) == 500
    assert (curves["loss"][0], curves["loss"][-1]) == ([0.0, 1.0], [1199.0, 1 / 1200])
    for name in ("%2e%2e", "sweep", "..%2f", "sweep%3aone%2f..", "..%2fruns%2fsweep%2fone"):
        assert client.get(f"/runs/{name}").status_code == 404, name
    assert start().get("/runs").json() == {"runs": []}


def test_attention_is_that_of_transformers(client: Any, folders: dict[str, Path]) -> None:
    import torch

    from tests.conftest import peer

    peers = peer("transformers")
    text = "the [MASK] opened at five"
    inside = client.post("/inside", json={"text": text, "model": "mask"}).json()
    model = litebert.load(folders["mask"])
    theirs = peers.AlbertModel.from_pretrained(folders["mask"], attn_implementation="eager")
    ids = torch.tensor([model.tokenizer.encode([text])[0].ids])
    expected = theirs(ids, output_attentions=True).attentions
    assert (inside["depths"], inside["heads"], len(inside["tokens"])) == (3, 4, ids.shape[1])
    np.testing.assert_allclose(inside["attention"], [one[0].detach().numpy() for one in expected], atol=1e-3)
    for number, step in enumerate(inside["by_depth"], start=1):
        model.passes = number
        assert close(step["answer"]["masks"][0], [vars_of(fill) for fill in model.fill_mask(text)])
    assert [step["depth"] for step in inside["by_depth"]] == [1, 2, 3]
    told = client.post("/inside", json={"text": TEXTS[1], "model": "classify"}).json()["by_depth"]
    last = litebert.load(folders["classify"]).predict([TEXTS[1]])[0]
    assert told[-1]["answer"]["probabilities"] == pytest.approx(last.probabilities, abs=1e-5)
    assert client.post("/inside", json={"text": "the " * 80}).status_code == 400


@pytest.mark.skipif(not has_int8(), reason="this CPU has no instructions for int8")
def test_an_int8_model_shows_its_attention_and_its_predictions_by_depth(
    start: Start, folders: dict[str, Path], tmp_path: Path
) -> None:
    from litebert.compress.quantize import quantize_model

    quantize_model(litebert.load(folders["classify"])).save(tmp_path / "small")
    server = start(served=Registry.load([str(tmp_path / "small"), str(folders["classify"])]))
    small, large = (
        server.post("/inside", json={"text": TEXTS[1], "model": name}).json() for name in ("small", "classify")
    )
    model = litebert.load(tmp_path / "small")
    assert model.answers_in_int8
    assert (small["depths"], small["heads"]) == (3, 4)
    np.testing.assert_allclose(np.sum(small["attention"], axis=-1), 1, atol=0.05)  # rounded to 3 digits
    np.testing.assert_allclose(small["attention"], large["attention"], atol=0.02)
    assert small["attention"] != large["attention"]
    for step in small["by_depth"]:
        model.passes = step["depth"]
        expected = model.predict([TEXTS[1]])[0].probabilities
        assert step["answer"]["probabilities"] == pytest.approx(expected, abs=1e-3)
    assert [step["depth"] for step in small["by_depth"]] == [1, 2, 3]


@pytest.mark.parametrize("engine", ["torch", "int8"])
def test_inspecting_a_text_leaves_the_encoder_alone(
    engine: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests may use it at the same time."""
    if engine == "int8" and not has_int8():
        pytest.skip("this CPU has no instructions for int8")
    model = litebert.load(folders["classify"], engine=engine)
    before = model.predict([TEXTS[1]])[0].probabilities
    parts = {id(module): dict(vars(module)) for module in model.encoder.modules()}

    def refuse(module: torch.nn.Module, name: str, value: Any) -> None:
        raise AssertionError(f"{type(module).__name__}.{name} was set")

    monkeypatch.setattr(torch.nn.Module, "__setattr__", refuse)
    maps = attention_maps(model.encoder, torch.tensor(model.tokenizer.encode([TEXTS[1]])[0].ids))
    monkeypatch.undo()
    shown = inspect_text(model, TEXTS[1])
    assert len(maps) == shown["depths"] == len(shown["by_depth"]) == 3
    for module in model.encoder.modules():
        assert vars(module).keys() == parts[id(module)].keys()
        assert all(value is parts[id(module)][name] for name, value in vars(module).items())
    assert model.predict([TEXTS[1]])[0].probabilities == before


def test_a_translator_has_no_answers_after_fewer_passes(client: Any) -> None:
    told = client.post("/predict/translate", json={"inputs": [TEXTS[0]], "passes": 1})
    assert (told.status_code, told.json()["error"]["message"]) == (
        400, "passes=1: translate reads at depths of its own choice; leave it out",
    )  # fmt: skip
    assert client.post("/inside", json={"text": TEXTS[0], "model": "translate"}).json()["by_depth"] == []
