"""Arguments of the wrong type or value: an error with the facts, nothing sent, nothing recorded."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import ShardSet
from gymckpt.core.settings import RetryPolicy
from gymckpt.episodes import instance_directory
from gymckpt.errors import IllegalTransition, OperationIdUsed
from gymckpt.journal import Journal
from gymckpt.manifest import load_gym_checkpoint_manifest
from tests.fakes import FakeActor, FakeShardSet
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode, new_id

DURATIONS = (
    "control_timeout_s",
    "prepare_timeout_s",
    "lease_grace_s",
    "settle_s",
    "sweep_interval_s",
    "journal_timeout_s",
)
NO_DURATIONS: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.001,
    True,
    False,
    "5",
    b"5",
    None,
    [5.0],
    {},
    1j,
    decimal.Decimal(5),
    10**400,
    object(),
]


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", NO_DURATIONS, ids=lambda value: repr(value)[:12])
async def test_no_duration(name: str, value: Any) -> None:
    """A timeout that is no positive finite number is refused, and the error names it."""
    world = World(1)
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        world.new_coordinator(**{name: value})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", DURATIONS)
async def test_zero_is_a_pause_and_no_timeout(name: str) -> None:
    """Zero is accepted where it means no waiting at all, and nowhere else."""
    world = World(1)
    if name == "settle_s":
        world.new_coordinator(settle_s=0)
        return
    with pytest.raises(ValueError, match=name):
        world.new_coordinator(**{name: 0})


async def test_control_timeout_is_a_float() -> None:
    """The property returns what was given, as a float."""
    timeout_s = World(1).new_coordinator(control_timeout_s=7).control_timeout_s
    assert timeout_s == 7.0
    assert type(timeout_s) is float


@given(
    control_s=st.floats(min_value=1e-3, max_value=1e9),
    prepare_s=st.floats(min_value=1e-3, max_value=1e9),
)
def test_any_duration(control_s: float, prepare_s: float, tmp_path_factory: Any) -> None:
    """With any timeouts from a millisecond to decades a checkpoint of good instances succeeds."""
    root = tmp_path_factory.mktemp("durations")

    async def main() -> None:
        settings = {"control_timeout_s": control_s, "prepare_timeout_s": prepare_s}
        world = World(2, clock=LoopClock(), root=root, **settings)
        await world.operate("checkpoint", name := new_id())
        assert world.operation(name).state == "resumed"
        await world.examine()

    simulate(main)


@pytest.mark.parametrize(
    "retry",
    [
        5,
        "resume",
        ["resume"],
        {"resume": 2},
        {"resume": None},
        {"resume": {"attempts": 2, "pause_s": 1}},
        {3: RetryPolicy(attempts=1, pause_s=0)},
        {"resum": RetryPolicy(attempts=1, pause_s=0)},
    ],
)
async def test_no_retry_policy(retry: Any) -> None:
    """What is no map of calls to policies is refused when the coordinator is made."""
    with pytest.raises((TypeError, ValueError)):
        World(1).new_coordinator(retry=retry)


@pytest.mark.parametrize(
    ("attempts", "pause_s"), [(0, 1), (-1, 1), (1.5, 1), (True, 1), (1, -1), (1, math.nan)]
)
def test_no_policy(attempts: Any, pause_s: Any) -> None:
    """A policy of no attempt, half an attempt or a pause that is none is refused."""
    with pytest.raises((TypeError, ValueError)):
        RetryPolicy(attempts=attempts, pause_s=pause_s)


class Handles:
    """A shard set of whatever a test says."""

    def __init__(self, handles: Any) -> None:
        self.checkpoint_handles = handles


@pytest.mark.parametrize(
    "shard_set",
    [
        None,
        object(),
        {},
        [],
        Handles({}),
        Handles(None),
        Handles(5),
        Handles({5: FakeActor()}),
        Handles({"": FakeActor()}),
        Handles({"tools": FakeActor()}),
        Handles({"../replica-0": FakeActor()}),
        Handles({"tools/replica-": FakeActor()}),
        Handles({"tools/replica--1": FakeActor()}),
        Handles({"tools/replica-01": FakeActor()}),
        Handles({"tools/replica-0\n": FakeActor()}),
        Handles({"a/b/replica-0": FakeActor()}),
        Handles({"a\\b/replica-0": FakeActor()}),
        Handles({"tools/replica-0": FakeActor(), "./replica-0": FakeActor()}),
    ],
)
async def test_no_shard_set(shard_set: Any) -> None:
    """B46: a shard set without instances, or with an unsafe instance id, is refused."""
    world = World(1)
    world.shards = shard_set
    with pytest.raises((TypeError, ValueError)):
        world.new_coordinator()


@pytest.mark.parametrize("shard", ["", ".", "..", "a/b", "a\\b", "a\0", "-a", "a b", "ä", "a\n"])
def test_b46_unsafe_shard(shard: str, tmp_path: Path) -> None:
    """B46: a shard is one plain path component."""
    with pytest.raises(ValueError, match=r"shard|instance id"):
        ShardSet(handles={shard: [FakeActor()]})
    with pytest.raises(ValueError, match=r"shard|instance id"):
        instance_directory(tmp_path, f"{shard}/replica-0")


def test_b46_directories_never_meet(tmp_path: Path) -> None:
    """B46: two instances never share a directory, and one always has the same, below the root."""
    shards = ShardSet(handles={"tools": [FakeActor()] * 3, "tools.b": [FakeActor()] * 2})
    found = {name: instance_directory(tmp_path, name) for name in shards.checkpoint_handles}
    assert len(set(found.values())) == 5
    assert found == {name: instance_directory(tmp_path, name) for name in found}
    assert {path.parent.parent for path in found.values()} == {tmp_path / "gym-instances"}


IDS: list[Any] = [
    "",
    ".hidden",
    "-x",
    "a/b",
    "../x",
    "a b",
    "a\n",
    "a\0",
    "ä",
    "x" * 129,
    "\ud800",
    None,
    5,
    True,
    b"bytes",
    ["a"],
    Path("a"),
]
VERBS = (
    "prepare",
    "renew",
    "commit",
    "retire",
    "forget",
    "retire_restored",
    "restore",
    "resume",
    "prepared",
    "restored",
)


async def call(world: World, verb: str, wire_id: Any, **other: Any) -> None:
    """Call a verb with an id, and everything else in order unless it is given."""
    coordinator: Any = world.coordinator
    root, manifest = other.get("root", world.root()), other.get("manifest", world.manifest())
    inventory = other.get("inventory", world.offer())
    if verb == "commit":
        await coordinator.commit(wire_id, root, inventory, restarts=other.get("restarts", {}))
    elif verb in ("retire", "forget"):
        await getattr(coordinator, verb)(wire_id, inventory)
    elif verb == "retire_restored":
        await coordinator.retire_restored(wire_id, manifest)
    elif verb == "restore":
        await coordinator.restore(wire_id, root, manifest)
    elif verb == "prepared":
        async with coordinator.prepared(wire_id):
            pass
    elif verb == "restored":
        async with coordinator.restored(wire_id, root, manifest):
            pass
    else:
        await getattr(coordinator, verb)(wire_id)


def entries(world: World) -> int:
    """Return how many entries the journal holds of this world's run."""
    return sum(row.last_seq for row in world.journal.operations(world.run))


