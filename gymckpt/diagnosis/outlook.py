"""What an operation waits for, what comes next by itself, and what an operator may do now."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from gymckpt.core.settings import RESUME, RETIRE, gone_after_s
from gymckpt.diagnosis.case import Case
from gymckpt.diagnosis.explanation import Controller, Move, NextStep
from gymckpt.diagnosis.upcoming import Upcoming
from gymckpt.diagnosis.words import count_of, duration

__all__ = ["moves_of", "next_of", "waits_for"]

NEXT_MAX = 4


# --- what it waits for --------------------------------------------------------------------------


def waits_for(case: Case, controller: Controller) -> str:
    """Say in a sentence what the operation waits for."""
    operation = case.operation
    if operation.settled:
        return "nothing: it has ended"
    if controller.status == "silent":
        return (
            "a controller: nobody drives it any more, so nothing of it goes on until one takes it "
            "over"
        )
    parts = list(_waited(case))
    return "; and ".join(parts) if parts else "the controller to go on"


def _waited(case: Case) -> Iterator[str]:
    operation = case.operation
    call, row, total = operation.phase_call, operation.row, len(operation.instances)
    if call is not None:
        done = operation.phase.count("answered", *(("gone", "lapsed") if row.reopens else ()))
        if done < total:
            what = _ANSWERS.get(operation.state) or f"answer {call}"
            outstanding = operation.phase.count("asked")
            tail = "" if outstanding or row.reopens else ", which they can no longer do"
            yield f"{total - done} of {count_of(total, 'instance')} to {what}{tail}"
    left = len(case.besides)
    if left:
        what = f"confirm {_besides(case)}"
        yield f"{left} of {count_of(total, 'instance')} to {what}"
    if operation.file in ("pending", "failed"):
        doing = "withdraw" if row.effect == "withdraw_manifest" else "take"
        yield f"the file system to {doing} the manifest in {operation.root}"
    if call is None and row.renews and row.effect is None:
        yield "the controller's own body, which runs while every instance is parked"
    if operation.state == operation.declared.initial:
        yield "the controller: it has named the operation and sent nothing"


_OPEN_AGAIN = "confirm that they are open again"
_ANSWERS = {
    "keeping": "answer one more renewal, which proves that they have lost nothing",
    "resuming": _OPEN_AGAIN,
    "discarding": _OPEN_AGAIN,
}
"""State to what its instances are to do, where that says more than the name of its call."""


def _besides(case: Case) -> str:
    """Say what an instance confirms by answering what the state sends besides its own call."""
    operation = case.operation
    if operation.chart == "restore" and operation.also_call == RETIRE:
        return "that the restored attempts are retired"
    return str(operation.also_call)


# --- what comes by itself -----------------------------------------------------------------------


def next_of(case: Case, controller: Controller) -> tuple[NextStep, ...]:
    """Return what happens by itself, the earliest first."""
    operation = case.operation
    if controller.status == "ended":
        return ()
    horizon = _horizon(case, driven=controller.status != "silent")
    if controller.status == "silent":
        return tuple(horizon)
    steps = [_step(case, one) for one in case.upcoming[:NEXT_MAX]]
    if operation.row.reopens:
        steps += horizon
    steps += _rest(case)
    if not steps:
        what = "nothing: it goes on when the controller does"
        steps = [NextStep(kind="none", what=what, at_ts=None, in_s=None, leads_to=None)]
    return tuple(steps)


def _horizon(case: Case, *, driven: bool) -> Iterator[NextStep]:
    """Say when every instance has reopened by itself, where some may be parked."""
    operation = case.operation
    left = [
        name
        for name in operation.instances
        if operation.call_state(RESUME, name).state not in ("answered", "gone", "lapsed")
    ]
    if not case.closed or not left:
        return
    at_s = operation.lease_horizon_at_s
    count = count_of(len(left), "instance")
    when = "ended by now" if case.in_s(at_s) < 0 else "ended then"
    what = f"the last lease of {count} that did not confirm has {when}, which reopens them"
    if not driven:
        what += "; the operation itself stays as it is until a controller takes it over"
    yield NextStep(
        kind="lease_horizon",
        what=what,
        at_ts=case.ts_of(at_s),
        in_s=case.in_s(at_s),
        leads_to=None,
    )


def _rest(case: Case) -> Iterator[NextStep]:
    """Say when what is sent besides is let rest, where some instance was asked."""
    operation = case.operation
    if not case.besides or not operation.lease_deadline_at_s:
        return
    count = count_of(len(case.besides), "instance")
    at_s = operation.lease_horizon_at_s
    what = f"the lease horizon: {count} will be asked no more, once asked to {operation.also_call}"
    yield NextStep(
        kind="lease_horizon",
        what=what,
        at_ts=case.ts_of(at_s),
        in_s=case.in_s(at_s),
        leads_to=None,
    )


def _step(case: Case, one: Upcoming) -> NextStep:
    what, leads_to = _STEPS[one.kind](case, one)
    return NextStep(
        kind=one.kind,
        what=what,
        at_ts=case.ts_of(one.at_s),
        in_s=case.in_s(one.at_s),
        leads_to=leads_to,
    )


def _target(case: Case, trigger: str | None) -> str | None:
    """Return where a trigger leads from the present state."""
    edges = case.operation.row.on.get(trigger or "", ())
    return edges[0].to if edges else None


def _expire(case: Case, one: Upcoming) -> tuple[str, str | None]:
    operation, count = case.operation, count_of(len(one.instances), "instance")
    what = f"{one.call} of {count} is no longer waited for and counts as unanswered"
    if one.call != operation.phase_call:
        every = duration(operation.settings.sweep_interval_s)
        tail = f"; it is tried every {every}" if one.call == operation.also_call else ""
        return f"{what}{tail}", None
    trigger = operation.row.when.get("cannot_succeed")
    everyone = len(one.instances) == operation.phase.count("asked")
    if trigger and everyone:
        return f"{what}; then the operation is given up", _target(case, trigger)
    attempts = operation.settings.retry(str(one.call)).attempts
    again = any(operation.call_state(str(one.call), name).ask < attempts for name in one.instances)
    if operation.row.reopens:
        when = duration(
            operation.settings.retry(RESUME).pause_s
            if again
            else operation.settings.sweep_interval_s
        )
        return f"{what}; it is tried again {when} later", None
    return what, None


def _retry(_case: Case, one: Upcoming) -> tuple[str, str | None]:
    return f"{one.call} is sent again to {count_of(len(one.instances), 'instance')}", None


def _end_phase(case: Case, one: Upcoming) -> tuple[str, str | None]:
    left = count_of(case.operation.phase.count("asked"), "answer")
    what = f"{one.call} can no longer succeed: {left} still out are not waited for any longer"
    return what, _target(case, case.operation.row.when.get("cannot_succeed"))


def _renew(case: Case, _one: Upcoming) -> tuple[str, str | None]:
    every = duration(case.operation.settings.renew_interval_s)
    return f"every lease is renewed, as it is every {every}", None


def _lose_lease(case: Case, one: Upcoming) -> tuple[str, str | None]:
    count = count_of(len(one.instances), "instance")
    what = f"unless its renewal is answered before, a lease of {count} in trouble counts as lost"
    return what, _target(case, case.operation.row.when.get("lease_lost"))


def _end_file_wait(case: Case, _one: Upcoming) -> tuple[str, str | None]:
    if case.operation.row.effect == "withdraw_manifest":
        return "the file system is no longer waited for; withdrawing is tried again later", None
    return "the file system is no longer waited for", _target(case, "seal_failed")


def _sweep(_case: Case, one: Upcoming) -> tuple[str, str | None]:
    if not one.instances:
        return "withdrawing the manifest is tried again", None
    return f"resume is sent again to {count_of(len(one.instances), 'instance')}", None


def _insist(case: Case, one: Upcoming) -> tuple[str, str | None]:
    operation, count = case.operation, count_of(len(one.instances), "instance")
    sent = any(operation.call_state(str(one.call), name).ask for name in one.instances)
    again = " again" if sent else ""
    return (
        f"{one.call} is sent{again} to {count}; while a checkpoint or restore of the run is open, "
        "nothing is sent"
    ), None


def _lapse(case: Case, one: Upcoming) -> tuple[str, str | None]:
    operation, count = case.operation, count_of(len(one.instances), "instance")
    left = set(case.besides)
    if one.call == operation.also_call:
        left -= set(one.instances)
        left |= {name for name, _ in operation.in_state(RESUME, "asked", "failed", "unanswered")}
    ends = not left and operation.file in ("none", "done")
    what = f"{count} that never confirmed are let rest: their leases have ended"
    return what, _target(case, "all_settled") if ends else None


_STEPS: dict[str, Callable[[Case, Upcoming], tuple[str, str | None]]] = {
    "expire": _expire,
    "retry": _retry,
    "end_phase": _end_phase,
    "renew": _renew,
    "lose_lease": _lose_lease,
    "end_file_wait": _end_file_wait,
    "sweep": _sweep,
    "insist": _insist,
    "lapse": _lapse,
}


# --- what an operator may do --------------------------------------------------------------------


def moves_of(case: Case, controller: Controller) -> tuple[Move, ...]:
    """Return what an operator may do now, and what each move does."""
    if controller.status == "ended":
        return ()
    held = "" if controller.status == "silent" else _HELD[controller.status]
    if controller.status == "unknown" and case.silent_s is not None:
        gone = duration(gone_after_s(case.owner))
        held = f"refused until its controller has been silent for {gone}, unless --force is added"
    return (
        _recover(case, held),
        _discard(case, held),
        _sweep_move(case, held),
        _mark_gone(case, held),
    )


_HELD = {
    "alive": "its controller is alive: stop that first, or add --force, which takes the run away "
    "from it and ends every verb of its trainer",
    "unknown": "refused if its controller shows a heartbeat, unless --force is added",
}


def _command(case: Case, move: str, *more: str) -> str:
    operation = case.operation
    words = [move, operation.operation_id, *more, "--run", operation.run]
    return f"gymckpt {shlex.join(words)} --reason WHY"


def _recover(case: Case, held: str) -> Move:
    operation = case.operation
    target = _target(case, "settle")
    if target is None:
        does = (
            "a new controller goes on reopening what is unconfirmed until the operation has ended"
        )
    elif operation.declared.states[target].final:
        sent = "nothing was sent" if operation.phase_call is None else "its calls may have run"
        does = f"a new controller ends it at once: {target}; {sent}"
    else:
        means = operation.declared.states[target].means
        does = f"a new controller brings it to {target}: {means}"
    command = f"gymckpt recover --run {shlex.quote(operation.run)}"
    return Move(name="recover", command=command, does=does, allowed=True, why_not=held)


def _discard(case: Case, held: str) -> Move:
    operation = case.operation
    target = _target(case, "discard")
    name, command = "discard", _command(case, "discard")
    if target is None:
        reason = operation.row.ignore.get("discard", "the chart does not allow it here")
        does = "would give the operation up"
        return Move(name=name, command=command, does=does, allowed=False, why_not=reason)
    undone = {
        "checkpoint": "nothing of this checkpoint will be restored, its manifest is withdrawn",
        "restore": "every restored attempt is stopped and its rollout starts over",
    }.get(operation.chart, "what was not confirmed stays unknown")
    reopens = "" if operation.declared.states[target].final else "; every instance is reopened"
    does = f"gives it up: {undone}{reopens}"
    return Move(name=name, command=command, does=does, allowed=True, why_not=held)


def _sweep_move(case: Case, held: str) -> Move:
    operation = case.operation
    left = operation.phase.count("asked", "failed", "unanswered") if operation.cleaning else 0
    what = "to reopen" if left or not case.besides else f"to {operation.also_call}"
    does = f"asks every instance that has not confirmed {what} once more, at once"
    command = _command(case, "sweep")
    if not operation.cleaning:
        why_not = "nothing is being reopened yet; discard it first"
        return Move(name="sweep", command=command, does=does, allowed=False, why_not=why_not)
    if not (left or case.besides) and operation.file not in ("pending", "failed"):
        why_not = "every instance has confirmed"
        return Move(name="sweep", command=command, does=does, allowed=False, why_not=why_not)
    return Move(name="sweep", command=command, does=does, allowed=True, why_not=held)


def _mark_gone(case: Case, held: str) -> Move:
    operation = case.operation
    call = operation.phase_call
    waited = ("asked", "failed", "unanswered")
    closed = [name for name, _ in operation.in_state(call, *waited)] if call else []
    left = closed or case.besides
    command = _command(case, "mark-gone", left[0] if left else "INSTANCE")
    then = "it is no longer waited for" if operation.cleaning else "the operation is given up"
    lives = "it stays parked until its lease ends"
    if left and not closed:
        lives = f"it was perhaps never asked to {operation.also_call}"
    does = (
        f"says that the instance's actor is dead for good: {then}; if it lives after all, {lives}"
    )
    if not left:
        why_not = "no instance is waited for"
        return Move(name="mark-gone", command=command, does=does, allowed=False, why_not=why_not)
    return Move(name="mark-gone", command=command, does=does, allowed=True, why_not=held)
