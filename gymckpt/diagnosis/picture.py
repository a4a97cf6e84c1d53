"""What there is to draw of one operation: lanes, states, and the lines across them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import attrs

from gymckpt.chart import AT_OPENING, Chart
from gymckpt.core.entry import Entry
from gymckpt.core.operation import FAILING_TRIGGERS
from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.facts import chart_of, number_of, strings_of
from gymckpt.diagnosis.lanes import ABANDONED, Lane, Reading, Span, StateSpan
from gymckpt.errors import text_of

__all__ = ["SLOW_FACTOR", "Mark", "Picture", "parked_s", "picture_of"]

SLOW_FACTOR = 2.0
SLOW_SPREADS = 3.0
SLOW_SHARE = 0.01
"""An ask is slow if it took more than `SLOW_FACTOR` times the median of its call, and was beyond
the upper quartile by more than `SLOW_SPREADS` times the spread of the middle half, and the
difference is more than `SLOW_SHARE` of the whole operation."""

MarkKind = Literal["deadline", "lease", "cause", "takeover", "end"]


@attrs.frozen(kw_only=True)
class Mark:
    """A line across all lanes."""

    at_s: float
    kind: MarkKind
    label: str


@attrs.frozen(kw_only=True)
class Picture:
    """One operation, to be drawn."""

    first: Entry
    last: Entry
    chart: Chart | None
    """None where the history names no chart that this release ships."""
    states: tuple[StateSpan, ...]
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    medians_s: Mapping[str, float]
    """Call to how long its answers took."""
    end_at_s: float
    """Until when the lanes are drawn: the last entry, or now where that is known."""
    settled: bool
    cause: StateSpan | None
    """What gave the operation up, first."""

    @property
    def state(self) -> str:
        """Where the operation stands."""
        return self.states[-1].state if self.states else ""

    def slowest(self) -> tuple[Lane, Span] | None:
        """Return the longest wait of all but renewals, with its lane."""
        waits = (
            (lane, span)
            for lane in self.lanes
            for span in lane.spans
            if span.call != RENEW and span.outcome != ABANDONED
        )
        return max(waits, key=lambda found: self.seconds(found[1]), default=None)

    def seconds(self, span: Span) -> float:
        """Return how long an ask took, or has been waited for."""
        ended = self.end_at_s if span.ended_at_s is None else span.ended_at_s
        return max(0.0, ended - span.began_at_s)


def picture_of(
    entries: Iterable[Entry], *, now_ts: float | None = None, merge: bool = True
) -> Picture:
    """
    Return what there is to draw of one operation.

    Args:
        entries: Its history from the first entry, in order; may end anywhere.
        now_ts: The wall time until which an unfinished operation is drawn; None for the last entry.
        merge: Whether renewals that follow each other and were answered are one.

    Raises:
        ValueError: There is no entry.
    """
    reading = Reading()
    for entry in entries:
        reading.take(entry)
    first, last = reading.first, reading.last
    if first is None or last is None:
        raise ValueError("an operation without any entry cannot be drawn; its journal is empty")
    chart = chart_of(first)
    state = reading.states[-1].state if reading.states else ""
    settled = chart is not None and state in chart.final_states
    ahead_s = 0.0 if settled or now_ts is None else max(0.0, now_ts - last.ts)
    end_at_s = last.at_s + ahead_s
    named = strings_of(first.facts.get("instances"))
    lanes, medians = _judged(reading.lanes(named, merge=merge), end_at_s)
    return Picture(
        first=first,
        last=last,
        chart=chart,
        states=tuple(reading.states),
        lanes=lanes,
        marks=_joined(_marks(reading, lanes, chart, end_at_s, settled=settled)),
        medians_s=medians,
        end_at_s=end_at_s,
        settled=settled,
        cause=_cause(reading.states),
    )


def parked_s(chart: Chart | None, states: Sequence[StateSpan], end_at_s: float) -> float | None:
    """
    Return how long an operation kept its instances parked, or asked them to park.

    That is the time from its first call until reopening begins.

    Args:
        chart: Its chart.
        states: The states that it was in.
        end_at_s: Until when one counts that it has not left.

    Returns:
        The seconds; None for an operation that parks nothing.
    """
    if chart is None or not any(state.reopens for state in chart.states.values()):
        return None
    total_s = 0.0
    for span in states:
        row = chart.states.get(span.state)
        if row is None or row.final or row.reopens or row.name == chart.initial:
            continue
        left = end_at_s if span.left_at_s is None else span.left_at_s
        total_s += max(0.0, left - span.entered_at_s)
    return total_s


# --- judging ------------------------------------------------------------------------------------


def _judged(lanes: Sequence[Lane], end_at_s: float) -> tuple[tuple[Lane, ...], Mapping[str, float]]:
    """Return the lanes with what was slow in them, and the median of every call's answers."""
    answered: dict[str, list[float]] = {}
    for lane in lanes:
        for span in lane.spans:
            if span.call != RENEW and span.outcome == "answered" and span.ended_at_s is not None:
                answered.setdefault(span.call, []).append(span.ended_at_s - span.began_at_s)
    medians = {call: statistics.median(seconds) for call, seconds in answered.items()}
    bounds = {
        call: max(_far_out_s(answered[call]), median_s + SLOW_SHARE * end_at_s)
        for call, median_s in medians.items()
    }
    return tuple(attrs.evolve(lane, slow=_slow(lane, bounds, end_at_s)) for lane in lanes), medians


