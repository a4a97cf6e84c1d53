"""The two clocks of the scheduler: wall time for the wire, monotonic time for waiting."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


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
