"""
Blocking work off the event loop, and always with a bound.

A worker is one daemon thread, so a file system that hangs for ever stops neither the loop nor the
exit of the process, which the threads of `concurrent.futures` would.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import (
    COMMAND,
    HEARTBEATS_PER_TIMEOUT,
    OWNER_TIMEOUT_S,
    owner_saying,
)
from gymckpt.errors import JournalOutcomeUnknown, JournalUnavailable, text_of
from gymckpt.journal import open_journal
from gymckpt.journal.base import Journal
from gymckpt.journal.rules import Opening
from gymckpt.runtime.doubtful import Doubtful

__all__ = [
    "BlockingJobs",
    "Recorder",
    "Worker",
    "new_owner",
    "open_recorder",
    "run_bounded",
    "run_detached",
]

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "concurrent.futures.Future[Any]"]

JOURNAL_THREAD = "gymckpt-journal"
READER_THREAD = "gymckpt-journal-reader"

HEARTBEAT_S = OWNER_TIMEOUT_S / HEARTBEATS_PER_TIMEOUT
"""How often, at the least, a controller gives a sign of life for each of its operations."""

SHUTDOWN_WAIT_S = 1.0
"""How long a loop that is being shut down is held up for an append that is under way."""


@runtime_checkable
class BlockingJobs(Protocol):
    """An event loop that sees to blocking jobs itself, since threads do not follow its time."""

    def start_job(self, name: str, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job of that name; its result or exception ends up in the future."""
        ...


def new_owner(*, command: bool = False) -> str:
    """
    Return a token for this process: unique, and readable for whoever looks for it.

    Args:
        command: Whether it is an operator's command, no controller.
    """
    host = "".join(c if c.isalnum() or c in ".-" else "-" for c in socket.gethostname())
    return f"{host[:60]}:{os.getpid()}:{uuid.uuid4().hex[:12]}{COMMAND if command else ''}"