def _far_out_s(seconds: Sequence[float]) -> float:
    """Return beyond what an answer is not only slow by chance."""
    if len(seconds) < 2:
        return SLOW_FACTOR * seconds[0]
    lower_s, median_s, upper_s = statistics.quantiles(seconds, n=4, method="inclusive")
    return max(SLOW_FACTOR * median_s, upper_s + SLOW_SPREADS * (upper_s - lower_s))


def _slow(lane: Lane, bounds: Mapping[str, float], end_at_s: float) -> tuple[str, ...]:
    found = {
        span.call: None
        for span in lane.spans
        if span.outcome != ABANDONED
        and (end_at_s if span.ended_at_s is None else span.ended_at_s) - span.began_at_s
        > bounds.get(span.call, float("inf"))
    }
    return tuple(found)


def _joined(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Return marks by time; those of one moment are one, of the kind that came first."""
    joined: dict[float, Mark] = {}
    for mark in marks:
        known = joined.get(round(mark.at_s, 3))
        label = f"{known.label}, {mark.label}" if known else mark.label
        joined[round(mark.at_s, 3)] = attrs.evolve(known or mark, label=label)
    return tuple(joined[at_s] for at_s in sorted(joined))


def _cause(states: Sequence[StateSpan]) -> StateSpan | None:
    return next((span for span in states if span.trigger in FAILING_TRIGGERS), None)


def _marks(
    reading: Reading,
    lanes: Sequence[Lane],
    chart: Chart | None,
    end_at_s: float,
    *,
    settled: bool,
) -> Iterator[Mark]:
    """Yield the lines across, in no order: what has happened, and what is ahead."""
    cause = _cause(reading.states)
    if cause is not None:
        label = "settled" if cause.trigger == "settle" else f"given up: {cause.trigger}"
        yield Mark(at_s=cause.entered_at_s, kind="cause", label=label)
    for at_s, epoch in reading.takeovers:
        yield Mark(at_s=at_s, kind="takeover", label=f"taken over, epoch {epoch}")
    for span in reading.states:
        call = _call_in(chart, span, reading.first)
        deadline_at_s = reading.deadline_at_s.get(call, 0.0) if call else 0.0
        left_at_s = span.left_at_s
        if deadline_at_s > span.entered_at_s and (
            (left_at_s is None and not settled)
            or (left_at_s is not None and deadline_at_s <= left_at_s)
        ):
            yield Mark(at_s=deadline_at_s, kind="deadline", label=f"{call} deadline")
    if not settled:
        yield from _ahead(reading, lanes)
        last = reading.last
        if last is not None and end_at_s > last.at_s:
            yield Mark(at_s=last.at_s, kind="end", label="last entry")


def _ahead(reading: Reading, lanes: Sequence[Lane]) -> Iterator[Mark]:
    """Yield when leases end, if nothing happens any more."""
    leased = [lane.leased_until_s for lane in lanes if lane.leased_until_s is not None]
    if leased:
        yield Mark(at_s=min(leased), kind="lease", label="first lease ends")
    grace_s = _lease_grace_s(reading.first)
    if reading.lease_deadline_at_s is not None and grace_s is not None:
        ends_s = reading.lease_deadline_at_s + grace_s
        yield Mark(at_s=ends_s, kind="lease", label="every lease has ended")


def _lease_grace_s(first: Entry | None) -> float | None:
    settings = first.facts.get("settings") if first else None
    if not isinstance(settings, dict):
        return None
    return number_of(cast("dict[str, Any]", settings).get("lease_grace_s"))


def _call_in(chart: Chart | None, span: StateSpan, first: Entry | None) -> str | None:
    row = chart.states.get(span.state) if chart else None
    if row is None or row.call is None or first is None:
        return None
    return text_of(first.facts.get("call")) if row.call == AT_OPENING else row.call
