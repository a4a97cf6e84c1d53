"""
The one function that decides what an event comes to: `step(operation, event) -> Step`.

It is pure. The entries of a step are made durable first, then the new state counts, then the
effects are performed, in that order and by the scheduler alone (DESIGN, S6). Whatever a step does
not mention does not happen.

Theory. The operation's chart moves by triggers. Some come from outside: verbs and file effects.
The others are fired here when a joint condition over the calls of the present state holds
(`when` in the chart), first match first, until none holds. The calls' machines move by replies
and timers. Waiting is bounded by timers whose names say what for: `budget.<call>`, `retry.<call>`,
`settle`, `renew`, `lease`, `sweep`, `also`, `budget.file`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from gymckpt.chart import Fired, Ignored, Refused
from gymckpt.core import timing
from gymckpt.core.asking import (
    ALSO,
    Work,
    abandon,
    ask,
    ask_all,
    ask_besides,
    begin_renewals,
    expire_due,
    retry,
    take_reply,
    watch_lease,
)
from gymckpt.core.effects import (
    CancelCall,
    Effect,
    StartTimer,
    StopTimer,
    Tell,
    WithdrawManifest,
    WriteManifest,
)
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.events import Event, Moment, Replied, TakenOver, TimerFired, Triggered
from gymckpt.core.operation import OPEN_TRIGGER, OperationState, machine_of, opened
from gymckpt.core.settings import RENEW, RESUME, Settings
from gymckpt.errors import IllegalTransition

__all__ = ["Step", "open_operation", "step"]

SAMPLE_MAX = 5
"""How many instances a cause names; all of them have entries of their own."""


@attrs.frozen(kw_only=True)
class Step:
    """What an event came to."""

    entries: tuple[Entry, ...]
    """To be appended first, in one transaction."""
    operation: OperationState
    """The state that counts once the entries are durable."""
    effects: tuple[Effect, ...]
    """To be performed last, in order."""
    refused: Ignored | Refused | IllegalTransition | None = None
    """Why the event itself moved nothing: the chart ignores it, a guard refuses it, or the chart
    does not allow it any more after what time had brought about, which the entries hold."""


def open_operation(
    *,
    moment: Moment,
    run: str,
    operation_id: str,
    chart: str,
    instances: Iterable[str],
    settings: Settings,
    facts: JsonFacts,
    epoch: int = 1,
) -> Step:
    """
    Begin an operation: name it, and send nothing.

    Args:
        moment: Now; `at_s` is 0.
        run: The training run.
        operation_id: Never used before in the run.
        chart: The chart that it runs.
        instances: The instances that it concerns, in the order in which they are asked.
        settings: What bounds it.
        facts: What recovery must know besides, such as `wire_id`, `call` or `inventory`.
        epoch: With which the run is held.

    Raises:
        TypeError: An instance's id is no text.
        ValueError: There are no instances, or one is named twice; the chart is none of an
            operation; the chart leaves its call open and `facts` names none.
    """
    declared = machine_of(chart).chart
    entry = Entry(
        run=run,
        operation_id=operation_id,
        seq=1,
        epoch=epoch,
        ts=moment.ts,
        at_s=moment.at_s,
        trigger=OPEN_TRIGGER,
        source="",
        dest=declared.initial,
        facts={
            **facts,
            "chart": declared.name,
            "chart_version": declared.version,
            "instances": list(instances),
            "settings": settings.to_facts(),
        },
    )
    return Step(entries=(entry,), operation=opened(entry), effects=())


def step(operation: OperationState, event: Event) -> Step:
    """
    Work out what an event comes to.

    Args:
        operation: The present state.
        event: What happened.

    Returns:
        The entries to append, the state after them and the effects to perform. An event that no
        longer matters, such as an old timer, gives a step without any.

    Raises:
        IllegalTransition: A verb came that the chart does not allow in this state; nothing
            happened.
        InvariantViolated: Going on would break a promise of the design.
    """
    work = Work(operation, event.moment)
    refused: Ignored | Refused | IllegalTransition | None = None
    if isinstance(event, Triggered | TimerFired):
        _run_conditions(work)  # what this instant has brought about by itself comes first
    if isinstance(event, Triggered):
        try:
            refused = _take(work, event.trigger, event.facts)
        except IllegalTransition as error:
            if not work.entries:
                raise
            refused = error  # a lease is lost all the same, whatever came just after its end
    elif isinstance(event, Replied):
        take_reply(work, event)
    elif isinstance(event, TakenOver):
        _take_over(work, event)
    else:
        _take_timer(work, event)
    _run_conditions(work)
    _maybe_release(work, operation, anew=isinstance(event, TakenOver))
    return Step(
        entries=tuple(work.entries),
        operation=work.operation,
        effects=tuple(work.effects),
        refused=refused,
    )


# --- the operation's chart ----------------------------------------------------------------------


def _take(work: Work, trigger: str, facts: JsonFacts) -> Ignored | Refused | None:
    """Fire a trigger of the operation's chart; only a taken one leaves a trace."""
    operation = work.operation
    try:
        outcome = machine_of(operation.chart).fire(operation.state, trigger)
    except IllegalTransition as error:
        raise IllegalTransition(
            error.chart,
            error.version,
            error.state,
            error.trigger,
            error.legal,
            operation.operation_id,
        ) from None
    if not isinstance(outcome, Fired):
        return outcome
    work.record(trigger, outcome.source, outcome.dest, facts)
    if outcome.dest != outcome.source:
        _leave(work, outcome.source)
        _enter(work, outcome.source)
    elif trigger == "withdraw":
        _begin_file_effect(work)
    return None


