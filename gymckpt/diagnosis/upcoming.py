"""
What an operation will do by itself, and when: the timers that a history has left running.

The core starts timers as effects, which no journal keeps; but each follows from the states that
were lived and when. This module is the one place that works them out, for explanations and for
the simulations that begin in the middle of a history. A test holds it against the core: whatever
is said to come first is what the core then does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import attrs

from gymckpt.core import timing
from gymckpt.core.asking import ALSO
from gymckpt.core.entry import Entry
from gymckpt.core.events import Moment
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import RENEW, RESUME

__all__ = ["Upcoming", "running_timers", "upcoming"]

Kind = Literal[
    "expire",
    "retry",
    "end_phase",
    "renew",
    "lose_lease",
    "end_file_wait",
    "sweep",
    "insist",
    "lapse",
]

_TROUBLE = frozenset({"fail", "refuse", "die", "expire"})


@attrs.frozen(kw_only=True)
class Upcoming:
    """Something that the controller does by itself, unless something else happens before."""

    kind: Kind
    """`expire`: asks run out of their budget. `retry`: a call is sent again. `end_phase`: the
    others are no longer waited for. `renew`: a renewal round begins. `lose_lease`: a lease counts
    as lost. `end_file_wait`: the file system is no longer waited for. `sweep`: what is unconfirmed
    is tried again. `insist`: what the state sends besides its own call, such as a late retire, is
    sent. `lapse`: what is unconfirmed is let rest, since the lease horizon has passed."""
    at_s: float
    """When, by the operation's own clock."""
    timer: str
    """The core's timer that brings it."""
    call: str | None
    instances: tuple[str, ...]
    """The instances that it concerns; none where it concerns the operation as such."""

    @property
    def may_wait(self) -> bool:
        """Whether it is put off for as long as a checkpoint or restore of the run is open."""
        return self.timer == ALSO


def upcoming(entries: Sequence[Entry], states: Sequence[OperationState]) -> tuple[Upcoming, ...]:
    """
    Return what comes by itself after a history, the earliest first.

    Args:
        entries: The history.
        states: The operation after each of its entries.
    """
    found = _ahead(entries, states)
    waiting = ("asked", "failed", "unanswered", "gone")
    renewing = states[-1].calls_for(RENEW).count(*waiting) if states else 0
    return tuple(one for one in found if one.kind != "renew" or not renewing)


def running_timers(entries: Sequence[Entry], states: Sequence[OperationState]) -> dict[str, float]:
    """
    Return the core's timers that run after a history: name to when, by the operation's clock.

    Args:
        entries: The history.
        states: The operation after each of its entries.
    """
    return {one.timer: one.at_s for one in reversed(_ahead(entries, states))}


def _ahead(entries: Sequence[Entry], states: Sequence[OperationState]) -> list[Upcoming]:
    """Return everything that a timer runs for, also a renewal round that would be passed over."""
    if not states or states[-1].settled:
        return []
    marks = _Marks()
    for entry, state in zip(entries, states, strict=True):
        marks.take(entry, state)
    operation = states[-1]
    found = [
        *_of_calls(operation, marks),
        *_of_phase(operation, marks),
        *_of_leases(operation, marks),
        *marks.besides.ahead(operation),
    ]
    return sorted(found, key=lambda one: (one.at_s, one.timer))


class _Marks:
    """The moments from which timers run, gathered entry by entry."""

    def __init__(self) -> None:
        self.renewals_s = 0.0
        """When the latest renewal round began, or when renewing did."""
        self.doomed_s: float | None = None
        """Since when the present state's call cannot succeed any more."""
        self.exhausted_s: float | None = None
        """Since when every attempt of the present state is made."""
        self.file_s = 0.0
        """When the present file effect began."""
        self.retry_s: dict[str, float] = {}
        """Call to when it is sent again where it failed."""
        self.besides = _Besides()
        self._state = ""
        self._renews = False

    def take(self, entry: Entry, state: OperationState) -> None:
        """Follow one entry."""
        self.besides.take(entry, state)
        if state.state != self._state:
            self._enter(entry, state)
        if entry.instance is None:
            if entry.trigger == "withdraw":
                self.file_s = entry.at_s
        else:
            self._take_call(entry, entry.instance, str(entry.call), state)
        exhausted = state.row.reopens and timing.is_exhausted(state, _moment(entry))
        if not exhausted:
            self.exhausted_s = None
        elif self.exhausted_s is None:
            self.exhausted_s = entry.at_s

    def _enter(self, entry: Entry, state: OperationState) -> None:
        row = state.row
        if row.renews and not self._renews:
            self.renewals_s = entry.at_s
        if not row.renews:
            self.retry_s.pop(RENEW, None)
        self.retry_s = {call: at_s for call, at_s in self.retry_s.items() if call == RENEW}
        self._state, self._renews = state.state, row.renews
        self.doomed_s = self.exhausted_s = None
        self.file_s = entry.at_s

    def _take_call(self, entry: Entry, instance: str, call: str, state: OperationState) -> None:
        if entry.trigger in ("ask", "retry"):
            if call == RENEW and entry.trigger == "ask":
                self.renewals_s = entry.at_s
            if self.retry_s.get(call, entry.at_s + 1) <= entry.at_s + timing.RESOLUTION_S:
                del self.retry_s[call]
            return
        renewing = call == RENEW and state.row.renews
        if entry.trigger not in _TROUBLE or not (renewing or call == state.phase_call):
            return
        found, now = state.call_state(call, instance), _moment(entry)
        if found.abandoned:
            return
        again = found.state in ("failed", "unanswered") and timing.may_retry(
            state, call, instance, found, now
        )
        if renewing or again:
            pause_s = state.settings.retry(call).pause_s
            left_s = pause_s if renewing else timing.remaining_s(state, call, now)
            self.retry_s.setdefault(call, entry.at_s + min(pause_s, left_s))
        if not (renewing or again or call == RESUME) and "cannot_succeed" in state.row.when:
            self.doomed_s = entry.at_s if self.doomed_s is None else self.doomed_s


