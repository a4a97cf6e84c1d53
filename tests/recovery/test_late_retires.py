"""What discarded restores retire after their resume, and what later restores supersede."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.replay import states_of
from gymckpt.episodes import late_retire_id
from gymckpt.errors import GymCheckpointOperationError
from gymckpt.journal import Journal
from gymckpt.recovery import recover
from tests.fakes import HANG, Apply, Late, Script
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode, until
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


def renewed(world: World, journal: Journal | None = None) -> World:
    """Return the same run after all of it was killed: new actors, a new controller."""
    world.let_holder_go()
    journal = journal or world.journal
    after = World(
        len(world.actors), journal=journal, root=world.base, fenced=True, **world.settings
    )
    after.run = world.run
    return after


def now_ts(world: World) -> float:
    """Return the wall clock of a world."""
    return float(world.settings["clock"].wall_ts())


class Left:
    """A restore was discarded while one of two instances could not be told to retire."""

    def __init__(self, root: Path, **settings: Any) -> None:
        given = settings if "clock" in settings else {"clock": LoopClock(), **settings}
        self.world = World(2, root=root, fenced=True, **given)
        self.actor = self.world.actors[0]

    async def begin(self, failures: int = 2) -> None:
        """
        Discard the restore; the instance takes the resume, but has not heard of the retire.

        Args:
            failures: How many retires fail: the first comes before the resume, the second at once
                after it.
        """
        self.actor.scripts["retire"] += [LOST] * failures
        with pytest.raises(Deliberate):
            await restored(self.world, fail=True)
        await asyncio.sleep(0.1)
        assert self.world.operation(WIRE_ID).state == "discarding"
        assert self.actor.running == {episode("r0.0", 1)}

    def require_retired(self) -> None:
        """The attempt is stopped by its own restore, under an id that is derived from its own."""
        assert self.actor.running == set()
        last = self.actor.of("retire")[-1]
        assert last.wire_id == late_retire_id(WIRE_ID)
        assert last.args[1] == (episode("r0.0", 1),)
        assert self.world.operation(WIRE_ID).state == "discarded"
        assert len(self.world.actors[1].of("retire")) == 1

    def begin_anew(self) -> None:
        """Let the deployments begin anew behind the same handles."""
        for actor in self.world.actors:
            actor.restart_empty()


def test_a_late_retire_follows_the_resume_at_once(tmp_path: Path) -> None:
    """What could not be retired before the resume is retired as soon as that is confirmed."""

    async def main() -> None:
        left = Left(tmp_path)
        left.actor.scripts["retire"].append(LOST)
        with pytest.raises(Deliberate):
            await restored(left.world, fail=True)
        await asyncio.sleep(0.1)
        left.require_retired()
        assert left.actor.ops == ["restore", "retire", "resume", "retire"]

    simulate(main)


def test_a_late_retire_in_the_background(tmp_path: Path) -> None:
    """What could not be retired is retired by itself, after a while, and once."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin(failures=4)
        await asyncio.sleep(65.0)
        assert left.actor.running
        assert len(left.actor.of("retire")) == 4
        await asyncio.sleep(31.0)
        left.require_retired()
        tries = len(left.actor.of("retire"))
        await asyncio.sleep(100.0)
        assert len(left.actor.of("retire")) == tries

    simulate(main)


def test_no_late_retire_while_another_is_open(tmp_path: Path) -> None:
    """Nothing is retired while a checkpoint holds the instances, and at once when it has ended."""

    async def main() -> None:
        left = Left(tmp_path, control_timeout_s=100.0)
        await left.begin(failures=2)
        tries = len(left.actor.of("retire"))
        async with left.world.committed("next", left.world.root("next")):
            await asyncio.sleep(95.0)
            assert len(left.actor.of("retire")) == tries
        await asyncio.sleep(0.1)
        left.require_retired()

    simulate(main)


