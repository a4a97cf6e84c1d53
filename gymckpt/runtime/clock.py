"""The two clocks of the scheduler, wall time for the wire and monotonic for waiting; its timers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "SystemClock", "Timers"]


class Clock(Protocol):
    """
    Where the runtime reads the time.

    Timers themselves belong to the event loop; a clock that is not the system's goes with a loop
    whose time it follows.
    """

    def wall_ts(self) -> float:
        """Return epoch seconds; may step at any time."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back and never step."""
        ...


class SystemClock:
    """The host's clocks."""

    def wall_ts(self) -> float:
        """Return epoch seconds."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


class Timers:
    """Named timers of the running event loop; one that runs already is kept."""

    def __init__(self, fire: Callable[[str], None], clock: Clock) -> None:
        """Call `fire` with the name of each timer that runs out."""
        self._fire = fire
        self._clock = clock
        self._handles: dict[str, tuple[asyncio.TimerHandle, float]] = {}
        """With when each is to run out, by the clock, in seconds."""

    def start(self, timer: str, delay_s: float) -> None:
        """Let `timer` run out after a delay, unless it runs already."""
        if timer not in self._handles:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(max(0.0, delay_s), self._run_out, timer)
            self._handles[timer] = (handle, self._clock.monotonic_s() + delay_s)

    def runs(self, timer: str) -> bool:
        """Whether `timer` has been started and has not run out."""
        return timer in self._handles

    def stop(self, timer: str) -> None:
        """Forget `timer`, if it runs."""
        running = self._handles.pop(timer, None)
        if running is not None:
            running[0].cancel()

    def stop_all(self) -> None:
        """Forget all of them."""
        for timer in list(self._handles):
            self.stop(timer)

    def go_on(self) -> None:
        """Let all of them run in the running loop, since the one in which they ran is closed."""
        left, self._handles = self._handles, {}
        for timer, (_, ends_s) in left.items():
            self.start(timer, ends_s - self._clock.monotonic_s())

    def _run_out(self, timer: str) -> None:
        self._handles.pop(timer, None)
        self._fire(timer)
