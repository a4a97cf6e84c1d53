"""
The calls of the three operation charts: their arguments, and what their replies must be.

Names and arguments are those that environment deployments offer (protocol facts, 3). Each class
here is the `Wire` of one chart: it keeps the validated replies for the verb's result, and the
journal gets only counts and samples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from gymckpt.core.effects import SendCall
from gymckpt.core.settings import RETIRE
from gymckpt.episodes import EnvironmentEpisode, late_retire_id
from gymckpt.errors import GymCheckpointNotReady, text_of
from gymckpt.manifest import (
    GYM_CHECKPOINT_SCHEMA_VERSION,
    GymCheckpointManifest,
    ManifestPublication,
)
from gymckpt.replies import (
    GymCheckpointCommitSummary,
    GymCheckpointPrepareSummary,
    require_commit_summary,
    require_prepare_summary,
    staging_keys_of,
)
from gymckpt.runtime.wire import Again, Judgement, Message
from gymckpt.topology import Inventory
from gymckpt.visibility import Visibility

__all__ = [
    "Calls",
    "CheckpointCalls",
    "GymCheckpointCommitResult",
    "Offer",
    "RestoreCalls",
    "RestoreSource",
    "SweepCalls",
]

SAMPLE_MAX = 5
SERVERS_MAX = 20
NAME_MAX = 80
REASON_MAX = 300
"""How much of an instance's own words the journal keeps: names, servers, and their length."""

ANSWERED = Judgement(outcome="answered")


@attrs.frozen
class GymCheckpointCommitResult:
    """Outer manifest plus each Gym actor's validated commit summary."""

    manifest: GymCheckpointManifest
    instances: dict[str, GymCheckpointCommitSummary]

    @property
    def unsavable(self) -> dict[str, dict[EnvironmentEpisode, str]]:
        """Instance to its episodes that start over because they cannot be saved, with reasons."""
        return {
            instance: dict(summary.unsavable)
            for instance, summary in self.instances.items()
            if summary.unsavable
        }


@attrs.frozen(kw_only=True)
class Offer:
    """What a commit was asked to save."""

    root: str
    """The unpublished snapshot's directory, as instances are told."""
    episodes: Inventory
    restarts: Inventory


def _method(call: str) -> str:
    return f"checkpoint_{call}"


def _plain(ask: SendCall, wire_id: str) -> Message:
    """A call that carries nothing but the id and the deadline: prepare, renew, resume."""
    kwargs = {"deadline_ts": ask.deadline_ts}
    return Message(method=_method(ask.call), args=(wire_id,), kwargs=kwargs)


def _listed(ask: SendCall, wire_id: str, listed: tuple[Any, ...]) -> Message:
    """A call about some episodes or rollouts: retire, forget."""
    kwargs = {"deadline_ts": ask.deadline_ts}
    return Message(method=_method(ask.call), args=(wire_id, listed), kwargs=kwargs)


class NoManifest:
    """The part of a wire that an operation without an outer manifest leaves empty."""

    def publish(self) -> Callable[[], Mapping[str, Any]]:
        """Return a job that does nothing."""
        return dict

    def withdraw(self, root: str) -> Callable[[], Mapping[str, Any]]:
        """Return a job that does nothing."""
        return dict


