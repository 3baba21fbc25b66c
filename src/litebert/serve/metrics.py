"""Figures for Prometheus."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from litebert.serve.middleware import ServerState
from litebert.serve.service import Service

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Several processes write what they count there, and any of them adds it up."""
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    def __init__(self, state: ServerState) -> None:
        self._state, self._registry = state, CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "litebert_requests", "Requests that were answered or refused.", ["method", "route", "status"], **own
        )
        self._seconds = Histogram(
            "litebert_request_seconds", "From the first byte to the last.", ["route"], buckets=SECONDS_BUCKETS, **own
        )
        self._in_flight = self._gauge("litebert_requests_in_flight", "Requests that are being answered.")
        self._waiting = self._gauge("litebert_queue_tokens", "Tokens that wait to be computed.")
        self._taught = self._gauge("litebert_taught_classifiers", "Classifiers that clients taught.")
        self._lists = self._gauge("litebert_search_lists", "Lists that clients search in.")
        self._batch_items = Histogram("litebert_batch_sequences", "Texts in a batch.", buckets=SIZE_BUCKETS, **own)
        self._batch_tokens = Histogram("litebert_batch_tokens", "Tokens in a batch.", buckets=TOKEN_BUCKETS, **own)
        self._busy = Counter("litebert_compute_seconds", "In which something was computed.", **own)
        state.observers.append(self._saw_request)

    def watch(self, service: Service) -> None:
        service.engine.batcher.figures.observers.append(self._saw_batch)

    def text(self, service: Service) -> bytes:
        """In Prometheus' text format."""
        self._in_flight.set(self._state.in_flight)
        self._waiting.set(service.engine.batcher.waiting_tokens)
        self._taught.set(len(service.taught))
        self._lists.set(len(service.lists))
        if MULTIPROCESS_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, registry=self._registry, multiprocess_mode="livesum")

    def _saw_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def _saw_batch(self, items: int, tokens: int, seconds: float) -> None:
        self._batch_items.observe(items)
        self._batch_tokens.observe(tokens)
        self._busy.inc(seconds)
