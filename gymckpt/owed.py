"""
Retirements that discarded restores still owe (DESIGN, S5).

A restore that is given up retires its attempts before it reopens the instances. Where a retire
stayed unconfirmed, the instance was reopened all the same, and its restored attempts may run on
while their rollouts start over. The restore's own id is fenced by then, so they are retired under
a new one. What is owed follows from the journal alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from gymckpt.calls import RestoreCalls, SweepCalls
from gymckpt.core.events import Moment
from gymckpt.core.operation import NO_CALLS, OperationState
from gymckpt.core.replay import replay
from gymckpt.core.settings import Settings
from gymckpt.core.step import Step, open_operation
from gymckpt.episodes import EnvironmentEpisode, new_operation_id
from gymckpt.errors import (
    InvariantViolated,
    JournalError,
    JournalUnavailable,
    ReplayDiverged,
    is_actor_dead,
    text_of,
)
from gymckpt.journal import Journal
from gymckpt.journal.rules import Selection
from gymckpt.runtime.clock import Clock
from gymckpt.runtime.instances import is_replaced
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder
from gymckpt.topology import from_facts, to_facts

__all__ = ["Debts", "Owed", "new_retire", "owed_in", "retired_by"]

logger = logging.getLogger("gymckpt")

Owed = Mapping[str, tuple[EnvironmentEpisode, ...]]
"""Instance to the restored attempts that it has not confirmed to be stopped."""

_CONFIRMED = ("answered", "gone")


def owed_in(
    journal: Journal, run: str, handles: Mapping[str, Any], now_ts: float
) -> tuple[Owed, Settings | None]:
    """
    Return what the discarded restores of a run still owe, and the settings of the latest of them.

    Operations whose log cannot be read count for nothing here; a recovery names them.

    Args:
        journal: The journal.
        run: The run.
        handles: The instances that can be reached: others, and those whose actor is another one
            by now, are left out.
        now_ts: Epoch seconds; past its lease horizon a restore owes nothing more.

    Raises:
        JournalUnavailable: The journal cannot be read.
    """
    unpaid = _unpaid(journal, run, handles, now_ts)
    if not unpaid:
        return {}, None
    earliest_ts = _drop_installed(journal, run, unpaid)
    if not unpaid:
        return {}, None
    since: dict[str, dict[EnvironmentEpisode, float]] = {}
    for (instance, episode), operation in unpaid.items():
        since.setdefault(instance, {})[episode] = operation.opened_ts
    latest = max(unpaid.values(), key=lambda operation: operation.opened_ts)
    sweeps = Selection(run=run, chart="sweep", updated_since_ts=earliest_ts)
    for paid in _replayed(journal, sweeps):
        for instance, episodes in retired_by(paid).items():
            _settle(since.get(instance, {}), episodes, paid.opened_ts)
    owed = {name: tuple(sorted(left)) for name, left in since.items() if left}
    return owed, latest.settings


Unpaid = dict[tuple[str, EnvironmentEpisode], OperationState]
"""Instance and attempt to the last restore that was to install it there and was discarded."""

_DISCARDED = ("discarding", "discarded")
_LATER = ("restoring", "restored", "retiring", "resuming", "resumed")
"""Where a restore is that has been sent and is not discarded."""


def _restores(journal: Journal, selection: Selection) -> Iterable[OperationState]:
    """Yield restores that have been sent, in the order in which they were opened."""
    return (one for one in _replayed(journal, selection) if "restore" in one.calls)


def _installed(restore: OperationState) -> Iterable[tuple[str, EnvironmentEpisode]]:
    """Yield each instance with the attempts that a restore was to install there."""
    for instance, episodes in from_facts(restore.opening["inventory"]).items():
        for episode in episodes:
            yield instance, episode.next_attempt()


def _unpaid(journal: Journal, run: str, handles: Mapping[str, Any], now_ts: float) -> Unpaid:
    """Return what discarded restores could not retire themselves."""
    unpaid: Unpaid = {}
    for operation in _restores(journal, Selection(run=run, chart="restore", states=_DISCARDED)):
        over = operation.lease_horizon_at_s <= now_ts - operation.opened_ts
        for instance, episode in _installed(operation):
            retired = operation.call_state("retire", instance).state in _CONFIRMED
            here = instance in handles and not is_replaced(
                operation.opening, instance, handles[instance]
            )
            if here and not (retired or over):
                unpaid[instance, episode] = operation
            else:
                unpaid.pop((instance, episode), None)
    return unpaid


def _drop_installed(journal: Journal, run: str, unpaid: Unpaid) -> float:
    """Drop what a later restore was sent, and return when the earliest of all was opened."""
    earliest_ts = min(operation.opened_ts for operation in unpaid.values())
    later = Selection(run=run, chart="restore", states=_LATER, updated_since_ts=earliest_ts)
    for operation in _restores(journal, later):
        for key in _installed(operation):
            if key in unpaid and unpaid[key].opened_ts <= operation.opened_ts:
                del unpaid[key]
    return earliest_ts


def _settle(
    since: dict[EnvironmentEpisode, float], episodes: Iterable[EnvironmentEpisode], paid_ts: float
) -> None:
    """Take off what a sweep has paid: only restores that began before it, not what came after."""
    for episode in episodes:
        if since.get(episode, paid_ts + 1.0) <= paid_ts:
            del since[episode]


def _replayed(journal: Journal, selection: Selection) -> Iterable[OperationState]:
    """Yield the operations that are meant, but for those that no release wrote."""
    for row in journal.select(selection):
        if row.imported:
            continue
        try:
            yield replay(journal.read(row.run, row.operation_id))
        except JournalUnavailable:
            raise
        except (JournalError, ReplayDiverged, InvariantViolated) as broken:
            logger.warning("operation %r is unreadable: %s", row.operation_id, text_of(broken))


def retired_by(sweep: OperationState) -> Owed:
    """Return what a sweep has stopped for certain."""
    if sweep.opening.get("call") != "retire":
        return {}
    retires = sweep.calls.get("retire", NO_CALLS)
    return {
        instance: episodes
        for instance, episodes in from_facts(sweep.opening["inventory"]).items()
        if retires.get(instance).state in _CONFIRMED
    }


def new_retire(run: str, owed: Owed, settings: Settings, clock: Clock) -> tuple[Step, SweepCalls]:
    """
    Return the step that opens a sweep which pays what is owed, and its calls.

    Args:
        run: The run.
        owed: What is owed.
        settings: What bounds it.
        clock: The clocks.
    """
    wire_id = new_operation_id("retire")
    opening = open_operation(
        moment=Moment(clock.wall_ts(), 0.0),
        run=run,
        operation_id=wire_id,
        chart="sweep",
        instances=tuple(owed),
        settings=settings,
        facts={"call": "retire", "wire_id": wire_id, "inventory": to_facts(owed)},
    )
    return opening, SweepCalls(wire_id, owed)


class Debts:
    """
    What the restores of one coordinator owe: paid before its next operation, and now and then.

    What an instance does not confirm is tried again until the lease horizon has passed.
    """

    def __init__(
        self,
        *,
        retire: Callable[[Owed], Awaitable[None]],
        is_busy: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """
        Begin without any.

        Args:
            retire: Retires attempts under a new id, and settles what is confirmed.
            is_busy: Whether a checkpoint or restore is open, so that nothing may be retired.
            clock: The clocks.
        """
        self._retire = retire
        self._is_busy = is_busy
        self._clock = clock
        self._owed: dict[str, set[EnvironmentEpisode]] = {}
        self._interval_s = 0.0
        self._ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._paying: asyncio.Task[None] | None = None

    def note(self, restore: Scheduler, calls: RestoreCalls) -> None:
        """
        Remember the attempts of a restore that was given up whose retirement is unconfirmed.

        Args:
            restore: What drove it.
            calls: Its calls.
        """
        unconfirmed = {
            instance: calls.replacements[instance]
            for instance, failure in restore.unconfirmed("retire").items()
            if not is_actor_dead(failure)
        }
        self.add(unconfirmed, restore.operation.settings)

    def add(self, owed: Owed, settings: Settings | None) -> None:
        """
        Remember what is owed.

        Args:
            owed: What it is.
            settings: What bounds it; None where nothing is owed.
        """
        for instance, episodes in owed.items():
            if episodes:
                self._owed.setdefault(instance, set()).update(episodes)
        if self._owed and settings is not None:
            self._interval_s = settings.sweep_interval_s
            self._ends_s = self._clock.monotonic_s() + settings.lease_grace_s
            self._pay_later()

    async def collect(self, recorder: Recorder, run: str, handles: Mapping[str, Any]) -> None:
        """
        Take over what the journal says that earlier controllers owe, and pay it where that may be.

        Args:
            recorder: The journal.
            run: The run.
            handles: The instances that can be reached.

        Raises:
            JournalError: The journal cannot be read.
        """
        now_ts = self._clock.wall_ts()
        owed, settings = await recorder.read(
            lambda: owed_in(recorder.journal, run, handles, now_ts)
        )
        await self.retire(owed, settings)

    async def retire(self, owed: Owed, settings: Settings | None) -> Owed:
        """
        Retire attempts now, unless an operation is open, and go on until it is confirmed.

        Args:
            owed: Instance to attempts.
            settings: What bounds it; None where there are none.

        Returns:
            What is not confirmed yet.
        """
        self.add(owed, settings)
        if not self._is_busy():
            await self.pay()
        left = {name: self._owed.get(name, set()).intersection(owed[name]) for name in owed}
        return {name: tuple(sorted(episodes)) for name, episodes in left.items() if episodes}

    async def pay(self) -> None:
        """Retire what is owed; whatever fails is said, and tried again."""
        owed = {instance: tuple(sorted(episodes)) for instance, episodes in self._owed.items()}
        if not owed:
            return
        try:
            await self._retire(owed)
        except Exception as error:  # nobody waits for it who could be told
            logger.warning("restored attempts are still to be retired: %s", text_of(error))
        if self._owed:
            self._pay_later()

    def settle(self, paid: Owed) -> None:
        """
        Forget what is owed no longer.

        Args:
            paid: What a sweep has stopped for certain, or what a later restore has installed
                everywhere, so that nothing is left of an earlier one.
        """
        for instance, episodes in paid.items():
            left = self._owed.get(instance, set()).difference(episodes)
            if left:
                self._owed[instance] = left
            else:
                self._owed.pop(instance, None)

    def _pay_later(self) -> None:
        """Try again in the background, one try at a time."""
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(self._interval_s, self._begin_paying)

    def _begin_paying(self) -> None:
        self._timer = None
        if self._owed and self._clock.monotonic_s() >= self._ends_s:
            logger.warning("restored attempts on %d instance(s) are given up", len(self._owed))
            self._owed.clear()
        elif self._owed:  # the task is kept: the loop holds it weakly
            self._paying = asyncio.get_running_loop().create_task(self._pay_in_background())

    async def _pay_in_background(self) -> None:
        if not self._is_busy():
            await self.pay()
        if self._owed:
            self._pay_later()
