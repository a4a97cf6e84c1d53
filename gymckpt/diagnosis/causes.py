"""
Why an operation was given up: the first cause, not the last symptom.

The core keeps the first trigger that gave an operation up. What led to that trigger is looked for
here, among what happened before: the instance that failed first, the controller that went silent,
the file system.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from gymckpt.core.operation import Cause
from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.blocking import blocking_of
from gymckpt.diagnosis.case import Case
from gymckpt.diagnosis.explanation import Why
from gymckpt.diagnosis.facts import note_of
from gymckpt.diagnosis.stories import Story, stories_of
from gymckpt.diagnosis.upcoming import upcoming
from gymckpt.diagnosis.words import ORDINARY_END, count_of, duration
from gymckpt.wording import sample, text_of

__all__ = ["SILENT_AFTER_S", "culprits_of", "why"]

SILENT_AFTER_S = 15.0
"""How much later than it must come a controller's next sign may be: a slow journal is no death."""

REASON_MAX = 600


@attrs.frozen
class _Found:
    words: str
    story: Story | None = None
    instances: int = 0
    expected: bool = False


def why(case: Case) -> Why | None:
    """Return why the operation was given up; None where it was not."""
    cause = case.operation.cause
    if cause is None:
        return None
    look = _LOOKS.get(cause.trigger, _of_reason)
    found = look(case, cause)
    first = found.story
    first_at_s = None if first is None else first.failed_at_s or first.asked_at_s
    return Why(
        trigger=cause.trigger,
        in_state=cause.state,
        at_ts=case.entries[cause.seq - 1].ts,
        call=cause.call,
        first_instance=first.instance if first else None,
        first_at_ts=None if first_at_s is None else case.ts_of(first_at_s),
        instances=found.instances,
        culprits=blocking_of(case, culprits_of(case)),
        words=found.words,
        expected=found.expected,
    )


def culprits_of(case: Case) -> list[Story]:
    """Return the instances that brought an operation down, the first one first."""
    cause = case.operation.cause
    if cause is None or cause.trigger not in ("refuse", "lose_lease"):
        return []
    call = RENEW if cause.trigger == "lose_lease" else str(cause.call)
    return _troubled(case, cause, call)


# --- calls that could not succeed ---------------------------------------------------------------


def _of_call(case: Case, cause: Cause) -> _Found:
    """An instance did not do what it was asked to."""
    call = str(cause.call)
    troubled = _troubled(case, cause, call)
    if not troubled:
        return _Found(f"{call} could not succeed")
    first, total = troubled[0], len(case.operation.instances)
    words = f"{first.instance} {_did(first)}"
    others = troubled[1:]
    if others:
        named = sample([one.instance for one in others])
        words += f"; after it {count_of(len(others), 'other')} of {total} failed as well: {named}"
    if cause.state == "keeping":
        words = f"{_lost(first)} while the body ran, so the restore was not kept: {words}"
    return _Found(words, first, len(troubled))


def _lost(story: Story) -> str:
    """Say of an instance that a renewal after the body failed on what that tells, and no more."""
    told = story.failure is not None and not story.failure.get("transient")
    may = "has" if told and story.state == "failed" else "may have"
    return f"{story.instance} {may} lost its restored attempts"


def _of_lease(case: Case, cause: Cause) -> _Found:
    """A lease was lost: the instance may have reopened, so nothing of it is consistent."""
    troubled = _troubled(case, cause, RENEW)
    if not troubled:
        return _Found("a lease was lost")
    first = troubled[0]
    since = "" if first.failed_at_s is None else _before(case, cause, first.failed_at_s)
    more = f", and so are {len(troubled) - 1} more" if len(troubled) > 1 else ""
    follows = {"restore": "its restored attempts may have moved on"}.get(
        case.operation.chart, "what it saved may not be consistent"
    )
    words = (
        f"the lease of {first.instance} is lost{more}: {_did(first)}{since}; an instance whose "
        f"lease is lost may have reopened, so {follows}"
    )
    return _Found(words, first, len(troubled))


def _before(case: Case, cause: Cause, at_s: float) -> str:
    gave_up = case.entries[cause.seq - 1]
    return (
        f", {duration(gave_up.at_s - at_s)} before it was given up" if gave_up.at_s > at_s else ""
    )


def _troubled(case: Case, cause: Cause, call: str) -> list[Story]:
    """Return whose call went wrong before the operation was given up, the first one first."""
    stories = stories_of(entry for entry in case.entries[: cause.seq] if entry.call == call)
    bad = [
        story
        for story in stories.values()
        if story.state in ("refused", "failed", "unanswered", "gone", "asked")
        and not story.abandoned
        and story.failed_at_s is not None
    ]
    return sorted(bad, key=lambda story: (story.failed_at_s or 0.0, story.instance))


