"""S2: what the manifest names was seen from the controller, where instances say that they wrote."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import visibility
from gymckpt.coordinator import GYM_CHECKPOINT_MANIFEST_FILENAME as MANIFEST
from gymckpt.coordinator import is_transient_gym_checkpoint_failure
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import OperationDiscarded, RecordsNotVisible
from gymckpt.journal import Journal
from gymckpt.participant.audit import audit_snapshot
from gymckpt.participant.store import RecordsStore
from gymckpt.replies import GymCheckpointCommitSummary
from tests.fakes import default_commit
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World, new_id

SERVERS = {"agent": "agent", "environment": "environment"}
QUESTION = "not visible from the controller: is the root shared?"


def write(root: Path, instance: str, wire_id: str, episodes: Iterable[EnvironmentEpisode]) -> None:
    """Write what the servers of an instance write."""
    for kind, server in SERVERS.items():
        records = [episode.to_dict() for episode in episodes] if kind == "environment" else []
        store = RecordsStore(root, instance, kind, server)  # type: ignore[arg-type]
        store.write(wire_id, records, stop=lambda: False)


def let_write(
    world: World,
    number: int,
    *,
    claims: bool = True,
    below: Callable[[Path], Path | None] = lambda root: root,
    delay_s: float = 0.0,
    exports: bool = True,
) -> None:
    """
    Let an instance write like a deployment when it commits.

    Args:
        world: Where it is.
        number: Which one.
        claims: Whether it says that it writes below the root.
        below: The root that its host has under that path; None where it writes no file.
        delay_s: How long after its answer the controller's host shows the files.
        exports: Whether it exports what it was offered.
    """
    instance, actor = world.ids[number], world.actors[number]

    def commit(wire_id: str, root: str, episodes: Any, **_: Any) -> GymCheckpointCommitSummary:
        episodes = tuple(episodes) if exports else ()
        there = below(Path(root))
        if there is not None:
            asyncio.get_running_loop().call_later(
                delay_s, write, there, instance, wire_id, episodes
            )
        return attrs.evolve(default_commit(episodes), written_below_root=claims)

    actor.always["commit"] = commit


def elsewhere(root: Path) -> Path:
    """Return the directory that another host has under the root's path."""
    return root.parent / "another-host" / root.name


def nowhere(_root: Path) -> None:
    """Write no file."""


async def saved(world: World, wire_id: str) -> Path:
    """Take one checkpoint and return its root."""
    await world.operate("checkpoint", wire_id)
    return world.root(wire_id)


# --- instances that say that they write below the root -------------------------------------------


@pytest.mark.parametrize("written", ["auto", "require"])
async def test_shared_root(new_world: NewWorld, journal: Journal, written: str) -> None:
    """Where every instance's files are there, the checkpoint stands and is found whole."""
    world = new_world(3, journal=journal, written=written)
    for number in range(3):
        let_write(world, number, exports=number != 2)
    root = await saved(world, "shared")
    assert world.operation("shared").state == "resumed"
    assert not audit_snapshot(root).damaged


@pytest.mark.parametrize("written", ["auto", "require"])
@pytest.mark.parametrize("lost", [{0}, {1, 2}, {0, 1, 2}])
async def test_root_that_a_host_does_not_share(
    new_world: NewWorld, journal: Journal, written: str, lost: set[int]
) -> None:
    """Without the files of an instance that says it wrote them there is no manifest."""
    world = new_world(3, journal=journal, written=written, control_timeout_s=0.4)
    for number in range(3):
        let_write(world, number, below=elsewhere if number in lost else lambda root: root)
    with pytest.raises(RecordsNotVisible, match=r"is the root shared\?") as caught:
        await saved(world, "unshared")
    error = caught.value
    assert QUESTION in str(error)
    assert error.servers == {world.ids[number]: tuple(SERVERS) for number in sorted(lost)}
    assert (error.total, error.older, error.root) == (3, 0, str(world.root("unshared")))
    assert not is_transient_gym_checkpoint_failure(error)
    assert not (world.root("unshared") / MANIFEST).exists()
    assert world.operation("unshared").state == "discarded"
    assert all(actor.ops == ["prepare", "commit", "resume"] for actor in world.actors)


