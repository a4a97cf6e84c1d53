"""`restored`: what is refused before anything is sent, and that all or nothing is continued."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gymckpt import (
    EnvironmentEpisode,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    OperationOpen,
    RestoredEnvironmentRollouts,
)
from gymckpt.errors import JournalUnavailable
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME, load_gym_checkpoint_manifest
from tests.environment.conftest import NewScene
from tests.environment.source import Scene, episode, never, only
from tests.fakes import HANG, Late
from tests.faults.world import until


class Boom(Exception):
    """What a body fails with."""


def next_of(scene: Scene) -> list[EnvironmentEpisode]:
    """Return the attempts that a restore of what the scene saved installs."""
    return [found.next_attempt() for found in sorted(_listed(scene))]


def _listed(scene: Scene) -> list[EnvironmentEpisode]:
    return [found for episodes in scene.world.offer().values() for found in episodes]


async def saved(scene: Scene) -> Path:
    """Save everything, then forget the calls."""
    path = await scene.saved()
    for actor in scene.world.actors:
        actor.calls.clear()
    scene.source.log.clear()
    scene.source.in_flight = {}
    return path


async def refused(scene: Scene, path: Path) -> Exception:
    """Return the error of a restore whose body must not run, after nothing was sent."""
    with pytest.raises((OSError, ValueError)) as caught:
        async with scene.environment.restored(path):
            pytest.fail("the body must not run")
    assert not any(actor.calls for actor in scene.world.actors)
    assert scene.source.refused == []
    return caught.value


async def test_what_is_continued(new_scene: NewScene) -> None:
    """The saved attempts and their rows are told; the next attempts go on when the body ends."""
    scene = new_scene()
    path = await saved(scene)
    first, second = scene.world.ids
    async with scene.environment.restored(path) as restored:
        assert isinstance(restored, RestoredEnvironmentRollouts)
        assert restored.continued_attempts == {(first, "r0.0", 0), (second, "r1.0", 0)}
        assert restored.staging_keys == {"r0.0/c0", "r1.0/c0"}
        assert restored.replacements() == {
            (first, episode("r0.0", 1)),
            (second, episode("r1.0", 1)),
        }
        assert not any(actor.running for actor in scene.world.actors)
    running = [found for actor in scene.world.actors for found in actor.running]
    assert sorted(running) == next_of(scene)
    assert scene.source.refused == []


async def test_no_manifest(new_scene: NewScene) -> None:
    """A directory without a manifest is told apart, and nothing is sent."""
    scene = new_scene()
    scene.path.mkdir(parents=True)
    assert isinstance(await refused(scene, scene.path), FileNotFoundError)
    assert isinstance(await refused(scene, scene.path / "absent"), FileNotFoundError)


@pytest.mark.parametrize("count", [1, 3])
async def test_other_topology(new_scene: NewScene, count: int) -> None:
    """A snapshot of more or of fewer instances is refused by name, and nothing is sent."""
    scene = new_scene()
    path = await new_scene(count).saved()
    error = await refused(scene, path)
    assert "topology" in str(error)
    assert f"tools/replica-{min(count, 2)}" in str(error)


DAMAGES = {
    "nothing in it": lambda text: "",
    "no object": lambda text: "[]",
    "cut off": lambda text: text[: len(text) // 2],
    "another version": lambda text: text.replace('"schema_version": 2', '"schema_version": 3'),
    "an older version": lambda text: json.dumps(
        {key: value for key, value in json.loads(text).items() if key != "participants"}
    ),
    "an episode twice": lambda text: text.replace("r1.0", "r0.0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_manifest(new_scene: NewScene, damage: str) -> None:
    """A manifest that is damaged is refused with its path, and nothing is sent."""
    scene = new_scene()
    manifest = await saved(scene) / GYM_CHECKPOINT_MANIFEST_FILENAME
    text = manifest.read_text()
    manifest.write_text(DAMAGES[damage](text))
    assert manifest.read_text() != text
    error = await refused(scene, scene.path)
    assert isinstance(error, ValueError)
    assert str(manifest) in str(error)
    manifest.write_text(text)


async def test_hanging_file_system(new_scene: NewScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that cannot be read in time ends the restore within its bound (L1)."""
    free = threading.Event()
    scene = new_scene(control_timeout_s=0.1)
    path = await saved(scene)
    monkeypatch.setattr(
        "gymckpt.environment.load_gym_checkpoint_manifest", lambda _path: free.wait(20)
    )
    assert isinstance(await refused(scene, path), TimeoutError)
    free.set()


