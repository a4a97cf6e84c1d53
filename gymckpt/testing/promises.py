"""
What must hold of a run of a coordinator machine, after every rule and at its end.

What has left is judged by the accounts of the wires; logs are replayed, and held against their
rows and their files; verbs and bodies must end with what they may end with. What the trainer is to
know of an operation is learnt from the journal, since the controller that began it may be dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from gymckpt.coordinator import GymCheckpointNotReady
from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import replay
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import (
    GymCheckpointOperationError,
    IllegalTransition,
    JournalError,
    OperationDiscarded,
    OperationOpen,
)
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME, load_gym_checkpoint_manifest
from gymckpt.testing.account import Account, Broken
from gymckpt.testing.controllers import Body
from gymckpt.testing.stage import Episodes, Stage
from gymckpt.topology import from_facts

__all__ = ["Promises"]

HAIR_S = 1e-3

STANDING = frozenset({"resuming", "resumed"})
FALLEN = frozenset({"retiring", "discarding", "discarded"})

ORDINARY = (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    IllegalTransition,
    JournalError,
    OperationDiscarded,
    OperationOpen,
)
"""What a verb may end with when instances fail, or another controller has taken over."""


class Promises:
    """
    What was promised of one stage.

    Attributes:
        stage: The stage.
        taken: What was recorded, see `__init__`.
    """

    def __init__(self, stage: Stage, taken: Counter[tuple[str, str, str, str]]) -> None:
        """
        Begin with nothing seen.

        Args:
            stage: The stage.
            taken: Where every recorded transition is counted: chart, source, trigger, dest.
        """
        self.stage = stage
        self.taken = taken
        self._seen: dict[str, tuple[int, OperationState]] = {}
        self._learnt: set[str] = set()

    @property
    def unsettled(self) -> bool:
        """Whether an operation has not ended yet."""
        return any(not operation.settled for operation in self._operations())

    def _operations(self) -> Iterable[OperationState]:
        return (operation for _, operation in self._seen.values())

    def look(self) -> None:
        """Hold what has left, and what verbs have come to."""
        self._hold_sent()
        one = self.stage.controller
        if one.body is not None and one.body.task.done():
            _hold_outcome(one.body)
            self._hold_told(one.body)
            one.body = None
        if one.verb is not None and one.verb.done():
            error = one.verb.exception()
            assert error is None or isinstance(error, ORDINARY), f"a verb raised {error!r}"
            one.verb = None

    def _hold_sent(self) -> None:
        if self.stage.watch.broken:
            raise self.stage.watch.broken[0]

    def _hold_told(self, body: Body) -> None:
        """Require S9 of a body that is over: who is told that all went well may rely on it."""
        if body.task.cancelled() or body.task.exception() is not None:
            return
        cause = replay(self.stage.watch.history(body.wire_id)).cause
        if cause is not None and cause.trigger != "discard":  # it had nothing to save
            raise Broken("S9", f"{body.wire_id} ended well, though {cause.trigger} gave it up")

    def hold_histories(self) -> None:
        """Hold each log against its row and its file; learn what came of it."""
        self._hold_sent()
        for row in self.stage.journal.operations(self.stage.run):
            seen = self._seen.get(row.operation_id)
            if seen is None or seen[0] != row.last_seq:
                entries = self.stage.watch.history(row.operation_id)
                self._note_taken(row.chart, entries[0 if seen is None else seen[0] :])
                seen = row.last_seq, replay(entries)
                self._seen[row.operation_id] = seen
            operation = seen[1]
            if (operation.state, operation.settled) != (row.state, row.settled):
                raise Broken("S6", f"{row.operation_id} is {row.state}, it replays to {operation}")
            self._hold_ended(operation)
            if operation.operation_id not in self._learnt:
                self._learn(operation)

    def _note_taken(self, chart: str, entries: Iterable[Entry]) -> None:
        for entry in entries:
            moved = "call" if entry.instance else chart
            self.taken[moved, entry.source, entry.trigger, entry.dest] += 1

    def _hold_ended(self, operation: OperationState) -> None:
        manifest = False
        if operation.chart == "checkpoint" and operation.root is not None:
            path = Path(operation.root)
            manifest = (path / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
            if manifest:
                load_gym_checkpoint_manifest(path)  # whole, whenever it exists
        account = self.stage.watch.account_of(operation.wire_id)
        if operation.settled and account is not None and operation.chart != "sweep":
            _hold_reopened(account)
            passed = operation.at_s + HAIR_S >= operation.lease_horizon_at_s
            account.hold_ended(
                operation.chart, operation.state, manifest=manifest, horizon_passed=passed
            )

    def _learn(self, operation: OperationState) -> None:
        """Take what an operation has come to into account, once."""
        state, stands = operation.state, operation.state in STANDING
        if not (stands or state in FALLEN):
            return
        self._learnt.add(operation.operation_id)
        if operation.chart == "checkpoint" and stands and operation.root is not None:
            root = Path(operation.root)
            self.stage.saved.append((root, load_gym_checkpoint_manifest(root)))
        elif operation.chart == "restore":
            saved = from_facts(operation.opening["inventory"])
            ids = {one.rollout_id for episodes in saved.values() for one in episodes}
            self.stage.rollouts = [
                one for one in self.stage.rollouts if one[1].rollout_id not in ids
            ]
            if stands:
                self.stage.rollouts += [(n, e.next_attempt()) for n in saved for e in saved[n]]

    def come_to_rest(self) -> None:
        """
        Hold L2 and S3, S5: without new faults all is settled, open, and goes on.

        Raises:
            AssertionError: It is not.
            Broken: A promise does not hold.
        """
        for handle in self.stage.handles.values():
            handle.heal()
        self.stage.wait(None)
        self.look()
        for one in (*self.stage.former, self.stage.controller):
            one.process.kill()
        self.stage.take_over()
        self.stage.wait(None)
        self.look()
        self.stage.pass_time(3 * self.stage.grace_s + self.stage.verb_s)
        self.look()
        self.hold_histories()
        left = self.stage.journal.operations(self.stage.run, unfinished=True)
        assert not left, f"L2: {[(row.operation_id, row.state) for row in left]} never ended"
        living = [name for name in self.stage.names if not self.stage.handles[name].is_dead]
        shut = [name for name in living if not self.stage.held[name].is_open()]
        assert not shut, f"S3: {shut} are closed though every operation has ended"
        self._hold_restored(living)
        if len(living) == len(self.stage.names):
            self._hold_working()
        assert not self.stage.reports, f"the loop has reported {self.stage.reports}"

    def _hold_restored(self, living: list[str]) -> None:
        """Require S5: nothing goes on of a restore that does not stand."""
        stands: set[EnvironmentEpisode] = set()
        fallen: set[tuple[str, EnvironmentEpisode]] = set()
        for operation in self._operations():
            if operation.chart != "restore":
                continue
            for name, saved in from_facts(operation.opening["inventory"]).items():
                following = [one.next_attempt() for one in saved]
                stands.update(following if operation.state in STANDING else ())
                fallen.update((name, one) for one in following)
        for name, episode in fallen:
            if name in living and episode not in stands and self.stage.held[name].runs(episode):
                raise Broken("S5", f"{name} goes on with {episode} of a restore that was discarded")

    def _hold_working(self) -> None:
        """Require that a checkpoint of nothing goes through."""
        one, wire_id = self.stage.controller, self.stage.new_id("last")

        async def checkpoint() -> None:
            async with one.coordinator.prepared(wire_id):
                nothing: Episodes = dict.fromkeys(self.stage.names, ())
                root = self.stage.root / wire_id
                await one.coordinator.commit(wire_id, root, nothing, restarts={})

        error = self.stage.outcome_of(checkpoint())
        assert error is None, f"L2: a checkpoint after all faults came to {error!r}"


def _hold_reopened(account: Account) -> None:
    """Require S3: whoever may have been closed was asked to reopen, or is known to be dead."""
    for number in account.sent("prepare", "restore") - account.sent("resume"):
        if not account.notes[number].dead:
            raise Broken("S3", f"all has ended, but instance {number} was never asked to resume")


def _hold_outcome(body: Body) -> None:
    """Require S9 of a body that is over: its own error leaves as itself."""
    if body.task.cancelled():
        assert body.cancelled, "S9: a body ended with a cancellation that nobody asked for"
        return
    error = body.task.exception()
    if body.raised is not None and not body.cancelled:
        assert error is body.raised, f"S9: the body raised {body.raised!r}, {error!r} left"
    elif error is not None and error is not body.raised:
        assert isinstance(error, ORDINARY), f"S9: {error!r} left a {body.kind}"
