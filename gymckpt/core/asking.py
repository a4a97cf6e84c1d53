"""
The calls of one operation, while a step is being worked out: asking, replies, expiry, retries.

Everything here moves calls' machines and notes effects on a `Work`; the operation's own chart is
moved by `gymckpt.core.step` alone, by the joint conditions that follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from gymckpt.chart import Fired
from gymckpt.core import timing
from gymckpt.core.effects import CancelCall, Effect, SendCall, StartTimer, StopTimer
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.events import FailureRecord, Moment, Replied
from gymckpt.core.invariants import require_invariants
from gymckpt.core.operation import (
    CALL_CHART,
    CallState,
    OperationState,
    apply,
    machine_of,
)
from gymckpt.core.settings import RENEW, RESUME, RETIRE

__all__ = [
    "ALSO",
    "Work",
    "abandon",
    "ask",
    "ask_all",
    "ask_besides",
    "begin_renewals",
    "expire_due",
    "retry",
    "take_reply",
    "watch_lease",
]


class Work:
    """A step while it is being worked out."""

    def __init__(self, operation: OperationState, moment: Moment) -> None:
        self.operation = operation
        self.now = Moment(moment.ts, max(moment.at_s, operation.at_s))
        self.entries: list[Entry] = []
        self.effects: list[Effect] = []

    def record(self, trigger: str, source: str, dest: str, facts: JsonFacts, **about: Any) -> None:
        """Make one entry, apply it and hold it against the invariants."""
        before = self.operation
        entry = Entry(
            run=before.run,
            operation_id=before.operation_id,
            seq=before.seq + 1,
            epoch=before.epoch,
            ts=self.now.ts,
            at_s=self.now.at_s,
            trigger=trigger,
            source=source,
            dest=dest,
            facts=facts,
            **about,
        )
        after = apply(before, entry)
        require_invariants(before, entry, after)
        self.entries.append(entry)
        self.operation = after

    def move_call(
        self, call: str, instance: str, trigger: str, facts: JsonFacts, *, ask: int | None = None
    ) -> None:
        """Fire a trigger of one call's machine."""
        before = self.operation.call_state(call, instance)
        outcome = machine_of(CALL_CHART).fire(before.state, trigger)
        dest = outcome.dest if isinstance(outcome, Fired) else before.state
        number = before.ask if ask is None else ask
        self.record(trigger, before.state, dest, facts, instance=instance, call=call, ask=number)


def ask(
    work: Work, call: str, instances: Iterable[str], trigger: str, first: JsonFacts | None = None
) -> None:
    """Send one ask of a call to each of `instances`, under one deadline; the first notes why."""
    instances = tuple(instances)
    if not instances:
        return
    remaining_s = timing.remaining_s(work.operation, call, work.now)
    deadline_ts = work.now.ts + remaining_s
    for instance in instances:
        asked = work.operation.call_state(call, instance).ask + 1
        facts = {**(first or {}), "deadline_ts": deadline_ts}
        first = None
        work.move_call(call, instance, trigger, facts, ask=asked)
        operation = work.operation
        besides = call == operation.also_call
        fewer = call == RETIRE and (besides or instance in operation.superseded)
        left = operation.to_retire(instance) if fewer else None
        work.effects.append(SendCall(instance, call, asked, deadline_ts, left, besides))
    grace_s = work.operation.settings.reply_grace_s
    work.effects.append(StartTimer(f"budget.{call}", remaining_s + grace_s))


def ask_all(work: Work, call: str) -> None:
    """Ask every instance that can still answer, whatever earlier asks of the call came to."""
    found = {name: work.operation.call_state(call, name).state for name in work.operation.instances}
    ask(work, call, (name for name in found if found[name] in ("idle", "answered")), "ask")
    ask(work, call, (name for name in found if found[name] in ("failed", "unanswered")), "retry")


