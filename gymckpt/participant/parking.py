"""
The `checkpoint_*` calls that park a deployment, reopen it, and refuse attempts.

The control planes decide what may happen and the episode table holds what runs; this module adds
the order (protocol facts, 13) and the waiting. Each wait ends with a change, a deadline or a
lease. Asking again under the same id is always safe and never does a thing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from gymckpt.episodes import EnvironmentEpisode, require_operation_id, require_rollout_id
from gymckpt.errors import ParticipantRefused, sample, show
from gymckpt.participant.boundary import answers
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.hosting import EpisodeHost
from gymckpt.participant.servers import Server
from gymckpt.participant.timing import require_seconds
from gymckpt.replies import GymCheckpointPrepareSummary

__all__ = ["ParkingDeployment", "scope_of"]

BLOCKERS_MAX = 100
"""How many entries one server's blockers have in an answer, the count of the rest included."""

STOPPED_WRITE_S = 5.0
"""How long a resume waits for a write that it has stopped; only a hung disk takes longer."""


class ParkingDeployment(EpisodeHost):
    """Parks and reopens, retires and forgets; what it saves is up to a subclass."""

    _parking_failed: tuple[str, BaseException] | None = None
    """The id whose parking raised, until it is prepared again, and the error."""

    # --- parking ----------------------------------------------------------------------------

    @answers("prepare")
    async def checkpoint_prepare(
        self, checkpoint_id: str, *, deadline_ts: float
    ) -> GymCheckpointPrepareSummary:
        """
        Close admission and park, stage after stage; wait for it until the deadline.

        Returns:
            Parked, with the episodes that cannot be captured; or not parked, with what is in the
            way, or with nothing in the way where a resume or the lease overtook the call. Not
            parked at the deadline leaves admission closed until resume or the lease.

        Raises:
            GymCheckpointUnavailable: The id was resumed before, or another one holds a server.
        """
        now_ts = self._tick()
        if self._parking_failed is not None and self._parking_failed[0] == checkpoint_id:
            self._parking_failed = None

        def prepare(control: ControlPlane) -> GymCheckpointPrepareSummary | None:
            return cast(
                "GymCheckpointPrepareSummary | None",
                control.prepare(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts),
            )

        for stage in self._servers.stages():
            recorded = self._servers.together(prepare, among=stage)
            self._settle()
            if recorded is not None:
                return recorded
            unprepared = await self._park(stage, checkpoint_id, deadline_ts)
            if unprepared is not None:
                return unprepared
        summary = GymCheckpointPrepareSummary(True, {}, self._table.restarts())
        return cast(
            "GymCheckpointPrepareSummary",
            self._servers.record("prepare", checkpoint_id, summary),
        )

    async def _park(
        self, stage: Sequence[Server], checkpoint_id: str, deadline_ts: float
    ) -> GymCheckpointPrepareSummary | None:
        """Wait until a stage is parked; return None then, else why it is not."""
        while self._servers.hold(checkpoint_id, stage):
            blockers = self._blockers(stage, checkpoint_id)
            if not blockers:
                for server in stage:
                    server.control.ready(checkpoint_id)
                return None
            if self._timers.now_ts() >= deadline_ts:
                return GymCheckpointPrepareSummary(False, blockers)
            await self._pulse.wait(deadline_ts)
            self._tick()
        if self._parking_failed is not None and self._parking_failed[0] == checkpoint_id:
            raise self._parking_failed[1]  # as in the same call, which waited beside this one
        return GymCheckpointPrepareSummary(False, {})

    def _blockers(self, stage: Sequence[Server], checkpoint_id: str) -> dict[str, tuple[str, ...]]:
        try:
            found = {server.name: tuple(self.blockers_of(server)) for server in stage}
        except BaseException as error:
            self._parking_failed = (checkpoint_id, error)
            for server in stage:
                server.control.prepare_failed(checkpoint_id)
            self._settle()
            raise
        return {name: _capped(blockers) for name, blockers in found.items() if blockers}

    @answers("renew")
    async def checkpoint_renew(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        """
        Extend the lease to the deadline plus grace, if that is later than it is.

        Raises:
            GymCheckpointUnavailable: The id does not hold every server.
        """
        now_ts = self._tick()
        self._servers.together(
            lambda control: control.renew(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        )
        self._settle()

    @answers("resume")
    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        """
        Reopen what the id holds, and refuse the id from now on, also if it was never seen.

        A write that is stopped by it publishes nothing any more when this returns. The deadline
        is not looked at: reopening is never too late.
        """
        checkpoint_id = require_operation_id(checkpoint_id, "checkpoint id")
        require_seconds(deadline_ts, "deadline_ts")
        self._servers.resume(checkpoint_id, self._tick())
        self._settle()
        await self._workshop.quiet(STOPPED_WRITE_S, checkpoint_id)

    # --- attempts ---------------------------------------------------------------------------

    @answers("retire")
    async def checkpoint_retire(
        self,
        checkpoint_id: str,
        episodes: Collection[EnvironmentEpisode],
        *,
        deadline_ts: float,
    ) -> None:
        """
        Stop these attempts and all earlier ones of their rollouts, and refuse them until forget.

        The refusal stands from the first moment, also if this fails while it waits for them.

        Raises:
            GymCheckpointUnavailable: A checkpoint is open, the id was resumed before, or they
                have not stopped by the deadline.
        """
        scope = scope_of(episodes)
        now_ts = self._tick()
        if not scope:
            return

        def retire(control: ControlPlane) -> None:
            control.retire(checkpoint_id, scope, deadline_ts=deadline_ts, now_ts=now_ts)

        self._servers.together(retire, among=self._servers.callers_first())
        self._settle()
        why = ParticipantRefused("stale_attempt", f"the attempt was retired by {checkpoint_id!r}")
        marks = {episode.rollout_id: episode.attempt for episode in scope}
        stopping = self._table.stop(marks, why)
        while self._table.any_live(stopping):
            if self._timers.now_ts() >= deadline_ts:
                named = sample(sorted(episode.capture_key for episode in stopping))
                raise ParticipantRefused(
                    "deadline_exceeded", f"refused from now on, but not yet stopped: {named}"
                )
            await self._pulse.wait(deadline_ts)

    @answers("forget")
    async def checkpoint_forget(
        self, checkpoint_id: str, rollout_ids: Collection[str], *, deadline_ts: float
    ) -> None:
        """
        Stop refusing attempts of these rollouts, which are finished for good.

        Raises:
            GymCheckpointUnavailable: A checkpoint is open, the id was resumed before, the
                deadline passed, or an attempt of a rollout still runs here.
        """
        rollouts = frozenset(require_rollout_id(rollout_id) for rollout_id in rollout_ids)
        now_ts = self._tick()
        if not rollouts:
            return
        if running := rollouts & self._table.live_rollouts():
            raise ParticipantRefused(
                "checkpoint_error",
                f"attempts of {sample(sorted(running))} are live here; retire them first",
            )

        def forget(control: ControlPlane) -> None:
            control.forget(checkpoint_id, rollouts, deadline_ts=deadline_ts, now_ts=now_ts)

        self._servers.together(forget, among=self._servers.callers_first())
        self._table.forget(rollouts)
        self._settle()

    # --- questions --------------------------------------------------------------------------

    @answers("restart_only_servers")
    async def checkpoint_restart_only_servers(self) -> list[str]:
        """Return the servers whose episodes start over after a crash."""
        return [server.name for server in self._servers.all if server.restart_only]

    @answers("status")
    async def checkpoint_status(self) -> dict[str, Any]:
        """Return how every server stands, as plain data for people and dashboards."""
        self._tick()
        return {
            "instance_id": self.instance_id,
            "servers": [
                {
                    "name": server.name,
                    "kind": server.kind,
                    "restart_only": server.restart_only,
                    "phase": server.control.state.phase,
                    "checkpoint_id": server.control.state.checkpoint_id,
                    "lease_expires_ts": server.control.state.lease_expires_ts,
                    "retired_rollouts": len(server.control.state.marks),
                    "blockers": len(self.blockers_of(server)),
                }
                for server in self._servers.all
            ],
            "live_episodes": len(list(self._table)),
        }


def scope_of(episodes: Collection[EnvironmentEpisode]) -> tuple[EnvironmentEpisode, ...]:
    """
    Return what a call names, sorted.

    Raises:
        TypeError: It names something else than episodes.
        ValueError: A rollout occurs twice.
    """
    listed: tuple[Any, ...] = tuple(episodes)
    for item in listed:
        if not isinstance(item, EnvironmentEpisode):
            raise TypeError(f"a call names EnvironmentEpisode objects, not {show(item)}")
    by_rollout = {episode.rollout_id: episode for episode in episodes}
    if len(by_rollout) < len(listed):
        twice = [episode for episode in listed if by_rollout[episode.rollout_id] is not episode]
        raise ValueError(
            f"a call names a rollout once: {sample(item.capture_key for item in twice)} "
            "occur beside another attempt of theirs"
        )
    return tuple(sorted(episodes))


def _capped(blockers: tuple[str, ...]) -> tuple[str, ...]:
    if len(blockers) <= BLOCKERS_MAX:
        return blockers
    named = BLOCKERS_MAX - 1
    return (*blockers[:named], f"and {len(blockers) - named} more")
