"""
Where the time of one operation went: its phases, the critical path, and who cost most.

The critical path names, for each state, what it waited for last: the instance whose answer came
last, the file system, or the controller's own body. What an instance cost in a phase is how much
sooner the phase would have ended, had it been as quick as the next slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import attrs

from gymckpt.chart import AT_OPENING, State
from gymckpt.diagnosis.lanes import ABANDONED, Lane, Span, StateSpan
from gymckpt.diagnosis.picture import Picture, parked_s

__all__ = ["Course", "Leg", "course_of"]

COSTLIEST_MAX = 5


@attrs.frozen(kw_only=True)
class Leg:
    """One state on the critical path."""

    state: str
    began_at_s: float
    ended_at_s: float
    """Until now where the operation is still in it."""
    waits_on: Literal["instance", "files", "body", "controller", "nothing"]
    """What the state waited for last."""
    instance: str | None
    """Which instance, where it was one."""
    outcome: str
    """What the wait for the instance came to; empty where there was none."""
    cost_s: float
    """How much sooner the state would have ended without it."""

    @property
    def seconds(self) -> float:
        """How long the operation was in the state."""
        return self.ended_at_s - self.began_at_s


@attrs.frozen(kw_only=True)
class Course:
    """Where the time went."""

    legs: tuple[Leg, ...]
    """The states in order, without the final one."""
    total_s: float
    parked_s: float
    """From the first call to park until reopening began; 0 where nothing was parked."""
    costliest: tuple[tuple[str, float], ...]
    """The instances that cost most, with the seconds, most first."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; `docs/cli.md` documents the shape."""
        return attrs.asdict(self)


def course_of(picture: Picture) -> Course:
    """
    Work out where the time of an operation went.

    Args:
        picture: The operation, as `picture_of` reads it.
    """
    legs = tuple(_legs(picture))
    costs: dict[str, float] = {}
    for leg in legs:
        if leg.instance is not None:
            costs[leg.instance] = costs.get(leg.instance, 0.0) + leg.cost_s
    costliest = sorted(costs.items(), key=lambda cost: -cost[1])[:COSTLIEST_MAX]
    return Course(
        legs=legs,
        total_s=picture.end_at_s,
        parked_s=parked_s(picture.chart, picture.states, picture.end_at_s) or 0.0,
        costliest=tuple((name, cost_s) for name, cost_s in costliest if cost_s > 0),
    )


def _legs(picture: Picture) -> Iterator[Leg]:
    chart = picture.chart
    for span in picture.states:
        row = chart.states.get(span.state) if chart is not None else None
        if row is None or row.final:
            continue
        ended_at_s = picture.end_at_s if span.left_at_s is None else span.left_at_s
        call = str(picture.first.facts.get("call")) if row.call == AT_OPENING else row.call
        waits = sorted(_waits(picture.lanes, call, span, ended_at_s)) if call else []
        last_s, instance, outcome = waits[-1] if waits else (0.0, None, "")
        before_s = waits[-2][0] if len(waits) > 1 else span.entered_at_s
        yield Leg(
            state=span.state,
            began_at_s=span.entered_at_s,
            ended_at_s=ended_at_s,
            waits_on="instance" if instance else _waits_on(row),
            instance=instance,
            outcome=outcome,
            cost_s=max(0.0, last_s - before_s) if instance else 0.0,
        )


def _waits(
    lanes: Sequence[Lane], call: str, state: StateSpan, ended_at_s: float
) -> Iterator[tuple[float, str, str]]:
    """Yield when the wait for each instance ended within a state, and what it came to."""
    for lane in lanes:
        spans = [
            span
            for span in lane.spans
            if span.call == call
            and span.outcome != ABANDONED
            and state.entered_at_s <= span.began_at_s <= ended_at_s
        ]
        if spans:
            last = max(spans, key=lambda span: _end_s(span, ended_at_s))
            yield min(_end_s(last, ended_at_s), ended_at_s), lane.instance, last.outcome


def _end_s(span: Span, now_at_s: float) -> float:
    return now_at_s if span.ended_at_s is None else span.ended_at_s


def _waits_on(row: State) -> Literal["files", "body", "controller", "nothing"]:
    if row.effect == "write_manifest":
        return "files"
    if row.call is not None:  # no instance was waited for to an end
        return "nothing"
    return "body" if row.renews else "controller"
