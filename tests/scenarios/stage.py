"""
The stage of a scenario: instances, a journal, controllers and their callers on one virtual loop.

All of it is the real thing but for the instances, which are the shipped fakes, and the journal,
which is the one in memory and can be told to fail, to be slow, and to let its controller crash. A
controller that crashes acts no more; what it had sent is on its way all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymckpt import moves, operations
from gymckpt.coordinator import GYM_CHECKPOINT_MANIFEST_FILENAME, GymCheckpointCoordinator
from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.core.settings import RetryPolicy, bare_owner
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import JournalUnavailable, RunHeld
from gymckpt.journal import Opening
from gymckpt.journal.memory import MemoryJournal, MemoryStore
from gymckpt.manifest import GymCheckpointManifest
from gymckpt.recovery import Recovered
from gymckpt.runtime import worker
from gymckpt.runtime.virtual import RESOLUTION_S, VirtualClock, VirtualLoop
from gymckpt.runtime.worker import JOURNAL_THREAD
from gymckpt.testing.fakes import FakeShardSet
from tests.core.steps import TAKEN, transitions_of
from tests.scenarios.callers import Caller
from tests.scenarios.instances import StagedInstance
from tests.scenarios.telling import Telling, short

__all__ = ["RUN", "Crash", "Stage", "StageLoop"]

ZERO_TS = 1_700_000_000.0
RUN = "run"
LONG_S = 1_000.0
"""How long a scenario waits for what does not come."""

FILE_JOBS = {"gymckpt-sealed": "write", "gymckpt-withdrawn": "withdraw"}


class Crash(BaseException):
    """The controller's process is gone."""


class StageLoop(VirtualLoop):
    """A virtual loop whose file jobs can be told to be late, to hang and to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.file_scripts: dict[str, list[str]] = {"write": [], "withdraw": []}
        self.journal_s = 0.0
        self.after_file: Callable[[], None] = lambda: None
        self.job_s = self._takes_s
        self._next_s: float | None = 0.0

    @property
    def busy(self) -> bool:
        """Whether anything else is still to happen at this instant."""
        mine: Any = self
        due = mine._scheduled and mine._scheduled[0].when() <= self.time() + RESOLUTION_S
        return bool(mine._ready or due)

    def start_job(self, name: str, job: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a job as the script of its kind says."""
        kind = FILE_JOBS.get(name, "")
        script = self.file_scripts[kind].pop(0) if self.file_scripts.get(kind) else "ok"
        self._next_s = None if script == "hangs" else 0.0
        if script.startswith("late "):
            self._next_s = float(script.removeprefix("late ").removesuffix("s"))

        def scripted() -> Any:
            if script == "fails":
                raise OSError(28, "No space left on device")
            try:
                result = job()
            finally:
                self.after_file()
            if script == "fails afterwards":
                raise OSError(5, "Input/output error")
            return result

        return super().start_job(name, scripted if kind else job)

    def _takes_s(self, name: str) -> float | None:
        return self.journal_s if name == JOURNAL_THREAD else self._next_s


class StageJournal(MemoryJournal):
    """What one controller writes into the journal of the stage."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.store)
        self.stage = stage
        self.fails = False
        self.crash: tuple[str, str] | None = None
        """`before` or `after`, and the trigger whose recording the controller does not survive."""
        self.on_crash: Callable[[], None] = lambda: None

    @property
    def blocks(self) -> bool:  # type: ignore[override]
        """Whether it takes time."""
        return self.stage.loop.journal_s > 0

    def open_operation(self, opening: Opening, entries: Sequence[Entry]) -> None:
        """Open an operation."""
        self._store_told(
            entries,
            lambda: super(StageJournal, self).open_operation(opening, entries),
        )

    def append(
        self, entries: Sequence[Entry], *, expected_seq: int, epoch: int, settled: bool = False
    ) -> None:
        """Append."""
        self._store_told(
            entries,
            lambda: super(StageJournal, self).append(
                entries, expected_seq=expected_seq, epoch=epoch, settled=settled
            ),
        )

    def _store_told(self, entries: Sequence[Entry], store: Callable[[], None]) -> None:
        when, trigger = self.crash or ("", "")
        meant = any((one.instance, one.trigger) == (None, trigger) for one in entries)
        if meant and when == "before":
            self.on_crash()
            raise Crash
        if self.fails:
            self.stage.telling.say("journal", f"cannot take {len(entries)} entries")
            raise JournalUnavailable("the journal's disk is full")
        store()
        self.stage.telling.entries(entries)
        if meant and when == "after":
            self.on_crash()
            raise Crash


class Controller:
    """One life of a controller."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.name = f"controller-{number}"
        self.alive = True
        self.journal = StageJournal(stage)
        self.journal.on_crash = self.crash
        self.coordinator = GymCheckpointCoordinator(
            stage.shards, journal=self.journal, run=RUN, clock=stage.clock, **stage.settings
        )
        self._held: Any = self.coordinator._operations  # pyright: ignore[reportPrivateUsage]
        self._held._owner = self.name

    def crash(self) -> None:
        """Act no more; nobody is told, and what was sent goes on."""
        self.alive = False
        held = self._held
        running = [*held._sweeps, *([held.open] if held.open else [])]
        for scheduler in {one.scheduler for one in running} | held._unsettled.keys():
            scheduler.stopped = True
            scheduler._timers.stop_all()
            scheduler._queue.clear()
            scheduler._effects.clear()
        if held._recorder is not None:
            held._recorder._let_holds_go()


