"""
One event loop for several simulated processes, whose order is drawn from a seed.

A process is whatever a context says it is: tasks, timers and callbacks belong to the process in
whose context they were made. Callbacks of one process run in the order in which they were due, as
asyncio promises; those of different processes that are due together run in a drawn order, as
processes of real hosts do. A process that was killed runs nothing any more, not even the cleanup
of its tasks. One that is paused runs nothing until it goes on, and then finds its timers overdue.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Literal, TypeVar, TypeVarTuple

from gymckpt.runtime.holding import become
from gymckpt.runtime.virtual import RESOLUTION_S, NothingLeft, VirtualLoop

__all__ = ["Killed", "Process", "SimulatedLoop", "running_process"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)

ROUNDS_MAX = 50_000
"""How many rounds may pass in one instant; more of them go round for ever."""

TIMERS_CANCELLED_MAX = 100
"""How many timers that were cancelled are kept, besides as many as make up half of all."""

CLOSINGS_MAX = 20
"""How often a coroutine that will not end is told to at the end of a run."""


class Killed(BaseException):
    """Unwinds what a process was doing when it was killed; it has no effects any more."""


class Process:
    """
    One simulated process.

    Attributes:
        name: What timelines call it.
        state: Whether it runs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Literal["up", "paused", "dead"] = "up"
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)
        self.context.run(become, name)

    @property
    def dead(self) -> bool:
        """Whether it was killed."""
        return self.state == "dead"

    def kill(self) -> None:
        """End it in the middle of whatever it does; `Killed` must be raised if that is itself."""
        self.state = "dead"

    def pause(self) -> None:
        """Let it stand still."""
        if not self.dead:
            self.state = "paused"

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in it."""
        loop = asyncio.get_running_loop()
        return loop.create_task(coroutine, context=self.context.copy())


def running_process() -> Process | None:
    """Return the process that runs now; None for the network and the world itself."""
    return _PROCESS.get()


class SimulatedLoop(VirtualLoop):
    """
    A virtual loop that knows processes.

    Attributes:
        start_io: Begins a blocking job, see `start_job`; may be replaced.
    """

    def __init__(self, rng: random.Random) -> None:
        """
        Make a loop.

        Args:
            rng: Draws the order of processes.
        """
        super().__init__()
        inner: Any = self  # what a loop has besides its interface is known to no type checker
        self._ready_now: deque[asyncio.Handle] = inner._ready  # noqa: SLF001
        self._timed: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap of timers; of those for one moment the one that was set first comes first."""
        self._timers_set = itertools.count()
        self._timers_cancelled = 0
        self._rng = rng
        self._rounds = 0
        """How many rounds have passed in this instant."""
        self._held: dict[Process, list[asyncio.Handle]] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self.start_io: Callable[[str, Callable[[], Any]], asyncio.Future[Any]] = super().start_job
        self.set_task_factory(self._made)

    def _made(self, _loop: object, coro: Any, context: Any = None) -> asyncio.Task[Any]:
        """Keep every task: one of a dead process must not be cleaned up by the collector."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, context=context)
        self._tasks.append(task)
        return task

    def start_job(self, name: str, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a blocking job as `start_io` says."""
        return self.start_io(name, job)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a blocking call here: no thread follows this loop's time."""
        del executor
        return self.start_io("gymckpt-files", lambda: func(*args))

    def go_on(self, process: Process) -> None:
        """Let a paused process go on with all that was due meanwhile."""
        if process.state == "paused":
            process.state = "up"
        self._ready_now.extend(self._held.pop(process, ()))

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Arm a timer."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timed, (when, next(self._timers_set), timer))
        return timer

    def _timer_handle_cancelled(self, _timer: asyncio.TimerHandle) -> None:
        """Forget cancelled timers now and then: most of them end before their time."""
        self._timers_cancelled += 1
        if self._timers_cancelled > TIMERS_CANCELLED_MAX + len(self._timed) // 2:
            self._timed[:] = [entry for entry in self._timed if not entry[2].cancelled()]
            heapq.heapify(self._timed)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        batch = self._due()
        run = iter(batch if len(batch) < 2 else self._in_drawn_order(batch))
        try:
            for handle in run:
                self._run(handle)
        finally:
            self._ready_now.extendleft(reversed(list(run)))

    def _run(self, handle: Any) -> None:
        if handle.cancelled():
            return
        process = _owner(handle)
        if process is None or process.state == "up":
            handle._run()  # noqa: SLF001
        elif process.state == "paused":
            self._held.setdefault(process, []).append(handle)

    def _due(self) -> list[asyncio.Handle]:
        """Take everything that is due now, after a jump where nothing was."""
        scheduled, ready = self._timed, self._ready_now
        while scheduled and scheduled[0][2].cancelled():
            heapq.heappop(scheduled)
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            due = [*ready, *(entry[2] for entry in scheduled[:1])]
            what = _described(due[0]) if due else "nothing"
            raise NothingLeft(f"something goes round for ever while no time passes: {what}")
        if not ready:
            if not scheduled:
                raise NothingLeft("nothing is scheduled on this loop: everything waits for ever")
            next_s = scheduled[0][0]
            if next_s > self._now_s + RESOLUTION_S:
                self._rounds = 0
            self._now_s = max(self._now_s, next_s)
        end_s = self._now_s + RESOLUTION_S
        while scheduled and scheduled[0][0] < end_s:
            ready.append(heapq.heappop(scheduled)[2])
        batch = list(ready)
        ready.clear()
        return batch

    def _in_drawn_order(self, batch: list[asyncio.Handle]) -> list[asyncio.Handle]:
        """Return callbacks in a drawn order that keeps that of each process."""
        owners = [_owner(handle) for handle in batch]
        if owners.count(owners[0]) == len(owners):
            return batch
        lines: dict[Process | None, deque[asyncio.Handle]] = {}
        for owner, handle in zip(owners, batch, strict=True):
            lines.setdefault(owner, deque()).append(handle)
        owners.sort(key=lambda _owner: self._rng.random())
        return [lines[owner].popleft() for owner in owners]

    def bury(self) -> None:
        """End all that is left, without running any of it: call it when the loop has stopped."""
        self.set_exception_handler(lambda _loop, _context: None)
        for task in self._tasks:
            if task.done():
                continue
            ended: Any = task
            ended._log_destroy_pending = False  # noqa: SLF001
            coroutine: Any = task.get_coro()
            for _ in range(CLOSINGS_MAX):
                with contextlib.suppress(BaseException):
                    coroutine.close()
                    break
        self._tasks.clear()
        self._held.clear()
        self._ready_now.clear()
        self._timed.clear()


def _described(handle: Any) -> str:
    """Return whose callback it is, and of what."""
    callback: Any = handle._callback  # noqa: SLF001
    task: Any = getattr(callback, "__self__", None)
    called: Any = callback
    if isinstance(task, asyncio.Task):
        called = task.get_coro()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    owner = _owner(handle)
    name = "the world" if owner is None else owner.name
    return f"{getattr(called, '__qualname__', called)} of {name}"


def _owner(handle: Any) -> Process | None:
    """Return the process in whose context a callback was made."""
    context: contextvars.Context = handle._context  # noqa: SLF001
    return context.get(_PROCESS)
