"""`check_startup`: who can take part, and what an earlier controller of the run left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gymckpt import (
    GymCheckpointOperationError,
    GymEnvironmentCheckpoint,
    RestartOnlyDeployment,
    RunHeld,
)
from gymckpt.journal.memory import MemoryJournal
from tests.environment.conftest import NewScene
from tests.environment.source import Scene, never
from tests.fakes import HANG, FakeActor
from tests.faults.world import until

OWNER_TIMEOUT_S = 0.5

METHODS = (
    *("prepare", "renew", "commit", "retire", "forget", "restore", "resume"),
    "restart_only_servers",
)


@pytest.fixture
def scene(new_scene: NewScene) -> Scene:
    """Three instances without restart-only servers."""
    made = new_scene(3, owner_timeout_s=OWNER_TIMEOUT_S)
    for actor in made.world.actors:
        actor.always["restart_only_servers"] = []
    return made


class Lacking(FakeActor):
    """An actor of an older release, which lacks a method."""

    lacks: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.removeprefix("checkpoint_") in type(self).lacks:
            raise AttributeError(name)
        return super().__getattr__(name)


async def test_all_is_well(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said where every actor answers and every server can be captured."""
    await scene.environment.check_startup()
    assert scene.environment.recovered == ()
    assert [actor.ops for actor in scene.world.actors] == [["restart_only_servers"]] * 3
    assert caplog.text == ""


@pytest.mark.parametrize("method", METHODS)
async def test_actor_that_lacks_a_method(scene: Scene, method: str) -> None:
    """An actor without one of the methods is named with the method, and nobody is asked."""
    lacking = type("Old", (Lacking,), {"lacks": (method,)})()
    instance = scene.world.ids[1]
    scene.world.coordinator._handles[instance] = lacking
    with pytest.raises(GymCheckpointOperationError) as caught:
        await scene.environment.check_startup()
    assert list(caught.value.failures) == [instance]
    assert f"checkpoint_{method}" in str(caught.value)
    assert not scene.environment.is_unavailable(caught.value)
    assert not any(actor.calls for actor in scene.world.actors)


async def test_actor_that_lacks_everything(scene: Scene) -> None:
    """Something that is no actor at all is named, with the number of what it lacks."""
    instance = scene.world.ids[0]
    scene.world.coordinator._handles[instance] = object()
    with pytest.raises(GymCheckpointOperationError, match="lacks 8 method") as caught:
        await scene.environment.check_startup()
    assert list(caught.value.failures) == [instance]


@pytest.mark.parametrize("trouble", [HANG, ConnectionError("refused"), ["", 3], "tools"])
async def test_actor_that_does_not_answer(new_scene: NewScene, trouble: Any) -> None:
    """An actor that hangs, fails or answers nonsense is named, within the control timeout."""
    scene = new_scene(3, control_timeout_s=0.1)
    scene.world.actors[2].always["restart_only_servers"] = trouble
    with pytest.raises(GymCheckpointOperationError) as caught:
        await scene.environment.check_startup()
    assert list(caught.value.failures) == [scene.world.ids[2]]


