"""
Everything that one run of a coordinator machine consists of.

A `Stage` has a loop, a clock, a directory, instances behind scripts of faults, a journal, and one
controller after the other. It knows what a trainer knows: which rollouts run, which checkpoints
stand. What must hold of it is the business of `gymckpt.testing.promises`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.journal import Journal, MemoryJournal, MemoryStore
from gymckpt.manifest import (
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
)
from gymckpt.runtime.holding import as_process
from gymckpt.runtime.virtual import VirtualClock
from gymckpt.testing.account import Broken
from gymckpt.testing.controllers import Body, Controller
from gymckpt.testing.fakes import FakeInstance
from gymckpt.testing.faults import FaultyHandle
from gymckpt.testing.processes import Process, process_loop
from gymckpt.testing.watch import Judged, Line, Watch

__all__ = ["Held", "Stage"]

START_TS = 1_700_000_000.0
SHARD = "stage"
INSTANT_S = 1e-3
MEMORY = Path("/dev/shm")  # noqa: S108 - where there is one, no run waits for a disk
Episodes = dict[str, tuple[EnvironmentEpisode, ...]]


async def _nothing(*_given: object) -> None:
    """Have no episodes, and nothing to let go of."""


@attrs.frozen(kw_only=True)
class Held:
    """An instance of the machine: how a controller calls it, and how the machine looks at it."""

    handle: Any
    """Its `checkpoint_*` methods have a `.remote`; what a coordinator would get."""
    is_open: Callable[[], bool]
    """Whether nothing holds it, now."""
    runs: Callable[[EnvironmentEpisode], bool]
    """Whether it has that attempt and would let it go on when open."""
    dispatch: Callable[[EnvironmentEpisode], Awaitable[None]] = _nothing
    """Begins an attempt; returns when that is under way."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Lets go of it."""