def _take_over(work: Work, event: TakenOver) -> None:
    """
    Go on in place of a controller that is gone, towards the end (DESIGN, 12).

    What it had under way is unknown, so it counts as unanswered and is asked again where that
    still matters. Nothing is promised to a caller any more: what is not yet safe is given up.
    """
    work.operation = attrs.evolve(work.operation, epoch=event.epoch)
    for call in sorted(work.operation.calls_of(work.operation.state)):
        abandon(work, call)
    for superseded in event.superseded:
        if "supersede" in work.operation.row.on:
            _take(work, "supersede", superseded)
    operation = work.operation
    if not operation.cleaning or (event.trigger != "settle" and event.trigger in operation.row.on):
        facts = {"reason": f"taken over by {event.owner}", "owner": event.owner}
        _take(work, event.trigger, {**facts, **event.facts})
    elif operation.phase_call is not None:
        call, phase = operation.phase_call, operation.phase
        left = [name for name, _ in operation.in_state(call, "failed", "unanswered")]
        ask(work, call, left, "retry", event.facts)
        # A log that was cut off within a step may lack the asks that the state begins with.
        ask(work, call, [name for name in operation.instances if not phase.get(name).ask], "ask")
        if operation.file in ("pending", "failed"):
            _take(work, "withdraw", {"owner": event.owner, **event.facts})
    if work.operation.also_call is not None:
        work.effects.append(StartTimer(ALSO, 0.0))


def _leave(work: Work, source: str) -> None:
    """Give up what the state that was left had under way and the new one has not."""
    operation = work.operation
    old, new = operation.declared.states[source], operation.row
    begun_anew = {operation.phase_call, operation.also_call}
    going_on = operation.calls_of(new.name).difference(begun_anew)
    for call in sorted(operation.calls_of(source) - going_on):
        abandon(work, call)
        work.effects += [StopTimer(f"budget.{call}"), StopTimer(f"retry.{call}")]
        if call == RESUME:
            _stop_waiting_to_reopen(work)
    work.effects.append(StopTimer("settle"))
    if old.effect:
        work.effects.append(StopTimer("budget.file"))
    if old.renews and not new.renews:
        work.effects += [StopTimer("renew"), StopTimer("lease")]
    if old.also:
        work.effects.append(StopTimer(ALSO))
    if new.final:
        work.effects.append(StopTimer("sweep"))


def _enter(work: Work, source: str) -> None:
    """Begin what the new state declares."""
    operation, row = work.operation, work.operation.row
    if operation.phase_call is not None:
        ask_all(work, operation.phase_call)
    elif operation.also_call is not None:
        work.effects.append(StartTimer(ALSO, 0.0))
    _begin_file_effect(work)
    if row.renews and not operation.declared.states[source].renews:
        work.effects.append(StartTimer("renew", operation.settings.renew_interval_s))
    work.effects.append(Tell(row.name, released=row.final))


def _begin_file_effect(work: Work) -> None:
    operation, row = work.operation, work.operation.row
    if operation.file != "pending":
        return
    withdraws = row.effect == "withdraw_manifest"
    work.effects.append(WithdrawManifest(str(operation.root)) if withdraws else WriteManifest())
    wait_s = timing.wait_s(operation)
    work.effects += [StopTimer("budget.file"), StartTimer("budget.file", wait_s)]


