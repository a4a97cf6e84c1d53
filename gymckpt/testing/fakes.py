"""
Instances with a script of faults, and a journal that crashes: to try a controller of your own on.

A `FakeInstance` keeps the protocol by the very control plane that a real deployment has; it has no
episodes but those that are restored, and writes no files. Per call it can be told to raise, to be
late, to hang, or to do the thing and lose the answer. A `FaultyHandle` gives any other instance
such a script. A `CrashingJournal` fails at a chosen append and for ever after, as a disk does that
breaks there, with or without what was being written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gymckpt.core.entry import Entry
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import (
    GymCheckpointUnavailable,
    JournalOutcomeUnknown,
    JournalUnavailable,
    ParticipantRefused,
)
from gymckpt.journal import MemoryJournal, MemoryStore, Opening
from gymckpt.participant.control import ControlPlane
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary
from gymckpt.runtime.holding import as_process
from gymckpt.testing.faults import (
    ActorDiedError,
    FakeCall,
    Fault,
    FaultScript,
    FaultyHandle,
    UnpicklableError,
)

__all__ = [
    "ActorDiedError",
    "CrashingJournal",
    "FakeCall",
    "FakeInstance",
    "FakeShardSet",
    "Fault",
    "FaultScript",
    "FaultyHandle",
    "UnpicklableError",
    "as_process",
]

PARTICIPANT = "fake"


class FakeInstance(FaultScript):
    """
    One instance, and the handle on it.

    Attributes:
        control: Its control plane: who holds it, until when, which ids and attempts are refused.
        installed: The attempts that restores have installed and that were not retired since.
        restarts: The episodes that it names as not to be captured.
        unsavable: Episodes whose state it cannot save, with the reason.
    """

    def __init__(self, *, grace_s: float = 600.0, now_ts: Callable[[], float] = time.time) -> None:
        """
        Make an instance that is open and answers everything.

        Args:
            grace_s: How long after the last deadline it reopens by itself.
            now_ts: Its clock.
        """
        super().__init__()
        self.control = ControlPlane(PARTICIPANT, grace_s=grace_s)
        self.installed: set[EnvironmentEpisode] = set()
        self.restarts: tuple[EnvironmentEpisode, ...] = ()
        self.unsavable: dict[EnvironmentEpisode, str] = {}
        self._now_ts = now_ts

    @property
    def is_open(self) -> bool:
        """Whether nothing holds it, now by its clock."""
        self.control.expire(self._now_ts())
        return self.control.is_open

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        does = getattr(self, f"_do_{name.removeprefix('checkpoint_')}")

        async def answer(*args: Any, **kwargs: Any) -> Any:
            try:
                return does(*args, **kwargs)
            except ParticipantRefused as refused:
                raise GymCheckpointUnavailable(str(refused), code=refused.code) from refused

        return self.method(name, answer)

    # --- what it does -------------------------------------------------------------------------

    def _do_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        now_ts = self._now_ts()
        recorded = self.control.prepare(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        if recorded is None:
            self.control.ready(checkpoint_id)
            recorded = GymCheckpointPrepareSummary(True, {}, self.restarts)
            self.control.record("prepare", checkpoint_id, recorded)
        return recorded

    def _do_renew(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        self.control.renew(checkpoint_id, deadline_ts=deadline_ts, now_ts=self._now_ts())

    def _do_commit(
        self,
        checkpoint_id: str,
        root: str,
        episodes: Collection[EnvironmentEpisode],
        *,
        deadline_ts: float,
    ) -> Any:
        scope = tuple(sorted(episodes))
        recorded = self.control.commit(
            checkpoint_id, (root, scope), deadline_ts=deadline_ts, now_ts=self._now_ts()
        )
        if recorded is None:
            kept = tuple(episode for episode in scope if episode not in self.unsavable)
            lost = {one: why for one, why in self.unsavable.items() if one in scope}
            rows = {episode: (f"{episode.capture_key}/row",) for episode in kept}
            keys = tuple(key for row in rows.values() for key in row)
            recorded = GymCheckpointCommitSummary(kept, keys, (PARTICIPANT,), rows, unsavable=lost)
            self.control.record("commit", checkpoint_id, recorded)
        return recorded

    def _do_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        del deadline_ts  # reopening is never too late
        self.control.resume(checkpoint_id, now_ts=self._now_ts())

    def _do_restore(
        self,
        restore_id: str,
        root: str,
        episodes: Collection[EnvironmentEpisode],
        *,
        source_checkpoint_id: str,
        participants: Collection[str],
        deadline_ts: float,
    ) -> None:
        request = (root, tuple(sorted(episodes)), source_checkpoint_id, tuple(participants))
        recorded = self.control.restore(
            restore_id, request, deadline_ts=deadline_ts, now_ts=self._now_ts()
        )
        if recorded is None:
            following = [episode.next_attempt() for episode in episodes]
            self.control.install(restore_id, following)
            self.control.record("restore", restore_id, True)
            self.installed.update(following)

    def _do_retire(
        self, sweep_id: str, episodes: Collection[EnvironmentEpisode], *, deadline_ts: float
    ) -> None:
        now_ts = self._now_ts()
        self.control.retire(sweep_id, episodes, deadline_ts=deadline_ts, now_ts=now_ts)
        marks = {episode.rollout_id: episode.attempt for episode in episodes}
        self.installed = {
            one for one in self.installed if one.attempt > marks.get(one.rollout_id, -1)
        }

    def _do_forget(
        self, sweep_id: str, rollout_ids: Collection[str], *, deadline_ts: float
    ) -> None:
        now_ts = self._now_ts()
        self.control.forget(sweep_id, rollout_ids, deadline_ts=deadline_ts, now_ts=now_ts)

    def _do_restart_only_servers(self) -> list[str]:
        return [PARTICIPANT] if self.restarts else []


class FakeShardSet:
    """
    Instances under the ids of one shard, as a coordinator takes them.

    Attributes:
        checkpoint_handles: Instance id to instance.
    """

    def __init__(self, *instances: FakeInstance, shard: str = "tools") -> None:
        """
        Name the instances in their order.

        Args:
            instances: The instances.
            shard: The shard.
        """
        self.checkpoint_handles = {
            f"{shard}/replica-{index}": instance for index, instance in enumerate(instances)
        }


class CrashingJournal(MemoryJournal):
    """
    A journal that fails at one append, and at everything from then on.

    Open another `MemoryJournal` on the same store to see what a recovering controller finds, and
    make that controller `with as_process("the next")`: those of one process share what they hold.

    Attributes:
        appends: How many batches were to be stored, the opening of operations included.
        crashed: Whether it has failed.
    """

    def __init__(self, store: MemoryStore, *, at_append: int, stored: bool = False) -> None:
        """
        Open a journal on a store.

        Args:
            store: Where the entries are.
            at_append: Which append fails, counted from 1.
            stored: Whether its entries are stored all the same.

        Raises:
            ValueError: There is no such append, so it would never crash.
        """
        if at_append < 1:
            raise ValueError(f"at_append counts from 1; {at_append} would never come")
        super().__init__(store)
        self.appends = 0
        self.crashed = False
        self._at_append = at_append
        self._stores = stored

    def open_operation(self, opening: Opening, entries: Sequence[Entry]) -> None:
        """Open an operation, or crash."""
        self._count(lambda: super(CrashingJournal, self).open_operation(opening, entries))

    def append(
        self, entries: Sequence[Entry], *, expected_seq: int, epoch: int, settled: bool = False
    ) -> None:
        """Append, or crash."""
        self._count(
            lambda: super(CrashingJournal, self).append(
                entries, expected_seq=expected_seq, epoch=epoch, settled=settled
            )
        )

    def _count(self, store: Callable[[], None]) -> None:
        self.appends += 1
        if self.appends == self._at_append and not self.crashed:
            self.crashed = True
            if self._stores:
                store()
                raise JournalOutcomeUnknown(f"the journal crashed in append {self._at_append}")
        if self.crashed:
            raise JournalUnavailable(f"the journal has crashed at append {self._at_append}")
        store()
