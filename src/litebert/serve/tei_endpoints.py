"""The names that text-embeddings-inference gives to what we do: its clients need not be changed.

It serves one model, and so do these: the one that makes vectors where a request names none.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from litebert import __version__
from litebert.inference import Model
from litebert.model.sentence_head import unit
from litebert.serve import request_schema as schema
from litebert.serve import response_schema as answers
from litebert.serve.endpoints import embedding_inputs, get_service, json_response, rank_documents, truncate_dimensions
from litebert.serve.limits import ApiError, check_texts

router = APIRouter(tags=["text-embeddings-inference"])


@router.post("/embed", response_model=list[list[float]])
async def embed(given: schema.TeiEmbedRequest, request: Request) -> Response:
    """Vectors, one per text."""
    service = get_service(request)
    model = service.registry.for_vectors(None).model
    texts = embedding_inputs(service, given.inputs, "inputs")
    if given.truncate is False:
        await service.engine.aside(_refuse_long, model, texts)
    vectors, _ = await service.engine.vectors(model, texts)
    vectors = truncate_dimensions(vectors, given.dimensions, model)
    return await json_response(service, (unit(vectors) if given.normalize else vectors).tolist())


@router.post("/rerank", response_model=list[answers.TeiRerankResult])
async def rerank(given: schema.TeiRerankRequest, request: Request) -> Response:
    """Texts by how well they suit a query, best first: /v1/rerank in other words."""
    service = get_service(request)
    _, scores, _ = await rank_documents(service, None, given.query, given.texts, "texts")
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    found = [{"index": place, "score": scores[place]} for place in order]
    texts = [{"text": given.texts[place]} if given.return_text else {} for place in order]
    return await json_response(service, [one | more for one, more in zip(found, texts, strict=True)])


@router.post("/tokenize", response_model=list[list[answers.TeiToken]])
async def tokenize(given: schema.TeiTokenizeRequest, request: Request) -> Response:
    """What the model reads of texts, all of it, and where in them it stands."""
    service = get_service(request)
    texts = [given.inputs] if isinstance(given.inputs, str) else given.inputs
    check_texts(texts, service.limits, "inputs")
    model = service.registry.for_vectors(None).model
    return await json_response(service, await service.engine.aside(_tokens, model, texts, given.add_special_tokens))


@router.get("/info", response_model=answers.TeiInfo)
async def info(request: Request) -> dict[str, Any]:
    """The model that makes vectors, and what this server takes."""
    service = get_service(request)
    served, limits = service.registry.for_vectors(None), service.limits
    return {
        "model_id": served.name, "model_dtype": "int8" if served.model.answers_in_int8 else "float32",
        "max_concurrent_requests": limits.requests, "max_input_length": served.model.max_length,
        "max_batch_tokens": limits.batch_tokens, "max_client_batch_size": limits.texts, "auto_truncate": True,
        "version": __version__,
    }  # fmt: skip


def _refuse_long(model: Model, texts: list[Any]) -> None:
    lengths = [len(one.ids) for one in model.tokenizer.encode(texts)] if isinstance(texts[0], str) else map(len, texts)
    for number, length in enumerate(lengths):
        if length > model.max_length:
            raise ApiError(
                413, f"inputs.{number}: {length:,} tokens; give {model.max_length:,} at most, or leave out truncate",
                "too_large", "inputs",
            )  # fmt: skip


def _tokens(model: Model, texts: list[str], with_frame: bool) -> list[list[dict[str, Any]]]:
    found = []
    for encoding in model.tokenizer.encode(texts):
        is_frame = [sequence is None for sequence in encoding.sequence_ids]
        places = [(None, None) if framed else span for framed, span in zip(is_frame, encoding.offsets, strict=True)]
        tokens = zip(encoding.ids, encoding.tokens, is_frame, places, strict=True)
        found.append([
            {"id": number, "text": token, "special": framed, "start": start, "stop": stop}
            for number, token, framed, (start, stop) in tokens if with_frame or not framed
        ])  # fmt: skip
    return found
