"""
What an operator does by hand to an operation whose controller is gone, or is to be overruled.

A move is checked against the chart before anything is touched, so that one that is refused changes
nothing. Then its run is claimed, which fences the process that held it, the move is made by the
same core and scheduler as everything else, and the run is given back; who made it and why is in the
entry. Instances without a
handle are not asked: that is recorded, and the next recovery with their handles asks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, Self

import attrs

from gymckpt.chart import Fired, Ignored
from gymckpt.checks import is_unicode, plain_keys
from gymckpt.core.operation import OperationState, machine_of
from gymckpt.core.settings import (
    COMMAND_TIMEOUT_S,
    HEARTBEATS_PER_TIMEOUT,
    RESUME,
)
from gymckpt.core.timing import is_unconfirmed_also
from gymckpt.errors import IllegalTransition, TransitionRefused, did_you_mean
from gymckpt.journal import Journal, OperationRow
from gymckpt.journal.rules import imported, unknown_operation
from gymckpt.recovery import claimed, unconfirmed_in
from gymckpt.runtime.clock import Clock, SystemClock
from gymckpt.runtime.holding import holder_token
from gymckpt.runtime.instances import cancel_remote
from gymckpt.runtime.past import Past, past_of
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder
from gymckpt.values import plain

__all__ = ["By", "Moved", "discard", "mark_gone", "sweep"]

JOURNAL_TIMEOUT_S = 10.0
"""How long one journal call of a move may take."""

REASON_MAX = 500

_WAITING = ("asked", "failed", "unanswered")


def _stripped(value: str) -> str:
    return value.strip()


def _check_words(_by: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value or len(value) > REASON_MAX:
        raise ValueError(f"{attribute.name} needs 1 to {REASON_MAX} characters, not {len(value)}")
    if not is_unicode(value):  # no journal would take it, once the operation is claimed
        raise ValueError(
            f"{attribute.name} must be Unicode text, which this is not: {value!r:.100}"
        )


@attrs.frozen(kw_only=True)
class By:
    """
    Who makes a move, and why; both are journaled.

    Raises:
        ValueError: One of them is empty, too long or no Unicode text.
    """

    operator: str = attrs.field(converter=_stripped, validator=_check_words)
    """A person, as `user@host`."""
    reason: str = attrs.field(converter=_stripped, validator=_check_words)


@attrs.frozen(kw_only=True)
class Moved:
    """What came of a move."""

    run: str
    operation_id: str
    move: Literal["discard", "sweep", "mark-gone"]
    found_in: str
    """The state in which the operation was found."""
    state: str
    """The state in which it is now."""
    settled: bool
    epoch: int
    """The epoch with which the run was held for it."""
    unconfirmed: tuple[str, ...]
    """Instances that have not confirmed that they are open."""
    missing: tuple[str, ...]
    """Those of them for which there was no handle, so that nothing was sent to them."""


async def discard(
    journal: Journal,
    run: str,
    operation_id: str,
    *,
    by: By,
    handles: Mapping[str, Any] | None = None,
    force: bool = False,
    clock: Clock | None = None,
) -> Moved:
    """
    Give an operation up, and reopen what it may have closed.

    Args:
        journal: Where it is.
        run: Its run.
        operation_id: Its id.
        by: Who does it, and why.
        handles: Instance id to handle; those without one are asked by the next recovery.
        force: Whether to take its run from a process that is alive, which ends every verb there.
        clock: The clocks; None is the host's.

    Returns:
        What came of it.

    Raises:
        TransitionRefused: It has ended, was imported, or can no longer be given up; nothing
            changed.
        RunHeld: The process that holds its run is alive; nothing changed.
        ReplayDiverged: Its log does not follow its chart.
        JournalError: There is no such operation, or the journal cannot be written.
    """
    async with _Mover(journal, handles, force=force, clock=clock) as mover:
        found = await mover.find(run, operation_id)
        _require_taken(found.past.operation, "discard")
        facts = {"reason": by.reason, "operator": by.operator}
        return await mover.make("discard", found, "discard", facts)


async def sweep(
    journal: Journal,
    run: str,
    operation_id: str,
    *,
    by: By,
    handles: Mapping[str, Any] | None = None,
    force: bool = False,
    clock: Clock | None = None,
) -> Moved:
    """
    Ask every instance that has not confirmed its reopening once more, now.

    Args:
        journal: Where it is.
        run: Its run.
        operation_id: Its id.
        by: Who does it, and why.
        handles: Instance id to handle; those without one are asked by the next recovery.
        force: Whether to take its run from a process that is alive, which ends every verb there.
        clock: The clocks; None is the host's.

    Returns:
        What came of it.

    Raises:
        TransitionRefused: It has ended, or is not being cleaned up yet; nothing changed.
        RunHeld: The process that holds its run is alive; nothing changed.
        ReplayDiverged: Its log does not follow its chart.
        JournalError: There is no such operation, or the journal cannot be written.
    """
    async with _Mover(journal, handles, force=force, clock=clock) as mover:
        found = await mover.find(run, operation_id)
        operation = found.past.operation
        if not operation.cleaning:
            raise TransitionRefused(
                f"{_named(operation)} is {operation.state!r}, in which nothing is being reopened; "
                "discard it, which reopens everything"
            )
        facts = {"operator": by.operator, "why": by.reason}
        return await mover.make("sweep", found, "settle", facts)


async def mark_gone(
    journal: Journal,
    run: str,
    operation_id: str,
    instance: str,
    *,
    by: By,
    handles: Mapping[str, Any] | None = None,
    force: bool = False,
    clock: Clock | None = None,
) -> Moved:
    """
    Take an instance for dead: it is no longer waited for, and nothing of it must be reopened.

    An operation that is not being cleaned up yet is given up by it, as by a recovery.

    Args:
        journal: Where it is.
        run: Its run.
        operation_id: Its id.
        instance: The instance whose actor is gone.
        by: Who says so, and why.
        handles: Instance id to handle; those without one are asked by the next recovery.
        force: Whether to take its run from a process that is alive, which ends every verb there.
        clock: The clocks; None is the host's.

    Returns:
        What came of it.

    Raises:
        TransitionRefused: The operation has ended, or the instance is not waited for; nothing
            changed.
        ValueError: The operation has no such instance; nothing changed.
        RunHeld: The process that holds its run is alive; nothing changed.
        ReplayDiverged: Its log does not follow its chart.
        JournalError: There is no such operation, or the journal cannot be written.
    """
    async with _Mover(journal, handles, force=force, clock=clock) as mover:
        found = await mover.find(run, operation_id)
        operation, instance = found.past.operation, plain(instance)
        if instance not in operation.instances:
            hint = did_you_mean(instance, operation.instances)
            raise ValueError(f"{_named(operation)} has no instance {instance!r:.150}{hint}")
        if operation.cleaning:
            _require_waited_for(operation, instance)
        facts = {"operator": by.operator, "why": by.reason}
        return await mover.make("mark-gone", found, "settle", facts, gone=instance)


# --- checking -----------------------------------------------------------------------------------


def _named(operation: OperationState) -> str:
    return f"{operation.chart} {operation.operation_id!r}"


def _require_taken(operation: OperationState, trigger: str) -> None:
    """Raise TransitionRefused unless the chart takes a trigger in the present state."""
    try:
        outcome = machine_of(operation.chart).fire(operation.state, trigger)
    except IllegalTransition as error:
        raise TransitionRefused(str(error)) from error
    if not isinstance(outcome, Fired):
        reason = outcome.reason if isinstance(outcome, Ignored) else outcome.guard
        raise TransitionRefused(
            f"{_named(operation)} refuses {trigger!r} in state {operation.state!r}: {reason}"
        )


def _require_waited_for(operation: OperationState, instance: str) -> None:
    """Raise TransitionRefused where cleaning up does not wait for an instance."""
    call, also = operation.phase_call, operation.also_call
    if also is not None and is_unconfirmed_also(operation, also, instance):
        return
    call = call or str(also)
    stands = operation.call_state(call, instance).state
    if stands not in (*_WAITING, "idle"):
        raise TransitionRefused(
            f"{instance} is not waited for in {_named(operation)}: {call} is {stands!r}"
        )


# --- moving -------------------------------------------------------------------------------------


@attrs.frozen
class _Found:
    """An unfinished operation as the journal has it."""

    row: OperationRow
    past: Past


class _Mover:
    """Makes one move: claims the run, and drives the operation until nobody need wait any more."""

    def __init__(
        self,
        journal: Journal,
        handles: Mapping[str, Any] | None,
        *,
        force: bool,
        clock: Clock | None,
    ) -> None:
        self._recorder = Recorder(
            journal,
            owner=holder_token(command=True),
            timeout_s=JOURNAL_TIMEOUT_S,
            heartbeat_s=COMMAND_TIMEOUT_S / HEARTBEATS_PER_TIMEOUT,
        )
        self._handles = plain_keys(handles or {}, "handles")
        self._force = force
        self._clock = clock or SystemClock()
        self._driving: Scheduler | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Give the run back, and leave what is left to do to whoever recovers it."""
        if self._driving is not None:
            self._driving.abandon()
        await self._recorder.give_back()
        self._recorder.let_go()

    async def find(self, run: str, operation_id: str) -> _Found:
        """Return an unfinished operation, or refuse; nothing is changed."""
        journal, run, operation_id = self._recorder.journal, plain(run), plain(operation_id)
        row = await self._recorder.run(lambda: journal.operation(run, operation_id))
        if row is None:
            raise unknown_operation(run, operation_id)
        if row.imported:
            raise TransitionRefused(str(imported(row)))
        past = await past_of(self._recorder, run, operation_id)
        if past.operation.settled:
            raise TransitionRefused(
                f"{_named(past.operation)} has ended in {past.operation.state!r}"
            )
        return _Found(row, past)

    async def make(
        self,
        move: Literal["discard", "sweep", "mark-gone"],
        found: _Found,
        trigger: str,
        facts: Mapping[str, Any],
        gone: str | None = None,
    ) -> Moved:
        row = found.row
        taken = await claimed(
            row,
            self._recorder,
            self._handles,
            force=self._force,
            clock=self._clock,
            cancel_reference=cancel_remote,
            known=found.past,
        )
        scheduler = self._driving = taken.scheduler
        declared = asyncio.Event()
        if gone is not None:
            _watch_gone(scheduler, gone, facts, declared)
        taken.go_on(self._recorder.owner, trigger, facts)
        await scheduler.until_released()
        if gone is not None and scheduler.fault is None:
            async with asyncio.timeout(JOURNAL_TIMEOUT_S):
                await declared.wait()
        if scheduler.fault is not None:
            raise scheduler.fault
        operation = scheduler.operation
        unconfirmed = unconfirmed_in(operation)
        return Moved(
            run=row.run,
            operation_id=row.operation_id,
            move=move,
            found_in=row.state,
            state=operation.state,
            settled=operation.settled,
            epoch=taken.epoch,
            unconfirmed=unconfirmed,
            missing=tuple(name for name in unconfirmed if name not in self._handles),
        )


def _watch_gone(
    scheduler: Scheduler, instance: str, facts: Mapping[str, Any], ended: asyncio.Event
) -> None:
    """Declare an instance gone in every call of cleaning up that asks it, up to the last."""
    declared: set[str] = set()
    reason = f"declared gone by {facts['operator']}: {facts['why']}"

    def look() -> None:
        operation = scheduler.operation
        last = [call for call in (RESUME, operation.also_call) if call is not None]
        gone = any(operation.call_state(call, instance).state == "gone" for call in last)
        if operation.settled or gone:
            ended.set()
        call = scheduler.call_to(instance)
        if not operation.cleaning or call is None or operation.state in declared:
            return
        if operation.call_state(call, instance).state in _WAITING:
            declared.add(operation.state)
            scheduler.declare_gone(instance, reason, facts)

    scheduler.on_moved = look
