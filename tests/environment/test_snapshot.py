"""What a snapshot saves, what it waits for, and what it refuses."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from gymckpt import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    GymEnvironmentCheckpoint,
    OperationOpen,
    UnownedEpisodes,
    load_gym_checkpoint_manifest,
)
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME
from gymckpt.snapshot import GymEnvironmentSnapshot, LedgerUnderCut
from tests.environment.conftest import NewScene
from tests.environment.source import Cut, Scene, Source, episode, never, only, unowned, unsavable
from tests.fakes import Late
from tests.faults.world import until


async def test_nothing_in_flight(new_scene: NewScene) -> None:
    """Where nothing is in flight there is no snapshot, and nobody is asked anything."""
    scene = new_scene()
    scene.source.in_flight = dict.fromkeys(scene.world.ids, ())
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is None
        assert scene.source.closed == 1
    assert scene.story() == ["dispatch closed", "in flight", "dispatch reopened"]
    assert not scene.path.exists()
    assert scene.world.journal.operations() == ()


async def test_one_instance_idle(new_scene: NewScene) -> None:
    """An instance without episodes takes part all the same: the manifest names every instance."""
    scene = new_scene(3)
    scene.source.in_flight = {scene.world.ids[1]: (episode("r"),)}
    manifest = load_gym_checkpoint_manifest(await scene.saved())
    assert manifest.instances == {
        instance: (episode("r"),) if instance == scene.world.ids[1] else ()
        for instance in scene.world.ids
    }


async def test_restarts_that_rl_owns(new_scene: NewScene) -> None:
    """Restarts are left out and recorded, but only those that RL has in flight."""
    scene = new_scene(1)
    saved, starts_over, foreign = episode("r0"), episode("r1", 2), episode("other")
    scene.source.in_flight = {scene.world.ids[0]: (starts_over, saved)}
    scene.world.actors[0].restarts = (starts_over, foreign)
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        assert snapshot.restarted_rollouts == 1
    assert scene.of("commit")[0].args[2] == (saved,)
    manifest = load_gym_checkpoint_manifest(scene.path)
    assert manifest.instances == {scene.world.ids[0]: (saved,)}
    assert manifest.restarts == {scene.world.ids[0]: (starts_over,)}
    assert scene.source.expected_later == [frozenset({saved, starts_over, foreign})]


async def test_states_that_cannot_be_saved(
    new_scene: NewScene, caplog: pytest.LogCaptureFixture
) -> None:
    """Such an episode is a restart that agrees with the cut, whose reply nobody waits for."""
    scene = new_scene(2)
    saved, lost, starts_over = episode("r0"), episode("r1", 2), episode("r2")
    here = scene.world.ids[1]
    scene.source.in_flight = {here: (starts_over, lost, saved)}
    scene.source.ledger = LedgerUnderCut(unfinished=scene.names)
    scene.world.actors[1].restarts = (starts_over,)
    scene.world.actors[1].export = unsavable({lost: "ValueError: a record is not JSON data"})
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert isinstance(snapshot, GymEnvironmentSnapshot)
        await snapshot.check_against_cut(Cut())
        assert (snapshot.continued_rollouts, snapshot.restarted_rollouts) == (1, 2)
        assert list(snapshot.result.unsavable[here]) == [lost]
        assert snapshot.metrics(1.0)["gym_checkpoint/restarted"] == 2.0
    assert scene.source.expected_later == [frozenset({saved, lost, starts_over})]
    manifest = load_gym_checkpoint_manifest(scene.path)
    assert manifest.instances[here] == (saved,)
    assert manifest.restarts[here] == (starts_over, lost)
    assert f"could not be saved and start over after a crash: r1-a2 on {here}: " in caplog.text


async def test_unowned_episodes(new_scene: NewScene) -> None:
    """Live episodes that nobody owns fail the snapshot by name, and its manifest is withdrawn."""
    scene = new_scene()
    lost = [episode(f"lost{number}") for number in range(8)]
    scene.world.actors[1].export = unowned(*lost)
    with pytest.raises(UnownedEpisodes) as caught:
        await scene.saved()
    assert caught.value.episodes == {scene.world.ids[1]: tuple(lost)}
    assert "8 live episode(s)" in str(caught.value)
    assert str(caught.value).count("lost") == 5
    assert not scene.environment.is_unavailable(caught.value)
    assert not (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
    assert [row.state for row in scene.world.journal.operations()] == ["discarded"]


async def test_replies_on_the_wire(new_scene: NewScene) -> None:
    """The body begins when every reply has landed but for those of saved and restarted episodes."""
    scene = new_scene(1)
    saved, on_the_wire, starts_over = episode("r0"), episode("r1"), episode("r2")
    scene.source.in_flight = {scene.world.ids[0]: (saved, on_the_wire, starts_over)}
    actor = scene.world.actors[0]
    actor.restarts, actor.export = (starts_over,), only(saved)
    landed = asyncio.Event()
    scene.source.landing = landed.wait
    scene.environment = scene.new_environment(replies_timeout_s=5.0)
    began = asyncio.Event()

    async def snapshot() -> None:
        async with scene.environment.snapshot(scene.path):
            began.set()

    task = asyncio.create_task(snapshot())
    await until(lambda: "replies" in scene.story())
    assert scene.source.expected_later == [frozenset({saved, starts_over})]
    await until(lambda: len(actor.of("renew")) > 1)  # it is still held, and nobody has hurried
    assert not began.is_set()
    landed.set()
    await task
    assert began.is_set()


async def test_replies_that_never_land(new_scene: NewScene) -> None:
    """Replies are waited for only so long; the error is transient and names the episodes' keys."""
    scene = new_scene()
    first, second = scene.world.ids
    scene.source.in_flight = {
        first: (episode("r0"),),
        second: (episode("r1", 3), episode("r2")),
    }
    scene.world.actors[1].export = only()
    scene.source.landing = never
    with pytest.raises(GymCheckpointNotReady) as caught:
        await scene.saved()
    assert caught.value.blockers == {second: {"replies on the wire": ("r1-a3", "r2")}}
    assert scene.environment.is_unavailable(caught.value)


