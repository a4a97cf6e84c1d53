"""Ids that are over and operations that overlap: nothing acts after its end, or beside another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointPrepareSummary,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.episodes import new_operation_id
from gymckpt.errors import GymCheckpointUnavailable, IllegalTransition, OperationOpen, RunHeld
from gymckpt.journal import Journal
from gymckpt.journal.memory import MemoryJournal
from tests.fakes import HANG, Ghost, Late
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import SHORT, World, new_id, until

PREPARE_TROUBLE: dict[str, Any] = {
    "hangs": HANG,
    "queued": Ghost(1.0),
    "queued for long": Ghost(20.0),
    "not ready": GymCheckpointPrepareSummary(False, {}),
    "refuses": GymCheckpointUnavailable("HTTP 503"),
}


@given(
    trouble=st.lists(st.sampled_from([*sorted(PREPARE_TROUBLE), "fine"]), min_size=1, max_size=4),
    fails=st.integers(1, 3),
)
def test_b10_late_prepare_of_an_aborted_checkpoint(
    trouble: list[str], fails: int, tmp_path_factory: Any
) -> None:
    """B10: an id that was given up is fenced everywhere; no later id is refused or reused."""
    root = tmp_path_factory.mktemp("b10")

    async def main() -> None:
        settings = {"control_timeout_s": 2.0, "prepare_timeout_s": 5.0}
        world = World(len(trouble), clock=LoopClock(), root=root, fenced=True, **settings)
        for actor, what in zip(world.actors, trouble, strict=True):
            actor.scripts["prepare"] = [PREPARE_TROUBLE.get(what)] * fails
        names = [new_id() for _ in range(fails + 3)]
        for name in names:
            with contextlib.suppress(GymCheckpointNotReady, GymCheckpointOperationError):
                async with world.committed(name, root / name):
                    pass
        await asyncio.sleep(60)
        for actor in world.actors:
            assert actor.resumed >= set(names)
            assert {refusal.split()[-1] for _, refusal in actor.refusals} <= set(names[:fails])
            assert actor.holder is None
        assert world.operation(names[-1]).state == "resumed"
        await world.examine()

    simulate(main)


async def test_b11_retire_inside_a_checkpoint(new_world: NewWorld, journal: Journal) -> None:
    """B11: retire and forget are refused while a checkpoint is open, and legal after it."""
    world = new_world(2, journal=journal, fenced=True)
    async with world.coordinator.prepared("open"):
        for verb in ("retire", "forget"):
            with pytest.raises(OperationOpen, match="open") as caught:
                await getattr(world.coordinator, verb)("r-1", world.offer())
            assert is_transient_gym_checkpoint_failure(caught.value)
    await world.coordinator.retire("r-1", world.offer())
    await world.coordinator.forget("f-1", world.offer())
    async with world.committed("next", world.root()):
        pass
    assert [actor.refusals for actor in world.actors] == [[], []]


async def test_b11_a_checkpoint_waits_for_a_retire(new_world: NewWorld, journal: Journal) -> None:
    """B11: a checkpoint that begins while a retire is under way is sent after it has ended."""
    world = new_world(2, journal=journal, control_timeout_s=2.0)
    world.actors[0].always["retire"] = Late(0.05)
    retiring = asyncio.create_task(world.coordinator.retire("r-1", world.offer()))
    await asyncio.sleep(0)  # it has begun, and has perhaps sent nothing yet
    await world.coordinator.prepare("next")
    await world.coordinator.resume("next")
    await retiring
    for actor in world.actors:
        assert actor.ops == ["retire", "prepare", "resume"]


INTRUDERS: dict[str, Callable[[World], Awaitable[Any]]] = {
    "prepare": lambda world: world.coordinator.prepare("b"),
    "prepared": lambda world: world.coordinator.prepared("b").__aenter__(),
    "restore": lambda world: world.coordinator.restore("b", "/nowhere", world.manifest()),
    "restored": lambda world: world.coordinator.restored(
        "b", "/nowhere", world.manifest()
    ).__aenter__(),
    "retire": lambda world: world.coordinator.retire("b", world.offer()),
    "forget": lambda world: world.coordinator.forget("b", world.offer()),
    "resume": lambda world: world.coordinator.resume("b"),
    "renew": lambda world: world.coordinator.renew("b"),
    "commit": lambda world: world.coordinator.commit("b", world.root(), world.offer(), restarts={}),
}


@pytest.mark.parametrize("kind", ["prepared", "committed", "restored"])
@pytest.mark.parametrize("intruder", sorted(INTRUDERS))
@pytest.mark.parametrize("own_task", [True, False])
async def test_b25_b34_second_operation(
    new_world: NewWorld, kind: str, intruder: str, own_task: bool
) -> None:
    """B25, B34: a second operation is refused at once, from any task, and sends nothing."""
    world = new_world(2, control_timeout_s=5.0)
    opened: Any = world.coordinator.prepared("a")
    if kind == "committed":
        opened = world.committed("a", world.root("a"))
    elif kind == "restored":
        opened = world.coordinator.restored("a", "/nowhere", world.manifest())
    async with opened:
        before = world.story()
        with pytest.raises(OperationOpen, match="'a'") as caught:
            if own_task:
                await INTRUDERS[intruder](world)
            else:
                await asyncio.gather(INTRUDERS[intruder](world))
        assert is_transient_gym_checkpoint_failure(caught.value)
        assert caught.value.operation_id == "a"
        assert world.story() == before
    assert world.operation("a").settled


@pytest.mark.parametrize("first", ["prepare", "restore"])
async def test_b34_nothing_begins_before_the_first_has_ended(
    new_world: NewWorld, journal: Journal, first: str
) -> None:
    """B34: while an operation begins or ends, another is refused, and the ids never mix."""
    world = new_world(2, journal=journal, control_timeout_s=5.0, prepare_timeout_s=5.0)
    for actor in world.actors:
        actor.fail_from(None, Late(0.01))
    if first == "prepare":
        beginning = asyncio.ensure_future(world.coordinator.prepare("a"))
    else:
        manifest = world.manifest()
        beginning = asyncio.ensure_future(world.coordinator.restore("a", "/nowhere", manifest))
    refused = 0
    await asyncio.sleep(0)
    while not beginning.done():
        with pytest.raises(OperationOpen):
            await world.coordinator.prepare(new_id())
        refused += 1
        await asyncio.sleep(0.002)
    ending = asyncio.ensure_future(world.coordinator.resume("a"))
    await asyncio.sleep(0)
    while not world.operation("a").settled:  # once it is, the next may begin, whoever waits for it
        with pytest.raises(OperationOpen):
            await world.coordinator.restore(new_id(), "/nowhere", world.manifest())
        refused += 1
        await asyncio.sleep(0.002)
    await ending
    assert refused >= 4
    await world.coordinator.prepare("b")
    await world.coordinator.resume("b")
    for actor in world.actors:
        ids = [call.wire_id for call in actor.calls]
        assert ids == sorted(ids)


async def test_many_tasks_at_once(new_world: NewWorld, journal: Journal) -> None:
    """B34: of twenty checkpoints that start together one goes on, the others are transient."""
    world = new_world(2, journal=journal, fenced=True, control_timeout_s=5.0)
    ended = await asyncio.gather(
        *(world.operate("checkpoint", f"many-{number}") for number in range(20)),
        return_exceptions=True,
    )
    refused = [error for error in ended if error is not None]
    assert len(refused) == 19
    assert all(is_transient_gym_checkpoint_failure(error) for error in refused)
    assert [actor.ops for actor in world.actors] == [["prepare", "commit", "resume"]] * 2


async def test_b34_a_waiting_begin_that_is_cancelled_sends_nothing(new_world: NewWorld) -> None:
    """B34: a checkpoint that waits for a retire and is cancelled has sent and left nothing."""
    world = new_world(2, control_timeout_s=5.0)
    world.actors[0].always["retire"] = Late(0.1)
    retiring = asyncio.create_task(world.coordinator.retire("r-1", world.offer()))
    await until(lambda: world.actors[0].calls)
    waiting = asyncio.create_task(world.coordinator.prepare("never"))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await retiring
    assert [actor.ops for actor in world.actors] == [["retire"]] * 2
    assert world.journal.operation(world.run, "never") is None
    await world.operate("checkpoint", "next")


@pytest.mark.parametrize("shared", ["journal", "nothing"])
async def test_b45_two_controllers_on_one_deployment(
    new_world: NewWorld, journal: Journal, shared: str
) -> None:
    """B45: while A holds the instances B fails transiently and never touches A's checkpoint."""
    world = new_world(2, journal=journal, fenced=True)
    own: dict[str, Any] = {"journal": MemoryJournal()} if shared == "nothing" else {}
    other = world.new_coordinator(**own, run="b")
    async with world.coordinator.prepared("a"):
        with pytest.raises(GymCheckpointOperationError, match="checkpoint_conflict") as caught:
            async with other.prepared("b"):
                pytest.fail("B entered its body")
        assert is_transient_gym_checkpoint_failure(caught.value)
        await world.coordinator.commit("a", world.root(), world.offer(), restarts={})
    assert world.operation("a").state == "resumed"
    async with other.prepared("b2"):
        pass
    for actor in world.actors:
        assert actor.closings == ["a", None, "b2", None]
        assert [op for op, refusal in actor.refusals] == ["prepare"]


