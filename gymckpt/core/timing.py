"""
What the clock and the tallies say about an operation: budgets, retries, leases, joint conditions.

Pure leaves of `step`: each looks at a state and a moment and answers one question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gymckpt.core.events import Moment
from gymckpt.core.operation import CallState, OperationState
from gymckpt.core.settings import RENEW, RESUME, RETIRE

__all__ = [
    "CONDITIONS",
    "HOLDING",
    "RESOLUTION_S",
    "budget_s",
    "earliest_lease_s",
    "ends_early",
    "free_at_s",
    "is_doomed",
    "is_exhausted",
    "is_lease_lost",
    "is_unconfirmed_also",
    "remaining_s",
    "retryable",
    "unconfirmed_also",
    "wait_s",
    "waiting_for_retry",
]

RESOLUTION_S = 1e-6
"""Instants closer than this are the same: timers fire a hair early on some clocks."""


def budget_s(operation: OperationState, call: str) -> float:
    """Return the seconds that one ask of `call` is given."""
    here = call in (operation.phase_call, operation.also_call)
    return operation.settings.budget_s(operation.row.budget if here else None)


def wait_s(operation: OperationState) -> float:
    """Return how long the present state's file effect is waited for."""
    return operation.settings.budget_s(operation.row.budget) + operation.settings.reply_grace_s


def remaining_s(operation: OperationState, call: str, now: Moment) -> float:
    """
    Return the seconds from now to the deadline of an ask that is made now.

    In a state that must succeed within its budget, a retry shares the deadline of the first ask;
    reopening, also of a lone id, retiring after a restore and renewing get a fresh budget each
    time.
    """
    budget = budget_s(operation, call)
    shares = call == operation.phase_call and call != RESUME
    if shares and "cannot_succeed" in operation.row.when:
        return max(0.0, operation.entered_at_s + budget - now.at_s)
    return budget


def may_retry(
    operation: OperationState, call: str, instance: str, found: CallState, now: Moment
) -> bool:
    """Whether a call that ended without an answer may be sent again by itself."""
    if not found.is_mendable(operation.settings.tries(call)) or _in_vain(operation, call, now):
        return False
    return call != RENEW or operation.acknowledged_at_s.get(instance, 0.0) > now.at_s


def retryable(operation: OperationState, call: str, now: Moment) -> Iterator[str]:
    """Yield the instances to which `call` may be sent again."""
    for instance, found in operation.in_state(call, "failed", "unanswered"):
        if may_retry(operation, call, instance, found, now):
            yield instance


def waiting_for_retry(operation: OperationState, call: str, now: Moment) -> bool:
    """Whether some instance will be asked again by itself, a renewal while its lease lasts."""
    return operation.calls_for(call).mendable > 0 and not _in_vain(operation, call, now)


def _in_vain(operation: OperationState, call: str, now: Moment) -> bool:
    """Whether another try cannot save the phase any more, be it for want of time."""
    return call == operation.phase_call and ends_early(operation, now)


def is_doomed(operation: OperationState, now: Moment) -> bool:
    """Whether the state's call can no longer succeed everywhere, whatever else is answered."""
    call, phase = operation.phase_call, operation.phase
    if call is None or phase.count("refused", "gone"):
        return call is not None
    unconfirmed = phase.count("failed", "unanswered")
    if not unconfirmed:
        return False
    if phase.mendable < unconfirmed or remaining_s(operation, call, now) <= RESOLUTION_S:
        return True
    return call == RENEW and is_lease_lost(operation, now)


def ends_early(operation: OperationState, now: Moment) -> bool:
    """Whether the state's call has failed, and other failures are only gathered (DESIGN, L3)."""
    # Reopening is owed to every instance, whatever came of the others.
    may_end = "cannot_succeed" in operation.row.when and operation.phase_call != RESUME
    return may_end and is_doomed(operation, now)


def earliest_lease_s(operation: OperationState) -> float | None:
    """
    Return when the first lease that is in trouble must be presumed lost.

    By the operation's own clock; 0 for one that is known to be lost, None where none is in
    trouble. A renewal is in trouble from its first failure until it is answered.
    """
    return min(operation.endangered, default=None)


