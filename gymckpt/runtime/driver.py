"""
The drive of one operation, whatever its chart: events in, entries, effects out.

Events come in from verbs, replies, timers and file effects. A drain takes all that have arrived,
steps the core through them, appends their entries in one transaction, and only then lets the new
state count and performs the effects (DESIGN, S6). A drain is a task only while there is work: an
operation that waits for its lease horizon holds a timer, not a task.

A journal that fails in the middle of an operation changes the rule in one way (DESIGN, 7): the
operation is settled from its last durable state as a recovering controller would settle it, the
instances are reopened without an entry, and what could not be recorded is recorded afterwards.
A fenced driver stops: nothing more is sent, and whoever waits is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gymckpt.chart import Ignored, Refused
from gymckpt.core.asking import ALSO
from gymckpt.core.effects import (
    CancelCall,
    Effect,
    SendCall,
    StartTimer,
    StopTimer,
    WithdrawManifest,
    WriteManifest,
)
from gymckpt.core.entry import JsonFacts
from gymckpt.core.events import Event, Moment, Replied, TimerFired, Triggered
from gymckpt.core.operation import OperationState
from gymckpt.core.step import Step, step
from gymckpt.errors import (
    Fenced,
    IllegalTransition,
    JournalError,
    OperationDiscarded,
    text_of,
)
from gymckpt.runtime.arrivals import Answer, Arrival, answer, is_needed
from gymckpt.runtime.asks import AskKey, Asks, record_of
from gymckpt.runtime.clock import Clock, Timers
from gymckpt.runtime.file_jobs import FileJobs
from gymckpt.runtime.ledger import Ledger
from gymckpt.runtime.spans import StateSpans
from gymckpt.runtime.unrecorded import what_counts
from gymckpt.runtime.wire import Judgement, Wire
from gymckpt.runtime.worker import Recorder

__all__ = ["Driver"]

logger = logging.getLogger("gymckpt")


class Driver:
    """Take events, step the core, record, and only then act; what verbs see is in `Scheduler`."""

    def __init__(
        self,
        operation: OperationState,
        *,
        recorder: Recorder,
        handles: Mapping[str, Any],
        wire: Wire,
        clock: Clock,
        cancel_reference: Callable[[Any], None],
    ) -> None:
        """
        Take charge of an operation; nothing happens before `open` or `take_over`.

        Args:
            operation: Its state at this moment.
            recorder: The journal.
            handles: Instance id to handle.
            wire: The particulars of the operation's calls.
            clock: The two clocks.
            cancel_reference: Told, best effort, of every reference that is no longer waited for.
        """
        self.operation: OperationState = operation
        self.fault: BaseException | None = None
        """What gave the operation up from inside: fencing, the journal, a defect."""
        self.interrupt: BaseException | None = None
        """A `KeyboardInterrupt` or `SystemExit` that landed in a call."""
        self.released = False
        """Whether nobody need wait: it has ended, or what is left goes on in the background."""
        self.stopped = False
        """Whether it acts no more: fenced, or broken."""
        self.is_held: Callable[[], bool] = lambda: False
        """Whether what is sent besides must wait: a checkpoint or restore is open (DESIGN, 5)."""
        self.left_behind = False
        """Whether nobody waits for it, so that another recovery in this process may replace it."""
        self.on_moved: Callable[[], None] = lambda: None
        """Called after each change of state; must not block or raise."""
        self.on_released: Callable[[], None] = lambda: None
        """Called when the caller need not wait any longer, and again when the operation ends."""
        self._ledger = Ledger(recorder)
        self._clock = clock
        self._zero_s = clock.monotonic_s() - operation.at_s
        self._asks = Asks(
            handles=handles,
            wire=wire,
            cancel_reference=cancel_reference,
            on_judged=self._take_judged,
            on_failed=self._take_failed,
            on_interrupted=self._take_interrupt,
        )
        self._files = FileJobs(wire, self.post)
        self.file_errors: Mapping[str, BaseException] = self._files.errors
        """What file effects ended with, as `FileJobs.errors` says."""
        self._failures: dict[tuple[str, str], tuple[BaseException, ...]] = {}
        """Call and instance to the last two failures that came: one may not be recorded yet."""
        self._stopped_by: BaseException | None = None
        self._spans = StateSpans()
        self._queue: deque[Arrival] = deque()
        self._batch: list[Arrival] = []
        """What is being stepped through and recorded."""
        self._effects: deque[Effect] = deque()
        """What its entries allow and was not performed yet."""
        self._drain_task: asyncio.Task[None] | None = None
        self._timers = Timers(self._fire, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}
        """In the order of their coming, so that equal histories run equally."""

    # --- events in ------------------------------------------------------------------------------

    def post(self, trigger: str, facts: JsonFacts | None = None) -> None:
        """Bring a trigger in without waiting for what comes of it; safe in any cleanup."""
        self._put(Triggered(moment=self._now(), trigger=trigger, facts=facts or {}))

    def _now(self) -> Moment:
        return Moment(self._clock.wall_ts(), self._clock.monotonic_s() - self._zero_s)

    def _put(
        self, event: Event, accepted: asyncio.Future[Ignored | Refused | None] | None = None
    ) -> None:
        self.follow_loop()
        queued = Arrival(event, accepted)
        if self.stopped:
            answer([(queued, self._stopped_by)])
            return
        self._queue.append(queued)
        self._begin_drain()

    def follow_loop(self) -> None:
        """
        Go on in the running loop where the one before is closed, as after an `asyncio.run`.

        The calls that were under way there are taken for unanswered when their time is over.

        Raises:
            RuntimeError: The one before is not closed, and two cannot drive one operation.
        """
        former, loop = self._loop, asyncio.get_running_loop()
        if former is not None and former is not loop:
            if not former.is_closed():
                raise RuntimeError(
                    f"operation {self.operation.operation_id!r} goes on in another event loop; use "
                    "its coordinator in that one, or close that loop first"
                )
            self._drain_task = None
            self._queue.extendleft(reversed(self._batch))
            self._queue = deque(attrs.evolve(one, accepted=None) for one in self._queue)
            self._batch = []
            self._waiters.clear()
            self._asks.forget_all()
            self._timers.go_on()
            self._begin_drain()
        self._loop = loop

    def _begin_drain(self) -> None:
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.get_running_loop().create_task(self._drain())
            self._drain_task.add_done_callback(self._end_drain)

    def _end_drain(self, drain: asyncio.Task[None]) -> None:
        """Begin anew where a defect, an interrupt or a loop that is shut down cut it short."""
        if drain.cancelled() or drain.exception() is not None:
            self._queue.extendleft(reversed(self._batch))
            self._batch.clear()
        if (self._queue or self._effects) and not self.stopped:
            self._begin_drain()

    async def _drain(self) -> None:
        """Work through the queue until it is empty, and what is unrecorded until that is tried."""
        try:
            self._act()
            while not self.stopped:
                if self._queue:
                    self._batch = list(self._queue)
                    self._queue.clear()
                    await self._take(self._batch)
                elif self._ledger.behind and self.released and not self._timers.runs("record"):
                    await self._catch_up()
                else:
                    break
        except Exception as error:
            batch, self._batch = self._batch, []
            answer([(queued, error) for queued in batch])
            needed = [queued for queued in batch if is_needed(queued.event, self.operation)]
            self._take_defect(error, needed=bool(needed) or not batch)

    async def _take(self, batch: list[Arrival]) -> None:
        """Step through a batch, record it, and only then act on it."""
        steps, answers = self._steps(self.operation, batch)
        if self.stopped:
            return
        operation = steps[-1].operation if steps else self.operation
        entries = [entry for taken in steps for entry in taken.entries]
        failure = await self._ledger.record(entries, operation) if entries else None
        if failure is not None:
            answers = [(queued, failure) for queued, _ in answers]
            steps = self._go_on_unrecorded(steps, failure)
        self._batch = []
        try:
            if not self.stopped:
                self.operation = steps[-1].operation if steps else self.operation
                self._effects.extend(effect for taken in steps for effect in taken.effects)
                self._spans.follow(self.operation)
                self._act()
                self._wake()
        finally:
            answer(answers)

    def _go_on_unrecorded(self, steps: list[Step], failure: JournalError) -> list[Step]:
        """Settle the operation although the journal failed, unless another controller has it."""
        if isinstance(failure, Fenced):
            self._stop(failure)
            return []
        if not self.operation.cleaning:
            self.fault = self.fault or failure
        counted = what_counts(self.operation, steps, failure, self._now())
        self._ledger.keep_back([entry for taken in counted for entry in taken.entries])
        return counted

    async def _catch_up(self) -> None:
        """Record what could not be recorded when it happened, now or at the next interval."""
        fenced = await self._ledger.catch_up(self.operation)
        if fenced is not None:
            self._stop(fenced)
        elif self._ledger.behind:
            self._timers.start("record", self.operation.settings.sweep_interval_s)
        else:
            self.on_released()

    def _steps(
        self, operation: OperationState, batch: list[Arrival]
    ) -> tuple[list[Step], list[tuple[Arrival, Answer]]]:
        """Step through events one after the other; an event that is refused moves nothing."""
        steps: list[Step] = []
        answers: list[tuple[Arrival, Answer]] = []
        for queued in batch:
            try:
                taken = step(operation, queued.event)
            except Exception as error:
                answers.append((queued, error))
                if queued.accepted is None or not isinstance(error, IllegalTransition):
                    self._take_defect(error, needed=is_needed(queued.event, operation))
                continue
            operation = taken.operation
            steps.append(taken)
            answers.append((queued, taken.refused))
        return steps, answers

    def _take_defect(self, error: Exception, *, needed: bool = False) -> None:
        """
        Go on without what a defect has spoilt: settle, so that every instance is reopened.

        Args:
            error: What came of it.
            needed: Whether nothing would end the operation any more, so that it stops.
        """
        operation = self.operation
        logger.critical("operation %r: %s", operation.operation_id, text_of(error))
        if needed:
            self._stop(error)
        elif self.fault is None and not operation.cleaning:
            self.fault = error
            self.post("settle", {"reason": text_of(error)})

    # --- effects out ----------------------------------------------------------------------------

    def _act(self) -> None:
        """Perform what is to be done; what an interrupt cuts short is done again."""
        while self._effects:
            try:
                self._perform(self._effects[0])
            except Exception as error:  # the other effects are owed all the same
                self._take_defect(error)
            self._effects.popleft()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendCall):
            self._asks.send(effect)
        elif isinstance(effect, CancelCall):
            self._asks.cancel(effect.call, effect.instance)
        elif isinstance(effect, StartTimer):
            hangs = effect.timer == "sweep" and self._only_withdraws
            delay_s = self._files.pause_s(effect.delay_s) if hangs else effect.delay_s
            self._timers.start(effect.timer, delay_s)
        elif isinstance(effect, StopTimer):
            self._timers.stop(effect.timer)
        elif isinstance(effect, WriteManifest | WithdrawManifest):
            self._files.begin(effect)
        elif effect.released:
            self.released = True
            self.on_released()

    @property
    def _only_withdraws(self) -> bool:
        """Whether a withdrawal that hangs is all that is left to do."""
        left = self.operation.phase.count("failed", "unanswered")
        return self._files.withdrawing > 0 and not left

    def _fire(self, timer: str) -> None:
        if timer == "record":
            self._begin_drain()
            return
        if timer == ALSO and self.is_held():
            self._timers.start(ALSO, self.operation.settings.sweep_interval_s)
            return
        self._put(TimerFired(moment=self._now(), timer=timer))

    # --- what comes back ------------------------------------------------------------------------

    def _take_judged(self, key: AskKey, judgement: Judgement) -> None:
        self._take_reply(key, outcome=judgement.outcome, facts=judgement.facts)

    def _take_failed(self, key: AskKey, error: BaseException) -> None:
        before = self._failures.get((key.call, key.instance), ())
        self._failures[key.call, key.instance] = (*before[-1:], error)
        self._take_reply(key, outcome="failed", failure=record_of(error))

    def _take_reply(self, key: AskKey, **reply: Any) -> None:
        moment, call, instance, ask = self._now(), key.call, key.instance, key.ask
        self._put(Replied(moment=moment, call=call, instance=instance, ask=ask, **reply))

    def _take_interrupt(self, interrupt: BaseException) -> None:
        """A Ctrl-C that landed in a call interrupts the operation, not the event loop."""
        self.interrupt = self.interrupt or interrupt
        self.post("cancel", {"reason": type(interrupt).__name__})

    # --- telling whoever waits ------------------------------------------------------------------

    def _waiter(self) -> asyncio.Future[None]:
        self.follow_loop()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        waiter.add_done_callback(lambda done: self._waiters.pop(done, None))
        return waiter

    def _wake(self) -> None:
        self._tell(self.on_moved)
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)

    @property
    def goes_on(self) -> bool:
        """Whether there is still something to do, in an event loop that is not closed."""
        loop = self._loop
        ended = self.stopped or (self.operation.settled and not self._ledger.behind)
        return not ended and loop is not None and not loop.is_closed()

    @property
    def replaceable(self) -> bool:
        """Whether another recovery in this process may go on in its place: nothing is under way."""
        resting = self._drain_task is None or self._drain_task.done()
        return self.left_behind and self.released and resting and not self._queue

    def fence(self, error: Fenced) -> None:
        """
        Stop, since another process has the run; may be called on any thread.

        Args:
            error: Who has it.
        """
        loop = self._loop
        if loop is None or not self.goes_on:
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            loop.call_soon_threadsafe(self._stop_fenced, error)

    def _stop_fenced(self, error: Fenced) -> None:
        if self.goes_on:
            self._stop(error)

    def abandon(self) -> None:
        """Act no more, and leave what is left to whoever recovers it."""
        if self.goes_on:
            reason = "what is left of it was left to another recovery"
            self._stop(OperationDiscarded(self.operation.wire_id, reason), level=logging.INFO)

    def _stop(self, error: BaseException, level: int = logging.ERROR) -> None:
        """Act no more: another process has the run, or going on would do harm."""
        logger.log(level, "operation %r stops: %s", self.operation.operation_id, text_of(error))
        self._stopped_by = error
        if not self.operation.cleaning:
            self.fault = self.fault or error
        self.stopped = self.released = True
        self._timers.stop_all()
        self._asks.drop_all()
        answer([(queued, error) for queued in (*self._batch, *self._queue)])
        self._batch = []
        self._queue.clear()
        self._tell(self.on_released)
        self._wake()

    def _tell(self, callback: Callable[[], None]) -> None:
        """Tell somebody who should not raise, and hold nobody up who does."""
        try:
            callback()
        except Exception as error:
            logger.critical("operation %r: %s", self.operation.operation_id, text_of(error))
