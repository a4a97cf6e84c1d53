"""
The facade that RL holds: one snapshot or restore of every deployment, as a context manager.

The order of a snapshot (DESIGN, 10): dispatch is closed, every instance parks, every instance
writes, replies that were on the wire land, RL saves its own state in the body, instances reopen,
dispatch reopens. Whatever fails, instances reopen first and dispatch after them. While RL holds
its data-plane barrier nothing here waits for an instance: `check_against_cut` only compares what
both sides already know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.settings import require_duration
from gymckpt.diagnosis.timeline import Timeline, timeline_of
from gymckpt.episodes import EnvironmentEpisode, new_operation_id
from gymckpt.errors import (
    GymCheckpointNotReady,
    JournalError,
    OperationOpen,
    RestartOnlyDeployment,
    is_transient_gym_checkpoint_failure,
    sample,
    text_of,
)
from gymckpt.interfaces import EnvironmentSnapshot, RestoredEnvironmentRollouts
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
)
from gymckpt.recovery import Recovered
from gymckpt.roots import require_root
from gymckpt.runtime.worker import run_bounded
from gymckpt.snapshot import GymEnvironmentSnapshot, RolloutSource, require_owned, warn_of_unsavable
from gymckpt.standins import note_on
from gymckpt.startup import require_methods
from gymckpt.topology import (
    Inventory,
    require_disjoint,
    require_inventory,
    require_topology,
)
from gymckpt.unattached import Unattached

__all__ = ["GymEnvironmentCheckpoint"]

logger = logging.getLogger("gymckpt")

T = TypeVar("T")


class GymEnvironmentCheckpoint:
    """`EnvironmentCheckpoint` over Gym deployments behind a coordinator."""

    def __init__(
        self,
        coordinator: GymCheckpointCoordinator,
        rollouts: RolloutSource,
        *,
        restart_only: Literal["warn", "refuse"] = "warn",
        replies_timeout_s: float | None = None,
    ) -> None:
        """
        Hold a coordinator for RL.

        Args:
            coordinator: What drives the instances.
            rollouts: RL's side.
            restart_only: What `check_startup` does about servers whose rollouts start over.
            replies_timeout_s: How long replies on the wire are waited for, in seconds; None is
                the coordinator's control timeout.

        Raises:
            TypeError: The timeout is no number.
            ValueError: The timeout is not positive and finite, or the policy is unknown.
        """
        if restart_only not in ("warn", "refuse"):
            raise ValueError(f"restart_only is 'warn' or 'refuse', not {restart_only!r}")
        timeout_s = (
            coordinator.control_timeout_s if replies_timeout_s is None else replies_timeout_s
        )
        self._coordinator = coordinator
        self._rollouts = rollouts
        self._restart_only = restart_only
        self._replies_timeout_s = require_duration(timeout_s, "replies_timeout_s")
        self.recovered: tuple[Recovered, ...] = ()
        """What `check_startup` found unfinished, and what came of each."""
        self._busy_with: str | None = None
        """The snapshot or restore that is under way, from before its first step to its last."""
        self._unattached = Unattached()

    @property
    def holds_rollout_state(self) -> bool:
        """Whether rollout snapshots must capture this backend: always."""
        return True

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether a failed snapshot only met deployments that were briefly unreachable."""
        return is_transient_gym_checkpoint_failure(error)

    async def check_startup(self) -> None:
        """
        Recover what an earlier controller of this run left, and ask what cannot be captured.

        A controller that died a moment ago may still count as alive; it is given its time to be
        silent before anybody is told that it holds the run.

        Raises:
            GymCheckpointOperationError: Some actor does not answer, or lacks a method.
            RestartOnlyDeployment: A server is restart-only, and that is to be refused.
            RunHeld: Another process, which is alive, holds this run and has left something.
            JournalError: The journal cannot be read or written.
        """
        self.recovered = await self._coordinator.recover()
        for found in self.recovered:
            if found.held_by is not None:
                raise found.held_by
        require_methods(self._coordinator.handles)
        servers = {
            instance: names
            for instance, names in (await self._coordinator.restart_only_servers()).items()
            if names
        }
        if not servers:
            return
        error = RestartOnlyDeployment(servers)
        if self._restart_only == "refuse":
            raise error
        logger.warning("%s", text_of(error))

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        """
        Park every deployment and save its rollouts under `checkpoint_path`.

        Args:
            checkpoint_path: The unpublished snapshot's directory; made if it is missing.

        Yields:
            What was saved; None where nothing is in flight, and then nobody is parked.

        Raises:
            OperationOpen: A snapshot or restore is under way; its dispatch stays closed.
            TypeError: `checkpoint_path` or what `episodes_in_flight()` returned has a wrong type.
            ValueError: `checkpoint_path` is unsafe, or an instance is unknown, or a rollout is
                named twice; nobody was parked.
            GymCheckpointNotReady: Some instance could not park, or a reply on the wire did not
                land in time.
            GymCheckpointOperationError: A call failed on some instance.
            UnownedEpisodes: An instance holds live episodes that nobody can restore.
            BaseException: What the body raised.
        """
        snapshot_id, path = new_operation_id("snapshot"), Path(require_root(checkpoint_path))
        with self._alone("snapshot", snapshot_id):
            snapshot: GymEnvironmentSnapshot | None = None
            async with self._dispatch_closed():
                in_flight = self._in_flight()
                if not any(in_flight.values()):
                    yield None
                    return
                async with self._coordinator.prepared(snapshot_id) as restarts:
                    snapshot = await self._saved(snapshot_id, path, in_flight, restarts)
                    yield snapshot
            snapshot.timeline = await self._timeline(snapshot_id, snapshot.timeline)

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        """
        Continue the rollouts that `checkpoint_path` holds, on every deployment or on none.

        Args:
            checkpoint_path: The committed snapshot's directory; only read.

        Yields:
            What was continued; it goes on when the context exits.

        Raises:
            OperationOpen: A snapshot or restore is under way; nothing was sent.
            TypeError: `checkpoint_path` is not a path; nothing was sent.
            FileNotFoundError: There is no manifest; nothing was sent.
            ValueError: The path is unsafe, or the manifest is damaged or of another topology.
            TimeoutError: The manifest could not be read in time; nothing was sent.
            GymCheckpointOperationError: Some instance failed; nothing is continued.
            BaseException: What the body raised; nothing is continued.
        """
        restore_id, path = new_operation_id("restore"), Path(require_root(checkpoint_path))
        with self._alone("restore", restore_id):
            manifest = await self._off_the_loop(
                lambda: load_gym_checkpoint_manifest(path), "gymckpt-manifest-reading"
            )
            require_topology(
                list(manifest.instances), self._coordinator.instance_ids, "the manifest"
            )
            restored, replacements = _restored_by(manifest), manifest.next_attempts()
            ended = False
            try:
                async with self._coordinator.restored(restore_id, path, manifest):
                    yield restored
                    self._unattached.add(replacements, self._rollouts.episodes_in_flight())
                    ended = True
            except BaseException as error:
                if self._coordinator.has_opened(restore_id):
                    self._unattached.forget(replacements)
                    self._tell_refused(replacements, error)
                if ended and self._coordinator.stands(restore_id):
                    await self._retire(replacements, error)
                raise

    @contextmanager
    def _alone(self, word: str, operation_id: str) -> Iterator[None]:
        """Refuse a snapshot or restore beside another, before dispatch is touched on its behalf."""
        self._coordinator.require_none_open(f"begin {word} {operation_id!r}")
        if self._busy_with is not None:
            wanted = f"begin {word} {operation_id!r}"
            raise OperationOpen(wanted, self._busy_with, "beginning or ending")
        self._busy_with = operation_id
        try:
            yield
        finally:
            self._busy_with = None

    @asynccontextmanager
    async def _dispatch_closed(self) -> AsyncIterator[None]:
        """Close RL's gate; where its reopening fails after the body, that is a note (S9)."""
        gate = self._rollouts.dispatch_closed()
        await gate.__aenter__()
        try:
            yield
        except BaseException as error:
            first: BaseException = error
            suppressed: bool | None = False
            try:
                suppressed = await gate.__aexit__(type(first), first, first.__traceback__)
            except Exception as failed:
                if failed is not first:
                    note_on(first, f"cleanup: dispatch did not reopen: {text_of(failed)}")
            if not suppressed:
                raise
        else:
            await gate.__aexit__(None, None, None)

    async def _off_the_loop(self, job: Callable[[], T], name: str) -> T:
        return await run_bounded(job, name, timeout_s=self._coordinator.control_timeout_s)

    def _tell_refused(
        self, replacements: Mapping[str, Collection[EnvironmentEpisode]], error: BaseException
    ) -> None:
        """Tell RL which attempts a discarded restore has used up; its own failure is a note."""
        refused = [episode for episodes in replacements.values() for episode in episodes]
        if not refused:
            return
        try:
            self._rollouts.attempts_refused(refused)
        except Exception as failed:
            what = f"RL was not told of {len(refused)} refused attempt(s)"
            note_on(error, f"cleanup: {what}: {text_of(failed)}")

    async def _retire(self, replacements: Inventory, error: BaseException) -> None:
        """
        Drop what a restore has installed that may stand although its context does not end well.

        That is so where its caller was cancelled when the body had ended and instances were
        reopening already.
        """
        left = await asyncio.shield(self._coordinator.retire_unwanted(replacements))
        if left:
            what = "retiring restored attempts is unconfirmed and is tried again"
            note_on(error, f"cleanup: {what}: {sample(sorted(left))}")

    # --- parts of a snapshot --------------------------------------------------------------------

    def _in_flight(self) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Return what RL waits for, with restored episodes that it has not taken over."""
        live = sorted(self._coordinator.instance_ids)
        given = self._rollouts.episodes_in_flight()
        known = require_inventory(given, live, "episodes_in_flight()", whole=False)
        waiting = self._unattached.but(known)
        in_flight = {
            instance: (*known.get(instance, ()), *waiting.get(instance, ())) for instance in live
        }
        require_disjoint(in_flight, {})
        return in_flight

    async def _saved(
        self,
        snapshot_id: str,
        path: Path,
        in_flight: Inventory,
        restarts: Mapping[str, frozenset[EnvironmentEpisode]],
    ) -> GymEnvironmentSnapshot:
        """Commit everything but the restarts, and wait for the replies that are on the wire."""
        offered = _split(in_flight, restarts, restarted=False)
        left_out = _split(in_flight, restarts, restarted=True)
        with self._unattached.offered():
            result = await self._coordinator.commit(snapshot_id, path, offered, restarts=left_out)
        require_owned(result)
        warn_of_unsavable(result)
        manifest = result.manifest
        running = _episodes(manifest.instances) | _episodes(manifest.restarts) | _episodes(restarts)
        self._unattached.keep(running)
        await self._replies_landed(running, in_flight)
        return GymEnvironmentSnapshot(
            result=result,
            rollouts=self._rollouts,
            bytes_written=await self._bytes_under(path),
            timeline=await self._timeline(snapshot_id, timeline_of(())),
        )

    async def _replies_landed(
        self, later: Collection[EnvironmentEpisode], in_flight: Inventory
    ) -> None:
        bound = asyncio.timeout(self._replies_timeout_s)
        try:
            async with bound:
                await self._rollouts.replies_landed(frozenset(later))
        except TimeoutError as error:
            if not bound.expired():
                raise  # RL's own
            missing = {
                instance: {
                    "replies on the wire": tuple(
                        episode.capture_key for episode in episodes if episode not in later
                    )
                }
                for instance, episodes in in_flight.items()
                if any(episode not in later for episode in episodes)
            }
            raise GymCheckpointNotReady(missing) from error

    async def _bytes_under(self, path: Path) -> int:
        """Return the size of what was written; metrics are never worth a snapshot."""
        try:
            return await self._off_the_loop(lambda: _bytes_under(path), "gymckpt-snapshot-size")
        except OSError as error:  # a TimeoutError is one too
            logger.warning("the size of %s is unknown: %s", text_of(path), text_of(error))
            return 0

    async def _timeline(self, snapshot_id: str, otherwise: Timeline) -> Timeline:
        """Read where the time went; metrics are never worth a snapshot."""
        try:
            return timeline_of(await self._coordinator.history(snapshot_id))
        except JournalError as error:
            logger.warning("no metrics of snapshot %r: %s", snapshot_id, text_of(error))
            return otherwise


def _restored_by(manifest: GymCheckpointManifest) -> RestoredEnvironmentRollouts:
    """Return what a restore of a manifest continues."""
    return RestoredEnvironmentRollouts(
        continued_attempts=frozenset(
            (instance, episode.rollout_id, episode.attempt)
            for instance, episodes in manifest.instances.items()
            for episode in episodes
        ),
        staging_keys=frozenset(key for keys in manifest.staging_keys.values() for key in keys),
    )


def _episodes(
    inventory: Mapping[str, Collection[EnvironmentEpisode]],
) -> frozenset[EnvironmentEpisode]:
    return frozenset(episode for episodes in inventory.values() for episode in episodes)


def _split(
    in_flight: Inventory,
    restarts: Mapping[str, frozenset[EnvironmentEpisode]],
    *,
    restarted: bool,
) -> dict[str, tuple[EnvironmentEpisode, ...]]:
    """Return the episodes in flight that their instance can, or cannot, capture."""
    return {
        instance: tuple(
            episode
            for episode in episodes
            if (episode in restarts.get(instance, frozenset())) is restarted
        )
        for instance, episodes in in_flight.items()
    }


def _bytes_under(root: Path) -> int:
    """Return the size of what a snapshot holds for the environment."""
    parts = [root / GYM_CHECKPOINT_MANIFEST_FILENAME, *(root / "gym-instances").rglob("*")]
    return sum(part.stat().st_size for part in parts if part.is_file())
