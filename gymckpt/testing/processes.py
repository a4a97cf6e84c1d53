"""
Controllers on one virtual loop as if each were a process of its own: stopped, woken, killed.

Whatever a controller begins runs in a context that names its process, and so does whatever that
begins. The loop runs a callback of a process only while it is alive: those of one that is stopped
are kept until it is woken, those of one that was killed are never run. It happens between two
callbacks, which is wherever a real process can be stopped between two of its system calls, and
needs nothing of the product to be replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from gymckpt.runtime.virtual import VirtualLoop

__all__ = ["Process", "ProcessLoop", "process_loop"]

T = TypeVar("T")

ROUNDS_MAX = 50
"""How often what is left on a loop is cancelled before the loop is closed."""

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)

_Parked = tuple[list[asyncio.Handle], Callable[..., object], tuple[Any, ...], contextvars.Context]


class Process:
    """
    One process on a loop.

    Attributes:
        name: What it is called.
        state: Whether it runs, is stopped, or was killed.
        cut_off: Whether nothing that it sends leaves it any more.
    """

    def __init__(self, loop: ProcessLoop, name: str) -> None:
        """
        Begin to live.

        Args:
            loop: Where.
            name: What to call it.
        """
        self.name = name
        self.state: Literal["running", "stopped", "killed"] = "running"
        self.cut_off = False
        self._loop = loop
        self._parked: list[_Parked] = []
        self._context = contextvars.copy_context()
        self._context.run(_PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}, {self.state}>"

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        return self._loop.create_task(main, context=self._context.copy())

    def stop(self) -> None:
        """Let nothing of it run until it is woken."""
        self.state = "stopped"

    def wake(self) -> None:
        """Let it go on where it was stopped, with all that has come for it meanwhile."""
        self.state = "running"
        parked, self._parked = self._parked, []
        for handles, callback, args, context in parked:
            if not handles[0].cancelled():
                self._loop.call_soon(callback, *args, context=context)

    def kill(self) -> None:
        """Let nothing of it run ever again."""
        self.state = "killed"

    def run(self, parked: _Parked) -> None:
        """Run a callback of it, if it lives."""
        if self.state == "running":
            parked[1](*parked[2])
        else:
            self._parked.append(parked)


class ProcessLoop(VirtualLoop):
    """A virtual loop on which there are processes; what belongs to none of them always runs."""

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call something in the next round, if its process lives then."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(_PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        handles: list[asyncio.Handle] = []
        parked = (handles, callback, args, context)
        handles.append(super().call_soon(process.run, parked, context=context))
        return handles[0]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call something at a moment of this loop, if its process lives then."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        handles: list[asyncio.Handle] = []
        parked = (handles, callback, args, context)
        timer = super().call_at(when, process.run, parked, context=context)
        handles.append(timer)
        return timer

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a blocking function here, since the time of a thread is not this loop's."""
        return self.start_job("executor", lambda: func(*args))

    def start_outside(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in no process, whichever begins it."""
        return self.create_task(main, context=contextvars.Context())


@contextmanager
def process_loop() -> Iterator[ProcessLoop]:
    """Return a loop for processes; at the end whatever is left of them is cancelled."""
    loop = ProcessLoop()
    try:
        yield loop
    finally:
        try:
            _end(loop)
        finally:
            loop.close()


def _end(loop: ProcessLoop) -> None:
    """Cancel everything again and again, since what is cancelled may begin more."""
    for _ in range(ROUNDS_MAX):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    for task in asyncio.all_tasks(loop):  # those of a process that was killed: nobody misses them
        killed: Any = task
        killed._log_destroy_pending = False  # noqa: SLF001
    loop.run_until_complete(loop.shutdown_asyncgens())
