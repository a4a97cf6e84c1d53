"""What discarded restores owe to instances, and what they leave for the restores after them."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.owed import owed_in
from gymckpt.recovery import recover
from tests.fakes import Late
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode
from tests.recovery.test_recovery import holding

WIRE_ID = "op-1"
LOST = ConnectionError("reset")


class Deliberate(Exception):
    """What a body fails with on purpose."""


async def restored(world: World, wire_id: str = WIRE_ID, *, fail: bool = False) -> None:
    """Restore everything that the world has; the attempts go on unless the body fails."""
    async with world.coordinator.restored(wire_id, world.root(), world.manifest()):
        if fail:
            raise Deliberate


def as_actors(world: World) -> World:
    """Let every instance have an id as Ray's actors have, which no other one ever has."""
    for actor in world.actors:
        actor._actor_id = uuid.uuid4().bytes  # type: ignore[attr-defined]
    return world


def renewed(world: World) -> World:
    """Return the same run after all of it was killed: new actors, a new controller."""
    after = World(len(world.actors), journal=world.journal, root=world.base, **world.settings)
    after.run = world.run
    return after


class Owing:
    """A restore was discarded while one of two instances could not be told to retire."""

    def __init__(self, root: Path, **settings: Any) -> None:
        given = settings if "clock" in settings else {"clock": LoopClock(), **settings}
        self.world = World(2, root=root, fenced=True, **given)
        self.actor = self.world.actors[0]

    async def begin(self) -> None:
        """Discard the restore; the instance takes the resume, but has not heard of the retire."""
        self.actor.scripts["retire"].append(ConnectionError("reset"))
        with pytest.raises(Deliberate):
            await restored(self.world, fail=True)
        assert self.world.operation(WIRE_ID).state == "discarded"
        assert self.actor.running == {episode("r0.0", 1)}

    def require_paid(self) -> None:
        """The attempt is stopped, by a retire under another id than the restore's."""
        assert self.actor.running == set()
        last = self.actor.of("retire")[-1]
        assert last.wire_id != WIRE_ID
        assert last.args[1] == (episode("r0.0", 1),)
        rows = {row.operation_id: row for row in self.world.journal.operations(self.world.run)}
        assert rows[last.wire_id].chart == "sweep"
        assert rows[last.wire_id].state == "done"
        assert len(self.world.actors[1].of("retire")) == 1


def test_owed_retirement_in_the_background(tmp_path: Path) -> None:
    """What could not be retired is retired by itself, after a while."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        owing.actor.scripts["retire"] += [ConnectionError("reset")] * 2
        await asyncio.sleep(65.0)
        assert owing.actor.running
        assert len(owing.actor.of("retire")) == 3
        await asyncio.sleep(31.0)
        owing.require_paid()
        tries = len(owing.actor.of("retire"))
        await asyncio.sleep(100.0)
        assert len(owing.actor.of("retire")) == tries

    simulate(main)


def test_owed_retirement_before_the_next_operation(tmp_path: Path) -> None:
    """The next checkpoint pays first, so that it parks nothing that should not run."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        async with owing.world.committed("next", owing.world.root("next")):
            owing.require_paid()
        ops = owing.actor.ops
        assert ops.index("prepare") == ops.index("retire", ops.index("resume")) + 1

    simulate(main)


def test_owed_retirement_is_never_paid_while_another_is_open(tmp_path: Path) -> None:
    """In the background nothing is retired while a checkpoint holds the instances."""

    async def main() -> None:
        owing = Owing(tmp_path, control_timeout_s=100.0)
        await owing.begin()
        owing.actor.scripts["retire"].append(ConnectionError("reset"))
        async with owing.world.committed("next", owing.world.root("next")):
            tries = len(owing.actor.of("retire"))
            await asyncio.sleep(95.0)
            assert len(owing.actor.of("retire")) == tries
        await asyncio.sleep(31.0)
        owing.require_paid()

    simulate(main)


