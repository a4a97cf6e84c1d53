"""Several controllers over one journal file: processes that race, and ids that both want."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from gymckpt.coordinator import load_gym_checkpoint_manifest
from gymckpt.core.replay import replay
from gymckpt.errors import Fenced, JournalUnavailable, OperationIdUsed, RunHeld
from gymckpt.journal import Journal, open_journal
from gymckpt.runtime.holding import holder_token
from tests.fakes import HANG
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World

TURNS = 2
"""How many operations each process wants to have."""

SPAWN = multiprocessing.get_context("spawn")


def _work(journal: str, root: str, number: int, ready: Any, run: str, done: Any) -> None:
    """Do some checkpoints and a restore in one process, and say how each ended."""

    async def main() -> list[str]:
        settings = {"control_timeout_s": 20.0, "prepare_timeout_s": 20.0}
        world = World(2, root=Path(root), **settings)
        process = holder_token()  # the real one
        world._coordinator = world.new_coordinator(process=process, journal=journal, run=run)
        outcomes = []
        for turn in range(TURNS):
            name = f"process-{number}-turn-{turn}"
            try:
                await world.operate("restore" if turn == TURNS - 1 else "checkpoint", name)
            except RunHeld:
                assert world.story() == []
                outcomes.append(f"{name}: held")
            else:
                outcomes.append(f"{name}: good")
        return outcomes

    ready.wait(30)
    done.put((number, asyncio.run(main())))
    ready.wait(90)  # who holds a run lives until all have tried to have it


@pytest.mark.parametrize("shared", [False, True])
def test_processes_on_one_journal(tmp_path: Path, shared: bool) -> None:
    """S7: processes that write one journal at once lose nothing, and one of each run drives it."""
    path, count = tmp_path / "journal.sqlite3", 3
    runs = ["shared"] * count if shared else [f"run-{number}" for number in range(count)]
    done, ready = SPAWN.Queue(), SPAWN.Barrier(count)
    processes = [
        SPAWN.Process(
            target=_work,
            args=(f"sqlite://{path}", str(tmp_path), number, ready, runs[number], done),
        )
        for number in range(count)
    ]
    for process in processes:
        process.start()
    outcomes = dict(done.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    ended = {number: {one.split(": ")[1] for one in told} for number, told in outcomes.items()}
    assert all(len(words) == 1 for words in ended.values()), outcomes
    drivers = [number for number, words in ended.items() if words == {"good"}]
    assert len(drivers) == (1 if shared else count), outcomes
    with open_journal(path, read_only=True) as journal:
        rows = journal.operations()
        good = {f"process-{number}-turn-{turn}" for number in drivers for turn in range(TURNS)}
        assert {row.operation_id for row in rows} == good
        for row in rows:
            operation = replay(journal.read(row.run, row.operation_id))
            assert operation.state == "resumed"
            if operation.chart == "checkpoint":
                manifest = load_gym_checkpoint_manifest(str(operation.root))
                assert manifest.checkpoint_id == row.operation_id


async def test_two_coordinators_want_one_id(
    new_world: NewWorld, tmp_path: Path, journals: list[Journal]
) -> None:
    """Of two coordinators that open one id at once, one goes on and the other sends nothing."""
    url = str(tmp_path / "journal.sqlite3")
    journals += [open_journal(url), open_journal(url)]
    worlds = [new_world(2, journal=journal) for journal in journals]
    for world in worlds:
        world.run = worlds[0].run
        world._coordinator = world.new_coordinator(process="both")
    ended = await asyncio.gather(
        *(world.operate("checkpoint", "wanted") for world in worlds), return_exceptions=True
    )
    assert sorted(type(error) for error in ended if error) == [OperationIdUsed]
    (loser,) = (world for world, error in zip(worlds, ended, strict=True) if error)
    assert loser.story() == []


async def test_many_coordinators_on_one_journal(
    new_world: NewWorld, tmp_path: Path, journals: list[Journal]
) -> None:
    """Ten coordinators that share one journal object and write at once all succeed."""
    journals.append(open_journal(tmp_path / "journal.sqlite3"))
    worlds = [new_world(2, journal=journals[0]) for _ in range(10)]
    await asyncio.gather(
        *(world.operate("checkpoint", f"c-{number}") for number, world in enumerate(worlds))
    )
    for number, world in enumerate(worlds):
        assert world.operation(f"c-{number}").state == "resumed"


@pytest.mark.parametrize("times", [1, 3])
async def test_take_over_at_any_moment(new_world: NewWorld, journal: Journal, times: int) -> None:
    """S7: a controller that is taken over in its body stops, and the other one reopens."""
    world = new_world(2, journal=journal, control_timeout_s=0.2)
    for turn in range(times):
        name = f"taken-{turn}"
        other = world.new_coordinator()
        with pytest.raises(Fenced):
            async with world.coordinator.prepared(name):
                recovering = asyncio.ensure_future(other.recover(force=True))
                await asyncio.sleep(10)
        assert [found.outcome for found in await recovering] == ["settled"]
        assert world.operation(name).state == "discarded"
        assert world.operation(name).epoch == turn + 2
        world._coordinator = other  # who was taken over does nothing more for this run
        assert [actor.ops.count("resume") for actor in world.actors] == [turn + 1] * 2


def test_a_living_controller_learns_of_its_fencing_by_its_heartbeat(tmp_path: Path) -> None:
    """S7: a body is told within one beat that another controller has taken over, while it idles."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=600.0)
        world.settings |= {"owner_timeout_s": 12.0}  # beats every 2 s, renews every 10 s
        other = world.new_coordinator()
        with pytest.raises(Fenced):
            async with world.coordinator.prepared("idle"):
                await asyncio.sleep(0.5)
                [found] = await other.recover(force=True)
                assert found.ended
                taken_s = running_loop().time()
                await asyncio.sleep(600)
        assert running_loop().time() - taken_s <= 2.0
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("error", [JournalUnavailable("busy"), OSError("no journal's error")])
def test_a_failing_sign_of_life_is_not_the_last(error: Exception, tmp_path: Path) -> None:
    """S7: whatever a heartbeat fails with, the next one is given, and the body goes on."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=600.0)
        heartbeat = world.journal.heartbeat
        beats: list[str] = []

        def failing(run: str, *, epoch: int) -> None:
            beats.append(run)
            if len(beats) == 1:
                raise error
            heartbeat(run, epoch=epoch)

        world.journal.heartbeat = failing
        async with world.coordinator.prepared("alive"):
            await asyncio.sleep(60)
        assert len(beats) >= 10
        await world.examine()

    simulate(main)


async def test_taken_over_in_the_last_moment_of_the_body(
    new_world: NewWorld, journal: Journal
) -> None:
    """S7: a body that ends well is told that its checkpoint was taken over and discarded."""
    world = new_world(2, journal=journal)
    other = world.new_coordinator()
    with pytest.raises(Fenced):
        async with world.coordinator.prepared("last"):
            [found] = await other.recover(force=True)
            assert (found.outcome, found.state) == ("settled", "discarded")


def test_what_a_coordinator_has_taken_over_is_its_own(tmp_path: Path) -> None:
    """L2: a second recovery tries what the first left unconfirmed at once, and calls none held."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=3.0)
        other = world.new_coordinator()
        world.actors[0].always["resume"] = ConnectionError("no route")
        with pytest.raises(Fenced):
            async with world.coordinator.prepared("left"):
                [found] = await other.recover(force=True)
                assert found.outcome == "unconfirmed"
                del world.actors[0].always["resume"]
                [again] = await other.recover()
                assert again.outcome != "held"
                await asyncio.sleep(1.0)  # far less than until the next sweep by itself
                assert world.operation("left").settled
        await world.examine()

    simulate(main)


def test_an_old_operation_is_taken_over_in_bounded_time(tmp_path: Path) -> None:
    """L1, L2: an operation that was open for long ends as soon after a takeover as a new one."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=30.0)
        other = world.new_coordinator()
        world.actors[0].always["resume"] = HANG
        with pytest.raises(Fenced):
            async with world.coordinator.prepared("old"):
                await asyncio.sleep(3_000.0)
                began_s = running_loop().time()
                [found] = await other.recover(force=True)
                assert found.outcome == "unconfirmed"
                assert running_loop().time() - began_s < 75.0  # two tries of 35 s, a pause
        await asyncio.sleep(700.0)  # past the lease
        assert world.operation("old").settled
        await world.examine()

    simulate(main)
