"""
One run: hosts, controllers, a network and disks, the faults of a plan, and what must hold.

A run has two parts. In the first the verbs of the plan are done while its faults happen; safety is
held all along. Then the faults end, a last controller recovers, and everything must come to rest:
see `gymckpt.testing.simulation.ending`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gymckpt.core.entry import Entry
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import text_of
from gymckpt.journal import Journal, MemoryStore
from gymckpt.participant.servers import Kind
from gymckpt.runtime.virtual import VirtualClock
from gymckpt.testing.account import Broken
from gymckpt.testing.simulation.controllers import Controller
from gymckpt.testing.simulation.coverage import Coverage
from gymckpt.testing.simulation.hosts import GRACE_S, SimulatedDeployment, SimulatedInstance
from gymckpt.testing.simulation.journals import Seat, SimulatedFile, SimulatedMemory
from gymckpt.testing.simulation.ledger import Ledger
from gymckpt.testing.simulation.loop import Killed, Process, SimulatedLoop, running_process
from gymckpt.testing.simulation.mishaps import Mishaps
from gymckpt.testing.simulation.network import Message, Network
from gymckpt.testing.simulation.plan import Plan, seeded
from gymckpt.testing.simulation.stage import EPOCH_TS, Stage
from gymckpt.testing.simulation.stepped import SteppedJob
from gymckpt.testing.simulation.storage import Disk, io_of
from gymckpt.testing.simulation.timeline import Timeline
from gymckpt.testing.simulation.watch import Watch

__all__ = ["World"]

CONTROLLERS_MAX = 6
RUN_BOUND_S = 20_000.0

TURNS_MAX = 40

RESTING_TURN_S = 5.0
"""How long a turn takes at the most once the faults are over and all waits for leases to end."""


class World:
    """
    All that there is in one run.

    Attributes:
        plan: What is to happen.
        loop: Where it happens.
        timeline: What has happened.
        instances: The instances, in order.
        controllers: Process to controller, of all that have been.
        watch: What is held against the promises.
        problems: The promises that were seen broken.
        coverage: Which transitions were met by which faults.
        mishaps: The faults of the plan.
        alarm: Set where another controller is needed.
    """

    def __init__(self, plan: Plan, loop: SimulatedLoop, base: Path) -> None:
        """
        Build everything; nothing runs yet.

        Args:
            plan: What is to happen.
            loop: The loop.
            base: A directory for snapshots.
        """
        self.plan = plan
        self.loop = loop
        self.base = base
        self.timeline = Timeline(loop.time)
        self.problems: list[Broken] = []
        self.coverage = Coverage()
        self.controllers: dict[Process, Controller] = {}
        self.disks: dict[Process, Disk] = {}
        self.store = MemoryStore(now_s=loop.time)
        self.lives: dict[Controller, asyncio.Task[None]] = {}
        self.faults_over = False
        self.mishaps = Mishaps(self)
        self._turns = seeded(plan.seed, "turns")
        self._rng = seeded(plan.seed, "world")
        self.alarm = asyncio.Event()
        kinds = ("environment", "resources") if plan.seed % 3 == 0 else ("environment",)
        self._kinds: Sequence[Kind] = kinds  # type: ignore[assignment]
        self.instances = [
            SimulatedInstance(
                f"tools/replica-{number}",
                VirtualClock(loop, wall_ts=EPOCH_TS),
                self._deployment,
            )
            for number in range(plan.instances)
        ]
        self.watch = Watch(
            instances=[one.instance_id for one in self.instances],
            grace_s=GRACE_S,
            now_s=loop.time,
            wall_ts=self._wall_ts,
            lives=lambda: {one.instance_id: one.life for one in self.instances},
            broken=self.broken,
        )
        self.network = Network(
            rng=seeded(plan.seed, "network"),
            timeline=self.timeline,
            witness=self,
            fired=self.fired,
        )
        self.network.faults = dict(plan.message_faults)
        self.ledger = Ledger(self.instances, rollouts=plan.rollouts, rng=self._rng)
        self.stage = Stage(self.base, self.ledger, self.timeline, self._rng, published=[], used=[])
        self._jobs: list[SteppedJob] = []
        self._journals: dict[Process, Journal] = {}
        self.reader = Process("reader")
        """Reads the journal for whoever holds something against it."""
        loop.start_io = io_of(loop, self.disk_of, self.point, self._acted, self._jobs.append)
        loop.set_exception_handler(self._reported)

    def _deployment(self, instance: SimulatedInstance) -> SimulatedDeployment:
        return SimulatedDeployment(
            instance.instance_id,
            clock=instance.clock,
            turn_of=self._turn_s,
            turns_max=TURNS_MAX,
            kinds=self._kinds,
            broken=self.broken,
        )

    def _turn_s(self, _episode: EnvironmentEpisode) -> float:
        longest_s = max(self.plan.turn_s, RESTING_TURN_S) if self.faults_over else self.plan.turn_s
        return round(longest_s * (0.2 + 0.8 * self._turns.random()), 6)

    def _wall_ts(self, process: Process) -> float:
        controller = self.controllers.get(process)
        return EPOCH_TS + self.loop.time() if controller is None else controller.clock.wall_ts()

    def _reported(self, _loop: object, context: dict[str, Any]) -> None:
        """Whatever the loop has to report is a defect, but for what was killed."""
        error = context.get("exception")
        if not isinstance(error, Killed):
            what = f"{context.get('message')}: {type(error).__name__}: {text_of(error)}"
            self.broken(Broken("defect", what))

    # --- what a run is told ---------------------------------------------------------------------

    @property
    def faulty(self) -> bool:
        """Whether any fault has happened."""
        return bool(self.coverage.fired)

    def broken(self, broken: Broken) -> None:
        """Take note of a promise that does not hold."""
        self.timeline.note("BROKEN", str(broken))
        self.problems.append(broken)

    def fired(self, kind: str) -> None:
        """Take note of a fault that happens."""
        self.coverage.fires(kind)

    def disk_of(self, process: Process) -> Disk:
        """Return the disk of a process."""
        disk = self.disks.get(process)
        if disk is None:
            disk = self.disks[process] = Disk()
        return disk

    def sends(self, message: Message) -> None:
        """Hold a call that leaves against the promises."""
        self.watch.sends(message)

    def comes_back(self, message: Message, result: Any, error: BaseException | None) -> None:
        """Note an answer that reaches its controller."""
        self.watch.comes_back(message, result, error)

    def served(self, message: Message, error: BaseException | None) -> None:
        """Note what an instance has done, and hold it against S4."""
        instance = message.instance
        if message.call == "resume" and error is None:
            instance.resumed.add(message.wire_id)
        if message.call == "restore" and error is None:
            self.watch.installed(message)
        instance.hold_fenced(self.broken)

    def keeps(self, process: Process) -> None:
        """Note that the body of a restore has ended well."""
        self.watch.keeps(process)

    def recorded(self, process: Process, entries: Sequence[Entry]) -> None:
        """Note entries that are durable."""
        self.watch.recorded(process, entries)
        if entries[0].seq == 1 and not self.coverage.any_fired("journal"):
            self.watch.hold_alone(process, entries[0].operation_id)
        self.coverage.recorded(entries)

    def point(self, what: str) -> None:
        """Let the faults happen whose point has come."""
        process = running_process()
        controller = self.controllers.get(process) if process is not None else None
        if controller is None or self.faults_over:
            return
        if not controller.passed:  # it has not begun its life yet
            return
        controller.passed[-1] += 1
        if not controller.armed:
            return
        due = [fault for fault in controller.armed if fault.point <= controller.passed[-1]]
        if not due:
            return
        controller.armed = [fault for fault in controller.armed if fault not in due]
        for fault in due:
            self.mishaps.happen(fault, controller, what)
        if controller.process.dead:
            raise Killed

    def published(self, process: Process, manifest: bytes) -> None:
        """Hold that an instance publishes nothing under an id whose resume it has answered."""
        wire_id = orjson.loads(manifest)["checkpoint_id"]
        for instance in self.instances:
            if instance.process is process and wire_id in instance.resumed:
                what = f"{instance.instance_id} publishes records of {wire_id} after its resume"
                self.broken(Broken("S4", what))

    def close(self) -> None:
        """Unwind the file jobs that are under way, and close the journals."""
        for job in self._jobs:
            job.end()
        for journal in self._journals.values():
            journal.close()

    def _acted(self, job: str) -> None:
        process = running_process()
        if process is not None and job == "gymckpt-sealed":
            self.watch.seals(process)

    def renew(self, instance: SimulatedInstance) -> None:
        """Let an instance begin a new life."""
        instance.process.kill()
        instance.begin()
        self.network.died(instance)

    def renew_instances(self) -> None:
        """Let every instance begin a new life, as a new cluster does."""
        for instance in self.instances:
            self.renew(instance)

    # --- controllers ----------------------------------------------------------------------------

    def journal(self, process: Process) -> Journal:
        """Return the journal as one process sees it."""
        if process in self._journals:
            return self._journals[process]
        disk = self.disk_of(process)
        seat = Seat(process=process, disk=disk, timeline=self.timeline, told=self)
        journal: Journal
        if self.plan.sqlite:
            journal = SimulatedFile(self.base / "journal.db", seat, now_s=self.loop.time)
        else:
            journal = SimulatedMemory(self.store, seat)
        self._journals[process] = journal
        return journal

    def handles(self, process: Process) -> dict[str, Any]:
        """Return the handles of one process."""
        return {one.instance_id: self.network.handle(process, one) for one in self.instances}

    def new_controller(self) -> Controller:
        """Start one more controller, which does nothing yet."""
        process = Process(f"controller-{len(self.controllers) + 1}")
        clock = VirtualClock(self.loop, wall_ts=EPOCH_TS + self.loop.time())
        controller = process.context.copy().run(
            lambda: Controller(
                self.stage,
                self,
                process=process,
                clock=clock,
                disk=self.disk_of(process),
                journal=self.journal(process),
                handles=self.handles(process),
            )
        )
        self.controllers[process] = controller
        return controller

    async def perform(self) -> None:
        """Do the first part: the plan's verbs, with its faults."""
        verbs = deque(self.plan.verbs)
        self.loop.call_soon(self.ledger.dispatch)
        await asyncio.sleep(0.1)
        while True:
            self.alarm.clear()
            if len(self.controllers) < CONTROLLERS_MAX:
                controller = self.new_controller()
                faults = self.plan.startup_faults if len(self.controllers) == 2 else ()
                life = controller.life(verbs, faults)
                self.lives[controller] = controller.process.start(life)
            if not await self._until_turnover():
                return
            self.ledger.reopened()
            await asyncio.sleep(self.plan.takeover_s)

    async def _until_turnover(self) -> bool:
        """Wait until another controller is needed; False where all are done."""
        alarm = asyncio.ensure_future(self.alarm.wait())
        try:
            while True:
                lives = {
                    life: controller
                    for controller, life in self.lives.items()
                    if not life.done() and not controller.process.dead
                }
                if self.alarm.is_set():
                    return True
                if not lives:
                    return False
                done, _ = await asyncio.wait(
                    {alarm, *lives}, timeout=RUN_BOUND_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self.broken(
                        Broken("L1", "controllers are still at work after a very long time")
                    )
                    return False
        finally:
            alarm.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await alarm
