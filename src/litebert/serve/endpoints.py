"""Stateless endpoints: one per task, embeddings, similarity, reranking and attention maps."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from litebert.inference import Model
from litebert.model.sentence_head import unit
from litebert.serve import request_schema as schema
from litebert.serve import response_schema as responses
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
    """Serialised off the event loop: thousands of numbers take a while."""
    body = await service.engine.run_in_thread(to_json, content)
    return Response(body, media_type="application/json")


@router.post("/predict/{model}", response_model=responses.PredictResponse, tags=["tasks"])
async def predict(model: str, body: schema.PredictRequest, request: Request) -> Response:
    """The answers of `litebert predict`, for any task."""
    service = get_service(request)
    check_inputs(service, body.inputs)
    served = await service.find(model)
    answers = await service.engine.answers(served.model, body.inputs, body.passes, body.top)
    return await json_response(service, {"model": served.name, "task": served.task, "answers": answers})


@router.post("/fill-mask", response_model=responses.FillMaskResponse, tags=["tasks"])
async def fill_mask(body: schema.FillRequest, request: Request) -> Response:
    """The most likely words for every [MASK] of a text."""
    service = get_service(request)
    check_texts([body.text], service.limits, "text")
    served = service.registry.for_masks(body.model)
    answer = (await service.engine.answers(served.model, [body.text], top=body.top))[0]
    return await json_response(service, {"model": served.name} | _require_answer(answer, "text"))


@router.post("/answer", response_model=responses.QuestionResponse, tags=["tasks"])
async def answer_question(body: schema.QuestionRequest, request: Request) -> Response:
    """Extract the answer to a question from a context."""
    service = get_service(request)
    check_texts([body.question, body.context], service.limits, "context")
    served = service.registry.for_task(body.model, "answer questions", ("answer",))
    record = {"question": body.question, "context": body.context}
    answer = (await service.engine.answers(served.model, [record]))[0]
    return await json_response(service, {"model": served.name} | _require_answer(answer, "context"))


@router.post("/tag", response_model=responses.PredictResponse, tags=["tasks"])
async def tag(body: schema.TextsRequest, request: Request) -> Response:
    """Named entities and other labelled spans of texts."""
    service = get_service(request)
    served = service.registry.for_task(body.model, "tag", ("tag",))
    return await _answer_texts(service, served, body.all_texts)


@router.post("/translate", response_model=responses.PredictResponse, tags=["tasks"])
async def translate(body: schema.TextsRequest, request: Request) -> Response:
    """Translations of texts; long texts are split into sentences."""
    service = get_service(request)
    served = service.registry.for_task(body.model, "translate", ("translate",))
    return await _answer_texts(service, served, body.all_texts)


@router.post("/classify", response_model=responses.PredictResponse, tags=["tasks"])
async def classify(body: schema.TextsRequest, request: Request) -> Response:
    """The class, the labels or the value of texts, by the model's task."""
    service = get_service(request)
    served = await service.find(body.model) if body.model else None
    if served is None or served.task not in CLASSIFIERS:
        served = service.registry.for_task(body.model, "classify", CLASSIFIERS)
    return await _answer_texts(service, served, body.all_texts)


@router.post("/similarity", response_model=responses.SimilarityResponse, tags=["vectors"])
async def similarity(body: schema.SimilarityRequest, request: Request) -> Response:
    """Cosine similarities: a matrix of all texts with all, or of a with b."""
    service = get_service(request)
    left = body.texts if body.texts is not None else body.a or []
    right = [] if body.texts is not None else body.b or []
    check_texts([*left, *right], service.limits, "texts")
    served = service.registry.for_embeddings(body.model)
    vectors, _ = await service.engine.vectors(served.model, [*left, *right])
    vectors = unit(vectors)
    first, second = vectors[: len(left)], vectors[len(left) :] if right else vectors
    scores = await service.engine.run_in_thread(lambda: (first @ second.T).clip(-1, 1).tolist())
    return await json_response(service, {"model": served.name, "scores": scores})


