"""
Take over operations whose controller is gone, and bring each to its end (DESIGN, 12).

What is unfinished is read first; then the run is claimed, which fences whoever held it and is
refused while that process is alive; then each operation is settled on its own: what is not yet safe
is given up, and every instance that may have been closed is reopened. One whose log cannot be read
is named, stops no other, and is fenced where its opening can be read: instances are told to resume
its id. Handles are needed only for instances that must still be reopened; those without one are
named and rest until their lease horizon has passed. What has settled is not read at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from gymckpt.calls import Calls, CheckpointCalls, RestoreCalls, SweepCalls
from gymckpt.core.entry import JsonFacts
from gymckpt.core.operation import OperationState, require_runnable
from gymckpt.core.settings import (
    HEARTBEATS_PER_TIMEOUT,
    OWNER_TIMEOUT_S,
    RESUME,
    gone_after_s,
    require_duration,
)
from gymckpt.core.timing import unconfirmed_also
from gymckpt.episodes import require_operation_id
from gymckpt.errors import (
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    RunHeld,
    sample,
    text_of,
)
from gymckpt.journal import Damaged, Journal, OperationRow
from gymckpt.manifest import withdraw_gym_checkpoint_manifest
from gymckpt.runtime.clock import Clock, SystemClock
from gymckpt.runtime.holding import holder_token
from gymckpt.runtime.instances import as_then, cancel_remote
from gymckpt.runtime.past import Past, past_of
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder, open_recorder
from gymckpt.superseding import superseded_since
from gymckpt.topology import from_facts
from gymckpt.unreadable import Fencing, fence_unreadable

__all__ = [
    "HEARTBEATS_PER_TIMEOUT",
    "Recovered",
    "claimed",
    "outcome_of",
    "recover",
    "recover_all",
]

logger = logging.getLogger("gymckpt")


@attrs.frozen(kw_only=True)
class Recovered:
    """What came of one unfinished operation."""

    operation_id: str
    chart: str
    outcome: Literal["settled", "unconfirmed", "held", "unreadable"]
    """`settled`: it has ended. `unconfirmed`: some instances are not confirmed open; they are tried
    again while this process lives, and by the next recovery. `held`: another process, which is
    alive, holds the run. `unreadable`: its log is damaged or does not follow its chart, or this
    release does not have the chart in that version; nothing was recorded of it."""
    found_in: str
    """The state in which it was found."""
    state: str
    """The state in which it is now."""
    missing: tuple[str, ...] = ()
    """Instances that must be reopened and for which there is no handle."""
    unconfirmed: tuple[str, ...] = ()
    """Instances that have not confirmed that they are open, or that they retired attempts."""
    fenced: tuple[str, ...] = ()
    """Of an unreadable one, the instances that refuse its id from now on."""
    reason: str = ""
    """Why it was not settled, where it was not."""
    held_by: RunHeld | None = None
    """Set where the outcome is `held`: which process holds the run, and since when."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.outcome == "settled"


class _RecoveredCheckpoint(CheckpointCalls):
    """The calls of a checkpoint whose manifest another process may have written."""

    def withdraw(self, root: str) -> Callable[[], Mapping[str, Any]]:
        """Return the job that removes the manifest, and stops a process that is only slow."""

        def job() -> Mapping[str, Any]:
            try:
                return {"removed": withdraw_gym_checkpoint_manifest(root, self.checkpoint_id)}
            except ValueError as error:  # what stands there is not of this checkpoint
                logger.warning("%s", text_of(error))
                return {"removed": False, "left": text_of(error)}

        return job


