"""
One snapshot as RL sees it, and what RL must offer so that one can be taken.

`RolloutSource` is RL's side: dispatch, the episodes that it waits for, its ledger under a cut. The
snapshot compares what the instances saved with that ledger, and says where the time went.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from gymckpt.calls import GymCheckpointCommitResult
from gymckpt.diagnosis.timeline import Timeline
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import CutMismatch, UnownedEpisodes, sample
from gymckpt.interfaces import DataPlaneMutationCut
from gymckpt.values import plain

__all__ = [
    "METRIC_PREFIX",
    "GymEnvironmentSnapshot",
    "LedgerUnderCut",
    "RolloutSource",
    "require_owned",
    "warn_of_unsavable",
]

logger = logging.getLogger("gymckpt")

METRIC_PREFIX = "gym_checkpoint/"


def _plain_ids(ids: Collection[str]) -> frozenset[str]:
    return frozenset(map(plain, ids))


@attrs.frozen(kw_only=True)
class LedgerUnderCut:
    """What RL's ledger says under a cut."""

    unfinished: frozenset[str] = attrs.field(converter=_plain_ids)
    """Rollout ids that RL still waits for or has begun to seal."""
    sealed: frozenset[str] = attrs.field(default=frozenset[str](), converter=_plain_ids)
    """Those of them whose reply has landed, so that RL's own state holds them whole."""


class RolloutSource(Protocol):
    """RL's side of a snapshot: who dispatches rollouts, and the ledger of what is unfinished."""

    def dispatch_closed(self) -> AbstractAsyncContextManager[None]:
        """
        Send nothing new until the context exits, and hold RL's own rollout deadlines meanwhile.

        The context is entered before any instance is parked and left after all have reopened, on
        every way out; it is never entered a second time while it is held.
        """
        ...

    def episodes_in_flight(self) -> Mapping[str, Collection[EnvironmentEpisode]]:
        """
        Return the episodes that RL waits for, by instance id; must not wait for anything.

        Called when dispatch has been closed, and when the body of a restore has ended. Restored
        rollouts that RL has not attached to yet belong here as the attempts that go on. One that
        RL has never listed is saved on its behalf; once it was listed, only this list counts.
        """
        ...

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        """
        Wait until every reply is in, but for those of some episodes.

        Args:
            expected_later: Episodes that are parked or start over. The latter run on, so a reply
                of theirs may land at any moment; it must not count as sealed under the cut,
                since the snapshot says that it starts over. Seal it when dispatch reopens.
        """
        ...

    def ledger_under(self, cut: DataPlaneMutationCut) -> LedgerUnderCut:
        """Return what the ledger says under a live cut; must not wait for an instance."""
        ...

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        """
        Take note that instances refuse these attempts and all earlier ones.

        Called after a restore was discarded: the rollouts start over as later attempts.
        """
        ...


