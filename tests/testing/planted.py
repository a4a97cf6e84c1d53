"""Faults of the product, each planted by hand, that simulation must find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest

from gymckpt import calls, operations, recovery
from gymckpt.core import invariants as held
from gymckpt.core import step as stepping
from gymckpt.core import timing
from gymckpt.core.effects import WriteManifest
from gymckpt.core.events import Moment
from gymckpt.core.operation import OperationState
from gymckpt.errors import Fenced
from gymckpt.journal import memory, rules
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.hosting import EpisodeHost
from gymckpt.participant.saving import Saving
from gymckpt.participant.servers import Servers
from gymckpt.participant.work import Workshop
from gymckpt.recovery import recover_all
from gymckpt.runtime.asks import AskKey, Asks
from gymckpt.runtime.driver import Driver
from gymckpt.runtime.ledger import Ledger
from gymckpt.runtime.wire import Judgement
from gymckpt.runtime.worker import Recorder
from gymckpt.visibility import Look

Plant = Callable[[pytest.MonkeyPatch], None]

ANSWERED = Judgement(outcome="answered")


@attrs.frozen(kw_only=True)
class Planted:
    """One fault of the product, and where to look for it."""

    plant: Plant
    kinds: tuple[str, ...]
    """The faults of the world that bring it out; none where it shows by itself."""
    promises: frozenset[str]
    """Which promises may be seen broken by it; `defect` is a verb that fails as none should."""
    first: int
    """The seed to begin with: it only spares time."""

    def __str__(self) -> str:
        return self.plant.__name__


PLANTED: list[Planted] = []


def planted(*kinds: str, breaks: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault."""

    def register(plant: Plant) -> Plant:
        promises = frozenset(breaks.split())
        PLANTED.append(Planted(plant=plant, kinds=kinds, promises=promises, first=first))
        return plant

    return register


# --- scheduler ----------------------------------------------------------------------------------


@planted("crash", breaks="S3 S4 S5")
def effects_before_their_entries(patch: pytest.MonkeyPatch) -> None:
    """Effects leave before the entries that cause them are durable."""

    async def take(self: Any, batch: Any) -> None:
        steps, answers = self._steps(self.operation, batch)
        before = self.operation
        self.operation = steps[-1].operation if steps else before
        self._effects.extend(effect for taken in steps for effect in taken.effects)
        self._act()
        entries = [entry for taken in steps for entry in taken.entries]
        if entries:
            await self._ledger.record(entries, self.operation)
        self._batch = []
        self._wake()
        for queued, outcome in answers:
            if queued.accepted is not None and not queued.accepted.done():
                queued.accepted.set_result(outcome)

    patch.setattr(Driver, "_take", take)


@planted(breaks="S6")
def the_manifest_is_written_before_its_entry(patch: pytest.MonkeyPatch) -> None:
    """Of all effects, only the manifest's leaves before the entry that allows it is durable."""
    take = Driver._take

    async def taking(self: Any, batch: Any) -> None:
        for one in self._steps(self.operation, batch)[0]:
            for effect in one.effects:
                if isinstance(effect, WriteManifest):
                    self._perform(effect)
        await take(self, batch)

    patch.setattr(Driver, "_take", taking)


@planted("pause", "operator", breaks="S2 S5 S6 defect", first=20)
def a_fenced_driver_goes_on(patch: pytest.MonkeyPatch) -> None:
    """Who is fenced takes that for an append that went well."""
    record = Ledger.record

    async def forgiving(self: Any, entries: Any, after: Any) -> Any:
        failure = await record(self, entries, after)
        return None if isinstance(failure, Fenced) else failure

    patch.setattr(Ledger, "record", forgiving)
    patch.setattr(Driver, "fence", lambda *_args: None)


def _pretend(patch: pytest.MonkeyPatch, of: Callable[[Any], bool]) -> None:
    """Let some asks never leave, and count as answered."""
    send = Asks.send

    def sent(self: Any, effect: Any) -> None:
        if of(effect):
            key = AskKey(effect.call, effect.instance, effect.ask)
            self._on_judged(key, ANSWERED)
        else:
            send(self, effect)

    patch.setattr(Asks, "send", sent)


@planted(breaks="S3")
def a_resume_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """The first instance is not asked to resume, and counts as open."""
    _pretend(patch, lambda effect: effect.call == "resume" and effect.instance.endswith("-0"))


@planted("raise", "cancel", "lose-reply", breaks="S5")
def a_retire_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """A restore that is given up reopens an instance that it has not asked to retire."""
    _pretend(patch, lambda effect: effect.call == "retire" and effect.instance.endswith("-0"))


