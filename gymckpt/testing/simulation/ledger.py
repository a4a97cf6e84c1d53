"""
RL's side of a run: the rollouts that are wanted, which attempt of each goes on where.

It outlives controllers, as the data plane of a trainer does. What it dispatches goes straight to
the deployments: the data plane is not what is tried here.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.interfaces import DataPlaneMutationCut
from gymckpt.snapshot import LedgerUnderCut
from gymckpt.testing.simulation.hosts import SimulatedInstance

__all__ = ["Ledger"]

RESTART_ONLY_SHARE = 0.2
"""How many rollouts of an instance with a resources server cannot be captured."""


class Ledger:
    """
    The rollouts of one run, and the `RolloutSource` of its facades.

    Attributes:
        wanted: Rollout to where it runs and its attempt.
        finished: Rollouts whose reply has landed and that instances were not told to forget.
        forgotten: Rollouts that instances were told to forget: no snapshot that holds one of them
            is restored on the same instances any more.
        refused: Rollout to the highest attempt that a discarded restore has used up.
    """

    def __init__(self, instances: Sequence[SimulatedInstance], *, rollouts: int, rng: Random):
        """
        Want rollouts of every instance; none is dispatched yet.

        Args:
            instances: The instances.
            rollouts: How many each has at once.
            rng: Draws which of them cannot be captured.
        """
        self.wanted: dict[str, tuple[str, int]] = {}
        self.finished: dict[str, str] = {}
        self.forgotten: set[str] = set()
        self.refused: dict[str, int] = {}
        self._instances = {one.instance_id: one for one in instances}
        self._rng = rng
        self._context = contextvars.Context()
        """Belongs to no process: a reply lands whoever had dispatched its rollout."""
        self._closed = 0
        self._made = 0
        self._restart_only: set[str] = set()
        self._later: frozenset[EnvironmentEpisode] = frozenset()
        self._landed: dict[str, EnvironmentEpisode] = {}
        """Rollouts whose reply came while dispatch was closed; they count when it reopens."""
        for one in instances:
            for _ in range(rollouts):
                self._want(one)

    def _want(self, instance: SimulatedInstance) -> None:
        self._made += 1
        rollout = f"r{self._made}"
        self.wanted[rollout] = (instance.instance_id, 0)
        kinds = {server.kind for server in instance.deployment.servers}
        if "resources" in kinds and self._rng.random() < RESTART_ONLY_SHARE:
            self._restart_only.add(rollout)

    def dispatch(self) -> None:
        """Send every wanted rollout that does not run, as a later attempt where one was refused."""
        if self._closed:
            return
        for rollout, (instance_id, attempt) in list(self.wanted.items()):
            instance = self._instances[instance_id]
            if instance.dead or instance.process.state != "up":
                continue
            deployment = instance.deployment
            least = max(attempt, self.refused.get(rollout, -1) + 1)
            for server in deployment.servers:
                newest = server.control.state.newest.get(rollout, 0)
                mark = server.control.state.marks.get(rollout, -1)
                least = max(least, newest, mark + 1)
            episode = EnvironmentEpisode(rollout, least)
            if episode in deployment.live:
                if episode.attempt != attempt:  # a restore whose controller has crashed left it
                    self.attach(instance_id, episode)
                continue
            while deployment.outcome(episode) is not None:  # it ended, or was stopped
                episode = episode.next_attempt()
            self._play(instance, episode)
            self.wanted[rollout] = (instance_id, episode.attempt)

    def _play(self, instance: SimulatedInstance, episode: EnvironmentEpisode) -> None:
        playing = instance.process.context.copy().run(
            instance.deployment.play,
            episode,
            restart_only=episode.rollout_id in self._restart_only,
        )
        playing.add_done_callback(
            lambda done: self._ended(instance.instance_id, episode, done), context=self._context
        )

    def attach(self, instance_id: str, episode: EnvironmentEpisode) -> None:
        """Take over an attempt that a restore has installed."""
        self.wanted[episode.rollout_id] = (instance_id, episode.attempt)
        self.finished.pop(episode.rollout_id, None)
        outcome = self._instances[instance_id].deployment.outcome(episode)
        if outcome is not None:
            outcome.add_done_callback(
                lambda done: self._ended(instance_id, episode, done), context=self._context
            )

    def _ended(
        self, instance_id: str, episode: EnvironmentEpisode, done: asyncio.Future[object]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        if self.wanted.get(episode.rollout_id) != (instance_id, episode.attempt):
            return
        self._landed[episode.rollout_id] = episode
        if not self._closed:
            self._seal()
            self.dispatch()

    def _seal(self) -> None:
        """Take replies that have landed for the ends of their rollouts, and want others."""
        for rollout, episode in self._landed.items():
            if self.wanted.get(rollout, ("", -1))[1] == episode.attempt:
                instance_id, _ = self.wanted.pop(rollout)
                self.finished[rollout] = instance_id
                self._want(self._instances[instance_id])
        self._landed.clear()

    # --- what a facade asks ---------------------------------------------------------------------

    @asynccontextmanager
    async def dispatch_closed(self) -> AsyncIterator[None]:
        """Send nothing new until the context exits."""
        self._closed += 1
        try:
            yield
        finally:
            self._closed = max(0, self._closed - 1)
            self._reopen()

    def reopened(self) -> None:
        """Take note that whoever had closed dispatch is gone."""
        self._closed = 0
        self._reopen()

    def _reopen(self) -> None:
        if not self._closed:
            self._seal()
            self.dispatch()

    def episodes_in_flight(self) -> Mapping[str, Collection[EnvironmentEpisode]]:
        """Return what is waited for, by instance."""
        found: dict[str, list[EnvironmentEpisode]] = {}
        for rollout, (instance_id, attempt) in self.wanted.items():
            found.setdefault(instance_id, []).append(EnvironmentEpisode(rollout, attempt))
        return found

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        """Return at once: replies land in the moment in which episodes end."""
        self._later = frozenset(expected_later)

    def ledger_under(self, cut: DataPlaneMutationCut) -> LedgerUnderCut:
        """Return what is unfinished."""
        sealed = (name for name, episode in self._landed.items() if episode not in self._later)
        return LedgerUnderCut(unfinished=frozenset(self.wanted), sealed=frozenset(sealed))

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        """Start these rollouts over as later attempts."""
        for episode in episodes:
            known = self.refused.get(episode.rollout_id, -1)
            self.refused[episode.rollout_id] = max(known, episode.attempt)
