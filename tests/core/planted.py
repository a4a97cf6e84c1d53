"""
Faults to be planted in the core and the control plane, to see that a net catches them.

Each takes a `MonkeyPatch` and makes one mistake that somebody might make; nothing else changes.
What transitions are taken while a fault is planted is forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from gymckpt.chart import ChartMachine, Facts, Fired
from gymckpt.core import asking, invariants, timing
from gymckpt.core import step as stepping
from gymckpt.core.effects import Effect, SendCall, StartTimer, WithdrawManifest
from gymckpt.core.events import Event, Moment, Replied, TakenOver
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import Settings
from gymckpt.core.step import Step
from gymckpt.errors import IllegalTransition
from gymckpt.journal.memory import MemoryJournal
from gymckpt.participant.control import ControlPlane
from gymckpt.runtime import driver as runtime_driver
from tests.core import driver as test_driver
from tests.core.steps import TAKEN

__all__ = ["OF_RESTORES", "PLANTS", "Plant", "planted"]

Plant = Callable[[pytest.MonkeyPatch], None]


def _stepping(patch: pytest.MonkeyPatch, change: Callable[[OperationState, Step], Step]) -> None:
    """Let every step be changed, in the runtime and in the worlds of tests."""
    real = stepping.step

    def faulty(operation: OperationState, event: Event) -> Step:
        return change(operation, real(operation, event))

    patch.setattr(runtime_driver, "step", faulty)
    patch.setattr(test_driver, "step", faulty)


def _without(taken: Step, unwanted: Callable[[Effect], bool]) -> Step:
    return attrs.evolve(taken, effects=tuple(one for one in taken.effects if not unwanted(one)))


def _entered(before: OperationState, taken: Step, state: str) -> bool:
    return before.state != state == taken.operation.state


def _firing(patch: pytest.MonkeyPatch, state: str, trigger: str, dest: str | None) -> None:
    """Let one edge of the checkpoint lead elsewhere, or nowhere."""
    real = ChartMachine.fire

    def faulty(self: ChartMachine, source: str, fired: str, facts: Facts | None = None) -> Any:
        outcome = real(self, source, fired) if facts is None else real(self, source, fired, facts)
        if (self.chart.name, source, fired) != ("checkpoint", state, trigger):
            return outcome
        if dest is None:
            raise IllegalTransition("checkpoint", 1, source, fired, ())
        return Fired(source=source, trigger=fired, dest=dest)

    patch.setattr(ChartMachine, "fire", faulty)


def _nothing(*_: object) -> None:
    """Do nothing, in place of what is to be left out."""


def edge_missing(patch: pytest.MonkeyPatch) -> None:
    """The edge is gone by which a lost lease gives a parked checkpoint up."""
    _firing(patch, "parked", "lose_lease", None)


def wrong_dest(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint whose body fails after the commit stands all the same."""
    _firing(patch, "committed", "discard", "resuming")


def resume_skipped(patch: pytest.MonkeyPatch) -> None:
    """Nobody is reopened where a parked checkpoint is given up."""

    def change(before: OperationState, taken: Step) -> Step:
        skips = before.state == "parked" and _entered(before, taken, "discarding")
        return _without(taken, lambda one: skips and isinstance(one, SendCall))

    _stepping(patch, change)


def retried_too_often(patch: pytest.MonkeyPatch) -> None:
    """Every call gets one try more than was set."""
    real = Settings.tries

    def faulty(self: Settings, call: str) -> float:
        return real(self, call) + 1

    patch.setattr(Settings, "tries", faulty)


def late_answer_counts(patch: pytest.MonkeyPatch) -> None:
    """An answer counts whenever it comes, to whatever call."""
    real = asking._trigger_of  # pyright: ignore[reportPrivateUsage]

    def faulty(operation: OperationState, reply: Replied, stands: Any) -> Any:
        if reply.outcome == "answered" and stands.state in ("asked", "failed", "unanswered"):
            newest = stands.state == "asked" and reply.ask == stands.ask
            return ("answer" if newest else "confirm"), None
        return real(operation, reply, stands)

    patch.setattr(asking, "_trigger_of", faulty)


def deadline_ignored(patch: pytest.MonkeyPatch) -> None:
    """A call is waited for, for ever."""
    patch.setitem(stepping._TIMERS, "budget", _nothing)  # pyright: ignore[reportPrivateUsage]


def failures_not_gathered(patch: pytest.MonkeyPatch) -> None:
    """A phase that has failed waits for all other replies, and not only for a moment."""
    patch.setitem(stepping._TIMERS, "settle", _nothing)  # pyright: ignore[reportPrivateUsage]


def epoch_not_raised(patch: pytest.MonkeyPatch) -> None:
    """Whoever takes an operation over does not fence the one before."""
    claim = MemoryJournal._claim  # pyright: ignore[reportPrivateUsage]

    def faulty(self: MemoryJournal, run: str, operation_id: str, *rest: Any) -> int:
        epoch = claim(self, run, operation_id, *rest) - 1
        held = self.store.operations[run, operation_id]
        self.store.operations[run, operation_id] = attrs.evolve(held, epoch=epoch)
        return epoch

    patch.setattr(MemoryJournal, "_claim", faulty)
    real = stepping.step

    def stale(operation: OperationState, event: Event) -> Step:
        if isinstance(event, TakenOver):
            event = attrs.evolve(event, epoch=event.epoch - 1)
        return real(operation, event)

    patch.setattr(test_driver, "step", stale)