class Stage:
    """
    One run.

    Attributes:
        controller: The controller that drives it now.
        former: The controllers before it.
        asleep: Controllers that were stopped and not woken yet.
        saved: The checkpoints that stand: their directory and manifest.
        rollouts: Instance id and attempt of every rollout that goes on.
        finished: Instance id and last attempt of every rollout that was retired.
        watch: What went over the wires.
        journal: The journal, opened once more, to look at.
        run: The name of the run.
        grace_s: How long after its last deadline an instance reopens by itself.
    """

    run = "machine"

    def __init__(
        self,
        make_instance: Callable[[Stage, str], Held],
        make_journal: Callable[[Stage], Journal],
        *,
        count: int,
        settings: Mapping[str, Any],
    ) -> None:
        """
        Name the parts.

        Args:
            make_instance: Makes an instance of an id.
            make_journal: Opens the journal.
            count: How many instances there are.
            settings: What every coordinator is given.
        """
        self._make_instance = make_instance
        self._make_journal = make_journal
        self._settings = settings
        self.grace_s: float = settings["lease_grace_s"]
        self.names = tuple(f"{SHARD}/replica-{number}" for number in range(count))
        self.asleep: list[Controller] = []
        self.saved: list[tuple[Path, GymCheckpointManifest]] = []
        self.rollouts: list[tuple[str, EnvironmentEpisode]] = []
        self.finished: list[tuple[str, EnvironmentEpisode]] = []
        self._store = MemoryStore()
        self.former: list[Controller] = []
        self._journals: list[Journal] = []
        self._count = 0

    def open(self) -> None:
        """Begin; `close` must follow."""
        self._stack = ExitStack()
        self.loop = self._stack.enter_context(process_loop())
        self.reports: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.reports.append(context))
        place = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.root = Path(self._stack.enter_context(place))
        self.clock = VirtualClock(self.loop, wall_ts=START_TS)
        self.journal = self._opened_journal()
        self.watch = Watch(self.loop, self.clock, self.journal, self.run, self.names)
        self.held = {name: self._make_instance(self, name) for name in self.names}
        self.handles = {name: self._handle_on(name) for name in self.names}
        self.controller = self._new_controller()

    def close(self) -> None:
        """Fence every controller, let all of them end, and let go of everything."""
        try:
            self.journal.claim(self.run, holder="the end", force=True)
            for one in (*self.former, self.controller):
                one.process.cut_off = True
                one.process.wake()
            for held in self.held.values():
                self.outside(held.close())
        finally:
            self._stack.close()
            for journal in self._journals:
                journal.close()

    # --- what instances and journals are made of ------------------------------------------------

    def now_ts(self) -> float:
        """Return the wall clock, epoch seconds."""
        return self.clock.wall_ts()

    def fake(self, _instance_id: str) -> Held:
        """Return a shipped fake."""
        fake = FakeInstance(grace_s=self.grace_s, now_ts=self.now_ts)
        return Held(
            handle=fake,
            is_open=lambda: fake.is_open,
            runs=lambda episode: episode in fake.installed,
        )

    def memory(self) -> Journal:
        """Return a journal in memory, each time on the same entries."""
        return MemoryJournal(self._store)

    def _handle_on(self, name: str) -> FaultyHandle:
        return FaultyHandle(Judged(self.held[name].handle, name, self.watch.broken))

    def _opened_journal(self) -> Journal:
        self._journals.append(self._make_journal(self))
        return self._journals[-1]

    def _instant(self) -> None:
        """Let no two operations begin at the very same instant, as they never do."""
        self.pass_time(INSTANT_S)

    def _new_controller(self) -> Controller:
        number = len(self.former)
        process = Process(self.loop, f"controller-{number}")
        lines = {
            name: Line(self.watch, process, number, place, self.handles)
            for place, name in enumerate(self.names)
        }
        with as_process(f"controller-{number}"):
            coordinator = GymCheckpointCoordinator(
                _Shards(lines),
                journal=self._opened_journal(),
                run=self.run,
                clock=self.clock,
                **self._settings,
            )
        return Controller(number, process, coordinator)

    # --- acts -----------------------------------------------------------------------------------

    @property
    def body(self) -> Body:
        """The body that is open."""
        assert self.controller.body is not None
        return self.controller.body

    @property
    def dead(self) -> list[int]:
        """The places of the instances that have died."""
        return [number for number, name in enumerate(self.names) if self.handles[name].is_dead]

    @property
    def faults_due(self) -> int:
        """How many scripted faults have not happened yet."""
        return sum(handle.due for handle in self.handles.values())

    def new_id(self, word: str) -> str:
        """Return an id that was not used before."""
        self._count += 1
        return f"{word}-{self._count}"

    def handle(self, number: int) -> FaultyHandle:
        """Return an instance with its script of faults; any number means one."""
        return self.handles[self.names[number % len(self.names)]]

    def dispatch(self, number: int) -> None:
        """Begin a rollout on an instance."""
        name = self.names[number % len(self.names)]
        episode = EnvironmentEpisode(self.new_id("r"), 0)
        self.outside(self.held[name].dispatch(episode))
        self.rollouts.append((name, episode))

    def enter_checkpoint(self) -> None:
        """Begin to enter a checkpoint."""
        self._instant()
        one, wire_id = self.controller, self.new_id("c")
        one.body = Body(one.process, "checkpoint", wire_id, one.coordinator.prepared(wire_id))

    def enter_restore(self, number: int) -> None:
        """Begin to go back to a checkpoint that stands."""
        self._instant()
        one, wire_id = self.controller, self.new_id("x")
        root, manifest = self.saved[number % len(self.saved)]
        manager = one.coordinator.restored(wire_id, root, manifest)
        one.body = Body(one.process, "restore", wire_id, manager)

    def commit(self) -> None:
        """Let the body save every rollout that goes on."""
        one, body, root = self.controller, self.body, self.root / self.body.wire_id
        rollouts = list(self.rollouts)

        async def commit() -> bool:
            restarts = {name: tuple(sorted(found)) for name, found in body.given.items()}
            offered = self._listed(rollouts, left_out=restarts)
            result = await one.coordinator.commit(body.wire_id, root, offered, restarts=restarts)
            if result.manifest != load_gym_checkpoint_manifest(root):
                self.watch.broken.append(Broken("S2", "the manifest is not the one answered"))
            return False

        body.do(commit)

    def in_body(
        self, verb: Callable[[Controller, Body], Awaitable[object]], *, ends: bool = False
    ) -> None:
        """Let the body do something, and perhaps end with it."""
        one, body = self.controller, self.body

        async def deed() -> bool:
            await verb(one, body)
            return ends

        body.do(deed)

    def retire(self, number: int) -> None:
        """Begin to stop a rollout."""
        found = self.rollouts.pop(number % len(self.rollouts))
        self.finished.append(found)
        listed = self._listed([found])
        coordinator = self.controller.coordinator
        self.controller.start(coordinator.retire(self.new_id("retire"), listed))

    def forget(self) -> None:
        """Begin to forget every rollout that was retired."""
        listed = self._listed(self.finished)
        self.finished.clear()
        coordinator = self.controller.coordinator
        self.controller.start(coordinator.forget(self.new_id("forget"), listed))

    def restart(self, number: int) -> None:
        """Put an empty instance in the place of another."""
        name = self.names[number % len(self.names)]
        self.outside(self.held[name].close())
        self.held[name] = self._make_instance(self, name)
        self.handles[name] = self._handle_on(name)
        self.rollouts = [found for found in self.rollouts if found[0] != name]

    def take_over(self) -> None:
        """Let a new controller recover what the present one has left."""
        self._instant()
        self.former.append(self.controller)
        self.controller = self._new_controller()
        self.controller.start(self.controller.coordinator.recover(force=True))

    def wake(self) -> None:
        """Let the controller go on that was stopped first."""
        self.asleep.pop(0).process.wake()

    def _listed(
        self,
        found: list[tuple[str, EnvironmentEpisode]],
        *,
        left_out: Mapping[str, tuple[EnvironmentEpisode, ...]] | None = None,
    ) -> Episodes:
        out = {episode for episodes in (left_out or {}).values() for episode in episodes}
        return {
            name: tuple(one for place, one in found if place == name and one not in out)
            for name in self.names
        }

    # --- time -----------------------------------------------------------------------------------

    def outside(self, main: Awaitable[Any]) -> Any:
        """Run something that belongs to no controller."""

        async def awaited() -> Any:
            return await main

        return self.loop.run_until_complete(self.loop.start_outside(awaited()))

    def outcome_of(self, verb: Coroutine[Any, Any, Any]) -> BaseException | None:
        """Return what a verb of the controller raises, beside whatever else it does."""
        task = self.controller.process.start(verb)
        self.outside(asyncio.wait({task}, timeout=self.verb_s))
        assert task.done(), "L1: a verb took longer than its budgets"
        return task.exception()

    @property
    def verb_s(self) -> float:
        """How long a verb may take at the most."""
        control_s, prepare_s = (
            self._settings[name] for name in ("control_timeout_s", "prepare_timeout_s")
        )
        return float(prepare_s + 10 * (2 * control_s + 1.0))

    def wait(self, pace: float | None) -> None:
        """
        Wait for what is under way.

        Args:
            pace: So many rounds of the loop (an int), so many seconds (a float), or to its end.
        """
        if isinstance(pace, int):
            self.outside(_rounds(pace))
        elif pace is not None:
            self.pass_time(pace)
        else:
            settled = self.loop.start_outside(self.controller.settled())
            body = self.controller.body
            bound_s = self.verb_s * (1 if body is None else 2 + body.due)
            self.outside(asyncio.wait({settled}, timeout=bound_s))
            assert settled.done(), "L1: a verb took longer than its budgets"

    def pass_time(self, seconds: float) -> None:
        """Let time pass, whatever happens meanwhile."""
        self.outside(asyncio.sleep(seconds))


class _Shards:
    def __init__(self, lines: Mapping[str, Line]) -> None:
        self.checkpoint_handles = lines


async def _rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
