"""Cancelled callers: at every await, twice, while a manifest is written, or merely abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gymckpt.manifest
from gymckpt.coordinator import GymCheckpointOperationError
from gymckpt.errors import GymCheckpointUnavailable, JournalUnavailable
from gymckpt.journal import Journal
from tests.fakes import HANG, ActorDiedError, Apply, FakeActor, Late
from tests.faults.conftest import NewWorld
from tests.faults.journals import TroubledJournal
from tests.faults.virtual import LoopClock, call_after, running_loop, simulate
from tests.faults.world import World, new_id, until

OPERATIONS = ("checkpoint", "restore", "retire", "forget", "resume")
VERBS = ("prepare", "renew", "commit", "resume_open", "restore_only", "retire_inside")
BEHAVIOURS: dict[str, Callable[[FakeActor], None]] = {
    "at once": lambda _actor: None,
    "slow": lambda actor: actor.fail_from(None, Late(0.02)),
    "hangs": lambda actor: actor.fail_from(None, HANG),
    "dead": lambda actor: actor.fail_from(None, ActorDiedError("dead")),
    "applied": lambda actor: actor.fail_from(None, Apply(HANG)),
    "refuses": lambda actor: actor.fail_from(None, GymCheckpointUnavailable("HTTP 503")),
    "closes only": lambda actor: actor.fail_from("resume", HANG),
}


async def _ready(world: World, verb: str, name: str) -> Callable[[], Awaitable[Any]]:
    """Bring a world to where a verb can be called, and return the call."""
    coordinator = world.coordinator
    if verb in OPERATIONS:
        return lambda: world.operate(verb, name)
    if verb == "prepare":
        return lambda: coordinator.prepare(name)
    if verb in ("restore_only", "retire_inside"):
        first = coordinator.restore(name, "/nowhere", world.manifest())
        if verb == "restore_only":
            return lambda: first
        await first
        return lambda: coordinator.retire_restored(name, world.manifest())
    await coordinator.prepare(name)
    if verb == "renew":
        return lambda: coordinator.renew(name)
    if verb == "commit":
        root = world.root(name)
        return lambda: coordinator.commit(name, root, world.offer(), restarts={})
    return lambda: coordinator.resume(name)


async def _cancelled(
    root: Path, verb: str, behaviour: str, blocks: bool, waits: tuple[int, ...]
) -> bool:
    """Cancel a verb after some turns of the loop; return whether it was early enough."""
    journal = TroubledJournal(blocks=blocks)
    settings = {"control_timeout_s": 3.0, "prepare_timeout_s": 3.0, "journal_timeout_s": 1.0}
    world = World(2, journal=journal, clock=LoopClock(), root=root, **settings)
    running_loop().job_s = lambda name: 0.004 if "journal" in name else 0.01
    name = new_id()
    try:
        call = await _ready(world, verb, name)
    finally:
        BEHAVIOURS[behaviour](world.actors[1])
    task = asyncio.ensure_future(call())
    cancels: list[bool] = []
    call_after(*waits, call=lambda: cancels.append(task.cancel()))
    began_s = running_loop().time()
    with contextlib.suppress(asyncio.CancelledError, GymCheckpointOperationError):
        await task
    assert running_loop().time() - began_s < 25.0
    hit = any(cancels)
    assert task.cancelled() == hit, "a cancellation must leave as itself"
    _require_cleaning_sent(world, name)
    if name in [row.operation_id for row in journal.operations(world.run, unfinished=True)]:
        with contextlib.suppress(Exception):
            await world.coordinator.resume(name)
    await world.examine()
    await asyncio.sleep(700)  # beyond the lease horizon
    await world.examine()
    assert journal.operations(world.run, unfinished=True) == ()
    return hit


def _require_cleaning_sent(world: World, name: str) -> None:
    """Once a verb has left, its cleaning up is on its way to every instance, unless it stands."""
    row = world.journal.operation(world.run, name)
    if row is None or row.state in ("parked", "restored", "committed", "open"):
        return
    for actor in world.actors:
        ops = [call.op for call in actor.calls if call.wire_id == name]
        if "prepare" in ops:
            assert "resume" in ops
        if "restore" in ops and row.state != "resuming":
            assert {"retire", "resume"} & set(ops)


@pytest.mark.parametrize("verb", [*OPERATIONS, *VERBS])
@pytest.mark.parametrize("blocks", [False, True])
def test_cancel_at_every_await(verb: str, blocks: bool, thorough: bool, tmp_path: Path) -> None:
    """Wherever a verb is cancelled, that leaves, S1 to S5 hold, and the operation ends."""
    for first, behaviour in enumerate(("at once", "slow"), 1):
        reached = 0
        for turns in itertools.count(first, 1 if thorough else 2):
            waits = (turns,)
            if not simulate(lambda w=waits, b=behaviour: _cancelled(tmp_path, verb, b, blocks, w)):
                break
            reached = turns
        assert reached >= 3


@given(
    verb=st.sampled_from([*OPERATIONS, *VERBS]),
    behaviour=st.sampled_from(sorted(BEHAVIOURS)),
    blocks=st.booleans(),
    waits=st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
)
def test_cancel_twice_anywhere(
    verb: str, behaviour: str, blocks: bool, waits: tuple[int, ...], tmp_path_factory: Any
) -> None:
    """A second and a third cancellation leave no instance closed, whenever they come."""
    root = tmp_path_factory.mktemp("twice")
    simulate(lambda: _cancelled(root, verb, behaviour, blocks, waits))


async def test_b38_second_cancel_in_the_cleanup(new_world: NewWorld, journal: Journal) -> None:
    """B38: all four instances are sent resume though a second cancel comes at once."""
    world = new_world(4, journal=journal, control_timeout_s=2.0)
    inside = asyncio.Event()
    for actor in world.actors:
        actor.always["resume"] = Late(0.1)

    async def caller() -> None:
        async with world.coordinator.prepared("b38"):
            inside.set()
            await asyncio.sleep(10)

    task = asyncio.create_task(caller())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() - began_s < 1
    assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * 4


@pytest.mark.parametrize("kind", ["prepared", "restored"])
async def test_cancelled_while_a_failed_body_is_cleaned_up(new_world: NewWorld, kind: str) -> None:
    """A cancellation that comes while an error is cleaned up leaves, and the error is its cause."""
    world = new_world(2, control_timeout_s=2.0)
    for actor in world.actors:
        actor.always["resume"] = Late(0.1)
    opened: Any = world.coordinator.prepared("failed")
    if kind == "restored":
        opened = world.coordinator.restored("failed", "/nowhere", world.manifest())
    wrong = ValueError("the body is wrong")

    async def caller() -> None:
        async with opened:
            raise wrong

    task = asyncio.create_task(caller())
    await until(lambda: all(actor.of("resume") for actor in world.actors))
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.__cause__ is wrong
    assert all(actor.of("resume")[-1].outcome == "answered" for actor in world.actors)
    assert world.operation("failed").state == "discarded"


async def test_b33_interrupted_restore_can_be_repeated(
    new_world: NewWorld, tmp_path: Path, journal: Journal
) -> None:
    """B33: a cancelled restore writes nothing into its source, which a later restore takes."""
    world = new_world(2, journal=journal, fenced=True, control_timeout_s=2.0)
    async with world.committed("saved", world.root()):
        pass
    manifest = gymckpt.manifest.load_gym_checkpoint_manifest(world.root())
    before = tree_hash(tmp_path / "snapshot")
    world.actors[1].scripts["restore"] = [Apply(HANG)]
    task = asyncio.create_task(world.coordinator.restore("first", world.root(), manifest))
    await until(lambda: world.actors[1].of("restore"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tree_hash(tmp_path / "snapshot") == before
    for actor, episodes in zip(world.actors, manifest.next_attempts().values(), strict=True):
        assert actor.ops[-3:] == ["restore", "retire", "resume"]
        assert actor.of("retire")[-1].args == ("first", episodes)
        assert not actor.running
    await world.coordinator.forget("forget", manifest.next_attempts())  # they are the same actors
    async with world.coordinator.restored("second", world.root(), manifest):
        assert tree_hash(tmp_path / "snapshot") == before
    assert world.operation("second").state == "resumed"
    running = {found for actor in world.actors for found in actor.running}
    assert running == {found for each in manifest.next_attempts().values() for found in each}


def tree_hash(root: Path) -> str:
    """Return a digest of every name and byte below a directory."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


