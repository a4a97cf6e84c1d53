"""Controllers crash one after the other, at every pair of points; the last one finds a way out."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt import GymCheckpointCoordinator
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World
from tests.recovery.severed import Edge, severable

WIRE_ID = "op-1"


class Deliberate(Exception):
    """What a body fails with on purpose."""


async def checkpoint(world: World, coordinator: GymCheckpointCoordinator, *, fail: bool) -> None:
    """Save everything, and perhaps give it up."""
    async with coordinator.prepared(WIRE_ID):
        await coordinator.commit(WIRE_ID, world.root("root"), world.offer(), restarts={})
        if fail:
            raise Deliberate


async def restore(world: World, coordinator: GymCheckpointCoordinator, *, fail: bool) -> None:
    """Go back, and perhaps give it up."""
    async with coordinator.restored(WIRE_ID, world.root("source"), world.manifest()):
        if fail:
            raise Deliberate


Scenario = Callable[..., Coroutine[Any, Any, None]]
SCENARIOS: dict[str, tuple[Scenario, bool]] = {
    "checkpoint": (checkpoint, False),
    "checkpoint that fails": (checkpoint, True),
    "restore": (restore, False),
    "restore that fails": (restore, True),
}


class Crashes:
    """One world in which controllers come and go."""

    def __init__(self, root: Path, scenario: str, *points: int) -> None:
        self.root = root
        self.scenario, self.fails = SCENARIOS[scenario]
        self.points = points
        self.reached: list[int] = []
        """How many points each controller reached."""

    async def main(self) -> None:
        """Let a controller crash at the first point, each recovering one at the next, then end."""
        world = self.world = World(2, root=self.root, fenced=True, clock=LoopClock())
        for number, point in enumerate([*self.points, 0]):
            edge = Edge(point)
            with edge.acting():
                coordinator = world.new_coordinator()
                life = coordinator.recover(force=True) if number else self._first(coordinator)
                task = asyncio.get_running_loop().create_task(life)
            dead = asyncio.get_running_loop().create_task(edge.died.wait())
            await asyncio.wait({task, dead}, return_when=asyncio.FIRST_COMPLETED)
            self.reached.append(edge.reached)
            if task.done():
                task.result()
        await self._examine(world)

    async def _first(self, coordinator: GymCheckpointCoordinator) -> None:
        with contextlib.suppress(Deliberate):
            await self.scenario(self.world, coordinator, fail=self.fails)

    async def _examine(self, world: World) -> None:
        await asyncio.sleep(1.0)  # for calls that were under way
        await world.examine(quiet=False)
        for row in world.journal.operations(world.run):
            assert row.settled, f"{row.operation_id} is left in {row.state}"
        assert [actor.holder for actor in world.actors] == [None, None], world.story()
        world.let_holder_go()
        last = world.new_coordinator()
        assert await last.recover() == ()
        async with last.prepared("next"):
            await last.commit("next", world.root("next"), world.offer(word="n"), restarts={})


def live(tmp_path: Path, scenario: str, *points: int) -> list[int]:
    """Live through crashes at these points, and return how many each controller reached."""
    crashes = Crashes(tmp_path / "-".join(map(str, ("run", *points))), scenario, *points)
    crashes.root.mkdir()
    simulate(crashes.main)
    return crashes.reached


@pytest.fixture(autouse=True, scope="module")
def edges() -> Any:
    """Let controllers be severed."""
    with severable():
        yield


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_crashes(tmp_path: Path, scenario: str) -> None:
    """Whatever two controllers crash at, the third puts all in order, as after one crash."""
    [last, _] = live(tmp_path, scenario, 0)
    pairs = 0
    for first in range(1, last + 1):
        _, second, _ = live(tmp_path, scenario, first, 0)
        for point in range(1, second + 1):
            live(tmp_path, scenario, first, point)
            pairs += 1
    assert pairs > 30


@settings(max_examples=25)
@given(
    scenario=st.sampled_from(sorted(SCENARIOS)),
    first=st.integers(1, 30),
    others=st.lists(st.integers(1, 8), min_size=2, max_size=6),
)
def test_many_crashes(scenario: str, first: int, others: list[int]) -> None:
    """However many controllers crash while they recover, the one that does not ends it."""
    with tempfile.TemporaryDirectory() as root:
        live(Path(root), scenario, first, *others)
