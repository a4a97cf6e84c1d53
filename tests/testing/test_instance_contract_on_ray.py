"""
The shipped deployment as a real Ray actor keeps the whole instance contract.

The actors are used again: one that a check has let go of becomes a deployment that was just made,
in the same process, so that starting actors takes a few seconds in all. Every third check is tried
unless the tests are to be thorough: the same deployment keeps all of them without Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.testing.faults import UnpicklableError
from gymckpt.testing.gymnasium import GRACE_S, START_TS, Steering, steered
from gymckpt.testing.instance import InstanceUnderTest
from gymckpt.testing.instance_contract import InstanceContract
from gymckpt.testing.instance_report import checks, run_check

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

INSTANCE = "games/replica-0"

REPLIES_S = 0.03
"""How long the replies of calls that have ended may be on their way."""


class ActorUnderTest(InstanceUnderTest):
    """The hands on one actor, and its clock, which moves only when they say so."""

    def __init__(self, pool: list[Any], actor: Any) -> None:
        self.instance_id = INSTANCE
        self.grace_s = GRACE_S
        self.handle = actor
        self._pool = pool
        self._now_ts = START_TS
        self._closed = False

    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        await self.handle.begin_episode.remote(episode, restart_only=restart_only)

    async def turn(self, episode: EnvironmentEpisode) -> bool:
        return bool(await self.handle.end_turn.remote(episode))

    async def turns(self, episode: EnvironmentEpisode) -> int:
        return int(await self.handle.turns_of.remote(episode))

    def now_ts(self) -> float:
        return self._now_ts

    async def settle(self) -> None:
        await asyncio.sleep(0)  # what was begun here leaves first
        await self.handle.settled.remote()
        await asyncio.sleep(REPLIES_S)

    async def advance(self, by_s: float) -> None:
        self._now_ts += by_s
        await self.handle.advance.remote(by_s)

    async def step_clock(self, by_s: float) -> None:
        self._now_ts += by_s
        await self.handle.step_clock.remote(by_s)

    async def hold_storage(self) -> None:
        await self.handle.hold_writes.remote()

    async def free_storage(self) -> None:
        if not self._closed:
            await self.handle.free_writes.remote()

    async def hold_cleanup(self) -> None:
        await self.handle.hold_stops.remote()

    async def free_cleanup(self) -> None:
        await self.handle.free_stops.remote()

    async def break_storage(self, error: Exception) -> None:
        unpicklable = isinstance(error, UnpicklableError)
        await self.handle.fail_write.remote(str(error), unpicklable=unpicklable)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.handle.start_again.remote()
        self._pool.append(self.handle)


class TestGymnasiumActor(InstanceContract):
    """The shipped deployment, behind a Ray actor."""

    free: ClassVar[list[Any]] = []
    actors: ClassVar[list[Any]] = []

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _end_actors(cls) -> Iterator[None]:
        import ray

        yield
        for actor in cls.actors:
            ray.kill(actor)
        cls.actors.clear()
        cls.free.clear()

    @pytest.fixture(autouse=True)
    def _sampled(self, request: pytest.FixtureRequest, thorough: bool) -> None:
        names = [one.name for one in checks()]
        [number] = [at for at, name in enumerate(names) if request.node.name.endswith(f"-{name}]")]
        if number % 3 and not thorough:
            pytest.skip("it is tried without Ray: run pytest with --thorough")

    def make_instance(self) -> InstanceUnderTest:
        if not self.free:
            self.actors.append(steered().remote_class().remote(INSTANCE))
            self.free.append(self.actors[-1])
        return ActorUnderTest(self.free, self.free.pop())


@pytest.mark.parametrize("raised", ["lock", "arguments"])
def test_an_error_that_loses_its_type_on_the_way_is_told(raised: str) -> None:
    """An actor that raises what cannot be carried fails the check, in words."""
    import ray

    class Raises(Steering):
        async def checkpoint_commit(self, *_args: Any, **_kwargs: Any) -> Any:
            if raised == "lock":
                raise UnpicklableError("the disk is on fire")
            raise TwoArgumentsError("the disk", "is on fire")

    actor = Raises.remote_class().remote(INSTANCE)
    check = next(one for one in checks() if one.name == "errors_of_a_disk_travel")
    result = run_check(check, lambda: ActorUnderTest([], actor))
    ray.kill(actor)
    assert result.outcome == "failed"
    assert "the error of a failed write has lost its type" in result.why


class TwoArgumentsError(Exception):
    """An error that is made again from its text alone, and fails at it."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
