"""
Retirements that discarded restores still owe (DESIGN, S5).

A restore that is given up retires its attempts before it reopens the instances. Where a retire
stayed unconfirmed, the instance was reopened all the same, and its restored attempts may run on
while their rollouts start over. The restore's own id is fenced by then, so they are retired under
a new one. What is owed follows from the journal alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from gymckpt.calls import SweepCalls
from gymckpt.core.events import Moment
from gymckpt.core.operation import NO_CALLS, OperationState
from gymckpt.core.replay import replay
from gymckpt.core.settings import Settings
from gymckpt.core.step import Step, open_operation
from gymckpt.episodes import EnvironmentEpisode, new_operation_id
from gymckpt.journal import Journal
from gymckpt.journal.rules import Selection
from gymckpt.runtime.clock import Clock
from gymckpt.topology import from_facts, to_facts

__all__ = ["Owed", "new_retire", "owed_in"]

Owed = Mapping[str, tuple[EnvironmentEpisode, ...]]
"""Instance to the restored attempts that it has not confirmed to be stopped."""

_CONFIRMED = ("answered", "gone")


def owed_in(journal: Journal, run: str, now_ts: float) -> tuple[Owed, Settings | None]:
    """
    Return what the discarded restores of a run still owe, and the settings of the latest of them.

    Args:
        journal: The journal.
        run: The run.
        now_ts: Epoch seconds; past its lease horizon a restore owes nothing more.

    Raises:
        JournalError: The journal cannot be read.
        ReplayDiverged: A history does not follow its chart.
    """
    owed: dict[str, set[EnvironmentEpisode]] = {}
    settings: Settings | None = None
    discarded = Selection(run=run, chart="restore", states=("discarding", "discarded"))
    for row in journal.select(discarded):
        operation = replay(journal.read(run, row.operation_id))
        left_s = operation.lease_horizon_at_s - (now_ts - operation.opened_ts)
        if "restore" not in operation.calls or left_s <= 0:
            continue
        settings = operation.settings
        for instance, episodes in _unconfirmed(operation).items():
            owed.setdefault(instance, set()).update(episodes)
    if owed:
        for row in journal.select(Selection(run=run, chart="sweep")):
            paid = replay(journal.read(run, row.operation_id))
            for instance, episodes in _retired(paid).items():
                owed.get(instance, set()).difference_update(episodes)
    return {name: tuple(sorted(left)) for name, left in owed.items() if left}, settings


def _unconfirmed(operation: OperationState) -> dict[str, tuple[EnvironmentEpisode, ...]]:
    """Return the attempts that a discarded restore installed and may not have stopped."""
    retires = operation.calls.get("retire", NO_CALLS)
    return {
        instance: tuple(episode.next_attempt() for episode in episodes)
        for instance, episodes in from_facts(operation.opening["inventory"]).items()
        if retires.get(instance).state not in _CONFIRMED
    }


def _retired(sweep: OperationState) -> dict[str, tuple[EnvironmentEpisode, ...]]:
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
