"""
Blocking work off the event loop, and always with a bound.

A worker is one daemon thread, so a file system that hangs for ever stops neither the loop nor the
exit of the process, which the threads of `concurrent.futures` would.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import (
    HEARTBEATS_PER_TIMEOUT,
    OWNER_TIMEOUT_S,
    gone_after_s,
    owner_saying,
    same_owner,
)
from gymckpt.errors import Fenced, JournalOutcomeUnknown, JournalUnavailable, RunHeld, text_of
from gymckpt.journal import open_journal
from gymckpt.journal.base import Journal, RunRow
from gymckpt.journal.rules import Opening
from gymckpt.runtime.doubtful import Doubtful
from gymckpt.runtime.holding import Driven, Hold, give_back, is_gone, renamed, take

__all__ = [
    "BlockingJobs",
    "Recorder",
    "Worker",
    "open_recorder",
    "run_bounded",
    "run_detached",
]

logger = logging.getLogger("gymckpt")

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "concurrent.futures.Future[Any]"]

JOURNAL_THREAD = "gymckpt-journal"
READER_THREAD = "gymckpt-journal-reader"

HEARTBEAT_S = OWNER_TIMEOUT_S / HEARTBEATS_PER_TIMEOUT
"""How often, at the least, a holder gives a heartbeat for its run."""

LOOKS_PER_TIMEOUT = 60
LOOK_S_MIN = 0.01
"""How often a holder is looked at in the time in which it must be silent, and at most."""

SHUTDOWN_WAIT_S = 1.0
"""How long a loop that is being shut down is held up for an append that is under way."""


@runtime_checkable
class BlockingJobs(Protocol):
    """An event loop that sees to blocking jobs itself, since threads do not follow its time."""

    def start_job(self, name: str, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job of that name; its result or exception ends up in the future."""
        ...


