"""
The episodes that run in one deployment, turn after turn, and where they wait.

An episode is a task around a body. The body plays one turn at a time; between two turns the task
stands at the gate, and while the gate is shut it stays there: that is what parking is. A turn that
has begun is always finished, unless the episode is stopped. An episode that nobody can capture
(its body says so, and it has begun) passes the gate even when it is shut.

An episode that has not begun holds no state anywhere, so a dispatch that comes while the gate is
shut waits there like any other episode and may even be captured.

An attempt is stopped by `stop` alone. Whoever waits for its reply may go away and come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import ParticipantRefused

__all__ = ["EpisodeBody", "EpisodeTable", "LiveEpisode", "Stage"]

Stage = Literal["waiting", "turning", "between", "ended"]
"""`waiting`: has not begun here; `turning`: inside a turn; `between`: between two turns."""

_LOG = logging.getLogger(__name__)

REPLIES_KEPT = 1_024
"""How many replies of ended episodes are kept for those who ask late or again."""


class EpisodeBody(Protocol):
    """What an episode does; only the table calls it, and never twice at once."""

    @property
    def restart_only(self) -> bool:
        """Whether nobody could capture it once it has begun."""
        ...

    @property
    def row_keys(self) -> Sequence[str]:
        """The stored rows that it still needs, those of earlier attempts included."""
        ...

    async def turn(self) -> bool:
        """Play one turn to its end, rows stored; return whether it was the last."""
        ...

    def reply(self) -> Any:
        """Return what the episode came to, after its last turn."""
        ...

    def close(self) -> None:
        """Let go of everything; called once, whatever happened."""
        ...


class LiveEpisode:
    """
    One episode that runs or waits here.

    Attributes:
        episode: Its name.
        body: What it does.
        stage: Where it is.
        outcome: Its reply or error, as soon as there is one.
        task: What plays it.
        why_stopped: What its callers get instead of a reply, once it has been told to stop.
    """

    task: asyncio.Task[Any]

    def __init__(self, episode: EnvironmentEpisode, body: EpisodeBody) -> None:
        self.episode = episode
        self.body = body
        self.stage: Stage = "waiting"
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.why_stopped: ParticipantRefused | None = None

    @property
    def restarts(self) -> bool:
        """Whether it cannot be captured now, so that a restored run starts it over."""
        return self.body.restart_only and self.stage in ("turning", "between")


class EpisodeTable:
    """
    All episodes of one deployment, by name.

    Attributes:
        gate: Set while episodes may begin turns.
    """

    def __init__(self, *, turn_pause_s: float, changed: Callable[[], None]) -> None:
        """
        Make an empty table with the gate open.

        Args:
            turn_pause_s: How long every episode pauses between two turns.
            changed: Called when the last episode that had to park is parked, and when the last
                episode that was told to stop has stopped.
        """
        self.gate = asyncio.Event()
        self.gate.set()
        self._turn_pause_s = turn_pause_s
        self._changed = changed
        self._live: dict[EnvironmentEpisode, LiveEpisode] = {}
        self._ended: OrderedDict[EnvironmentEpisode, asyncio.Future[Any]] = OrderedDict()
        self._turning: set[EnvironmentEpisode] = set()
        self._stopping: set[EnvironmentEpisode] = set()

    def __iter__(self) -> Iterator[LiveEpisode]:
        return iter(list(self._live.values()))

    def get(self, episode: EnvironmentEpisode) -> LiveEpisode | None:
        """Return the episode if it is live here."""
        live = self._live.get(episode)
        return live if live is not None and live.stage != "ended" else None

    def outcome(self, episode: EnvironmentEpisode) -> asyncio.Future[Any] | None:
        """Return the reply, now or later, of an episode that is live or ended here."""
        live = self._live.get(episode)
        return live.outcome if live is not None else self._ended.get(episode)

    def is_new(self, episode: EnvironmentEpisode) -> bool:
        """Whether the attempt may be started: it never was, or found the gate shut for too long."""
        outcome = self.outcome(episode)
        if outcome is None or not outcome.done():
            return outcome is None
        error = outcome.exception()
        return isinstance(error, ParticipantRefused) and error.code == "admission_closed"

    @property
    def turning(self) -> tuple[str, ...]:
        """The capture keys of the episodes that have yet to park."""
        return tuple(episode.capture_key for episode in sorted(self._turning))

    def restarts(self) -> tuple[EnvironmentEpisode, ...]:
        """Return the episodes that nobody can capture, of each rollout the latest attempt."""
        latest = {live.episode.rollout_id: live.episode for live in self._sorted() if live.restarts}
        return tuple(sorted(latest.values()))

    def _sorted(self) -> list[LiveEpisode]:
        return sorted(self._live.values(), key=lambda live: live.episode)

    def start(
        self,
        episode: EnvironmentEpisode,
        body: EpisodeBody,
        admit: Callable[[], Awaitable[None]] | None,
    ) -> LiveEpisode:
        """
        Let an episode wait for the gate, and run when it is open.

        Args:
            episode: Its name; none of this name may be live.
            body: What it does.
            admit: Awaited before the first turn, and raises if it may not begin; None for an
                episode that was restored.
        """
        live = LiveEpisode(episode, body)
        live.outcome.add_done_callback(_retrieve)
        self._ended.pop(episode, None)
        self._live[episode] = live
        live.task = asyncio.get_running_loop().create_task(self._play(live, admit))
        live.task.add_done_callback(lambda task: self._close(live, task))
        return live

    def stop(
        self, marks: Mapping[str, int], why: ParticipantRefused
    ) -> frozenset[EnvironmentEpisode]:
        """
        Stop attempts; they are gone when none of the returned ones `is_live` any more.

        One that was told to stop before is left to its cleaning up, which a second cancellation
        would cut short; who waits for it waits for the same end.

        Args:
            marks: Rollout to the highest attempt to stop; all before it are stopped as well.
            why: What those who wait for the replies get.
        """
        found = [
            live for live in self if live.episode.attempt <= marks.get(live.episode.rollout_id, -1)
        ]
        for live in found:
            self._stopping.add(live.episode)
            if live.why_stopped is None:
                live.why_stopped = why
                live.task.cancel()
        return frozenset(live.episode for live in found)

    def any_live(self, episodes: frozenset[EnvironmentEpisode]) -> bool:
        """Whether one of these has not come to its end."""
        return not episodes.isdisjoint(self._live)

    def live_rollouts(self) -> frozenset[str]:
        """Return the rollouts of which an attempt is live."""
        return frozenset(episode.rollout_id for episode in self._live)

    def forget(self, rollout_ids: frozenset[str]) -> None:
        """Drop the replies of rollouts that nobody will ask for again."""
        for episode in [known for known in self._ended if known.rollout_id in rollout_ids]:
            del self._ended[episode]

    async def close(self, why: ParticipantRefused, wait_s: float) -> None:
        """Stop everything and wait for it; what cleans up for longer than `wait_s` is ended."""
        highest = {episode.rollout_id: episode.attempt for episode in sorted(self._live)}
        self.stop(highest, why)
        for _ in range(2):
            if tasks := [live.task for live in self]:
                _, hanging = await asyncio.wait(tasks, timeout=wait_s)
                for task in hanging:
                    task.cancel()

    # --- one episode ------------------------------------------------------------------------

    async def _play(self, live: LiveEpisode, admit: Callable[[], Awaitable[None]] | None) -> Any:
        try:
            if admit is not None:
                await admit()
            while True:
                if await self._turn(live):
                    return live.body.reply()
                await asyncio.sleep(self._turn_pause_s)
        finally:
            live.stage = "ended"

    async def _turn(self, live: LiveEpisode) -> bool:
        # The gate may have been shut again between its opening and this task's turn to run.
        while not self.gate.is_set() and not live.restarts:
            await self.gate.wait()
        if live.why_stopped is not None:  # its body has swallowed the cancellation
            raise live.why_stopped
        live.stage = "turning"
        if not live.body.restart_only:
            self._turning.add(live.episode)
        try:
            return await live.body.turn()
        finally:
            live.stage = "between"
            self._strike(self._turning, live.episode)

    def _close(self, live: LiveEpisode, task: asyncio.Task[Any]) -> None:
        """Settle the outcome, also of a task that was stopped before it ran at all."""
        live.stage = "ended"
        if live.why_stopped is not None:
            live.outcome.set_exception(live.why_stopped)
        elif task.cancelled():
            name = live.episode.capture_key
            live.outcome.set_exception(RuntimeError(f"{name} was cancelled, but not retired"))
        elif (error := task.exception()) is not None:
            live.outcome.set_exception(error)
        else:
            live.outcome.set_result(task.result())
        del self._live[live.episode]
        self._ended[live.episode] = live.outcome
        while len(self._ended) > REPLIES_KEPT:
            self._ended.popitem(last=False)
        try:
            live.body.close()
        except Exception:
            _LOG.exception("episode %s could not be closed", live.episode.capture_key)
        self._strike(self._stopping, live.episode)

    def _strike(self, awaited: set[EnvironmentEpisode], episode: EnvironmentEpisode) -> None:
        """Take an episode off what somebody may wait for, and say so when it was the last."""
        if episode in awaited:
            awaited.remove(episode)
            if not awaited:
                self._changed()


def _retrieve(outcome: asyncio.Future[Any]) -> None:
    """Mark an error as seen: an episode may fail while nobody waits for its reply."""
    outcome.exception()
