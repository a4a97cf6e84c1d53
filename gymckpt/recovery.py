"""
Take over operations whose controller is gone, and bring each to its end (DESIGN, 12).

An operation is claimed first, which fences whoever drove it, then replayed to where its log ends,
then settled: what is not yet safe is given up, and every instance that may have been closed is
reopened. The claim is refused while the owner is alive. Handles are needed only for instances that
must still be reopened; those without one are named and rest until their lease horizon has passed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from gymckpt.calls import Calls, CheckpointCalls, RestoreCalls, SweepCalls
from gymckpt.core.operation import OperationState, require_runnable
from gymckpt.core.settings import (
    HEARTBEATS_PER_TIMEOUT,
    OWNER_TIMEOUT_S,
    RESUME,
    gone_after_s,
    require_duration,
)
from gymckpt.episodes import require_operation_id
from gymckpt.errors import (
    GymCheckpointOperationError,
    InvariantViolated,
    JournalError,
    JournalUnavailable,
    OperationHeld,
    ReplayDiverged,
    sample,
    text_of,
)
from gymckpt.journal import Journal, OperationRow
from gymckpt.journal.rules import check_claim
from gymckpt.manifest import withdraw_gym_checkpoint_manifest
from gymckpt.owed import new_retire, owed_in
from gymckpt.runtime.clock import Clock, SystemClock
from gymckpt.runtime.instances import as_then, cancel_remote
from gymckpt.runtime.past import Past, past_of
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder, new_owner, open_recorder
from gymckpt.topology import from_facts

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
    again while this process lives, and by the next recovery. `held`: its controller is alive.
    `unreadable`: its log does not follow its chart, or this release does not have the chart in
    that version; it was left alone."""
    found_in: str
    """The state in which it was found."""
    state: str
    """The state in which it is now."""
    missing: tuple[str, ...] = ()
    """Instances that must be reopened and for which there is no handle."""
    unconfirmed: tuple[str, ...] = ()
    """Instances that have not confirmed that they are open."""
    reason: str = ""
    """Why it was left alone, where it was."""
    held_by: OperationHeld | None = None
    """Set where the outcome is `held`: who drives it, and the last sign of life."""

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
    Settle every unfinished operation of a run whose controller is gone.

    Args:
        journal: The journal or its URL; None is the default one.
        handles: Instance id to handle; may lack instances that need not be reopened.
        run: The training run.
        force: Whether to take over from controllers that give signs of life.
        owner_timeout_s: How long after its last sign of life a controller counts as gone.
        journal_timeout_s: How long one journal call may take.
        command: Whether the process ends when this returns, so that nothing goes on in it: whoever
            comes next then waits for a few seconds only.

    Returns:
        What came of each, in the order in which they were opened.

    Raises:
        TypeError: A duration is no number.
        ValueError: The run is malformed, or a duration is not positive and finite.
        JournalError: The journal cannot be read or written.
    """
    run = require_operation_id(run, "run")
    require_duration(owner_timeout_s, "owner_timeout_s")
    owner = new_owner(command=command)
    recorder = await open_recorder(
        journal,
        owner=owner,
        timeout_s=require_duration(journal_timeout_s, "journal_timeout_s"),
        heartbeat_s=gone_after_s(owner, owner_timeout_s) / HEARTBEATS_PER_TIMEOUT,
    )
    found = await recover_all(
        recorder, handles, run=run, force=force, owner_timeout_s=owner_timeout_s
    )
    await _pay_owed(recorder, handles, run, SystemClock(), cancel_remote)
    if all(one.outcome != "unconfirmed" for one in found):  # else it goes on in the background
        (recorder.let_go if isinstance(journal, Journal) else recorder.close)()
    return found


async def recover_all(
    recorder: Recorder,
    handles: Mapping[str, Any],
    *,
    run: str,
    force: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    clock: Clock | None = None,
    cancel_reference: Callable[[Any], None] = cancel_remote,
    but: Callable[[], Iterable[str]] = tuple,
    adopt: Callable[[Scheduler], None] = lambda _: None,
) -> tuple[Recovered, ...]:
    """
    Settle unfinished operations through a journal that is open already; see `recover`.

    What discarded restores owe is left to the caller.

    Args:
        recorder: The journal.
        handles: Instance id to handle.
        run: The training run.
        force: Whether to take over from controllers that give signs of life.
        owner_timeout_s: How long after its last sign of life a controller counts as gone.
        clock: The clocks; None is the host's.
        cancel_reference: Told of every reference that is no longer waited for.
        but: Tells the operations that this process drives itself.
        adopt: Given what drives each operation that was taken over, before it begins.

    Raises:
        JournalError: The journal cannot be read or written; what can be taken over was settled.
    """
    await recorder.give_up_doubtful()
    rows = await recorder.run(lambda: recorder.journal.operations(run, unfinished=True))
    own = frozenset(but())  # only now: what was begun meanwhile is among the rows
    taken: list[Scheduler | Recovered] = []
    failures: list[JournalUnavailable] = []
    for row in rows:
        if row.operation_id in own or row.imported:
            continue
        try:
            found = await _taken_over(
                row,
                recorder,
                handles,
                stale_s=None if force else owner_timeout_s,
                clock=clock or SystemClock(),
                cancel_reference=cancel_reference,
                adopt=adopt,
            )
        except JournalUnavailable as error:
            logger.error("operation %r cannot be recovered: %s", row.operation_id, text_of(error))  # noqa: TRY400
            failures.append(error)
        else:
            taken.append(found)
    driven = [found for found in taken if isinstance(found, Scheduler)]
    await asyncio.gather(*(scheduler.until_released() for scheduler in driven))
    if failures:
        raise failures[0]
    found_in = {row.operation_id: row.state for row in rows}
    return tuple(
        outcome_of(found, found_in[found.operation.operation_id], handles)
        if isinstance(found, Scheduler)
        else found
        for found in taken
    )


async def _pay_owed(
    recorder: Recorder,
    handles: Mapping[str, Any],
    run: str,
    clock: Clock,
    cancel_reference: Callable[[Any], None],
) -> None:
    """Retire what discarded restores could not, wherever there is a handle."""
    now_ts = clock.wall_ts()
    owed, settings = await recorder.read(lambda: owed_in(recorder.journal, run, handles, now_ts))
    if not owed or settings is None:
        return
    opening, calls = new_retire(run, owed, settings, clock)
    scheduler = Scheduler(
        opening.operation,
        recorder=recorder,
        handles=handles,
        wire=calls,
        clock=clock,
        cancel_reference=cancel_reference,
    )
    await scheduler.open(opening.entries)
    scheduler.post("run")
    await scheduler.until_released()
    failures = scheduler.unconfirmed("retire")
    if failures:
        logger.warning(
            "restored attempts are still to be retired: %s",
            GymCheckpointOperationError("retire", failures),
        )


async def _taken_over(
    row: OperationRow,
    recorder: Recorder,
    handles: Mapping[str, Any],
    *,
    stale_s: float | None,
    clock: Clock,
    cancel_reference: Callable[[Any], None],
    adopt: Callable[[Scheduler], None],
) -> Scheduler | Recovered:
    """Claim one operation and begin to settle it, or say why it was left alone."""
    left_alone = Recovered(
        operation_id=row.operation_id,
        chart=row.chart,
        outcome="held",
        found_in=row.state,
        state=row.state,
    )
    try:
        require_runnable(row.chart, row.chart_version)  # before it is taken from who can
    except ValueError as unknown:
        logger.error("operation %r cannot be recovered: %s", row.operation_id, text_of(unknown))  # noqa: TRY400
        return attrs.evolve(left_alone, outcome="unreadable", reason=text_of(unknown))
    try:
        scheduler, epoch = await claimed(
            row,
            recorder,
            handles,
            stale_s=stale_s,
            clock=clock,
            cancel_reference=cancel_reference,
        )
    except OperationHeld as held:
        return attrs.evolve(left_alone, reason=str(held), held_by=held)
    except JournalUnavailable:
        raise
    except (ReplayDiverged, InvariantViolated, JournalError) as broken:
        logger.error("operation %r cannot be recovered: %s", row.operation_id, text_of(broken))  # noqa: TRY400
        return attrs.evolve(left_alone, outcome="unreadable", reason=text_of(broken))
    adopt(scheduler)
    scheduler.take_over(epoch, recorder.owner)
    return scheduler


async def claimed(
    row: OperationRow,
    recorder: Recorder,
    handles: Mapping[str, Any],
    *,
    stale_s: float | None,
    clock: Clock,
    cancel_reference: Callable[[Any], None],
    known: Past | None = None,
) -> tuple[Scheduler, int]:
    """
    Claim one operation and stand ready to go on with it; nothing is sent or recorded yet.

    Its history is read before, so that none that cannot be read is taken from who drives it.

    Args:
        row: The operation.
        recorder: The journal.
        handles: Instance id to handle.
        stale_s: How long its controller must have been silent; None to take it over anyway.
        clock: The two clocks.
        cancel_reference: Told of every reference that is no longer waited for.
        known: What its history comes to, as far as it was read before.

    Returns:
        What drives it, and the epoch that the claim gave; see `Scheduler.take_over`.

    Raises:
        OperationHeld: Its controller is alive; nothing changed.
        ReplayDiverged: Its log does not follow its chart.
        InvariantViolated: Its log breaks a promise of the design.
        JournalError: The journal cannot be read or written.
    """
    journal, run, operation_id = recorder.journal, row.run, row.operation_id
    await recorder.run(lambda: _require_silent(journal, run, operation_id, stale_s))
    past = await past_of(recorder, run, operation_id, known=known)
    epoch = await recorder.run(
        lambda: journal.claim(run, operation_id, owner=recorder.owner, stale_s=stale_s)
    )
    past = await past_of(recorder, run, operation_id, known=past)  # what came before the fence
    scheduler = Scheduler(
        attrs.evolve(past.operation, epoch=epoch, at_s=past.clock_s(clock.wall_ts())),
        recorder=recorder,
        handles=as_then(handles, past.operation.opening),
        wire=_calls_of(past.operation),
        clock=clock,
        cancel_reference=cancel_reference,
    )
    return scheduler, epoch


def _require_silent(journal: Journal, run: str, operation_id: str, stale_s: float | None) -> None:
    """Raise OperationHeld where a claim would, before a long history is read in vain."""
    held = journal.operation(run, operation_id)
    if held is not None and stale_s is not None:
        check_claim(held, journal.silent_s(run, operation_id), stale_s)


def _calls_of(operation: OperationState) -> Calls:
    """Return the wire of an operation of which only the journal is left."""
    opening = operation.opening
    if operation.chart == "checkpoint":
        return _RecoveredCheckpoint(operation.wire_id, operation.instances)
    if operation.chart == "restore":
        return RestoreCalls(operation.wire_id, from_facts(opening["inventory"]))
    return SweepCalls(operation.wire_id, None)


def outcome_of(scheduler: Scheduler, found_in: str, handles: Mapping[str, Any]) -> Recovered:
    """
    Return what has come of an operation that was taken over.

    Args:
        scheduler: What drives it.
        found_in: The state in which it was found.
        handles: Instance id to handle.
    """
    operation = scheduler.operation
    waiting = operation.in_state(RESUME, "asked", "failed", "unanswered")
    unconfirmed = tuple(instance for instance, _ in waiting)
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