class Worker:
    """One daemon thread that runs what it is given, in order; it starts with the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beat: Callable[[], bool] | None = None
        self._every_s = 0.0

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

    def beat(self, beat: Callable[[], bool], every_s: float) -> None:
        """
        Run something on the thread again and again, between its jobs, until the worker is stopped.

        Args:
            beat: What to run; False where it need not be run any more.
            every_s: How often.
        """
        self._beat, self._every_s = beat, every_s
        self.submit(lambda: None)  # so that the thread knows of it

    @property
    def beats(self) -> bool:
        """Whether something is run again and again."""
        return self._beat is not None

    def stop(self) -> None:
        """Let the thread end after the jobs that it has."""
        self._beat = None
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            beat, wait_s = self._beat, None
            if beat is not None:
                now_s = time.monotonic()
                if now_s >= due_s:
                    if not beat() and self._beat is beat:
                        self._beat = None
                    due_s = time.monotonic() + self._every_s  # one that is slow lets jobs pass
                    continue
                wait_s = due_s - now_s
            try:
                item = self._jobs.get(timeout=wait_s)
            except queue.Empty:
                continue
            if item is None:
                return
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
            owner: The token of this process, which holds the runs that are recorded.
            timeout_s: How long one call may take before the journal counts as unavailable.
            heartbeat_s: How often to give a heartbeat for each run; more often where that is
                longer than others would wait for one.
        """
        self.journal = journal
        self.heartbeat_s = min(heartbeat_s, HEARTBEAT_S)
        self.owner = owner
        self.timeout_s = timeout_s
        self._worker = Worker(JOURNAL_THREAD)
        self._reader = Worker(READER_THREAD)
        self._doubtful = Doubtful()
        self._holds: dict[str, Hold] = {}
        self._pid = os.getpid()
        self._inherited: dict[str, Hold] = {}
        """What a parent process held: nothing of it may go on here."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turned = True
        """Whether the event loop has turned since the last heartbeat."""
        self._beating: asyncio.TimerHandle | None = None
        """The next heartbeat, in a loop whose time no thread follows."""

    # --- the run --------------------------------------------------------------------------------

    async def hold(self, run: str, *, force: bool = False) -> Hold:
        """
        Hold a run: claim it, unless this process has done so, and give its heartbeats from then on.

        Another holder is given its own time to be silent, by the monotonic clock of this host.

        Args:
            run: The run.
            force: Whether to take it from a holder that is alive.

        Raises:
            RunHeld: Another process holds it and is alive; nothing changed.
            Fenced: This recorder held it, and another process has taken it over.
            JournalError: The journal cannot be read or written.
        """
        self._follow()
        hold = self._holds.get(run)
        if hold is not None and hold.lost is not None and not force:
            raise hold.lost
        if hold is None or hold.lost is not None:
            hold = await self._taken(run, force=force)
        self._begin_beating()
        return hold

    def _follow(self) -> None:
        """Know the loop in which this is used, and forget what a parent process held."""
        self._loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            self.owner = renamed(self.owner, self._pid)
            self._inherited.update(self._holds)
            self._holds = {}
            self._pid = os.getpid()

    async def _taken(self, run: str, *, force: bool) -> Hold:
        first: RunRow | None = None
        clock_s = asyncio.get_running_loop().time
        ends_s = pause_s = 0.0
        while True:
            row = await self.run(lambda: self.journal.held(run))
            other = row is not None and row.holder and not same_owner(row.holder, self.owner)
            if row is None or not other or force or is_gone(row.holder):
                return await self._claimed(run, row, force=force)
            if first is None:
                wait_s = gone_after_s(row.holder, 0.0) or OWNER_TIMEOUT_S
                first, ends_s = row, clock_s() + wait_s
                pause_s = max(LOOK_S_MIN, wait_s / LOOKS_PER_TIMEOUT)
                logger.info("run %r is held by %r; waiting for it to move", run, row.holder)
            elif row.mark != first.mark:
                silent_s = await self.run(lambda: self.journal.silent_s(run))
                raise RunHeld(run, row.holder, row.since_ts, silent_s or 0.0)
            elif clock_s() >= ends_s:
                return await self._claimed(run, row, force=force)
            await asyncio.sleep(min(pause_s, max(LOOK_S_MIN, ends_s - clock_s())))

    async def _claimed(self, run: str, row: RunRow | None, *, force: bool) -> Hold:
        journal, owner = self.journal, self.owner

        def job() -> Hold:
            hold = take(journal, run, owner, unmoved=row, force=force)
            if self._holds.get(run) is hold:  # another verb came first
                hold.users -= 1
            self._holds[run] = hold  # here, since whoever has asked may be cancelled meanwhile
            return hold

        return await self.run(job)

    def drives(self, run: str, operation_id: str, driven: Driven) -> None:
        """
        Know what drives an operation, so that it stops when the run is lost.

        Args:
            run: Its run, which is held, or is driven without, as what-if does.
            operation_id: The operation.
            driven: What drives it.
        """
        if (hold := self._holds.get(run)) is not None:
            hold.drive(operation_id, driven)

    def _begin_beating(self) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, BlockingJobs):
            if not self._worker.beats:
                self._worker.beat(_weakly(self._beat_on_thread), self.heartbeat_s)
        elif self._beating is None:
            self._beating = loop.call_later(self.heartbeat_s, self._beat_on_loop)

    def _beat_on_loop(self) -> None:
        self._beating = None
        loop = asyncio.get_running_loop()
        if not self._holds or not isinstance(loop, BlockingJobs):
            return
        if self.journal.blocks:
            loop.start_job(JOURNAL_THREAD, self._beat).add_done_callback(_retrieve)
        else:
            self._beat()
        self._begin_beating()

    def _beat_on_thread(self) -> bool:
        """
        Give a heartbeat, unless the event loop hangs in the middle of an operation.

        Between operations a trainer may keep its loop busy for as long as it likes, or have none.
        """
        loop = self._loop
        if loop is not None and loop.is_running() and any(h.busy for h in self._holds.values()):
            if not self._turned:
                return True
            self._turned = False
            with contextlib.suppress(RuntimeError):  # it was closed just now
                loop.call_soon_threadsafe(self._turn)
        self._beat()
        return bool(self._holds)

    def _turn(self) -> None:
        self._turned = True

    def _beat(self) -> None:
        for hold in list(self._holds.values()):
            if hold.lost is not None or hold.pid != os.getpid():
                continue
            try:
                self.journal.heartbeat(hold.run, epoch=hold.epoch)
            except Fenced as error:
                hold.fence(error)
            except Exception as error:  # also what no journal should raise: the next may succeed
                logger.debug("run %r: no heartbeat: %s", hold.run, text_of(error))

    async def give_back(self) -> None:
        """Give back every run that is held; one that others in this process use stays theirs."""
        for hold in self._let_holds_go():
            with contextlib.suppress(Exception):  # it counts as gone in its time all the same
                await self.run(functools.partial(give_back, self.journal, hold))

    def _let_holds_go(self) -> list[Hold]:
        holds, self._holds = list(self._holds.values()), {}
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        return holds

    # --- what is recorded -----------------------------------------------------------------------

    async def open(self, operation: OperationState, entries: Sequence[Entry]) -> None:
        """
        Record a new operation.

        Args:
            operation: Its first state.
            entries: The entries that open it.

        Raises:
            OperationIdUsed: The id was used before in this run.
            Fenced: Another process has taken the run over.
            JournalError: It could not be written.
        """
        opening = Opening(
            run=operation.run,
            operation_id=operation.operation_id,
            chart=operation.chart,
            chart_version=operation.chart_version,
        )
        self._follow()
        with self._fencing(operation.run), self._doubtful.opening(operation):
            await self.run(lambda: self.journal.open_operation(opening, entries))
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
            Fenced: Another process has taken the run over.
            JournalError: It could not be written; whether it was, is unknown after a timeout.
        """
        self._follow()
        with self._fencing(entries[0].run):
            await self._outlast(
                lambda: self.journal.append(
                    entries, expected_seq=expected_seq, epoch=epoch, settled=settled
                )
            )

    @contextlib.contextmanager
    def _fencing(self, run: str) -> Iterator[None]:
        """Let everything of a run stop where one append of it is fenced."""
        hold = self._holds.get(run)
        if hold is not None and hold.lost is not None:
            raise hold.lost
        if hold is None and (of_parent := self._inherited.get(run)) is not None:
            raise Fenced(run, of_parent.epoch, of_parent.epoch, of_parent.holder)
        try:
            yield
        except Fenced as error:
            if hold is not None:
                hold.fence(error)
            raise

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

        What must be recorded, and heartbeats, do not wait for it: it has a thread of its own.

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
        """Give the runs back, leave the journal open, which is somebody else's, and let go."""
        self._give_back_behind()
        self._reader.stop()
        self._worker.stop()

    def close(self) -> None:
        """Give the runs back, close the journal after what was submitted, and let go."""
        self._give_back_behind()
        if self.journal.blocks:
            self._reader.stop()
            self._worker.submit(self.journal.close)
            self._worker.stop()
        else:
            self._worker.stop()
            self.journal.close()

    def _give_back_behind(self) -> None:
        """Give the runs back without waiting for it."""
        for hold in self._let_holds_go():
            if self.journal.blocks:
                self._worker.submit(functools.partial(give_back, self.journal, hold))
            else:
                give_back(self.journal, hold)


def _weakly(method: Callable[[], bool]) -> Callable[[], bool]:
    """Return what calls a method for as long as its object is used elsewhere."""
    kept = weakref.WeakMethod(method)

    def call() -> bool:
        found = kept()
        return found is not None and found()

    return call


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
        owner: The token of this process, to which is added how long it may be silent.
        timeout_s: How long opening it, and later one call of it, may take.
        heartbeat_s: How often to give a heartbeat for each run.

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