async def recover(
    journal: Journal | str | Path | None,
    handles: Mapping[str, Any],
    *,
    run: str,
    force: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    journal_timeout_s: float = 10.0,
    command: bool = False,
) -> tuple[Recovered, ...]:
    """
    Settle every unfinished operation of a run whose holder is gone.

    Args:
        journal: The journal or its URL; None is the default one.
        handles: Instance id to handle; may lack instances that need not be reopened.
        run: The training run.
        force: Whether to take the run from a process that is alive.
        owner_timeout_s: How long this process must be silent to count as gone, while it holds it.
        journal_timeout_s: How long one journal call may take.
        command: Whether the process ends when this returns, so that nothing goes on in it: the run
            is given back.

    Returns:
        What came of each, in the order in which they were opened.

    Raises:
        TypeError: A duration is no number.
        ValueError: The run is malformed, or a duration is not positive and finite.
        JournalError: The journal cannot be read or written.
    """
    run = require_operation_id(run, "run")
    require_duration(owner_timeout_s, "owner_timeout_s")
    owner = holder_token(command=command)
    recorder = await open_recorder(
        journal,
        owner=owner,
        timeout_s=require_duration(journal_timeout_s, "journal_timeout_s"),
        heartbeat_s=gone_after_s(owner, owner_timeout_s) / HEARTBEATS_PER_TIMEOUT,
    )
    driven: list[Scheduler] = []

    def adopt(scheduler: Scheduler) -> None:
        scheduler.left_behind = True
        driven.append(scheduler)

    found = await recover_all(recorder, handles, run=run, force=force, adopt=adopt)
    left = any(one.outcome == "unconfirmed" for one in found)
    if command or not left:  # else it goes on in the background
        for scheduler in driven:
            scheduler.abandon()
        await recorder.give_back()
        (recorder.let_go if isinstance(journal, Journal) else recorder.close)()
    return found


async def recover_all(
    recorder: Recorder,
    handles: Mapping[str, Any],
    *,
    run: str,
    force: bool = False,
    clock: Clock | None = None,
    cancel_reference: Callable[[Any], None] = cancel_remote,
    but: Callable[[], Iterable[str]] = tuple,
    adopt: Callable[[Scheduler], None] = lambda _: None,
    always: bool = False,
) -> tuple[Recovered, ...]:
    """
    Settle unfinished operations through a journal that is open already; see `recover`.

    Args:
        recorder: The journal.
        handles: Instance id to handle.
        run: The training run.
        force: Whether to take the run from a process that is alive.
        clock: The clocks; None is the host's.
        cancel_reference: Told of every reference that is no longer waited for.
        but: Tells the operations that the caller drives itself.
        adopt: Given what drives each operation that was taken over, before it begins.
        always: Whether to claim the run although nothing of it is unfinished.

    Raises:
        JournalError: The journal cannot be read or written; what can be taken over was settled.
    """
    await recorder.give_up_doubtful()
    recovery = _Recovery(
        _Means(recorder, handles, clock or SystemClock(), cancel_reference), run, adopt
    )
    return await recovery.settle(force=force, but=but, always=always)


@attrs.frozen
class _Means:
    """With what operations are gone on with."""

    recorder: Recorder
    handles: Mapping[str, Any]
    clock: Clock
    cancel_reference: Callable[[Any], None]

    async def stand_in(self, row: OperationRow, past: Past, epoch: int) -> Claimed:
        """Return what goes on with an operation of which only its history is left."""
        journal = self.recorder.journal
        superseded = await self.recorder.run(lambda: superseded_since(journal, row, past.operation))
        scheduler = Scheduler(
            attrs.evolve(past.operation, epoch=epoch, at_s=past.clock_s(self.clock.wall_ts())),
            recorder=self.recorder,
            handles=as_then(self.handles, past.operation.opening),
            wire=_calls_of(past.operation),
            clock=self.clock,
            cancel_reference=self.cancel_reference,
        )
        return Claimed(scheduler, epoch, superseded)