@planted("journal-hang", breaks="L1")
def the_journal_is_waited_for_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    """A call of the journal has no timeout."""

    async def answered(self: Any, waiting: Any) -> Any:
        return await waiting

    patch.setattr(Recorder, "_answered", answered)


@planted("clock-step", "isolate", "partition", breaks="L1 L2 S3", first=60)
def waiting_is_measured_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """The operation's clock is the wall clock, so that a lease seems over when that steps."""

    def now(self: Any) -> Moment:
        wall_ts = self._clock.wall_ts()
        return Moment(wall_ts, max(0.0, wall_ts - self.operation.opened_ts))

    patch.setattr(Driver, "_now", now)


# --- core ---------------------------------------------------------------------------------------


@planted("die", "hang", "lose-reply", "disk-fail", breaks="S2 defect")
def the_manifest_is_early(patch: pytest.MonkeyPatch) -> None:
    """One commit that was answered counts as all, and no invariant looks."""
    real = timing.CONDITIONS["all_answered"]

    def early(operation: OperationState, now: Moment) -> bool:
        if operation.state == "committing":
            return bool(operation.phase.count("answered"))
        return real(operation, now)

    patch.setattr(timing, "CONDITIONS", {**timing.CONDITIONS, "all_answered": early})
    patch.setattr(timing, "HOLDING", {**timing.HOLDING, "all_answered": early})
    checks = tuple(one for one in held.CHECKS if one[0] != "S2-manifest-last")
    patch.setattr(held, "CHECKS", checks)


@planted("lose-reply", "hang", "die", breaks="S1 defect")
def the_commit_is_early(patch: pytest.MonkeyPatch) -> None:
    """One instance that is parked counts as all, and no invariant looks."""
    real = timing.CONDITIONS["all_answered"]

    def early(operation: OperationState, now: Moment) -> bool:
        if operation.state in ("preparing", "confirming"):
            return bool(operation.phase.count("answered"))
        return real(operation, now)

    patch.setattr(timing, "CONDITIONS", {**timing.CONDITIONS, "all_answered": early})
    patch.setattr(timing, "HOLDING", {**timing.HOLDING, "all_answered": early})
    checks = tuple(one for one in held.CHECKS if one[0] != "S1-park-before-commit")
    patch.setattr(held, "CHECKS", checks)


