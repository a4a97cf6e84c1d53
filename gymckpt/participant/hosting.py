"""
What a deployment is outside of checkpoints: servers, episodes, a gate, a clock.

After every call `_settle` derives from the control planes alone whether the gate is open, whether
work is still wanted and when the next lease runs out, so that no second truth can disagree with
them. A lease that runs out is noticed by a timer, and again by whatever call comes first.

A subclass says what its episodes are: what each server saves of them, and how they are made again.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, Self, get_args

from gymckpt.episodes import EnvironmentEpisode, require_instance_id
from gymckpt.errors import ParticipantRefused, show
from gymckpt.participant.boundary import answers
from gymckpt.participant.episodes import EpisodeBody, EpisodeTable, LiveEpisode
from gymckpt.participant.servers import Server, Servers
from gymckpt.participant.store import Record
from gymckpt.participant.timing import CallLater, Pulse, Timer, Timers, require_seconds
from gymckpt.participant.work import Workshop

__all__ = ["EpisodeHost", "Unsavable"]

Unsavable = Literal["restart", "fail"]
"""What becomes of an episode whose state cannot be saved, or of the commit that asks for it."""

ADMISSION_TIMEOUT_S = 900.0
"""How long a dispatch waits at a shut gate: longer than any lease by default."""

CLOSE_S = 5.0
"""How long closing waits for what it has stopped."""

FILE_THREADS = 8


class EpisodeHost(abc.ABC):
    """
    Runs episodes as tasks of one event loop, and holds them at turn boundaries when told to.

    Its methods may be called from one event loop only.
    """

    def __init__(
        self,
        instance_id: str,
        servers: Iterable[Server],
        *,
        turn_pause_s: float = 0.0,
        admission_timeout_s: float = ADMISSION_TIMEOUT_S,
        unsavable: Unsavable = "restart",
        now_ts: Callable[[], float] = time.time,
        call_later: CallLater | None = None,
    ) -> None:
        """
        Make a deployment that is open and has no episode.

        Args:
            instance_id: Its own id, `<shard>/replica-<index>`.
            servers: Its participants.
            turn_pause_s: How long every episode pauses between two turns; it may be parked there.
            admission_timeout_s: How long a dispatch waits for a checkpoint to end before it is
                refused.
            unsavable: What a commit does about an episode whose state cannot be saved: `restart`
                leaves it out, so that it starts over after a crash, and saves the others; `fail`
                fails.
            now_ts: The wall clock of this host, epoch seconds.
            call_later: How timers are armed; by default by the event loop.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The id is none, names collide, a time is negative or not finite, or
                `unsavable` is unknown.
        """
        if unsavable not in get_args(Unsavable):
            raise ValueError(f"unsavable is 'restart' or 'fail', not {show(unsavable)}")
        self._unsavable: Unsavable = unsavable
        self._instance_id = require_instance_id(instance_id)
        for name, value in (
            ("turn_pause_s", turn_pause_s),
            ("admission_timeout_s", admission_timeout_s),
        ):
            if require_seconds(value, name) < 0:
                raise ValueError(f"{name} is {value}, it must not be negative")
        self._admission_timeout_s = admission_timeout_s
        self._servers = Servers(servers)
        self._timers = Timers(now_ts) if call_later is None else Timers(now_ts, call_later)
        self._pulse = Pulse(self._timers)
        self._table = EpisodeTable(turn_pause_s=turn_pause_s, changed=self._pulse.beat)
        threads = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="gymckpt-files")
        self._workshop = Workshop(timers=self._timers, pulse=self._pulse, executor=threads)
        self._lease_timer: Timer | None = None
        self._closed = False
        self._closing: asyncio.Future[None] | None = None

    @property
    def instance_id(self) -> str:
        """The deployment's own id."""
        return self._instance_id

    # --- what a subclass says ---------------------------------------------------------------

    @abc.abstractmethod
    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        """
        Return what one server saves of parked episodes.

        Args:
            server: Whose part.
            episodes: Which episodes.

        Returns:
            JSON objects, taken one by one in a thread. One that belongs to an episode carries
            its `rollout_id` and `attempt`. Nothing in them may change any more when the episode
            goes on. Where this raises, or a record is no JSON data, it is asked again without the
            episodes that cannot be saved, and for single ones to find out which these are.
        """

    @abc.abstractmethod
    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        """
        Make the bodies of saved episodes' next attempts, in a thread; touch nothing that is live.

        Args:
            records: Server to its records of these episodes, and those that belong to none.
            episodes: The saved attempts; the bodies are for the attempts after them.
            require_wanted: To be called now and then; raises when nobody wants the result.

        Returns:
            One body for each episode, in their order.

        Raises:
            ValueError: The records do not make up these episodes.
        """

    def blockers_of(self, server: Server) -> Sequence[str]:
        """
        Return what keeps one server from being parked, in any words.

        By default the episodes inside a turn keep environment servers and agents; models and
        resources are idle when no episode is inside a turn. Whoever answers otherwise calls
        `changed` whenever the answer has changed.
        """
        return self._table.turning if server.kind in ("environment", "agent") else ()

    def unowned_episodes(self) -> Sequence[EnvironmentEpisode]:
        """Return parked episodes that no server could restore; by default there are none."""
        return ()

    def changed(self) -> None:
        """Let whoever waits look again at what blocks it."""
        self._pulse.beat()

    # --- episodes ---------------------------------------------------------------------------

    async def begin(self, episode: EnvironmentEpisode, body: EpisodeBody) -> Any:
        """
        Run a new attempt and return its reply; a subclass's method for dispatches calls it.

        While a checkpoint or restore holds the deployment the attempt waits at the gate, no
        longer than `admission_timeout_s`.

        Raises:
            ParticipantRefused: It was not admitted in time, was retired or overtaken before or
                while it ran, or the deployment is closed.
            ValueError: The attempt was dispatched before.
        """
        try:
            self._tick()
            for server in self._servers.all:
                server.control.require_current(episode)
            if not self._table.is_new(episode):
                raise ValueError(
                    f"attempt {episode.attempt} of rollout {episode.rollout_id!r} was dispatched "
                    "here before; attach to it, or start a later attempt"
                )
            until_ts = self._timers.now_ts() + self._admission_timeout_s
            live = self._table.start(episode, body, partial(self._admit, episode, until_ts))
        except BaseException:
            body.close()
            raise
        return await asyncio.shield(live.outcome)

    @answers("attach")
    async def attach(self, rollout_id: str, attempt: int) -> Any:
        """
        Wait for the reply of an attempt that runs or ended here, for example a restored one.

        Raises:
            GymCheckpointUnavailable: The attempt was retired or overtaken.
            ValueError: There is no such attempt here, or its reply is no longer kept.
        """
        episode = EnvironmentEpisode(rollout_id, attempt)
        self._tick()
        outcome = self._table.outcome(episode)
        if outcome is None:
            self._servers.all[0].control.require_current(episode)
            raise ValueError(
                f"no attempt {attempt} of rollout {rollout_id!r} runs on {self.instance_id}, and "
                "no reply of it is kept"
            )
        return await asyncio.shield(outcome)

    async def _admit(self, episode: EnvironmentEpisode, until_ts: float) -> None:
        while not self._servers.is_open:
            if self._timers.now_ts() >= until_ts:
                break  # what refuses is the control plane, in its own words
            await self._pulse.wait(until_ts)
        now_ts = self._tick()
        self._servers.together(lambda control: control.admit(episode, now_ts=now_ts))
        if episode.attempt:
            self._stop_overtaken([episode])

    def _stop_overtaken(self, episodes: Iterable[EnvironmentEpisode]) -> None:
        why = ParticipantRefused("stale_attempt", "a later attempt of the rollout has taken over")
        self._table.stop({episode.rollout_id: episode.attempt - 1 for episode in episodes}, why)

    # --- leases and the end -----------------------------------------------------------------

    def _tick(self) -> float:
        """Return the time, after leases that have run out by it have expired."""
        if self._closed:
            raise ParticipantRefused(
                "checkpoint_coordinator_unavailable", f"{self.instance_id} is closed"
            )
        now_ts = self._timers.now_ts()
        if self._servers.expire(now_ts):
            self._settle()
        return now_ts

    def _settle(self) -> None:
        """Make the gate, the work and the timer what the control planes now say."""
        if self._servers.is_open:
            self._table.gate.set()
        else:
            self._table.gate.clear()
        work = self._workshop.current
        if work is not None and not self._servers.any_holds(work.checkpoint_id):
            self._workshop.stop()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        expiry_ts = self._servers.next_expiry_ts()
        self._lease_timer = (
            None
            if expiry_ts is None or self._closed
            else self._timers.call_at(expiry_ts, self._expire)
        )
        self._pulse.beat()

    def _expire(self) -> None:
        self._servers.expire(self._timers.now_ts())
        self._settle()

    @answers("close")
    async def close(self) -> None:
        """Stop every episode and all work; nothing of the deployment runs afterwards."""
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        why = ParticipantRefused(
            "checkpoint_coordinator_unavailable", f"{self.instance_id} was closed"
        )
        await self._table.close(why, CLOSE_S)
        self._pulse.beat()
        await self._workshop.close(CLOSE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()
