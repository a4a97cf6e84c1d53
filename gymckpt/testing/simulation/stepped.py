"""
Slow file jobs: one file operation at a time, with all that may happen between two of them.

Such a job runs on a thread of its own, but never beside anything else: the loop and the job hand
each other the turn, so that what happens between two operations is as repeatable as all the rest.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from gymckpt.testing.simulation.loop import Killed, SimulatedLoop

__all__ = ["SteppedJob", "pass_turn"]

_STEPPED: contextvars.ContextVar[SteppedJob | None] = contextvars.ContextVar("job", default=None)

HANDOVER_S = 60.0
"""How long in real time one step may take before the run is given up."""


def pass_turn() -> None:
    """
    Let the rest of the world go on before the next file operation, where a job is slow.

    Raises:
        Killed: The run or the process has ended meanwhile.
    """
    job = _STEPPED.get()
    if job is not None:
        job.pause()


class SteppedJob:
    """One job that is carried out step by step."""

    def __init__(
        self,
        loop: SimulatedLoop,
        job: Callable[[], None],
        *,
        pause_s: float,
        after: Callable[[], None],
    ) -> None:
        """
        Begin a job; the first step is made at once.

        Args:
            loop: Whose time it is.
            job: What to do; it raises nothing but `Killed`.
            pause_s: How long each file operation takes.
            after: Called on the loop when all is done.
        """
        self._loop = loop
        self._job = job
        self._pause_s = pause_s
        self._after = after
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._ended = self._killed = False
        context = contextvars.copy_context()
        context.run(_STEPPED.set, self)
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()
        self.step()

    def step(self) -> None:
        """Let the job go on to its next file operation."""
        if self._ended:
            return
        self._hand_over()
        if self._ended:
            self._after()
        else:
            self._loop.call_later(self._pause_s, self.step)

    def end(self) -> None:
        """Unwind the job, wherever it is."""
        self._killed = True
        if not self._ended:
            self._hand_over()

    def pause(self) -> None:
        """Give the turn back until the next step; called by the job."""
        self._theirs.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def _hand_over(self) -> None:
        self._mine.release()
        if not self._theirs.acquire(timeout=HANDOVER_S):
            raise RuntimeError(f"a file operation took longer than {HANDOVER_S:g} real seconds")

    def _run(self) -> Any:
        self._mine.acquire()
        try:
            if not self._killed:
                self._job()
        except Killed:
            pass
        finally:
            self._ended = True
            self._theirs.release()