def test_a_late_retire_after_a_crash(tmp_path: Path) -> None:
    """What a dead controller could not retire is retired by the next one's recovery, once."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin()
        second = left.world.new_coordinator()
        [found] = await second.recover(force=True)
        assert (found.operation_id, found.outcome) == (WIRE_ID, "settled")
        left.require_retired()
        tries = len(left.actor.of("retire"))
        await left.world.new_coordinator().recover(force=True)
        assert len(left.actor.of("retire")) == tries

    simulate(main)


def test_a_retire_that_nobody_heard_of_may_still_arrive(tmp_path: Path) -> None:
    """A controller that recovers sends no late retire while that of the dead one may arrive."""

    async def main() -> None:
        left = Left(tmp_path)
        left.actor.scripts["retire"] += [LOST, HANG]
        with pytest.raises(Deliberate):
            await restored(left.world, fail=True)
        await asyncio.sleep(1.0)
        deadline_ts = left.actor.of("retire")[1].kwargs["deadline_ts"]
        second = left.world.new_coordinator()
        [found] = await second.recover(force=True)
        assert (found.outcome, found.unconfirmed) == ("unconfirmed", (left.world.ids[0],))
        grace_s = left.world.operation(WIRE_ID).settings.reply_grace_s
        await until(lambda: len(left.actor.of("retire")) > 2, bound_s=100.0)
        await asyncio.sleep(0.1)
        assert now_ts(left.world) >= deadline_ts + grace_s
        left.require_retired()

    simulate(main)


async def test_a_late_retire_by_the_public_function(tmp_path: Path) -> None:
    """`recover` retires too, where it has a handle, and names the instances where it has none."""
    left = Left(tmp_path, clock=None)
    await left.begin()
    run, journal = left.world.run, left.world.journal
    other = {left.world.ids[1]: left.world.actors[1]}
    [found] = await recover(journal, other, run=run, force=True)
    assert (found.outcome, found.missing) == ("unconfirmed", (left.world.ids[0],))
    assert left.actor.running
    [found] = await recover(journal, left.world.shards.checkpoint_handles, run=run, force=True)
    assert found.outcome == "settled"
    left.require_retired()


def test_late_retires_that_recovery_cannot_confirm(tmp_path: Path) -> None:
    """A recovery that is not confirmed at once goes on trying between the next operations."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin(failures=4)
        left.world._coordinator = None  # the first controller is gone
        second = left.world.new_coordinator()
        await second.recover(force=True)
        assert left.actor.running
        async with second.prepared("next-1"):
            assert left.actor.running
        await asyncio.sleep(0.1)
        assert left.actor.running
        async with second.prepared("next-2"):
            pass
        await asyncio.sleep(0.1)
        left.require_retired()

    simulate(main)


def test_late_retires_end_with_the_lease_horizon(tmp_path: Path) -> None:
    """An instance that never confirms its retire is let rest once its lease must be over (L2)."""

    async def main() -> None:
        left = Left(tmp_path, lease_grace_s=100.0)
        left.actor.always["retire"] = LOST
        with pytest.raises(Deliberate):
            await restored(left.world, fail=True)
        await asyncio.sleep(99.0)
        assert left.world.operation(WIRE_ID).state == "discarding"
        await asyncio.sleep(100.0)
        assert left.world.operation(WIRE_ID).state == "discarded"
        retire = left.world.operation(WIRE_ID).call_state("retire", left.world.ids[0])
        assert retire.state == "lapsed"

    simulate(main)


@given(
    retires=st.lists(st.sampled_from(["lost", "hangs", "late", "applied"]), max_size=6),
    resumes=st.lists(st.sampled_from(["lost", "hangs", "late"]), max_size=4),
    pauses=st.lists(st.floats(0.0, 50.0), max_size=4),
)
def test_late_retires_in_any_trouble(
    retires: list[str], resumes: list[str], pauses: list[float], tmp_path_factory: Any
) -> None:
    """S5: whatever comes of retires and resumes, between checkpoints, no attempt goes on."""
    scripts: dict[str, Script] = {
        "lost": LOST,
        "hangs": HANG,
        "late": Late(3.0, None),
        "applied": Apply(LOST),
    }

    async def main() -> None:
        left = Left(tmp_path_factory.mktemp("any"), control_timeout_s=5.0)
        left.actor.scripts["retire"] += [scripts[one] for one in retires]
        left.actor.scripts["resume"] += [scripts[one] for one in resumes]
        with pytest.raises(Deliberate):
            await restored(left.world, fail=True)
        for number, pause_s in enumerate(pauses):
            await asyncio.sleep(pause_s)
            with suppress(GymCheckpointOperationError):
                async with left.world.committed(f"c-{number}", left.world.root(f"c-{number}")):
                    pass
        await asyncio.sleep(900.0)
        assert not any(actor.running for actor in left.world.actors)
        assert left.world.operation(WIRE_ID).state == "discarded"

    simulate(main)


# --- what a later restore has installed -----------------------------------------------------------


def test_a_later_restore_of_the_next_controller_supersedes(tmp_path: Path) -> None:
    """An old restore that a later controller recovers stops nothing that a later one installed."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin()
        world = renewed(left.world)
        await restored(world, "op-2")
        for controller in (world.coordinator, world.new_coordinator()):
            await controller.recover(force=True)
        assert [actor.running for actor in world.actors] == [
            {episode("r0.0", 1)},
            {episode("r1.0", 1)},
        ]
        assert not any(actor.of("retire") for actor in world.actors)

    simulate(main)


def test_a_later_restore_of_the_same_controller_supersedes(tmp_path: Path) -> None:
    """What could not be retired before a restore is never retired once that has begun."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin(failures=3)
        left.begin_anew()
        await restored(left.world, "op-2")
        await asyncio.sleep(700.0)
        assert left.actor.running == {episode("r0.0", 1)}
        assert left.world.operation(WIRE_ID).state == "discarded"
        [entry] = [
            entry
            for entry in left.world.journal.read(left.world.run, WIRE_ID)
            if entry.trigger == "supersede"
        ]
        assert entry.facts == {
            "by": "op-2",
            "attempts": {left.world.ids[0]: [episode("r0.0", 1).to_dict()]},
        }

    simulate(main)