class CheckpointCalls:
    """Prepare, renew, commit and resume of one checkpoint, and its manifest."""

    def __init__(
        self, checkpoint_id: str, instances: Iterable[str], visibility: Visibility | None = None
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._visibility = visibility or Visibility()
        self.instances = tuple(instances)
        self.prepared: dict[str, GymCheckpointPrepareSummary] = {}
        self.offer: Offer | None = None
        self.committed: dict[str, GymCheckpointCommitSummary] = {}
        self.manifest: GymCheckpointManifest | None = None
        self._publication: ManifestPublication | None = None

    @property
    def restarts(self) -> dict[str, frozenset[EnvironmentEpisode]]:
        """Instance to the episodes that it reported as starting over."""
        return {
            instance: frozenset(self.prepared[instance].restarts) for instance in self.instances
        }

    def message(self, ask: SendCall) -> Message:
        """Return one call as it leaves."""
        if ask.call != "commit":
            return _plain(ask, self.checkpoint_id)
        offer = self.required_offer
        return Message(
            method=_method(ask.call),
            args=(self.checkpoint_id, offer.root, offer.episodes[ask.instance]),
            kwargs={"deadline_ts": ask.deadline_ts},
        )

    @property
    def required_offer(self) -> Offer:
        """What the commit was asked to save; asking before there is one is a defect."""
        if self.offer is None:
            raise RuntimeError(f"checkpoint {self.checkpoint_id!r} commits without an offer")
        return self.offer

    def judge(self, call: str, instance: str, reply: object) -> Judgement:
        """Validate a reply; a prepare that is not ready is an answer, not an error."""
        if call == "prepare":
            return self._judge_prepare(instance, require_prepare_summary(reply))
        if call == "commit":
            return self._judge_commit(instance, reply)
        return ANSWERED

    def _judge_prepare(self, instance: str, summary: GymCheckpointPrepareSummary) -> Judgement:
        self.prepared[instance] = summary
        if summary.prepared:
            return Judgement(outcome="answered", facts={"restarts": len(summary.restarts)})
        # Texts of an instance: of any length, and perhaps nothing that a file can hold.
        blockers = {
            text_of(server, NAME_MAX): {
                "count": len(names),
                "sample": [text_of(name, NAME_MAX) for name in names[:SAMPLE_MAX]],
            }
            for server, names in list(summary.blockers.items())[:SERVERS_MAX]
        }
        facts = {"servers": len(summary.blockers), "blockers": blockers}
        return Judgement(outcome="refused", facts=facts)

    def _judge_commit(self, instance: str, reply: object) -> Judgement:
        offered = self.required_offer.episodes[instance]
        summary = require_commit_summary(reply, offered)
        self.committed[instance] = summary
        facts = {
            "offered": len(offered),
            "exported": len(summary.exported_episodes),
            "staging_keys": len(summary.staging_keys),
            "participants": list(summary.participants),
            "unowned": len(summary.unowned_live_episodes),
            **_unsavable_facts(summary),
        }
        return Judgement(outcome="answered", facts=facts)

    def not_ready(self) -> GymCheckpointNotReady | None:
        """Return the error of the instances that answered not ready, or None."""
        blockers = {
            instance: summary.blockers
            for instance, summary in self.prepared.items()
            if not summary.prepared
        }
        return GymCheckpointNotReady(blockers) if blockers else None

    @property
    def result(self) -> GymCheckpointCommitResult:
        """The manifest with every instance's summary, once committed."""
        if self.manifest is None:
            raise RuntimeError(f"checkpoint {self.checkpoint_id!r} has no manifest yet")
        return GymCheckpointCommitResult(self.manifest, dict(self.committed))

    def publish(self) -> Callable[[], Mapping[str, Any] | Again]:
        """Build the manifest and return the job that makes it durable once it tells the truth."""
        offer = self.required_offer
        exported = {instance: self._exported(instance) for instance in self.instances}
        manifest = GymCheckpointManifest(
            schema_version=GYM_CHECKPOINT_SCHEMA_VERSION,
            checkpoint_id=self.checkpoint_id,
            instances=exported,
            staging_keys={
                instance: staging_keys_of(self.committed[instance], episodes)
                for instance, episodes in exported.items()
            },
            restarts={instance: self._restarts(instance) for instance in self.instances},
            participants={
                instance: tuple(self.committed[instance].participants)
                for instance in self.instances
            },
        )
        self.manifest = manifest
        publication = self._publication = ManifestPublication(offer.root, manifest)
        look = self._visibility.look(offer.root, self.checkpoint_id, self.committed)

        def job() -> Mapping[str, Any] | Again:
            pause_s = look.once()
            return {"sha256": publication.publish()} if pause_s is None else Again(pause_s)

        return job

    def _exported(self, instance: str) -> tuple[EnvironmentEpisode, ...]:
        """Return what an instance exported, in the order in which it was offered."""
        kept = frozenset(self.committed[instance].exported_episodes)
        offered = self.required_offer.episodes[instance]
        return tuple(episode for episode in offered if episode in kept)

    def _restarts(self, instance: str) -> tuple[EnvironmentEpisode, ...]:
        """Return what starts over: what was left out of the offer, and what cannot be saved."""
        unsavable = self.committed[instance].unsavable
        offered = self.required_offer.episodes[instance]
        return (
            *self.required_offer.restarts.get(instance, ()),
            *(episode for episode in offered if episode in unsavable),
        )

    def withdraw(self, root: str) -> Callable[[], Mapping[str, Any]]:
        """Return the job that stops or undoes the publication; without one there is nothing."""
        publication = self._publication
        if publication is None:
            return lambda: {"removed": False}
        return lambda: {"removed": publication.withdraw()}


def _unsavable_facts(summary: GymCheckpointCommitSummary) -> dict[str, Any]:
    """Say in the journal whose state an instance cannot save, and why."""
    reasons = summary.unsavable
    if not reasons:
        return {}
    named = [
        {"episode": text_of(episode.capture_key, NAME_MAX), "reason": text_of(reason, REASON_MAX)}
        for episode, reason in list(reasons.items())[:SAMPLE_MAX]
    ]
    return {"unsavable": {"count": len(reasons), "sample": named}}


@attrs.frozen(kw_only=True)
class RestoreSource:
    """What a restore reads."""

    root: str
    """The committed snapshot's directory, as instances are told."""
    manifest: GymCheckpointManifest


class RestoreCalls(NoManifest):
    """Restore, renew, retire and resume of one restore."""

    def __init__(
        self, restore_id: str, saved: Inventory, source: RestoreSource | None = None
    ) -> None:
        """
        Prepare the calls.

        Args:
            restore_id: The id that instances are told.
            saved: Instance to the saved episodes that it continues as their next attempts.
            source: Where they were saved; None for a restore that can only be given up.
        """
        self.restore_id = restore_id
        self.saved = saved
        self.source = source

    @property
    def replacements(self) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Instance to the attempts that the restore installs."""
        return {
            instance: tuple(episode.next_attempt() for episode in episodes)
            for instance, episodes in self.saved.items()
        }

    def message(self, ask: SendCall) -> Message:
        """Return one call as it leaves."""
        if ask.call == RETIRE:
            # The restore's own id is fenced by its resume.
            wire_id = late_retire_id(self.restore_id) if ask.besides else self.restore_id
            listed = self.replacements[ask.instance] if ask.left is None else ask.left
            return _listed(ask, wire_id, listed)
        if ask.call != "restore":
            return _plain(ask, self.restore_id)
        if self.source is None:
            raise RuntimeError(f"restore {self.restore_id!r} was taken over to be given up")
        manifest = self.source.manifest
        return Message(
            method=_method(ask.call),
            args=(self.restore_id, self.source.root, self.saved[ask.instance]),
            kwargs={
                "source_checkpoint_id": manifest.checkpoint_id,
                "participants": manifest.participants[ask.instance],
                "deadline_ts": ask.deadline_ts,
            },
        )

    def judge(self, call: str, instance: str, reply: object) -> Judgement:
        """Take any reply: instances validate a restore themselves and fail otherwise."""
        return ANSWERED


class SweepCalls(NoManifest):
    """One call outside a checkpoint: retire, forget, or the resume of a lone id."""

    def __init__(self, wire_id: str, listed: Mapping[str, tuple[Any, ...]] | None) -> None:
        """
        Prepare the call.

        Args:
            wire_id: The id that instances are told.
            listed: Instance to what the call names; None for a resume, which names nothing.
        """
        self.wire_id = wire_id
        self.listed = listed

    def message(self, ask: SendCall) -> Message:
        """Return one call as it leaves."""
        if ask.left is not None:
            return _listed(ask, self.wire_id, ask.left)
        if self.listed is None:
            return _plain(ask, self.wire_id)
        return _listed(ask, self.wire_id, self.listed[ask.instance])

    def judge(self, call: str, instance: str, reply: object) -> Judgement:
        """Take any reply."""
        return ANSWERED


Calls = CheckpointCalls | RestoreCalls | SweepCalls
"""The wire of any operation."""