async def test_relative_path(
    new_scene: NewScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is resolved when a snapshot begins, and instances are told where it is."""
    scene = new_scene()
    monkeypatch.chdir(tmp_path)
    async with scene.environment.snapshot(Path("relative")):
        monkeypatch.chdir("/")
    assert (tmp_path / "relative" / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
    monkeypatch.chdir(tmp_path)
    async with scene.environment.restored(Path("relative")):
        monkeypatch.chdir("/")
    calls = [
        call for actor in scene.world.actors for call in actor.of("commit") + actor.of("restore")
    ]
    assert {call.args[1] for call in calls} == {str(tmp_path / "relative")}


@pytest.mark.parametrize(
    "path", [Path("s3://bucket/x"), "gs://bucket", Path("~no-such-user/x"), "x "]
)
async def test_unusable_path(new_scene: NewScene, path: Any) -> None:
    """A path that is a URL or unsafe is refused before dispatch is closed."""
    scene = new_scene()
    for attempt in (scene.environment.snapshot(path), scene.environment.restored(path)):
        with pytest.raises(ValueError, match="a checkpoint's root"):
            await attempt.__aenter__()
    assert scene.story() == []


async def test_second_snapshot_beside_the_first(new_scene: NewScene, tmp_path: Path) -> None:
    """A snapshot or restore beside another is refused, and dispatch stays closed (B34)."""
    scene = new_scene()
    other = await new_scene().saved()
    async with scene.environment.snapshot(scene.path):
        for attempt in (scene.environment.snapshot(tmp_path), scene.environment.restored(other)):
            with pytest.raises(OperationOpen) as caught:
                await attempt.__aenter__()
            assert scene.environment.is_unavailable(caught.value)
            assert scene.source.closed == 1
    assert scene.story().count("dispatch closed") == 1
    assert len({call.wire_id for actor in scene.world.actors for call in actor.calls}) == 1


@pytest.mark.parametrize("moment", ["None body", "closing", "prepare"])
async def test_second_snapshot_at_any_moment(
    new_scene: NewScene, tmp_path: Path, moment: str
) -> None:
    """It is refused from the first step of the other to its last, whoever is parked (B34)."""
    scene = new_scene()
    release = asyncio.Event()
    if moment == "None body":
        scene.source.in_flight = {}
    elif moment == "prepare":
        scene.world.actors[0].scripts["prepare"].append(Late(0.2))
    else:
        scene.source.note = _slow_note(scene.source)  # type: ignore[method-assign]

    async def first() -> None:
        async with scene.environment.snapshot(scene.path):
            await release.wait()

    task = asyncio.create_task(first())
    await until(lambda: scene.source.closed)
    with pytest.raises(OperationOpen):
        await scene.environment.snapshot(tmp_path).__aenter__()
    assert scene.source.closed == 1
    release.set()
    await task
    assert scene.source.closed == 0


def _slow_note(source: Any) -> Any:
    return lambda what: type(source).note(source, what)


async def test_b34_nothing_of_the_next_before_the_end(new_scene: NewScene, tmp_path: Path) -> None:
    """Calls of one snapshot are contiguous: whoever tries again meanwhile comes after it (B34)."""
    scene = new_scene()
    scene.world.actors[0].scripts["resume"].append(Late(0.05))
    second = await new_scene().saved()

    async def keep_trying(make: Any) -> None:
        while True:
            try:
                async with make():
                    return
            except OperationOpen:
                await asyncio.sleep(0.001)

    async with scene.environment.snapshot(scene.path):
        tries = [
            asyncio.create_task(keep_trying(lambda: scene.environment.snapshot(tmp_path / "c"))),
            asyncio.create_task(keep_trying(lambda: scene.environment.restored(second))),
        ]
        await asyncio.sleep(0.02)
    await asyncio.gather(*tries)
    for actor in scene.world.actors:
        ids = [call.wire_id for call in actor.calls]
        assert len(set(ids)) == 3
        assert len([1 for one, two in itertools.pairwise(ids) if one != two]) == 2


async def test_operation_of_the_coordinator_itself(new_scene: NewScene) -> None:
    """Beside a checkpoint that was begun without the facade, dispatch is not even closed."""
    scene = new_scene()
    async with scene.world.committed("by-hand", scene.path):
        with pytest.raises(OperationOpen, match="by-hand"):
            await scene.environment.snapshot(scene.path).__aenter__()
        with pytest.raises(OperationOpen, match="by-hand"):
            await scene.environment.restored(scene.path).__aenter__()
    assert "dispatch closed" not in scene.story()


async def test_two_facades_over_one_deployment(new_scene: NewScene, tmp_path: Path) -> None:
    """A second controller is refused while the first holds, and leaves the first alone (B45)."""
    scene = new_scene()
    coordinator = scene.world.new_coordinator(run="another-run")  # one of this run is held off
    second = GymEnvironmentCheckpoint(coordinator, Source(scene.world.offer()))
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        held = [actor.holder for actor in scene.world.actors]
        with pytest.raises(GymCheckpointOperationError, match="checkpoint_conflict") as caught:
            await second.snapshot(tmp_path / "second").__aenter__()
        assert second.is_unavailable(caught.value)
        assert [actor.holder for actor in scene.world.actors] == held
        await snapshot.check_against_cut(Cut())
    assert (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
    async with second.snapshot(tmp_path / "second") as again:
        assert again is not None
    committed = {call.wire_id for call in scene.of("commit")}
    refused = {call.wire_id for call in scene.of("prepare")} - committed
    assert (len(committed), len(refused)) == (2, 1)


async def test_ids_are_never_used_twice(new_scene: NewScene) -> None:
    """Snapshots of facades that know nothing of each other have ids of their own (B45)."""
    scene = new_scene(1)
    scene.world.actors[0].always["prepare"] = GymCheckpointUnavailable("not now")
    for _ in range(100):
        with pytest.raises(GymCheckpointOperationError):
            await scene.new_environment().snapshot(scene.path).__aenter__()
    assert len({call.wire_id for call in scene.of("prepare")}) == 100


@attrs.frozen
class Odd:
    """What RL might return by mistake, and what it is told."""

    in_flight: Any
    error: type[Exception]


ODD = {
    "no mapping": Odd([episode("r")], TypeError),
    "no episodes": Odd({"tools/replica-0": ["r"]}, TypeError),
    "an unknown instance": Odd({"tools/replica-7": (episode("r"),)}, ValueError),
    "an episode twice": Odd({"tools/replica-0": (episode("r"), episode("r"))}, ValueError),
    "two attempts": Odd({"tools/replica-0": (episode("r"), episode("r", 1))}, ValueError),
    "a rollout in two places": Odd(
        {"tools/replica-0": (episode("r"),), "tools/replica-1": (episode("r"),)}, ValueError
    ),
}


@pytest.mark.parametrize("odd", ODD)
async def test_odd_lists_of_what_is_in_flight(new_scene: NewScene, odd: str) -> None:
    """A malformed list is refused before anybody is parked (S8)."""
    scene = new_scene()
    scene.source.in_flight = ODD[odd].in_flight
    with pytest.raises(ODD[odd].error):
        await scene.saved()
    assert not any(actor.calls for actor in scene.world.actors)
    assert scene.world.journal.operations() == ()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"restart_only": "ignore"}, ValueError),
        ({"replies_timeout_s": 0}, ValueError),
        ({"replies_timeout_s": float("nan")}, ValueError),
        ({"replies_timeout_s": "5"}, TypeError),
        ({"replies_timeout_s": True}, TypeError),
    ],
)
def test_settings(tmp_path: Path, settings: dict[str, Any], error: type[Exception]) -> None:
    """A policy or timeout that makes no sense is refused when the facade is made."""
    with pytest.raises(error):
        Scene(tmp_path, facade=settings)


async def test_what_is_transient(new_scene: NewScene) -> None:
    """`is_unavailable` is the transient rule of the coordinator."""
    environment = new_scene().environment
    assert environment.holds_rollout_state
    assert environment.is_unavailable(GymCheckpointNotReady({}))
    assert environment.is_unavailable(OperationOpen("snapshot", "a", "parked"))
    briefly = {"a/replica-0": GymCheckpointUnavailable("no"), "a/replica-1": TimeoutError()}
    assert environment.is_unavailable(GymCheckpointOperationError("prepare", briefly))
    broken = {**briefly, "a/replica-2": ValueError("odd")}
    assert not environment.is_unavailable(GymCheckpointOperationError("prepare", broken))
    for error in (TimeoutError(), OSError(28, "full"), KeyboardInterrupt(), UnownedEpisodes({})):
        assert not environment.is_unavailable(error)


async def test_hanging_file_system(new_scene: NewScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be made in time ends the snapshot within its bound (L1)."""
    free = threading.Event()
    scene = new_scene(control_timeout_s=0.1)
    monkeypatch.setattr(Path, "mkdir", lambda *_a, **_k: free.wait(20))
    with pytest.raises(TimeoutError, match="file system"):
        await scene.saved()
    free.set()
    assert [actor.holder for actor in scene.world.actors] == [None, None]