def ask_besides(work: Work, _call: str = "") -> None:
    """
    Send what the state sends besides to whoever has not confirmed it, or let it rest (DESIGN, 5).

    An instance is asked once it is open again, and not before its ask before has been answered or
    can no longer be on its way. Past the lease horizon it rests, once it was asked in this state.
    An ask that is out is left alone: its answer or its expiry starts the timer anew.
    """
    operation = work.operation
    call = operation.also_call
    if call is None:
        return
    waiting_s: list[float] = []
    due: list[str] = []
    for instance in tuple(timing.unconfirmed_also(operation)):
        found = operation.call_state(call, instance)
        left_s = timing.free_at_s(operation, call, instance) - work.now.at_s
        if found.state == "asked" or not _is_open(operation, instance):
            continue  # the timer starts anew when the ask has ended, or the resume is confirmed
        if left_s > timing.RESOLUTION_S:
            waiting_s.append(left_s)
        elif operation.lease_horizon_at_s <= work.now.at_s and _was_asked_here(operation, found):
            work.move_call(call, instance, "lapse", {})
        else:
            due.append(instance)
    asked = operation.calls_for(call).by_instance
    ask(work, call, [name for name in due if name not in asked], "ask")
    ask(work, call, [name for name in due if name in asked], "retry")
    if waiting_s or due:
        pause_s = min(waiting_s, default=operation.settings.sweep_interval_s)
        work.effects.append(StartTimer(ALSO, pause_s))


ALSO = "also"
"""The timer of what a state sends besides."""


def _is_open(operation: OperationState, instance: str) -> bool:
    """Whether an instance has confirmed its resume, if the state sends one, or must have lapsed."""
    reopening = operation.phase_call == RESUME
    return not reopening or operation.call_state(RESUME, instance).state in ("answered", "lapsed")


def _was_asked_here(operation: OperationState, found: CallState) -> bool:
    """Whether the latest ask of what is sent besides was made in the present state."""
    budget_s = timing.budget_s(operation, str(operation.also_call))
    return found.deadline_at_s > operation.entered_at_s + budget_s + timing.RESOLUTION_S


def _after_reopening(work: Work, instance: str, facts: JsonFacts) -> None:
    """An instance has reopened or is dead: go on with what is sent besides, or leave it out."""
    call = work.operation.also_call
    if call is None or not timing.is_unconfirmed_also(work.operation, call, instance):
        return
    if work.operation.call_state(RESUME, instance).state == "gone":
        work.move_call(call, instance, "die", {"failure": facts["failure"]})
    else:
        work.effects += [StopTimer(ALSO), StartTimer(ALSO, 0.0)]


def take_reply(work: Work, reply: Replied) -> None:
    """Move one call by what came back for one of its asks."""
    call, instance = reply.call, reply.instance
    stands = work.operation.call_state(call, instance)
    trigger, failure = _trigger_of(work.operation, reply, stands)
    if trigger == "stale":
        facts: dict[str, Any] = {"outcome": reply.outcome}
    else:
        facts = dict(reply.facts) | ({"failure": attrs.asdict(failure)} if failure else {})
    work.move_call(call, instance, trigger, facts, ask=reply.ask)
    if call == RESUME and trigger != "stale":
        if stands.ask > 1:
            work.effects.append(CancelCall(instance, call))
        if trigger in ("answer", "confirm", "die"):
            _after_reopening(work, instance, facts)
    if trigger in ("fail", "refuse", "die"):
        _take_trouble(work, call)


_NOT_READY = FailureRecord(
    type="NotReady", text="the instance answered: not ready", transient=False, dead=False
)


def _trigger_of(
    operation: OperationState, reply: Replied, stands: CallState
) -> tuple[str, FailureRecord | None]:
    """
    Return the trigger of the call's machine that a reply is, and the failure to record with it.

    Death is final, whichever ask tells of it. A resume cannot be undone, so that an answer to an
    earlier ask of it proves the work done. Only a phase that may fail can be refused: elsewhere,
    as where a lease is to be renewed or an instance to be reopened, not ready is a failure.
    """
    failure = reply.failure
    waiting = stands.state in ("asked", "failed", "unanswered")
    if waiting and failure is not None and failure.dead:
        return "die", failure
    if stands.state == "asked" and reply.ask == stands.ask:
        if reply.outcome == "answered":
            return "answer", None
        if reply.outcome == "failed":
            return "fail", failure
        fails = reply.call == operation.phase_call and "cannot_succeed" in operation.row.when
        return ("refuse", None) if fails else ("fail", _NOT_READY)
    if waiting and reply.call == RESUME and reply.outcome == "answered":
        return "confirm", None
    return "stale", None


