"""
Long work of one deployment: a write or a restore that outlives the call that asked for it.

Files are touched in threads, which cannot be cancelled, so the work is a task of its own. Whoever
asks the same again waits for the same work; giving up waiting does not end it; stopping it makes
sure that nothing of it appears any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from gymckpt.errors import ParticipantRefused
from gymckpt.participant.timing import Pulse, Timers

__all__ = ["Work", "Workshop"]

_Result = TypeVar("_Result")


class Work:
    """
    One piece of work for one checkpoint or restore.

    Attributes:
        checkpoint_id: For whom it is done.
        stopped: Set when nobody wants it any more; looked at by the threads that do it.
        deadline_ts: The latest deadline of those who asked for it.
        task: The work itself.
    """

    def __init__(
        self, checkpoint_id: str, do: Callable[[Work], Coroutine[Any, Any, Any]], deadline_ts: float
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.stopped = threading.Event()
        self.deadline_ts = deadline_ts
        self.task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(do(self))

    @property
    def failed(self) -> bool:
        """Whether it has ended without a result."""
        if not self.task.done():
            return False
        return self.task.cancelled() or self.task.exception() is not None

    def require_wanted(self) -> None:
        """
        Pass unless the work was stopped.

        Raises:
            ParticipantRefused: It was.
        """
        if self.stopped.is_set():
            raise ParticipantRefused(
                "stale_checkpoint",
                f"{self.checkpoint_id!r} was resumed, or its lease ran out, while it was at work",
            )


class Workshop:
    """
    The work of one deployment: at most one piece that is wanted, and stopped ones that linger.

    Attributes:
        current: The work of the id that holds the deployment, running or done.
    """

    def __init__(self, *, timers: Timers, pulse: Pulse, executor: Executor) -> None:
        self.current: Work | None = None
        self._timers = timers
        self._pulse = pulse
        self._executor = executor
        self._lingering: dict[asyncio.Future[Any], str] = {}

    def ask(
        self, checkpoint_id: str, do: Callable[[Work], Coroutine[Any, Any, Any]], deadline_ts: float
    ) -> Work:
        """Return the work of this id: a new piece if there is none yet, or if it failed."""
        work = self.current
        if work is None or work.checkpoint_id != checkpoint_id or work.failed:
            work = self.current = Work(checkpoint_id, do, deadline_ts)
            self._watch(work.task, checkpoint_id)
        work.deadline_ts = max(work.deadline_ts, deadline_ts)
        return work

    async def result(self, work: Work, deadline_ts: float) -> Any:
        """
        Wait for a piece of work, no longer than until `deadline_ts`.

        Raises:
            ParticipantRefused: The deadline passed, or the work was stopped.
        """
        while not work.task.done():
            work.require_wanted()
            if self._timers.now_ts() >= deadline_ts:
                raise ParticipantRefused(
                    "deadline_exceeded",
                    f"the work for {work.checkpoint_id!r} goes on; the same call waits for it "
                    "again, a resume stops it",
                )
            await self._pulse.wait(deadline_ts)
        return work.task.result()

    async def in_threads(
        self, work: Work, calls: Iterable[Callable[[], _Result]], *, bounded: bool
    ) -> list[_Result]:
        """
        Run blocking calls at once, each in a thread, until all have ended.

        Args:
            work: For which work.
            calls: What to run.
            bounded: Whether to give up at the work's deadline; the threads are left behind then.

        Returns:
            What they returned, in their order.

        Raises:
            ParticipantRefused: The deadline passed, or the work was stopped.

        Whatever a call raises is raised, after all of them have ended.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(self._executor, call) for call in calls]
        for future in futures:
            self._watch(future, work.checkpoint_id, wakes=bounded)
        while not all(future.done() for future in futures):
            if bounded:
                work.require_wanted()
                if self._timers.now_ts() >= work.deadline_ts:
                    raise ParticipantRefused(
                        "deadline_exceeded", f"{work.checkpoint_id!r} could not be done in time"
                    )
                await self._pulse.wait(work.deadline_ts)
            else:
                await asyncio.wait(futures)
        return [future.result() for future in futures]

    def stop(self) -> None:
        """Make sure that the current work publishes and installs nothing from now on."""
        if self.current is not None:
            self.current.stopped.set()
            self.current = None
            self._pulse.beat()

    async def quiet(self, wait_s: float, checkpoint_id: str | None = None) -> None:
        """
        Wait until nothing is at work any more.

        Args:
            wait_s: How long at most: a hung disk may outlast it.
            checkpoint_id: Whose work to wait for, by default everybody's.
        """
        waited_for = [
            future for future, owner in self._lingering.items() if checkpoint_id in (None, owner)
        ]
        if waited_for:
            await asyncio.wait(waited_for, timeout=wait_s)

    async def close(self, wait_s: float) -> None:
        """Stop the work, wait for it a while, and leave neither a task nor an idle thread."""
        self.stop()
        await self.quiet(wait_s)
        hung = list(self._lingering)
        for future in hung:
            future.cancel()
        await self.quiet(wait_s)
        self._executor.shutdown(wait=not hung, cancel_futures=True)

    def _watch(
        self, future: asyncio.Future[Any], checkpoint_id: str, *, wakes: bool = True
    ) -> None:
        """Remember what is at work; `wakes` says whether somebody waits for a beat at its end."""
        self._lingering[future] = checkpoint_id
        future.add_done_callback(partial(self._ended, wakes))

    def _ended(self, wakes: bool, future: asyncio.Future[Any]) -> None:
        del self._lingering[future]
        if not future.cancelled():
            future.exception()
        if wakes:
            self._pulse.beat()
