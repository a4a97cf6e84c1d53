"""
Save and restore rollout state that lives in the environment backend, as a trainer sees it.

A trainer holds an `EnvironmentCheckpoint` and never names the backend behind it. The protocols are
those of the interfaces' API document; `GymEnvironmentCheckpoint` implements them for deployments
behind a coordinator, `NoEnvironmentCheckpoint` for a backend that keeps nothing between turns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs

from gymckpt.episodes import EnvironmentEpisode

__all__ = [
    "DataPlaneMutationCut",
    "EnvironmentCheckpoint",
    "EnvironmentEpisode",
    "EnvironmentSnapshot",
    "NoEnvironmentCheckpoint",
    "RestoredEnvironmentRollouts",
]


@runtime_checkable
class DataPlaneMutationCut(Protocol):
    """A point between two mutations of RL's data plane, held while a snapshot is taken."""

    @property
    def live(self) -> bool:
        """Whether the cut is still held, so that what it shows cannot change."""
        ...


@attrs.frozen
class RestoredEnvironmentRollouts:
    """What an environment restore continued, so RL can match it."""

    continued_attempts: frozenset[tuple[str, str, int]] = frozenset()
    """(instance id, rollout id, attempt) of every rollout that the backend restored. The attempt
    is the saved one, which RL's ledger knows; the backend goes on with the next."""

    staging_keys: frozenset[str] = frozenset()
    """Staged rows that the restored rollouts still need; a restore keeps exactly these."""

    def replacements(self) -> frozenset[tuple[str, EnvironmentEpisode]]:
        """Return (instance id, episode) of the attempts that go on in place of the saved ones."""
        return frozenset(
            (instance, EnvironmentEpisode(rollout_id, attempt).next_attempt())
            for instance, rollout_id, attempt in self.continued_attempts
        )


@runtime_checkable
class EnvironmentSnapshot(Protocol):
    """The backend's part of one rollout snapshot, while the backend is paused."""

    @property
    def restarted_rollouts(self) -> int:
        """Rollouts that the backend could not capture; they start over after a crash."""
        ...

    async def check_against_cut(self, cut: DataPlaneMutationCut) -> None:
        """
        Under the data-plane cut, require the captured state to match RL's.

        Args:
            cut: The cut that RL holds.

        Raises:
            Exception: The backend's rollouts and RL's ledger disagree, which would make the
                snapshot unrestorable.
        """
        ...

    def metrics(self, paused_seconds: float) -> dict[str, float]:
        """
        Return the backend's metrics for this snapshot.

        Args:
            paused_seconds: How long RL measured the pause.
        """
        ...


@runtime_checkable
class EnvironmentCheckpoint(Protocol):
    """Rollout state that an environment backend keeps between turns."""

    @property
    def holds_rollout_state(self) -> bool:
        """
        Whether rollout snapshots must capture this backend.

        True means that a trainer checkpoint, which never pauses the backend, does not stand in
        for a rollout snapshot.
        """
        ...

    async def check_startup(self) -> None:
        """Refuse, or warn about, a deployment that cannot recover as configured."""
        ...

    def snapshot(
        self, checkpoint_path: Path
    ) -> AbstractAsyncContextManager[EnvironmentSnapshot | None]:
        """
        Pause the backend and save its rollouts under `checkpoint_path`.

        Yields None when there is nothing to save. The backend resumes, and accepts new rollouts
        again, when the context exits.

        Args:
            checkpoint_path: The unpublished snapshot's directory.
        """
        ...

    def restored(
        self, checkpoint_path: Path
    ) -> AbstractAsyncContextManager[RestoredEnvironmentRollouts]:
        """
        Restore the backend's rollouts from `checkpoint_path`.

        The restore is kept only if the context exits cleanly. On an exception the backend drops
        what it restored before it resumes.

        Args:
            checkpoint_path: The committed snapshot's directory; only read.
        """
        ...

    def is_unavailable(self, error: BaseException) -> bool:
        """
        Whether a failed snapshot only met a backend that was briefly unreachable.

        Such a failure leaves nothing that RL holds changed, so the next attempt can retry.

        Args:
            error: What left the context manager.
        """
        ...


class NoEnvironmentCheckpoint:
    """For a backend that keeps no rollout state between turns."""

    @property
    def holds_rollout_state(self) -> bool:
        """Whether snapshots must capture this backend: never."""
        return False

    async def check_startup(self) -> None:
        """Have nothing to check."""

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        """Yield None: there is nothing to save."""
        yield None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        """Yield that nothing was continued."""
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether a failure may be gone at the next try: there is no backend to come back."""
        return False