def test_a_later_restore_owes_what_it_has_superseded(tmp_path: Path) -> None:
    """A later restore that is discarded too retires what it took over, until it is confirmed."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin()
        left.begin_anew()
        left.actor.scripts["retire"] += [LOST] * 2
        with pytest.raises(Deliberate):
            await restored(left.world, "op-2", fail=True)
        assert left.actor.running == {episode("r0.0", 1)}
        await asyncio.sleep(100.0)
        assert not left.actor.running
        assert left.actor.of("retire")[-1].wire_id == late_retire_id("op-2")
        assert left.world.operation(WIRE_ID).state == "discarded"
        assert left.world.operation("op-2").state == "discarded"

    simulate(main)


def test_only_the_same_attempts_are_superseded(tmp_path: Path) -> None:
    """A later restore of other rollouts, or on other instances, takes nothing over."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin(failures=3)
        manifest = left.world.manifest("other", word="s")
        async with left.world.coordinator.restored("op-2", left.world.root(), manifest):
            pass
        await asyncio.sleep(100.0)
        assert left.actor.running == {episode("s0.0", 1)}
        assert left.actor.of("retire")[-1].wire_id == late_retire_id(WIRE_ID)
        assert left.world.operation(WIRE_ID).superseded == {}

    simulate(main)


def test_a_restore_waits_for_a_retire_that_is_on_its_way(tmp_path: Path) -> None:
    """A restore is not sent while a late retire of the same attempts may still arrive."""

    async def main() -> None:
        left = Left(tmp_path)
        left.actor.scripts["retire"] += [LOST, HANG]
        with pytest.raises(Deliberate):
            await restored(left.world, fail=True)
        await asyncio.sleep(0.1)
        late = left.actor.of("retire")[1]
        left.begin_anew()
        await restored(left.world, "op-2")
        grace_s = left.world.operation(WIRE_ID).settings.reply_grace_s
        bound_s = late.kwargs["deadline_ts"] + grace_s - now_ts(left.world)
        assert bound_s <= 0.0
        assert left.actor.running == {episode("r0.0", 1)}

    simulate(main)


def test_late_retires_are_one_by_one(tmp_path: Path) -> None:
    """One failure among several instances holds the retires of the others up in nothing."""

    async def main() -> None:
        world = World(2, root=tmp_path, fenced=True, clock=LoopClock(), settle_s=0.2)
        world.actors[0].scripts["retire"] += [LOST, LOST]
        world.actors[1].scripts["retire"] += [LOST, Late(1.0, LOST)]
        with pytest.raises(Deliberate):
            await restored(world, fail=True)
        await asyncio.sleep(100.0)
        assert not any(actor.running for actor in world.actors)

    simulate(main)


@pytest.mark.parametrize("state", ["restoring", "restored", "keeping", "retiring", "discarding"])
def test_a_restore_that_was_cut_off_is_superseded_too(state: str, tmp_path: Path) -> None:
    """Wherever an old restore was cut off, its recovery stops nothing that a later one runs."""

    async def main() -> None:
        before = World(2, root=tmp_path, fenced=True, clock=LoopClock())
        before.actors[0].scripts["retire"] += [LOST] * 2
        with suppress(Deliberate):
            await restored(before, fail=state in ("retiring", "discarding"))
        await asyncio.sleep(0.1)
        history = before.journal.read(before.run, WIRE_ID)
        states = [one.state for one in states_of(history)]
        cut = history[: len(states) - states[::-1].index(state)]
        world = renewed(before, holding(cut))
        await restored(world, "op-2")
        [found] = await world.coordinator.recover(force=True)
        assert (found.operation_id, found.state) == (WIRE_ID, "discarded")
        assert world.actors[0].running == {episode("r0.0", 1)}
        assert all(call.args[1] == () for actor in world.actors for call in actor.of("retire"))

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
def test_a_recovery_beside_an_open_restore_retires_nothing_of_it(own: bool, tmp_path: Path) -> None:
    """A recovery beside a restore's body stops none of its attempts, then or later."""

    async def main() -> None:
        left = Left(tmp_path)
        await left.begin()
        world = renewed(left.world)
        async with world.coordinator.restored("op-2", world.root(), world.manifest()):
            if own:
                await world.coordinator.recover(force=True)
            else:
                await recover(world.journal, world.shards.checkpoint_handles, run=world.run)
        await asyncio.sleep(700.0)
        assert [len(actor.running) for actor in world.actors] == [1, 1]
        assert not any(actor.of("retire") for actor in world.actors)

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
