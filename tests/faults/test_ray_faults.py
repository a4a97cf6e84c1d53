"""Real Ray actors that die, block, hang, come back empty, or raise what cannot be carried."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray
import ray.exceptions

from gymckpt import ShardSet
from gymckpt.coordinator import (
    GymCheckpointCoordinator,
    GymCheckpointManifest,
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    is_transient_gym_checkpoint_failure,
    load_gym_checkpoint_manifest,
)
from gymckpt.core.replay import replay
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.journal import Journal, open_journal

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

E = EnvironmentEpisode


def make_actor_class() -> Any:
    """Return the class of a scripted deployment; Ray carries it by value."""

    class Deployment:
        """Keeps what a deployment keeps: the fence, the phase, and a log of its calls."""

        def __init__(self) -> None:
            self.log: list[tuple[str, str]] = []
            self.does: dict[str, tuple[str, float]] = {}
            self.resumed: set[str] = set()
            self.running: list[str] = []
            self.holder = ""

        async def calls(self) -> list[tuple[str, str]]:
            """Return what was called so far, in order."""
            return list(self.log)

        async def goes_on(self) -> list[str]:
            """Return the restored attempts that were resumed."""
            return list(self.running)

        async def do(self, op: str, what: str, seconds: float = 0.0) -> None:
            """Let every later call of one kind misbehave, until it is told otherwise."""
            self.does[op] = (what, seconds)

        async def _begin(self, op: str, wire_id: str) -> None:
            import os
            import threading

            from gymckpt.errors import GymCheckpointUnavailable

            self.log.append((op, wire_id))
            what, seconds = self.does.get(op, ("", 0.0))
            if what == "block":
                self.does.pop(op)
                time.sleep(seconds)  # noqa: ASYNC251 - that is the fault
            elif what == "hang":
                await asyncio.sleep(seconds)
            elif what == "die":
                os._exit(1)
            elif what == "lock":

                class HeaderError(ConnectionError):
                    def __init__(self) -> None:
                        super().__init__("holds a header object")
                        self.header = threading.Lock()

                raise HeaderError
            elif what == "arguments":

                class TwoArgumentsError(Exception):
                    def __init__(self, first: str, second: str) -> None:
                        super().__init__(f"{first} {second}")

                raise TwoArgumentsError("lost", "type")
            elif what == "unavailable":
                raise GymCheckpointUnavailable("HTTP 503 unavailable")
            elif what == "timeout":
                raise TimeoutError("inside of the deployment")
            elif what == "value":
                raise ValueError("broken invariant")
            if op != "resume" and wire_id in self.resumed:
                self.log[-1] = (f"{op} refused", wire_id)
                raise GymCheckpointUnavailable(f"HTTP 409 stale_checkpoint {wire_id}")

        async def checkpoint_prepare(self, wire_id: str, *, deadline_ts: float) -> Any:
            from gymckpt.replies import GymCheckpointPrepareSummary

            await self._begin("prepare", wire_id)
            self.holder = wire_id
            ready = self.does.get("prepare", ("", 0))[0] != "not ready"
            return GymCheckpointPrepareSummary(ready, {} if ready else {"agent": ("r9",)})

        async def checkpoint_renew(self, wire_id: str, *, deadline_ts: float) -> None:
            from gymckpt.errors import GymCheckpointUnavailable

            await self._begin("renew", wire_id)
            if self.holder != wire_id:
                raise GymCheckpointUnavailable(f"HTTP 409 invalid_phase {wire_id}")

        async def checkpoint_commit(
            self, wire_id: str, root: str, episodes: Any, *, deadline_ts: float
        ) -> Any:
            from gymckpt.replies import GymCheckpointCommitSummary

            await self._begin("commit", wire_id)
            rows = {episode: (f"{episode.capture_key}/c0",) for episode in episodes}
            keys = tuple(sorted(key for row in rows.values() for key in row))
            return GymCheckpointCommitSummary(tuple(episodes), keys, ("agent",), rows)

        async def checkpoint_restore(
            self,
            wire_id: str,
            root: str,
            episodes: Any,
            *,
            source_checkpoint_id: str,
            participants: Any,
            deadline_ts: float,
        ) -> None:
            await self._begin("restore", wire_id)
            self.holder = wire_id
            self.running = [episode.next_attempt().capture_key for episode in episodes]

        async def checkpoint_retire(
            self, wire_id: str, episodes: Any, *, deadline_ts: float
        ) -> None:
            await self._begin("retire", wire_id)
            gone = {episode.capture_key for episode in episodes}
            self.running = [key for key in self.running if key not in gone]

        async def checkpoint_resume(self, wire_id: str, *, deadline_ts: float) -> None:
            await self._begin("resume", wire_id)
            self.resumed.add(wire_id)

        async def checkpoint_restart_only_servers(self) -> list[str]:
            return ["tools"]

        async def begin(self, op: str) -> None:
            """Do what a call of this name is to do."""
            await self._begin(op, "")

        async def relay(self, error: BaseException) -> None:
            """Raise an error that came from somewhere else."""
            raise error

    return ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Deployment)


class Fleet:
    """Some actors, their coordinator and its journal."""

    def __init__(self, actors: list[Any], journal: Journal) -> None:
        self.actors = actors
        self.journal = journal
        self.settings: dict[str, Any] = {"control_timeout_s": 5.0, "prepare_timeout_s": 5.0}
        self.run = f"ray-{time.monotonic_ns()}"

    def coordinator(self, **settings: Any) -> GymCheckpointCoordinator:
        """Return a new coordinator over all actors."""
        fixed = {**self.settings, "journal": self.journal, "run": self.run}
        return GymCheckpointCoordinator(
            ShardSet(handles={"tools": self.actors}), **fixed | settings
        )

    def offer(self) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Return one episode on each instance."""
        return {f"tools/replica-{n}": (E(f"r{n}", 0),) for n in range(len(self.actors))}

    async def calls(self, number: int) -> list[str]:
        """Return the calls that one actor saw, without renewals."""
        log = await self.actors[number].calls.remote()
        return [op for op, _ in log if op != "renew"]

    def state(self, wire_id: str) -> str:
        """Return where an operation stands."""
        return replay(self.journal.read(self.run, wire_id)).state