@pytest.mark.parametrize("kind", ["prepared", "restored"])
async def test_b39_abandoned_context_manager(new_world: NewWorld, kind: str) -> None:
    """B39: a context manager that is dropped, not exited, reopens every instance."""
    world = new_world(2, control_timeout_s=2.0)
    opened: Any = world.coordinator.prepared("b39")
    if kind == "restored":
        opened = world.coordinator.restored("b39", "/nowhere", world.manifest())
    await opened.__aenter__()
    del opened
    gc.collect()
    await until(lambda: all(actor.of("resume") for actor in world.actors))
    await world.quiet()
    assert world.operation("b39").state == "discarded"


@pytest.mark.parametrize("ends", ["cancelled", "lost lease", "second task"])
async def test_b40_cancelled_while_the_manifest_is_written(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, journal: Journal, ends: str
) -> None:
    """B40: once commit has left with an error, no manifest ever appears, however late it is."""
    writing, go_on = threading.Event(), threading.Event()
    write_beside = gymckpt.manifest.write_beside

    def slowly(*args: Any, **kwargs: Any) -> Path:
        written = write_beside(*args, **kwargs)
        writing.set()
        go_on.wait(3)
        return written

    monkeypatch.setattr(gymckpt.manifest, "write_beside", slowly)
    world = new_world(2, journal=journal, control_timeout_s=0.6)

    async def caller() -> None:
        async with world.committed("b40", world.root()):
            pytest.fail("the commit succeeded")

    task = asyncio.create_task(caller())
    await until(writing.is_set)
    if ends == "cancelled":
        task.cancel()
    elif ends == "lost lease":
        world.actors[0].fail_from("renew", ActorDiedError("dead"))
    else:
        await asyncio.wait_for(world.coordinator.resume("b40"), 3)
    with pytest.raises((asyncio.CancelledError, RuntimeError)):
        await task
    assert not (world.root() / "gym_checkpoint.json").exists()
    go_on.set()
    await asyncio.sleep(0.1)
    assert list(world.root().iterdir()) == []
    assert world.operation("b40").state == "discarded"