async def test_b45_two_controllers_of_one_run(new_world: NewWorld, journal: Journal) -> None:
    """B45, S7: B sends nothing while A's process holds their run, also between A's checkpoints."""
    world = new_world(2, journal=journal, fenced=True, owner_timeout_s=0.6)
    other = world.new_coordinator()
    async with world.coordinator.prepared("a"):
        with pytest.raises(RunHeld) as caught:
            await other.prepare("b")
        assert not is_transient_gym_checkpoint_failure(caught.value)
        await world.coordinator.commit("a", world.root(), world.offer(), restarts={})
    assert world.operation("a").state == "resumed"
    with pytest.raises(RunHeld):
        await other.prepare("b")
    beside = world.new_coordinator(process=caught.value.holder.partition(":")[0])
    async with beside.prepared("a2"):  # one of A's process
        pass
    for actor in world.actors:
        assert actor.closings == ["a", None, "a2", None]
        assert actor.refusals == []


async def test_b45_restore_beside_a_checkpoint(new_world: NewWorld) -> None:
    """B45: a restore of B fails while A holds the instances, and A's checkpoint succeeds."""
    world = new_world(2, fenced=True)
    other = world.new_coordinator(run="b")
    async with world.coordinator.prepared("a"):
        with pytest.raises(GymCheckpointOperationError):
            await other.restore("b", "/nowhere", world.manifest())
        await world.coordinator.commit("a", world.root(), world.offer(), restarts={})
    assert world.operation("a").state == "resumed"
    assert all(actor.closings == ["a", None] for actor in world.actors)


