"""
The scheduler of one operation: what verbs, recovery and operators ask of its drive.

A verb brings a trigger in and waits for a state; how the operation gets there is the business of
`gymckpt.runtime.driver`. Every wait here is bounded by what the core bounds, and none of them is
needed for the operation to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gymckpt.chart import Ignored, Refused
from gymckpt.core.asking import ALSO
from gymckpt.core.effects import Effect
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.events import FailureRecord, TakenOver, TimerFired, Triggered
from gymckpt.core.operation import NO_CALLS
from gymckpt.core.settings import RENEW
from gymckpt.core.timing import free_at_s, is_unconfirmed_also
from gymckpt.errors import TransitionRefused
from gymckpt.runtime.asks import AskKey, record_of
from gymckpt.runtime.driver import Driver
from gymckpt.standins import RemoteFailure

__all__ = ["Scheduler"]

T = TypeVar("T")

_WAITED_FOR = ("asked", "failed", "unanswered")
"""The states of a call from which an answer may still come."""


class Scheduler(Driver):
    """Drive one operation from its opening to its end."""

    async def open(self, entries: Sequence[Entry]) -> None:
        """
        Make the opening durable.

        Args:
            entries: Those that open the operation.

        Raises:
            OperationIdUsed: The id was used before.
            JournalError: The journal cannot be written; nothing was sent.
        """
        self.follow_loop()
        self._ledger.let_drive(self.operation, self)
        await self._ledger.open(self.operation, entries)
        self._spans.follow(self.operation)

    def take_over(
        self,
        epoch: int,
        owner: str,
        trigger: str = "settle",
        facts: JsonFacts | None = None,
        superseded: tuple[JsonFacts, ...] = (),
    ) -> None:
        """
        Go on in place of a controller that is gone; see `released` and `until_released`.

        Args:
            epoch: The epoch that the claim gave.
            owner: The token of this controller.
            trigger: What it brings to an operation that is not being cleaned up yet.
            facts: What the journal should keep of it besides.
            superseded: What later restores have taken over from it.
        """
        self._ledger.resume(self.operation)
        if self.operation.settled:  # whoever drove it before has ended it just before the claim
            self.released = True
            self.on_released()
            self._wake()
            return
        self.follow_loop()
        self._ledger.let_drive(self.operation, self)
        self._put(
            TakenOver(
                moment=self._now(),
                epoch=epoch,
                owner=owner,
                trigger=trigger,
                facts=facts or {},
                superseded=superseded,
            )
        )

    def pick_up(self, effects: Iterable[Effect]) -> None:
        """
        Go on in the middle of an operation as the controller that drives it.

        Args:
            effects: What is under way: the asks that are out, the timers that run, the file job.
        """
        self._ledger.resume(self.operation)
        for effect in effects:
            self._perform(effect)

    def call_to(self, instance: str) -> str | None:
        """Return the call that an instance is to answer in the present state, if there is one."""
        operation = self.operation
        call, also = operation.phase_call, operation.also_call
        if call is not None and operation.call_state(call, instance).state in _WAITED_FOR:
            return call
        left = also is not None and is_unconfirmed_also(operation, also, instance)
        return also if left else call

    def declare_gone(self, instance: str, reason: str, facts: JsonFacts) -> None:
        """
        Take an instance for dead, on somebody's word, in the call that it is asked now.

        Args:
            instance: One that has not answered.
            reason: Whose word it is, and why.
            facts: What the journal should keep of it besides.
        """
        call = str(self.call_to(instance))
        ask = self.operation.call_state(call, instance).ask
        failure = FailureRecord(type="DeclaredGone", text=reason, transient=False, dead=True)
        key = AskKey(call, instance, ask)
        self._take_reply(key, outcome="failed", failure=failure, facts=facts)

    async def request(self, trigger: str, facts: JsonFacts | None = None) -> None:
        """
        Bring a verb in and wait until its transition is durable.

        Args:
            trigger: A trigger of the operation's chart.
            facts: What the journal should keep of it.

        Raises:
            IllegalTransition: The chart does not allow it now; it changed nothing.
            TransitionRefused: A guard refused it, or the chart ignores it here; it changed nothing.
            JournalError: The transition could not be made durable.
        """
        accepted: asyncio.Future[Ignored | Refused | None] = (
            asyncio.get_running_loop().create_future()
        )
        event = Triggered(moment=self._now(), trigger=trigger, facts=facts or {})
        self._put(event, accepted)
        outcome = await accepted
        if outcome is not None:
            raise TransitionRefused(
                f"{self.operation.chart} {self.operation.operation_id!r} refuses {trigger!r} in "
                f"state {outcome.source!r}: {outcome.reason}"
            )

    async def reached(self, *states: str) -> bool:
        """
        Wait until the operation is in one of `states`, or nobody need wait any longer.

        Returns:
            Whether it is in one of them.
        """
        while self.operation.state not in states and not self.released:
            await self._waiter()
        return self.operation.state in states

    async def renewed(self) -> bool:
        """
        Renew every lease now, or wait for the renewal that is under way.

        Returns:
            Whether every instance has answered; else the operation was given up.
        """
        self.follow_loop()
        self._timers.stop("renew")
        self._put(TimerFired(moment=self._now(), timer="renew"))
        asked = False
        while self.operation.row.renews and not self.released:
            renewals = self.operation.calls.get(RENEW, NO_CALLS)
            pending = renewals.count("asked", "failed", "unanswered")
            if asked and not pending:
                return True
            asked = asked or bool(pending)
            await self._waiter()
        return False

    async def until_released(self) -> None:
        """Wait until the operation has ended, or the rest of it goes on in the background."""
        while not self.released:
            await self._waiter()
        await self._asks.quiet()

    async def until_cleaning(self, bound_s: float) -> int:
        """
        Wait, whatever cancellations come, until cleaning up was sent to every instance.

        Args:
            bound_s: How long at the most.

        Returns:
            How many cancellations came meanwhile.
        """
        cancels = 0
        ends_s = self._clock.monotonic_s() + bound_s
        while not (self.operation.cleaning or self.released):
            left_s = ends_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            try:
                await asyncio.wait({self._waiter()}, timeout=left_s)
            except asyncio.CancelledError:
                cancels += 1
        return cancels

    def ask_besides(self) -> None:
        """Send what the state sends besides, now that nothing is open that it must wait for."""
        self.follow_loop()
        if self.operation.also_call is not None and not (self.stopped or self.is_held()):
            self._timers.stop(ALSO)
            self._put(TimerFired(moment=self._now(), timer=ALSO))

    async def until_besides_ended(self, *, own: bool = False) -> None:
        """
        Wait until nothing that was sent besides can be on its way any more.

        That takes at the most until the deadline and grace of the latest of it have passed.

        Args:
            own: Whether only what is waited for here counts, and not what was given up.
        """
        states = ("asked",) if own else ("asked", "unanswered")
        while not self.stopped and (call := self.operation.also_call) is not None:
            operation = self.operation
            sent = operation.in_state(call, *states)
            free_s = max((free_at_s(operation, call, name) for name, _ in sent), default=0.0)
            left_s = free_s - self._now().at_s
            if left_s <= 0 and not (self._queue or self._batch):
                return
            bound_s = left_s if left_s > 0 else operation.settings.control_timeout_s
            await asyncio.wait({self._waiter()}, timeout=bound_s)

    async def left(self, state: str) -> None:
        """Wait until the operation has left a state, or nobody need wait any longer."""
        while self.operation.state == state and not self.released:
            await self._waiter()

    def sweep(self) -> None:
        """
        Try now what is unconfirmed or unrecorded, instead of at the next interval.

        A withdrawal that hangs is being tried, and waits for its file system or for its interval.
        """
        self.follow_loop()
        if not self.released or self.stopped:
            return
        self._timers.stop("record")
        if not (self.operation.settled or self._only_withdraws):
            self._timers.stop("sweep")
            self._put(TimerFired(moment=self._now(), timer="sweep"))
        elif self._ledger.behind:
            self._begin_drain()

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do: it has ended and is recorded, or it acts no more."""
        return self.stopped or (self.operation.settled and not self._ledger.behind)

    @property
    def unrecorded(self) -> BaseException | None:
        """Why the journal does not hold all that happened, where it does not."""
        return self._stopped_by or (self._ledger.failure if self._ledger.behind else None)

    async def look(self, look: Callable[[Sequence[Entry]], T]) -> T:
        """
        Look at the operation's history, off the event loop.

        Args:
            look: Given the entries that are durable.

        Raises:
            JournalError: The journal cannot be read.
        """
        return await self._ledger.look(self.operation, look)

    def unconfirmed(self, call: str) -> dict[str, BaseException]:
        """Return the instances that failed `call` or left it unanswered, each with its failure."""
        states = ("asked", "failed", "unanswered", "gone")
        return {
            instance: self._failure(call, instance, found.failure)
            for instance, found in self.operation.in_state(call, *states)
            if found.failure is not None
        }

    def _failure(self, call: str, instance: str, record: FailureRecord) -> BaseException:
        """Return a recorded failure as it came; another controller had those that did not here."""
        for known in reversed(self._failures.get((call, instance), ())):
            if record_of(known) == record:
                return known
        if record.type == TimeoutError.__name__:
            return TimeoutError(record.text)
        return RemoteFailure(record.type, record.text)
