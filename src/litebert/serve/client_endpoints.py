"""Endpoints that keep state: adapt a classifier, search a list of texts; and the curves of training runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from litebert.model.sentence_head import unit
from litebert.search.knn import search_vectors
from litebert.serve import request_schema as schema
from litebert.serve import response_schema as responses
from litebert.serve.client_store import TextList, classifier_record
from litebert.serve.endpoints import get_service, json_response
from litebert.serve.limits import ApiError, check_texts
from litebert.serve.service import AdaptedClassifier, Service
from litebert.serve.teaching import read_chunks, zip_archive

router = APIRouter()
ID = Path(max_length=64)
ZIP = "application/zip"


@router.post("/adapt", response_model=responses.AdaptResponse, tags=["teach"])
async def teach(body: schema.TeachRequest, request: Request) -> Response:
    """Train a classifier from a few examples, in seconds; use it with /predict/adapted-ID."""
    service = get_service(request)
    service.check_keeps_state()
    texts, labels = _checked_examples(service, body.examples, 0)
    await service.engine.run_in_thread(service.classifiers.check_capacity)
    served = service.registry.for_embeddings(body.model)
    adapted = await service.trainer.train(served, texts, labels, body.label_names)
    name = await service.engine.run_in_thread(service.classifiers.add, AdaptedClassifier(served.name, adapted))
    return await json_response(service, classifier_record(name, adapted, service.limits))


@router.post("/adapt/{id}/examples", response_model=responses.AdaptResponse, tags=["teach"])
async def teach_more(body: schema.MoreExamples, request: Request, id: str = ID) -> Response:
    """Add examples, of existing or new classes."""
    service = get_service(request)
    current = await service.engine.run_in_thread(service.classifiers.get, id)
    texts, labels = _checked_examples(service, body.examples, len(current.adapted.support.records))
    adapted = await service.trainer.add_examples(current.adapted, texts, labels)
    await service.engine.run_in_thread(service.classifiers.replace, id, AdaptedClassifier(current.base, adapted))
    return await json_response(service, classifier_record(id, adapted, service.limits))


@router.post("/adapt/{id}/explain", response_model=responses.ExplainResponse, tags=["teach"])
async def explain(body: schema.TextRequest, request: Request, id: str = ID) -> Response:
    """The class of a text, and the examples with the largest influence for or against it."""
    service = get_service(request)
    check_texts([body.text], service.limits, "text")
    classifier = await service.engine.run_in_thread(service.classifiers.get, id)
    return await json_response(service, await service.trainer.explain(classifier.adapted, body.text))


@router.get(
    "/adapt/{id}/download", response_class=StreamingResponse, responses={200: {"content": {ZIP: {}}}}, tags=["teach"]
)
async def download(request: Request, id: str = ID) -> StreamingResponse:
    """A zip of a model folder for `litebert predict --model FOLDER`."""
    service = get_service(request)
    classifier = await service.engine.run_in_thread(service.classifiers.get, id)
    name = f"adapted-{id[:8]}"
    archive = await service.engine.run_in_thread(zip_archive, classifier.adapted, name)
    headers = {"Content-Length": str(archive.tell()), "Content-Disposition": f'attachment; filename="{name}.zip"'}
    return StreamingResponse(read_chunks(archive), headers=headers, media_type=ZIP)


@router.delete("/adapt/{id}", response_model=responses.DeleteResponse, tags=["teach"])
async def forget(request: Request, id: str = ID) -> dict[str, Any]:
    """Delete a classifier."""
    service = get_service(request)
    await service.engine.run_in_thread(service.classifiers.delete, id)
    return {"id": id, "deleted": True}


@router.post("/search", response_model=responses.UploadResponse, tags=["search"])
async def upload(body: schema.TextListRequest, request: Request) -> Response:
    """Upload a list of texts to search."""
    service = get_service(request)
    service.check_keeps_state()
    check_texts(body.texts, service.limits, "texts", service.limits.job_texts)
    await service.engine.run_in_thread(service.text_lists.check_capacity)
    served = service.registry.for_embeddings(body.model)
    vectors, _ = await service.engine.vectors(served.model, body.texts)
    text_list = TextList(served.name, body.texts, unit(vectors).astype(np.float32))
    name = await service.engine.run_in_thread(service.text_lists.add, text_list)
    record = {"id": name, "texts": len(body.texts), "model": served.name}
    return await json_response(service, record | {"expires_in_s": service.limits.job_lifetime_s})


@router.post("/search/{id}", response_model=responses.SearchResponse, tags=["search"])
async def search(body: schema.SearchRequest, request: Request, id: str = ID) -> Response:
    """The texts of the list most similar to a query, best first."""
    service = get_service(request)
    check_texts(body.all_queries, service.limits, "queries")
    text_list = await service.engine.run_in_thread(service.text_lists.get, id)
    model = service.registry.get(text_list.model).model
    vectors, _ = await service.engine.vectors(model, body.all_queries)
    results = await service.engine.run_in_thread(_nearest_texts, text_list, vectors, body.top)
    return await json_response(service, {"id": id, "results": results})


@router.delete("/search/{id}", response_model=responses.DeleteResponse, tags=["search"])
async def forget_list(request: Request, id: str = ID) -> dict[str, Any]:
    """Delete a list."""
    service = get_service(request)
    await service.engine.run_in_thread(service.text_lists.delete, id)
    return {"id": id, "deleted": True}


@router.get("/runs", response_model=responses.RunList, tags=["runs"])
async def runs(request: Request) -> Response:
    """Training runs in the server's runs folder."""
    service = get_service(request)
    return await json_response(service, {"runs": await service.engine.run_in_thread(service.runs.listing)})


@router.get("/runs/{name}", response_model=responses.RunCurves, tags=["runs"])
async def run(name: str, request: Request) -> Response:
    """The curves of a training run."""
    service = get_service(request)
    return await json_response(service, await service.engine.run_in_thread(service.runs.curves, name))


def _checked_examples(
    service: Service, examples: list[schema.Example], num_existing: int
) -> tuple[list[str], list[str]]:
    limit = service.limits.job_examples
    if num_existing + len(examples) > limit:
        raise ApiError(
            400, f"examples: {num_existing + len(examples):,} in total; the limit is {limit:,}: use litebert adapt",
            param="examples",
        )  # fmt: skip
    texts = [example.text for example in examples]
    check_texts(texts, service.limits, "examples", limit)
    return texts, [example.label for example in examples]


def _nearest_texts(text_list: TextList, queries: np.ndarray, top: int) -> list[list[dict[str, Any]]]:
    return [[asdict(hit) for hit in hits] for hits in search_vectors(queries, text_list.vectors, text_list.texts, top)]