class _Besides:
    """
    When what a state sends besides its own call is sent again, or let rest.

    The core's timer may fire and do nothing but start anew, which no entry tells: what it does so
    is worked out from the state, as the core works it out.
    """

    def __init__(self) -> None:
        self._timer_s: float | None = None
        """When the core's timer fires next."""
        self._budget_s: float | None = None
        """When the core next looks for asks that are out of their budget."""
        self._fired: Literal["asked", "rested", ""] = ""
        """What the timer did in the present instant, after which it starts anew."""
        self._expired = False
        """Whether asks ran out of their budget in the present instant."""
        self._before: OperationState | None = None

    def take(self, entry: Entry, state: OperationState) -> None:
        """Follow one entry."""
        before, self._before = self._before, state
        if before is not None and before.also_call is not None and entry.at_s > before.at_s:
            self._pass_time(before, entry.at_s)
        if before is None or state.state != before.state:
            at_once = state.also_call is not None and state.phase_call is None
            self._begin(entry.at_s if at_once else None)
        elif state.also_call is not None:
            if entry.epoch > before.epoch:  # another controller, with timers of its own
                self._begin(entry.at_s)
            if entry.instance is not None:
                self._take_call(entry, entry.instance, state.also_call, state)

    def _begin(self, timer_s: float | None) -> None:
        self._timer_s, self._budget_s, self._fired, self._expired = timer_s, None, "", False

    def _take_call(self, entry: Entry, instance: str, call: str, state: OperationState) -> None:
        trigger = entry.trigger
        if entry.call == call and trigger in ("ask", "retry", "lapse"):
            self._timer_s = None
            self._fired = self._fired or "rested" if trigger == "lapse" else "asked"
            self._expired = self._expired or self._budget_s is None
        elif entry.call == call and trigger in _TROUBLE and not entry.facts.get("abandoned"):
            self._maybe_start(entry.at_s, state)
            self._expired = self._expired or trigger == "expire"
        elif entry.call == RESUME and (
            trigger == "lapse"
            or (
                trigger in ("answer", "confirm")
                and timing.is_unconfirmed_also(state, call, instance)
            )
        ):
            self._timer_s, self._fired = entry.at_s, ""

    def _maybe_start(self, at_s: float, state: OperationState) -> None:
        if self._timer_s is None and not self._fired:
            self._timer_s = at_s + state.settings.sweep_interval_s

    def _end_instant(self, state: OperationState, call: str) -> None:
        """Start anew what the latest instant used up; only now is it known what it came to."""
        if self._fired:
            pause_s = _soonest_s(state, call, state.at_s)
            if pause_s is None and self._fired == "asked":
                pause_s = state.settings.sweep_interval_s
            self._timer_s = None if pause_s is None else state.at_s + pause_s
        if self._expired:
            self._budget_s = _budget_s(state, call)
        self._fired, self._expired = "", False

    def _pass_time(self, state: OperationState, until_s: float) -> None:
        """Let the timers fire that made no entry before an instant."""
        call, until_s = str(state.also_call), until_s - timing.RESOLUTION_S
        self._end_instant(state, call)
        while True:
            timer_s, budget_s = self._timer_s, self._budget_s
            first_s = math.inf if timer_s is None else timer_s
            if budget_s is not None and budget_s < until_s and budget_s <= first_s:
                later_s = _budget_s(state, call)
                if later_s is not None and later_s <= budget_s + timing.RESOLUTION_S:
                    return  # it is late, and will make an entry
                self._budget_s = later_s
                self._maybe_start(budget_s, state)
            elif timer_s is None or timer_s >= until_s or any(_due(state, call, timer_s)):
                return
            else:
                pause_s = _soonest_s(state, call, timer_s)
                self._timer_s = None if pause_s is None else timer_s + pause_s

    def ahead(self, operation: OperationState) -> Iterator[Upcoming]:
        """Yield what the timer will bring."""
        call = operation.also_call
        if call is None:
            return
        self._pass_time(operation, math.inf)
        if self._timer_s is None:
            return
        kinds: dict[Kind, list[str]] = {}
        for kind, instance in _due(operation, call, self._timer_s):
            kinds.setdefault(kind, []).append(instance)
        for kind, instances in kinds.items():
            yield Upcoming(
                kind=kind, at_s=self._timer_s, timer=ALSO, call=call, instances=tuple(instances)
            )


