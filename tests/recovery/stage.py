"""
One controller, its instances and its journal on a stage, and what must hold when all is over.

The controller is a process of its own. The instances are served by the process of the tests, which
is also where the next controller recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from gymckpt.coordinator import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointCoordinator,
    load_gym_checkpoint_manifest,
)
from gymckpt.core.replay import replay
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.journal import Journal
from gymckpt.recovery import Recovered, recover
from tests.faults.world import until
from tests.recovery.controller import CONTROL_TIMEOUT_S, WIRE_ID, Order, live
from tests.recovery.deployments import EPISODES, Station, offered

DRIVING = ("prepare", "renew", "commit", "restore")
LIFE_S = 30.0
"""How long a controller may take before its test has failed."""

_numbers = itertools.count(1)

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["pytest", "tests.recovery.warm"])


class Stage:
    """What one life of a controller and the recovery after it need."""

    def __init__(self, base: Path, journal: Journal, source: Path, **station: Any) -> None:
        """
        Set the stage.

        Args:
            base: A directory for many stages.
            journal: The journal, which many stages share.
            source: The snapshot that a restore reads.
            station: Settings of the instances.
        """
        number = next(_numbers)
        self.run = f"run-{number}"
        self.base = base
        self.journal = journal
        self.source = source
        self.root = base / f"root-{number}"
        self.report = base / f"report-{number}"
        self.station = Station(base / f"s{number}", **station)
        self.process: ForkServerProcess | None = None
        self.restores = False

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            await self.ended()
        await self.station.close()

    # --- the controller -------------------------------------------------------------------------

    async def begin(self, scenario: str, point: int | str = 0, **order: Any) -> None:
        """Open the instances and start a controller."""
        self.restores = "restore" in scenario
        await self.station.open(dispatch=not self.restores)
        self.process = processes.Process(
            target=live,
            args=(
                Order(
                    scenario=scenario,
                    run=self.run,
                    journal=self.journal.url,
                    socket=str(self.station.socket),
                    root=str(self.root),
                    source=str(self.source),
                    report=str(self.report),
                    point=point,
                    **order,
                ),
            ),
        )
        self.process.start()

    async def ended(self) -> int:
        """Wait until the controller has ended, and return its exit code."""
        process = self.process
        assert process is not None
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, gone.set)
        try:
            async with asyncio.timeout(LIFE_S):
                await gone.wait()
        finally:
            loop.remove_reader(process.sentinel)
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    async def stopped(self) -> bool:
        """Wait until the controller has stopped itself or ended, and say which."""
        process = self.process
        assert process is not None
        async with asyncio.timeout(LIFE_S):
            while process.is_alive():
                if _state_of(process.pid) == "T":
                    return True
                await asyncio.sleep(0.001)
        return False

    async def pause(self) -> None:
        """
        Pause the controller where it does not hold the journal.

        A process that is paused in the middle of a transaction locks everybody else out of a
        journal in a file, which no recovery can help.
        """
        while True:
            self.send(signal.SIGSTOP)
            assert await self.stopped()
            if self.journal_is_free():
                return
            self.send(signal.SIGCONT)
            await asyncio.sleep(0.005)

    def journal_is_free(self, wait_s: float = 0.0) -> bool:
        """Whether nobody holds the journal's lock for longer than this."""
        path = self.base / "journal.sqlite3"
        with contextlib.closing(sqlite3.connect(path, wait_s, isolation_level=None)) as raw:
            try:
                raw.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            raw.execute("ROLLBACK")
            return True

    async def inside(self) -> None:
        """Wait until the controller is in the body of its operation."""
        await until(self.report.with_suffix(".inside").exists, bound_s=LIFE_S)

    def send(self, number: signal.Signals) -> None:
        """Send the controller a signal, if it is still there."""
        assert self.process is not None
        assert self.process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def told(self, word: str) -> list[str]:
        """Return what the controller has reported of one kind: `point`, `hit`, `outcome`."""
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]

    # --- the next controller --------------------------------------------------------------------

    async def recovered(self, **settings: Any) -> tuple[Recovered, ...]:
        """Recover as the next controller does, with handles to every instance."""
        given = {"force": "owner_timeout_s" not in settings, **settings}
        return await recover(self.journal, self.station.handles, run=self.run, **given)

    def new_coordinator(self, **settings: Any) -> GymCheckpointCoordinator:
        """Return a coordinator of this process over the same run."""
        station = self.station

        class Handles:
            checkpoint_handles = station.handles

        return GymCheckpointCoordinator(
            Handles(),
            **{
                "control_timeout_s": CONTROL_TIMEOUT_S,
                "prepare_timeout_s": CONTROL_TIMEOUT_S,
                "journal": self.journal,
                "run": self.run,
                **settings,
            },
        )

    @property
    def settled(self) -> bool:
        """Whether the operation has ended, or was never opened."""
        row = self.journal.operation(self.run, WIRE_ID)
        return row is None or row.settled

    # --- what must hold -------------------------------------------------------------------------

    async def examine(self) -> str:
        """
        Hold everything that happened against what is promised, then use it all once more.

        Returns:
            The state in which the operation ended; empty where it was never opened.
        """
        state = self._state()
        problems = [
            *self._of_histories(),
            *self._of_instances(state),
            *self._of_manifest(state),
            *self._of_calls(),
        ]
        assert not problems, "\n".join([*problems, *self.story()])
        assert await self.recovered() == ()
        await self._of_what_follows(state)
        return state

    def _state(self) -> str:
        row = self.journal.operation(self.run, WIRE_ID)
        return "" if row is None else row.state

    def _of_histories(self) -> Iterable[str]:
        for row in self.journal.operations(self.run):
            operation = replay(self.journal.read(self.run, row.operation_id))
            if not (row.settled and operation.settled):
                yield f"L2: {row.operation_id} is left in {operation.state}"
            if operation.state != row.state:
                yield f"S6: {row.operation_id}: its row says {row.state}, its log {operation.state}"

    def _of_instances(self, state: str) -> Iterable[str]:
        for instance, deployment in self.station.deployments.items():
            if not deployment.is_open:
                yield f"S3: {instance} is still closed"
            restored = {episode.next_attempt() for episode in offered(instance)}
            if self.restores and deployment.live != (restored if state == "resumed" else set()):
                yield f"S5: {instance} goes on with {deployment.live}, the restore is {state!r}"

    def _of_manifest(self, state: str) -> Iterable[str]:
        exists = (self.root / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
        if exists != (state == "resumed" and not self.restores):
            yield f"S2: the checkpoint is {state!r}, its manifest exists: {exists}"
        elif exists and load_gym_checkpoint_manifest(self.root).checkpoint_id != WIRE_ID:
            yield "S2: the manifest is another's"

    def _of_calls(self) -> Iterable[str]:
        calls = [call for call in self.station.calls if call.wire_id == WIRE_ID]
        for instance in self.station.deployments:
            of = [call for call in calls if call.instance == instance]
            resumed = [call.ended for call in of if call.op == "resume" and call.ended]
            for call in of:
                late = resumed and call.tick > min(resumed) and call.op in DRIVING
                if late and call.outcome == "answered":
                    yield f"S4: {instance} took {call.op} after it had been resumed"
            if any(call.op in ("prepare", "restore") for call in of) and not resumed:
                yield f"S3: {instance} was never told to resume"
        commits = [call.tick for call in calls if call.op == "commit"]
        for instance in self.station.deployments if commits else ():
            for op in ("prepare", "renew"):
                done = [c.ended for c in calls if (c.instance, c.op) == (instance, op) and c.ended]
                if not done or min(done) > min(commits):
                    yield f"S1: a commit was sent before {instance} had answered {op}"

    async def _of_what_follows(self, state: str) -> None:
        """The next checkpoint works, and no attempt that a discard has used up is admitted."""
        coordinator = self.new_coordinator()
        if self.restores and state != "resumed":
            await self._start_over()
        inventory = {
            instance: tuple(sorted(deployment.live))
            for instance, deployment in self.station.deployments.items()
        }
        root = self.root.with_name(self.root.name + "-next")
        async with coordinator.prepared("next"):
            await coordinator.commit("next", root, inventory, restarts={})
        assert load_gym_checkpoint_manifest(root).instances == inventory

    async def _start_over(self) -> None:
        """Start rollouts over as the attempts that RL is told, also where a restore had begun."""
        for instance, deployment in self.station.deployments.items():
            for episode in offered(instance):
                deployment.start(EnvironmentEpisode(episode.rollout_id, 2))
        deployments = self.station.deployments.values()
        await until(lambda: all(len(one.live) == EPISODES for one in deployments))

    def story(self) -> list[str]:
        """Return every call in order, and what the controller reported, for a failed check."""
        calls = [f"  {c.tick} {c.instance} {c.op} {c.wire_id}: {c.outcome}" for c in self._sorted()]
        return [*calls, *self.told("hit"), *self.told("outcome")]

    def _sorted(self) -> list[Any]:
        return sorted(self.station.calls, key=lambda call: call.tick)


def _state_of(pid: int | None) -> str:
    """Return the one-letter state of a process of this host; empty where it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]