@attrs.define(eq=False)
class GymEnvironmentSnapshot:
    """Gym's part of one rollout snapshot."""

    result: GymCheckpointCommitResult
    """The manifest and what each instance committed."""
    rollouts: RolloutSource
    bytes_written: int
    """Size of all records and the manifest on disk."""
    timeline: Timeline
    """Where the time went, as far as it has gone; complete once the context has exited."""

    @property
    def restarted_rollouts(self) -> int:
        """Rollouts that Gym could not capture; they start over after a crash."""
        return sum(len(episodes) for episodes in self.result.manifest.restarts.values())

    @property
    def continued_rollouts(self) -> int:
        """Rollouts that a restore of this snapshot would continue."""
        return sum(len(episodes) for episodes in self.result.manifest.instances.values())

    async def check_against_cut(self, cut: DataPlaneMutationCut) -> None:
        """
        Require every unfinished rollout to be in exactly one of continued, restarted, sealed.

        Args:
            cut: The cut that RL holds.

        Raises:
            CutMismatch: The cut is dead, or a rollout is in none or in more than one of them, or
                continued without being unfinished; the message has totals and a sample of each.
        """
        if not cut.live:
            raise CutMismatch("the cut is dead: take the snapshot's state under a live one")
        ledger = self.rollouts.ledger_under(cut)
        manifest = self.result.manifest
        places = {
            "continued": _rollouts(manifest.instances),
            "restarted": _rollouts(manifest.restarts),
            "sealed": ledger.sealed,
        }
        owners = {
            rollout: [place for place, rollouts in places.items() if rollout in rollouts]
            for rollout in ledger.unfinished.union(*places.values())
        }
        problems = {
            "in none of continued, restarted and sealed": sorted(
                rollout for rollout, where in owners.items() if not where
            ),
            "in more than one of them": sorted(
                f"{rollout} ({' and '.join(where)})"
                for rollout, where in owners.items()
                if len(where) > 1
            ),
            "saved, but finished for RL": sorted(
                (places["continued"] | places["restarted"]) - ledger.unfinished
            ),
        }
        found = [
            f"{len(items)} rollout(s) {what}: {sample(items)}"
            for what, items in problems.items()
            if items
        ]
        if found:
            raise CutMismatch("; ".join(found))

    def metrics(self, paused_seconds: float) -> dict[str, float]:
        """
        Return flat numbers for the training logger, all under one prefix.

        Args:
            paused_seconds: How long RL measured the pause.

        `paused_s` is that; `prepare_s` is from the first prepare to the end of the renewal after
        it; `commit_s` while instances wrote; `manifest_s` while the outer manifest was made
        durable; `resume_s` until every instance had reopened, 0 before that; `slowest_prepare_s`
        and `slowest_commit_s` are the slowest instance's; `continued` and `restarted` count
        episodes; `staging_keys` counts staged rows that the snapshot needs; `retries` counts calls
        that were sent again, without renewals; `bytes` is the size on disk of the manifest and of
        what instances wrote beside it.
        """
        manifest, timeline = self.result.manifest, self.timeline

        def slowest_s(call: str) -> float:
            span = timeline.slowest(call)
            return (span.seconds or 0.0) if span else 0.0

        values = {
            "paused_s": paused_seconds,
            "prepare_s": timeline.state_seconds("preparing", "confirming"),
            "commit_s": timeline.state_seconds("committing"),
            "manifest_s": timeline.state_seconds("sealing"),
            "resume_s": timeline.state_seconds("resuming"),
            "slowest_prepare_s": slowest_s("prepare"),
            "slowest_commit_s": slowest_s("commit"),
            "continued": self.continued_rollouts,
            "restarted": self.restarted_rollouts,
            "staging_keys": sum(len(keys) for keys in manifest.staging_keys.values()),
            "retries": timeline.retries,
            "bytes": self.bytes_written,
        }
        return {f"{METRIC_PREFIX}{name}": float(value) for name, value in values.items()}


def require_owned(result: GymCheckpointCommitResult) -> None:
    """
    Refuse a commit with live episodes that nobody can restore.

    Raises:
        UnownedEpisodes: Some instance has such episodes.
    """
    unowned = {
        instance: summary.unowned_live_episodes
        for instance, summary in result.instances.items()
        if summary.unowned_live_episodes
    }
    if unowned:
        raise UnownedEpisodes(unowned)


def warn_of_unsavable(result: GymCheckpointCommitResult) -> None:
    """Log which episodes could not be saved, and why."""
    reasons = [
        f"{episode.capture_key} on {instance}: {reason}"
        for instance, found in result.unsavable.items()
        for episode, reason in found.items()
    ]
    if reasons:
        logger.warning(
            "%d episode(s) could not be saved and start over after a crash: %s",
            len(reasons),
            sample(reasons),
        )


def _rollouts(inventory: Mapping[str, Collection[EnvironmentEpisode]]) -> frozenset[str]:
    return frozenset(episode.rollout_id for episodes in inventory.values() for episode in episodes)
