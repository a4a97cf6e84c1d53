"""
Restored episodes that RL has not taken over yet.

RL takes a restored episode over by listing it in `RolloutSource.episodes_in_flight`, at the latest
when the restore's context exits or at some snapshot afterwards; from then on only RL's list counts.
What it has never listed is offered to each snapshot on its behalf, so that no snapshot loses an
episode between its restore and the moment when RL waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointOperationError, GymCheckpointUnavailable

__all__ = ["Unattached"]

logger = logging.getLogger("gymckpt")

Episodes = Mapping[str, Collection[EnvironmentEpisode]]


class Unattached:
    """The restored episodes that RL has never listed as in flight, by instance."""

    def __init__(self) -> None:
        """Begin without any."""
        self._waiting: dict[str, frozenset[EnvironmentEpisode]] = {}

    def add(self, restored: Episodes, listed: Episodes) -> None:
        """
        Remember what a restore has installed, but for what RL lists already.

        Args:
            restored: Instance to the attempts that go on.
            listed: What RL lists as in flight.
        """
        for instance, episodes in restored.items():
            self._waiting[instance] = self._waiting.get(instance, frozenset()).union(episodes)
        self.but(listed)

    def but(self, listed: Episodes) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """
        Return what RL has not listed yet.

        Args:
            listed: What RL lists as in flight now; it answers for these from now on.
        """
        names = {found.rollout_id for episodes in listed.values() for found in episodes}
        self._waiting = {
            instance: frozenset(found for found in episodes if found.rollout_id not in names)
            for instance, episodes in self._waiting.items()
        }
        return {instance: tuple(sorted(episodes)) for instance, episodes in self._waiting.items()}

    def keep(self, running: Collection[EnvironmentEpisode]) -> None:
        """
        Drop what has ended without RL ever listing it.

        Args:
            running: What a commit found to be running.
        """
        self._waiting = {
            instance: episodes.intersection(running) for instance, episodes in self._waiting.items()
        }

    def forget(self, refused: Episodes) -> None:
        """Drop attempts of a restore that was discarded."""
        for instance, episodes in refused.items():
            self._waiting[instance] = self._waiting.get(instance, frozenset()).difference(episodes)

    @contextmanager
    def offered(self) -> Iterator[None]:
        """
        Watch a commit that offers them: one that an instance refuses is not spoiled by them twice.

        An instance refuses an episode that it was told to forget, which RL may have done without
        ever listing it.
        """
        try:
            yield
        except GymCheckpointOperationError as error:
            refused = any(
                isinstance(failure, GymCheckpointUnavailable) for failure in error.failures.values()
            )
            count = sum(len(episodes) for episodes in self._waiting.values())
            if refused and count:
                logger.warning(
                    "%d restored episode(s) that RL has never listed are offered no more: the "
                    "commit was refused, and their instance may have forgotten them",
                    count,
                )
                self._waiting = {}
            raise
