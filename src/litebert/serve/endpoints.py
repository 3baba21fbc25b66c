"""Endpoints that answer at once: one per task, vectors, and what stands inside."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from litebert.inference import Model
from litebert.model.sentence_head import unit
from litebert.serve import request_schema as schema
from litebert.serve import response_schema as answers
from litebert.serve.attention_maps import MAX_TOKENS, inspect_text
from litebert.serve.limits import ApiError, check_count, check_lengths, check_texts
from litebert.serve.registry import ServedModel
from litebert.serve.service import Service
from litebert.tasks import Classify, Regress

CLASSIFIERS = ("classify", "few-shot", "multilabel", "regress")
router = APIRouter()


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def json_response(service: Service, content: Any) -> Response:
    """Written off the event loop: thousands of numbers take a while."""
    body = await service.engine.aside(to_json, content)
    return Response(body, media_type="application/json")


@router.post("/predict/{model}", response_model=answers.PredictResponse, tags=["tasks"])
async def predict(model: str, given: schema.PredictRequest, request: Request) -> Response:
    """What `litebert predict` answers, for every task."""
    service = get_service(request)
    check_inputs(service, given.inputs)
    served = await service.find(model)
    found = await service.engine.answers(served.model, given.inputs, given.passes, given.top)
    return await json_response(service, {"model": served.name, "task": served.task, "answers": found})


@router.post("/fill-mask", response_model=answers.FillMaskResponse, tags=["tasks"])
async def fill_mask(given: schema.FillRequest, request: Request) -> Response:
    """The likeliest words for every [MASK] of a text."""
    service = get_service(request)
    check_texts([given.text], service.limits, "text")
    served = service.registry.for_masks(given.model)
    answer = (await service.engine.answers(served.model, [given.text], top=given.top))[0]
    return await json_response(service, {"model": served.name} | _require_answer(answer, "text"))


@router.post("/answer", response_model=answers.QuestionResponse, tags=["tasks"])
async def answer_question(given: schema.QuestionRequest, request: Request) -> Response:
    """Where in the context the answer stands."""
    service = get_service(request)
    check_texts([given.question, given.context], service.limits, "context")
    served = service.registry.for_task(given.model, "answer questions", ("answer",))
    record = {"question": given.question, "context": given.context}
    answer = (await service.engine.answers(served.model, [record]))[0]
    return await json_response(service, {"model": served.name} | _require_answer(answer, "context"))


@router.post("/tag", response_model=answers.PredictResponse, tags=["tasks"])
async def tag(given: schema.TextsRequest, request: Request) -> Response:
    """Names and other spans of texts."""
    service = get_service(request)
    served = service.registry.for_task(given.model, "tag", ("tag",))
    return await _for_texts(service, served, given.all_texts)


@router.post("/translate", response_model=answers.PredictResponse, tags=["tasks"])
async def translate(given: schema.TextsRequest, request: Request) -> Response:
    """Texts in the other language; long ones are cut into sentences."""
    service = get_service(request)
    served = service.registry.for_task(given.model, "translate", ("translate",))
    return await _for_texts(service, served, given.all_texts)


@router.post("/classify", response_model=answers.PredictResponse, tags=["tasks"])
async def classify(given: schema.TextsRequest, request: Request) -> Response:
    """The class of texts, their labels, or their number, as the model was taught."""
    service = get_service(request)
    taught = await service.find(given.model) if given.model else None
    if taught is None or taught.task not in CLASSIFIERS:
        taught = service.registry.for_task(given.model, "classify", CLASSIFIERS)
    return await _for_texts(service, taught, given.all_texts)


@router.post("/similarity", response_model=answers.SimilarityResponse, tags=["vectors"])
async def similarity(given: schema.SimilarityRequest, request: Request) -> Response:
    """How alike texts are, as cosines: a matrix of all with all, or of a with b."""
    service = get_service(request)
    left = given.texts if given.texts is not None else given.a or []
    right = [] if given.texts is not None else given.b or []
    check_texts([*left, *right], service.limits, "texts")
    served = service.registry.for_vectors(given.model)
    vectors, _ = await service.engine.vectors(served.model, [*left, *right])
    vectors = unit(vectors)
    first, second = vectors[: len(left)], vectors[len(left) :] if right else vectors
    scores = await service.engine.aside(lambda: (first @ second.T).clip(-1, 1).tolist())
    return await json_response(service, {"model": served.name, "scores": scores})


@router.post("/v1/embeddings", response_model=answers.EmbeddingsResponse, tags=["OpenAI"])
async def embeddings(given: schema.EmbeddingsRequest, request: Request) -> Response:
    """As OpenAI's, with `litebert`'s vectors."""
    service = get_service(request)
    served = service.registry.for_vectors(given.model)
    vectors, tokens = await service.engine.vectors(served.model, embedding_inputs(service, given.input, "input"))
    vectors = unit(truncate_dimensions(vectors, given.dimensions, served.model))
    coded = await service.engine.aside(_encode_vectors, vectors, given.encoding_format)
    data = [{"object": "embedding", "index": number, "embedding": one} for number, one in enumerate(coded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return await json_response(service, {"object": "list", "data": data, "model": served.name, "usage": usage})


@router.post("/v1/rerank", response_model=answers.RerankResponse, tags=["vectors"])
async def rerank(given: schema.RerankRequest, request: Request) -> Response:
    """Documents by how well they suit a query: by a model of pairs where one is named, else by cosines of vectors."""
    service = get_service(request)
    served, scores, tokens = await rank_documents(service, given.model, given.query, given.documents, "documents")
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[: given.top_n]
    results = [
        {"index": place, "relevance_score": scores[place]}
        | ({"document": {"text": given.documents[place]}} if given.return_documents else {})
        for place in order
    ]
    return await json_response(service, {"model": served.name, "results": results, "usage": {"total_tokens": tokens}})


async def rank_documents(
    service: Service, model: str | None, query: str, documents: list[str], param: str
) -> tuple[ServedModel, list[float], int]:
    """By whom, how well each document suits the query, and how many tokens were read."""
    check_texts([query, *documents], service.limits, param, service.limits.texts + 1)
    served = service.registry.for_vectors(model)
    if (task := served.model.task) is not None and getattr(task, "pairs", None) and scores_pairs(served.model):
        found, tokens = await service.engine.counted(served.model, [[query, document] for document in documents])
        return served, [pair_score(task, answer) for answer in found], tokens
    vectors, tokens = await service.engine.vectors(served.model, [query, *documents])
    return served, (unit(vectors[1:]) @ unit(vectors[:1])[0]).tolist(), tokens


@router.post("/inside", response_model=answers.InsideResponse, tags=["tasks"])
async def inside(given: schema.InsideRequest, request: Request) -> Response:
    """Which tokens look at which, head by head and pass by pass, and the answer after every pass."""
    service = get_service(request)
    check_texts([given.text], service.limits, "text")
    if given.model is not None:
        served = await service.find(given.model)
    else:
        served = service.registry.for_vectors(None)
    work = MAX_TOKENS * served.model.passes // 2
    found = await service.engine.batcher.call(lambda: inspect_text(served.model, given.text), work)
    return await json_response(service, {"model": served.name} | found)


def check_inputs(service: Service, inputs: list[Any]) -> None:
    """Of any task: what they hold as text must not be too long."""
    check_count(inputs, service.limits, "inputs")
    check_lengths([text for item in inputs for text in _strings(item)], service.limits, "inputs")


def _strings(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item]
    if isinstance(item, dict):
        return [text for value in item.values() for text in _strings(value)]
    return [text for value in item for text in _strings(value)] if isinstance(item, list) else []


async def _for_texts(service: Service, served: ServedModel, texts: list[str]) -> Response:
    check_texts(texts, service.limits, "texts")
    found = await service.engine.answers(served.model, texts)
    return await json_response(service, {"model": served.name, "task": served.task, "answers": found})


def _require_answer(answer: dict[str, Any] | None, param: str) -> dict[str, Any]:
    if answer is None:
        raise ApiError(400, f"{param}: is blank; write something", param=param)
    return answer


def embedding_inputs(service: Service, given: Any, param: str) -> list[Any]:
    """Of one text or several, as strings or as tokens."""
    texts = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    if not texts or not all(texts):
        raise ApiError(400, f"{param}: is empty, or a text of it; give something to make a vector of", param=param)
    if isinstance(texts[0], str):
        check_texts(texts, service.limits, param)
    elif len(texts) > service.limits.texts or max(map(len, texts)) > service.limits.characters:
        raise ApiError(400, f"{param}: give 1 to {service.limits.texts:,} lists of tokens", param=param)
    return list(texts)


def truncate_dimensions(vectors: np.ndarray, dimensions: int | None, model: Model) -> np.ndarray:
    """Of the first numbers alone, where fewer are asked for."""
    if dimensions is not None and dimensions > vectors.shape[1]:
        most = model.dimensions
        raise ApiError(
            400, f"dimensions={dimensions} is more than this model has; give 1 to {most}", param="dimensions"
        )
    return vectors[:, :dimensions]


def _encode_vectors(vectors: np.ndarray, encoding: str) -> list[Any]:
    if encoding == "float":
        return vectors.tolist()
    return [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]


def scores_pairs(model: Model) -> bool:
    """Does it tell how well two texts suit each other: a number, or one of two classes?"""
    task = model.task
    return isinstance(task, Regress) or (type(task) is Classify and len(task.labels) == 2)


def pair_score(task: Any, answer: dict[str, Any] | None) -> float:
    if answer is None:
        return 0.0
    return float(answer["value"] if isinstance(task, Regress) else answer["probabilities"][task.labels[1]])
