"""
The instance contract's hands on a `GymnasiumDeployment` or a subclass of it, in this process.

Turns end when the test says so: every turn waits in the row sink. Time passes only in `advance`,
and writes can be held or broken where the deployment takes its records.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, cast

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.episodes import LiveEpisode
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.servers import Server
from gymckpt.participant.store import Record
from gymckpt.participant.work import Workshop
from gymckpt.testing.instance import InstanceUnderTest, handle_of

__all__ = ["GymnasiumUnderTest", "ManualTime", "VirtualDeployment"]

T = TypeVar("T")

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


def _hooked(deployment: type[GymnasiumDeployment], storage: _Storage) -> type[GymnasiumDeployment]:
    def records_of(
        self: GymnasiumDeployment, server: Server, episodes: Sequence[LiveEpisode]
    ) -> Iterable[Record]:
        records = deployment.records_of(self, server, episodes)
        return storage.pass_through(records) if server.kind == "environment" else records

    made = type(f"Hooked{deployment.__name__}", (deployment,), {"records_of": records_of})
    return cast("type[GymnasiumDeployment]", made)


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
        self._time = ManualTime()
        self._storage = _Storage()
        self._waiting: dict[str, asyncio.Event] = {}
        self._turns: dict[str, int] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self.instance_id = instance_id
        self.grace_s = GRACE_S
        self.deployment = _hooked(deployment, self._storage)(
            instance_id,
            row_sink=self._store_row,
            resources_mode="restart-only",
            restart_only_env_ids=["Taxi-v4"],
            grace_s=GRACE_S,
            now_ts=self._time.now_ts,
            call_later=self._time.call_later,
        )
        self.handle = handle_of(self.deployment)

    async def _store_row(self, _key: str, row: dict[str, Any]) -> None:
        name = row["capture_key"]
        go_on = self._waiting[name] = asyncio.Event()
        self._turns[name] = row["turn"]
        try:
            await go_on.wait()
            self._turns[name] += 1
        finally:
            self._waiting.pop(name, None)

    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        """Dispatch an attempt."""
        env_id = "Taxi-v4" if restart_only else "CartPole-v1"
        running = self.deployment.run(episode.rollout_id, episode.attempt, env_id=env_id, seed=7)
        task = asyncio.get_running_loop().create_task(running)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.append(task)
        await self.settle()

    async def turn(self, episode: EnvironmentEpisode) -> bool:
        """Store the row that the attempt's turn waits for."""
        await self.settle()
        go_on = self._waiting.pop(episode.capture_key, None)
        if go_on is None:
            return False
        go_on.set()
        await self.settle()
        return True

    async def turns(self, episode: EnvironmentEpisode) -> int:
        """Return the number of the turn whose row was stored last."""
        return self._turns.get(episode.capture_key, 0)

    def now_ts(self) -> float:
        """Return the deployment's time."""
        return self._time.now_ts()

    async def settle(self) -> None:
        """Let tasks run until none can."""
        for _ in range(IDLE_ROUNDS):
            await asyncio.sleep(0)

    async def advance(self, by_s: float) -> None:
        """Let time pass for the deployment."""
        self._time.advance(by_s)
        await self.settle()

    async def step_clock(self, by_s: float) -> None:
        """Set the deployment's clock."""
        self._time.step_clock(by_s)

    async def hold_storage(self) -> None:
        """Let writes hang."""
        self._storage.free.clear()

    async def free_storage(self) -> None:
        """Let writes go on."""
        self._storage.free.set()

    async def break_storage(self, error: Exception) -> None:
        """Let the next write fail."""
        self._storage.error = error

    async def close(self) -> None:
        """Stop everything."""
        await self.deployment.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Inline(Executor):
    """Runs what it is given at once: the time of a thread is not that of a virtual loop."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run it."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # as of a thread: it is for whoever waits
            future.set_exception(error)
        return future


class VirtualDeployment(GymnasiumDeployment):
    """A deployment on a virtual loop: its clock is the loop's, and the loop does its file work."""

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
        self._workshop = Workshop(timers=self._timers, pulse=self._pulse, executor=_Inline())

    @property
    def is_open(self) -> bool:
        """Whether nothing holds it, now."""
        self._tick()
        return self._servers.is_open

    def runs(self, episode: EnvironmentEpisode) -> bool:
        """Whether it has this very attempt, on its way or waiting."""
        return self._table.get(episode) is not None
