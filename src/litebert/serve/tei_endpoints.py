"""Endpoints of Hugging Face's text-embeddings-inference, for its clients.

It serves one model, and so do these: the registry's default for embeddings.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from litebert import __version__
from litebert.inference import Model
from litebert.model.sentence_head import unit
from litebert.serve import request_schema as schema
from litebert.serve import response_schema as responses
from litebert.serve.endpoints import embedding_inputs, get_service, json_response, rank_documents, truncate_dimensions
from litebert.serve.limits import ApiError, check_texts

router = APIRouter(tags=["text-embeddings-inference"])


@router.post("/embed", response_model=list[list[float]])
async def embed(body: schema.TeiEmbedRequest, request: Request) -> Response:
    """Embeddings, one per text."""
    service = get_service(request)
    model = service.registry.for_embeddings(None).model
    texts = embedding_inputs(service, body.inputs, "inputs")
    if body.truncate is False:
        await service.engine.run_in_thread(_check_not_truncated, model, texts)
    vectors, _ = await service.engine.vectors(model, texts)
    vectors = truncate_dimensions(vectors, body.dimensions, model)
    return await json_response(service, (unit(vectors) if body.normalize else vectors).tolist())


@router.post("/rerank", response_model=list[responses.TeiRerankResult])
async def rerank(body: schema.TeiRerankRequest, request: Request) -> Response:
    """Rank texts by relevance to a query, best first, like /v1/rerank."""
    service = get_service(request)
    _, scores, _ = await rank_documents(service, None, body.query, body.texts, "texts")
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    results: list[dict[str, Any]] = [{"index": index, "score": scores[index]} for index in order]
    if body.return_text:
        results = [result | {"text": body.texts[result["index"]]} for result in results]
    return await json_response(service, results)


@router.post("/tokenize", response_model=list[list[responses.TeiToken]])
async def tokenize(body: schema.TeiTokenizeRequest, request: Request) -> Response:
    """The tokens of texts, untruncated, with their character offsets."""
    service = get_service(request)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    check_texts(texts, service.limits, "inputs")
    model = service.registry.for_embeddings(None).model
    return await json_response(
        service, await service.engine.run_in_thread(_tokens, model, texts, body.add_special_tokens)
    )


@router.get("/info", response_model=responses.TeiInfo)
async def info(request: Request) -> dict[str, Any]:
    """The embedding model and the limits of this server."""
    service = get_service(request)
    served, limits = service.registry.for_embeddings(None), service.limits
    return {
        "model_id": served.name, "model_dtype": "int8" if served.model.answers_in_int8 else "float32",
        "max_concurrent_requests": limits.requests, "max_input_length": served.model.max_length,
        "max_batch_tokens": limits.batch_tokens, "max_client_batch_size": limits.texts, "auto_truncate": True,
        "version": __version__,
    }  # fmt: skip


def _check_not_truncated(model: Model, texts: list[Any]) -> None:
    lengths = (
        [len(encoding.ids) for encoding in model.tokenizer.encode(texts)]
        if isinstance(texts[0], str)
        else map(len, texts)
    )
    for number, length in enumerate(lengths):
        if length > model.max_length:
            raise ApiError(
                413, f"inputs.{number}: {length:,} tokens; give {model.max_length:,} at most, or leave out truncate",
                "too_large", "inputs",
            )  # fmt: skip


def _tokens(model: Model, texts: list[str], with_special: bool) -> list[list[dict[str, Any]]]:
    tokenized = []
    for encoding in model.tokenizer.encode(texts):
        is_special = [sequence is None for sequence in encoding.sequence_ids]
        places = [(None, None) if special else span for special, span in zip(is_special, encoding.offsets, strict=True)]
        tokens = zip(encoding.ids, encoding.tokens, is_special, places, strict=True)
        tokenized.append([
            {"id": number, "text": token, "special": special, "start": start, "stop": stop}
            for number, token, special, (start, stop) in tokens if with_special or not special
        ])  # fmt: skip
    return tokenized
