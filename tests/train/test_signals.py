"""Ctrl-C and SIGTERM request a stop."""

from __future__ import annotations

import signal
import threading

from litebert.train.signals import stop_on_signal


def test_a_signal_sets_the_request_instead_of_killing() -> None:
    with stop_on_signal() as request:
        assert not request.requested
        signal.raise_signal(signal.SIGTERM)
        assert request.requested


def test_outside_the_main_thread_there_is_a_request_that_nobody_sets() -> None:
    seen: list[bool] = []

    def work() -> None:
        with stop_on_signal() as request:
            seen.append(request.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
