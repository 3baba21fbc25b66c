"""Where documents are encoded: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

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
"""Waits for the result of some documents."""
Submit = Callable[[list[str]], PendingResult]

_worker_encoder: TextEncoder | None = None  # of a worker process


@contextmanager
def in_process(recipe: EncodingConfig) -> Iterator[tuple[Submit, int]]:
    """Encode here, at once."""
    encoder = TextEncoder(recipe)

    def submit(documents: list[str]) -> PendingResult:
        encoded = encoder(documents)
        return lambda: encoded

    yield submit, 0


@contextmanager
def process_pool(recipe: EncodingConfig, workers: int) -> Iterator[tuple[Submit, int]]:
    """Encode in worker processes of this machine."""
    # Fresh processes: forked ones would share the threads' locks of the libraries loaded here.
    executor = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker, initargs=(recipe,))

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
    """Processes that start here never hear Ctrl-C, not even while they still import; what we missed comes after."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _start_worker(recipe: EncodingConfig) -> None:
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as cores
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker_encoder = TextEncoder(recipe)


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, which would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _encode_in_worker(documents: list[str]) -> EncodedDocuments:
    assert _worker_encoder is not None
    return _worker_encoder(documents)


@contextmanager
def ray_cluster(recipe: EncodingConfig, workers: int | None) -> Iterator[tuple[Submit, int]]:
    """Encode on the machines of a Ray cluster: the one that RAY_ADDRESS names, or else this machine."""
    ray = require_extra("ray", "ray")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    count = workers or int(ray.cluster_resources().get("CPU", 1))
    shared = ray.put(recipe)
    actor = ray.remote(num_cpus=1)(TextEncoder)
    actors = [actor.remote(shared) for _ in range(count)]
    turn = iter(range(1 << 62))

    def submit(documents: list[str]) -> PendingResult:
        reference = actors[next(turn) % count].__call__.remote(documents)
        return lambda: ray.get(reference)

    try:
        yield submit, 2 * count
    except ray.exceptions.RayError as error:
        raise LitebertError(
            f"Ray gave up ({str(error).splitlines()[0]}); give the same command again to continue"
        ) from error
    finally:
        ray.shutdown()
