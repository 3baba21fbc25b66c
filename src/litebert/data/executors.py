"""Executors that encode documents: in this process, in a process pool, or on a Ray cluster."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process

from litebert.data.encode import EncodedDocuments, EncodingConfig, TextEncoder
from litebert.errors import LitebertError, require_extra

PendingResult = Callable[[], EncodedDocuments]
"""Waits for the result of submitted documents."""
Submit = Callable[[list[str]], PendingResult]

_worker_encoder: TextEncoder | None = None  # set in each worker process


@contextmanager
def in_process(config: EncodingConfig) -> Iterator[tuple[Submit, int]]:
    """Encode in this process, synchronously."""
    encoder = TextEncoder(config)

    def submit(documents: list[str]) -> PendingResult:
        encoded = encoder(documents)
        return lambda: encoded

    yield submit, 0


@contextmanager
def process_pool(config: EncodingConfig, workers: int) -> Iterator[tuple[Submit, int]]:
    """Encode in worker processes of this machine."""
    # spawn, not fork: a forked process would inherit locks held by other threads
    executor = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker, initargs=(config,))

    def submit(documents: list[str]) -> PendingResult:
        with _children_ignoring_interrupts():
            return executor.submit(_encode_in_worker, documents).result

    try:
        yield submit, 2 * workers
    except BrokenProcessPool as error:
        raise LitebertError(
            "a worker process died, most likely for lack of memory; "
            "give the same command again to continue, with fewer --workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _children_ignoring_interrupts() -> Iterator[None]:
    """Processes started within ignore SIGINT from the beginning; this process handles a blocked SIGINT afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _start_worker(config: EncodingConfig) -> None:
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as cores
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker_encoder = TextEncoder(config)


def _exit_with_parent() -> None:
    """Exit when the parent was killed."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _encode_in_worker(documents: list[str]) -> EncodedDocuments:
    assert _worker_encoder is not None
    return _worker_encoder(documents)


@contextmanager
def ray_cluster(config: EncodingConfig, workers: int | None) -> Iterator[tuple[Submit, int]]:
    """Encode on the Ray cluster at RAY_ADDRESS, or else on this machine."""
    ray = require_extra("ray", "ray")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    count = workers or int(ray.cluster_resources().get("CPU", 1))
    shared = ray.put(config)
    actor = ray.remote(num_cpus=1)(TextEncoder)
    actors = [actor.remote(shared) for _ in range(count)]
    number = itertools.count()

    def submit(documents: list[str]) -> PendingResult:
        reference = actors[next(number) % count].__call__.remote(documents)
        return lambda: ray.get(reference)

    try:
        yield submit, 2 * count
    except ray.exceptions.RayError as error:
        raise LitebertError(
            f"Ray failed ({str(error).splitlines()[0]}); give the same command again to continue"
        ) from error
    finally:
        ray.shutdown()
