"""The order of a snapshot, and that it is kept on every way out (B31)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from gymckpt import (
    CutMismatch,
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    LedgerUnderCut,
    UnownedEpisodes,
)
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME, ManifestPublication
from gymckpt.replies import GymCheckpointPrepareSummary
from tests.environment.conftest import NewScene
from tests.environment.source import Cut, Scene, at_once, episode, never, unowned
from tests.fakes import default_commit
from tests.faults.world import until


class Boom(Exception):
    """What a step fails with."""


async def test_order_of_a_snapshot(new_scene: NewScene) -> None:
    """Dispatch closes before anybody parks, and reopens after everybody has reopened."""
    scene = new_scene()
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        scene.source.note("body")
        await snapshot.check_against_cut(Cut())
        assert scene.source.closed == 1
    scene.source.note("published")
    assert scene.story() == [
        "dispatch closed",
        "in flight",
        *["prepare"] * 2,
        *["prepare answered"] * 2,
        *["commit"] * 2,
        *["commit answered"] * 2,
        "replies",
        "replies landed",
        "body",
        "ledger",
        *["resume"] * 2,
        *["resume answered"] * 2,
        "dispatch reopened",
        "published",
    ]


@attrs.frozen
class WayOut:
    """One step of a snapshot that fails."""

    fail: Callable[[Scene, pytest.MonkeyPatch], None]
    """Make it fail."""
    error: type[BaseException]
    parks: bool = True
    """Whether anybody is asked to park."""


def _source_fails(method: str) -> Callable[[Scene, Any], None]:
    return lambda scene, _: scene.source.fails.update({method: Boom(method)})


def _call_fails(op: str, script: Any) -> Callable[[Scene, Any], None]:
    return lambda scene, _: scene.world.actors[1].scripts[op].append(script)


def _unknown_instance(scene: Scene, _: Any) -> None:
    scene.source.in_flight["other/replica-0"] = (episode("x"),)


def _twice(scene: Scene, _: Any) -> None:
    scene.source.in_flight[scene.world.ids[0]] += scene.source.in_flight[scene.world.ids[1]]


def _no_directory(scene: Scene, _: Any) -> None:
    scene.path.parent.mkdir(parents=True, exist_ok=True)
    scene.path.write_text("a file")


def _disk_full(_: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(_publication: ManifestPublication) -> str:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ManifestPublication, "publish", publish)


def _unowned(scene: Scene, _: Any) -> None:
    scene.world.actors[1].export = unowned(episode("nobody"))


def _replies_never_land(scene: Scene, _: Any) -> None:
    scene.source.landing = never


def _no_lease(scene: Scene, _: Any) -> None:
    """Let the renewals while replies are waited for find the actor gone."""
    scene.world.actors[1].scripts["renew"] += [None, *[ValueError("lease is gone")] * 9]
    scene.source.landing = never


WAYS_OUT = {
    "list of what is in flight": WayOut(_source_fails("in flight"), Boom, parks=False),
    "list names an unknown instance": WayOut(_unknown_instance, ValueError, parks=False),
    "list names a rollout twice": WayOut(_twice, ValueError, parks=False),
    "prepare is not ready": WayOut(
        _call_fails("prepare", GymCheckpointPrepareSummary(False, {"agent": ("r1.0",)})),
        GymCheckpointNotReady,
    ),
    "prepare": WayOut(_call_fails("prepare", Boom()), GymCheckpointOperationError),
    "first renewal": WayOut(_call_fails("renew", Boom()), GymCheckpointOperationError),
    "directory": WayOut(_no_directory, OSError),
    "commit": WayOut(
        _call_fails("commit", GymCheckpointUnavailable("no")), GymCheckpointOperationError
    ),
    "commit's reply": WayOut(_call_fails("commit", "odd"), GymCheckpointOperationError),
    "manifest": WayOut(_disk_full, OSError),
    "unowned episodes": WayOut(_unowned, UnownedEpisodes),
    "replies never land": WayOut(_replies_never_land, GymCheckpointNotReady),
    "waiting for replies": WayOut(_source_fails("replies"), Boom),
    "RL's own timeout": WayOut(
        lambda scene, _: scene.source.fails.update({"replies": TimeoutError("RL's")}), TimeoutError
    ),
    "renewal": WayOut(_no_lease, GymCheckpointOperationError),
}


@pytest.mark.parametrize("step", WAYS_OUT)
async def test_every_step_that_fails(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whichever step fails, no manifest stays, instances reopen, then dispatch, and it is told."""
    way = WAYS_OUT[step]
    settings: dict[str, Any] = {}
    if step == "renewal":
        settings = {"control_timeout_s": 0.1, "facade": {"replies_timeout_s": 5.0}}
    scene = new_scene(**settings)
    way.fail(scene, monkeypatch)
    with pytest.raises(way.error) as caught:
        async with scene.environment.snapshot(scene.path):
            pytest.fail("the body must not run")
    if way.error is Boom:
        assert type(caught.value) is Boom
    _require_reopened(scene, parked=way.parks)
    assert not (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
    if step not in ("directory", "manifest"):
        await _require_next_works(scene)


def _require_reopened(scene: Scene, *, parked: bool) -> None:
    """Dispatch was reopened once, after each instance was told to reopen and had answered."""
    story = scene.story()
    assert story.count("dispatch reopened") == 1
    assert scene.source.closed == 0
    assert bool(scene.of("prepare")) is parked
    if parked:
        reopened = story.index("dispatch reopened")
        resumed = [place for place, what in enumerate(story) if what == "resume answered"]
        assert len(resumed) == len(scene.world.actors)
        assert max(resumed) < reopened
        assert {call.wire_id for call in scene.of("resume")} == {scene.of("prepare")[0].wire_id}
        assert all(actor.holder is None for actor in scene.world.actors)


async def _require_next_works(scene: Scene) -> None:
    """Nothing of a snapshot that failed is in the way of the next one."""
    scene.source.fails.clear()
    scene.source.in_flight = scene.world.offer()
    scene.source.landing = at_once
    for actor in scene.world.actors:
        actor.scripts.clear()
        actor.export = default_commit
    async with scene.environment.snapshot(scene.path.with_name("next")) as snapshot:
        assert snapshot is not None
    assert (scene.path.with_name("next") / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()


BODIES = {
    "an error": (Boom("body"), Boom),
    "an interrupt": (KeyboardInterrupt(), KeyboardInterrupt),
    "a mismatch": (None, CutMismatch),
    "a cancellation of its own": (asyncio.CancelledError("mine"), asyncio.CancelledError),
}


@pytest.mark.parametrize("body", BODIES)
async def test_body_that_fails(new_scene: NewScene, body: str) -> None:
    """What ends the body leaves as itself, after the manifest is gone and all has reopened."""
    scene = new_scene()
    error, kind = BODIES[body]
    with pytest.raises(kind) as caught:
        await _snapshot_with_body(scene, error)
    assert error is None or caught.value is error
    _require_reopened(scene, parked=True)
    assert not (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()


async def _snapshot_with_body(scene: Scene, error: BaseException | None) -> None:
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        if error is not None:
            raise error
        scene.source.ledger = LedgerUnderCut(unfinished=frozenset({"lost"}))
        await snapshot.check_against_cut(Cut())


async def test_body_that_is_cancelled(new_scene: NewScene) -> None:
    """A caller that is cancelled in the body leaves cancelled, with everything reopened."""
    scene = new_scene()
    inside = asyncio.Event()

    async def snapshot() -> None:
        async with scene.environment.snapshot(scene.path):
            inside.set()
            await never()

    task = asyncio.create_task(snapshot())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    _require_reopened(scene, parked=True)
    assert not (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()


@pytest.mark.parametrize("place", ["prepare", "renew", "commit", "replies"])
async def test_cancelled_before_the_body(new_scene: NewScene, place: str) -> None:
    """A caller that is cancelled before its body leaves cancelled, with everything reopened."""
    scene = new_scene()
    if place == "replies":
        scene.source.landing = never
        scene.environment = scene.new_environment(replies_timeout_s=5.0)
    else:
        scene.world.actors[0].scripts[place].append("hang")

    async def snapshot() -> None:
        async with scene.environment.snapshot(scene.path):
            pytest.fail("the body must not run")

    task = asyncio.create_task(snapshot())
    await until(lambda: scene.of(place) or "replies" in scene.story())
    if place == "replies":
        await until(lambda: "replies" in scene.story())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _require_reopened(scene, parked=True)
    assert not (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()


async def test_lease_that_is_lost_in_the_body(new_scene: NewScene) -> None:
    """The body is cancelled at once, and what leaves is the renewal's error."""
    scene = new_scene(control_timeout_s=0.1)
    scene.world.actors[0].scripts["renew"] += [None, *[ValueError("lease is gone")] * 9]
    with pytest.raises(GymCheckpointOperationError, match="renew failed") as caught:
        async with scene.environment.snapshot(scene.path):
            await never()
    assert caught.value.operation == "renew"
    _require_reopened(scene, parked=True)
    assert not (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()


@pytest.mark.parametrize("trouble", [Boom(), TimeoutError(), "hang"])
async def test_resume_that_fails(
    new_scene: NewScene, caplog: pytest.LogCaptureFixture, trouble: Any
) -> None:
    """A good snapshot stands though an instance does not reopen; dispatch reopens all the same."""
    scene = new_scene(control_timeout_s=0.05, sweep_interval_s=0.05)
    scene.world.actors[0].scripts["resume"] += [trouble, trouble]
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
    assert scene.source.closed == 0
    assert (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
    assert "reopening is unconfirmed" in caplog.text
    await until(lambda: scene.world.actors[0].holder is None)


async def test_dispatch_that_cannot_be_reopened(new_scene: NewScene) -> None:
    """S9: the body's own error leaves, and says that dispatch stays closed."""
    scene = new_scene()
    scene.source.fails["dispatch reopened"] = RuntimeError("the gate is stuck")
    with pytest.raises(Boom, match="first") as caught:
        async with scene.environment.snapshot(scene.path):
            raise Boom("first")
    assert caught.value.__notes__ == ["cleanup: dispatch did not reopen: the gate is stuck"]
    with pytest.raises(RuntimeError, match="stuck"):
        async with scene.environment.snapshot(scene.path.with_name("next")):
            pass


@pytest.mark.parametrize("path", [None, 7, ""])
async def test_path_that_is_none(new_scene: NewScene, path: Any) -> None:
    """S8: nobody is parked for a snapshot that has nowhere to go."""
    scene = new_scene()
    for verb in (scene.environment.snapshot, scene.environment.restored):
        with pytest.raises(TypeError, match="path"):
            async with verb(path):
                pytest.fail("the body must not run")
    assert scene.story() == []


async def test_path_that_is_text(new_scene: NewScene) -> None:
    """A path may be given as text, as to every other verb."""
    scene = new_scene()
    text: Any = str(scene.path)
    async with scene.environment.snapshot(text) as snapshot:
        assert snapshot is not None
    async with scene.environment.restored(text) as restored:
        assert restored.continued_attempts


async def test_dispatch_that_cannot_be_closed(new_scene: NewScene) -> None:
    """Nobody is asked anything where RL cannot close its dispatch."""
    scene = new_scene()
    scene.source.fails["dispatch closed"] = Boom()
    with pytest.raises(Boom):
        async with scene.environment.snapshot(scene.path):
            pytest.fail("the body must not run")
    assert scene.story() == ["dispatch closed"]


async def test_nothing_waits_for_an_instance_under_the_cut(new_scene: NewScene) -> None:
    """The check ends in its first step, also while no instance answers anything."""
    scene = new_scene()
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        for actor in scene.world.actors:
            actor.fail_from(None, "hang")
        checking = snapshot.check_against_cut(Cut())
        with pytest.raises(StopIteration):
            checking.send(None)  # a coroutine that had to wait for anything would yield
        for actor in scene.world.actors:
            actor.always.clear()