async def test_many_that_are_missing(new_world: NewWorld) -> None:
    """The error counts all that are missing and names five; its fields are complete."""
    world = new_world(40)
    for number in range(40):
        let_write(world, number, below=elsewhere)
    with pytest.raises(RecordsNotVisible) as caught:
        await saved(world, "many")
    assert len(caught.value.servers) == 40
    assert "what 40 of 40 instance(s)" in str(caught.value)
    assert str(caught.value).count("tools/replica-") == 5
    assert "35 more" in str(caught.value)
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize("written", ["auto", "require"])
@pytest.mark.parametrize("claims", [True, False])
async def test_files_of_an_older_checkpoint(
    new_world: NewWorld, written: str, claims: bool
) -> None:
    """What another checkpoint has left in the directory is not taken for what was written now."""
    world = new_world(2, written=written, control_timeout_s=0.4)
    write(world.root("now"), world.ids[1], "before", ())
    let_write(world, 0, claims=claims)
    let_write(world, 1, claims=claims, below=elsewhere)
    with pytest.raises(RecordsNotVisible, match="1 of them have only files of another") as caught:
        await saved(world, "now")
    assert set(caught.value.servers) == {world.ids[1]}
    assert caught.value.older == 1
    assert not (world.root("now") / MANIFEST).exists()


async def test_an_instance_that_wrote_nothing_but_says_so(new_world: NewWorld) -> None:
    """Also of an instance without episodes a restore reads the servers: their files are needed."""
    world = new_world(2, control_timeout_s=0.4)
    let_write(world, 0)
    let_write(world, 1, exports=False, below=nowhere)
    with pytest.raises(RecordsNotVisible):
        await saved(world, "empty")


# --- when --------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.1, 1.0])
def test_files_that_are_shown_late(tmp_path: Path, late: float) -> None:
    """Where some instances are seen, others are looked for again; leases are renewed meanwhile."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=3.0)
        let_write(world, 0)
        let_write(world, 1, delay_s=late)
        renewed: list[int] = []
        took = asyncio.get_running_loop().time()
        async with world.committed("late", world.root("late")):
            took = asyncio.get_running_loop().time() - took
            renewed += [len(actor.of("renew")) for actor in world.actors]
        assert took < 3.0
        assert min(renewed) >= (1 if late < 1 else 2)
        assert not audit_snapshot(world.root("late")).damaged
        await world.examine()

    simulate(main)


def test_nothing_is_waited_for_where_nobody_is_seen(tmp_path: Path) -> None:
    """A root that nobody shares fails at once; one that is shared in part fails in bounded time."""

    async def main() -> None:
        for lost, most_s in (({0, 1}, 0.0), ({1}, sum(visibility.PAUSES_S))):
            world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=4.0)
            for number in range(2):
                let_write(world, number, below=elsewhere if number in lost else lambda root: root)
            wire_id, began_s = new_id(), asyncio.get_running_loop().time()
            with pytest.raises(RecordsNotVisible):
                await saved(world, wire_id)
            assert asyncio.get_running_loop().time() - began_s <= most_s + 0.01
            await world.examine()

    simulate(main)


@pytest.mark.parametrize("control_timeout_s", [0.02, 0.1, 0.5])
def test_no_look_begins_after_half_of_the_budget(
    tmp_path: Path, control_timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it looks, the error says what is missing, not that time has run out."""

    async def main() -> None:
        loop = running_loop()
        monkeypatch.setattr(visibility.time, "monotonic", loop.time)
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=control_timeout_s)
        let_write(world, 0)
        let_write(world, 1, below=elsewhere)
        with pytest.raises(RecordsNotVisible):
            await saved(world, "short")
        assert loop.time() <= control_timeout_s / 2 + 0.01
        await world.examine()

    simulate(main)


def test_a_file_system_that_hangs_while_it_is_looked_at(tmp_path: Path) -> None:
    """Looking is bounded by the budget of sealing, and no manifest appears after it."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path)
        for number in range(2):
            let_write(world, number)
        running_loop().job_s = lambda name: 60.0 if name == "gymckpt-sealed" else 0.0
        with pytest.raises(TimeoutError):
            await saved(world, "hangs")
        await asyncio.sleep(120.0)
        assert not (world.root("hangs") / MANIFEST).exists()
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("moment_s", [0.01, 0.1, 0.5, 1.2])
@pytest.mark.parametrize("how", ["cancel", "discard"])
def test_given_up_between_two_looks(tmp_path: Path, how: str, moment_s: float) -> None:
    """A checkpoint that is given up while it is looked for never gets a manifest."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=10.0)
        let_write(world, 0)
        let_write(world, 1, delay_s=1.4)
        task = asyncio.ensure_future(saved(world, "given-up"))
        await asyncio.sleep(moment_s)
        assert world.operation("given-up").state == "sealing"
        if how == "cancel":
            task.cancel()
        else:
            running = world.coordinator._operations.open
            assert running is not None
            running.scheduler.post("discard", {"reason": "a test"})
        with pytest.raises((asyncio.CancelledError, OperationDiscarded)):
            await task
        await asyncio.sleep(30.0)
        assert not (world.root("given-up") / MANIFEST).exists()
        assert world.operation("given-up").state == "discarded"
        await world.examine()

    simulate(main)


