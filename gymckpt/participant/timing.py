"""
The time of one deployment: its host's wall clock, timers that follow it, and waiting.

Deadlines and leases are epoch seconds, and a deployment judges them by its own clock, so clocks
that differ between hosts count. A timer is armed for what is left by the wall clock and measured
by the loop; whoever wakes up looks at the clock again. Nothing polls.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from gymckpt.errors import show

__all__ = ["CallLater", "Pulse", "Timer", "Timers", "require_seconds"]


class Timer(Protocol):
    """Something armed that can be disarmed."""

    def cancel(self) -> None:
        """Disarm it; harmless if it has gone off."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Arm a timer: the seconds to wait, and what to call then."""


def require_seconds(value: object, what: str) -> float:
    """
    Return `value` if it is a finite number of seconds.

    Args:
        value: Any object.
        what: What to call it in the error.

    Raises:
        TypeError: It is no number.
        ValueError: It is infinite or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number of seconds, not {show(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value!r}, it must be finite")
    return float(value)


def _call_later(delay_s: float, callback: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, callback)


class Timers:
    """
    The wall clock of this host and the timers that follow it.

    Attributes:
        now_ts: The wall clock, epoch seconds.
    """

    def __init__(
        self, now_ts: Callable[[], float] = time.time, call_later: CallLater = _call_later
    ) -> None:
        self.now_ts = now_ts
        self._call_later = call_later

    def call_at(self, when_ts: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` when about as much time has passed as is left until `when_ts`."""
        return self._call_later(max(0.0, when_ts - self.now_ts()), callback)


class Pulse:
    """Wake everybody who waits for something to change, so that each looks for itself."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: dict[asyncio.Future[None], None] = {}
        """In the order of their coming, so that equal histories run equally."""

    def beat(self) -> None:
        """Wake everybody who waits now."""
        for future in self._waiting:
            _wake(future)
        self._waiting.clear()

    async def wait(self, until_ts: float) -> None:
        """Return at the next beat, or when the time until `until_ts` has passed."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        timer = self._timers.call_at(until_ts, lambda: _wake(future))
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.pop(future, None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
