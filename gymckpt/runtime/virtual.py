"""
Time that takes no time: an event loop whose clock jumps to the next timer, and the clock for it.

Whatever runs on such a loop sees every second of its waiting, in order, and the process sees none
of it. What would have happened in twenty minutes is known at once, and always the same.

Theory. A loop waits only in its selector, and only as long as its next timer allows. Here nothing
from outside can come meanwhile: blocking jobs are run by the loop itself (`BlockingJobs`), so the
wait is replaced by a jump. A loop with neither work nor timers would wait for ever; that is said
at once, as `NothingLeft`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from gymckpt.runtime.clock import Clock

__all__ = ["NothingLeft", "VirtualClock", "VirtualLoop", "run_virtually", "virtual_loop"]

T = TypeVar("T")

RESOLUTION_S = 1e-6
"""Timers that are closer than this run together, as the core takes instants of this distance for
the same."""


class NothingLeft(RuntimeError):
    """Everything on a virtual loop waits for something that can never happen."""


class _Jump(selectors.BaseSelector):
    """A selector that does not wait: it looks once, and lets the clock jump instead."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        self._inner = selectors.DefaultSelector()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return []  # there is work to do; a thread that adds to it only wakes a loop that waits
        found = self._inner.select(0)
        if not found:
            self._jump(timeout)
        return found

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits; its time begins at 0 and goes on from timer to timer."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Jump(self._jump))
        self._clock_resolution = RESOLUTION_S
        self.job_s: Callable[[str], float | None] = lambda _name: 0.0
        """How long a blocking job of that name takes; None: it hangs for ever."""

    def time(self) -> float:
        """Return the seconds that have passed on this loop."""
        return self._now_s

    def start_job(self, name: str, job: Callable[[], T]) -> asyncio.Future[T]:
        """
        Run a blocking job here, since the time of a thread is not this loop's.

        Args:
            name: What the job is called.
            job: What to run, once the time that it takes has passed.
        """
        future: asyncio.Future[T] = self.create_future()
        takes_s = self.job_s(name)
        if takes_s is not None:
            self.call_later(takes_s, _settle, future, job)
        return future

    def _jump(self, timeout: float | None) -> None:
        if timeout is None:
            raise NothingLeft(
                "nothing is scheduled on this loop, and nothing can come from outside"
            )
        self._now_s += max(timeout, RESOLUTION_S / 2)


def _settle(future: asyncio.Future[T], job: Callable[[], T]) -> None:
    """Run a job and put what comes of it into a future that somebody may have given up."""
    try:
        result = job()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class VirtualClock(Clock):
    """The clocks of a virtual loop; the wall clock may be made to step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, wall_ts: float) -> None:
        """
        Follow a loop.

        Args:
            loop: Whose time it is.
            wall_ts: What the wall clock shows at this moment.
        """
        self._loop = loop
        self._offset_s = wall_ts - loop.time()

    def wall_ts(self) -> float:
        """Return epoch seconds."""
        return self._loop.time() + self._offset_s

    def monotonic_s(self) -> float:
        """Return the loop's seconds."""
        return self._loop.time()

    def step_wall(self, by_s: float) -> None:
        """Let the wall clock step, as an operator or a time server may make it."""
        self._offset_s += by_s


@contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """Return a virtual loop that ends what is left on it, and is closed."""
    loop = VirtualLoop()
    try:
        yield loop
    finally:
        try:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """
    Run a coroutine on a virtual loop of its own, from a thread where no loop runs.

    Args:
        main: Given the loop, returns the coroutine.

    Raises:
        NothingLeft: It waits for something that can never happen.
        BaseException: Whatever the coroutine raises.
    """
    with virtual_loop() as loop:
        return loop.run_until_complete(main(loop))


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