@planted("restart", breaks="S5")
def a_restore_is_kept_unseen(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the renewals that follow a body, and no invariant looks."""
    real = timing.CONDITIONS["all_answered"]

    def early(operation: OperationState, now: Moment) -> bool:
        return operation.state == "keeping" or real(operation, now)

    patch.setattr(timing, "CONDITIONS", {**timing.CONDITIONS, "all_answered": early})
    patch.setattr(timing, "HOLDING", {**timing.HOLDING, "all_answered": early})
    checks = tuple(one for one in held.CHECKS if one[0] != "S5-kept-after-renewal")
    patch.setattr(held, "CHECKS", checks)


# --- journal ------------------------------------------------------------------------------------


@planted("pause", "operator", breaks="S2 S4 S5 S6 defect", first=100)
def the_epoch_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A record or a heartbeat of an older epoch is taken for one of the present."""

    def forgiving(held: Any, run: str, epoch: int) -> Any:
        return attrs.evolve(held, epoch=epoch)

    for module in (memory, rules):
        patch.setattr(module, "check_epoch", forgiving)


@planted(breaks="S6 defect L2")
def an_append_is_acknowledged_and_lost(patch: pytest.MonkeyPatch) -> None:
    """Every ninth append says that it is durable, and is not."""
    real = memory.MemoryJournal._append
    count = [0]

    def append(self: Any, batch: Any) -> None:
        count[0] += 1
        if count[0] % 9:
            real(self, batch)

    patch.setattr(memory.MemoryJournal, "_append", append)


# --- recovery -----------------------------------------------------------------------------------


@planted("crash", breaks="L2 S3")
def recovery_forgets_an_operation(patch: pytest.MonkeyPatch) -> None:
    """The latest operation that is unfinished is left alone by every recovery."""

    async def short(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        rows = recorder.journal.operations(kwargs["run"], unfinished=True)
        own = kwargs.pop("but", tuple)
        left_out = [row.operation_id for row in rows[-1:]]
        return await recover_all(recorder, *args, but=lambda: [*own(), *left_out], **kwargs)

    patch.setattr(operations, "recover_all", short)


@planted("crash", breaks="S3")
def recovery_forgets_an_instance(patch: pytest.MonkeyPatch) -> None:
    """Who takes an operation over counts the first unconfirmed instance as open."""
    real = stepping._take_over

    def take_over(work: Any, event: Any) -> None:
        real(work, event)
        asked = [name for name, _ in work.operation.in_state("resume", "asked")]
        if asked and work.operation.cleaning:
            work.move_call("resume", asked[0], "answer", {})
            work.effects = [
                one for one in work.effects if getattr(one, "instance", None) != asked[0]
            ]

    patch.setattr(stepping, "_take_over", take_over)


# --- coordinator --------------------------------------------------------------------------------


@planted("beside", breaks="S7 defect")
def several_operations_at_once(patch: pytest.MonkeyPatch) -> None:
    """A coordinator opens another checkpoint beside its open one."""
    patch.setattr(operations.Operations, "require_none_open", lambda _self, _wanted: None)


@planted("raise", "disk-fail", "die", breaks="S2")
def the_manifest_is_not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is given up leaves its manifest where it is."""

    def nothing(_self: Any, _root: str) -> Callable[[], Mapping[str, Any]]:
        return lambda: {"removed": False}

    patch.setattr(calls.CheckpointCalls, "withdraw", nothing)
    patch.setattr(recovery._RecoveredCheckpoint, "withdraw", nothing)


@planted("disk-apart", breaks="S2")
def nobody_looks_for_records(patch: pytest.MonkeyPatch) -> None:
    """A manifest names what no host but its instance's can read."""
    patch.setattr(Look, "once", lambda _self: None)


@planted(breaks="defect")
def what_cannot_be_saved_is_no_restart(patch: pytest.MonkeyPatch) -> None:
    """The manifest leaves out what an instance could not save, as if its reply were on the wire."""
    patch.setattr(
        calls.CheckpointCalls,
        "_restarts",
        lambda self, instance: self.required_offer.restarts.get(instance, ()),
    )


@planted(breaks="S2 defect")
def one_server_alone_leaves_out_what_it_cannot_save(patch: pytest.MonkeyPatch) -> None:
    """An episode of which a record was skipped is exported all the same."""
    patch.setattr(Saving, "_leave_out", lambda _self, _episode, _error: None)


# --- participants -------------------------------------------------------------------------------


@planted("duplicate", "reorder", "delay", breaks="S4", first=25)
def a_stale_prepare_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """An instance forgets the ids that it was resumed with."""
    patch.setattr(ControlPlane, "_fenced", lambda _self, _checkpoint_id: ())


@planted(breaks="S1")
def it_says_parked_in_the_middle_of_a_turn(patch: pytest.MonkeyPatch) -> None:
    """Nothing blocks a prepare."""
    patch.setattr(EpisodeHost, "blockers_of", lambda _self, _server: ())


@planted(breaks="S1 defect")
def the_gate_stays_open(patch: pytest.MonkeyPatch) -> None:
    """Episodes begin turns although the control plane is closed."""
    real = EpisodeHost._settle

    def settle(self: Any) -> None:
        real(self)
        self._table.gate.set()

    patch.setattr(EpisodeHost, "_settle", settle)


@planted(breaks="S5")
def an_overtaken_attempt_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A restored attempt does not stop the one that it goes on from."""
    patch.setattr(Deployment, "_stop_overtaken", lambda _self, _following: None)


@planted("disk-slow", "cancel", "isolate", breaks="S4")
def a_stopped_write_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A write that was begun for a checkpoint publishes its records after the resume."""

    def stop(self: Any) -> None:
        self.current = None
        self._pulse.beat()

    patch.setattr(Workshop, "stop", stop)


@planted("partition", "isolate", breaks="S3", first=40)
def a_lease_never_runs_out(patch: pytest.MonkeyPatch) -> None:
    """An instance whose controller is silent waits for ever."""
    patch.setattr(ControlPlane, "expire", lambda _self, _now_ts: None)
    patch.setattr(Servers, "next_expiry_ts", lambda _self: None)


@planted("partition", "isolate", breaks="L1", first=40)
def a_timer_goes_off_again_and_again(patch: pytest.MonkeyPatch) -> None:
    """A lease that has run out is noticed, not ended, and its timer armed anew."""
    patch.setattr(ControlPlane, "expire", lambda _self, _now_ts: None)


def uses() -> Sequence[Any]:
    """Return the faults as parameters of a test."""
    return [pytest.param(one, id=str(one)) for one in PLANTED]


@contextlib.contextmanager
def in_place(one: Planted) -> Iterator[None]:
    """Plant a fault until the context exits."""
    with pytest.MonkeyPatch.context() as patch:
        one.plant(patch)
        yield
