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
from gymckpt.core.settings import RENEW, RESUME

__all__ = [
    "Work",
    "abandon",
    "ask",
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
        work.effects.append(SendCall(instance, call, asked, deadline_ts))
    grace_s = work.operation.settings.reply_grace_s
    work.effects.append(StartTimer(f"budget.{call}", remaining_s + grace_s))


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
    if call == RESUME and stands.ask > 1 and trigger != "stale":
        work.effects.append(CancelCall(instance, call))
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
    if call in operation.calls_of(operation.state):
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
