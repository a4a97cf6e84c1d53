"""Simulations: whole scenarios on a loop whose time takes none, and what their loops reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gymckpt.runtime.virtual import VirtualClock, VirtualLoop, virtual_loop

T = TypeVar("T")

EPOCH_TS = 1_700_000_000.0

reports: list[dict[str, Any]] = []
"""What the exception handlers of all simulations since the last check were called with."""


class LoopClock(VirtualClock):
    """The clocks of the running loop."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop(), wall_ts=EPOCH_TS)


def simulate(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """
    Run a coroutine on a virtual loop of its own; whatever the loop reports is kept.

    Args:
        main: Makes the coroutine.
    """
    with virtual_loop() as loop:
        loop.set_exception_handler(lambda _loop, context: reports.append(context))
        return loop.run_until_complete(main())


def running_loop() -> VirtualLoop:
    """Return the virtual loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def call_after(*waits: int, call: Callable[[], object]) -> None:
    """
    Call something between two turns of the running virtual loop, whatever time they take.

    Args:
        waits: How many turns from now for the first call, and after each for the next.
        call: What to call.
    """
    loop: Any = running_loop()
    turn = loop._run_once
    left = list(waits)

    def counted() -> None:
        turn()
        while left and left[0] <= 0:
            left.pop(0)
            call()
        if left:
            left[0] -= 1

    loop._run_once = counted