FAILURES = {
    "refused": GymCheckpointUnavailable("HTTP 422 invalid_checkpoint_state"),
    "other participants": ValueError("the checkpoint has 'agent', this deployment 'agent.2'"),
    "died": ConnectionError("gone"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_restore_that_fails_on_one_instance(new_scene: NewScene, failure: str) -> None:
    """Nothing stays installed anywhere, and RL is told which attempts are used up."""
    scene = new_scene()
    path = await saved(scene)
    scene.world.actors[1].scripts["restore"].append(FAILURES[failure])
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with scene.environment.restored(path):
            pytest.fail("the body must not run")
    assert caught.value.operation == "restore"
    _require_discarded(scene)


def _require_discarded(scene: Scene) -> None:
    """No restored attempt is there, every instance is open, and RL knows what is refused."""
    assert sorted(scene.source.refused) == next_of(scene)
    for actor in scene.world.actors:
        assert not actor.running
        assert not any(actor.restored.values())
        assert actor.holder is None
        assert [call.op for call in actor.calls if call.op != "renew"][-2:] == ["retire", "resume"]


@pytest.mark.parametrize("error", [Boom(), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_body_that_fails(new_scene: NewScene, error: BaseException) -> None:
    """What ends the body leaves as itself, and nothing is continued."""
    scene = new_scene()
    path = await saved(scene)
    with pytest.raises(type(error)) as caught:
        async with scene.environment.restored(path):
            raise error
    assert caught.value is error
    _require_discarded(scene)


async def test_rl_that_cannot_be_told(new_scene: NewScene) -> None:
    """RL's failure to take note of refused attempts is a note on the error that came first (S9)."""
    scene = new_scene()
    path = await saved(scene)
    scene.source.fails["refused"] = RuntimeError("no ledger")
    error = Boom()
    with pytest.raises(Boom) as caught:
        async with scene.environment.restored(path):
            raise error
    assert caught.value is error
    assert any("2 refused attempt(s): no ledger" in note for note in error.__notes__)


async def test_rl_that_cannot_list(new_scene: NewScene) -> None:
    """A list that fails when the body has ended discards the restore, as the body would have."""
    scene = new_scene()
    path = await saved(scene)
    scene.source.fails["in flight"] = Boom()
    with pytest.raises(Boom):
        async with scene.environment.restored(path):
            pass
    _require_discarded(scene)


async def test_lease_that_is_lost(new_scene: NewScene) -> None:
    """A body whose lease is lost is cancelled; the renewal's error leaves, nothing is continued."""
    scene = new_scene(control_timeout_s=0.1)
    path = await saved(scene)
    scene.world.actors[0].always["renew"] = ValueError("lease is gone")
    with pytest.raises(GymCheckpointOperationError, match="renew failed"):
        async with scene.environment.restored(path):
            await never()
    _require_discarded(scene)


async def test_discarded_snapshot_restores_once_more(new_scene: NewScene) -> None:
    """After a discard the rollouts start over as later attempts, which instances take."""
    scene = new_scene()
    path = await saved(scene)
    with pytest.raises(Boom):
        async with scene.environment.restored(path):
            raise Boom
    later = {
        instance: tuple(
            found.next_attempt() for found in scene.source.refused if found in actor.retired
        )
        for instance, actor in scene.world.shards.checkpoint_handles.items()
    }
    scene.source.in_flight = later
    async with scene.environment.snapshot(path.with_name("second")) as snapshot:
        assert snapshot is not None
        offered = [call.args[2] for call in scene.of("commit")]
    assert sorted(offered) == sorted(later.values())
    assert {found.attempt for episodes in offered for found in episodes} == {2}


async def test_cancelled_while_instances_reopen(new_scene: NewScene) -> None:
    """A caller that is cancelled when its body has ended gets nothing continued all the same."""
    scene = new_scene()
    path = await saved(scene)
    scene.world.actors[1].scripts["resume"].append(Late(0.1))

    async def restore() -> None:
        async with scene.environment.restored(path):
            pass

    task = asyncio.create_task(restore())
    await until(lambda: len(scene.of("resume")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(scene.source.refused) == next_of(scene)
    for actor in scene.world.actors:
        assert actor.ops == ["restore", "resume", "retire"]
        assert actor.calls[-1].wire_id != actor.calls[0].wire_id
        assert not actor.running
        assert actor.holder is None
    assert await offered_by(scene, "next") is None


async def test_cancelled_while_an_instance_cannot_be_told(new_scene: NewScene) -> None:
    """What could not be retired then is a note on the cancellation."""
    scene = new_scene()
    path = await saved(scene)
    scene.world.actors[1].scripts["resume"].append(Late(0.1))
    scene.world.actors[1].always["retire"] = ConnectionError("reset")
    caught: list[BaseException] = []

    async def restore() -> None:
        try:
            async with scene.environment.restored(path):
                pass
        except asyncio.CancelledError as error:
            caught.append(error)
            raise

    task = asyncio.create_task(restore())
    await until(lambda: len(scene.of("resume")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert any("retiring restored attempts" in note for note in caught[0].__notes__)


async def test_restore_that_comes_too_late(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is refused because another operation was begun meanwhile uses no attempt up."""
    scene = new_scene()
    path = await saved(scene)
    reading, go_on = threading.Event(), threading.Event()

    def load(root: Path) -> Any:
        reading.set()
        assert go_on.wait(20)
        return load_gym_checkpoint_manifest(root)

    monkeypatch.setattr("gymckpt.environment.load_gym_checkpoint_manifest", load)
    task = asyncio.ensure_future(scene.environment.restored(path).__aenter__())
    await until(reading.is_set)
    async with scene.world.coordinator.prepared("quicker"):
        go_on.set()
        with pytest.raises(OperationOpen, match="quicker"):
            await task
    assert scene.source.refused == []


def tree_of(root: Path) -> dict[str, str]:
    """Return the digest of every file below a directory."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


async def test_b33_interrupted_restore(new_scene: NewScene) -> None:
    """A restore that was interrupted changes nothing that it reads, and can be done again (B33)."""
    scene = new_scene()
    path = await saved(scene)
    before = tree_of(path)
    scene.world.actors[1].scripts["restore"].append(HANG)

    async def restore() -> None:
        async with scene.environment.restored(path):
            pytest.fail("the body must not run")

    task = asyncio.create_task(restore())
    await until(lambda: len(scene.of("restore")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _require_discarded(scene)
    assert tree_of(path) == before
    again = new_scene()  # new actors, as after a crash
    again.source.in_flight = {}
    async with again.environment.restored(path) as restored:
        assert len(restored.continued_attempts) == 2
    running = [found for actor in again.world.actors for found in actor.running]
    assert sorted(running) == next_of(scene)
    assert tree_of(path) == before
    assert again.of("restore")[0].wire_id != scene.of("restore")[0].wire_id


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("lost", [0, 2])
async def test_cancelled_again_while_instances_reopen(
    new_scene: NewScene, cancels: int, lost: int
) -> None:
    """S5: what RL is told to be refused is stopped, however often the end is cancelled."""
    scene = new_scene(sweep_interval_s=0.05)
    path = await saved(scene)
    scene.world.actors[1].scripts["resume"].append(Late(0.1))
    scene.world.actors[0].scripts["retire"] += [ConnectionError("reset")] * lost

    async def restore() -> None:
        async with scene.environment.restored(path):
            pass

    task = asyncio.create_task(restore())
    await until(lambda: len(scene.of("resume")) == 2)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(scene.source.refused) == next_of(scene)
    await until(lambda: not any(actor.running for actor in scene.world.actors))
    await until(lambda: len(scene.of("retire")) == 2 + lost)


async def test_nothing_is_refused_where_nothing_was_sent(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8: a restore that the journal cannot open uses up no attempt."""
    scene = new_scene()
    path = await saved(scene)

    def down(*_args: object, **_kwargs: object) -> None:
        raise JournalUnavailable("the disk is full")

    monkeypatch.setattr(scene.world.journal, "open_operation", down)
    with pytest.raises(JournalUnavailable):
        async with scene.environment.restored(path):
            pytest.fail("the body must not run")
    assert not any(actor.calls for actor in scene.world.actors)
    assert scene.source.refused == []


# --- between a restore and RL's first list --------------------------------------------------------


async def offered_by(scene: Scene, name: str) -> list[EnvironmentEpisode] | None:
    """Take a snapshot and return what it offered, None where there was nothing to save."""
    for actor in scene.world.actors:
        actor.calls.clear()
    async with scene.environment.snapshot(scene.path.with_name(name)) as snapshot:
        if snapshot is None:
            assert not any(actor.calls for actor in scene.world.actors)
            return None
        return sorted(found for call in scene.of("commit") for found in call.args[2])


async def test_restored_and_not_listed(new_scene: NewScene) -> None:
    """What was restored and RL has never listed is in every snapshot until RL lists it."""
    scene = new_scene()
    async with scene.environment.restored(await saved(scene)):
        pass
    assert await offered_by(scene, "one") == next_of(scene)
    assert await offered_by(scene, "two") == next_of(scene)
    first, second = scene.world.ids
    scene.source.in_flight = {first: (episode("r0.0", 1),)}
    assert await offered_by(scene, "three") == next_of(scene)
    scene.source.in_flight = {}
    assert await offered_by(scene, "four") == [episode("r1.0", 1)]
    scene.source.in_flight = {second: (episode("r1.0", 1),)}
    assert await offered_by(scene, "five") == [episode("r1.0", 1)]
    scene.source.in_flight = {}
    assert await offered_by(scene, "six") is None


async def test_restored_and_listed_in_the_body(new_scene: NewScene) -> None:
    """What RL lists when the restore's body has ended is RL's own from then on."""
    scene = new_scene()
    async with scene.environment.restored(await saved(scene)):
        scene.source.in_flight = {
            instance: tuple(found.next_attempt() for found in episodes)
            for instance, episodes in scene.world.offer().items()
        }
    scene.source.in_flight = {}
    assert await offered_by(scene, "next") is None


async def test_restored_and_ended_unlisted(new_scene: NewScene) -> None:
    """What has ended without ever being listed is offered once, and never again."""
    scene = new_scene()
    async with scene.environment.restored(await saved(scene)):
        pass
    for actor in scene.world.actors:
        actor.export = only()
    assert await offered_by(scene, "one") == next_of(scene)
    assert await offered_by(scene, "two") is None


async def test_restored_and_forgotten_unlisted(
    new_scene: NewScene, caplog: pytest.LogCaptureFixture
) -> None:
    """What an instance no longer knows does not spoil snapshot after snapshot."""
    scene = new_scene()
    async with scene.environment.restored(await saved(scene)):
        pass
    unknown = GymCheckpointUnavailable("HTTP 409 checkpoint_error no such episode here")
    scene.world.actors[0].scripts["commit"].append(unknown)
    with pytest.raises(GymCheckpointOperationError):
        await offered_by(scene, "one")
    assert "2 restored episode(s)" in caplog.text
    assert await offered_by(scene, "two") is None


@pytest.mark.parametrize("trouble", [HANG, ConnectionError("reset"), ValueError("broken")])
async def test_restored_and_unlisted_in_a_commit_that_failed(
    new_scene: NewScene, trouble: Any
) -> None:
    """Only a refusal says that an instance may have forgotten them; nothing else loses them."""
    scene = new_scene(control_timeout_s=0.2)
    async with scene.environment.restored(await saved(scene)):
        pass
    scene.world.actors[0].scripts["commit"].append(trouble)
    with pytest.raises(GymCheckpointOperationError):
        await offered_by(scene, "one")
    assert await offered_by(scene, "two") == next_of(scene)


async def test_discarded_restore_is_not_offered(new_scene: NewScene) -> None:
    """Attempts of a restore that was discarded are in no snapshot."""
    scene = new_scene()
    path = await saved(scene)
    with pytest.raises(Boom):
        async with scene.environment.restored(path):
            raise Boom
    assert await offered_by(scene, "next") is None