class Stage:
    """Everything that one scenario needs."""

    def __init__(self, loop: StageLoop, base: Path) -> None:
        """
        Set an empty stage.

        Args:
            loop: What it runs on.
            base: A directory for snapshots.
        """
        self.loop, self.base = loop, base
        self.clock = VirtualClock(loop, wall_ts=ZERO_TS)
        self.telling = Telling(
            loop.time, lambda text: text.replace(f"{base}/", "").replace("tools/", "")
        )
        self.store = MemoryStore(now_s=loop.time)
        self.settings: dict[str, Any] = {"control_timeout_s": 30.0, "prepare_timeout_s": 60.0}
        self.instances: dict[str, StagedInstance] = {}
        self.callers: dict[str, Caller] = {}
        self.same_as: dict[str, str] = {}
        """Operation to the one whose rollouts it is about."""
        self.controllers: list[Controller] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._manifests: set[str] = set()
        self._ids = 0
        loop.after_file = self._look_at_files

    def new_id(self, word: str) -> str:
        """Return what stands for a generated id."""
        self._ids += 1
        return f"{word}-new-{self._ids}"

    # --- who is there ---------------------------------------------------------------------------

    def add_instances(self, count: int, grace_s: float) -> None:
        """Let there be instances, which know when to reopen by themselves."""
        names = [f"tools/replica-{index}" for index in range(count)]
        given = {"grace_s": grace_s, "now_ts": self.clock.wall_ts, "zero_ts": ZERO_TS}
        for name in names:
            self.instances[name] = StagedInstance(name, self.telling, **given)  # type: ignore[arg-type]
        self.settings["lease_grace_s"] = grace_s
        self.telling.everybody = count

    @property
    def shards(self) -> FakeShardSet:
        """The instances as a coordinator takes them."""
        return FakeShardSet(*self.instances.values())

    def instance(self, name: str) -> StagedInstance:
        """Return an instance by the end of its name."""
        return self.instances[f"tools/{name}"]

    @property
    def controller(self) -> Controller:
        """The controller that came last."""
        if not self.controllers:
            self.begin_controller()
        return self.controllers[-1]

    def begin_controller(self) -> Controller:
        """Let another controller begin."""
        self.controllers.append(Controller(self, len(self.controllers) + 1))
        return self.controllers[-1]

    def retry(self, call: str, attempts: int, pause_s: float) -> None:
        """Let a call be tried more often, by controllers that begin later."""
        policies = self.settings.setdefault("retry", {})
        policies[call] = RetryPolicy(attempts=attempts, pause_s=pause_s)

    def offered(self, word: str = "r") -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Return what is to be saved: one rollout of each instance."""
        return {
            name: (EnvironmentEpisode(f"{word}{number}", 0),)
            for number, name in enumerate(self.instances)
        }

    def manifest(self, restore_id: str) -> GymCheckpointManifest:
        """Return what a restore restores: rollouts of its own, or those of another operation."""
        offered = self.offered(f"{self.same_as.get(restore_id, restore_id)}.r")
        nothing = dict.fromkeys(offered, ())
        participants = dict.fromkeys(offered, ("fake",))
        return GymCheckpointManifest(2, "source", offered, nothing, nothing, participants)

    # --- what they do ---------------------------------------------------------------------------

    def call(self, kind: str, name: str, same_as: str | None = None) -> None:
        """Let a caller of the last controller begin an operation, about what another is about."""
        if same_as is not None:
            self.same_as[name] = self.same_as.get(same_as, same_as)
        caller = Caller(self, self.controller, kind, name)
        self.callers[name] = caller
        self._tasks.append(caller.task)

    def recover(self, *, force: bool) -> None:
        """Let the last controller settle what others have left."""
        self._do(self._recover(self.controller, force=force))

    async def _recover(self, controller: Controller, *, force: bool) -> None:
        for found in await controller.coordinator.recover(force=force):
            self.telling.say(controller.name, _recovered(found))

    def move(self, move: str, operation_id: str, instance: str | None, *, force: bool) -> None:
        """Let an operator make a move."""
        journal = StageJournal(self)
        by = moves.By(operator="ana@ops", reason="it hangs")
        given: dict[str, Any] = {"by": by, "handles": self.instances, "clock": self.clock}
        about = () if instance is None else (f"tools/{instance}",)
        make: Any = getattr(moves, move)
        self._do(self._move(make(journal, RUN, operation_id, *about, force=force, **given)))

    async def _move(self, making: Any) -> None:
        try:
            moved: moves.Moved = await making
        except Exception as error:
            self.telling.error("operator", error)
            return
        end = "it has ended" if moved.settled else f"waits for {_names(moved.unconfirmed)}"
        self.telling.say("operator", f"{moved.move}: {moved.found_in} -> {moved.state}, {end}")

    def send(self, instance: StagedInstance, call: str, wire_id: str, in_s: float) -> None:
        """Let somebody else's call reach an instance."""
        self._do(self._send(instance, call, wire_id, round(self.clock.wall_ts() + in_s, 2)))

    async def _send(
        self, instance: StagedInstance, call: str, wire_id: str, deadline_ts: float
    ) -> None:
        word = f"{wire_id}.r" if call == "restore" else "r"
        episodes = self.offered(word)[instance.name]
        about: dict[str, tuple[Any, ...]] = {
            "commit": (str(self.base / "elsewhere"), episodes),
            "restore": (str(self.base / "source"), episodes),
            "retire": (episodes,),
            "forget": (tuple(episode.rollout_id for episode in episodes),),
        }
        more = {"source_checkpoint_id": "source", "participants": ("fake",)}
        method = getattr(instance, f"checkpoint_{call}")
        try:
            answer = await method.remote(
                wire_id,
                *about.get(call, ()),
                deadline_ts=deadline_ts,
                **(more if call == "restore" else {}),
            )
        except Exception as error:
            self.telling.error("stranger", error)
        else:
            ready = "" if getattr(answer, "prepared", True) else " not ready"
            self.telling.say("stranger", f"{call} {wire_id} was answered{ready}")

    def _do(self, doing: Any) -> None:
        self._tasks.append(self.loop.create_task(doing))

    # --- time -----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everything happen that happens at this instant."""
        while self.loop.busy:  # noqa: ASYNC110 - nothing tells when an instant is over
            await asyncio.sleep(0)

    async def wait(self, for_s: float) -> None:
        """Let time pass."""
        await asyncio.sleep(for_s)
        await self.settle()

    async def wait_until_ended(self, name: str) -> None:
        """Let time pass until an operation is in a final state, and its caller has gone."""
        for _ in range(int(LONG_S / 0.5)):
            row = self.store.operations.get((RUN, name))
            if row is not None and row.settled:
                break
            await self.wait(0.5)
        else:
            raise AssertionError(f"{name} does not end")
        await self.settle()

    async def wait_until_left(self, name: str) -> None:
        """Let time pass until the caller of an operation has left."""
        await asyncio.wait({self.callers[name].task}, timeout=LONG_S)
        await self.settle()

    def end(self) -> None:
        """Let every controller be gone, and cancel whatever is left."""
        for controller in self.controllers:
            controller.crash()
        while left := asyncio.all_tasks(self.loop):
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    # --- what there is --------------------------------------------------------------------------

    def _look_at_files(self) -> None:
        here = {
            path.parent.name for path in self.base.glob(f"*/{GYM_CHECKPOINT_MANIFEST_FILENAME}")
        }
        for name in sorted(here - self._manifests):
            self.telling.say("file", f"the manifest of {name} is there")
        for name in sorted(self._manifests - here):
            self.telling.say("file", f"the manifest of {name} is withdrawn")
        self._manifests = here

    def state(self) -> None:
        """Tell where everything stands."""
        for (_, name), row in self.store.operations.items():
            ended = "ended" if row.settled else "goes on"
            self.telling.say("state", f"{name} is {row.state}, epoch {row.epoch}, {ended}")
        for name in sorted(self._manifests):
            self.telling.say("state", f"the manifest of {name} is there")
        for instance in self.instances.values():
            held = instance.control.state.checkpoint_id
            what = "open" if instance.is_open else f"{instance.control.state.phase} for {held}"
            runs = "".join(f", {one.capture_key}" for one in sorted(instance.installed))
            self.telling.say("state", what + runs, instance.name)

    def _has_crashed(self, holder: str) -> bool:
        """Whether a controller is known to be gone, as on its own host."""
        return any(bare_owner(holder) == one.name for one in self.controllers if not one.alive)

    def count_transitions(self) -> None:
        """Note every transition that the journal has."""
        journal = MemoryJournal(self.store)
        for row in journal.operations(RUN):
            entries = journal.read(RUN, row.operation_id)
            TAKEN.update(transitions_of(replay(entries), entries[1:]))

    @contextlib.contextmanager
    def known_names(self) -> Any:
        """Give what is generated a name that is the same in every run."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operations, "new_operation_id", self.new_id)
            patch.setattr(moves, "holder_token", lambda **_: "ana@ops")
            patch.setattr(worker, "is_gone", self._has_crashed)
            yield


def _names(instances: Sequence[str]) -> str:
    return " ".join(map(short, instances)) or "nobody"


def _recovered(found: Recovered) -> str:
    text = f"{found.operation_id}: {found.found_in} -> {found.state}, {found.outcome}"
    if isinstance(found.held_by, RunHeld):
        return f"{text}: {found.held_by.holder}"
    return f"{text}: {_names(found.unconfirmed)}" if found.unconfirmed else text