@pytest.fixture(scope="module")
def actor_class() -> Any:
    """Make the class once."""
    return make_actor_class()


@pytest.fixture
def fleet(tmp_path: Path, actor_class: Any) -> Iterator[NewFleet]:
    """Start fleets, and stop their actors afterwards."""
    started: list[Any] = []
    with open_journal(tmp_path / "journal.sqlite3") as journal:

        def start(count: int, **options: Any) -> Fleet:
            actors = [actor_class.options(**options).remote() for _ in range(count)]
            started.extend(actors)
            ray.get([actor.calls.remote() for actor in actors])
            return Fleet(actors, journal)

        yield start
    for actor in started:
        ray.kill(actor)


NewFleet = Callable[..., Fleet]


async def test_checkpoint_and_restore(fleet: NewFleet, tmp_path: Path) -> None:
    """Over real actors a checkpoint is saved, restored as next attempts, and all are reopened."""
    ships = fleet(3)
    coordinator = ships.coordinator()
    assert await coordinator.restart_only_servers() == {i: ["tools"] for i in ships.offer()}
    async with coordinator.prepared("save"):
        result = await coordinator.commit("save", tmp_path, ships.offer(), restarts={})
    manifest = load_gym_checkpoint_manifest(tmp_path)
    assert manifest == result.manifest
    async with coordinator.restored("load", tmp_path, manifest):
        pass
    for number in range(3):
        ops = ["prepare", "commit", "resume", "restore", "resume"]
        assert await ships.calls(number) == ops
        assert await ships.actors[number].goes_on.remote() == [f"r{number}-a1"]
    assert (ships.state("save"), ships.state("load")) == ("resumed", "resumed")


async def test_a_refusal_is_recorded_and_explained_as_the_actor_said_it(fleet: NewFleet) -> None:
    """The journal, the error and its explanation give the actor's own class and text, no more."""
    ships = fleet(2)
    await ships.actors[1].do.remote("prepare", "unavailable")
    said = "GymCheckpointUnavailable: HTTP 503 unavailable"
    with pytest.raises(GymCheckpointOperationError, match=said) as caught:
        async with ships.coordinator().prepared("refused"):
            pytest.fail("it parked")
    entries = ships.journal.read(ships.run, "refused")
    failures = [entry.facts["failure"] for entry in entries if "failure" in entry.facts]
    assert failures
    assert {f"{failure['type']}: {failure['text']}" for failure in failures} == {said}
    told = [str(caught.value), *caught.value.__notes__, *(str(entry.facts) for entry in entries)]
    assert any("replica-1 failed prepare after" in line and said in line for line in told)
    assert not any("\x1b" in line or "ray::" in line or "\n" in line for line in told)


