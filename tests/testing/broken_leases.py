"""Deployments that break the contract in what they do with time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.gymnasium import GymnasiumDeployment
from tests.testing.registry import BROKEN, broken


def planned(plane: type[ControlPlane]) -> type[ControlPlane]:
    """Add a deployment whose servers have such control planes."""

    class Deployment(GymnasiumDeployment):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for server in self._servers.all:
                server.control.__class__ = plane

    Deployment.__name__ = plane.__name__
    BROKEN[plane.__name__] = Deployment
    return plane


FAR_TS = 4e12


@planned
class NeverLapses(ControlPlane):
    """Stays closed for ever when its controller is silent."""

    def _call(self, *args: Any, **kwargs: Any) -> None:
        super()._call(*args, **kwargs)
        self._state = attrs.evolve(self._state, lease_expires_ts=FAR_TS)


@planned
class LapsedIdsAreGood(ControlPlane):
    """Does not fence the id whose lease has run out."""

    def expire(self, now_ts: float) -> str | None:
        stale_ids, lapsed = self._state.stale_ids, super().expire(now_ts)
        if lapsed is not None:
            self._state = attrs.evolve(self._state, stale_ids=stale_ids)
        return lapsed


@planned
class LapsesOnlyWhenParked(ControlPlane):
    """Has no lease before it is parked."""

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().prepare(*args, **kwargs)
        if self._state.phase == "preparing":
            self._state = attrs.evolve(self._state, lease_expires_ts=FAR_TS)
        return answer


@planned
class RestoresNeverLapse(ControlPlane):
    """Has no lease for a restore."""

    def restore(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().restore(*args, **kwargs)
        self._state = attrs.evolve(self._state, lease_expires_ts=FAR_TS)
        return answer


@planned
class RenewDoesNotExtend(ControlPlane):
    """Leaves the lease as it is at a renewal."""

    def renew(self, checkpoint_id: str, *, deadline_ts: float, now_ts: float) -> None:
        lease_ts = self._state.lease_expires_ts
        super().renew(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        self._state = attrs.evolve(self._state, lease_expires_ts=lease_ts)


@planned
class RenewShortens(ControlPlane):
    """Sets the lease to what the last renewal says."""

    def renew(self, checkpoint_id: str, *, deadline_ts: float, now_ts: float) -> None:
        super().renew(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        self._state = attrs.evolve(self._state, lease_expires_ts=deadline_ts + self.grace_s)


@planned
class CommitDoesNotExtend(ControlPlane):
    """Leaves the lease as it is at a commit."""

    def commit(self, *args: Any, **kwargs: Any) -> Any:
        lease_ts = self._state.lease_expires_ts
        answer = super().commit(*args, **kwargs)
        self._state = attrs.evolve(self._state, lease_expires_ts=lease_ts)
        return answer


@planned
class PrepareAgainDoesNotExtend(ControlPlane):
    """Leaves the lease as it is at a prepare that is repeated."""

    def prepare(self, checkpoint_id: str, *, deadline_ts: float, now_ts: float) -> Any:
        lease_ts = self._state.lease_expires_ts if self.holds(checkpoint_id) else None
        answer = super().prepare(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        if lease_ts is not None:
            self._state = attrs.evolve(self._state, lease_expires_ts=lease_ts)
        return answer


@planned
class RestoresAreNotRenewed(ControlPlane):
    """Leaves the lease of a restore as it is at a renewal."""

    def renew(self, checkpoint_id: str, *, deadline_ts: float, now_ts: float) -> None:
        lease_ts = self._state.lease_expires_ts
        super().renew(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        if self._state.phase == "restored":
            self._state = attrs.evolve(self._state, lease_expires_ts=lease_ts)


@planned
class RetireDoesNotExtend(ControlPlane):
    """Leaves the lease as it is at a retire."""

    def retire(self, *args: Any, **kwargs: Any) -> None:
        lease_ts = self._state.lease_expires_ts
        super().retire(*args, **kwargs)
        self._state = attrs.evolve(self._state, lease_expires_ts=lease_ts)


@planned
class NoGrace(ControlPlane):
    """Reopens as soon as the last deadline has passed."""

    def _call(self, *args: Any, **kwargs: Any) -> None:
        self.grace_s = 0.001
        super()._call(*args, **kwargs)


@broken
class KnowsNoDeadlines(GymnasiumDeployment):
    """Takes every deadline to be far away."""

    async def checkpoint_prepare(self, i: str, *, deadline_ts: float) -> Any:
        return await super().checkpoint_prepare(i, deadline_ts=4e12)

    async def checkpoint_commit(self, *args: Any, deadline_ts: float) -> Any:
        return await super().checkpoint_commit(*args, deadline_ts=4e12)

    async def checkpoint_restore(self, *args: Any, deadline_ts: float, **kwargs: Any) -> Any:
        await super().checkpoint_restore(*args, deadline_ts=4e12, **kwargs)

    async def checkpoint_retire(self, *args: Any, deadline_ts: float) -> None:
        await super().checkpoint_retire(*args, deadline_ts=4e12)

    async def checkpoint_forget(self, *args: Any, deadline_ts: float) -> None:
        await super().checkpoint_forget(*args, deadline_ts=4e12)


@broken
class LateResumesAreRefused(GymnasiumDeployment):
    """Judges the deadline of a resume."""

    async def checkpoint_resume(self, i: str, *, deadline_ts: float) -> None:
        if deadline_ts < self._timers.now_ts():
            raise GymCheckpointUnavailable("deadline_exceeded")
        await super().checkpoint_resume(i, deadline_ts=deadline_ts)


@broken
class DeafToItsClock(GymnasiumDeployment):
    """Counts seconds since its start, and does not see that its clock was set."""

    def __init__(self, *args: Any, now_ts: Callable[[], float], **kwargs: Any) -> None:
        time: Any = now_ts.__self__  # type: ignore[attr-defined]
        super().__init__(*args, now_ts=lambda: 1_000_000.0 + time._elapsed_s, **kwargs)


@broken
class AfraidOfItsClock(GymnasiumDeployment):
    """Gives up when its clock was set back."""

    def _tick(self) -> float:
        now_ts = super()._tick()
        if now_ts < self.__dict__.setdefault("latest_ts", now_ts):
            raise RuntimeError("the clock was set back")
        self.latest_ts = now_ts
        return now_ts
