"""Metrics for Prometheus."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from litebert.serve.middleware import ServerState
from litebert.serve.service import Service

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Folder in which several workers share their counts."""
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    def __init__(self, state: ServerState) -> None:
        self._state, self._registry = state, CollectorRegistry()
        registry: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "litebert_requests", "Requests answered or refused.", ["method", "route", "status"], **registry
        )
        self._seconds = Histogram(
            "litebert_request_seconds",
            "Time from the first byte of a request to the last byte of its answer.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            **registry,
        )
        self._in_flight = self._gauge("litebert_requests_in_flight", "Requests being answered.")
        self._waiting = self._gauge("litebert_queue_tokens", "Tokens in the queue.")
        self._classifiers = self._gauge("litebert_taught_classifiers", "Adapted classifiers.")
        self._text_lists = self._gauge("litebert_search_lists", "Lists to search.")
        self._batch_items = Histogram("litebert_batch_sequences", "Texts in a batch.", buckets=SIZE_BUCKETS, **registry)
        self._batch_tokens = Histogram("litebert_batch_tokens", "Tokens in a batch.", buckets=TOKEN_BUCKETS, **registry)
        self._busy = Counter("litebert_compute_seconds", "Seconds spent computing batches.", **registry)
        state.observers.append(self._observe_request)

    def observe_batches(self, service: Service) -> None:
        service.engine.batcher.statistics.observers.append(self._observe_batch)

    def text(self, service: Service) -> bytes:
        """All metrics in the Prometheus text format."""
        self._in_flight.set(self._state.in_flight)
        self._waiting.set(service.engine.batcher.waiting_tokens)
        self._classifiers.set(len(service.classifiers))
        self._text_lists.set(len(service.text_lists))
        if MULTIPROCESS_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        all_workers = CollectorRegistry()
        MultiProcessCollector(all_workers)
        return generate_latest(all_workers)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(name, help_text, registry=self._registry, multiprocess_mode="livesum")

    def _observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def _observe_batch(self, items: int, tokens: int, seconds: float) -> None:
        self._batch_items.observe(items)
        self._batch_tokens.observe(tokens)
        self._busy.inc(seconds)
