"""
What an explanation is made from: one history with its states, and the moment to explain it for.

All of it is worked out once; the parts of an explanation only look at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.timing import unconfirmed_also
from gymckpt.diagnosis.replay import Replay, replay
from gymckpt.diagnosis.stories import Story, stories_of
from gymckpt.diagnosis.upcoming import Upcoming, upcoming

__all__ = ["Case", "case_of"]

CLOSING_CALLS = ("prepare", "restore")
"""The calls after which an instance may be parked."""


@attrs.frozen(kw_only=True)
class Case:
    """One operation at one moment."""

    replayed: Replay
    operation: OperationState
    """The operation after the last entry that follows its chart."""
    stories: Mapping[tuple[str, str], Story]
    """(call, instance) to what became of the call's latest round."""
    upcoming: tuple[Upcoming, ...]
    besides: tuple[str, ...]
    """The instances that are still to confirm what the state sends besides its own call."""
    now_ts: float
    now_at_s: float
    """The moment by the operation's own clock, as far as that can be told."""
    owner: str
    """Who drives it, where the journal's row is known; else empty."""
    epoch: int
    """Which epoch drives it: the row's where that is known, else the last entry's."""
    silent_s: float | None
    """How old the last heartbeat of the run's holder is, where the journal keeps any."""
    undriven: str
    """Why nobody drives it, where that is certain."""
    history: tuple[Mapping[tuple[str, str], Story], ...]
    """The stories of earlier operations, the latest first."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries that follow the chart."""
        return self.replayed.entries

    @property
    def last(self) -> Entry:
        """The latest of them."""
        return self.replayed.entries[-1]

    @property
    def closed(self) -> bool:
        """Whether some instance may have been parked."""
        return any(call in self.operation.calls for call in CLOSING_CALLS)

    def ts_of(self, at_s: float) -> float:
        """Return the wall time of an instant of the operation's clock, by its latest entry."""
        return self.last.ts + (at_s - self.last.at_s)

    def in_s(self, at_s: float) -> float:
        """Return how far ahead an instant is; negative where it has passed."""
        return at_s - self.now_at_s


def case_of(
    entries: Sequence[Entry],
    *,
    now_ts: float | None,
    history: Sequence[Sequence[Entry]],
    owner: str,
    epoch: int | None,
    silent_s: float | None,
    undriven: str = "",
) -> Case | None:
    """
    Work a history out; None where it does not even have a legal first entry.

    Args:
        entries: The history.
        now_ts: The moment to explain it for; None for that of its last entry.
        history: Earlier operations, the latest first; of each all entries, or those of some
            instances.
        owner: Who drives it, where that is known.
        epoch: Which epoch drives it, where that is known.
        silent_s: How old the last heartbeat is, where the journal keeps any.
        undriven: Why nobody drives it, where that is certain.
    """
    replayed = replay(entries)
    operation = replayed.state
    if operation is None:
        return None
    last = replayed.entries[-1]
    moment_ts = last.ts if now_ts is None else now_ts
    return Case(
        replayed=replayed,
        operation=operation,
        stories=stories_of(replayed.entries),
        upcoming=upcoming(replayed.entries, replayed.states),
        besides=tuple(unconfirmed_also(operation)),
        now_ts=moment_ts,
        now_at_s=last.at_s + max(0.0, moment_ts - last.ts),
        owner=owner,
        epoch=max(last.epoch, epoch or 0),
        silent_s=silent_s,
        undriven=undriven,
        history=tuple(stories_of(one) for one in history),
    )