async def test_b5_actor_is_killed_in_the_body(fleet: NewFleet) -> None:
    """B5: an actor that is killed while its lease is renewed ends the body, its peer is resumed."""
    ships = fleet(2)
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with ships.coordinator(control_timeout_s=1.0).prepared("killed"):
            ray.kill(ships.actors[1])
            await asyncio.sleep(30)
    assert caught.value.operation == "renew"
    (failure,) = caught.value.failures.values()
    assert isinstance(failure, ray.exceptions.RayActorError)
    assert is_transient_gym_checkpoint_failure(caught.value)
    assert await ships.calls(0) == ["prepare", "resume"]
    assert ships.state("killed") == "discarded"


async def test_b35_dead_beside_hanging(fleet: NewFleet, tmp_path: Path) -> None:
    """B35: the death of one actor and the timeout of another are reported together, in time."""
    ships = fleet(3)
    await ships.actors[0].do.remote("commit", "die")
    await ships.actors[1].do.remote("commit", "hang", 60.0)
    coordinator = ships.coordinator(control_timeout_s=0.5, settle_s=3.0)
    began_s = time.monotonic()
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with coordinator.prepared("mixed"):
            await coordinator.commit("mixed", tmp_path / "root", ships.offer(), restarts={})
    assert time.monotonic() - began_s < 8
    assert caught.value.operation == "commit"
    failures = caught.value.failures
    assert set(failures) == {"tools/replica-0", "tools/replica-1"}
    assert isinstance(failures["tools/replica-0"], ray.exceptions.RayActorError)
    assert type(failures["tools/replica-1"]) is TimeoutError
    assert is_transient_gym_checkpoint_failure(caught.value)
    assert not (tmp_path / "root" / "gym_checkpoint.json").exists()
    assert (await ships.calls(1))[-1] == (await ships.calls(2))[-1] == "resume"


async def test_b18_b19_b23_errors_across_the_boundary(fleet: NewFleet) -> None:
    """B18, B19, B23: what loses its type on the way is no transient error; each error travels."""
    ships = fleet(2)
    coordinator = ships.coordinator()
    expected = {
        "lock": False,
        "arguments": False,
        "value": False,
        "unavailable": True,
        "timeout": True,
    }
    for number, (what, transient) in enumerate(expected.items()):
        await ships.actors[1].do.remote("prepare", what)
        with pytest.raises(GymCheckpointOperationError) as caught:
            await coordinator.prepare(f"odd-{number}")
        assert is_transient_gym_checkpoint_failure(caught.value) is transient, what
        for module in (pickle, cloudpickle):
            again = pickle.loads(module.dumps(caught.value))
            assert (again.operation, str(again)) == ("prepare", str(caught.value))
            assert is_transient_gym_checkpoint_failure(again) <= transient
        with pytest.raises(GymCheckpointOperationError) as relayed:
            await ships.actors[0].relay.remote(caught.value)
        assert relayed.value.operation == "prepare"
        assert set(relayed.value.failures) == {"tools/replica-1"}
        assert is_transient_gym_checkpoint_failure(relayed.value) <= transient
    await ships.actors[1].do.remote("prepare", "not ready")
    with pytest.raises(GymCheckpointNotReady) as not_ready:
        await coordinator.prepare("not-ready")
    with pytest.raises(GymCheckpointNotReady) as relayed_too:
        await ships.actors[0].relay.remote(not_ready.value)
    assert relayed_too.value.blockers == {"tools/replica-1": {"agent": ("r9",)}}


async def test_b23_actor_without_the_methods(fleet: NewFleet) -> None:
    """B23: an actor that lacks a method fails as that instance, its peers are resumed."""
    ships = fleet(1)

    @ray.remote(num_cpus=0)
    class Empty:
        def checkpoint_resume(self, wire_id: str, *, deadline_ts: float) -> None:
            raise AttributeError("'NemoGym' object has no attribute 'rch'")

    ships.actors.append(Empty.remote())
    with pytest.raises(GymCheckpointOperationError) as caught:
        await ships.coordinator().prepare("empty")
    assert set(caught.value.failures) == {"tools/replica-1"}
    assert not is_transient_gym_checkpoint_failure(caught.value)
    assert await ships.calls(0) == ["prepare", "resume"]


async def test_b30_blocked_actor(fleet: NewFleet, tmp_path: Path) -> None:
    """B30: calls that queued behind a block are cancelled or refused, and the next one succeeds."""
    ships = fleet(2)
    await ships.actors[1].do.remote("prepare", "block", 6.0)
    coordinator = ships.coordinator(control_timeout_s=0.3, prepare_timeout_s=0.3)
    for number in range(2):
        with pytest.raises(GymCheckpointOperationError) as caught:
            await coordinator.prepare(f"blocked-{number}")
        assert set(caught.value.failures) == {"tools/replica-1"}
        assert is_transient_gym_checkpoint_failure(caught.value)
    log = await ships.actors[1].calls.remote()  # answers when the block is over
    late = [(op, wire_id) for op, wire_id in log if wire_id != "blocked-0"]
    assert [op for op, _ in late if op not in ("resume", "prepare refused")] == []
    coordinator = ships.coordinator()
    async with coordinator.prepared("after"):
        await coordinator.commit("after", tmp_path / "root", ships.offer(), restarts={})
    assert ships.state("after") == "resumed"


