"""
One operation in a line, from its picture alone: where it stands, and what gave it up.

A picture can be made of a history that no chart allows; `explain` says more, but needs a legal one.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from gymckpt.chart import Chart
from gymckpt.diagnosis.facts import note_of
from gymckpt.diagnosis.lanes import WAITING, StateSpan
from gymckpt.diagnosis.page import seconds_text
from gymckpt.diagnosis.picture import Picture
from gymckpt.errors import sample, text_of

__all__ = ["cause_group", "cause_words", "happy_states", "headline", "tone_of"]

REASON_MAX = 400


@cache
def happy_states(chart: Chart) -> tuple[str, ...]:
    """
    Return the states of the way that a chart's file declares first: the one on which all is well.

    Args:
        chart: Any chart.
    """
    way = [chart.initial]
    while True:
        onward = (edge.to for edges in chart.states[way[-1]].on.values() for edge in edges)
        following = next((state for state in onward if state not in way), None)
        if following is None:
            return tuple(way)
        way.append(following)


def tone_of(chart: Chart | None, state: str, cause: StateSpan | None) -> str:
    """
    Return how an operation looks: `good`, `bad`, or `busy` where it has not ended and may end well.

    Args:
        chart: Its chart.
        state: Where it stands.
        cause: What gave it up.
    """
    if chart is None or state not in chart.states:
        return "busy"
    on_the_way = state in happy_states(chart)
    if not on_the_way:
        return "bad" if cause is not None or state in chart.final_states else "busy"
    return "good" if state in chart.final_states else "busy"


def headline(picture: Picture) -> str:
    """
    Return one line about an operation.

    Args:
        picture: What is known of it.
    """
    now = picture.states[-1] if picture.states else None
    if now is None:
        return "Nothing of this operation can be read."
    row = picture.chart.states.get(now.state) if picture.chart else None
    means = f": {row.means}" if row else ""
    if picture.cause is not None:
        verb = "Settled" if picture.cause.trigger == "settle" else "Given up"
        found = f"{verb} while {_before(picture, picture.cause)}: {cause_words(picture.cause)}"
        return found if picture.settled else f"{found}. Now {now.state}{means}"
    if picture.settled:
        return f"It ended in {now.state}{means}"
    since = seconds_text(picture.end_at_s - now.entered_at_s)
    waiting = [lane.instance for lane in picture.lanes if lane.waiting]
    calls = {
        span.call: None for lane in picture.lanes for span in lane.spans if span.outcome == WAITING
    }
    waits = (
        f"; {len(waiting)} of {len(picture.lanes)} have not answered {', '.join(calls)}: "
        f"{sample(waiting)}"
        if waiting
        else ""
    )
    return f"In {now.state} for {since}{means}{waits}"


def _before(picture: Picture, cause: StateSpan) -> str:
    place = picture.states.index(cause)
    return picture.states[place - 1].state if place else "opening"


def cause_words(cause: StateSpan) -> str:
    """
    Return in words what gave an operation up.

    Args:
        cause: The state that it led into, with what was recorded.
    """
    facts = cause.facts
    call = facts.get("call")
    if isinstance(call, str):
        named = [
            f"{item.get('instance')} {item.get('state')}{_with(note_of(item))}"
            for item in _sampled(cause)
        ]
        total = facts.get("instances")
        failed = facts.get("failed")
        count = failed if type(failed) is int else len(named)
        what = "a lease was lost" if cause.trigger == "lose_lease" else f"{call} could not succeed"
        return text_of(f"{what} on {count} of {total} instances: {sample(named, count)}")
    failure = note_of(facts)
    if failure:
        return f"{cause.trigger}: {failure}"
    reason = text_of(facts.get("reason", ""), REASON_MAX)
    return f"{cause.trigger}: {reason}" if reason else cause.trigger


def cause_group(cause: StateSpan) -> str:
    """
    Return the kind of a cause, under which others like it are counted.

    Args:
        cause: The state that it led into, with what was recorded.
    """
    facts = cause.facts
    call = facts.get("call")
    if isinstance(call, str):
        worst = next(iter(_sampled(cause)), dict[str, Any]())
        kind = _failure_type(worst.get("failure"))
        parts = [call, str(worst.get("state", "unknown")), kind]
        return text_of(" · ".join(part for part in parts if part), 120)
    kind = _failure_type(facts.get("failure"))
    reason = text_of(facts.get("reason", ""), REASON_MAX).partition(":")[0][:60]
    words = {"settle": "taken over or unrecordable", "seal_failed": "manifest"}
    detail = kind or ("" if cause.trigger == "settle" else reason)
    return text_of(
        " · ".join(p for p in (words.get(cause.trigger, cause.trigger), detail) if p), 120
    )


def _sampled(cause: StateSpan) -> list[dict[str, Any]]:
    found = cause.facts.get("sample")
    items = cast("list[object]", found) if isinstance(found, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _failure_type(failure: object) -> str:
    if not isinstance(failure, dict):
        return ""
    return text_of(cast("dict[str, Any]", failure).get("type", ""), 80)


def _with(note: str) -> str:
    return f" ({note})" if note else ""