@router.post("/v1/embeddings", response_model=responses.EmbeddingsResponse, tags=["OpenAI"])
async def embeddings(body: schema.EmbeddingsRequest, request: Request) -> Response:
    """Text embeddings, in the OpenAI format."""
    service = get_service(request)
    served = service.registry.for_embeddings(body.model)
    vectors, tokens = await service.engine.vectors(served.model, embedding_inputs(service, body.input, "input"))
    vectors = unit(truncate_dimensions(vectors, body.dimensions, served.model))
    encoded = await service.engine.run_in_thread(_encode_vectors, vectors, body.encoding_format)
    data = [{"object": "embedding", "index": number, "embedding": vector} for number, vector in enumerate(encoded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return await json_response(service, {"object": "list", "data": data, "model": served.name, "usage": usage})


@router.post("/v1/rerank", response_model=responses.RerankResponse, tags=["vectors"])
async def rerank(body: schema.RerankRequest, request: Request) -> Response:
    """Rank documents by relevance to a query: by a cross-encoder if `model` names one, else by cosine similarity."""
    service = get_service(request)
    served, scores, tokens = await rank_documents(service, body.model, body.query, body.documents, "documents")
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": body.documents[index]}} if body.return_documents else {})
        for index in order
    ]
    return await json_response(service, {"model": served.name, "results": results, "usage": {"total_tokens": tokens}})


async def rank_documents(
    service: Service, model: str | None, query: str, documents: list[str], param: str
) -> tuple[ServedModel, list[float], int]:
    """The model used, each document's relevance to the query, and the number of tokens."""
    check_texts([query, *documents], service.limits, param, service.limits.texts + 1)
    served = service.registry.for_embeddings(model)
    if (task := served.model.task) is not None and getattr(task, "pairs", None) and scores_pairs(served.model):
        answers, tokens = await service.engine.answers_and_tokens(
            served.model, [[query, document] for document in documents]
        )
        return served, [pair_score(task, answer) for answer in answers], tokens
    vectors, tokens = await service.engine.vectors(served.model, [query, *documents])
    return served, (unit(vectors[1:]) @ unit(vectors[:1])[0]).tolist(), tokens


@router.post("/inside", response_model=responses.InsideResponse, tags=["tasks"])
async def inside(body: schema.InsideRequest, request: Request) -> Response:
    """Attention weights of every head and pass, and the answer after every pass."""
    service = get_service(request)
    check_texts([body.text], service.limits, "text")
    if body.model is not None:
        served = await service.find(body.model)
    else:
        served = service.registry.for_embeddings(None)
    cost = MAX_TOKENS * served.model.passes // 2
    maps = await service.engine.batcher.run_alone(lambda: inspect_text(served.model, body.text), cost)
    return await json_response(service, {"model": served.name} | maps)


def check_inputs(service: Service, inputs: list[Any]) -> None:
    """Check the number of inputs of any task, and the length of every string in them."""
    check_count(inputs, service.limits, "inputs")
    check_lengths([text for item in inputs for text in _strings(item)], service.limits, "inputs")


def _strings(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item]
    if isinstance(item, dict):
        return [text for value in item.values() for text in _strings(value)]
    return [text for value in item for text in _strings(value)] if isinstance(item, list) else []


async def _answer_texts(service: Service, served: ServedModel, texts: list[str]) -> Response:
    check_texts(texts, service.limits, "texts")
    answers = await service.engine.answers(served.model, texts)
    return await json_response(service, {"model": served.name, "task": served.task, "answers": answers})


def _require_answer(answer: dict[str, Any] | None, param: str) -> dict[str, Any]:
    if answer is None:
        raise ApiError(400, f"{param}: is blank; give a text", param=param)
    return answer


def embedding_inputs(service: Service, inputs: Any, param: str) -> list[Any]:
    """A list of texts, or of lists of token ids, from one or several."""
    texts = [inputs] if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)) else inputs
    if not texts or not all(texts):
        raise ApiError(400, f"{param}: is empty or holds an empty text; give text to embed", param=param)
    if isinstance(texts[0], str):
        check_texts(texts, service.limits, param)
    elif len(texts) > service.limits.texts or max(map(len, texts)) > service.limits.characters:
        raise ApiError(400, f"{param}: give 1 to {service.limits.texts:,} lists of token ids", param=param)
    return list(texts)


def truncate_dimensions(vectors: np.ndarray, dimensions: int | None, model: Model) -> np.ndarray:
    """Keep the first `dimensions` columns."""
    if dimensions is not None and dimensions > vectors.shape[1]:
        limit = model.dimensions
        raise ApiError(400, f"dimensions={dimensions} exceeds this model's; give 1 to {limit}", param="dimensions")
    return vectors[:, :dimensions]


def _encode_vectors(vectors: np.ndarray, encoding: str) -> list[Any]:
    if encoding == "float":
        return vectors.tolist()
    return [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]


def scores_pairs(model: Model) -> bool:
    """Is it a cross-encoder: does it give a pair of texts a value, or one of two classes?"""
    task = model.task
    return isinstance(task, Regress) or (type(task) is Classify and len(task.labels) == 2)


def pair_score(task: Any, answer: dict[str, Any] | None) -> float:
    if answer is None:
        return 0.0
    return float(answer["value"] if isinstance(task, Regress) else answer["probabilities"][task.labels[1]])
