"""
A small world for one test: scripted instances, a journal, coordinators, and what must hold after.

`World.examine` is the harness of every fault test. It holds the calls that reached the instances,
the journal and the files against the promises of DESIGN section 3, whatever the test did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gymckpt.coordinator import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointCoordinator,
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
)
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import replay
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.journal import Journal
from gymckpt.journal.memory import MemoryJournal
from gymckpt.runtime.holding import as_process
from gymckpt.runtime.virtual import VirtualLoop
from tests.fakes import Call, FakeActor, FakeShardSet

DRIVING = ("prepare", "renew", "commit", "restore")
CLOSING = ("prepare", "restore")
STANDING = ("committed", "resuming", "resumed")
"""The states in which a checkpoint's manifest exists."""

SHORT: dict[str, Any] = {"control_timeout_s": 0.05, "prepare_timeout_s": 0.05}
"""Settings for scenarios in real time that wait for a timeout or for renewals."""

_numbers = itertools.count(1)


def new_id(word: str = "op") -> str:
    """Return an id that no test has used."""
    return f"{word}-{next(_numbers)}"


async def until(condition: Callable[[], object], *, bound_s: float = 3.0) -> None:
    """Wait until something is so, in a body or for what happens on a thread."""
    async with asyncio.timeout(bound_s):
        while not condition():  # noqa: ASYNC110 - of whatever can be looked at, not only of events
            await asyncio.sleep(0.002)


def episode(name: str, attempt: int = 0) -> EnvironmentEpisode:
    """Return an episode in few letters."""
    return EnvironmentEpisode(name, attempt)


