"""
A real coordinator among scripted instances, on a clock that takes no time, and what explains it.

A `Scene` is one training run: instances, a coordinator, its journal. Faults are put into it by
script; at any moment its operations can be explained as an operator would see them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.entry import Entry
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.explanation import Explanation
from gymckpt.journal import MemoryJournal
from gymckpt.runtime.holding import as_process
from gymckpt.runtime.virtual import VirtualClock, VirtualLoop, run_virtually
from tests.fakes import FakeActor, FakeShardSet, Late

T = TypeVar("T")

START_TS = 1_790_000_000.0
RUN = "run-1"
BUSY = "tools/replica-1"
"""The instance that most faults are put into."""


class WaitingJournal(MemoryJournal):
    """A journal in memory whose calls take as long as the loop says that they do."""

    blocks = True


class Scene:
    """One training run, from its first operation on."""

    def __init__(
        self, loop: VirtualLoop, root: Path, *, instances: int = 3, start_ts: float = START_TS
    ) -> None:
        """Begin with instances that answer soon, each a little later than the one before."""
        self.loop = loop
        self.root = root
        self.clock = VirtualClock(loop, wall_ts=start_ts)
        self.actors = [FakeActor() for _ in range(instances)]
        for place, actor in enumerate(self.actors):
            for call in ("prepare", "renew", "commit", "resume"):
                actor.always[call] = Late(0.1 * (place + 1))
        self.shards = FakeShardSet(*self.actors)
        self.journal = MemoryJournal()
        self.controllers = 0
        """How many there were: each is a process of its own."""
        self.coordinator = self.controller()

    def controller(self, journal: MemoryJournal | None = None) -> GymCheckpointCoordinator:
        """Return one more controller of the same run."""
        if journal is not None:
            self.journal = journal
        self.controllers += 1
        with as_process(f"controller-{self.controllers}"):
            return GymCheckpointCoordinator(
                self.shards,
                control_timeout_s=30.0,
                prepare_timeout_s=300.0,
                journal=self.journal,
                run=RUN,
                clock=self.clock,
            )

    @property
    def busy(self) -> FakeActor:
        """The instance that most faults are put into."""
        return self.actors[1]

    async def checkpoint(self, name: str, *, body_s: float = 1.0) -> BaseException | None:
        """Take one checkpoint, and return what it ended with."""
        nothing: dict[str, tuple[Any, ...]] = dict.fromkeys(self.coordinator.instance_ids, ())
        try:
            async with self.coordinator.prepared(name):
                await asyncio.sleep(body_s)
                await self.coordinator.commit(name, self.root / name, nothing, restarts={})
                await asyncio.sleep(body_s)
        except Exception as error:
            return error
        return None

    def begun(self, name: str, **how: Any) -> asyncio.Task[BaseException | None]:
        """Begin a checkpoint, without waiting for it."""
        return self.loop.create_task(self.checkpoint(name, **how))

    def entries(self, name: str) -> tuple[Entry, ...]:
        """Return the history of an operation."""
        return self.journal.read(RUN, name)

    def explain(self, name: str, *, later_s: float = 0.0, **known: Any) -> Explanation:
        """Explain an operation as it is now, or would be if nothing happened for a while."""
        row = self.journal.operation(RUN, name)
        assert row is not None
        known.setdefault("history", self.history(name))
        now_ts = self.clock.wall_ts() + later_s
        return explain(self.entries(name), now_ts=now_ts, owner=row.owner, epoch=row.epoch, **known)

    def history(self, name: str) -> Sequence[Sequence[Entry]]:
        """Return the operations before one, the latest first."""
        rows = [row.operation_id for row in self.journal.operations(RUN)]
        return [self.entries(one) for one in reversed(rows[: rows.index(name)])]


def play(root: Path, scene: Callable[[Scene], Coroutine[Any, Any, T]], **how: Any) -> T:
    """Play a scene on a virtual loop."""
    return run_virtually(lambda loop: scene(Scene(loop, root, **how)))