async def test_restart_only_servers_are_warned_of(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """By default a server that cannot be captured is named in a warning."""
    scene.world.actors[1].always["restart_only_servers"] = ["browser", "shell"]
    await scene.environment.check_startup()
    [record] = [one for one in caplog.records if one.levelname == "WARNING"]
    assert f"browser of {scene.world.ids[1]}" in record.getMessage()
    assert "shell" in record.getMessage()


async def test_restart_only_servers_are_refused(scene: Scene) -> None:
    """On demand such a server is an error that carries all of them, and is not transient."""
    scene.world.actors[1].always["restart_only_servers"] = ["browser", "shell"]
    strict = scene.new_environment(restart_only="refuse")
    with pytest.raises(RestartOnlyDeployment) as caught:
        await strict.check_startup()
    assert caught.value.servers == {scene.world.ids[1]: ("browser", "shell")}
    assert not strict.is_unavailable(caught.value)


class Abandoned:
    """A controller that dies in the body of a snapshot: its loop goes on, but nothing of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.coordinator = scene.world.new_coordinator(journal=_Severed(scene.world.journal))
        self.environment = GymEnvironmentCheckpoint(self.coordinator, scene.source)
        self.task: asyncio.Task[None] | None = None

    async def begin(self) -> str:
        """Take a snapshot up to its body, and return its id."""
        inside = asyncio.Event()

        async def snapshot() -> None:
            async with self.environment.snapshot(self.scene.path):
                inside.set()
                await never()

        self.task = asyncio.create_task(snapshot())
        await inside.wait()
        return self.scene.of("prepare")[-1].wire_id

    async def end(self) -> None:
        """Let the body of the abandoned snapshot go."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})


class _Severed(MemoryJournal):
    """A journal in which one controller gives no heartbeat."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.__dict__ = journal.__dict__

    def heartbeat(self, run: str, operation_id: str, *, epoch: int) -> None:
        """Swallow it."""


async def test_unfinished_operations_are_settled_first(scene: Scene) -> None:
    """What a dead controller left is settled before anybody is asked, after its time is over."""
    dead = Abandoned(scene)
    left = await dead.begin()
    assert all(actor.holder == left for actor in scene.world.actors)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await scene.environment.check_startup()
    assert loop.time() - began_s >= OWNER_TIMEOUT_S / 2
    [found] = scene.environment.recovered
    assert (found.operation_id, found.found_in, found.state) == (left, "committed", "resumed")
    assert found.ended
    for actor in scene.world.actors:
        assert actor.holder is None
        assert actor.ops[-2:] == ["resume", "restart_only_servers"]
    await dead.end()


async def test_operation_of_a_living_controller(scene: Scene) -> None:
    """A living controller keeps its operation; whoever starts is told who holds it, once."""
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        held = scene.of("prepare")[0].wire_id
        owner = scene.world.journal.operation(scene.world.run, held)
        assert owner is not None
        second = GymEnvironmentCheckpoint(scene.world.new_coordinator(), scene.source)
        with pytest.raises(RunHeld) as caught:
            await second.check_startup()
        assert caught.value.run == scene.world.run
        assert caught.value.holder == owner.owner
        assert owner.owner in str(caught.value)
        assert "heartbeat" in str(caught.value)
        assert not scene.of("resume")
        assert [found.outcome for found in second.recovered] == ["held"]
    await second.check_startup()


async def test_second_startup_of_the_same_controller(new_scene: NewScene) -> None:
    """What this controller has taken over and not yet reopened is no operation of another's."""
    scene = new_scene(
        2, owner_timeout_s=OWNER_TIMEOUT_S, control_timeout_s=0.1, sweep_interval_s=60.0
    )
    for actor in scene.world.actors:
        actor.always["restart_only_servers"] = []
    dead = Abandoned(scene)
    left = await dead.begin()
    scene.world.actors[0].always["resume"] = ConnectionError("unreachable")
    await scene.environment.check_startup()
    assert [found.outcome for found in scene.environment.recovered] == ["unconfirmed"]
    assert scene.environment.recovered[0].unconfirmed == (scene.world.ids[0],)
    scene.world.actors[0].always.clear()
    scene.world.actors[0].always["restart_only_servers"] = []
    await scene.environment.check_startup()
    assert [found.operation_id for found in scene.environment.recovered] == [left]
    await until(lambda: scene.world.actors[0].holder is None)
    await until(lambda: scene.world.operation(left).settled)
    await scene.environment.check_startup()
    assert scene.environment.recovered == ()
    await dead.end()


async def test_next_snapshot_sweeps_what_recovery_left(new_scene: NewScene) -> None:
    """An instance that was unreachable in recovery is tried again when the next one begins."""
    scene = new_scene(
        2, owner_timeout_s=OWNER_TIMEOUT_S, control_timeout_s=0.1, sweep_interval_s=60.0
    )
    dead = Abandoned(scene)
    left = await dead.begin()
    scene.world.actors[0].always["resume"] = ConnectionError("unreachable")
    await scene.environment.check_startup()
    scene.world.actors[0].always.clear()
    assert scene.world.actors[0].holder == left
    async with scene.environment.snapshot(scene.path.with_name("next")) as snapshot:
        assert snapshot is not None
    calls = [call for call in scene.world.actors[0].calls if call.op != "renew"]
    ops = [(call.op, call.wire_id == left) for call in calls]
    assert ops[-2:] == [("commit", False), ("resume", False)]
    assert ops[ops.index(("prepare", False)) - 1] == ("resume", True)
    await until(lambda: scene.world.operation(left).settled)
    await dead.end()
