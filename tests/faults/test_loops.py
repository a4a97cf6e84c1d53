"""One coordinator over several event loops, one after the other, as with `asyncio.run`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.runtime.clock import Clock
from gymckpt.runtime.virtual import virtual_loop
from tests.fakes import HANG
from tests.faults.virtual import EPOCH_TS, simulate
from tests.faults.world import World

SETTINGS = {"control_timeout_s": 30.0, "prepare_timeout_s": 300.0}


class OneAfterAnother(Clock):
    """The clocks of the running virtual loop, each of which begins at 0, and those before it."""

    def __init__(self) -> None:
        self.past_s = 0.0
        """When the running loop began."""

    def wall_ts(self) -> float:
        """Return epoch seconds."""
        return EPOCH_TS + self.monotonic_s()

    def monotonic_s(self) -> float:
        """Return the seconds of all loops."""
        return self.past_s + asyncio.get_running_loop().time()


@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("gives_futures", [False, True])
def test_what_an_earlier_loop_left_goes_on(
    under_way: bool, gives_futures: bool, tmp_path: Path
) -> None:
    """L2: what the loop before has not reopened is reopened or lapses with the next operation."""
    clock = OneAfterAnother()
    world = World(2, clock=clock, root=tmp_path, gives_futures=gives_futures, **SETTINGS)

    async def first() -> None:
        await world.operate("checkpoint", "idle")  # a coordinator with nothing left is no trouble
        world.actors[1].always["resume"] = HANG if under_way else GymCheckpointUnavailable("503")
        await world.operate("checkpoint", "one")
        await asyncio.sleep(31.0)  # into the next try
        assert world.operation("one").phase.count("asked") == under_way
        clock.past_s = clock.monotonic_s() + 7.0

    async def second() -> None:
        await world.operate("checkpoint", "two")
        assert world.operation("one").state == "resuming"
        await asyncio.sleep(1_500)  # beyond the lease horizon
        await world.examine()
        for wire_id in ("one", "two"):
            assert world.operation(wire_id).state == "resumed"
            assert world.operation(wire_id).call_state("resume", world.ids[1]).state == "lapsed"

    simulate(first)
    simulate(second)


def test_leases_are_renewed_again_in_the_next_loop(tmp_path: Path) -> None:
    """The first verb in a new loop lets the renewals of a parked checkpoint go on there."""
    clock = OneAfterAnother()
    world = World(2, clock=clock, root=tmp_path, **SETTINGS)

    async def first() -> None:
        await world.coordinator.prepare("parked")
        await asyncio.sleep(5.0)
        clock.past_s = clock.monotonic_s() + 1.0

    async def second() -> None:
        offered = world.offer()
        await world.coordinator.commit("parked", world.root(), offered, restarts={})
        began = len(world.actors[0].of("renew"))
        await asyncio.sleep(95.0)
        assert len(world.actors[0].of("renew")) >= began + 9
        await world.coordinator.resume("parked")
        assert world.operation("parked").state == "resumed"
        await world.examine()

    simulate(first)
    simulate(second)


def test_two_loops_at_once(tmp_path: Path) -> None:
    """S7: while the loop of a parked checkpoint is not closed, a verb in another one is refused."""
    world = World(2, clock=OneAfterAnother(), root=tmp_path, **SETTINGS)
    with virtual_loop() as first:
        first.run_until_complete(world.coordinator.prepare("parked"))

        async def elsewhere() -> None:
            before = world.story()
            with pytest.raises(RuntimeError, match="'parked' goes on in another event loop"):
                await world.coordinator.renew("parked")
            assert world.story() == before

        simulate(elsewhere)
        first.run_until_complete(world.coordinator.resume("parked"))
        first.run_until_complete(world.examine())