def discard_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """What gives an operation up leaves no entry."""

    def change(before: OperationState, taken: Step) -> Step:
        gone = {"discard", "cancel"}
        kept = tuple(one for one in taken.entries if one.instance or one.trigger not in gone)
        return attrs.evolve(taken, entries=kept)

    _stepping(patch, change)


def manifest_left(patch: pytest.MonkeyPatch) -> None:
    """The manifest of a checkpoint that was given up is not withdrawn."""
    _stepping(
        patch, lambda _, taken: _without(taken, lambda one: isinstance(one, WithdrawManifest))
    )


def lease_never_lost(patch: pytest.MonkeyPatch) -> None:
    """The body and the commit go on, whatever becomes of the leases."""
    patch.setitem(timing.CONDITIONS, "lease_lost", lambda _operation, _now: False)


def retire_skipped(patch: pytest.MonkeyPatch) -> None:
    """The attempts of a restore that was given up are not retired."""

    def change(before: OperationState, taken: Step) -> Step:
        skips = _entered(before, taken, "retiring")
        return _without(taken, lambda one: skips and isinstance(one, SendCall))

    _stepping(patch, change)


def sweep_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is unconfirmed is never tried again."""

    def change(_: OperationState, taken: Step) -> Step:
        return _without(taken, lambda one: one == StartTimer("sweep", getattr(one, "delay_s", 0)))

    _stepping(patch, change)


def fence_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An instance does not remember the ids that it has resumed."""
    patch.setattr(ControlPlane, "_fenced", lambda _self, _checkpoint_id: ())


def lease_never_expires(patch: pytest.MonkeyPatch) -> None:
    """An instance whose controller is silent stays closed."""
    patch.setattr(ControlPlane, "expire", _nothing)


def _unchecked(patch: pytest.MonkeyPatch, check: str) -> None:
    """Let the core do without one of its own checks, so that others must find what is wrong."""
    patch.setattr(invariants, "CHECKS", [one for one in invariants.CHECKS if one[0] != check])


def kept_without_renewal(patch: pytest.MonkeyPatch) -> None:
    """A restore stands when its body has ended, whatever became of the instances meanwhile."""
    _unchecked(patch, "S5-kept-after-renewal")
    patch.setitem(timing.CONDITIONS, "all_answered", _answered_or_keeping)
    patch.setitem(timing.HOLDING, "all_answered", _answered_or_keeping)


def _answered_or_keeping(operation: OperationState, now: Moment) -> bool:
    return operation.state == "keeping" or timing.all_answered(operation, now)


def old_renewal_counts(patch: pytest.MonkeyPatch) -> None:
    """Whoever has answered a renewal of the body is not asked again when that has ended."""
    _unchecked(patch, "S5-kept-after-renewal")
    real = stepping.ask_all

    def faulty(work: Any, call: str) -> None:
        if work.operation.state != "keeping":
            real(work, call)
        else:
            left = [name for name, _ in work.operation.in_state(call, "failed", "unanswered")]
            asking.ask(work, call, left, "retry")

    patch.setattr(stepping, "ask_all", faulty)


def late_retire_while_closed(patch: pytest.MonkeyPatch) -> None:
    """What is unconfirmed is retired anew before its instance is open."""
    _unchecked(patch, "S5-retired-when-open")
    patch.setattr(asking, "_is_open", lambda _operation, _instance: True)


def late_retires_at_once(patch: pytest.MonkeyPatch) -> None:
    """An earlier retire that may still be on its way holds the next one back no longer."""
    patch.setattr(timing, "free_at_s", lambda _operation, _call, _instance: 0.0)


def superseded_is_retired(patch: pytest.MonkeyPatch) -> None:
    """Attempts that a later restore has taken over are stopped all the same."""
    real = OperationState.to_retire

    def faulty(self: OperationState, instance: str) -> Any:
        return real(attrs.evolve(self, superseded={}), instance)

    patch.setattr(OperationState, "to_retire", faulty)


def late_retires_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who has reopened is asked no more for what it has not retired."""
    patch.setattr(timing, "unconfirmed_also", lambda _operation: iter(()))


OF_RESTORES: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        kept_without_renewal,
        old_renewal_counts,
        late_retire_while_closed,
        late_retires_at_once,
        superseded_is_retired,
        late_retires_forgotten,
    )
}
"""Faults that show where a restore is kept, or could not be retired."""


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        edge_missing,
        wrong_dest,
        resume_skipped,
        retried_too_often,
        late_answer_counts,
        deadline_ignored,
        failures_not_gathered,
        epoch_not_raised,
        discard_not_recorded,
        manifest_left,
        lease_never_lost,
        retire_skipped,
        sweep_forgotten,
        fence_forgotten,
        lease_never_expires,
    )
}
"""Every other fault by its name."""


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """Plant a fault for a while."""
    before = frozenset(TAKEN)
    with pytest.MonkeyPatch.context() as patch:
        (PLANTS | OF_RESTORES)[fault](patch)
        try:
            yield
        finally:
            TAKEN.clear()
            TAKEN.update(before)
