"""
Run one seed from its plan to its end.

A run owns its process while it lasts: the names that are unique, the files' `os` and the library's
log are its own, so that one seed gives one timeline.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

from gymckpt.runtime.virtual import NothingLeft
from gymckpt.testing.account import Broken
from gymckpt.testing.simulation.coverage import Coverage
from gymckpt.testing.simulation.ending import hold_end
from gymckpt.testing.simulation.loop import SimulatedLoop, running_process
from gymckpt.testing.simulation.plan import Plan, seeded
from gymckpt.testing.simulation.storage import replaced_system
from gymckpt.testing.simulation.timeline import Timeline
from gymckpt.testing.simulation.world import World

__all__ = ["Outcome", "simulate"]

MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where there is one


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of one seed."""

    plan: Plan
    problems: tuple[str, ...]
    """The promises that were seen broken, each in a line that begins with its name."""
    timeline: tuple[str, ...]
    """Empty where nothing was broken and nobody asked for it."""
    coverage: Coverage
    operations: int
    """How many operations were opened."""
    seconds: float
    """How much time has passed in it."""
    passed: tuple[tuple[int, ...], ...]
    """Of each controller, how many points its startup has passed, and each verb after that."""


class _Log(logging.Handler):
    """Puts what the library says into the timeline."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(logging.WARNING)
        self._timeline = timeline

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        process = running_process()
        who = "log" if process is None else process.name
        self._timeline.note(who, f"says ({record.levelname.lower()}): {record.getMessage()}")


@contextlib.contextmanager
def _logged(timeline: Timeline) -> Iterator[None]:
    logger, handler = logging.getLogger("gymckpt"), _Log(timeline)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    place = tempfile.mkdtemp(prefix="gymckpt-sim-", dir=MEMORY if MEMORY.is_dir() else None)
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def simulate(plan: Plan, *, timeline: bool = False) -> Outcome:
    """
    Run a plan.

    Args:
        plan: What is to happen.
        timeline: Whether to keep the timeline of a run in which nothing was broken.
    """
    loop = SimulatedLoop(seeded(plan.seed, "loop"))
    with _directory() as base, _collected():
        world = World(plan, loop, base)
        with (
            _logged(world.timeline),
            _buried(loop),
            replaced_system(world.disk_of, seeded(plan.seed, "names"), world.published),
            contextlib.closing(world),
        ):
            _play(world)
        wanted = timeline or world.problems
        outcome = Outcome(
            plan=plan,
            problems=tuple(str(one).replace(str(base), "") for one in world.problems),
            timeline=tuple(world.timeline.lines(without=[str(base)]) if wanted else ()),
            coverage=world.coverage,
            operations=len(world.watch.operations),
            seconds=loop.time(),
            passed=tuple(tuple(one.passed) for one in world.controllers.values()),
        )
        del world
    return outcome


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """
    Collect no garbage before the end of a run.

    What a killed process leaves behind must not be cleaned up in the middle of it. What was there
    before the run is not searched after it.
    """
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        with _silence():
            gc.collect()
        gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _buried(loop: SimulatedLoop) -> Iterator[None]:
    """End a loop when the context exits."""
    try:
        yield
    finally:
        with _silence():
            loop.bury()
            loop.close()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Report no coroutine that was never awaited to its end: its process was killed."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _play(world: World) -> None:
    try:
        world.loop.run_until_complete(_both(world))
    except NothingLeft as error:
        world.broken(Broken("L1", str(error)))


async def _both(world: World) -> None:
    await world.perform()
    await hold_end(world)
    world.network.closed = True
