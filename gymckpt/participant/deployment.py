"""
The `checkpoint_*` calls that save a deployment's episodes and install them again.

Files are touched in threads, and episodes are made again there too, so that no call of the control
plane waits for a disk or for an environment. What a call began goes on under its id until that is
resumed, whether or not its caller still waits; the same call waits for the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from gymckpt.episodes import EnvironmentEpisode, require_operation_id
from gymckpt.errors import ParticipantRefused, sample
from gymckpt.participant.boundary import answers
from gymckpt.participant.episodes import EpisodeBody
from gymckpt.participant.parking import ParkingDeployment, scope_of
from gymckpt.participant.saving import Saving
from gymckpt.participant.servers import Server
from gymckpt.participant.store import Record, RecordsStore
from gymckpt.participant.work import Work
from gymckpt.replies import GymCheckpointCommitSummary

__all__ = ["Deployment"]

CLEANUP_S = 30.0
"""How long a restore that failed has to retire what it may have installed."""


class Deployment(ParkingDeployment):
    """Takes part in checkpoints; what its episodes are is up to a subclass."""

    # --- saving -----------------------------------------------------------------------------

    @answers("commit")
    async def checkpoint_commit(
        self,
        checkpoint_id: str,
        root: str,
        episodes: Collection[EnvironmentEpisode],
        *,
        deadline_ts: float,
    ) -> GymCheckpointCommitSummary:
        """
        Write the state of these episodes below `root`, and answer when it is on the disk.

        Episodes whose reply is already on its way are left out. So are those whose state cannot
        be saved, each with the reason, unless the deployment was made with `unsavable="fail"`.

        Raises:
            GymCheckpointUnavailable: The deployment is not parked for this id, the deadline
                passed, a resume stopped the write, the id was committed with other arguments, or
                an episode is unknown, retired, or must start over.
            ValueError: A rollout is named twice.
            OSError: The disk refused.
            Exception: What saving raised that is no single episode's, or any with
                `unsavable="fail"`.
        """
        scope = scope_of(episodes)
        now_ts = self._tick()
        recorded = self._servers.together(
            lambda control: control.commit(
                checkpoint_id, (str(root), scope), deadline_ts=deadline_ts, now_ts=now_ts
            ),
            check=lambda: self._require_capturable(scope),
        )
        self._settle()
        if recorded is None:
            work = self._workshop.ask(
                checkpoint_id, lambda work: self._write(work, Path(root), scope), deadline_ts
            )
            recorded = await self._workshop.result(work, deadline_ts)
        return cast("GymCheckpointCommitSummary", recorded)

    def _require_capturable(self, scope: Iterable[EnvironmentEpisode]) -> None:
        unknown: list[str] = []
        restarts: list[str] = []
        for episode in scope:
            for server in self._servers.all:
                server.control.require_current(episode)
            live = self._table.get(episode)
            if live is None and not self._ended_here(episode):
                unknown.append(episode.capture_key)
            elif live is not None and live.restarts:
                restarts.append(episode.capture_key)
        if unknown:
            raise ParticipantRefused(
                "checkpoint_error", f"no such episode here: {sample(unknown)}; leave it out"
            )
        if restarts:
            raise ParticipantRefused(
                "restart_in_scope",
                f"cannot be captured and must start over: {sample(restarts)}; leave it out",
            )

    def _ended_here(self, episode: EnvironmentEpisode) -> bool:
        newest = self._servers.all[0].control.state.newest.get(episode.rollout_id)
        return newest == episode.attempt or self._table.outcome(episode) is not None

    async def _write(
        self, work: Work, root: Path, scope: Sequence[EnvironmentEpisode]
    ) -> GymCheckpointCommitSummary:
        work.require_wanted()
        found = [live for episode in scope if (live := self._table.get(episode)) is not None]
        unowned = tuple(self.unowned_episodes())
        saving = Saving(
            work,
            self._workshop,
            {server: self._store(root, server) for server in self._servers.all},
            self.records_of,
            strict=self._unsavable == "fail",
        )
        rows = saving.rows_of(found)
        staged = await saving.stage(found)
        rows = {episode: keys for episode, keys in rows.items() if episode not in saving.unsavable}
        summary = GymCheckpointCommitSummary(
            exported_episodes=tuple(rows),
            staging_keys=tuple(sorted({key for keys in rows.values() for key in keys})),
            participants=self._servers.names,
            staging_keys_by_episode=rows,
            unowned_live_episodes=unowned,
            unsavable=saving.unsavable,
            written_below_root=True,
        )
        await saving.publish(staged)
        return cast(
            "GymCheckpointCommitSummary",
            self._servers.record("commit", work.checkpoint_id, summary),
        )

    def _store(self, root: Path, server: Server) -> RecordsStore:
        return RecordsStore(root, self.instance_id, server.kind, server.name)

    # --- restoring --------------------------------------------------------------------------

    @answers("restore")
    async def checkpoint_restore(
        self,
        restore_id: str,
        root: str,
        episodes: Collection[EnvironmentEpisode],
        *,
        source_checkpoint_id: str,
        participants: Collection[str],
        deadline_ts: float,
    ) -> None:
        """
        Install saved episodes as their next attempts, parked until the id is resumed.

        A restore that fails on one server has retired the next attempts and reopened all servers
        when its error is raised.

        Raises:
            GymCheckpointUnavailable: The id was resumed before or holds other work, another one
                holds the deployment, the deadline passed, or a next attempt is refused.
            ValueError: The participants are not this deployment's, or what was saved is damaged,
                belongs to another checkpoint, or does not play back as it was.
        """
        scope = scope_of(episodes)
        source_checkpoint_id = require_operation_id(source_checkpoint_id, "source checkpoint id")
        self._servers.require_same(participants)
        now_ts = self._tick()
        fresh = self._servers.is_open
        request = (str(root), scope, source_checkpoint_id)
        recorded = self._servers.together(
            lambda control: control.restore(
                restore_id, request, deadline_ts=deadline_ts, now_ts=now_ts
            ),
            check=lambda: self._require_new(scope) if fresh else None,
        )
        self._settle()
        if recorded is None:
            work = self._workshop.ask(
                restore_id,
                lambda work: self._install(work, Path(root), scope, source_checkpoint_id),
                deadline_ts,
            )
            await self._workshop.result(work, deadline_ts)

    def _require_new(self, scope: Iterable[EnvironmentEpisode]) -> None:
        for episode in scope:
            following = episode.next_attempt()
            for server in self._servers.all:
                server.control.require_current(following)
            if not self._table.is_new(following):
                raise ParticipantRefused(
                    "stale_attempt",
                    f"{following.capture_key} was dispatched here before, and no retry changes "
                    "that: start the rollout over as a later attempt, or restore another snapshot",
                )

    async def _install(
        self, work: Work, root: Path, scope: Sequence[EnvironmentEpisode], source_id: str
    ) -> bool:
        following = [episode.next_attempt() for episode in scope]
        bodies: list[EpisodeBody] = []
        try:
            load = partial(self._load, work, root, scope, source_id)
            [bodies] = await self._workshop.in_threads(work, [load], bounded=True)
            work.require_wanted()
            self._require_new(scope)  # a dispatch may have come while the records were read
            self._servers.together(lambda control: control.install(work.checkpoint_id, following))
            self._servers.record("restore", work.checkpoint_id, True)
        except BaseException:
            _close(bodies)
            self._discard(work.checkpoint_id, following)
            raise
        self._stop_overtaken(following)
        for episode, body in zip(following, bodies, strict=True):
            self._table.start(episode, body, admit=None)
        return True

    def _load(
        self, work: Work, root: Path, scope: Sequence[EnvironmentEpisode], source_id: str
    ) -> list[EpisodeBody]:
        """Read and rebuild, in a thread."""
        keys = {(episode.rollout_id, episode.attempt) for episode in scope}

        def wanted(record: Record) -> bool:
            work.require_wanted()
            key = (record.get("rollout_id"), record.get("attempt"))
            return key[0] is None or (isinstance(key[0], str) and key in keys)

        records = {
            server.name: self._store(root, server).read(source_id, wanted=wanted)
            for server in self._servers.all
        }
        bodies = self.rebuild(records, scope, work.require_wanted)
        if work.stopped.is_set():
            _close(bodies)
            work.require_wanted()
        return bodies

    def _discard(self, restore_id: str, following: Sequence[EnvironmentEpisode]) -> None:
        """Refuse the attempts that a failed restore would have installed, then reopen."""
        now_ts = self._timers.now_ts()
        self._servers.expire(now_ts)
        if not self._servers.hold(restore_id):
            return
        self._servers.together(
            lambda control: control.retire(
                restore_id, following, deadline_ts=now_ts + CLEANUP_S, now_ts=now_ts
            )
        )
        self._servers.resume(restore_id, now_ts)
        self._settle()


def _close(bodies: Iterable[EpisodeBody]) -> None:
    for body in bodies:
        body.close()
