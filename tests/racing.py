"""Threads that run at once, and waiting that ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

WAIT_S = 30.0
"""The longest that a test waits for another thread or process before it fails."""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Run all works at once and return what each returned or raised."""
    outcomes: list[Any] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def run(index: int, work: Callable[[], Any]) -> None:
        barrier.wait(WAIT_S)
        try:
            outcomes[index] = work()
        except Exception as error:
            outcomes[index] = error

    threads = [
        threading.Thread(target=run, args=(index, work), daemon=True)
        for index, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return outcomes
