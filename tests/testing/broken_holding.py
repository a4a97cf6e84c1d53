"""Deployments with mistakes in how they restore, whom they obey and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.episodes import EpisodeBody
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.store import Record
from tests.testing.registry import broken, edit

# --- restoring ------------------------------------------------------------------------------------


@broken
class RestoresFromTheStart(GymnasiumDeployment):
    """Plays restored episodes from their first turn."""

    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        bodies = super().rebuild(records, episodes, require_wanted)
        return [self._body(body.episode, body.plan) for body in bodies]  # type: ignore[attr-defined]


@broken
class KeepsOldAttempts(GymnasiumDeployment):
    """Lets an attempt run on beside the one that continues it."""

    def _stop_overtaken(self, episodes: Iterable[EnvironmentEpisode]) -> None:
        """Stop nothing."""


@broken
class RestoreRuns(GymnasiumDeployment):
    """Lets restored attempts go at once."""

    async def checkpoint_restore(self, restore_id: str, *args: Any, **kwargs: Any) -> None:
        await super().checkpoint_restore(restore_id, *args, **kwargs)
        self._table.gate.set()


@broken
class RestoreAdmits(GymnasiumDeployment):
    """Lets go whatever it holds when a restore fails."""

    async def checkpoint_restore(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().checkpoint_restore(*args, **kwargs)
        except Exception:
            self.stuck = True
            raise

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "stuck", False):
            raise GymCheckpointUnavailable("a restore has failed here")
        return await super().run(*args, **kwargs)


@broken
class RestoresAll(GymnasiumDeployment):
    """Installs whatever was saved, whoever was asked for."""

    async def checkpoint_restore(self, i: str, root: str, episodes: Any, **kwargs: Any) -> None:
        both = {EnvironmentEpisode(name, 0) for name in ("r-a", "r-b")} if episodes else set()
        await super().checkpoint_restore(i, root, sorted(both), **kwargs)


# --- the same again -----------------------------------------------------------------------------


@broken
class CutsCleanupShort(GymnasiumDeployment):
    """Stops an attempt that is being stopped once more, in the middle of its cleaning up."""

    async def checkpoint_retire(self, sweep_id: str, episodes: Any, **kwargs: Any) -> None:
        for live in self._table:
            if live.why_stopped is not None:
                live.task.cancel()
        await super().checkpoint_retire(sweep_id, episodes, **kwargs)


# --- who holds it ---------------------------------------------------------------------------------


@broken
class ForgetsIds(GymnasiumDeployment):
    """Remembers no id that was resumed."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)
        edit(self, lambda state: {"stale_ids": ()})


@broken
class ShortMemory(GymnasiumDeployment):
    """Remembers the last id that was resumed, and no other."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)
        edit(self, lambda state: {"stale_ids": state.stale_ids[-1:]})


@broken
class ResumesForAnybody(GymnasiumDeployment):
    """Reopens at any resume."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)
        holder = self._servers.all[0].control.state.checkpoint_id
        if holder is not None:
            await super().checkpoint_resume(holder, deadline_ts=deadline_ts)


@broken
class FencesOnlyTheHolder(GymnasiumDeployment):
    """Takes no note of a resume of an id that it never saw."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        if self._servers.any_holds(checkpoint_id):
            await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)


@broken
class TakesTheNext(GymnasiumDeployment):
    """Gives up one checkpoint or restore for the next that comes."""

    async def release(self, checkpoint_id: str) -> None:
        holder = self._servers.all[0].control.state.checkpoint_id
        if holder not in {None, checkpoint_id}:
            await self.checkpoint_resume(str(holder), deadline_ts=0)

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        await self.release(checkpoint_id)
        return await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)

    async def checkpoint_restore(self, restore_id: str, *args: Any, **kwargs: Any) -> None:
        await self.release(restore_id)
        await super().checkpoint_restore(restore_id, *args, **kwargs)


@broken
class DoesNotLookAtIds(GymnasiumDeployment):
    """Takes every call to be of whoever holds it."""

    def holder(self, asked: str) -> str:
        return self._servers.all[0].control.state.checkpoint_id or asked

    async def checkpoint_renew(self, i: str, **kwargs: Any) -> None:
        await super().checkpoint_renew(self.holder(i), **kwargs)

    async def checkpoint_commit(self, i: str, *args: Any, **kwargs: Any) -> Any:
        return await super().checkpoint_commit(self.holder(i), *args, **kwargs)

    async def checkpoint_retire(self, i: str, *args: Any, **kwargs: Any) -> None:
        await super().checkpoint_retire(self.holder(i), *args, **kwargs)


@broken
class CommitsUnprepared(GymnasiumDeployment):
    """Parks for a commit that comes without prepare, and skips what still runs."""

    async def checkpoint_commit(self, i: str, *args: Any, **kwargs: Any) -> Any:
        for server in self._servers.all:
            if server.control.state.phase in {"idle", "preparing"}:
                server.control.prepare(i, deadline_ts=4e12, now_ts=0)
                server.control.ready(i)
        return await super().checkpoint_commit(i, *args, **kwargs)


# --- attempts -------------------------------------------------------------------------------------


@broken
class RetiresEverybody(GymnasiumDeployment):
    """Stops every rollout at a retire."""

    async def checkpoint_retire(self, i: str, episodes: Any, **kwargs: Any) -> None:
        await super().checkpoint_retire(i, episodes, **kwargs)
        everybody = {live.episode for live in self._table}
        await super().checkpoint_retire(f"{i}-all", sorted(everybody), **kwargs)


@broken
class RetiresTooFar(GymnasiumDeployment):
    """Refuses later attempts too, once one was retired."""

    async def checkpoint_retire(self, i: str, episodes: Any, **kwargs: Any) -> None:
        await super().checkpoint_retire(i, [one.next_attempt() for one in episodes], **kwargs)


@broken
class MarksNothing(GymnasiumDeployment):
    """Stops what it retires, and does not refuse it afterwards."""

    async def checkpoint_retire(self, i: str, episodes: Any, **kwargs: Any) -> None:
        await super().checkpoint_retire(i, episodes, **kwargs)
        await super().checkpoint_forget(f"{i}-f", [one.rollout_id for one in episodes], **kwargs)


@broken
class MarksOneAttempt(GymnasiumDeployment):
    """Refuses an attempt that it retired, but not those before it."""

    async def checkpoint_retire(self, i: str, episodes: Any, **kwargs: Any) -> None:
        first = [one for one in episodes if not one.attempt]
        await super().checkpoint_retire(i, first, **kwargs)


@broken
class ForgetsAtResume(GymnasiumDeployment):
    """Forgets its marks when it reopens."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)
        edit(self, lambda state: {"marks": type(state.marks)()})
        for episode in list(self._table._ended):
            self._table._ended.pop(episode)