def test_b45_ids_of_fresh_controllers_never_collide(tmp_path: Path) -> None:
    """B45: the runs of 1,000 fresh coordinators, and what they generate, are all different."""
    worlds = [World(1, root=tmp_path) for _ in range(1_000)]
    runs = {world.new_coordinator(run=None).run for world in worlds}
    assert len(runs) == 1_000
    assert len({new_operation_id("snapshot") for _ in range(1_000)}) == 1_000


async def test_resume_of_an_id_that_nobody_knows(new_world: NewWorld, journal: Journal) -> None:
    """A lone resume fences its id on every instance, twice if need be, and may be repeated."""
    world = new_world(3, journal=journal, fenced=True)
    world.actors[1].scripts["resume"] = [GymCheckpointUnavailable("HTTP 503")]
    await world.coordinator.resume("lost")
    await world.coordinator.resume("lost")
    assert [actor.ops.count("resume") for actor in world.actors] == [2, 3, 2]
    assert all(actor.resumed == {"lost"} for actor in world.actors)


@pytest.mark.parametrize("trouble", [HANG, GymCheckpointUnavailable("HTTP 503"), TypeError("x")])
async def test_lone_resume_that_fails(new_world: NewWorld, trouble: Any) -> None:
    """A lone resume is sent twice where that may help, to that instance only, and then fails."""
    world = new_world(3, **SHORT)
    world.actors[1].always["resume"] = trouble
    world.actors[2].always["resume"] = HANG
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.resume("lost")
    assert caught.value.operation == "resume"
    assert set(caught.value.failures) == {"tools/replica-1", "tools/replica-2"}
    tries = 1 if isinstance(trouble, TypeError) else 2
    assert [actor.ops.count("resume") for actor in world.actors] == [1, tries, 2]


async def test_resume_aborts_what_another_task_does(new_world: NewWorld) -> None:
    """A resume from another task ends a prepare that waits, which says that it was given up."""
    world = new_world(2, prepare_timeout_s=5.0)
    world.actors[0].always["prepare"] = HANG
    preparing = asyncio.create_task(world.coordinator.prepare("abort"))
    await until(lambda: world.actors[1].calls)
    await world.coordinator.resume("abort")
    with pytest.raises(RuntimeError, match="given up"):
        await preparing
    with pytest.raises(IllegalTransition):
        await world.coordinator.renew("abort")
    assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * 2