# --- instances that do not say where they write --------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seen", "outcome"),
    [
        ("auto", (True, True), "quiet"),
        ("auto", (False, False), "warned"),
        ("auto", (True, False), "failed"),
        ("require", (True, True), "quiet"),
        ("require", (False, False), "failed"),
        ("require", (True, False), "failed"),
        ("ignore", (True, True), "quiet"),
        ("ignore", (False, False), "quiet"),
        ("ignore", (True, False), "quiet"),
    ],
)
async def test_instances_that_do_not_say_so(
    new_world: NewWorld,
    caplog: pytest.LogCaptureFixture,
    written: str,
    seen: tuple[bool, bool],
    outcome: str,
) -> None:
    """Without the field, `auto` takes all or none and warns once, `require` takes all only."""
    world = new_world(2, written=written, control_timeout_s=0.4)
    for number, is_seen in enumerate(seen):
        let_write(world, number, claims=False, below=(lambda root: root) if is_seen else nowhere)
    with caplog.at_level(logging.WARNING, logger="gymckpt"):
        for wire_id in ("first", "second"):
            if outcome != "failed":
                await saved(world, wire_id)
                continue
            with pytest.raises(RecordsNotVisible, match="written='ignore'"):
                await saved(world, wire_id)
    told = [one.getMessage() for one in caplog.records if "is visible below" in one.getMessage()]
    assert len(told) == (1 if outcome == "warned" else 0)


async def test_ignoring_what_instances_say(new_world: NewWorld) -> None:
    """`ignore` does not look, whatever instances say."""
    world = new_world(2, written="ignore")
    for number in range(2):
        let_write(world, number, below=elsewhere)
    root = await saved(world, "ignored")
    assert (root / MANIFEST).exists()


@pytest.mark.parametrize("written", ["auto", "require"])
async def test_nothing_exported_needs_no_directory(new_world: NewWorld, written: str) -> None:
    """An instance that saved nothing, and does not say that it writes, needs no directory."""
    world = new_world(2, written=written)
    let_write(world, 0, claims=False)
    let_write(world, 1, claims=False, exports=False, below=nowhere)
    assert (await saved(world, "idle") / MANIFEST).exists()


async def test_a_backend_with_files_of_its_own(new_world: NewWorld) -> None:
    """Of a backend that writes in another form, its directory is all that is asked for."""
    world = new_world(2, written="require")
    for number, instance in enumerate(world.ids):
        let_write(world, number, claims=False, below=nowhere)
        own = world.root("own") / "gym-instances" / instance
        own.mkdir(parents=True)
        (own / "state.bin").write_bytes(b"state")
    assert (await saved(world, "own") / MANIFEST).exists()


@pytest.mark.parametrize(("named", "stands"), [("own", True), ("another", False), ("", False)])
async def test_a_backend_that_says_so_in_a_form_of_its_own(
    new_world: NewWorld, named: str, stands: bool
) -> None:
    """A `manifest.json` in the instance's directory counts if it names this checkpoint."""
    world = new_world(2, control_timeout_s=0.4)
    for number, instance in enumerate(world.ids):
        let_write(world, number, below=nowhere)
        own = world.root("own") / "gym-instances" / instance
        own.mkdir(parents=True)
        (own / "manifest.json").write_text(f'{{"checkpoint_id": "{named}", "files": 3}}')
    if stands:
        assert (await saved(world, "own") / MANIFEST).exists()
        return
    with pytest.raises(RecordsNotVisible, match="2 of them have only files of another"):
        await saved(world, "own")


@pytest.mark.parametrize("written", ["Auto", "", "yes", None, True, 1, ["auto"], b"auto", object()])
def test_no_rule(written: Any) -> None:
    """A rule that is none of the three is refused when the coordinator is made."""
    with pytest.raises(ValueError, match="'auto', 'require' or 'ignore'"):
        World(1).new_coordinator(written=written)


# --- the whole kind ------------------------------------------------------------------------------

INSTANCE = st.fixed_dictionaries(
    {
        "claims": st.booleans(),
        "exports": st.booleans(),
        "place": st.sampled_from(["shared", "elsewhere", "nowhere"]),
        "older": st.booleans(),
    }
)


def expected_missing(written: str, instances: list[dict[str, Any]]) -> set[int]:
    """Return what must be missed, told once more in as few words as there are."""
    seen = {number for number, one in enumerate(instances) if one["place"] == "shared"}
    claiming = {number for number, one in enumerate(instances) if one["claims"]}
    silent = {number for number, one in enumerate(instances) if one["exports"]} - claiming
    if written == "ignore":
        return set()
    if written == "auto" and not silent & seen:
        silent = set()
    return (claiming | silent) - seen


