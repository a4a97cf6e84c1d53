"""
The instance contract's hands on a `GymnasiumDeployment` or a subclass of it.

Turns end when the test says so: every turn waits in the row sink. Time passes only in `advance`,
and writes can be held or broken where the deployment takes its records. What a test does to it
from inside of its process is in `Steering`, so that it can be done to an actor as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.episodes import LiveEpisode
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.servers import Server
from gymckpt.participant.store import Record
from gymckpt.testing.faults import UnpicklableError
from gymckpt.testing.instance import InstanceUnderTest, handle_of

__all__ = [
    "GRACE_S",
    "START_TS",
    "GymnasiumUnderTest",
    "ManualTime",
    "Steering",
    "VirtualDeployment",
    "steered",
]

START_TS = 1_000_000.0
GRACE_S = 600.0

IDLE_ROUNDS = 40
"""How many rounds of the event loop count as everything that can happen without time."""

FIRINGS_MAX = 10_000
"""How many timers may go off in one advance; more of them arm each other."""

HELD_S = 30.0
"""How long a held write waits at most, in real time."""


@attrs.define(eq=False)
class _Timer:
    when_s: float
    callback: Callable[[], None]
    armed: bool = True

    def cancel(self) -> None:
        """Disarm it."""
        self.armed = False


class ManualTime:
    """The wall clock and the timers of one host, which move only when told to."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._skew_s = 0.0
        self._timers: list[_Timer] = []

    def now_ts(self) -> float:
        """Return the host's time, epoch seconds."""
        return START_TS + self._skew_s + self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        """Arm a timer."""
        timer = _Timer(self._elapsed_s + delay_s, callback)
        self._timers = [one for one in self._timers if one.armed]
        self._timers.append(timer)
        return timer

    def advance(self, by_s: float) -> None:
        """Let time pass; timers go off in their order, each at its moment."""
        end_s, fired = self._elapsed_s + by_s, 0
        while due := [one for one in self._timers if one.armed and one.when_s <= end_s]:
            timer = min(due, key=lambda one: one.when_s)
            timer.armed = False
            self._elapsed_s = max(self._elapsed_s, timer.when_s)
            timer.callback()
            fired += 1
            if fired > FIRINGS_MAX:
                raise RuntimeError("timers are armed again and again without time passing")
        self._elapsed_s = end_s

    def step_clock(self, by_s: float) -> None:
        """Set the wall clock without time passing."""
        self._skew_s += by_s


class _Storage:
    """Holds or breaks writes; entered by the threads that write."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None

    def pass_through(self, records: Iterable[Record]) -> Iterable[Record]:
        """Yield records, after a hold has ended, unless the write is to fail."""
        self.free.wait(HELD_S)
        error, self.error = self.error, None
        if error is not None:
            raise error
        yield from records


class Steering(GymnasiumDeployment):
    """
    What a test does to a deployment from inside of its process; mixed in before its class.

    Its turns wait in the row sink until they are ended; its clock moves only when told to.
    """

    def __init__(self, instance_id: str) -> None:
        """Make an open deployment of CartPole, and of Taxi for what cannot be captured."""
        self._made_with = instance_id
        self._time = ManualTime()
        self._storage = _Storage()
        self._cleanup = asyncio.Event()
        self._cleanup.set()
        self._waiting: dict[str, asyncio.Event] = {}
        self._turns: dict[str, int] = {}
        self._runs: list[asyncio.Task[Any]] = []
        super().__init__(
            instance_id,
            row_sink=self._store_row,
            resources_mode="restart-only",
            restart_only_env_ids=["Taxi-v4"],
            grace_s=GRACE_S,
            now_ts=self._time.now_ts,
            call_later=self._time.call_later,
        )

    async def _store_row(self, _key: str, row: dict[str, Any]) -> None:
        name = row["capture_key"]
        go_on = self._waiting[name] = asyncio.Event()
        self._turns[name] = row["turn"]
        try:
            await go_on.wait()
            self._turns[name] += 1
        except asyncio.CancelledError:
            await self._cleanup.wait()
            raise
        finally:
            self._waiting.pop(name, None)

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        """Return what a server saves, through a storage that may hang or fail."""
        records = super().records_of(server, episodes)
        return self._storage.pass_through(records) if server.kind == "environment" else records

    async def begin_episode(self, episode: EnvironmentEpisode, *, restart_only: bool) -> None:
        """Dispatch an attempt."""
        env_id = "Taxi-v4" if restart_only else "CartPole-v1"
        running = self.run(episode.rollout_id, episode.attempt, env_id=env_id, seed=7)
        task = asyncio.get_running_loop().create_task(running)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._runs.append(task)
        await self.settled()

    async def end_turn(self, episode: EnvironmentEpisode) -> bool:
        """Store the row that the attempt's turn waits for."""
        await self.settled()
        go_on = self._waiting.pop(episode.capture_key, None)
        if go_on is None:
            return False
        go_on.set()
        await self.settled()
        return True

    async def turns_of(self, episode: EnvironmentEpisode) -> int:
        """Return the number of the turn whose row was stored last."""
        return self._turns.get(episode.capture_key, 0)

    @property
    def steered_ts(self) -> float:
        """The time that its clock shows."""
        return self._time.now_ts()

    async def settled(self) -> None:
        """Let tasks run until none can."""
        for _ in range(IDLE_ROUNDS):
            await asyncio.sleep(0)

    async def advance(self, by_s: float) -> None:
        """Let time pass."""
        self._time.advance(by_s)
        await self.settled()

    async def step_clock(self, by_s: float) -> None:
        """Set the clock."""
        self._time.step_clock(by_s)

    async def hold_writes(self) -> None:
        """Let writes hang."""
        self._storage.free.clear()

    async def free_writes(self) -> None:
        """Let writes go on."""
        self._storage.free.set()

    async def fail_write(self, text: str, *, unpicklable: bool) -> None:
        """Let the next write fail with an error that is made here, since it may not travel."""
        self._storage.error = UnpicklableError(text) if unpicklable else OSError(text)

    async def hold_stops(self) -> None:
        """Let attempts that are stopped clean up without end."""
        self._cleanup.clear()

    async def free_stops(self) -> None:
        """Let attempts that clean up come to their end."""
        self._cleanup.set()

    async def end(self) -> None:
        """Stop everything."""
        self._cleanup.set()
        self._storage.free.set()
        await self.close()
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def start_again(self) -> None:
        """Become a deployment that was just made, in the same process."""
        await self.end()
        self.__init__(self._made_with)  # type: ignore[misc]