@broken
class ForgetsEverybody(GymnasiumDeployment):
    """Forgets all rollouts at a forget."""

    async def checkpoint_forget(self, i: str, rollouts: Collection[str], **kwargs: Any) -> None:
        await super().checkpoint_forget(i, rollouts, **kwargs)
        edit(self, lambda state: {"marks": type(state.marks)()})


class Amnesiac(ControlPlane):
    """Does not know which attempt of a rollout is the newest."""

    def require_current(self, episode: EnvironmentEpisode) -> None:
        if episode.attempt <= self.state.marks.get(episode.rollout_id, -1):
            super().require_current(episode)


@broken
class AdmitsOvertaken(GymnasiumDeployment):
    """Admits an attempt though a later one has taken over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for server in self._servers.all:
            server.control.__class__ = Amnesiac


@broken
class NoRetireOfRestored(GymnasiumDeployment):
    """Refuses to retire whatever holds it, a restore included."""

    async def checkpoint_retire(self, *args: Any, **kwargs: Any) -> None:
        if not self._servers.is_open:
            raise GymCheckpointUnavailable("it is held")
        await super().checkpoint_retire(*args, **kwargs)


@broken
class RetiresLaterOnes(GymnasiumDeployment):
    """Stops whatever runs of a rollout that it retires an attempt of."""

    async def checkpoint_retire(self, i: str, episodes: Any, **kwargs: Any) -> None:
        await super().checkpoint_retire(i, episodes, **kwargs)
        named = {one.rollout_id for one in episodes}
        for live in [one for one in self._table if one.episode.rollout_id in named]:
            live.task.cancel()


@broken
class MarksWhatItDoesNotRetire(GymnasiumDeployment):
    """Refuses a retire, and the attempts of it from then on."""

    async def checkpoint_retire(self, i: str, episodes: Any, **kwargs: Any) -> None:
        try:
            await super().checkpoint_retire(i, episodes, **kwargs)
        except GymCheckpointUnavailable:
            for one in episodes:
                marked = one.rollout_id, one.attempt
                edit(self, lambda state, marked=marked: {"marks": state.marks.insert(*marked)})
            raise


@broken
class FencesFailedRestores(GymnasiumDeployment):
    """Takes the id of a restore that failed for stale, whatever comes under it."""

    async def checkpoint_restore(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().checkpoint_restore(*args, **kwargs)
        except Exception:
            edit(self, lambda state: {"marks": type(state.marks)()})
            raise


@broken
class InstallsWhatWasStopped(GymnasiumDeployment):
    """Does a restore that was resumed while it read all the same."""

    async def checkpoint_restore(self, i: str, *args: Any, **kwargs: Any) -> None:
        try:
            await super().checkpoint_restore(i, *args, **kwargs)
        except GymCheckpointUnavailable:
            await super().checkpoint_restore(f"{i}-again", *args, **kwargs)
            await self.checkpoint_resume(f"{i}-again", deadline_ts=kwargs["deadline_ts"])
            raise


@broken
class NamesNoServers(GymnasiumDeployment):
    """Answers with a mapping where a list of names is asked for."""

    async def checkpoint_restart_only_servers(self) -> Any:
        return {"resources": True}


@broken
class TakesRestartsAlong(GymnasiumDeployment):
    """Saves what it cannot capture, and names nothing that starts over."""

    def _require_capturable(self, scope: Any) -> None:
        """Take everything."""

    async def checkpoint_prepare(self, *args: Any, **kwargs: Any) -> Any:
        return attrs.evolve(await super().checkpoint_prepare(*args, **kwargs), restarts=())


@broken
class LosesCancelledIds(GymnasiumDeployment):
    """Fences an id whose prepare was cancelled, and stays closed."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        try:
            return await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)
        except asyncio.CancelledError:
            edit(self, lambda _state: {"checkpoint_id": "nobody", "stale_ids": (checkpoint_id,)})
            raise
