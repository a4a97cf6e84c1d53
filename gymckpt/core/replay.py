"""
Fold a history back into a state, holding every entry against the chart and the invariants.

What the live core lived is what replay gives, since both use `apply` (DESIGN, S6). Any history
that is cut off after some entry is a history too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gymckpt.chart import Fired, Ignored
from gymckpt.core.entry import Entry
from gymckpt.core.invariants import require_invariants
from gymckpt.core.operation import (
    CALL_CHART,
    OPEN_TRIGGER,
    OperationState,
    apply,
    machine_of,
    opened,
)
from gymckpt.errors import IllegalTransition, ReplayDiverged

__all__ = ["replay", "states_of"]


def replay(entries: Iterable[Entry]) -> OperationState:
    """
    Return the state after a history.

    Args:
        entries: One operation's entries from the first, in order; may end anywhere.

    Raises:
        ReplayDiverged: An entry is not what the chart gives, or there is none at all.
        InvariantViolated: An entry breaks a promise of the design.
    """
    operation: OperationState | None = None
    for operation in states_of(entries):  # noqa: B007 - the last one is the answer
        pass
    if operation is None:
        raise ReplayDiverged(0, "an opening entry", "no entry at all")
    return operation


def states_of(entries: Iterable[Entry]) -> Iterator[OperationState]:
    """
    Yield the state after each entry of a history.

    Args:
        entries: One operation's entries from the first, in order; may end anywhere.

    Raises:
        ReplayDiverged: An entry is not what the chart gives.
        InvariantViolated: An entry breaks a promise of the design.
    """
    operation: OperationState | None = None
    for entry in entries:
        if operation is None:
            operation = _first(entry)
        else:
            _require_charted(operation, entry)
            after = apply(operation, entry)
            require_invariants(operation, entry, after)
            operation = after
        yield operation


def _first(entry: Entry) -> OperationState:
    if entry.seq != 1 or entry.trigger != OPEN_TRIGGER or entry.instance is not None:
        raise ReplayDiverged(entry.seq, "an opening entry with seq 1", _described(entry))
    try:
        operation = opened(entry)
        initial = operation.declared.initial
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayDiverged(entry.seq, "a chart, instances and settings", str(error)) from error
    if entry.dest != initial:
        raise ReplayDiverged(entry.seq, f"a beginning in {initial!r}", _described(entry))
    return operation


def _require_charted(operation: OperationState, entry: Entry) -> None:
    """Require that the entry is what its chart gives for its trigger in its state."""
    chart = operation.chart if entry.instance is None else CALL_CHART
    try:
        outcome = machine_of(chart).fire(entry.source, entry.trigger)
    except (IllegalTransition, ValueError) as error:
        raise ReplayDiverged(entry.seq, "a transition of the chart", str(error)) from error
    if isinstance(outcome, Fired):
        dest = outcome.dest
    else:
        dest = entry.source if isinstance(outcome, Ignored) else ""
    if entry.dest != dest:
        raise ReplayDiverged(
            entry.seq, f"{entry.source} -> {dest} by {entry.trigger}", _described(entry)
        )


def _described(entry: Entry) -> str:
    about = f" of {entry.call} to {entry.instance}" if entry.instance else ""
    return f"{entry.source} -> {entry.dest} by {entry.trigger}{about}"
