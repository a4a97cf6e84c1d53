"""Inventories that name other instances, or a rollout twice, are refused before any call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gymckpt.coordinator import GymCheckpointManifest
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import OperationOpen
from gymckpt.journal import Journal
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode, new_id

Inventory = dict[str, tuple[EnvironmentEpisode, ...]]


def manifest_of(instances: Inventory) -> GymCheckpointManifest:
    """Return a manifest with these instances."""
    empty: dict[str, tuple[Any, ...]] = dict.fromkeys(instances, ())
    named = dict.fromkeys(instances, ("agent",))
    return GymCheckpointManifest(2, "source", instances, empty, empty, named)


async def attempt(world: World, verb: str, inventory: Inventory) -> None:
    """Call a verb with an inventory, in the state in which it would be legal."""
    coordinator, name = world.coordinator, new_id()
    if verb in ("commit", "restarts"):
        await coordinator.prepare(name)
        offered = inventory if verb == "commit" else dict.fromkeys(world.ids, ())
        restarts = inventory if verb == "restarts" else {}
        try:
            await coordinator.commit(name, world.root(name), offered, restarts=restarts)
        finally:
            await coordinator.resume(name)
    elif verb == "retire":
        await coordinator.retire(name, inventory)
    elif verb == "retire_unwanted":
        assert not await coordinator.retire_unwanted(inventory)
    elif verb == "forget":
        await coordinator.forget(name, inventory)
    elif verb == "restore":
        await coordinator.restore(name, "/nowhere", manifest_of(inventory))
        await coordinator.resume(name)
    else:
        await coordinator.retire_restored(name, manifest_of(inventory))


WHOLE = ("commit", "retire", "restore", "retire_restored")
PARTIAL = ("forget", "restarts", "retire_unwanted")


def acted(world: World) -> list[str]:
    """Return the calls that do something with an inventory."""
    quiet = ("prepare", "renew", "resume")
    return [call.op for actor in world.actors for call in actor.calls if call.op not in quiet]


@pytest.mark.parametrize("verb", WHOLE)
async def test_b6_missing_and_unknown_instances(
    new_world: NewWorld, journal: Journal, verb: str
) -> None:
    """B6: a missing and an unknown instance are both named, and nothing is sent."""
    world = new_world(1, journal=journal)
    with pytest.raises(ValueError, match="live actor topology") as caught:
        await attempt(world, verb, {"other/replica-0": ()})
    assert "tools/replica-0" in str(caught.value)
    assert "other/replica-0" in str(caught.value)
    assert acted(world) == []


names = st.builds(
    lambda shard, index: f"{shard}/replica-{index}",
    st.sampled_from(["tools", "other"]),
    st.integers(0, 4),
)


@given(named=st.sets(names, max_size=6), count=st.integers(1, 4), verb=st.sampled_from(WHOLE))
def test_b6_any_other_topology(
    named: set[str], count: int, verb: str, tmp_path_factory: Any
) -> None:
    """B6: exactly the live instances are accepted, any other set is refused before sending."""
    assume(named or verb in ("commit", "retire"))  # no manifest is without instances
    root = tmp_path_factory.mktemp("topology")

    async def main() -> None:
        world = World(count, clock=LoopClock(), root=root)
        inventory: Inventory = {name: (episode(f"r-{name[-1]}-{name[0]}"),) for name in named}
        if named == set(world.ids):
            await attempt(world, verb, inventory)
            assert acted(world)
        else:
            with pytest.raises(ValueError, match="live actor topology") as caught:
                await attempt(world, verb, inventory)
            for name in named ^ set(world.ids):
                assert name in str(caught.value) or "more" in str(caught.value)
            assert acted(world) == []
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("verb", PARTIAL)
@pytest.mark.parametrize("known", [False, True])
async def test_b6_part_of_the_topology(new_world: NewWorld, verb: str, known: bool) -> None:
    """B6: forget and restarts may name some instances, and none that is unknown."""
    world = new_world(2)
    inventory: Inventory = {"tools/replica-1": (episode("r0"),)}
    if known:
        await attempt(world, verb, inventory)
        return
    with pytest.raises(ValueError, match="other/replica-7"):
        await attempt(world, verb, inventory | {"other/replica-7": ()})
    assert acted(world) == []


@pytest.mark.parametrize("verb", [*WHOLE, *PARTIAL])
async def test_b17_ten_thousand_unknown_instances(new_world: NewWorld, verb: str) -> None:
    """B17: an error about thousands of instances is bounded and counts them."""
    world = new_world(1)
    unknown: Inventory = {f"other/replica-{index}": () for index in range(10_000)}
    with pytest.raises(ValueError, match="topology") as caught:
        await attempt(world, verb, unknown)
    assert len(str(caught.value)) < 20_000
    assert "9995 more" in str(caught.value)


CLASHES: dict[str, tuple[Inventory, Inventory]] = {
    "twice in an instance": (
        {"tools/replica-0": (episode("r0"), episode("r0")), "tools/replica-1": ()},
        {},
    ),
    "two attempts in an instance": (
        {"tools/replica-0": (episode("r0"), episode("r0", 1)), "tools/replica-1": ()},
        {},
    ),
    "in two instances": (
        {"tools/replica-0": (episode("r0"),), "tools/replica-1": (episode("r0", 3),)},
        {},
    ),
    "continued and restarted": (
        {"tools/replica-0": (episode("r0"),), "tools/replica-1": ()},
        {"tools/replica-0": (episode("r0"),)},
    ),
    "continued here, restarted there": (
        {"tools/replica-0": (episode("r0"),), "tools/replica-1": ()},
        {"tools/replica-1": (episode("r0", 2),)},
    ),
    "restarted twice": (
        {"tools/replica-0": (), "tools/replica-1": ()},
        {"tools/replica-0": (episode("r0"),), "tools/replica-1": (episode("r0"),)},
    ),
}


@pytest.mark.parametrize("clash", sorted(CLASHES))
async def test_b26_b44_a_rollout_is_named_once(new_world: NewWorld, clash: str) -> None:
    """B26, B44: a rollout in two places of one commit is refused before anything is sent."""
    world = new_world(2)
    offered, restarts = CLASHES[clash]
    async with world.coordinator.prepared("once"):
        with pytest.raises(ValueError, match="r0"):
            await world.coordinator.commit("once", world.root(), offered, restarts=restarts)
        assert acted(world) == []
        await world.coordinator.commit("once", world.root(), world.offer(), restarts={})
    assert world.operation("once").state == "resumed"


async def test_b27_forget_names_each_rollout_once(new_world: NewWorld, journal: Journal) -> None:
    """B27: forget tells an instance each rollout once, and tells nothing to the others."""
    world = new_world(2, journal=journal)
    first, second = world.ids
    r0, r0_1, r1 = episode("r0"), episode("r0", 1), episode("r1")
    await world.coordinator.forget("f-1", {first: (r0, r0_1, r1, r0), second: ()})
    assert [call.args for call in world.actors[0].calls] == [("f-1", ("r0", "r1"))]
    assert world.actors[1].calls == []
    await world.coordinator.forget("f-2", {first: (), second: ()})
    await world.coordinator.forget("f-3", {})
    assert len(world.actors[0].calls) == 1
    async with world.coordinator.prepared("open"):
        for inventory in ({first: (r0,)}, {first: ()}, {}):
            if inventory.get(first):
                with pytest.raises(OperationOpen):
                    await world.coordinator.forget(new_id(), inventory)
    async with world.coordinator.restored("restore", "/nowhere", world.manifest()):
        with pytest.raises(OperationOpen):
            await world.coordinator.forget("restore", {first: (r0,)})


async def test_retire_calls_every_instance(new_world: NewWorld) -> None:
    """Retire goes to every instance, also with nothing to stop, in the order that was given."""
    world = new_world(3)
    named = (episode("b", 2), episode("a"), episode("b", 1))
    inventory = dict.fromkeys(world.ids, ()) | {world.ids[2]: named}
    await world.coordinator.retire("r-1", inventory)
    assert [actor.of("retire")[0].args for actor in world.actors] == [
        ("r-1", ()),
        ("r-1", ()),
        ("r-1", named),
    ]


def test_verbs_are_those_of_the_document() -> None:
    """The inventories of these tests go to every verb that takes one."""
    taken = {
        name
        for name, verb in inspect.getmembers(World(1).coordinator, inspect.iscoroutinefunction)
        if {"episodes_by_instance", "manifest"} & set(inspect.signature(verb).parameters)
    }
    assert taken == {
        "commit",
        "retire",
        "retire_unwanted",
        "forget",
        "restore",
        "retire_restored",
    }


RESERVED = ("r-a1", "r-a10-a2", "a-a9", "r.x-a123")
ORDINARY = ("r-a0", "r-a01", "r-a", "ra1", "r-a1x", "r-a1.b", "r-A1", "r_a1")


@pytest.mark.parametrize("attempt", [True, -1, 1.0, "1", None])
def test_b44_no_attempt(attempt: Any) -> None:
    """B44: what is no count is no attempt."""
    with pytest.raises((TypeError, ValueError)):
        EnvironmentEpisode("r0", attempt)


async def test_b44_keys_are_one_to_one(new_world: NewWorld) -> None:
    """B44: reserved names are refused, ordinary ones are saved and restored under their keys."""
    for name in RESERVED:
        with pytest.raises(ValueError, match="reserved"):
            episode(name)
    world = new_world(1)
    named = tuple(episode(name, number) for number, name in enumerate(ORDINARY))
    keys = [found.capture_key for found in (*named, *(e.next_attempt() for e in named))]
    assert len(set(keys)) == len(keys)
    assert [EnvironmentEpisode.from_capture_key(found.capture_key) for found in named] == [*named]
    async with world.coordinator.prepared("b44"):
        result = await world.coordinator.commit(
            "b44", world.root(), {world.ids[0]: named}, restarts={}
        )
    async with world.coordinator.restored("restore", world.root(), result.manifest):
        assert world.actors[0].of("restore")[0].args[2] == named
