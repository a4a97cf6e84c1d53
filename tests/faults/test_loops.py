"""One coordinator over several event loops, one after the other, as with `asyncio.run`."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gymckpt.core.settings import RetryPolicy
from gymckpt.errors import GymCheckpointUnavailable, OperationOpen
from gymckpt.journal import open_journal
from gymckpt.runtime.clock import Clock
from gymckpt.runtime.virtual import virtual_loop
from tests.fakes import HANG
from tests.faults.virtual import EPOCH_TS, simulate
from tests.faults.world import World, until

SETTINGS: dict[str, Any] = {"control_timeout_s": 30.0, "prepare_timeout_s": 300.0}


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


def test_what_was_being_given_up_as_a_loop_ended(tmp_path: Path) -> None:
    """L2: an operation that its loop left before it was released is none that is open for ever."""
    clock = OneAfterAnother()
    retry = {"resume": RetryPolicy(attempts=2, pause_s=5.0)}
    world = World(2, clock=clock, root=tmp_path, retry=retry, **SETTINGS)
    world.actors[1].scripts["resume"].append(GymCheckpointUnavailable("503"))

    async def first() -> None:
        async def body() -> None:
            async with world.coordinator.prepared("one"):
                await asyncio.sleep(1e6)

        working = asyncio.ensure_future(body())
        await asyncio.sleep(0.3)
        for _ in range(2):
            working.cancel()
            await asyncio.sleep(0.1)
        assert working.cancelled()
        assert world.operation("one").state == "discarding"
        clock.past_s = clock.monotonic_s() + 1.0

    async def second() -> None:
        with pytest.raises(OperationOpen):
            await world.coordinator.prepare("two")
        await asyncio.sleep(100.0)
        await world.operate("checkpoint", "three")
        assert world.operation("one").state == "discarded"
        await world.examine()

    simulate(first)
    simulate(second)


def test_signs_of_life_in_the_next_loop(tmp_path: Path) -> None:
    """S7: a loop that ends in the middle of a heartbeat does not make the next one silent."""
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        world = World(1, journal=journal, owner_timeout_s=0.6, control_timeout_s=60.0)
        beats, gives, under_way = [0], journal.heartbeat, threading.Event()

        def slow(*given: Any, **named: Any) -> Any:
            under_way.set()
            time.sleep(0.2)
            return gives(*given, **named)

        def counted(*given: Any, **named: Any) -> Any:
            beats[0] += 1
            return gives(*given, **named)

        async def first() -> None:
            await world.coordinator.prepare("parked")
            await asyncio.to_thread(under_way.wait, 10.0)

        async def second() -> None:
            await world.coordinator.renew("parked")
            await until(lambda: beats[0] >= 3)
            await world.coordinator.resume("parked")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "heartbeat", slow)
            asyncio.run(first())
            patch.setattr(journal, "heartbeat", counted)
            asyncio.run(second())


def test_late_retires_go_on_in_the_next_loop(tmp_path: Path) -> None:
    """S5: a retire that fails in a second loop is tried again there without another operation."""
    clock = OneAfterAnother()
    world = World(2, clock=clock, root=tmp_path, fenced=True, **SETTINGS)

    async def failing(wire_id: str) -> None:
        world.actors[0].scripts["retire"] += [ConnectionError("reset")] * 2
        with pytest.raises(ZeroDivisionError):
            async with world.coordinator.restored(wire_id, world.root(), world.manifest()):
                raise ZeroDivisionError
        assert world.actors[0].running

    async def first() -> None:
        await failing("one")
        clock.past_s = clock.monotonic_s() + 1.0

    async def second() -> None:
        async with world.coordinator.prepared("between"):
            assert world.actors[0].running
        await asyncio.sleep(0.1)
        assert not world.actors[0].running
        for actor in world.actors:
            actor.retired.clear()  # a new one is in its place
        await failing("two")
        await asyncio.sleep(100.0)
        assert not world.actors[0].running
        await world.examine()

    simulate(first)
    simulate(second)


def test_late_retires_of_an_earlier_loop_go_on_by_themselves(tmp_path: Path) -> None:
    """S5: where it fails after the next operation too, it is tried again in that loop."""
    clock = OneAfterAnother()
    world = World(1, clock=clock, root=tmp_path, fenced=True, **SETTINGS)
    world.actors[0].scripts["retire"] += [ConnectionError("reset")] * 3

    async def first() -> None:
        with pytest.raises(ZeroDivisionError):
            async with world.coordinator.restored("one", world.root(), world.manifest()):
                raise ZeroDivisionError
        clock.past_s = clock.monotonic_s() + 1.0

    async def second() -> None:
        async with world.coordinator.prepared("between"):
            assert world.actors[0].running
        await asyncio.sleep(100.0)
        assert not world.actors[0].running
        await world.examine()

    simulate(first)
    simulate(second)
