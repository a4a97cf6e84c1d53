"""What must hold of every step of the core by itself: S6, S7 and S9, whatever surrounds it."""

from __future__ import annotations

import attrs

from gymckpt.core.effects import SendCall
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import states_after
from gymckpt.core.step import Step
from gymckpt.testing.account import Broken

__all__ = ["hold_step"]


def hold_step(before: OperationState, taken: Step) -> None:
    """
    Hold S6, S7 and S9 against one step.

    Args:
        before: The operation before it.
        taken: What the core made of an event.

    Raises:
        Broken: One of them does not hold.
        ReplayDiverged: S6: an entry is not what its chart gives.
        InvariantViolated: A history that is cut off after one of the entries breaks a promise.
    """
    _hold_sends(taken)
    _hold_driver(before, taken)
    _hold_cause(before, taken.operation)
    _hold_replay(before, taken)


def _hold_sends(taken: Step) -> None:
    """Require S6 of what leaves: every ask has its entry in the same step, and the other way."""
    asked = [
        (entry.instance, entry.call, entry.ask)
        for entry in taken.entries
        if entry.trigger in ("ask", "retry")
    ]
    sent = [attrs.astuple(one)[:3] for one in taken.effects if isinstance(one, SendCall)]
    if asked != sent:
        raise Broken("S6", f"{len(sent)} asks leave, {len(asked)} are recorded")


def _hold_replay(before: OperationState, taken: Step) -> None:
    """
    Require S6 of the journal: the entries lead where the step leads, and no entry, nowhere.

    A claim has raised the epoch before the step, and needs no entry where nothing is to be moved.
    """
    replayed = before if taken.entries else attrs.evolve(before, epoch=taken.operation.epoch)
    for state in states_after(before, taken.entries):
        replayed = state
    if replayed != taken.operation:
        raise Broken("S6", f"{len(taken.entries)} entries do not lead to the state that was lived")


def _hold_driver(before: OperationState, taken: Step) -> None:
    """Require S7: every entry is of the epoch that drives, and its numbers have no gap."""
    epoch = taken.operation.epoch
    if epoch < before.epoch or any(entry.epoch != epoch for entry in taken.entries):
        raise Broken("S7", f"entries of another epoch than {epoch}, which drives")
    numbers = [entry.seq for entry in taken.entries]
    if numbers != list(range(before.seq + 1, before.seq + 1 + len(numbers))):
        raise Broken("S7", f"entries {numbers} follow entry {before.seq}")


def _hold_cause(before: OperationState, after: OperationState) -> None:
    """Require S9: what gave the operation up first stays its cause."""
    if before.cause is not None and after.cause != before.cause:
        raise Broken("S9", f"the first cause {before.cause.trigger} is replaced")
    if after.state in ("discarding", "retiring") and after.cause is None:
        raise Broken("S9", f"it is {after.state}, and nothing is its cause")
