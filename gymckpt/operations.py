"""
The operations of one coordinator: opened one at a time, held while open, let go when released.

What a coordinator may do when follows from here: at most one open checkpoint or restore; sweeps
(retire, forget, a lone resume) only while none is open; ids used once in a run. Operations that
were released before they ended stay here until they have, and are tried again when the next one
begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gymckpt.calls import Calls, SweepCalls
from gymckpt.core.entry import Entry
from gymckpt.core.events import Moment
from gymckpt.core.settings import RESUME, Settings
from gymckpt.core.step import open_operation
from gymckpt.core.timing import unconfirmed_also
from gymckpt.episodes import new_operation_id, require_new_id
from gymckpt.errors import IllegalTransition, OperationIdUsed, OperationOpen
from gymckpt.journal import Journal
from gymckpt.recovery import HEARTBEATS_PER_TIMEOUT, Recovered, outcome_of, recover_all
from gymckpt.running import Running
from gymckpt.runtime.clock import Clock
from gymckpt.runtime.holding import holder_token
from gymckpt.runtime.instances import actors_of
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder, open_recorder
from gymckpt.superseding import superseded_by
from gymckpt.topology import Inventory, to_facts

__all__ = ["Operations"]

logger = logging.getLogger("gymckpt")

Listed = Mapping[str, tuple[Any, ...]]
"""Instance to the episodes or rollout ids that a sweep names to it."""

NOT_OPEN = "not open"


class Operations:
    """Open, hold and let go of one coordinator's operations."""

    def __init__(
        self,
        *,
        handles: Mapping[str, Any],
        run: str,
        journal: Journal | str | Path | None,
        journal_timeout_s: float,
        owner_timeout_s: float,
        clock: Clock,
        settings: Callable[[], Settings],
        cancel_reference: Callable[[Any], None],
    ) -> None:
        """
        Begin without any operation; the journal is opened with the first.

        Args:
            handles: Instance id to handle.
            run: The training run.
            journal: A journal or its URL; None is the default.
            journal_timeout_s: How long one journal call may take.
            owner_timeout_s: How long this process must be silent to count as gone.
            clock: The two clocks.
            settings: What bounds an operation that is opened now.
            cancel_reference: Told of every reference that is no longer waited for.
        """
        self.run = run
        self.open: Running | None = None
        """The open checkpoint or restore."""
        self._lost: Running | None = None
        """The last one that was given up in the background, before any verb could be told why."""
        self._handles = handles
        self._journal = journal
        self._journal_timeout_s = journal_timeout_s
        self.owner_timeout_s = owner_timeout_s
        self._clock = clock
        self._settings = settings
        self._cancel_reference = cancel_reference
        self._owner = holder_token()
        self._recorder: Recorder | None = None
        self._opening: str | None = None
        self._sweeps: set[Running] = set()
        self._sweeping: set[asyncio.Future[None]] = set()
        """One for every sweep that has begun, also before its opening is durable."""
        self._unsettled: dict[Scheduler, None] = {}
        """Operations of this process that were released before they ended, or taken over, in that
        order, so that equal histories run equally."""
        self._beginning: set[str] = set()  # the ids of those whose opening is being recorded
        self.last: Running | None = None
        """The checkpoint or restore that was opened last; nothing is sent before."""

    def require_open(self, wire_id: str, verb: str) -> Running:
        """
        Return the open operation if it is the one that a verb is about.

        Args:
            wire_id: The id that the verb names.
            verb: The verb, for the error.

        Raises:
            OperationOpen: Another one is open.
            IllegalTransition: None is open.
            BaseException: What gave it up just before the verb came.
        """
        running = self.open
        if running is None:
            lost, self._lost = self._lost, None
            if lost is not None and lost.wire_id == wire_id:
                raise lost.error()
            raise IllegalTransition("checkpoint", 1, NOT_OPEN, verb, ("prepare",), subject=wire_id)
        if running.wire_id != wire_id:
            raise OperationOpen(f"{verb} {wire_id!r}", running.wire_id, running.operation.state)
        return running

    async def begin(
        self, chart: str, wire_id: str, calls: Calls, facts: Mapping[str, Any]
    ) -> Running:
        """
        Open a checkpoint or a restore as the one open operation.

        Args:
            chart: `checkpoint` or `restore`.
            wire_id: Its id, for the journal and for instances.
            calls: Its wire.
            facts: What recovery must know besides.

        Raises:
            ValueError: The id is malformed or was used before.
            OperationOpen: Another one is open.
            JournalError: The journal cannot be written; nothing was sent.
        """
        wire_id = require_new_id(wire_id, f"{chart} id")
        self.require_none_open(f"open {chart} {wire_id!r}")
        self._opening = wire_id
        try:
            for unsettled in list(self._unsettled):
                unsettled.sweep()
            while self._sweeping:
                await asyncio.wait(self._sweeping.copy())
            if chart == "restore":  # what is on its way must not stop what is installed now
                for unsettled in list(self._unsettled):
                    await unsettled.until_besides_ended()
            running = await self._opened(chart, wire_id, calls, tuple(self._handles), facts)
            self.open, self._lost, self.last = running, None, running
        finally:
            self._opening = None
            self._ask_besides()
        return running

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint or restore is open or about to be, so that nothing is retired."""
        return self.open is not None or self._opening is not None

    def _ask_besides(self) -> None:
        for unsettled in list(self._unsettled):
            unsettled.ask_besides()

    def supersede(self, restore: Running) -> None:
        """
        Let earlier operations retire nothing any more that a restore has begun to install.

        It retires these attempts itself from then on, should it fail.

        Args:
            restore: One that has begun: its transition is durable.
        """
        for unsettled in list(self._unsettled):
            facts = superseded_by(restore.operation, unsettled.operation)
            if facts is not None:
                unsettled.post("supersede", facts)

    async def sweep(self, call: str, wire_id: str, listed: Listed | None) -> None:
        """
        Send one call outside a checkpoint and wait for every answer.

        Args:
            call: `retire`, `forget` or `resume`.
            wire_id: The id that instances are told.
            listed: Instance to what the call names, only the instances that it concerns; None for
                a resume, which concerns all and names nothing.

        Raises:
            ValueError: The id is malformed or was used before.
            OperationOpen: A checkpoint or restore is open, and this is no retire under the id of
                a restore whose body runs.
            GymCheckpointOperationError: Some instance failed.
            JournalError: The journal cannot be written; nothing was sent.
        """
        wire_id = require_new_id(wire_id, f"{call} id")
        if listed is not None and not listed:
            return
        running = self.open
        inside_restore = (
            call == "retire"
            and running is not None
            and running.wire_id == wire_id
            and running.operation.state == "restored"
        )
        if not inside_restore:
            self.require_none_open(f"{call} under {wire_id!r}")
        await self._run_sweep(call, wire_id, listed)

    async def recover(self, *, force: bool) -> tuple[Recovered, ...]:
        """
        Settle what an earlier controller of this run left unfinished.

        Args:
            force: Whether to take the run from another process that is alive.

        Raises:
            JournalError: The journal cannot be read or written.
        """
        recorder = await self._required_recorder()
        in_sight = tuple(self._unsettled)
        for scheduler in in_sight:
            scheduler.sweep()
            scheduler.ask_besides()
        found = await recover_all(
            recorder,
            self._handles,
            run=self.run,
            force=force,
            clock=self._clock,
            cancel_reference=self._cancel_reference,
            but=self._own_ids,
            adopt=self._keep_in_sight,
            always=force,
        )
        known = tuple(outcome_of(one, one.operation.state, self._handles) for one in in_sight)
        return known + found

    def _own_ids(self) -> set[str]:
        """Return the operations that are begun, driven or seen to here."""
        running = [*self._sweeps, *([self.open] if self.open else [])]
        driven = [one.operation for one in running] + [one.operation for one in self._unsettled]
        return self._beginning.union(one.operation_id for one in driven)

    async def history(self, operation_id: str) -> tuple[Entry, ...]:
        """
        Return what the journal holds of an operation of this run.

        Raises:
            JournalError: The journal cannot be read, or there is no such operation.
        """
        recorder = await self._required_recorder()
        return await recorder.read(lambda: recorder.journal.read(self.run, operation_id))

    def note_retired(self, wire_id: str) -> None:
        """Remember that the caller retires what the open restore has installed."""
        if self.open is not None and self.open.wire_id == wire_id:
            self.open.retired = True

    async def _run_sweep(self, call: str, wire_id: str, listed: Listed | None) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sweeping.add(ended)
        try:
            await self._swept(call, wire_id, listed)
        finally:
            self._sweeping.discard(ended)
            ended.set_result(None)

    async def _swept(self, call: str, wire_id: str, listed: Listed | None) -> None:
        operation_id = await self._sweep_id(call, wire_id)
        facts: dict[str, Any] = {"call": call, "wire_id": wire_id}
        if listed is not None and call == "retire":
            facts["inventory"] = to_facts(listed)
        elif listed is not None:
            facts["rollouts"] = {instance: list(ids) for instance, ids in listed.items()}
        instances = tuple(self._handles) if listed is None else tuple(listed)
        running = await self._opened(
            "sweep", operation_id, SweepCalls(wire_id, listed), instances, facts
        )
        self._sweeps.add(running)
        try:
            await running.advance("run", "done")
        finally:
            self._sweeps.discard(running)

    async def retire_unwanted(self, unwanted: Inventory) -> Inventory:
        """
        Retire attempts until it is confirmed, now or as soon as nothing is open.

        Args:
            unwanted: Instance to attempts.

        Returns:
            What was tried and is not confirmed, or was not tried yet.

        Raises:
            JournalError: The journal cannot be written; nothing was sent.
        """
        listed = {instance: episodes for instance, episodes in unwanted.items() if episodes}
        if not listed:
            return {}
        wire_id = new_operation_id("retire")
        facts = {"call": "retire", "wire_id": wire_id, "inventory": to_facts(listed)}
        calls = SweepCalls(wire_id, listed)
        running = await self._opened("sweep", wire_id, calls, tuple(listed), facts)
        self._unsettled[running.scheduler] = None
        running.scheduler.post("insist")
        await running.scheduler.left("open")
        settings = running.operation.settings
        bound_s = settings.control_timeout_s + settings.reply_grace_s + self._journal_timeout_s
        if not self.is_busy:
            with suppress(TimeoutError):  # an operation that began meanwhile holds it back
                async with asyncio.timeout(bound_s):
                    await running.scheduler.until_released()
        left = frozenset(unconfirmed_also(running.operation))
        return {name: episodes for name, episodes in listed.items() if name in left}

    async def _sweep_id(self, call: str, wire_id: str) -> str:
        """
        Return the id under which the journal keeps a sweep.

        It is the wire's own where that is new. A resume may be sent again under any id, and a
        retire may follow the restore whose attempts it stops; those get an id of their own.
        """
        recorder = await self._required_recorder()
        await recorder.hold(self.run)
        known = await recorder.run(lambda: recorder.journal.operation(self.run, wire_id))
        if known is None:
            return wire_id
        if call == RESUME or (call == "retire" and known.chart == "restore"):
            return new_operation_id(call)
        raise OperationIdUsed(
            f"id {wire_id!r} was used by a {known.chart} of run {self.run!r}; ids are used once, "
            f"so give this {call} a new one"
        )

    async def _opened(
        self,
        chart: str,
        operation_id: str,
        calls: Calls,
        instances: tuple[str, ...],
        facts: Mapping[str, Any],
    ) -> Running:
        """
        Make an operation and its opening durable, in the run that this process holds.

        A caller that is cancelled meanwhile leaves nothing open behind, which only a recovery
        would find.
        """
        recorder = await self._required_recorder()
        hold = await recorder.hold(self.run)
        settings = self._settings()
        opening = open_operation(
            moment=Moment(self._clock.wall_ts(), 0.0),
            run=self.run,
            operation_id=operation_id,
            chart=chart,
            instances=instances,
            settings=settings,
            epoch=hold.epoch,
            facts={**facts, **actors_of({name: self._handles[name] for name in instances})},
        )
        scheduler = Scheduler(
            opening.operation,
            recorder=recorder,
            handles=self._handles,
            wire=calls,
            clock=self._clock,
            cancel_reference=self._cancel_reference,
        )
        call_s = settings.control_timeout_s + settings.reply_grace_s
        resume = settings.retry(RESUME)
        tries_s = resume.attempts * (call_s + resume.pause_s)
        running = Running(scheduler, calls, 2 * call_s + tries_s + 3 * self._journal_timeout_s)
        scheduler.on_released = lambda: self._let_go(running)
        scheduler.is_held = lambda: self.is_busy
        recording = asyncio.ensure_future(scheduler.open(opening.entries))
        self._beginning.add(operation_id)
        try:
            await asyncio.shield(recording)
        except asyncio.CancelledError:
            recording.add_done_callback(lambda done: _give_up_opened(scheduler, done))
            await asyncio.wait({recording})  # a second cancellation leaves at once
            if not recording.cancelled() and recording.exception() is None:
                await scheduler.until_released()
            raise
        finally:  # no sooner: whoever began it takes it over in this very step of the loop
            self._beginning.discard(operation_id)
        return running

    async def _required_recorder(self) -> Recorder:
        """Open the journal with the first operation."""
        if self._recorder is None:
            opened = await open_recorder(
                self._journal,
                owner=self._owner,
                timeout_s=self._journal_timeout_s,
                heartbeat_s=self.owner_timeout_s / HEARTBEATS_PER_TIMEOUT,
            )
            self._recorder = self._recorder or opened
        return self._recorder

    def close(self) -> None:
        """
        Give the run back and let the journal go.

        Raises:
            OperationOpen: A checkpoint or restore is open.
        """
        self.require_none_open("close the coordinator")
        for scheduler in [*self._unsettled, *(one.scheduler for one in self._sweeps)]:
            scheduler.abandon()
        self._unsettled.clear()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            (recorder.let_go if isinstance(self._journal, Journal) else recorder.close)()

    def require_none_open(self, wanted: str) -> None:
        """Raise OperationOpen where a checkpoint or restore is open, or is being opened."""
        if self.open is not None:
            self.open.scheduler.follow_loop()  # else one that a closed loop has left stays open
            raise OperationOpen(wanted, self.open.wire_id, self.open.operation.state)
        if self._opening is not None:
            raise OperationOpen(wanted, self._opening, "opening")

    def _let_go(self, running: Running) -> None:
        """Take a released operation off the table; one that has not ended is kept in sight."""
        if self.open is running:
            self.open = None
            self._lost = running if running.lost_unseen else None
            self._look_after(running.scheduler)
            self._ask_besides()
        else:
            self._look_after(running.scheduler)

    def _keep_in_sight(self, scheduler: Scheduler) -> None:
        """See to an operation that was taken over as to one that this process has begun."""
        self._unsettled[scheduler] = None
        scheduler.on_released = lambda: self._look_after(scheduler)
        is_held = scheduler.is_held
        scheduler.is_held = lambda: self.is_busy or is_held()

    def _look_after(self, scheduler: Scheduler) -> None:
        if scheduler.ended:
            self._unsettled.pop(scheduler, None)
        else:
            self._unsettled[scheduler] = None


def _give_up_opened(scheduler: Scheduler, recording: asyncio.Future[None]) -> None:
    """End an operation whose caller was cancelled while its opening was being recorded."""
    if not recording.cancelled() and recording.exception() is None:
        scheduler.post("cancel", {"reason": "its caller was cancelled before it began"})