def _did(story: Story) -> str:
    """Say what an instance did instead of answering."""
    after = "" if story.took_s is None else f" after {duration(story.took_s)}"
    tries = f" ({story.asks} tries)" if story.asks > 1 else ""
    if story.state == "refused":
        return f"refused {story.call}{after}{tries}: {story.reason}"
    if story.state == "gone":
        return f"is dead, {story.call} said so{after}{tries}: {story.reason}"
    if story.state == "unanswered":
        return (
            f"did not answer {story.call}{after.replace('after', 'within')}{tries}: {story.reason}"
        )
    return f"failed {story.call}{after}{tries}: {story.reason}"


# --- what came from outside ---------------------------------------------------------------------


def _of_file(_case: Case, cause: Cause) -> _Found:
    """The manifest could not be made durable."""
    said = text_of(note_of(cause.facts) or "no reason was recorded", REASON_MAX)
    return _Found(f"every instance had written, but the manifest could not be made durable: {said}")


def _of_reason(case: Case, cause: Cause) -> _Found:
    """A caller, a body or an operator gave it up."""
    reason = text_of(cause.facts.get("reason", ""), REASON_MAX)
    operator = cause.facts.get("operator")
    if operator:
        return _Found(
            f"{text_of(operator, 100)} gave it up by hand: {reason}{_trouble_then(case, cause)}"
        )
    if reason == ORDINARY_END:
        words = "the controller's body ended without asking for a commit, so nothing was saved"
        return _Found(words, expected=True)
    what = {
        "cancel": "the controller's task was cancelled or interrupted",
        "discard": "the controller's body failed",
    }.get(cause.trigger, cause.trigger)
    told = f" ({reason})" if reason else ""
    return _Found(f"{what} while it was {cause.state!r}{told}{_trouble_then(case, cause)}")


def _of_settling(case: Case, cause: Cause) -> _Found:
    """Another controller took it over, or the journal failed under the one that drove it."""
    owner = cause.facts.get("owner")
    if owner is None:
        reason = text_of(cause.facts.get("reason", ""), REASON_MAX)
        return _Found(
            f"the controller could not go on recording it while it was {cause.state!r}: {reason}"
        )
    taking = case.entries[cause.seq - 1]
    before = [entry for entry in case.entries[: cause.seq - 1] if entry.epoch < taking.epoch]
    if not before:
        return _Found(f"{text_of(owner, 100)} took it over while it was {cause.state!r}")
    silent = duration(taking.at_s - before[-1].at_s)
    by = text_of(owner, 100)
    if cause.facts.get("operator"):
        reason = text_of(cause.facts.get("why", ""), REASON_MAX)
        by = f"{text_of(cause.facts['operator'], 100)} ({reason})"
    if _was_silent(case, len(before), taking.at_s):
        words = (
            f"its controller went silent while it was {cause.state!r}: its last entry is "
            f"{before[-1].seq}, and {silent} later {by} took it over"
        )
    else:
        words = (
            f"{by} took it over from a controller that had given a heartbeat {silent} before, "
            f"while it was {cause.state!r}"
        )
    return _Found(words + _trouble_then(case, cause))


def _was_silent(case: Case, count: int, at_s: float) -> bool:
    """Whether a controller's next sign was overdue at an instant, by its first `count` entries."""
    replayed = case.replayed
    due = upcoming(replayed.entries[:count], replayed.states[:count])
    if not due:
        return at_s - replayed.entries[count - 1].at_s > SILENT_AFTER_S
    return at_s > due[0].at_s + SILENT_AFTER_S


def _trouble_then(case: Case, cause: Cause) -> str:
    """Say what was outstanding when it was given up from outside, where something was."""
    before = case.replayed.states[cause.seq - 2] if cause.seq > 1 else None
    call = before.phase_call if before is not None else None
    if before is None or call is None:
        return ""
    done, total = before.phase.count("answered"), len(before.instances)
    if done == total:
        return ""
    open_ones = [
        name for name in before.instances if before.call_state(call, name).state != "answered"
    ]
    return f"; then {done} of {total} had answered {call}, not {sample(open_ones)}"


_LOOKS: dict[str, Callable[[Case, Cause], _Found]] = {
    "refuse": _of_call,
    "lose_lease": _of_lease,
    "seal_failed": _of_file,
    "settle": _of_settling,
}
"""Trigger to what looks for what led to it."""