class Worker:
    """One daemon thread that runs what it is given, in order; it starts with the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], T]) -> concurrent.futures.Future[T]:
        """
        Run `job` on the thread.

        Args:
            job: What to run; its result or exception ends up in the future.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put((job, future))
        return future

    def stop(self) -> None:
        """Let the thread end after the jobs that it has."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            try:
                future.set_result(job())
            except BaseException as error:  # handed to whoever waits for the future
                future.set_exception(error)


def run_detached(
    job: Callable[[], T], name: str, then: Callable[[T | None, BaseException | None], None]
) -> None:
    """
    Run a blocking job on a thread of its own and bring what comes of it back to the event loop.

    Args:
        job: What to run; it may hang for ever.
        name: What to call the thread.
        then: Called on the loop with the result, or with the exception.
    """

    def take(ended: asyncio.Future[T]) -> None:
        if ended.cancelled():
            then(None, asyncio.CancelledError())
        elif (error := ended.exception()) is not None:
            then(None, error)
        else:
            then(ended.result(), None)

    _detached(job, name).add_done_callback(take)


async def run_bounded(job: Callable[[], T], name: str, *, timeout_s: float) -> T:
    """
    Run a blocking job on a thread of its own and wait for what comes of it, with a bound.

    Args:
        job: What to run; it may hang for ever, and goes on when nobody waits any more.
        name: What to call the thread.
        timeout_s: How long to wait.

    Raises:
        TimeoutError: It took longer.
        BaseException: What the job raises.
    """
    future = _detached(job, name)
    try:
        done, _ = await asyncio.wait({future}, timeout=timeout_s)
    except asyncio.CancelledError:
        future.add_done_callback(_retrieve)
        raise
    if not done:
        future.add_done_callback(_retrieve)
        raise TimeoutError(f"{name} did not end within {timeout_s:g} s; its file system may hang")
    return future.result()


def _detached(job: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Begin a blocking job on a thread of its own."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, BlockingJobs):
        return loop.start_job(name, job)
    worker = Worker(name)
    future = asyncio.wrap_future(worker.submit(job))
    worker.stop()
    return future


class Recorder:
    """A journal as the event loop sees it: every call is awaited, bounded and off the loop."""

    def __init__(
        self, journal: Journal, *, owner: str, timeout_s: float, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        """
        Wrap a journal.

        Args:
            journal: The journal; one that does not block is called in line.
            owner: The token of this controller, recorded with the operations that it opens.
            timeout_s: How long one call may take before the journal counts as unavailable.
            heartbeat_s: How often an operation gives a sign of life; more often where that is
                longer than others would wait for one.
        """
        self.journal = journal
        self.heartbeat_s = min(heartbeat_s, HEARTBEAT_S)
        self.owner = owner
        self.timeout_s = timeout_s
        self._worker = Worker(JOURNAL_THREAD)
        self._reader = Worker(READER_THREAD)
        self._doubtful = Doubtful()

    async def open(self, operation: OperationState, entries: Sequence[Entry]) -> None:
        """
        Record a new operation.

        Args:
            operation: Its first state.
            entries: The entries that open it.

        Raises:
            OperationIdUsed: The id was used before in this run.
            JournalError: It could not be written.
        """
        opening = Opening(
            run=operation.run,
            operation_id=operation.operation_id,
            chart=operation.chart,
            chart_version=operation.chart_version,
        )
        with self._doubtful.opening(operation):
            await self.run(lambda: self.journal.open_operation(opening, entries, owner=self.owner))
        await self.give_up_doubtful()

    async def give_up_doubtful(self) -> None:
        """End what was opened without anybody knowing, since nothing was sent for it."""
        await self._doubtful.give_up(
            lambda before, ended: self.append(
                ended.entries,
                expected_seq=before.seq,
                epoch=before.epoch,
                settled=ended.operation.settled,
            )
        )

    async def append(
        self, entries: Sequence[Entry], *, expected_seq: int, epoch: int, settled: bool
    ) -> None:
        """
        Append the entries of one or more steps of an operation.

        Args:
            entries: In order, all of one operation.
            expected_seq: The seq of the last entry that is durable.
            epoch: The epoch that drives the operation.
            settled: Whether the operation has ended with these entries.

        Raises:
            Fenced: Another controller has taken the operation over.
            JournalError: It could not be written; whether it was, is unknown after a timeout.
        """
        await self._outlast(
            lambda: self.journal.append(
                entries, expected_seq=expected_seq, epoch=epoch, settled=settled
            )
        )

    async def run(self, job: Callable[[], T]) -> T:
        """
        Run one call of the journal.

        Raises:
            JournalOutcomeUnknown: It took longer than the timeout; it may still be carried out.
            CancelledError: The caller was cancelled; the call may still be carried out.
        """
        if not self.journal.blocks:
            return job()
        return await self._answered(self._start(job)[0])

    async def read(self, job: Callable[[], T]) -> T:
        """
        Run a call of the journal that only reads, and may take long, beside all others.

        What must be recorded, and signs of life, do not wait for it: it has a thread of its own.

        Raises:
            JournalOutcomeUnknown: It took longer than the timeout.
            CancelledError: The caller was cancelled.
        """
        if not self.journal.blocks:
            return job()
        return await self._answered(self._start(job, self._reader)[0])

    async def _outlast(self, job: Callable[[], T]) -> T:
        """
        Run one call of the journal, whose caller must know what came of it before it goes.

        A cancelled caller gets the result where it comes soon, in place of the cancellation: only
        a loop that is being shut down cancels it.
        """
        if not self.journal.blocks:
            return job()
        waiting, future = self._start(job)
        try:
            return await self._answered(waiting)
        except asyncio.CancelledError:
            if future is not None:
                with contextlib.suppress(TimeoutError):
                    return future.result(timeout=SHUTDOWN_WAIT_S)
            raise self._silent(SHUTDOWN_WAIT_S) from None

    def _start(
        self, job: Callable[[], T], worker: Worker | None = None
    ) -> tuple[asyncio.Future[T], concurrent.futures.Future[T] | None]:
        """Begin a call; the second future is that of the thread, where one runs it."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, BlockingJobs):
            return loop.start_job(JOURNAL_THREAD, job), None
        future = (worker or self._worker).submit(job)
        return asyncio.wrap_future(future), future

    async def _answered(self, waiting: asyncio.Future[T]) -> T:
        try:
            done, _ = await asyncio.wait({waiting}, timeout=self.timeout_s)
        except asyncio.CancelledError:
            waiting.add_done_callback(_retrieve)
            raise
        if not done:
            waiting.add_done_callback(_retrieve)
            raise self._silent(self.timeout_s)
        return waiting.result()

    def _silent(self, waited_s: float) -> JournalOutcomeUnknown:
        return JournalOutcomeUnknown(
            f"the journal {self.journal.url} did not answer within {waited_s:g} s; its file system "
            "may hang, and what it was asked to store may still be stored"
        )

    def let_go(self) -> None:
        """Leave the journal open, which is somebody else's, and let the threads end."""
        self._reader.stop()
        self._worker.stop()

    def close(self) -> None:
        """Close the journal after what was submitted, and let the threads end."""
        if self.journal.blocks:
            self._reader.stop()
            self._worker.submit(self.journal.close)
            self._worker.stop()
        else:
            self.journal.close()


async def open_recorder(
    place: Journal | str | Path | None,
    *,
    owner: str,
    timeout_s: float,
    heartbeat_s: float = HEARTBEAT_S,
) -> Recorder:
    """
    Open a journal off the event loop, and wrap it.

    Args:
        place: A journal or its URL; None is the default one.
        owner: The token of this controller, to which is added how long it may be silent.
        timeout_s: How long opening it, and later one call of it, may take.
        heartbeat_s: How often an operation gives a sign of life.

    Raises:
        ValueError: No journal can be at this URL.
        JournalError: It cannot be opened.
    """
    owner = owner_saying(owner, heartbeat_s * HEARTBEATS_PER_TIMEOUT)
    if isinstance(place, Journal) or place == "memory://":
        return Recorder(
            open_journal(place), owner=owner, timeout_s=timeout_s, heartbeat_s=heartbeat_s
        )
    try:
        journal = await run_bounded(
            lambda: open_journal(place), "gymckpt-journal-opening", timeout_s=timeout_s
        )
    except TimeoutError:
        raise JournalUnavailable(
            f"the journal {text_of(place)} could not be opened within {timeout_s:g} s; its file "
            "system may hang"
        ) from None
    return Recorder(journal, owner=owner, timeout_s=timeout_s, heartbeat_s=heartbeat_s)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Look at an exception that nobody waits for any more, so that it is not reported as lost."""
    if not future.cancelled():
        future.exception()