class World:
    """Everything that one scenario needs."""

    def __init__(
        self,
        count: int = 2,
        *,
        journal: Journal | None = None,
        root: Path | None = None,
        fenced: bool = False,
        gives_futures: bool = False,
        **settings: Any,
    ) -> None:
        """
        Make a world.

        Args:
            count: How many instances there are.
            journal: Where operations are recorded; None is a new one in memory.
            root: A directory for snapshots.
            fenced: Whether instances refuse what real deployments refuse.
            gives_futures: Whether calls give futures, else coroutines.
            settings: Of every coordinator, over the defaults below.
        """
        self.actors = tuple(
            FakeActor(fenced=fenced, gives_futures=gives_futures) for _ in range(count)
        )
        self.shards = FakeShardSet(*self.actors)
        self.journal = MemoryJournal() if journal is None else journal
        self.base = root
        self.run = new_id("run")
        self.settings = {"control_timeout_s": 2.0, "prepare_timeout_s": 2.0} | settings
        self.fenced_off: set[str] = set()
        """Operations that another controller has taken over: theirs need not be reopened here."""
        self._coordinator: GymCheckpointCoordinator | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The instance ids, in order."""
        return tuple(self.shards.checkpoint_handles)

    @property
    def coordinator(self) -> GymCheckpointCoordinator:
        """The one coordinator that most tests need."""
        if self._coordinator is None:
            self._coordinator = self.new_coordinator()
        return self._coordinator

    def new_coordinator(
        self, *, process: str | None = None, **settings: Any
    ) -> GymCheckpointCoordinator:
        """
        Return one more coordinator over the same instances, run and journal.

        Args:
            process: The process that it seems to run in: that of all others of this name, or one
                of its own.
            settings: Over those of the world.
        """
        fixed: dict[str, Any] = {"journal": self.journal, "run": self.run, **self.settings}
        with as_process(process or new_id("process")):
            return GymCheckpointCoordinator(self.shards, **{**fixed, **settings})

    def let_holder_go(self) -> None:
        """Let the process that holds the run be gone: it gives the run back, and is fenced."""
        held = self.journal.held(self.run)
        if held is not None:
            self.journal.release(self.run, epoch=held.epoch)

    def root(self, name: str = "snapshot") -> Path:
        """Return a snapshot's directory, which need not exist yet."""
        assert self.base is not None, "this world has no directory"
        return self.base / name

    def offer(self, *, each: int = 1, word: str = "r") -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Return an inventory of some episodes on every instance."""
        return {
            instance: tuple(episode(f"{word}{number}.{index}") for index in range(each))
            for number, instance in enumerate(self.ids)
        }

    def manifest(
        self, checkpoint_id: str = "source", *, each: int = 1, word: str = "r"
    ) -> GymCheckpointManifest:
        """Return the manifest of a checkpoint of this world."""
        offered = self.offer(each=each, word=word)
        return GymCheckpointManifest(
            2,
            checkpoint_id,
            offered,
            dict.fromkeys(offered, ()),
            dict.fromkeys(offered, ()),
            {instance: ("agent", f"environment.{instance[-1]}") for instance in offered},
        )

    @contextlib.asynccontextmanager
    async def committed(self, checkpoint_id: str, root: Path) -> AsyncIterator[None]:
        """Prepare, commit everything, and run the body."""
        async with self.coordinator.prepared(checkpoint_id) as restarts:
            reported = {instance: tuple(sorted(found)) for instance, found in restarts.items()}
            await self.coordinator.commit(checkpoint_id, root, self.offer(), restarts=reported)
            yield

    async def operate(self, kind: str, wire_id: str) -> None:
        """Do one whole checkpoint, restore or sweep, as a caller would."""
        if kind == "checkpoint":
            async with self.committed(wire_id, self.root(wire_id)):
                await asyncio.sleep(0)
        elif kind == "restore":
            async with self.coordinator.restored(wire_id, self.root("source"), self.manifest()):
                await asyncio.sleep(0)
        elif kind == "resume":
            await self.coordinator.resume(wire_id)
        else:
            await getattr(self.coordinator, kind)(wire_id, self.offer())

    def operation(self, wire_id: str) -> OperationState:
        """Return where an operation stands by its journal."""
        return replay(self.journal.read(self.run, wire_id))

    # --- what must hold -------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Wait until nothing of the library or the instances runs any more."""
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        virtual = isinstance(loop, VirtualLoop)
        ends_s = loop.time() + (500.0 if virtual else 5.0)
        while left := [task for task in asyncio.all_tasks() if task is not me]:
            assert loop.time() < ends_s, f"tasks are left: {left}"
            await asyncio.sleep(0.5 if virtual else 0.002)

    async def examine(self, *, quiet: bool = True) -> None:
        """Hold everything that happened against what was promised."""
        if quiet:
            await self.quiet()
        problems = [*self._of_calls(), *self._of_histories(), *self._of_attempts()]
        assert not problems, "\n".join([*problems, *self.story()])

    def story(self) -> list[str]:
        """Return every call in order, for the message of a failed check."""
        lines = [
            (call.tick, f"  {call.at_s:.3f} {name} {call.op} {call.wire_id}: {call.outcome}")
            for name, actor in self.shards.checkpoint_handles.items()
            for call in actor.calls
        ]
        return [line for _, line in sorted(lines)]

    def _calls(self) -> dict[str, dict[str, list[Call]]]:
        """Return wire id to instance to its calls."""
        found: dict[str, dict[str, list[Call]]] = {}
        for instance, actor in self.shards.checkpoint_handles.items():
            for call in actor.calls:
                if call.op in (*DRIVING, "resume", "retire"):
                    rows = found.setdefault(call.wire_id, {name: [] for name in self.ids})
                    rows[instance].append(call)
        return found

    def _of_calls(self) -> Iterable[str]:
        for wire_id, by_instance in self._calls().items():
            if wire_id in self.fenced_off:
                continue
            yield from _unopened(wire_id, by_instance)
            yield from _acts_after_end(wire_id, by_instance)
            yield from _unparked_commits(wire_id, by_instance)
            yield from _asked_twice(wire_id, by_instance)
            yield from _reopened_before_retired(wire_id, by_instance, self._stands(wire_id))

    def _of_attempts(self) -> Iterable[str]:
        """S5: no attempt of a restore that does not stand goes on, once its retire was answered."""
        for wire_id, by_instance in self._calls().items():
            for instance, calls in () if self._stands(wire_id) else by_instance.items():
                actor = self.shards.checkpoint_handles[instance]
                restored = _installed(calls)
                retired = any(
                    call.op == "retire" and call.outcome == "answered"
                    for call in actor.calls
                    if restored & set(call.args[1] if call.op == "retire" else ())
                )
                later = [call for call in actor.calls if self._stands(call.wire_id)]
                goes_on = (restored & actor.running) - _installed(later)
                if retired and goes_on:
                    yield f"S5: {instance} goes on with {goes_on} of {wire_id}"

    def _stands(self, wire_id: str) -> bool:
        row = self.journal.operation(self.run, wire_id)
        return row is not None and row.state in STANDING

    def _of_histories(self) -> Iterable[str]:
        for row in self.journal.operations(self.run):
            operation = replay(self.journal.read(self.run, row.operation_id))
            if operation.state != row.state or operation.settled != row.settled:
                yield f"{row.operation_id}: its row says {row.state}, its replay {operation.state}"
            if operation.chart == "checkpoint" and operation.root is not None:
                yield from _untrue_manifest(operation, Path(operation.root))


