"""What a handle may give to await, and event loops that come and go."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from gymckpt.coordinator import GymCheckpointOperationError, is_transient_gym_checkpoint_failure
from gymckpt.journal import open_journal
from gymckpt.journal.memory import MemoryJournal
from tests.fakes import HANG, FakeActor
from tests.faults.conftest import NewWorld
from tests.faults.world import SHORT, World


class Plain:
    """An object that can only be awaited."""

    def __init__(self, running: Any) -> None:
        self._running = running

    def __await__(self) -> Generator[Any, None, Any]:
        return (yield from self._running.__await__())


class Frozen(Plain):
    """One that takes no attributes and is not hashable."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


def _shielded(running: Any) -> Any:
    return asyncio.shield(asyncio.ensure_future(running))


REFERENCES: dict[str, Callable[[Any], Any]] = {
    "coroutine": lambda running: running,
    "task": asyncio.ensure_future,
    "shielded future": _shielded,
    "awaitable": Plain,
    "odd awaitable": Frozen,
}


class Handle:
    """Wraps what an actor gives."""

    def __init__(self, actor: FakeActor, wrap: Callable[[Any], Any]) -> None:
        self._actor, self._wrap = actor, wrap

    def __getattr__(self, name: str) -> Any:
        method, wrap = getattr(self._actor, name), self._wrap

        class Method:
            def remote(self, *args: Any, **kwargs: Any) -> Any:
                return wrap(method.remote(*args, **kwargs))

        return Method()


def wrapped(world: World, wrap: Callable[[Any], Any]) -> World:
    """Let every handle of a world give other references."""
    world.shards.checkpoint_handles = {
        name: Handle(actor, wrap) for name, actor in world.shards.checkpoint_handles.items()
    }
    _ = world.coordinator  # which reads them once
    world.shards.checkpoint_handles = dict(zip(world.ids, world.actors, strict=True))
    return world


@pytest.mark.parametrize("kind", sorted(REFERENCES))
async def test_any_awaitable(new_world: NewWorld, kind: str) -> None:
    """Whatever kind of awaitable calls give, a checkpoint and a restore succeed."""
    world = wrapped(new_world(3), REFERENCES[kind])
    await world.operate("checkpoint", "saved")
    await world.operate("restore", "loaded")
    assert world.operation("saved").state == world.operation("loaded").state == "resumed"


@pytest.mark.parametrize("kind", [kind for kind in sorted(REFERENCES) if kind[0] != "s"])
@pytest.mark.parametrize("verb", ["prepare", "commit", "resume"])
async def test_any_awaitable_that_hangs(new_world: NewWorld, kind: str, verb: str) -> None:
    """Whatever kind of awaitable hangs, it is given up in time and leaves no task behind."""
    world = wrapped(new_world(2, **SHORT), REFERENCES[kind])
    world.actors[0].always[verb] = HANG
    if verb == "resume":
        await world.operate("checkpoint", "hangs")
        return
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.operate("checkpoint", "hangs")
    assert is_transient_gym_checkpoint_failure(caught.value)


NO_REFERENCES: dict[str, Callable[[Any], Any]] = {
    "None": lambda _running: None,
    "a value": lambda _running: {"prepared": True},
    "a thread's future": lambda _running: concurrent.futures.Future(),
    "an awaitable that is none": lambda _running: type("Bad", (), {"__await__": 5})(),
    "an awaitable of nothing": lambda _running: type("Bad", (), {"__await__": lambda _s: 5})(),
    "an awaitable of odd things": lambda _running: type(
        "Bad", (), {"__await__": lambda _s: iter([5])}
    )(),
}


@pytest.mark.parametrize("kind", sorted(NO_REFERENCES))
async def test_no_awaitable(new_world: NewWorld, kind: str) -> None:
    """A call that gives nothing to await fails as that instance, and for good."""

    def wrap(running: Any) -> Any:
        running.close()
        return NO_REFERENCES[kind](running)

    world = wrapped(new_world(1), wrap)
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.prepare("nothing")
    assert caught.value.operation == "prepare"
    assert not is_transient_gym_checkpoint_failure(caught.value)
    assert world.actors[0].ops == ["prepare", "resume"]


@pytest.mark.parametrize("stored", ["memory", "sqlite"])
def test_one_loop_for_each_operation(tmp_path: Path, stored: str) -> None:
    """A coordinator may be used from one event loop after another, whatever was left behind."""
    journal = MemoryJournal() if stored == "memory" else open_journal(tmp_path / "journal.sqlite3")
    world = World(2, root=tmp_path, journal=journal, **SHORT)

    async def operate(kind: str, name: str) -> None:
        await world.operate(kind, name)

    world.actors[0].scripts["resume"] = [HANG, HANG]
    asyncio.run(operate("checkpoint", "first"))
    assert world.operation("first").state == "resuming"
    asyncio.run(operate("restore", "second"))
    asyncio.run(operate("checkpoint", "third"))
    asyncio.run(world.examine())
    for name in ("first", "second", "third"):
        assert world.operation(name).state == "resumed"
    journal.close()