@given(
    written=st.sampled_from(["auto", "require", "ignore"]),
    instances=st.lists(INSTANCE, min_size=1, max_size=5),
)
def test_any_instances(
    written: str, instances: list[dict[str, Any]], tmp_path_factory: Any
) -> None:
    """S2: the manifest stands exactly if every instance that must be seen is seen."""
    root: Path = tmp_path_factory.mktemp("any")
    places = {"shared": lambda root: root, "elsewhere": elsewhere, "nowhere": nowhere}

    async def main() -> None:
        world = World(len(instances), clock=LoopClock(), root=root, written=written)
        for number, one in enumerate(instances):
            let_write(
                world,
                number,
                claims=one["claims"],
                exports=one["exports"],
                below=places[one["place"]],
            )
            if one["older"] and one["place"] != "shared":
                write(world.root("any"), world.ids[number], "before", ())
        missing = {world.ids[number] for number in expected_missing(written, instances)}
        try:
            await saved(world, "any")
        except RecordsNotVisible as error:
            assert set(error.servers) == missing
        else:
            assert not missing
        assert (world.root("any") / MANIFEST).exists() == (not missing)
        await world.examine()

    simulate(main)


# --- the cost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 900])
def test_one_listing_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """However many instances there are, a shard is listed once, and each has one file read."""
    instances = [f"{shard}/replica-{number}" for shard in ("a", "b") for number in range(count)]
    for instance in instances:
        directory = tmp_path / "gym-instances" / instance / "gym" / "environment" / "environment"
        directory.mkdir(parents=True)
        (directory / "manifest.json").write_text('{"checkpoint_id": "c"}')
    listed: list[str] = []
    opened: list[str] = []
    listdir, open_ = os.listdir, os.open

    def counted_listdir(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    def counted_open(path: str, flags: int) -> int:
        opened.append(path)
        return open_(path, flags)

    monkeypatch.setattr(visibility.os, "listdir", counted_listdir)
    monkeypatch.setattr(visibility.os, "open", counted_open)
    summary = GymCheckpointCommitSummary((), (), ("environment",), {}, written_below_root=True)
    rule = visibility.Visibility("auto")
    assert rule.look(str(tmp_path), "c", dict.fromkeys(instances, summary)).once() is None
    monkeypatch.undo()
    shards = [path for path in listed if not path.endswith("gym")]
    assert sorted(shards) == [str(tmp_path / "gym-instances" / shard) for shard in ("a", "b")]
    assert len(listed) - len(shards) <= visibility.READERS_MAX  # the first learns the kinds
    assert sorted(opened) == sorted(set(opened))
    assert len(opened) == len(instances)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"{"),
    "a list": lambda path: path.write_bytes(b"[]"),
    "without an id": lambda path: path.write_bytes(b"{}"),
    "an id that is a number": lambda path: path.write_bytes(b'{"checkpoint_id": 1}'),
    "a key twice": lambda path: path.write_bytes(b'{"checkpoint_id": "c", "checkpoint_id": "c"}'),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")),
    "huge": lambda path: path.write_bytes(b" " * 70_000 + b'{"checkpoint_id": "c"}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_manifest_is_not_seen(tmp_path: Path, damage: str) -> None:
    """Whatever stands in the place of an instance's manifest, nothing but the real one counts."""
    instance, server = "tools/replica-0", "environment"
    store = RecordsStore(tmp_path, instance, "environment", server)
    store.write("c", [], stop=lambda: False)
    summary = GymCheckpointCommitSummary((), (), (server,), {}, written_below_root=True)
    look = visibility.Visibility("auto").look(str(tmp_path), "c", {instance: summary})
    DAMAGES[damage](store.directory / "manifest.json")
    with pytest.raises(RecordsNotVisible):
        look.once()


@pytest.mark.parametrize("name", ["..", ".", "../../x", "a/b", "a\0b", "ä", "x" * 300])
def test_servers_of_any_name(tmp_path: Path, name: str) -> None:
    """A server's name never leads out of its instance's directory, and never raises."""
    (tmp_path / "gym-instances/tools/replica-0/gym/environment").mkdir(parents=True)
    summary = GymCheckpointCommitSummary((), (), (name,), {}, written_below_root=True)
    look = visibility.Visibility("auto").look(str(tmp_path), "c", {"tools/replica-0": summary})
    with pytest.raises(RecordsNotVisible):
        look.once()


def test_a_summary_without_the_field(tmp_path: Path) -> None:
    """A summary that another release has pickled, without the field, is one that does not say."""
    summary = GymCheckpointCommitSummary((), (), ("environment",), {})
    object.__delattr__(summary, "written_below_root")
    rule = visibility.Visibility("require")
    assert rule.look(str(tmp_path), "c", {"tools/replica-0": summary}).once() is None