def is_lease_lost(operation: OperationState, now: Moment) -> bool:
    """Whether a lease is known to be lost, or in trouble past its last acknowledgement."""
    earliest_s = earliest_lease_s(operation)
    return earliest_s is not None and earliest_s <= now.at_s + RESOLUTION_S


# --- joint conditions ---------------------------------------------------------------------------


def all_answered(operation: OperationState, _now: Moment) -> bool:
    """Every instance has answered the call of the present state."""
    return operation.phase.count("answered") == len(operation.instances)


def cannot_succeed(operation: OperationState, now: Moment) -> bool:
    """No reply is outstanding, and some instance has not answered and will not be asked again."""
    if operation.phase.count("asked") or not is_doomed(operation, now):
        return False
    # Reopening is owed to every instance, whatever came of the others.
    return operation.phase_call != RESUME or not waiting_for_retry(operation, RESUME, now)


def all_settled(operation: OperationState, _now: Moment) -> bool:
    """Every instance confirmed, is gone or past its lease, and no file effect is unconfirmed."""
    total = len(operation.instances)
    settled = operation.phase_call is None or operation.phase.count(*_SETTLED) == total
    return settled and operation.file in ("none", "done") and not any(unconfirmed_also(operation))


_SETTLED = ("answered", "gone", "lapsed")


def unconfirmed_also(operation: OperationState) -> Iterator[str]:
    """Yield the instances that are still to confirm what the state sends besides."""
    call = operation.also_call
    if call is None:
        return
    calls = operation.calls_for(call)
    if calls.count(*_SETTLED) == len(operation.instances):
        return
    yield from (name for name in operation.instances if is_unconfirmed_also(operation, call, name))


def is_unconfirmed_also(operation: OperationState, call: str, instance: str) -> bool:
    """Whether one instance is still to confirm a call that the state sends besides."""
    if operation.call_state(call, instance).state in _SETTLED:
        return False
    return call != RETIRE or bool(operation.to_retire(instance))


def free_at_s(operation: OperationState, call: str, instance: str) -> float:
    """
    Return when the latest ask of a call can no longer be on its way, by the operation's clock.

    Nobody knows what became of one that was given up: it may arrive until its deadline, and is
    refused after that.
    """
    found = operation.call_state(call, instance)
    if found.state not in ("asked", "unanswered"):
        return 0.0
    return found.deadline_at_s + operation.settings.reply_grace_s


def is_exhausted(operation: OperationState, now: Moment) -> bool:
    """Every attempt of the present state is made, whatever came of it."""
    call = operation.phase_call
    if call is None:
        return operation.also_call is not None and _is_tried(operation, operation.also_call)
    if operation.phase.count("asked") or operation.file == "pending":
        return False
    return not waiting_for_retry(operation, call, now)


def _is_tried(operation: OperationState, call: str) -> bool:
    """Whether a call that is tried again and again was sent to all, and each try has ended."""
    calls = operation.calls_for(call)
    if calls.count("asked"):
        return False
    return all(calls.get(name).ask for name in unconfirmed_also(operation))


def lease_lost(operation: OperationState, now: Moment) -> bool:
    """
    A lease is lost, and the state does not end anyway because its own call failed before.

    A dead instance fails both; the call's failures are reported together a moment later.
    """
    return is_lease_lost(operation, now) and not ends_early(operation, now)


CONDITIONS: Mapping[str, Callable[[OperationState, Moment], bool]] = {
    "all_answered": all_answered,
    "cannot_succeed": cannot_succeed,
    "all_settled": all_settled,
    "exhausted": is_exhausted,
    "lease_lost": lease_lost,
}
"""The conditions that a chart may name in `when`, as they fire by themselves."""

HOLDING: Mapping[str, Callable[[OperationState, Moment], bool]] = {
    **CONDITIONS,
    "cannot_succeed": is_doomed,
    "lease_lost": is_lease_lost,
}
"""The same, as they must hold when their trigger comes: a phase that cannot succeed may be ended
while replies are outstanding, since they are waited for only so long."""