def test_owed_retirement_after_a_crash(tmp_path: Path) -> None:
    """What a dead controller owed is paid by the next one's recovery."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        second = owing.world.new_coordinator()
        assert await second.recover() == ()
        owing.require_paid()
        tries = len(owing.actor.of("retire"))
        await owing.world.new_coordinator().recover()
        assert len(owing.actor.of("retire")) == tries

    simulate(main)


def test_owed_retirement_is_not_paid_by_an_earlier_one(tmp_path: Path) -> None:
    """What a second restore of the same attempts owes is not paid by what the first one paid."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        world = owing.world
        async with world.coordinator.prepared("next"):
            owing.require_paid()
        for actor in world.actors:
            actor.retired.clear()  # a new one is in its place
        await asyncio.sleep(1.0)
        owing.actor.scripts["retire"].append(ConnectionError("reset"))
        with pytest.raises(Deliberate):
            async with world.coordinator.restored("again", world.root(), world.manifest()):
                raise Deliberate
        assert owing.actor.running == {episode("r0.0", 1)}
        await world.new_coordinator().recover()
        assert owing.actor.running == set()

    simulate(main)


async def test_owed_retirement_by_the_public_function(tmp_path: Path) -> None:
    """`recover` pays too, for instances that it has a handle of."""
    owing = Owing(tmp_path, clock=None)
    await owing.begin()
    run, journal = owing.world.run, owing.world.journal
    other = {owing.world.ids[1]: owing.world.actors[1]}
    await recover(journal, other, run=run)
    assert owing.actor.running
    await recover(journal, owing.world.shards.checkpoint_handles, run=run)
    owing.require_paid()


def test_owed_retirement_that_recovery_cannot_pay(tmp_path: Path) -> None:
    """A recovery that cannot pay at once goes on trying, and the next operation does too."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        owing.world._coordinator = None  # the first controller is gone
        second = owing.world.new_coordinator()
        owing.actor.scripts["retire"] += [ConnectionError("reset")] * 2
        await second.recover()
        assert owing.actor.running
        async with second.prepared("next-1"):
            assert owing.actor.running
        async with second.prepared("next-2"):
            owing.require_paid()

    simulate(main)


def test_owed_by_a_restore_with_an_unreadable_log(tmp_path: Path) -> None:
    """A discarded restore whose log cannot be read keeps recovery from nothing else."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        run, journal = owing.world.run, owing.world.journal
        rows = journal._store.rows[run, WIRE_ID]
        rows.append((*rows[-1][:2], *rows[-2][2:]))
        await recover(journal, owing.world.shards.checkpoint_handles, run=run)
        assert owing.actor.running  # nobody can tell what it owes

    simulate(main)


# --- what a later restore has installed -----------------------------------------------------------


def test_owed_no_longer_where_a_later_restore_stands(tmp_path: Path) -> None:
    """A debt of an old restore never stops what a later one has installed for good."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        world = renewed(owing.world)
        await restored(world, "op-2")
        await world.coordinator.recover()
        await world.new_coordinator().recover()
        assert [actor.running for actor in world.actors] == [
            {episode("r0.0", 1)},
            {episode("r1.0", 1)},
        ]
        assert not any(actor.of("retire") for actor in world.actors)

    simulate(main)


def test_owed_no_longer_where_the_same_controller_restores_again(tmp_path: Path) -> None:
    """The debt that could not be paid before a restore is none once that has succeeded."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        for actor in owing.world.actors:
            actor.running.clear()  # its deployment began anew behind the same handle
            actor.retired.clear()
        owing.actor.scripts["retire"].append(LOST)
        await restored(owing.world, "op-2")
        await asyncio.sleep(700.0)
        assert owing.actor.running == {episode("r0.0", 1)}

    simulate(main)


def test_owed_until_it_is_confirmed(tmp_path: Path) -> None:
    """A payment that ends early because another instance failed pays for no instance in between."""

    async def main() -> None:
        world = World(2, root=tmp_path, fenced=True, clock=LoopClock(), settle_s=0.2)
        world.actors[0].scripts["retire"] += [LOST, LOST]
        world.actors[1].scripts["retire"] += [LOST, Late(1.0, LOST)]
        with pytest.raises(Deliberate):
            await restored(world, fail=True)
        await asyncio.sleep(100.0)
        assert not any(actor.running for actor in world.actors)

    simulate(main)


# --- the same snapshot again ----------------------------------------------------------------------