def steered(deployment: type[GymnasiumDeployment] = GymnasiumDeployment) -> type[Steering]:
    """Return a class of deployments as a test steers them."""
    return cast("type[Steering]", type(f"Steered{deployment.__name__}", (Steering, deployment), {}))


class GymnasiumUnderTest(InstanceUnderTest):
    """
    One deployment that plays CartPole, and Taxi for episodes that cannot be captured.

    Attributes:
        deployment: The deployment itself.
    """

    def __init__(
        self,
        deployment: type[GymnasiumDeployment] = GymnasiumDeployment,
        *,
        instance_id: str = "games/replica-0",
    ) -> None:
        """
        Make a deployment of a class.

        Args:
            deployment: The class.
            instance_id: The deployment's id.
        """
        self.instance_id = instance_id
        self.grace_s = GRACE_S
        self.deployment = steered(deployment)(instance_id)
        self.handle = handle_of(self.deployment)

    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        """Dispatch an attempt."""
        await self.deployment.begin_episode(episode, restart_only=restart_only)

    async def turn(self, episode: EnvironmentEpisode) -> bool:
        """Store the row that the attempt's turn waits for."""
        return await self.deployment.end_turn(episode)

    async def turns(self, episode: EnvironmentEpisode) -> int:
        """Return the number of the turn whose row was stored last."""
        return await self.deployment.turns_of(episode)

    def now_ts(self) -> float:
        """Return the deployment's time."""
        return self.deployment.steered_ts

    async def settle(self) -> None:
        """Let tasks run until none can."""
        await self.deployment.settled()

    async def advance(self, by_s: float) -> None:
        """Let time pass for the deployment."""
        await self.deployment.advance(by_s)

    async def step_clock(self, by_s: float) -> None:
        """Set the deployment's clock."""
        await self.deployment.step_clock(by_s)

    async def hold_storage(self) -> None:
        """Let writes hang."""
        await self.deployment.hold_writes()

    async def free_storage(self) -> None:
        """Let writes go on."""
        await self.deployment.free_writes()

    async def break_storage(self, error: Exception) -> None:
        """Let the next write fail."""
        unpicklable = isinstance(error, UnpicklableError)
        await self.deployment.fail_write(str(error), unpicklable=unpicklable)

    async def hold_cleanup(self) -> None:
        """Let attempts that are stopped clean up without end."""
        await self.deployment.hold_stops()

    async def free_cleanup(self) -> None:
        """Let attempts that clean up come to their end."""
        await self.deployment.free_stops()

    async def close(self) -> None:
        """Stop everything."""
        await self.deployment.end()


class VirtualDeployment(GymnasiumDeployment):
    """A deployment for a coordinator machine: its clock is the loop's, and its turns take time."""

    def __init__(
        self,
        instance_id: str,
        *,
        now_ts: Callable[[], float],
        grace_s: float = GRACE_S,
        turn_pause_s: float = 1.0,
        **settings: Any,
    ) -> None:
        """
        Make an open deployment.

        Args:
            instance_id: Its own id.
            now_ts: The clock of the loop, epoch seconds.
            grace_s: How long a lease lasts beyond the deadline that set it.
            turn_pause_s: How long every episode pauses between two turns, in virtual seconds.
            **settings: What else `GymnasiumDeployment` takes.
        """
        super().__init__(
            instance_id, now_ts=now_ts, grace_s=grace_s, turn_pause_s=turn_pause_s, **settings
        )

    @property
    def is_open(self) -> bool:
        """Whether nothing holds it, now."""
        self._tick()
        return self._servers.is_open

    def runs(self, episode: EnvironmentEpisode) -> bool:
        """Whether it has this very attempt, on its way or waiting."""
        return self._table.get(episode) is not None