async def test_b9_restore_fails_on_one(fleet: NewFleet, tmp_path: Path) -> None:
    """B9: an actor that dies in a restore: what the other one had installed does not go on."""
    ships = fleet(2)
    coordinator = ships.coordinator()
    async with coordinator.prepared("save"):
        result = await coordinator.commit("save", tmp_path, ships.offer(), restarts={})
    await ships.actors[1].do.remote("restore", "die")
    with pytest.raises(GymCheckpointOperationError) as caught:
        await coordinator.restore("load", tmp_path, result.manifest)
    assert isinstance(caught.value.failures["tools/replica-1"], ray.exceptions.RayActorError)
    assert (await ships.calls(0))[-3:] == ["restore", "retire", "resume"]
    assert await ships.actors[0].goes_on.remote() == []
    assert ships.state("load") == "discarded"


async def test_s5_an_actor_that_restarts_during_the_body(fleet: NewFleet, tmp_path: Path) -> None:
    """An actor that Ray starts anew has lost what was restored: the restore is given up on all."""
    ships = fleet(2, max_restarts=-1)
    coordinator = ships.coordinator(control_timeout_s=2.0)
    async with coordinator.prepared("save"):
        result = await coordinator.commit("save", tmp_path, ships.offer(), restarts={})
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with coordinator.restored("load", tmp_path, result.manifest):
            await ships.actors[1].do.remote("exit", "die")
            with pytest.raises(ray.exceptions.RayActorError):
                await ships.actors[1].begin.remote("exit")
            async with asyncio.timeout(30):
                while await _is_starting(ships.actors[1]):
                    pass  # each look is a call to the actor
    assert (caught.value.operation, set(caught.value.failures)) == ("renew", {"tools/replica-1"})
    assert ships.state("load") == "discarded"
    assert [await actor.goes_on.remote() for actor in ships.actors] == [[], []]
    assert (await ships.calls(0))[-3:] == ["restore", "retire", "resume"]


async def _is_starting(actor: Any) -> bool:
    """Whether an actor that is to restart does not answer yet."""
    try:
        await actor.calls.remote()
    except ray.exceptions.RayActorError:
        await asyncio.sleep(0.05)
        return True
    return False


async def test_b33_everything_dies_in_a_restore(fleet: NewFleet, tmp_path: Path) -> None:
    """Recovery tells new actors nothing of a restore that others were in: it can be done again."""
    old = fleet(2)
    await old.actors[1].do.remote("restore", "hang", 60.0)
    none = dict.fromkeys(old.offer(), ())
    manifest = GymCheckpointManifest(
        2, "saved", old.offer(), none, none, dict.fromkeys(none, ("agent",))
    )
    restoring = asyncio.ensure_future(old.coordinator().restore("first", tmp_path, manifest))
    while "restore" not in await old.calls(1):  # noqa: ASYNC110 - it is the actor's to say
        await asyncio.sleep(0.01)
    as_it_was = tmp_path / "as-it-was.sqlite3"
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as source,
        contextlib.closing(sqlite3.connect(as_it_was)) as target,
    ):
        source.backup(target)
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    new = fleet(2)
    with open_journal(as_it_was) as journal:
        new.journal, new.run = journal, old.run
        coordinator = new.coordinator()
        [found] = await coordinator.recover(force=True)
        assert (found.found_in, found.state) == ("restoring", "discarded")
        async with coordinator.restored("again", tmp_path, manifest):
            pass
        assert [await new.calls(number) for number in range(2)] == [["restore", "resume"]] * 2
        assert new.state("again") == "resumed"


async def test_cancelled_caller(fleet: NewFleet) -> None:
    """A cancelled prepare leaves as cancelled, its calls end, and every actor is resumed."""
    ships = fleet(2)
    await ships.actors[1].do.remote("prepare", "hang", 60.0)
    preparing = asyncio.ensure_future(ships.coordinator().prepare("gone"))
    async with asyncio.timeout(20):
        while not await ships.calls(1):
            pass  # each look is a call to the actor
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert await ships.calls(0) == await ships.calls(1) == ["prepare", "resume"]
    assert ships.state("gone") == "discarded"