class _Recovery:
    """One recovery of a run: each of its operations on its own."""

    def __init__(
        self,
        means: _Means,
        run: str,
        adopt: Callable[[Scheduler], None],
    ) -> None:
        self._means = means
        self._recorder = means.recorder
        self._run = run
        self._adopt = adopt
        self._pasts: dict[str, Past] = {}
        self._driven: list[Scheduler] = []
        self._unreadable: dict[str, str] = {}
        """Operation to why its log cannot be read."""
        self._failures: list[JournalUnavailable] = []

    async def settle(
        self, *, force: bool, but: Callable[[], Iterable[str]], always: bool
    ) -> tuple[Recovered, ...]:
        """Read, claim, and settle each operation."""
        rows = await self._unfinished(but)
        for row in rows:  # before the run is taken from whoever holds it
            await self._read(row)
        if not (rows or always):
            return ()
        try:
            hold = await self._recorder.hold(self._run, force=force)
        except RunHeld as held:
            return tuple(self._left(row, "held", reason=str(held), held_by=held) for row in rows)
        own = hold.own_ids()
        rows = [row for row in await self._unfinished(but) if row.operation_id not in own]
        taken = [await self._taken_over(row, hold.epoch) for row in rows]
        closing = [one for one in self._driven if not _only_insists(one)]
        await asyncio.gather(*(one.until_released() for one in closing))
        await asyncio.gather(*(_besides(one) for one in self._driven))
        found = [
            await self._outcome(row, one) if isinstance(one, Scheduler) else one
            for row, one in zip(rows, taken, strict=True)
        ]
        if self._failures:
            raise self._failures[0]
        return tuple(one for one in found if one is not None)

    async def _unfinished(self, but: Callable[[], Iterable[str]]) -> list[OperationRow | Damaged]:
        journal = self._recorder.journal
        rows = await self._recorder.run(lambda: journal.unfinished(self._run))
        own = frozenset(but())  # only now: what was begun meanwhile is among the rows
        return [row for row in rows if row.operation_id not in own and not _is_imported(row)]

    async def _read(self, row: OperationRow | Damaged) -> None:
        """Read the history of an operation as far as it goes now, or remember why not."""
        name = row.operation_id
        try:
            if isinstance(row, Damaged):
                raise JournalCorrupt(row.reason)
            require_runnable(row.chart, row.chart_version)
            known = self._pasts.get(name)
            self._pasts[name] = await past_of(self._recorder, self._run, name, known=known)
        except JournalUnavailable as error:
            logger.error("operation %r cannot be recovered: %s", name, text_of(error))  # noqa: TRY400
            self._failures.append(error)
        except Exception as error:  # whatever a damaged log comes to, the others go on
            logger.error("operation %r cannot be recovered: %s", name, text_of(error))  # noqa: TRY400
            self._unreadable[name] = text_of(error)

    async def _taken_over(
        self, row: OperationRow | Damaged, epoch: int
    ) -> Scheduler | Recovered | None:
        """Begin to settle one operation, or say why it cannot be; None where it failed."""
        failed = len(self._failures)
        if row.operation_id not in self._unreadable:
            await self._read(row)  # what came before the fence
        if len(self._failures) > failed:
            return None
        if row.operation_id in self._unreadable or isinstance(row, Damaged):
            return await self._fenced(row, self._unreadable[row.operation_id])
        try:
            taken = await self._means.stand_in(row, self._pasts[row.operation_id], epoch)
        except JournalUnavailable as error:
            self._failures.append(error)
            return None
        except Exception as broken:  # what is only read to go on with it
            logger.error("operation %r cannot be recovered: %s", row.operation_id, text_of(broken))  # noqa: TRY400
            return await self._fenced(row, text_of(broken))
        self._adopt_held(taken.scheduler)
        taken.go_on(self._recorder.owner)
        return taken.scheduler

    def _adopt_held(self, scheduler: Scheduler) -> None:
        """What is sent besides waits until every other operation has reopened its instances."""
        self._driven.append(scheduler)
        scheduler.is_held = lambda: any(
            not (other.released or _only_insists(other)) for other in self._driven
        )
        self._adopt(scheduler)

    async def _outcome(self, row: OperationRow | Damaged, scheduler: Scheduler) -> Recovered:
        fault = scheduler.fault
        if scheduler.stopped and fault is not None and not isinstance(fault, JournalError):
            return await self._fenced(row, text_of(fault))
        return outcome_of(scheduler, row.state, self._means.handles)

    async def _fenced(self, row: OperationRow | Damaged, reason: str) -> Recovered:
        """Fence an operation that cannot be settled, where its opening says whom to tell what."""
        fencing = Fencing()
        try:
            fencing = await fence_unreadable(
                self._recorder,
                self._run,
                row.operation_id,
                self._means.handles,
                clock=self._means.clock,
                cancel_reference=self._means.cancel_reference,
            )
        except Exception as error:  # its opening is damaged too, or the journal is gone
            logger.warning("operation %r cannot be fenced: %s", row.operation_id, text_of(error))
            reason = f"{reason}; it is not fenced: {text_of(error)}"
        return self._left(
            row,
            "unreadable",
            reason=reason + fencing.advice,
            fenced=fencing.fenced,
            unconfirmed=fencing.unconfirmed,
            missing=fencing.missing,
        )

    def _left(
        self, row: OperationRow | Damaged, outcome: Literal["held", "unreadable"], **told: Any
    ) -> Recovered:
        return Recovered(
            operation_id=row.operation_id,
            chart=row.chart,
            outcome=outcome,
            found_in=row.state,
            state=row.state,
            **told,
        )


