"""
Run a history through today's charts and invariants, and keep the state after every entry.

Nothing here raises about a history, however wrong: what does not fit is the result. A history that
is cut off anywhere, even before its first entry, is read as far as it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import states_of
from gymckpt.errors import InvariantViolated, ReplayDiverged, text_of

__all__ = ["REPLAY_SCHEMA", "Divergence", "Replay", "described", "replay", "snapshot"]

REPLAY_SCHEMA = "gymckpt.replay/1"
"""What `Replay.to_json` calls its shape; a change that breaks readers raises the number."""

SIDE_MAX = 500
"""How many characters of one side of a divergence are kept."""


@attrs.frozen(kw_only=True)
class Divergence:
    """The first entry that does not fit, with both sides."""

    seq: int
    kind: Literal["chart", "invariant", "unreadable"]
    """`chart`: today's chart gives something else. `invariant`: it breaks a promise of the design.
    `unreadable`: it lacks what every entry of its kind has."""
    rule: str
    """The name of the chart or of the invariant."""
    expected: str
    """What the charts and the state before it give."""
    found: str
    """What the history has."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class Replay:
    """A history as far as it follows its charts."""

    entries: tuple[Entry, ...]
    """The entries that were taken, in order."""
    states: tuple[OperationState, ...]
    """The operation after each of them."""
    given: int
    """How many entries the history has; more than were taken where it diverges or was stopped."""
    divergence: Divergence | None
    """The first entry that does not fit; None where all that were looked at do."""

    @property
    def state(self) -> OperationState | None:
        """Where the history leads as far as it was taken; None before the first entry."""
        return self.states[-1] if self.states else None

    def after(self, seq: int) -> OperationState:
        """
        Return the operation after entry `seq`.

        Raises:
            IndexError: No such entry was taken.
        """
        if not 1 <= seq <= len(self.states):
            raise IndexError(
                f"entry {seq} was not taken; there are entries 1 to {len(self.states)}"
            )
        return self.states[seq - 1]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; `docs/cli.md` documents the shape."""
        last = self.state
        return {
            "schema": REPLAY_SCHEMA,
            "operation": last and {"run": last.run, "id": last.operation_id, "chart": last.chart},
            "entries": self.given,
            "taken": len(self.entries),
            "state": last and snapshot(last),
            "divergence": self.divergence and self.divergence.to_json(),
        }


def replay(entries: Iterable[Entry], *, to_seq: int | None = None) -> Replay:
    """
    Run a history through today's charts and invariants.

    Args:
        entries: One operation's entries from the first, in order; may end anywhere.
        to_seq: Stop after this entry; None for all.
    """
    history = tuple(entries)
    taken = history if to_seq is None else history[: max(0, to_seq)]
    states: list[OperationState] = []
    divergence: Divergence | None = None
    following = states_of(taken)
    while len(states) < len(taken):
        try:
            states.append(next(following))
        except Exception as error:  # a history that was written by anybody may hold anything
            divergence = _divergence(error, taken[len(states)], states[-1] if states else None)
            break
    return Replay(
        entries=taken[: len(states)],
        states=tuple(states),
        given=len(history),
        divergence=divergence,
    )


def described(entry: Entry) -> str:
    """Say in a few words what an entry records."""
    about = f"{entry.call} #{entry.ask} to {entry.instance}: " if entry.instance else ""
    if entry.source == entry.dest:
        return f"{about}{entry.trigger} in {entry.dest}"
    return f"{about}{entry.trigger}: {entry.source or 'nothing'} → {entry.dest}"


def snapshot(operation: OperationState) -> dict[str, Any]:
    """Return a state of an operation as plain JSON data, with every call's machines counted."""
    return {
        "seq": operation.seq,
        "epoch": operation.epoch,
        "at_s": operation.at_s,
        "state": operation.state,
        "entered_ts": operation.entered_ts,
        "settled": operation.settled,
        "calls": {
            call: {state: count for state, count in calls.tally.items() if count}
            for call, calls in operation.calls.items()
        },
        "manifest": operation.file,
    }


def _divergence(error: Exception, entry: Entry, before: OperationState | None) -> Divergence:
    """Put what is wrong with an entry into words, with both sides."""
    found = text_of(described(entry), SIDE_MAX)
    if isinstance(error, ReplayDiverged):
        chart = "call" if entry.instance else before.chart if before else "opening"
        expected = text_of(error.expected, SIDE_MAX)
        if error.found and error.expected.startswith("a transition"):
            expected = text_of(error.found, SIDE_MAX)
        elif error.__cause__ is not None:  # what it has is of no use, and this says why
            found = text_of(f"{found} ({error.found})", SIDE_MAX)
        return Divergence(seq=entry.seq, kind="chart", rule=chart, expected=expected, found=found)
    if isinstance(error, InvariantViolated):
        return Divergence(
            seq=entry.seq,
            kind="invariant",
            rule=error.invariant,
            expected=f"{error.invariant} to hold: {text_of(error.what, SIDE_MAX)}",
            found=found,
        )
    return Divergence(
        seq=entry.seq,
        kind="unreadable",
        rule=type(error).__name__,
        expected="an entry with the facts of its kind",
        found=f"{found} ({type(error).__name__}: {text_of(error, SIDE_MAX)})",
    )
