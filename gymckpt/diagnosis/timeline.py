"""
How long an operation spent where: in each state, and in each call to each instance.

Everything is measured by the operation's own monotonic clock, so steps of the wall clock change
nothing. A history that is cut off gives what it shows.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from gymckpt.core.entry import Entry

__all__ = ["AskSpan", "Timeline", "timeline_of"]

_ASKING = frozenset({"ask", "retry"})


@attrs.frozen(kw_only=True)
class AskSpan:
    """One ask of one call to one instance, from sending to whatever ended the wait."""

    instance: str
    call: str
    ask: int
    began_at_s: float
    ended_at_s: float | None
    """None while it is waited for."""
    outcome: str
    """The state that it led to: `answered`, `refused`, `failed`, `unanswered`, `gone`; `asked`
    while it is waited for."""

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it is waited for."""
        return None if self.ended_at_s is None else self.ended_at_s - self.began_at_s


@attrs.frozen(kw_only=True)
class Timeline:
    """Where the time of one operation went."""

    states: tuple[tuple[str, float, float | None], ...]
    """(state, entered, left) by the operation's clock, in order; left is None for the last."""
    asks: tuple[AskSpan, ...]
    """Every ask, in the order in which they were made."""

    def state_seconds(self, *states: str) -> float:
        """Return how long the operation was in `states`, as far as it has left them."""
        return sum(
            (left - entered)
            for state, entered, left in self.states
            if state in states and left is not None
        )

    def slowest(self, call: str) -> AskSpan | None:
        """Return the answered ask of `call` that took longest."""
        done = [span for span in self.asks if span.call == call and span.outcome == "answered"]
        return max(done, key=lambda span: span.seconds or 0.0, default=None)

    @property
    def retries(self) -> int:
        """How many asks were made again after a failure or silence; renewal rounds are none."""
        resent = [span for span in self.asks if span.call != "renew"]
        return len(resent) - len({(span.call, span.instance) for span in resent})


def timeline_of(entries: Iterable[Entry]) -> Timeline:
    """
    Return where the time of one operation went.

    Args:
        entries: Its history from the first entry, in order; may end anywhere.
    """
    states: list[tuple[str, float, float | None]] = []
    spans: dict[tuple[str, str, int], AskSpan] = {}
    latest: dict[tuple[str, str], int] = {}
    for entry in entries:
        if entry.instance is None:
            if entry.dest == entry.source:
                continue
            if states:
                state, entered, _ = states[-1]
                states[-1] = (state, entered, entry.at_s)
            states.append((entry.dest, entry.at_s, None))
            continue
        asked = (str(entry.call), entry.instance)
        key = (*asked, int(entry.ask or 0))
        if entry.trigger == "confirm":  # an answer to an earlier ask ends the wait for the latest
            key = (*asked, latest.get(asked, key[2]))
        if entry.trigger in _ASKING:
            latest[asked] = key[2]
            spans[key] = AskSpan(
                instance=entry.instance,
                call=str(entry.call),
                ask=key[2],
                began_at_s=entry.at_s,
                ended_at_s=None,
                outcome=entry.dest,
            )
        elif entry.dest != entry.source and key in spans and spans[key].ended_at_s is None:
            spans[key] = attrs.evolve(spans[key], ended_at_s=entry.at_s, outcome=entry.dest)
    return Timeline(states=tuple(states), asks=tuple(spans.values()))
