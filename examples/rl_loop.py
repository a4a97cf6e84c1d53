"""
A small RL controller: it dispatches rollouts, stores their turns, keeps a ledger, takes snapshots.

It stands for the trainer that holds gymckpt. What it knows lives in one `Controller` object and is
thrown away with it; what survives is what a snapshot published.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import ray
from rl_job import Job

from gymckpt import (
    EnvironmentEpisode,
    GymCheckpointCoordinator,
    GymCheckpointOperationError,
    GymEnvironmentCheckpoint,
    LedgerUnderCut,
    new_operation_id,
)

SNAPSHOT_EVERY_S = 1.0

ATTEMPTS_SINCE = 100
"""More attempts than controllers that died can have made of a rollout since a snapshot."""


class Cut:
    """The data plane between two mutations."""

    live = True


@attrs.define
class Rollout:
    """One line of the ledger."""

    instance: str
    attempt: int = 0
    running: bool = False
    reply: dict[str, Any] | None = None


class Controller:
    """Dispatch, ledger and snapshots of one job; implements gymckpt's `RolloutSource`."""

    def __init__(
        self,
        job: Job,
        handles: Mapping[str, Any],
        rows: Any,
        root: Path,
        *,
        report: Callable[[int, int, str], None],
        journal: Any = None,
    ) -> None:
        """
        Hold everything that a controller needs and nothing yet of the past.

        Args:
            job: What is to be done.
            handles: Instance id to actor handle.
            rows: The row store's actor handle.
            root: Where snapshots are published.
            report: Told of progress: rollouts finished, of how many, what is going on.
            journal: The journal or its URL; None is a file beside the snapshots.
        """
        self.job = job
        self.handles = handles
        self.rows = rows
        self.root = root
        self.ledger = {name: Rollout(spec["instance"]) for name, spec in job.rollouts.items()}
        self.coordinator = GymCheckpointCoordinator(
            job.shard_set(handles),
            control_timeout_s=20.0,
            prepare_timeout_s=20.0,
            journal=journal or f"sqlite:///{root}/journal.sqlite3",
            run=job.name,
            owner_timeout_s=3.0,  # short, so that the next controller need not wait long
        )
        self.environment = GymEnvironmentCheckpoint(self.coordinator, self)
        self.snapshots: list[dict[str, float]] = []
        self.continued: set[str] = set()
        self.saved_rows: frozenset[str] = frozenset()
        """The rows that the continued rollouts had when they were saved."""
        self.started_over: set[str] = set()
        self._report = report
        self._gate = asyncio.Event()
        self._gate.set()
        self._slots = {name: asyncio.Semaphore(job.in_flight) for name in job.instance_ids}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._at_close: frozenset[str] = frozenset()
        self._later: set[str] = set()
        self._sorted_out = asyncio.Event()
        self._sorted_out.set()

    # --- what gymckpt asks of RL ----------------------------------------------------------------

    @asynccontextmanager
    async def dispatch_closed(self) -> AsyncIterator[None]:
        """Send nothing new while instances are parked."""
        self._gate.clear()
        self._sorted_out.clear()
        self._later = set()
        self._at_close = frozenset(self._running())
        try:
            yield
        finally:
            self._gate.set()
            self._sorted_out.set()

    def episodes_in_flight(self) -> Mapping[str, Collection[EnvironmentEpisode]]:
        """Return the attempts whose replies are waited for, by instance."""
        found: dict[str, list[EnvironmentEpisode]] = {name: [] for name in self.handles}
        for name, rollout in self._running().items():
            found[rollout.instance].append(EnvironmentEpisode(name, rollout.attempt))
        return found

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        """Wait for the replies that are on the wire; the others count after the snapshot."""
        self._later = {episode.rollout_id for episode in expected_later}
        self._sorted_out.set()
        landing = [self._tasks[name] for name in self._running() if name not in self._later]
        if landing:
            await asyncio.wait(landing)

    def ledger_under(self, cut: Cut) -> LedgerUnderCut:
        """Return what was unfinished when dispatch was closed, and what has landed since."""
        sealed = {name for name in self._at_close if self.ledger[name].reply is not None}
        return LedgerUnderCut(unfinished=self._at_close, sealed=frozenset(sealed))

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        """Start these rollouts over as later attempts."""
        for episode in episodes:
            rollout = self.ledger[episode.rollout_id]
            rollout.attempt = max(rollout.attempt, episode.attempt + 1)

    def _running(self) -> dict[str, Rollout]:
        return {name: rollout for name, rollout in self.ledger.items() if rollout.running}

    async def begin(self) -> int:
        """
        Recover, and go back to the last published snapshot where there is one.

        Returns:
            How many rollouts had finished in it.
        """
        await self.environment.check_startup()
        await self.stop_what_runs(self.latest)
        if self.latest is not None:
            self._report(0, len(self.ledger), f"restoring {self.latest.name}")
            await self.restore(self.latest)
        else:
            await self.rows.reset.remote({})
        return self.finished

    # --- the work -------------------------------------------------------------------------------

    async def work(self, enough: Callable[[], bool]) -> None:
        """
        Run rollouts, with a snapshot now and then, until all are done or it is `enough`.

        Args:
            enough: Looked at after each reply and each snapshot.
        """
        continued_first = sorted(self.ledger, key=lambda name: not self.ledger[name].running)
        for name in continued_first:
            if self.ledger[name].reply is None:
                self._tasks[name] = asyncio.create_task(self._run(name))
        snapshots = asyncio.create_task(self._snapshot_now_and_then())
        try:
            while not self.done and not enough():
                self._tell("running")
                waiting = [task for task in self._tasks.values() if not task.done()]
                done, _ = await asyncio.wait(
                    {*waiting, snapshots}, timeout=0.2, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        finally:
            for task in (snapshots, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(snapshots, *self._tasks.values(), return_exceptions=True)

    @property
    def finished(self) -> int:
        """How many rollouts have their reply."""
        return sum(rollout.reply is not None for rollout in self.ledger.values())

    @property
    def done(self) -> bool:
        """Whether every rollout has its reply."""
        return self.finished == len(self.ledger)

    def _tell(self, what: str) -> None:
        self._report(self.finished, len(self.ledger), what)

    async def _run(self, name: str) -> None:
        """Dispatch one rollout, or wait again for one that was continued."""
        rollout, spec = self.ledger[name], dict(self.job.rollouts[name])
        handle = self.handles[spec.pop("instance")]
        async with self._slots[rollout.instance]:
            if rollout.running:  # continued from a snapshot
                reply = await handle.attach.remote(name, rollout.attempt)
            else:
                await self._gate.wait()
                rollout.running = True
                reply = await handle.run.remote(name, rollout.attempt, **spec)
        await self._sorted_out.wait()  # a snapshot is sorting out which replies it waits for
        if name in self._later:
            await self._gate.wait()
        rollout.running = False
        rollout.reply = {"steps": reply.steps, "row_keys": list(reply.row_keys)}

    # --- snapshots ------------------------------------------------------------------------------

    async def _snapshot_now_and_then(self) -> None:
        while not self.done:
            await asyncio.sleep(SNAPSHOT_EVERY_S)
            try:
                await self.snapshot()
            except Exception as error:
                if not self.environment.is_unavailable(error):
                    raise
                self._tell(f"snapshot put off: {error}")

    async def snapshot(self) -> None:
        """Save RL's state and the environments' as one directory, published by one rename."""
        number = len(list(self.root.glob("snapshot-*")))
        unpublished = self.root / f"unpublished-{number:04d}"
        shutil.rmtree(unpublished, ignore_errors=True)
        self._tell("parking")
        async with self.environment.snapshot(unpublished) as snapshot:
            if snapshot is None:
                return
            async with self._data_plane_cut() as cut:
                await snapshot.check_against_cut(cut)
                await self._save(unpublished)
        os.replace(unpublished, self.root / f"snapshot-{number:04d}")
        timeline = snapshot.timeline
        parked_s = timeline.state_seconds("parked", "committing", "sealing", "committed")
        self.snapshots.append(snapshot.metrics(parked_s + timeline.state_seconds("resuming")))
        self._tell(f"published snapshot {number}")

    @asynccontextmanager
    async def _data_plane_cut(self) -> AsyncIterator[Cut]:
        cut = Cut()
        try:
            yield cut
        finally:
            cut.live = False

    async def _save(self, directory: Path) -> None:
        ledger = {name: attrs.asdict(rollout) for name, rollout in self.ledger.items()}
        rows = await self.rows.dump.remote()
        for name, content in (("ledger.json", ledger), ("rows.json", rows)):
            with (directory / name).open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())

    @property
    def latest(self) -> Path | None:
        """The last snapshot that was published."""
        return max(self.root.glob("snapshot-*"), default=None)

    async def stop_what_runs(self, snapshot: Path | None) -> None:
        """Stop what a dead controller left running on live actors, before going back."""
        if snapshot is not None:
            self._load_ledger(snapshot)
        stale: dict[str, list[EnvironmentEpisode]] = {name: [] for name in self.handles}
        for name, rollout in self.ledger.items():
            if rollout.reply is None:
                last = EnvironmentEpisode(name, rollout.attempt + ATTEMPTS_SINCE)
                stale[rollout.instance].append(last)
        await self.coordinator.retire(new_operation_id("retire"), stale)
        await self.coordinator.forget(new_operation_id("forget"), stale)

    def _load_ledger(self, snapshot: Path) -> None:
        for name, saved in json.loads((snapshot / "ledger.json").read_text()).items():
            self.ledger[name] = Rollout(**saved)

    async def restore(self, snapshot: Path) -> None:
        """Go back to a snapshot: continue what it holds, start over what it could not capture."""
        self._load_ledger(snapshot)
        rows = json.loads((snapshot / "rows.json").read_text())
        async with self.environment.restored(snapshot) as restored:
            continued = {rollout: attempt for _, rollout, attempt in restored.continued_attempts}
            kept = set(restored.staging_keys)
            for name, rollout in self.ledger.items():
                if rollout.reply is not None:
                    kept |= set(rollout.reply["row_keys"])
                elif name in continued:
                    rollout.attempt = continued[name] + 1
                elif rollout.running:
                    rollout.attempt += 1
                    rollout.running = False
                    self.started_over.add(name)
            await self.rows.reset.remote({key: row for key, row in rows.items() if key in kept})
        self.continued = set(continued)
        self.saved_rows = restored.staging_keys


# --- what a controller leaves -------------------------------------------------------------------

ACTOR_LOST = (ray.exceptions.RayActorError, GymCheckpointOperationError)
"""What a controller ends with when an actor dies under it."""


def any_is_dead(error: BaseException) -> bool:
    """Whether an error says that an actor is dead, so that new ones are needed."""
    failures = error.failures.values() if isinstance(error, GymCheckpointOperationError) else ()
    return any(isinstance(one, ray.exceptions.RayActorError) for one in (error, *failures))


@attrs.frozen
class Outcome:
    """What the controllers leave for the proof."""

    ledger: dict[str, dict[str, Any]]
    continued: list[str]
    saved_rows: list[str]
    started_over: list[str]
    snapshots: list[dict[str, float]]
    finished_in_the_snapshot: int


def outcome_of(
    controller: Controller, snapshots: list[dict[str, float]], in_snapshot: int
) -> Outcome:
    """
    Return what is left of a controller that has finished.

    Args:
        controller: The last one.
        snapshots: The metrics of all snapshots, those of earlier controllers included.
        in_snapshot: How many rollouts had finished in the snapshot that it went back to.
    """
    return Outcome(
        ledger={name: attrs.asdict(rollout) for name, rollout in controller.ledger.items()},
        continued=sorted(controller.continued),
        saved_rows=sorted(controller.saved_rows),
        started_over=sorted(controller.started_over),
        snapshots=snapshots,
        finished_in_the_snapshot=in_snapshot,
    )
