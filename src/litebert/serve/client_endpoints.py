"""Endpoints with a memory: teach a classifier, search in a list; and the curves of runs, to look at."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from litebert.model.sentence_head import unit
from litebert.search.knn import search_vectors
from litebert.serve import request_schema as schema
from litebert.serve import response_schema as answers
from litebert.serve.client_store import TextList, classifier_record
from litebert.serve.endpoints import get_service, json_response
from litebert.serve.limits import ApiError, check_texts
from litebert.serve.service import AdaptedClassifier, Service
from litebert.serve.teaching import read_chunks, zip_archive

router = APIRouter()
ID = Path(max_length=64)
ZIP = "application/zip"


@router.post("/adapt", response_model=answers.AdaptResponse, tags=["teach"])
async def teach(given: schema.TeachRequest, request: Request) -> Response:
    """A classifier from a handful of examples, in seconds; use it at once with /predict/adapted-ID."""
    service = get_service(request)
    service.check_memory()
    texts, labels = _checked_examples(service, given.examples, 0)
    await service.engine.aside(service.taught.room)
    served = service.registry.for_vectors(given.model)
    adapted = await service.teacher.teach(served, texts, labels, given.label_names)
    name = await service.engine.aside(service.taught.add, AdaptedClassifier(served.name, adapted))
    return await json_response(service, classifier_record(name, adapted, service.limits))


@router.post("/adapt/{id}/examples", response_model=answers.AdaptResponse, tags=["teach"])
async def teach_more(given: schema.MoreExamples, request: Request, id: str = ID) -> Response:
    """The same with more examples, of old classes or new ones."""
    service = get_service(request)
    before = await service.engine.aside(service.taught.get, id)
    texts, labels = _checked_examples(service, given.examples, len(before.adapted.support.records))
    adapted = await service.teacher.add(before.adapted, texts, labels)
    await service.engine.aside(service.taught.replace, id, AdaptedClassifier(before.base, adapted))
    return await json_response(service, classifier_record(id, adapted, service.limits))


@router.post("/adapt/{id}/explain", response_model=answers.ExplainResponse, tags=["teach"])
async def explain(given: schema.TextRequest, request: Request, id: str = ID) -> Response:
    """The class of a text, and the examples that spoke for it most, or against it."""
    service = get_service(request)
    check_texts([given.text], service.limits, "text")
    taught = await service.engine.aside(service.taught.get, id)
    return await json_response(service, await service.teacher.explain(taught.adapted, given.text))


@router.get(
    "/adapt/{id}/download", response_class=StreamingResponse, responses={200: {"content": {ZIP: {}}}}, tags=["teach"]
)
async def download(request: Request, id: str = ID) -> StreamingResponse:
    """A zip of a folder that `litebert predict --model FOLDER` takes."""
    service = get_service(request)
    taught = await service.engine.aside(service.taught.get, id)
    name = f"adapted-{id[:8]}"
    archive = await service.engine.aside(zip_archive, taught.adapted, name)
    headers = {"Content-Length": str(archive.tell()), "Content-Disposition": f'attachment; filename="{name}.zip"'}
    return StreamingResponse(read_chunks(archive), headers=headers, media_type=ZIP)


@router.delete("/adapt/{id}", response_model=answers.DeleteResponse, tags=["teach"])
async def forget(request: Request, id: str = ID) -> dict[str, Any]:
    """Forget a classifier."""
    service = get_service(request)
    await service.engine.aside(service.taught.delete, id)
    return {"id": id, "deleted": True}


@router.post("/search", response_model=answers.UploadResponse, tags=["search"])
async def upload(given: schema.TextListRequest, request: Request) -> Response:
    """Leave a list of texts to search in."""
    service = get_service(request)
    service.check_memory()
    check_texts(given.texts, service.limits, "texts", service.limits.job_texts)
    await service.engine.aside(service.lists.room)
    served = service.registry.for_vectors(given.model)
    vectors, _ = await service.engine.vectors(served.model, given.texts)
    listed = TextList(served.name, given.texts, unit(vectors).astype(np.float32))
    name = await service.engine.aside(service.lists.add, listed)
    answer = {"id": name, "texts": len(given.texts), "model": served.name}
    return await json_response(service, answer | {"expires_in_s": service.limits.job_lifetime_s})


@router.post("/search/{id}", response_model=answers.SearchResponse, tags=["search"])
async def search(given: schema.SearchRequest, request: Request, id: str = ID) -> Response:
    """The texts of the list that are nearest to a query in meaning, best first."""
    service = get_service(request)
    check_texts(given.all_queries, service.limits, "queries")
    found = await service.engine.aside(service.lists.get, id)
    model = service.registry.get(found.model).model
    vectors, _ = await service.engine.vectors(model, given.all_queries)
    results = await service.engine.aside(_nearest_texts, found, vectors, given.top)
    return await json_response(service, {"id": id, "results": results})


@router.delete("/search/{id}", response_model=answers.DeleteResponse, tags=["search"])
async def forget_list(request: Request, id: str = ID) -> dict[str, Any]:
    """Forget a list."""
    service = get_service(request)
    await service.engine.aside(service.lists.delete, id)
    return {"id": id, "deleted": True}


@router.get("/runs", response_model=answers.RunList, tags=["runs"])
async def runs(request: Request) -> Response:
    """Training runs below the server's folder of them."""
    service = get_service(request)
    return await json_response(service, {"runs": await service.engine.aside(service.runs.listing)})


@router.get("/runs/{name}", response_model=answers.RunCurves, tags=["runs"])
async def run(name: str, request: Request) -> Response:
    """The curves of a run."""
    service = get_service(request)
    return await json_response(service, await service.engine.aside(service.runs.curves, name))


def _checked_examples(service: Service, examples: list[schema.Example], before: int) -> tuple[list[str], list[str]]:
    most = service.limits.job_examples
    if before + len(examples) > most:
        raise ApiError(
            400, f"examples: {before + len(examples):,} in all; this server takes {most:,}: litebert adapt takes more",
            param="examples",
        )  # fmt: skip
    texts = [example.text for example in examples]
    check_texts(texts, service.limits, "examples", most)
    return texts, [example.label for example in examples]


def _nearest_texts(found: TextList, queries: np.ndarray, top: int) -> list[list[dict[str, Any]]]:
    return [[asdict(hit) for hit in hits] for hits in search_vectors(queries, found.vectors, found.texts, top)]