@given(data=st.data(), owes=st.booleans(), public=st.booleans())
def test_b33_same_snapshot_after_a_crash(
    data: st.DataObject, owes: bool, public: bool, tmp_path_factory: Any
) -> None:
    """B33: wherever a restore was cut off, the same snapshot can be restored on new actors."""
    root = tmp_path_factory.mktemp("again")

    async def first() -> World:
        world = as_actors(World(3, root=root, fenced=True, clock=LoopClock()))
        if owes:
            world.actors[1].scripts["retire"].append(LOST)
        with pytest.raises(Deliberate):
            await restored(world, fail=True)
        return world

    before = simulate(first)
    history = before.journal.read(before.run, WIRE_ID)
    cut = history[: data.draw(st.integers(1, len(history)), label="entries")]

    async def second() -> None:
        world = as_actors(World(3, root=root, journal=holding(cut), fenced=True, clock=LoopClock()))
        world.run = before.run
        if public:
            handles = world.shards.checkpoint_handles
            await recover(world.journal, handles, run=world.run, force=True)
        else:
            await world.coordinator.recover(force=True)
        assert not any(actor.ops for actor in world.actors)
        await restored(world, "again")
        expected = world.manifest().next_attempts()
        assert [actor.running for actor in world.actors] == [set(expected[i]) for i in world.ids]
        assert world.operation(WIRE_ID).settled

    simulate(second)


def test_the_same_actors_are_told(tmp_path: Path) -> None:
    """Who took part is told by a recovery what it would be told by its own controller."""

    async def main() -> None:
        world = as_actors(World(2, root=tmp_path, fenced=True, clock=LoopClock()))
        world.actors[0].scripts["retire"].append(LOST)
        with pytest.raises(Deliberate):
            await restored(world, fail=True)
        await world.new_coordinator().recover()
        assert [actor.ops.count("retire") for actor in world.actors] == [2, 1]
        assert not any(actor.running for actor in world.actors)

    simulate(main)


@pytest.mark.parametrize("handles", ["exchanged", "moved up"])
def test_an_actor_under_another_id_is_told(handles: str, tmp_path: Path) -> None:
    """S3: an actor that lives is reopened, whichever replica of the shard it has become."""

    async def main() -> None:
        world = as_actors(World(2, root=tmp_path, fenced=True, clock=LoopClock()))
        await world.coordinator.prepare(WIRE_ID)
        first, second = world.actors
        here = {world.ids[0]: second}
        if handles == "exchanged":
            here[world.ids[1]] = first
        [found] = await recover(world.journal, here, run=world.run, force=True)
        assert (found.outcome, found.state) == ("settled", "discarded")
        assert second.holder is None
        assert first.holder == (None if handles == "exchanged" else WIRE_ID)
        world.fenced_off.add(WIRE_ID)

    simulate(main)


@pytest.mark.parametrize("own", [True, False])
def test_nothing_is_owed_of_what_an_open_restore_has_installed(own: bool, tmp_path: Path) -> None:
    """A recovery beside a restore's body stops none of its attempts, then or later."""

    async def main() -> None:
        owing = Owing(tmp_path)
        await owing.begin()
        world = renewed(owing.world)
        async with world.coordinator.restored("op-2", world.root(), world.manifest()):
            if own:
                await world.coordinator.recover()
            else:
                await recover(world.journal, world.shards.checkpoint_handles, run=world.run)
        await asyncio.sleep(700.0)
        assert [len(actor.running) for actor in world.actors] == [1, 1]
        assert not any(actor.of("retire") for actor in world.actors)

    simulate(main)


def test_restores_that_owe_nothing_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many restores stand, what is owed costs nothing where none was discarded."""

    async def main() -> None:
        world = World(2, root=tmp_path, clock=LoopClock())
        await restored(world)
        await restored(world, "op-2")
        monkeypatch.setattr(world.journal, "read", None)
        now_ts = LoopClock().wall_ts()
        handles = world.shards.checkpoint_handles
        assert owed_in(world.journal, world.run, handles, now_ts) == ({}, None)
        monkeypatch.undo()

    simulate(main)


@pytest.mark.parametrize("actor_id", ["abc", 5, uuid.UUID(int=7), object()])
async def test_an_id_that_is_not_rays_means_nothing(actor_id: object) -> None:
    """A handle is anything with the methods, whatever else it has."""
    world = World(1)
    world.actors[0]._actor_id = actor_id  # type: ignore[attr-defined]
    await world.coordinator.prepare(WIRE_ID)
    assert "actors" not in world.operation(WIRE_ID).opening
    await world.coordinator.resume(WIRE_ID)


async def test_a_sweep_names_only_its_own_actors() -> None:
    """What is told to one instance takes no room for the others in the journal."""
    world = as_actors(World(3))
    await world.coordinator.forget("forget", {world.ids[1]: (episode("r1.0"),)})
    assert list(world.operation("forget").opening["actors"]) == [world.ids[1]]
