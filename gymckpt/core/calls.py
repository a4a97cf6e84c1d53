"""
Where the calls of one operation stand, and how an entry moves one of them.

A tally beside the machines says how many are in which state, so that a joint condition over ten
thousand instances is a look-up and not a walk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
from rpds import HashTrieMap

from gymckpt.core.entry import Entry
from gymckpt.core.events import FailureRecord

__all__ = ["NO_CALLS", "CallState", "Calls", "moved_call"]


@attrs.frozen(kw_only=True)
class CallState:
    """Where one call to one instance stands."""

    state: str = "idle"
    ask: int = 0
    """The number of the latest ask; 0 where none was made."""
    deadline_ts: float = 0.0
    """The deadline that the latest ask carried, epoch seconds."""
    deadline_at_s: float = 0.0
    """The same instant by the operation's own clock."""
    failure: FailureRecord | None = None
    """What the latest ask that ended without an answer ended with; a retry keeps it until an
    answer comes."""
    abandoned: bool = False
    """Whether the wait was ended because the operation moved on, not by its own budget."""

    def is_mendable(self, tries: float) -> bool:
        """Whether it ended without an answer, and another of its `tries` may still get one."""
        if self.state not in ("failed", "unanswered") or self.abandoned or self.ask >= tries:
            return False
        return self.failure is None or self.failure.transient


IDLE = CallState()


@attrs.frozen
class Calls:
    """All instances' machines of one call, with tallies that make joint conditions cheap."""

    by_instance: HashTrieMap[str, CallState]
    tally: Mapping[str, int]
    """State of the call chart to how many instances are in it; the idle ones are not counted."""
    tries: float = math.inf
    """How often the call is sent to one instance at the most."""
    mendable: int = 0
    """How many instances may be asked again (`CallState.is_mendable`)."""

    def get(self, instance: str) -> CallState:
        """Return where the call to `instance` stands."""
        return self.by_instance.get(instance, IDLE)

    def count(self, *states: str) -> int:
        """Return how many instances are in one of `states`."""
        tally, count = self.tally, 0
        for state in states:
            count += tally.get(state, 0)
        return count

    def moved(self, instance: str, call: CallState) -> Calls:
        """Return these calls with one instance's replaced."""
        tally = dict(self.tally)
        before = self.get(instance)
        if before.ask:
            tally[before.state] -= 1
        tally[call.state] = tally.get(call.state, 0) + 1
        change = call.is_mendable(self.tries) - before.is_mendable(self.tries)
        by_instance = self.by_instance.insert(instance, call)
        return Calls(by_instance, tally, self.tries, self.mendable + change)


NO_CALLS = Calls(HashTrieMap(), {})


def moved_call(before: CallState, entry: Entry) -> CallState:
    """
    Return one call's state after an entry of it; the same object where the entry only records.

    Args:
        before: The state before it.
        entry: An entry of the call.

    Raises:
        KeyError: A fact that every entry of its kind has is missing.
        TypeError: A fact is of the wrong type.
        ValueError: A fact is out of range.
    """
    if entry.trigger in ("ask", "retry"):
        deadline_ts = _required_ts(entry.facts["deadline_ts"])
        return CallState(
            state=entry.dest,
            ask=int(entry.ask or 0),
            deadline_ts=deadline_ts,
            deadline_at_s=entry.at_s + (deadline_ts - entry.ts),
            failure=before.failure,  # of a retry: what is asked anew was idle or answered
        )
    if entry.trigger == "stale":
        return before
    abandoned = entry.trigger == "expire" and "abandoned" in entry.facts
    if abandoned or entry.trigger == "lapse":
        failure = before.failure
    elif entry.trigger in _FAILURES:
        failure = FailureRecord(**entry.facts["failure"])
    else:
        failure = None
    return CallState(
        state=entry.dest,
        ask=before.ask,
        deadline_ts=before.deadline_ts,
        deadline_at_s=before.deadline_at_s,
        failure=failure,
        abandoned=abandoned,
    )


_FAILURES = frozenset({"fail", "die", "expire"})
"""The triggers that tell with what an ask has ended instead of an answer."""


def _required_ts(value: object) -> float:
    """Return an instant in epoch seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"a deadline is an instant in epoch seconds, not {value!r:.100}")
    return float(value)