def watch_lease(work: Work, _call: str = RENEW) -> None:
    """A renewal is in trouble: try again soon, and look when its lease must be presumed lost."""
    earliest_s = timing.earliest_lease_s(work.operation)
    if earliest_s is None or not work.operation.row.renews:
        return
    pause_s = work.operation.settings.retry(RENEW).pause_s
    left_s = earliest_s - work.now.at_s
    work.effects.append(StopTimer("lease"))
    if left_s > timing.RESOLUTION_S:
        work.effects.append(StartTimer("lease", left_s))
    work.effects.append(StartTimer(f"retry.{RENEW}", pause_s))


def _take_trouble(work: Work, call: str) -> None:
    """See to what follows from a call that ended without an answer."""
    operation = work.operation
    if call == RENEW and operation.row.renews:
        watch_lease(work)
        return
    if call == operation.also_call:
        work.effects.append(StartTimer(ALSO, operation.settings.sweep_interval_s))
    if call != operation.phase_call:
        return
    if timing.waiting_for_retry(operation, call, work.now):
        pause_s = operation.settings.retry(call).pause_s
        left_s = timing.remaining_s(operation, call, work.now)
        work.effects.append(StartTimer(f"retry.{call}", min(pause_s, left_s)))
    _watch_phase(work)


def _watch_phase(work: Work) -> None:
    """Wait for other replies only a little longer where they cannot save the phase (L3)."""
    if timing.ends_early(work.operation, work.now):
        work.effects.append(StartTimer("settle", work.operation.settings.settle_s))


def abandon(work: Work, call: str) -> None:
    """Stop waiting for every outstanding ask of a call: its outcome stays unknown."""
    for instance, _ in list(work.operation.in_state(call, "asked")):
        work.move_call(call, instance, "expire", {"abandoned": True})
        work.effects.append(CancelCall(instance, call))


def expire_due(work: Work, call: str) -> None:
    """The budget of some asks is over."""
    operation = work.operation
    grace_s = operation.settings.reply_grace_s
    waiting_s: list[float] = []
    for instance, asked in list(operation.in_state(call, "asked")):
        left_s = asked.deadline_at_s + grace_s - work.now.at_s
        if left_s > timing.RESOLUTION_S:
            waiting_s.append(left_s)
            continue
        waited_s = round(work.now.at_s - asked.deadline_at_s + timing.budget_s(operation, call), 3)
        failure = {
            "type": "TimeoutError",
            "text": f"no answer to {call} within {waited_s:g} s",
            "transient": True,
            "dead": False,
        }
        work.move_call(call, instance, "expire", {"failure": failure})
        if call != RESUME:
            work.effects.append(CancelCall(instance, call))
    if waiting_s:
        work.effects.append(StartTimer(f"budget.{call}", min(waiting_s)))
    _take_trouble(work, call)


def retry(work: Work, call: str) -> None:
    """Send a call again wherever it failed and may be sent again, if the state still sends it."""
    operation = work.operation
    if call in operation.calls_of(operation.state) and call != operation.also_call:
        ask(work, call, timing.retryable(operation, call, work.now), "retry")
        _watch_phase(work)


def begin_renewals(work: Work, _call: str = RENEW) -> None:
    """Begin a renewal round, unless the one before is still under way or in trouble."""
    operation = work.operation
    if not operation.row.renews:
        return
    if not operation.calls_for(RENEW).count("asked", "failed", "unanswered", "gone"):
        ask(work, RENEW, operation.instances, "ask")
    work.effects.append(StartTimer("renew", operation.settings.renew_interval_s))
