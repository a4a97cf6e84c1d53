"""
The instances of a run: real deployments in this process, which may die, hang or come back empty.

The deployment is the smallest that there is: one or two servers, episodes that count their turns.
All else of it is the product's own: control planes, parking, work, records on disk. What is held
against it here is what only an instance can show: nothing moves while it is parked, and an id that
was resumed never closes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.episodes import EpisodeBody, LiveEpisode
from gymckpt.participant.servers import Kind, Server
from gymckpt.participant.store import Record
from gymckpt.runtime.virtual import VirtualClock
from gymckpt.testing.account import Broken
from gymckpt.testing.simulation.loop import Process

__all__ = ["GRACE_S", "CountingEpisode", "SimulatedDeployment", "SimulatedInstance", "TurnOf"]

GRACE_S = 60.0
"""How long after the last deadline an instance reopens by itself."""

PARKED = frozenset({"prepared", "committed", "restored"})

UNSAVABLE_EVERY = 7
"""One of so many rollouts holds a state that cannot be saved."""

TurnOf = Callable[[EnvironmentEpisode], float]
"""How long the next turn of an episode takes, in seconds."""


def is_unsavable(episode: EnvironmentEpisode) -> bool:
    """Whether the state of an episode is something that no record can hold."""
    return int(episode.rollout_id.removeprefix("r")) % UNSAVABLE_EVERY == 0


class CountingEpisode:
    """
    A body that counts turns.

    Attributes:
        episode: Its name.
        turns: How many turns it has played, those of earlier attempts included.
        restart_only: Whether nobody could capture it.
        restored: Whether a restore has installed it.
        row_keys: The rows of those turns.
    """

    def __init__(
        self,
        episode: EnvironmentEpisode,
        host: SimulatedDeployment,
        *,
        restart_only: bool = False,
        restored: bool = False,
        row_keys: Iterable[str] = (),
    ) -> None:
        self.episode = episode
        self.restart_only = restart_only
        self.restored = restored
        self.row_keys: list[str] = list(row_keys)
        self._host = host

    @property
    def turns(self) -> int:
        """How many turns it has played."""
        return len(self.row_keys)

    async def turn(self) -> bool:
        """Play one turn; return whether it was the last."""
        self._host.require_newest(self)
        if not self.restart_only:
            self._host.require_moving(self.episode, PARKED)
        await asyncio.sleep(self._host.turn_of(self.episode))
        if not self.restart_only:  # a restore lets turns end that it will overtake
            self._host.require_moving(self.episode, PARKED - {"restored"})
        self._host.require_newest(self)
        self.row_keys.append(f"{self.episode.capture_key}/t{self.turns:05d}")
        return self.turns >= self._host.turns_max

    def reply(self) -> Any:
        """Return what it came to."""
        return self.turns

    def close(self) -> None:
        """Have nothing to let go of."""


class SimulatedDeployment(Deployment):
    """
    Episodes that count their turns.

    Attributes:
        turn_of: How long turns take.
        turns_max: After how many turns an episode ends.
        blocked: What keeps it from being parked; empty for nothing.
        broken: Told of a promise that this instance has seen broken.
    """

    def __init__(
        self,
        instance_id: str,
        *,
        clock: VirtualClock,
        turn_of: TurnOf,
        turns_max: int,
        kinds: Sequence[Kind] = ("environment",),
        broken: Callable[[Broken], None],
    ) -> None:
        """
        Make an open deployment.

        Args:
            instance_id: Its id.
            clock: The clock of its host.
            turn_of: How long turns take.
            turns_max: After how many turns an episode ends.
            kinds: Its servers.
            broken: Told of a promise that this instance has seen broken.
        """
        self.turn_of = turn_of
        self.turns_max = turns_max
        self.blocked: tuple[str, ...] = ()
        self.broken = broken
        self._newest: dict[str, CountingEpisode] = {}
        """Rollout to the body of its latest attempt that has moved here."""
        super().__init__(
            instance_id,
            [
                Server(
                    kind=kind,
                    name=kind,
                    control=ControlPlane(kind, grace_s=GRACE_S),
                    restart_only=kind == "resources",
                )
                for kind in kinds
            ],
            now_ts=clock.wall_ts,
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        """Its servers, in the order in which they park."""
        return self._servers.all

    @property
    def is_open(self) -> bool:
        """Whether episodes run, now by its own clock."""
        return self._servers.is_open

    @property
    def live(self) -> dict[EnvironmentEpisode, LiveEpisode]:
        """The episodes that run or wait here."""
        return {live.episode: live for live in self._table}

    def outcome(self, episode: EnvironmentEpisode) -> asyncio.Future[Any] | None:
        """Return the reply, now or later, of an episode that is live or ended here."""
        return self._table.outcome(episode)

    def require_moving(self, episode: EnvironmentEpisode, parked: frozenset[str]) -> None:
        """Say so if an episode moves while this instance says that it is parked."""
        for server in self.servers:
            state = server.control.state
            if state.phase in parked:
                what = f"{episode.capture_key} moves while {state.checkpoint_id} has it parked"
                self.broken(Broken("S1", f"{self.instance_id}: {what}"))

    def require_newest(self, body: CountingEpisode) -> None:
        """Say so if an attempt moves although that one or a later one has moved in another body."""
        episode = body.episode
        newest = self._newest.setdefault(episode.rollout_id, body)
        if newest is body or newest.episode.attempt < episode.attempt:
            self._newest[episode.rollout_id] = body
            return
        what = f"{episode.capture_key} moves after {newest.episode.capture_key} has moved"
        self.broken(Broken("S5", f"{self.instance_id}: {what}"))

    def play(self, episode: EnvironmentEpisode, *, restart_only: bool) -> asyncio.Task[Any]:
        """Dispatch an attempt; the task ends with its reply."""
        body = CountingEpisode(episode, self, restart_only=restart_only)
        task = asyncio.get_running_loop().create_task(self.begin(episode, body))
        task.add_done_callback(_retrieve)
        return task

    def blockers_of(self, server: Server) -> Sequence[str]:
        """Return what was said to block it, else what does."""
        return self.blocked or super().blockers_of(server)

    def block(self, blocked: tuple[str, ...]) -> None:
        """Say what keeps it from being parked."""
        self.blocked = blocked
        self.changed()

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        """Return how far each episode is; only the environment server keeps anything."""
        if server.kind != "environment":
            return []
        return [
            {
                **live.episode.to_dict(),
                "row_keys": list(live.body.row_keys),
                "state": 1j if is_unsavable(live.episode) else None,
            }
            for live in episodes
        ]

    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        """Make episodes go on where they stood."""
        require_wanted()
        [kept] = [found for name, found in records.items() if name == "environment"]
        rows = {(one["rollout_id"], one["attempt"]): one["row_keys"] for one in kept}
        missing = [one for one in episodes if (one.rollout_id, one.attempt) not in rows]
        if missing:
            raise ValueError(f"no record of {missing[0].capture_key}")
        return [
            CountingEpisode(
                one.next_attempt(),
                self,
                restored=True,
                row_keys=rows[one.rollout_id, one.attempt],
            )
            for one in episodes
        ]


class SimulatedInstance:
    """
    One instance through all its lives.

    Attributes:
        instance_id: Its id.
        clock: The clock of its host, which outlives it.
        life: Which life this is, counted from 1.
        process: Where it runs.
        deployment: What runs there.
        resumed: The ids that this life has been resumed with.
    """

    process: Process
    deployment: SimulatedDeployment

    def __init__(
        self,
        instance_id: str,
        clock: VirtualClock,
        make: Callable[[SimulatedInstance], SimulatedDeployment],
    ) -> None:
        """
        Begin its first life.

        Args:
            instance_id: Its id.
            clock: The clock of its host.
            make: Makes the deployment of each life, in the context of its process.
        """
        self.instance_id = instance_id
        self.clock = clock
        self.life = 0
        self.resumed: set[str] = set()
        self._make = make
        self.begin()

    @property
    def dead(self) -> bool:
        """Whether nothing of it runs."""
        return self.process.dead

    def begin(self) -> None:
        """Begin a new life, which knows nothing of the one before."""
        self.life += 1
        self.resumed = set()
        self.process = Process(f"{self.instance_id}.{self.life}")
        self.deployment = self.process.context.copy().run(self._make, self)

    def hold_fenced(self, broken: Callable[[Broken], None]) -> None:
        """Say so if an id that was resumed here holds a server."""
        for server in self.deployment.servers:
            holder = server.control.state.checkpoint_id
            if holder is not None and holder in self.resumed:
                what = f"{holder} has closed {server.name} after its resume was answered"
                broken(Broken("S4", f"{self.instance_id}: {what}"))


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
