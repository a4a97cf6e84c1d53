"""What to do about an operation: one sentence for whoever is asked at night."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.case import Case
from gymckpt.diagnosis.explanation import Controller, NextStep, Why
from gymckpt.diagnosis.stories import Story
from gymckpt.diagnosis.words import duration
from gymckpt.failures import GymCheckpointUnavailable
from gymckpt.wording import sample

__all__ = ["advice_for"]

LATE_MIN_S = 1.0
"""How late what comes by itself must be for somebody to look after it."""

NEW_ID = "ids are used once, so the next try takes a new one"


def advice_for(
    case: Case,
    *,
    controller: Controller,
    cause: Why | None,
    culprits: Sequence[Story],
    blocking: Sequence[Story],
    ahead: Sequence[NextStep],
) -> str:
    """
    Say what to do.

    Args:
        case: The operation.
        controller: Who drives it.
        cause: Why it was given up, where it was.
        culprits: The instances that brought it down, the first one first.
        blocking: The instances that are in the way now, the worst first.
        ahead: What comes by itself.
    """
    if not case.operation.settled:
        return _now(case, controller, blocking, ahead)
    if cause is None or cause.expected:
        return "nothing: it has ended as it should"
    look = _AFTER.get(cause.trigger)
    return look(case, culprits) if look is not None else f"see to the cause; {NEW_ID}"


# --- while it goes on ---------------------------------------------------------------------------


def _now(
    case: Case, controller: Controller, blocking: Sequence[Story], ahead: Sequence[NextStep]
) -> str:
    operation = case.operation
    if controller.status == "silent":
        return (
            "start a controller of this run again, which recovers it at its start; or recover it "
            "by hand with the instances' handles (gymckpt recover --actor INSTANCE=NAME)"
        )
    when = _when(case, controller, ahead)
    if blocking:
        return f"{when}; {_about(case, blocking)}"
    if operation.file in ("pending", "failed"):
        return f"{when}; look at the file system of {operation.root}"
    if operation.row.renews and operation.phase_call is None:
        return "look into the controller: it is its own body that everything waits for"
    return when


def _when(case: Case, controller: Controller, ahead: Sequence[NextStep]) -> str:
    """Say when it goes on by itself, or that it was to and has not."""
    if case.upcoming and case.upcoming[0].may_wait and case.in_s(case.upcoming[0].at_s) < 0:
        return "wait: it goes on by itself once no checkpoint or restore of the run is open"
    due = next((step for step in ahead if step.in_s is not None), None)
    if due is None or due.in_s is None or (due.kind == "lease_horizon" and due.in_s < 0):
        return "wait"
    leads_to = f" to {due.leads_to}" if due.leads_to else ""
    if due.in_s >= 0:
        return f"wait: in {duration(due.in_s)} it goes on by itself{leads_to}"
    if due.in_s > -LATE_MIN_S:
        return f"wait: any moment now it goes on by itself{leads_to}"
    late = f"it was to go on by itself{leads_to} {duration(-due.in_s)} ago"
    if controller.status == "alive":
        return f"look into the controller's log: {late}"
    return f"see whether its controller still runs: {late}"


def _about(case: Case, blocking: Sequence[Story]) -> str:
    """Say what to do about the instances in the way."""
    dead = [story.instance for story in blocking if story.state == "gone"]
    if dead:
        return f"replace {sample(dead)}, whose actors are dead"
    if case.operation.cleaning:
        return (
            "if an instance there is dead for good, mark it gone, and the operation can end "
            "without it"
        )
    named = sample([story.instance for story in blocking])
    return f"or discard it now, so that the others go on, and look into {named}"


# --- after the end ------------------------------------------------------------------------------


def _after_call(case: Case, culprits: Sequence[Story]) -> str:
    if not culprits:
        return NEW_ID
    first = culprits[0]
    if first.state == "gone":
        dead = [story.instance for story in culprits if story.state == "gone"]
        return (
            f"replace {sample(dead)}: an actor that is dead stays dead, and every operation that "
            "includes it fails at once"
        )
    cause = case.operation.cause
    if cause is not None and cause.state == "keeping":
        return (
            f"find out why {first.instance} did not hold its restored attempts to the end of the "
            f"body: was its actor restarted, does it hang?; {NEW_ID}"
        )
    if first.state == "refused":
        servers = [one.server for one in first.blockers] or ["a server"]
        return (
            f"look at what {sample(servers)} of {first.instance} is busy with, or give prepare "
            f"more than {duration(case.operation.settings.prepare_timeout_s)}; {NEW_ID}"
        )
    if first.state == "unanswered":
        unknown = ", and a new directory: what the call has written is unknown"
        tail = unknown if first.call == "commit" else ""
        return f"look into the log of {first.instance}: does it hang?; {NEW_ID}{tail}"
    failure = first.failure or {}
    again = "it may pass by itself" if failure.get("transient") else "it will not pass by itself"
    if failure.get("type") == GymCheckpointUnavailable.__name__:
        again = "it refused the call, or was not reached, and its own words say what has to change"
    return f"look into {first.instance}: {again}; {NEW_ID}"


def _after_lease(_case: Case, culprits: Sequence[Story]) -> str:
    if any(story.state == "gone" for story in culprits):
        return _after_call(_case, culprits)
    named = sample([story.instance for story in culprits]) or "the instances"
    return (
        f"find out why {named} did not answer a {RENEW} in time (network, load, a hang); {NEW_ID}"
    )


def _after_file(case: Case, _culprits: Sequence[Story]) -> str:
    return (
        f"repair the file system of {case.operation.root} (room, permissions, mount); {NEW_ID}, "
        "and a new directory"
    )


def _after_settling(case: Case, _culprits: Sequence[Story]) -> str:
    cause = case.operation.cause
    if cause is not None and cause.facts.get("owner") is None:
        return f"repair the journal first: without it no operation begins; {NEW_ID}"
    open_ones = [
        name
        for name in case.operation.instances
        if case.operation.call_state("resume", name).state in ("gone", "lapsed")
    ]
    rest = f", but look after {sample(open_ones)}" if open_ones else ""
    return f"nothing is left to do for it{rest}; find out why its controller went; {NEW_ID}"


def _after_discard(case: Case, _culprits: Sequence[Story]) -> str:
    cause = case.operation.cause
    if cause is not None and cause.facts.get("operator"):
        return f"nothing is left to do for it; {NEW_ID}"
    return f"see to the error of the controller's own body; {NEW_ID}"


def _after_cancel(_case: Case, _culprits: Sequence[Story]) -> str:
    return f"nothing is left to do for it; {NEW_ID}"


_AFTER: dict[str, Callable[[Case, Sequence[Story]], str]] = {
    "refuse": _after_call,
    "lose_lease": _after_lease,
    "seal_failed": _after_file,
    "settle": _after_settling,
    "discard": _after_discard,
    "cancel": _after_cancel,
}
"""Trigger that gave it up to what says what to do then."""