@pytest.mark.parametrize("verb", VERBS)
async def test_unsafe_ids(new_world: NewWorld, journal: Journal, verb: str) -> None:
    """An id that is unsafe or no string is refused by every verb; nothing is sent or recorded."""
    world = new_world(1, journal=journal)
    for wire_id in IDS:
        with pytest.raises((TypeError, ValueError)) as caught:
            await call(world, verb, wire_id)
        assert len(str(caught.value)) < 1_000
    assert world.story() == []
    assert entries(world) == 0


@pytest.mark.parametrize("verb", ["prepare", "restore", "retire", "forget"])
async def test_ids_are_used_once(new_world: NewWorld, journal: Journal, verb: str) -> None:
    """B10: an id that any operation of the run has used is refused before anything is sent."""
    world = new_world(1, journal=journal)
    for used, kind in [("a", "checkpoint"), ("b", "restore"), ("c", "forget")]:
        await world.operate(kind, used)
    if verb != "retire":
        await world.operate("retire", "d")
    before = world.story()
    for used in ("a", "c") if verb == "retire" else ("a", "b", "c", "d"):
        with pytest.raises(OperationIdUsed, match=used):
            await call(world, verb, used)
        with pytest.raises(OperationIdUsed):  # also by another coordinator of the run
            world.let_holder_go()
            world._coordinator = world.new_coordinator()
            await call(world, verb, used)
    assert world.story() == before