def _cause_facts(operation: OperationState, call: str) -> dict[str, Any]:
    """Return what the entry that gives an operation up keeps of a call's failures."""
    failed = [
        (instance, found)
        for instance, found in operation.in_state(
            call, "asked", "failed", "refused", "unanswered", "gone"
        )
        if not found.abandoned and (found.state != "asked" or found.failure)
    ]
    named = [
        {
            "instance": instance,
            "state": found.state,
            "failure": attrs.asdict(found.failure) if found.failure else None,
        }
        for instance, found in failed[:SAMPLE_MAX]
    ]
    total = len(operation.instances)
    return {"call": call, "failed": len(failed), "instances": total, "sample": named}


# --- timers -------------------------------------------------------------------------------------


def _take_timer(work: Work, event: TimerFired) -> None:
    kind, _, call = event.timer.partition(".")
    _TIMERS[event.timer if event.timer in _TIMERS else kind](work, call)


def _end_phase(work: Work, _call: str) -> None:
    """The other replies were waited for long enough: the phase ends without success."""
    operation, call = work.operation, work.operation.phase_call
    trigger = operation.row.when.get("cannot_succeed")
    if call is not None and trigger is not None and timing.is_doomed(operation, work.now):
        _take(work, trigger, _cause_facts(operation, call))


def _end_file_wait(work: Work, _call: str) -> None:
    """The file effect did not end within its budget; it may hang for ever."""
    if work.operation.file != "pending":
        return
    withdraws = work.operation.row.effect == "withdraw_manifest"
    text = f"the file system did not answer within {timing.wait_s(work.operation):g} s"
    failure = {"type": "TimeoutError", "text": text, "transient": False, "dead": False}
    _take(work, "withdraw_failed" if withdraws else "seal_failed", {"failure": failure})


def _sweep(work: Work, _call: str) -> None:
    """Try once more what is unconfirmed, or let it rest where the lease horizon has passed."""
    operation = work.operation
    if not operation.row.reopens or operation.phase.count("asked"):
        return
    left = [instance for instance, _ in operation.in_state(RESUME, "failed", "unanswered")]
    if operation.lease_horizon_at_s <= work.now.at_s:
        for instance in left:
            work.move_call(RESUME, instance, "lapse", {})
        if left and operation.also_call is not None:
            work.effects += [StopTimer(ALSO), StartTimer(ALSO, 0.0)]
    elif left:
        ask(work, RESUME, left, "retry")
    if operation.file == "failed":
        _take(work, "withdraw", {})


_TIMERS: Mapping[str, Callable[[Work, str], None]] = {
    "budget": expire_due,
    "budget.file": _end_file_wait,
    "retry": retry,
    "renew": begin_renewals,
    "lease": watch_lease,
    "settle": _end_phase,
    "sweep": _sweep,
    ALSO: ask_besides,
}


# --- joint conditions ---------------------------------------------------------------------------


def _run_conditions(work: Work) -> None:
    """
    Fire what the chart's joint conditions say, first match first, until none holds.

    It ends: in no chart do the edges that conditions take lead back to where they began.
    """
    while (found := _holding(work)) is not None:
        condition, trigger = found
        call = RENEW if condition == "lease_lost" else work.operation.phase_call
        given_up = _gives_up(condition)
        _take(work, trigger, _cause_facts(work.operation, str(call)) if given_up else {})


def _holding(work: Work) -> tuple[str, str] | None:
    """Return the first condition of the present state that holds, with its trigger."""
    operation = work.operation
    for condition, trigger in operation.row.when.items():
        if timing.CONDITIONS[condition](operation, work.now):
            return condition, trigger
    return None


def _gives_up(condition: str) -> bool:
    """Whether the journal should keep whose fault a joint condition is."""
    return condition not in ("all_answered", "all_settled")


def _stop_waiting_to_reopen(work: Work) -> None:
    """Give up asks to reopen that were left to be answered late, beyond their own budget."""
    for instance, _ in work.operation.in_state(RESUME, "unanswered"):
        work.effects.append(CancelCall(instance, RESUME))


def _maybe_release(work: Work, before: OperationState, *, anew: bool) -> None:
    """
    Let the caller go when its attempts at reopening are made, and go on in the background.

    Args:
        work: The step.
        before: The operation before it.
        anew: Whether another controller goes on, whose caller was let go by nobody yet.
    """
    operation = work.operation
    goes_on = operation.row.reopens or operation.also_call is not None
    if not goes_on or not timing.is_exhausted(operation, work.now):
        return
    known = before.state == operation.state and timing.is_exhausted(before, work.now)
    if known and not anew:
        return
    if operation.row.reopens:
        _stop_waiting_to_reopen(work)
        work.effects.append(StartTimer("sweep", operation.settings.sweep_interval_s))
    work.effects.append(Tell(operation.state, released=True))
