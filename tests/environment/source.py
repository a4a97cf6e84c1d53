"""
RL's side over scripted instances: a gate, a list of what is in flight, a ledger under a cut.

Everything that RL is asked is noted in one order with the calls that reach the instances, so that a
test can say what came before what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from gymckpt import (
    EnvironmentEpisode,
    GymEnvironmentCheckpoint,
    LedgerUnderCut,
)
from gymckpt.replies import GymCheckpointCommitSummary
from tests import fakes
from tests.faults.world import World, episode

REPLIES_TIMEOUT_S = 0.05


@attrs.define
class Cut:
    """The data plane between two mutations."""

    live: bool = True


async def at_once() -> None:
    """Have every reply in."""


class Source:
    """RL's side; a test sets what it lists, what its ledger says, and what of it fails."""

    def __init__(self, in_flight: Mapping[str, Collection[EnvironmentEpisode]]) -> None:
        self.in_flight: dict[str, tuple[EnvironmentEpisode, ...]] = {
            instance: tuple(episodes) for instance, episodes in in_flight.items()
        }
        self.log: list[tuple[int, str]] = []
        self.fails: dict[str, BaseException] = {}
        """Method to what it raises."""
        self.landing: Callable[[], Awaitable[None]] = at_once
        self.expected_later: list[frozenset[EnvironmentEpisode]] = []
        self.refused: list[EnvironmentEpisode] = []
        self.ledger = LedgerUnderCut(unfinished=frozenset())
        self.closed = 0
        """How often dispatch is closed at this moment."""

    def note(self, what: str) -> None:
        """Note something in the one order."""
        self.log.append((next(fakes._ticks), what))
        if what in self.fails:
            raise self.fails[what]

    @asynccontextmanager
    async def dispatch_closed(self) -> AsyncIterator[None]:
        self.note("dispatch closed")
        self.closed += 1
        try:
            yield
        finally:
            self.closed -= 1
            self.note("dispatch reopened")

    def episodes_in_flight(self) -> Mapping[str, Collection[EnvironmentEpisode]]:
        self.note("in flight")
        return self.in_flight

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        self.expected_later.append(frozenset(expected_later))
        self.note("replies")
        await self.landing()
        self.note("replies landed")

    def ledger_under(self, cut: Cut) -> LedgerUnderCut:
        self.note("ledger")
        return self.ledger

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        self.note("refused")
        self.refused += episodes


class Scene:
    """Some instances with an episode each, RL's side, and the facade between them."""

    def __init__(
        self, root: Path, count: int = 2, *, facade: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """
        Make a scene.

        Args:
            root: Where snapshots go.
            count: How many instances there are.
            facade: Settings of the facade.
            options: Of the world of instances.
        """
        self.world = World(count, **{"root": root, "fenced": True, **options})
        self.source = Source(self.world.offer())
        self.source.ledger = LedgerUnderCut(unfinished=self.names)
        self.environment = self.new_environment(**(facade or {}))
        self.path = root / "snapshot"

    def new_environment(self, **settings: Any) -> GymEnvironmentCheckpoint:
        """Return one more facade over the world's one coordinator."""
        given = {"replies_timeout_s": REPLIES_TIMEOUT_S, **settings}
        return GymEnvironmentCheckpoint(self.world.coordinator, self.source, **given)

    @property
    def names(self) -> frozenset[str]:
        """The rollouts that RL lists."""
        listed = self.source.in_flight.values()
        return frozenset(found.rollout_id for episodes in listed for found in episodes)

    async def saved(self) -> Path:
        """Take one whole snapshot and return where it is."""
        async with self.environment.snapshot(self.path):
            pass
        return self.path

    def story(self) -> list[str]:
        """Return everything that happened, in order, without renewals and heartbeats."""
        told = list(self.source.log)
        for actor in self.world.actors:
            for call in actor.calls:
                if call.op != "renew":
                    told += [(call.tick, call.op), (call.ended_tick, f"{call.op} {call.outcome}")]
        return [what for tick, what in sorted(told) if tick]

    def of(self, op: str) -> list[fakes.Call]:
        """Return the calls of one kind, of all instances."""
        return [call for actor in self.world.actors for call in actor.of(op)]


def unowned(*episodes: EnvironmentEpisode) -> Callable[[Any], GymCheckpointCommitSummary]:
    """Return an export that saves everything and reports some episodes as owned by nobody."""

    def export(offered: Any) -> GymCheckpointCommitSummary:
        return attrs.evolve(fakes.default_commit(offered), unowned_live_episodes=tuple(episodes))

    return export


def unsavable(
    reasons: Mapping[EnvironmentEpisode, str],
) -> Callable[[Any], GymCheckpointCommitSummary]:
    """Return an export that saves what is offered, but for episodes that cannot be saved."""

    def export(offered: Any) -> GymCheckpointCommitSummary:
        kept = [found for found in offered if found not in reasons]
        return attrs.evolve(fakes.default_commit(kept), unsavable=reasons)

    return export


def only(*episodes: EnvironmentEpisode) -> Callable[[Any], GymCheckpointCommitSummary]:
    """Return an export that saves these of what is offered; the others' replies are on the wire."""
    return lambda offered: fakes.default_commit([found for found in offered if found in episodes])


async def never() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


__all__ = ["Cut", "Scene", "Source", "at_once", "episode", "never", "only", "unowned", "unsavable"]