def _unopened(wire_id: str, by_instance: Mapping[str, list[Call]]) -> Iterable[str]:
    """S3: whoever saw prepare or restore is sent resume with that id, and nothing after it."""
    touched = any(call.op in CLOSING for calls in by_instance.values() for call in calls)
    for instance, calls in by_instance.items():
        if touched and (not calls or calls[-1].op != "resume"):
            yield f"S3: {instance} is left closed by {wire_id}: {[call.op for call in calls]}"


def _acts_after_end(wire_id: str, by_instance: Mapping[str, list[Call]]) -> Iterable[str]:
    """S4: after a resume was sent anywhere, the id is never acted with again."""
    everything = [call for calls in by_instance.values() for call in calls]
    first = min((call.tick for call in everything if call.op == "resume"), default=None)
    for call in everything:
        if first is not None and call.op in DRIVING and call.tick > first:
            yield f"S4: {call.op} of {wire_id} was sent after its resume"


def _unparked_commits(wire_id: str, by_instance: Mapping[str, list[Call]]) -> Iterable[str]:
    """S1: no commit before every instance answered prepare as parked, and a renewal after it."""
    commits = [call.tick for calls in by_instance.values() for call in calls if call.op == "commit"]
    for instance, calls in by_instance.items() if commits else ():
        parked = [
            call.ended_tick
            for call in calls
            if call.op == "prepare" and call.outcome == "answered" and call.reply.prepared
        ]
        renewed = [
            call.ended_tick
            for call in calls
            if parked and call.op == "renew" and call.outcome == "answered"
            if call.tick > parked[0]
        ]
        if not renewed or min(renewed) > min(commits):
            yield f"S1: {wire_id} committed before {instance} was parked and renewed"


def _asked_twice(wire_id: str, by_instance: Mapping[str, list[Call]]) -> Iterable[str]:
    """S4: an id closes an instance once and never again."""
    for instance, calls in by_instance.items():
        closings = [call.op for call in calls if call.op in CLOSING]
        if len(closings) > 1:
            yield f"S4: {instance} was asked to {closings} under the one id {wire_id}"


def _reopened_before_retired(
    wire_id: str, by_instance: Mapping[str, list[Call]], stands: bool
) -> Iterable[str]:
    """S5: a restore that does not stand is retired on every instance before any is reopened."""
    everything = [call for calls in by_instance.values() for call in calls]
    if stands or not any(call.op == "restore" for call in everything):
        return
    resumed = min((call.tick for call in everything if call.op == "resume"), default=0)
    for instance, calls in by_instance.items():
        retires = [call for call in calls if call.op == "retire"]
        if not retires or retires[0].tick > resumed:
            yield f"S5: {instance} was reopened by {wire_id} before it was asked to retire"
            continue
        restores = [call.args[2] for call in calls if call.op == "restore"]  # none after a crash
        due = [tuple(found.next_attempt() for found in saved) for saved in restores]
        if due and retires[0].args[1] != due[0]:
            yield f"S5: {instance} was asked by {wire_id} to retire {retires[0].args[1]}"


def _untrue_manifest(operation: OperationState, root: Path) -> Iterable[str]:
    """S2: the manifest exists exactly if the operation stands."""
    exists = (root / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
    own = exists and load_gym_checkpoint_manifest(root).checkpoint_id == operation.wire_id
    if own != (operation.state in STANDING):
        yield f"S2: {operation.wire_id} is {operation.state}, its manifest exists: {own}"


def _installed(calls: Iterable[Call]) -> set[EnvironmentEpisode]:
    """Return the attempts that these calls were to install."""
    return {
        found.next_attempt() for call in calls if call.op == "restore" for found in call.args[2]
    }
