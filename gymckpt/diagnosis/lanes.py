"""
A lane per instance: every ask with what it came to, and the states of the operation above them.

`Reading` takes entries one after the other and believes none more than it must: a history that is
cut off, damaged or hostile gives the lanes of what it says. Whether it is legal is a question for
`core.replay`. Times are seconds by the operation's own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.operation import AT_OPENING
from gymckpt.core.settings import RENEW, RESUME
from gymckpt.diagnosis.facts import Facts, chart_of, note_of, number_of

__all__ = ["ABANDONED", "TROUBLE", "WAITING", "Lane", "Reading", "Span", "StateSpan", "Tick"]

WAITING = "asked"
ABANDONED = "abandoned"
"""An unanswered ask that was no longer waited for because the operation had moved on."""

TROUBLE = frozenset({"failed", "refused", "unanswered", "gone", "lapsed"})
"""What an ask must not come to if all is well."""

_ASKING = frozenset({"ask", "retry"})
_AFTERWARDS = frozenset({"stale", "confirm", "lapse", "die"})


@attrs.frozen(kw_only=True)
class Span:
    """One ask, or a run of renewals that were all answered."""

    call: str
    ask: int
    began_at_s: float
    ended_at_s: float | None
    """None while it is waited for."""
    outcome: str
    """A state of the call chart, or `ABANDONED`."""
    deadline_at_s: float
    note: str = ""
    """What came back, in words."""
    count: int = 1
    """How many asks it stands for."""


@attrs.frozen(kw_only=True)
class Tick:
    """Something that came of an ask after its wait had ended."""

    at_s: float
    kind: str
    """`stale`, `confirm`, `lapse` or `die`."""
    call: str
    ask: int
    note: str = ""


@attrs.frozen(kw_only=True)
class Lane:
    """Everything between the operation and one instance."""

    instance: str
    spans: tuple[Span, ...]
    ticks: tuple[Tick, ...]
    leased_until_s: float | None
    """The latest deadline that an answer acknowledged."""
    slow: tuple[str, ...] = ()
    """The calls on which it was slow."""

    @property
    def troubled(self) -> bool:
        """Whether some ask came to what it must not come to."""
        return any(span.outcome in TROUBLE for span in self.spans) or any(
            tick.kind in ("lapse", "die") for tick in self.ticks
        )

    @property
    def left(self) -> bool:
        """Whether the operation went on without the answer to some ask, renewals aside."""
        return any(span.outcome == ABANDONED and span.call != RENEW for span in self.spans)

    @property
    def waiting(self) -> bool:
        """Whether an ask is still waited for."""
        return any(span.outcome == WAITING for span in self.spans)


@attrs.frozen(kw_only=True)
class StateSpan:
    """One state that the operation was in."""

    state: str
    trigger: str
    """What led into it."""
    entered_at_s: float
    left_at_s: float | None
    facts: Facts
    seq: int


# --- reading ------------------------------------------------------------------------------------


class Reading:
    """The one pass over a history."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.first: Entry | None = None
        self.last: Entry | None = None
        self.states: list[StateSpan] = []
        self.takeovers: list[tuple[float, int]] = []
        """When another controller went on, and its epoch."""
        self.deadline_at_s: dict[str, float] = {}
        """Call to the latest deadline that it carried."""
        self.lease_deadline_at_s: float | None = None
        self._besides: dict[str, str] = {}
        """State to what it sends besides its own call, which extends no lease."""
        self._spans: dict[str, list[Span]] = {}
        self._latest: dict[tuple[str, str], int] = {}
        """Instance and call to the place of the latest ask among the instance's spans."""
        self._ticks: dict[str, list[Tick]] = {}
        self._leased: dict[str, float] = {}

    def take(self, entry: Entry) -> None:
        """Read one more entry."""
        if self.first is None:
            self.first = entry
            chart, named = chart_of(entry), str(entry.facts.get("call"))
            rows = chart.states.values() if chart is not None else ()
            self._besides = {
                row.name: named if row.also == AT_OPENING else row.also for row in rows if row.also
            }
        elif self.last is not None and entry.epoch > self.last.epoch:
            self.takeovers.append((entry.at_s, entry.epoch))
        self.last = entry
        if entry.instance is not None:
            self._take_call(entry, entry.instance, str(entry.call), int(entry.ask or 0))
        elif entry.dest != entry.source:
            self._take_state(entry)

    def _take_state(self, entry: Entry) -> None:
        if self.states:
            self.states[-1] = attrs.evolve(self.states[-1], left_at_s=entry.at_s)
        self.states.append(
            StateSpan(
                state=entry.dest,
                trigger=entry.trigger,
                entered_at_s=entry.at_s,
                left_at_s=None,
                facts=entry.facts,
                seq=entry.seq,
            )
        )

    def _take_call(self, entry: Entry, instance: str, call: str, ask: int) -> None:
        spans = self._spans.setdefault(instance, [])
        if entry.trigger in _ASKING:
            self._latest[instance, call] = len(spans)
            spans.append(self._asked(entry, call, ask))
            return
        place = self._latest.get((instance, call))
        ended = place is not None and self._maybe_end(spans, place, entry, ask)
        if entry.trigger in _AFTERWARDS and not (ended and entry.trigger == "die"):
            note = note_of(entry.facts)
            tick = Tick(at_s=entry.at_s, kind=entry.trigger, call=call, ask=ask, note=note)
            self._ticks.setdefault(instance, []).append(tick)
        if entry.trigger in ("answer", "confirm") and place is not None and self._leases(call):
            known_s = self._leased.get(instance, 0.0)
            self._leased[instance] = max(known_s, spans[place].deadline_at_s)

    def _asked(self, entry: Entry, call: str, ask: int) -> Span:
        deadline_at_s = _deadline_at_s(entry)
        self.deadline_at_s[call] = max(self.deadline_at_s.get(call, 0.0), deadline_at_s)
        if self._leases(call):
            self.lease_deadline_at_s = max(self.lease_deadline_at_s or 0.0, deadline_at_s)
        return Span(
            call=call,
            ask=ask,
            began_at_s=entry.at_s,
            ended_at_s=None,
            outcome=WAITING,
            deadline_at_s=deadline_at_s,
        )

    def _leases(self, call: str) -> bool:
        """Whether a call extends the lease of its instance."""
        besides = self.states and self._besides.get(self.states[-1].state) == call
        return call != RESUME and not (besides and self.lease_deadline_at_s is not None)

    def _maybe_end(self, spans: list[Span], place: int, entry: Entry, ask: int) -> bool:
        """End the wait for the latest ask, if the entry does that; a late answer may as well."""
        span = spans[place]
        is_about_it = span.ask == ask or entry.trigger == "confirm"
        if span.ended_at_s is not None or entry.dest == entry.source or not is_about_it:
            return False
        outcome = ABANDONED if entry.facts.get("abandoned") is True else entry.dest
        note = note_of(entry.facts)
        spans[place] = attrs.evolve(span, ended_at_s=entry.at_s, outcome=outcome, note=note)
        return True

    def lanes(self, instances: Sequence[str], *, merge: bool) -> tuple[Lane, ...]:
        """
        Return the lanes, in the operation's order, and then those that it never named.

        Args:
            instances: The instances that the opening names.
            merge: Whether renewals that follow each other and were answered are one.
        """
        order = dict.fromkeys([*instances, *self._spans, *self._ticks])
        return tuple(
            Lane(
                instance=instance,
                spans=tuple(_merged(found) if merge else found),
                ticks=tuple(self._ticks.get(instance, ())),
                leased_until_s=self._leased.get(instance),
            )
            for instance in order
            for found in [self._spans.get(instance, [])]
        )


def _deadline_at_s(entry: Entry) -> float:
    deadline_ts = number_of(entry.facts.get("deadline_ts"))
    return entry.at_s if deadline_ts is None else entry.at_s + (deadline_ts - entry.ts)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order; renewals that follow each other and were answered become one."""
    merged: list[Span] = []
    run: int | None = None
    for span in spans:
        if span.call == RENEW and span.outcome == "answered":
            if run is not None:
                merged[run] = attrs.evolve(
                    merged[run],
                    ended_at_s=span.ended_at_s,
                    deadline_at_s=span.deadline_at_s,
                    count=merged[run].count + 1,
                )
                continue
            run = len(merged)
        elif span.call == RENEW:
            run = None
        merged.append(span)
    return merged
