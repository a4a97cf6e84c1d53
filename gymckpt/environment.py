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
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.settings import require_duration
from gymckpt.diagnosis.timeline import Timeline, timeline_of
from gymckpt.episodes import EnvironmentEpisode, new_operation_id
from gymckpt.errors import (
    GymCheckpointNotReady,
    JournalError,
    RestartOnlyDeployment,
    UnownedEpisodes,
    is_transient_gym_checkpoint_failure,
    text_of,
)
from gymckpt.interfaces import EnvironmentSnapshot, RestoredEnvironmentRollouts
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME, load_gym_checkpoint_manifest
from gymckpt.recovery import Recovered
from gymckpt.snapshot import GymEnvironmentSnapshot, RolloutSource
from gymckpt.topology import require_topology

__all__ = ["GymEnvironmentCheckpoint"]

logger = logging.getLogger("gymckpt")


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
        self._unattached: dict[str, set[EnvironmentEpisode]] = {}

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

        A controller that died a moment ago still counts as alive; it is given its time to be
        silent before anybody is told that it holds an operation.

        Raises:
            GymCheckpointOperationError: Some actor does not answer, or lacks a method.
            RestartOnlyDeployment: A server is restart-only, and that is to be refused.
            OperationHeld: Another controller, which is alive, drives an operation of this run.
            JournalError: The journal cannot be read or written.
        """
        self.recovered = await self._coordinator.recover()
        held = [found for found in self.recovered if found.held_by is not None]
        if held:
            await asyncio.sleep(self._coordinator.owner_timeout_s)
            self.recovered = await self._coordinator.recover()
            for found in self.recovered:
                if found.held_by is not None:
                    raise found.held_by
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
        logger.warning("%s", error)

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        """
        Park every deployment and save its rollouts under `checkpoint_path`.

        Args:
            checkpoint_path: The unpublished snapshot's directory; made if it is missing.

        Yields:
            What was saved; None where nothing is in flight, and then nobody is parked.

        Raises:
            GymCheckpointNotReady: Some instance could not park, or a reply on the wire did not
                land in time.
            GymCheckpointOperationError: A call failed on some instance.
            UnownedEpisodes: An instance holds live episodes that nobody can restore.
            BaseException: What the body raised.
        """
        snapshot_id = new_operation_id("snapshot")
        snapshot: GymEnvironmentSnapshot | None = None
        async with self._rollouts.dispatch_closed():
            in_flight = self._in_flight()
            if not any(in_flight.values()):
                yield None
                return
            async with self._coordinator.prepared(snapshot_id) as restarts:
                snapshot = await self._saved(snapshot_id, checkpoint_path, in_flight, restarts)
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
            FileNotFoundError: There is no manifest; nothing was sent.
            ValueError: The manifest is damaged or of another topology; nothing was sent.
            GymCheckpointOperationError: Some instance failed; nothing is continued.
            BaseException: What the body raised; nothing is continued.
        """
        manifest = await asyncio.to_thread(load_gym_checkpoint_manifest, checkpoint_path)
        require_topology(list(manifest.instances), self._coordinator.instance_ids, "the manifest")
        restored = RestoredEnvironmentRollouts(
            continued_attempts=frozenset(
                (instance, episode.rollout_id, episode.attempt)
                for instance, episodes in manifest.instances.items()
                for episode in episodes
            ),
            staging_keys=frozenset(key for keys in manifest.staging_keys.values() for key in keys),
        )
        replacements: dict[str, set[EnvironmentEpisode]] = {}
        for instance, episode in restored.replacements():
            replacements.setdefault(instance, set()).add(episode)
        restore_id = new_operation_id("restore")
        try:
            async with self._coordinator.restored(restore_id, checkpoint_path, manifest):
                yield restored
        except BaseException:
            refused = [episode for episodes in replacements.values() for episode in episodes]
            self._rollouts.attempts_refused(refused)
            raise
        self._unattached = replacements

    # --- parts of a snapshot --------------------------------------------------------------------

    def _in_flight(self) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Return what RL waits for, with restored episodes that it has not attached to yet."""
        known = self._rollouts.episodes_in_flight()
        attached = {episode.rollout_id for episodes in known.values() for episode in episodes}
        self._unattached = {
            instance: {episode for episode in episodes if episode.rollout_id not in attached}
            for instance, episodes in self._unattached.items()
        }
        in_flight = {instance: tuple(known.get(instance, ())) for instance in known}
        for instance in sorted(self._coordinator.instance_ids):
            waiting = sorted(self._unattached.get(instance, ()))
            in_flight[instance] = (*in_flight.get(instance, ()), *waiting)
        return in_flight

    async def _saved(
        self,
        snapshot_id: str,
        path: Path,
        in_flight: Mapping[str, tuple[EnvironmentEpisode, ...]],
        restarts: Mapping[str, frozenset[EnvironmentEpisode]],
    ) -> GymEnvironmentSnapshot:
        """Commit everything but the restarts, and wait for the replies that are on the wire."""
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        result = await self._coordinator.commit(
            snapshot_id,
            path,
            _split(in_flight, restarts, restarted=False),
            restarts=_split(in_flight, restarts, restarted=True),
        )
        unowned = {
            instance: summary.unowned_live_episodes
            for instance, summary in result.instances.items()
            if summary.unowned_live_episodes
        }
        if unowned:
            raise UnownedEpisodes(unowned)
        later = {
            episode
            for inventory in (result.manifest.instances, restarts)
            for episodes in inventory.values()
            for episode in episodes
        }
        await self._replies_landed(later, in_flight)
        return GymEnvironmentSnapshot(
            result=result,
            rollouts=self._rollouts,
            bytes_written=await asyncio.to_thread(_bytes_under, path),
            timeline=await self._timeline(snapshot_id, timeline_of(())),
        )

    async def _replies_landed(
        self,
        later: Collection[EnvironmentEpisode],
        in_flight: Mapping[str, tuple[EnvironmentEpisode, ...]],
    ) -> None:
        try:
            async with asyncio.timeout(self._replies_timeout_s):
                await self._rollouts.replies_landed(frozenset(later))
        except TimeoutError as error:
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

    async def _timeline(self, snapshot_id: str, otherwise: Timeline) -> Timeline:
        """Read where the time went; metrics are never worth a snapshot."""
        try:
            return timeline_of(await self._coordinator.history(snapshot_id))
        except JournalError as error:
            logger.warning("no metrics of snapshot %r: %s", snapshot_id, text_of(error))
            return otherwise


def _split(
    in_flight: Mapping[str, tuple[EnvironmentEpisode, ...]],
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