async def test_cancel_of_a_timeout_around_everything(new_world: NewWorld) -> None:
    """A caller's own `asyncio.timeout` still turns its cancellation into TimeoutError."""
    world = new_world(2, prepare_timeout_s=30.0)
    world.actors[0].always["prepare"] = HANG
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), world.coordinator.prepared("timeout"):
            pytest.fail("the body was entered")
    assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * 2


async def test_wait_for_a_verb(new_world: NewWorld) -> None:
    """`asyncio.wait_for` around a verb gives up within the budget of cleaning up."""
    world = new_world(1, control_timeout_s=30.0)
    world.actors[0].always["restore"] = HANG
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(
            world.coordinator.restore("wait", "/nowhere", world.manifest()), 0.02
        )
    assert world.actors[0].ops == ["restore", "retire", "resume"]


def test_cancelled_while_a_failure_is_explained(tmp_path: Path) -> None:
    """A second cancellation leaves nothing behind where the explanation then cannot be read."""

    async def main() -> None:
        journal = TroubledJournal(blocks=True)
        world = World(1, journal=journal, clock=LoopClock(), root=tmp_path, settle_s=0.0)
        world.actors[0].scripts["prepare"] = [ValueError("no")]
        takes_s, read = [0.001], journal.read
        running_loop().job_s = lambda name: takes_s[0] if "journal" in name else 0.0

        def unreadable(*_args: Any, **_kwargs: Any) -> Any:
            raise JournalUnavailable("gone, says the test")

        journal.read = unreadable
        preparing = asyncio.ensure_future(world.coordinator.prepare("told"))
        await until(lambda: world.actors[0].ops[-1:] == ["resume"])
        await until(lambda: (row := journal.operation(world.run, "told")) and row.settled)
        takes_s[0] = 1.0  # the read that explains
        for _ in range(2):
            await asyncio.sleep(0.1)
            preparing.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await preparing
        assert isinstance(caught.value.__cause__, GymCheckpointOperationError)
        await asyncio.sleep(2)
        del preparing, caught
        gc.collect()
        journal.read = read
        await world.examine()

    simulate(main)


class _Slow(TroubledJournal):
    """A journal whose opening of an operation waits for the test."""

    def __init__(self) -> None:
        super().__init__(blocks=True)
        self.under_way = threading.Event()
        self.go_on = threading.Event()

    def _insert(self, operation: Any, rows: Any, *, driven: bool) -> None:
        self.under_way.set()
        assert self.go_on.wait(10.0)
        super()._insert(operation, rows, driven=driven)


@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_cancelled_while_the_opening_is_recorded(new_world: NewWorld, cancels: int) -> None:
    """L2: a caller who gives up while its operation is opened leaves nothing open behind."""
    journal = _Slow()
    world = new_world(1, journal=journal)
    task = asyncio.ensure_future(world.coordinator.prepare("slow"))
    await until(journal.under_way.is_set)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.done() == (cancels > 1)
    journal.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    rows = world.journal.operations
    await until(lambda: [row.state for row in rows(world.run)] == ["discarded"])
    assert not any(actor.calls for actor in world.actors)