@pytest.mark.parametrize("verb", ["renew", "commit"])
async def test_verbs_at_the_wrong_time(new_world: NewWorld, verb: str) -> None:
    """S8: renew and commit of an id that is not open are refused, and change nothing."""
    world = new_world(1)
    with pytest.raises(IllegalTransition, match="not open"):
        await call(world, verb, "never")
    assert world.story() == []
    assert entries(world) == 0
    async with world.committed("once", world.root()):
        if verb == "commit":
            before = entries(world)
            with pytest.raises(IllegalTransition, match="commit"):
                await call(world, verb, "once", root=world.root("other"))
            assert entries(world) == before
    with pytest.raises(IllegalTransition):
        await call(world, verb, "once")


NO_INVENTORIES: list[Any] = [
    None,
    5,
    "tools/replica-0",
    [("tools/replica-0", ())],
    {"tools/replica-0": None},
    {"tools/replica-0": "r0"},
    {"tools/replica-0": b"r0"},
    {"tools/replica-0": 5},
    {"tools/replica-0": ("r0",)},
    {"tools/replica-0": (None,)},
    {"tools/replica-0": ({"rollout_id": "r0", "attempt": 0},)},
    {"tools/replica-0": (("r0", 0),)},
    {"tools/replica-0": {episode("r0"): 1}},
    {5: ()},
    {None: ()},
    {("a",): ()},
]


@pytest.mark.parametrize("verb", ["commit", "restarts", "retire", "forget"])
async def test_no_inventory(new_world: NewWorld, verb: str) -> None:
    """What is no map of instances to episodes is refused, whatever it is; nothing is sent."""
    world = new_world(1)
    if verb in ("commit", "restarts"):
        await world.coordinator.prepare("open")
    before, recorded = world.story(), entries(world)
    for raw in NO_INVENTORIES:
        given_as = "restarts" if verb == "restarts" else "inventory"
        with pytest.raises((TypeError, ValueError)) as caught:
            await call(world, verb.replace("restarts", "commit"), "open", **{given_as: raw})
        assert len(str(caught.value)) < 2_000
    assert (world.story(), entries(world)) == (before, recorded)
    if verb in ("commit", "restarts"):
        await world.coordinator.resume("open")


@pytest.mark.parametrize("verb", ["restore", "restored", "retire_restored"])
@pytest.mark.parametrize("manifest", [None, {}, "manifest", object()])
async def test_no_manifest(new_world: NewWorld, verb: str, manifest: Any) -> None:
    """What is no manifest is a TypeError before anything is sent or recorded."""
    world = new_world(1)
    with pytest.raises(TypeError, match="GymCheckpointManifest"):
        await call(world, verb, "id", manifest=manifest)
    assert (world.story(), entries(world)) == ([], 0)


