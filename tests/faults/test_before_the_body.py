"""
Whatever is raised between the opening of an operation and its body, everything reopens.

An exception is planted at every single call that the verb's own task makes there: in the
coordinator, in what it holds of the operation, in its wire, in the standard library's context
managers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gymckpt.core.replay import replay
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World

BETWEEN = frozenset(
    {"coordinator.py", "running.py", "calls.py", "contextlib.py", "manifest_schema.py", "owed.py"}
)
"""The files of what runs between an operation's opening and its body, but for its driver."""


class Planted(RuntimeError):
    """An ordinary error of a kind that nothing expects."""


class PlantedInterrupt(BaseException):
    """One that is no ordinary error, as an interrupt is none."""


class Plant:
    """Raises at the n-th call that one task makes in some files, while something is so."""

    def __init__(self, at: int, error: type[BaseException], now: Callable[[], bool]) -> None:
        self.calls = 0
        self.where = ""
        self._at, self._error, self._now = at, error, now
        self._over = False

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Watch until the block ends."""
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" and not (event == "call" and _begins(frame)):
            return
        if frame.f_code.co_filename.rpartition("/")[2] not in BETWEEN or not self._now():
            return
        if frame.f_code.co_name == "__aexit__" and frame.f_locals["typ"] is None:
            self._over = True  # a verb that is no context manager has its result
        if self._over:
            return
        self.calls += 1
        if self.calls == self._at:
            name = getattr(called, "__qualname__", frame.f_code.co_qualname)
            self.where = f"{name} in {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise self._error(self.where)


def _begins(frame: FrameType) -> bool:
    """Whether a frame stands at its very beginning, and does not go on after an await."""
    return frame.f_code.co_code[frame.f_lasti + 1] == 0  # the argument of its RESUME


async def entered(world: World, verb: str, inside: list[str]) -> None:
    """Do what a caller does."""
    coordinator, source = world.coordinator, (world.root(), world.manifest())
    if verb == "prepare":
        await coordinator.prepare("it")
    elif verb == "restore":
        await coordinator.restore("it", *source)
    elif verb == "prepared":
        async with coordinator.prepared("it"):
            inside.append("body")
    else:
        async with coordinator.restored("it", *source):
            inside.append("body")
    inside.append("returned")


async def tried(root: Path, verb: str, at: int, error: type[BaseException]) -> tuple[int, str]:
    """Plant an error at one call, and hold what comes of it against the promises."""
    world = World(root=root, clock=LoopClock())
    inside: list[str] = []
    operations = world.coordinator._operations
    task: asyncio.Task[None] | None = None

    def between() -> bool:
        return asyncio.current_task() is task and operations.open is not None and not inside

    plant = Plant(at, error, between)
    with plant.planted():
        task = asyncio.ensure_future(entered(world, verb, inside))
        await asyncio.wait({task})
    if not plant.where:
        if verb in ("prepare", "restore"):
            await world.coordinator.resume("it")
        return plant.calls, ""
    left = asyncio.CancelledError() if task.cancelled() else task.exception()
    assert isinstance(left, error), (plant.where, left)
    assert inside == [], plant.where
    assert operations.open is None, plant.where
    await world.coordinator.prepare("next")
    await world.coordinator.resume("next")
    ended = replay(world.journal.read(world.run, "it"))
    assert ended.state == "discarded", (plant.where, ended.state)
    await world.examine()
    return plant.calls, plant.where


@pytest.mark.parametrize("error", [Planted, PlantedInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("verb", ["prepared", "restored", "prepare", "restore"])
def test_no_call_before_the_body_leaves_an_operation_open(
    tmp_path: Path, verb: str, error: type[BaseException]
) -> None:
    """An error at any call gives the operation up, reopens every instance and leaves as itself."""
    calls, _ = simulate(lambda: tried(tmp_path, verb, 0, error))
    assert calls > 10
    places = [simulate(lambda at=at: tried(tmp_path, verb, at, error)) for at in range(1, calls)]
    assert all(where for _, where in places)