def _budget_s(operation: OperationState, call: str) -> float | None:
    """Return when the first ask that is out runs out of its budget."""
    ends = (found.deadline_at_s for _, found in operation.in_state(call, "asked"))
    return min((end_s + operation.settings.reply_grace_s for end_s in ends), default=None)


def _waiting(operation: OperationState, call: str) -> Iterator[str]:
    """Yield the open instances that are to be asked what the state sends besides."""
    for name in timing.unconfirmed_also(operation):
        reopened = operation.call_state(RESUME, name).state in ("answered", "lapsed")
        is_open = reopened or operation.phase_call != RESUME
        if is_open and operation.call_state(call, name).state != "asked":
            yield name


def _due(operation: OperationState, call: str, at_s: float) -> Iterator[tuple[Kind, str]]:
    """Yield whom the timer would ask at an instant, and whom it would let rest."""
    begun_s = operation.entered_at_s + timing.budget_s(operation, call)
    for name in _waiting(operation, call):
        if timing.free_at_s(operation, call, name) > at_s + timing.RESOLUTION_S:
            continue
        deadline_s = operation.call_state(call, name).deadline_at_s
        asked_here = deadline_s > begun_s + timing.RESOLUTION_S
        yield "lapse" if asked_here and operation.lease_horizon_at_s <= at_s else "insist", name


def _soonest_s(operation: OperationState, call: str, at_s: float) -> float | None:
    """Return how long until the first ask that may still be on its way no longer can be."""
    free = (timing.free_at_s(operation, call, name) for name in _waiting(operation, call))
    left = [free_s - at_s for free_s in free if free_s > at_s + timing.RESOLUTION_S]
    return min(left, default=None)


def _moment(entry: Entry) -> Moment:
    return Moment(entry.ts, entry.at_s)


def _of_calls(operation: OperationState, marks: _Marks) -> Iterator[Upcoming]:
    """Yield when outstanding asks run out, and when failed ones are sent again."""
    grace_s = operation.settings.reply_grace_s
    active = (operation.phase_call, operation.also_call, RENEW if operation.row.renews else None)
    for call in dict.fromkeys(call for call in active if call is not None):
        asked = list(operation.in_state(call, "asked"))
        if asked:
            ends_s = min(found.deadline_at_s for _, found in asked) + grace_s
            due = tuple(
                instance
                for instance, found in asked
                if found.deadline_at_s + grace_s <= ends_s + timing.RESOLUTION_S
            )
            yield Upcoming(
                kind="expire", at_s=ends_s, timer=f"budget.{call}", call=call, instances=due
            )
        if call in marks.retry_s:
            at_s = max(marks.retry_s[call], operation.at_s)
            due = tuple(timing.retryable(operation, call, Moment(0.0, at_s)))
            if due:
                yield Upcoming(
                    kind="retry", at_s=at_s, timer=f"retry.{call}", call=call, instances=due
                )


def _of_phase(operation: OperationState, marks: _Marks) -> Iterator[Upcoming]:
    """Yield when the present state stops waiting, for replies or for the file system."""
    call = operation.phase_call
    if marks.doomed_s is not None and operation.phase.count("asked"):
        yield Upcoming(
            kind="end_phase",
            at_s=marks.doomed_s + operation.settings.settle_s,
            timer="settle",
            call=call,
            instances=(),
        )
    if operation.file == "pending":
        yield Upcoming(
            kind="end_file_wait",
            at_s=marks.file_s + timing.wait_s(operation),
            timer="budget.file",
            call=None,
            instances=(),
        )
    left = tuple(name for name, _ in operation.in_state(RESUME, "failed", "unanswered"))
    if marks.exhausted_s is not None and (left or operation.file == "failed"):
        at_s = marks.exhausted_s + operation.settings.sweep_interval_s
        lapses = operation.lease_horizon_at_s <= at_s and left
        yield Upcoming(
            kind="lapse" if lapses else "sweep",
            at_s=at_s,
            timer="sweep",
            call=RESUME,
            instances=left,
        )


def _of_leases(operation: OperationState, marks: _Marks) -> Iterator[Upcoming]:
    """Yield the next renewal round, or when the first lease in trouble counts as lost."""
    if not operation.row.renews:
        return
    earliest_s = timing.earliest_lease_s(operation)
    if earliest_s is not None:
        lost = tuple(
            name
            for name, found in operation.in_state(RENEW, "asked", "failed", "unanswered", "gone")
            if found.failure is not None
        )
        yield Upcoming(
            kind="lose_lease",
            at_s=max(earliest_s, operation.at_s),
            timer="lease",
            call=RENEW,
            instances=lost,
        )
    interval_s = operation.settings.renew_interval_s
    rounds = max(1, int((operation.at_s - marks.renewals_s) / interval_s + 1 - 1e-9))
    yield Upcoming(
        kind="renew",
        at_s=marks.renewals_s + rounds * interval_s,
        timer="renew",
        call=RENEW,
        instances=operation.instances,
    )