@pytest.mark.parametrize("root", [None, 5, "", b"bytes", True, ["a"], "a\0b", "a\ud800"])
async def test_no_directory(new_world: NewWorld, root: Any) -> None:
    """What is no path, or none that a file system can hold, is refused by commit and restore."""
    world = new_world(1)
    with pytest.raises((TypeError, ValueError)):
        await call(world, "restore", "id", root=root)
    assert (world.story(), entries(world)) == ([], 0)
    async with world.coordinator.prepared("open"):
        recorded = entries(world)
        with pytest.raises((TypeError, ValueError)):
            await call(world, "commit", "open", root=root)
        assert entries(world) == recorded
    assert world.actors[0].ops == ["prepare", "resume"]


@pytest.mark.parametrize(
    "root", ["s3://bucket/x", Path("gs://bucket/x"), "file:///x", "snap ", "~no-such-user/x", "/"]
)
async def test_unusable_root(new_world: NewWorld, root: Any) -> None:
    """A URL or unsafe root is refused by commit and restore before anything is sent or recorded."""
    world = new_world(2)
    for verb in ("restore", "restored"):
        with pytest.raises(ValueError, match="a checkpoint's root"):
            await call(world, verb, "id", root=root)
    assert (world.story(), entries(world)) == ([], 0)
    async with world.coordinator.prepared("open"):
        with pytest.raises(ValueError, match="a checkpoint's root"):
            await call(world, "commit", "open", root=root)
        await call(world, "commit", "open")  # a better root may follow
    assert world.actors[0].ops == ["prepare", "commit", "resume"]


class Snapshot:
    """A path of another library."""

    def __fspath__(self) -> str:
        return "snap"


@pytest.mark.parametrize("root", ["snap", "./snap", Path("snap"), Snapshot(), "~/snap"])
async def test_relative_root(
    new_world: NewWorld, journal: Journal, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative root or `~` is one absolute path on the wire, in the journal and on the disk."""
    world = new_world(2, journal=journal)
    monkeypatch.chdir(world.root("."))
    monkeypatch.setenv("HOME", str(world.root(".")))
    async with world.coordinator.prepared("saved"):
        await call(world, "commit", "saved", root=root)
        monkeypatch.chdir("/")
        manifest = load_gym_checkpoint_manifest(world.root("snap"))
    monkeypatch.chdir(world.root("."))
    await call(world, "restored", "again", root=root, manifest=manifest)
    expected = str(world.root("snap"))
    for actor in world.actors:
        assert [one.args[1] for one in actor.of("commit") + actor.of("restore")] == [expected] * 2
        assert {type(one.args[1]) for one in actor.of("commit") + actor.of("restore")} == {str}
    assert world.operation("saved").root == expected
    assert world.journal.read(world.run, "again")[0].facts["root"] == expected


async def test_mappings_of_any_kind(new_world: NewWorld) -> None:
    """An inventory may be any mapping of any collections of episodes."""

    class Own(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return iter([episode("r0"), episode("r1")])

        def __iter__(self) -> Any:
            return iter(["tools/replica-0"])

        def __len__(self) -> int:
            return 1

    world = new_world(1)
    async with world.coordinator.prepared("own"):
        result = await world.coordinator.commit("own", str(world.root()), Own(), restarts={})
    assert result.manifest.instances == {"tools/replica-0": (episode("r0"), episode("r1"))}


async def test_handles_are_read_once(new_world: NewWorld) -> None:
    """A shard set that changes afterwards does not change which instances are driven."""
    world = new_world(2)
    coordinator = world.coordinator
    world.shards.checkpoint_handles = FakeShardSet(FakeActor(), shard="other").checkpoint_handles
    assert coordinator.instance_ids == {"tools/replica-0", "tools/replica-1"}
    world.shards.checkpoint_handles = FakeShardSet(*world.actors).checkpoint_handles


async def test_restart_only_servers(new_world: NewWorld) -> None:
    """The question about restart-only servers is bounded, and answers are checked."""
    world = new_world(3)
    servers = await world.coordinator.restart_only_servers()
    assert list(servers.items()) == [(instance, ["tools"]) for instance in world.ids]
    assert entries(world) == 0