def _is_imported(row: OperationRow | Damaged) -> bool:
    """Whether an operation is for reading, and never driven here."""
    return isinstance(row, OperationRow) and row.imported


def _only_insists(scheduler: Scheduler) -> bool:
    """Whether an operation closes nothing and only sends its call until it is confirmed."""
    return scheduler.operation.also_call is not None and scheduler.operation.phase_call is None


async def _besides(scheduler: Scheduler) -> None:
    """Give what an operation sends besides, after it was released, one try."""
    scheduler.ask_besides()
    await scheduler.until_besides_ended(own=True)


@attrs.frozen
class Claimed:
    """An operation whose run was claimed, and that stands ready to go on."""

    scheduler: Scheduler
    epoch: int
    """The epoch with which the run is held."""
    superseded: tuple[JsonFacts, ...]
    """What later restores have taken over from it."""

    def go_on(self, owner: str, trigger: str = "settle", facts: JsonFacts | None = None) -> None:
        """Begin to settle it; see `Scheduler.take_over`."""
        self.scheduler.take_over(self.epoch, owner, trigger, facts, self.superseded)


async def claimed(
    row: OperationRow,
    recorder: Recorder,
    handles: Mapping[str, Any],
    *,
    force: bool,
    clock: Clock,
    cancel_reference: Callable[[Any], None],
    known: Past | None = None,
) -> Claimed:
    """
    Claim the run of one operation and stand ready to go on with it; nothing is sent or recorded.

    Its history is read before, so that no run is taken from anybody for what cannot be read.

    Args:
        row: The operation.
        recorder: The journal.
        handles: Instance id to handle.
        force: Whether to take the run from a process that is alive.
        clock: The two clocks.
        cancel_reference: Told of every reference that is no longer waited for.
        known: What its history comes to, as far as it was read before.

    Returns:
        What drives it.

    Raises:
        RunHeld: Another process holds the run and is alive; nothing changed.
        ReplayDiverged: Its log does not follow its chart.
        InvariantViolated: Its log breaks a promise of the design.
        JournalError: The journal cannot be read or written.
    """
    run, operation_id = row.run, row.operation_id
    past = await past_of(recorder, run, operation_id, known=known)
    hold = await recorder.hold(run, force=force)
    past = await past_of(recorder, run, operation_id, known=past)  # what came before the fence
    means = _Means(recorder, handles, clock, cancel_reference)
    return await means.stand_in(row, past, hold.epoch)


def _calls_of(operation: OperationState) -> Calls:
    """Return the wire of an operation of which only the journal is left."""
    opening = operation.opening
    if operation.chart == "checkpoint":
        return _RecoveredCheckpoint(operation.wire_id, operation.instances)
    if operation.chart == "restore":
        return RestoreCalls(operation.wire_id, from_facts(opening["inventory"]))
    return SweepCalls(operation.wire_id, None)


def unconfirmed_in(operation: OperationState) -> tuple[str, ...]:
    """Return the instances that cleaning up still waits for: to reopen or to retire."""
    waiting = {name for name, _ in operation.in_state(RESUME, "asked", "failed", "unanswered")}
    waiting.update(unconfirmed_also(operation))
    return tuple(name for name in operation.instances if name in waiting)


def outcome_of(scheduler: Scheduler, found_in: str, handles: Mapping[str, Any]) -> Recovered:
    """
    Return what has come of an operation that was taken over.

    Args:
        scheduler: What drives it.
        found_in: The state in which it was found.
        handles: Instance id to handle.
    """
    operation = scheduler.operation
    unconfirmed = unconfirmed_in(operation)
    missing = tuple(instance for instance in unconfirmed if instance not in handles)
    if missing:
        logger.warning(
            "operation %r: no handle for %s; they reopen by themselves when their lease ends, or "
            "recover again with their handles",
            operation.operation_id,
            sample(missing),
        )
    return Recovered(
        operation_id=operation.operation_id,
        chart=operation.chart,
        outcome="settled" if operation.settled else "unconfirmed",
        found_in=found_in,
        state=operation.state,
        missing=missing,
        unconfirmed=unconfirmed,
        reason="" if scheduler.fault is None else text_of(scheduler.fault),
    )
