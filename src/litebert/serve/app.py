"""The FastAPI application: endpoints behind the middleware, the web page, and the API documentation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from litebert import __version__
from litebert.errors import LitebertError
from litebert.serve import client_endpoints, endpoints, tei_endpoints
from litebert.serve import response_schema as responses
from litebert.serve.batcher import QueueFullError
from litebert.serve.limits import ApiError, Limits
from litebert.serve.metrics import Metrics
from litebert.serve.middleware import INTERNAL_ERROR, AccessControl, RequestMiddleware, ServerState
from litebert.serve.openapi import customize_openapi
from litebert.serve.registry import ServedModel
from litebert.serve.service import Service
from litebert.serve.validation_messages import describe_error

PAGE_FOLDER = Path(__file__).parent / "page"
DESCRIPTION = "litebert models over HTTP. Errors have the format that OpenAI clients read."
SWAGGER_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>litebert</title>
<link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="swagger-ui"></div><script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script></body></html>"""
SWAGGER_SCRIPT = (
    'SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null});'
)


def build_app(
    make_service: Callable[[], Service], limits: Limits, access: AccessControl, state: ServerState | None = None
) -> RequestMiddleware:
    """Build the ASGI application. `make_service` runs once the event loop is running."""
    state = state or ServerState()
    metrics = Metrics(state)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service = make_service()
        service.engine.batcher.start()
        metrics.observe_batches(service)
        state.retry_after_s = service.engine.batcher.retry_after_s
        state.ready = True
        yield
        state.ready = False
        await service.close()

    error_responses: dict[int | str, dict[str, Any]] = {
        status: {"model": responses.ErrorResponse} for status in (400, 401, 403, 404, 408, 413, 429, 503, 504)
    }
    app = FastAPI(
        title="litebert", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None,
        redoc_url=None, responses=error_responses,
        redirect_slashes=False,
    )  # fmt: skip
    _add_error_handlers(app)
    _add_status_endpoints(app, state, metrics)
    app.include_router(endpoints.router)
    app.include_router(client_endpoints.router)
    app.include_router(tei_endpoints.router)
    _add_pages(app)
    customize_openapi(app, access)
    return RequestMiddleware(app, limits, access, state)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(LitebertError)
    async def litebert_error(request: Request, error: LitebertError) -> Response:
        return _error_response(error if isinstance(error, ApiError) else ApiError(400, str(error)))

    @app.exception_handler(Exception)
    async def unexpected_error(request: Request, error: Exception) -> Response:
        return _error_response(INTERNAL_ERROR)

    @app.exception_handler(QueueFullError)
    async def queue_full(request: Request, error: QueueFullError) -> Response:
        return _error_response(ApiError(429, str(error), "overloaded", retry_after_s=error.retry_after_s))

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        message, field = describe_error(error.errors()[0])
        if "json" not in request.headers.get("content-type", ""):
            message = "the body is not declared as JSON; send the header Content-Type: application/json"
        return _error_response(ApiError(400, message, param=field))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        messages = {400: "the body cannot be read; send JSON in UTF-8", 404: "no such endpoint; see /docs",
                 405: "this endpoint does not allow this method; see /docs"}  # fmt: skip
        response = _error_response(ApiError(error.status_code, messages.get(error.status_code, str(error.detail))))
        response.headers.update(error.headers or {})
        return response


def _error_response(error: ApiError) -> JSONResponse:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return JSONResponse(error.body(), error.status, headers)


def _add_status_endpoints(app: FastAPI, state: ServerState, metrics: Metrics) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["status"])
    async def health() -> dict[str, str]:
        """Liveness: the process is running."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["status"])
    async def ready(response: Response) -> dict[str, bool]:
        """Readiness: the models are loaded and the server is not shutting down."""
        is_ready = state.ready and not state.draining
        response.status_code = 200 if is_ready else 503
        return {"ready": is_ready}

    @app.get("/metrics", response_class=PlainTextResponse, tags=["status"])
    async def prometheus(request: Request) -> Response:
        """Metrics in the Prometheus text format."""
        service = request.app.state.service
        text = await service.engine.run_in_thread(metrics.text, service)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models", response_model=responses.ModelList, tags=["OpenAI"])
    async def models(request: Request) -> dict[str, Any]:
        """The served models and what each can do, in the OpenAI format."""
        registry = request.app.state.service.registry
        return {"object": "list", "data": [served.record() for served in registry]}

    @app.get("/v1/models/{model}", response_model=responses.ModelRecord, tags=["OpenAI"])
    async def model(model: str, request: Request) -> dict[str, Any]:
        """One served model, or a classifier adapted on this server."""
        served: ServedModel = await request.app.state.service.find(model)
        return served.record()


def _add_pages(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(SWAGGER_PAGE)

    @app.get("/docs/start.js", include_in_schema=False)
    async def docs_start() -> Response:
        return Response(SWAGGER_SCRIPT, media_type="text/javascript")

    offline = find_spec("fastapi_offline")
    if offline is not None and offline.origin is not None:  # Swagger UI from this server instead of a CDN
        app.mount("/docs", StaticFiles(directory=Path(offline.origin).parent / "static"))
    app.mount("/page", StaticFiles(directory=PAGE_FOLDER, html=False))

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE_FOLDER / "index.html")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)
