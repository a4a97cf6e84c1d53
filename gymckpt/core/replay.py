"""
Fold a history back into a state, holding every entry against the chart and the invariants.

What the live core lived is what replay gives, since both use `apply` (DESIGN, S6). Any history
that is cut off after some entry is a history too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gymckpt.chart import Fired
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
from gymckpt.core.settings import RETIRE
from gymckpt.errors import IllegalTransition, InvariantViolated, ReplayDiverged

__all__ = ["replay", "states_after", "states_of"]


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
    following = iter(entries)
    for first in following:
        operation = _first(first)
        yield operation
        yield from states_after(operation, following)


def states_after(operation: OperationState, entries: Iterable[Entry]) -> Iterator[OperationState]:
    """
    Yield the state after each of the entries that follow a state.

    Args:
        operation: The state.
        entries: Its operation's next entries, in order; may end anywhere.

    Raises:
        ReplayDiverged: An entry is not what the chart gives.
        InvariantViolated: An entry breaks a promise of the design.
    """
    known = frozenset(operation.instances)
    for entry in entries:
        _require_of(known, entry)
        _require_charted(operation, entry)
        operation = _after(operation, entry)
        yield operation


def _first(entry: Entry) -> OperationState:
    begins = (entry.seq, entry.trigger, entry.source)
    about = (entry.instance, entry.call, entry.ask)
    if begins != (1, OPEN_TRIGGER, "") or entry.epoch < 1 or about != (None, None, None):
        raise ReplayDiverged(entry.seq, "an opening entry with seq 1", _described(entry))
    try:
        operation = opened(entry)
        initial = operation.declared.initial
    except Exception as error:  # whatever damaged facts come to
        raise ReplayDiverged(entry.seq, "a chart, instances and settings", _words(error)) from error
    if operation.chart == "restore" or operation.opening.get("call") == RETIRE:
        try:
            for instance in operation.instances:
                operation.to_retire(instance)
        except Exception as error:
            raise ReplayDiverged(entry.seq, "the fact 'inventory'", _words(error)) from error
    if entry.dest != initial:
        raise ReplayDiverged(entry.seq, f"a beginning in {initial!r}", _described(entry))
    return operation


def _require_of(known: frozenset[str], entry: Entry) -> None:
    """Require that the entry is of the operation, or of a call to one of its instances."""
    if len({entry.instance is None, entry.call is None, entry.ask is None}) > 1:
        raise ReplayDiverged(entry.seq, "a call with its instance and ask", _described(entry))
    if entry.instance is not None and entry.instance not in known:
        raise ReplayDiverged(
            entry.seq, f"a call to one of {len(known)} instance(s)", _described(entry)
        )


def _require_charted(operation: OperationState, entry: Entry) -> None:
    """Require that the entry is what its chart gives for its trigger in its state."""
    chart = operation.chart if entry.instance is None else CALL_CHART
    try:
        outcome = machine_of(chart).fire(entry.source, entry.trigger)
    except (IllegalTransition, ValueError) as error:
        raise ReplayDiverged(entry.seq, "a transition of the chart", str(error)) from error
    if isinstance(outcome, Fired):
        dest = outcome.dest
    elif entry.instance is None:  # only calls record what their chart ignores
        raise ReplayDiverged(entry.seq, f"no entry for {entry.trigger}", _described(entry))
    else:
        dest = entry.source
    if entry.dest != dest:
        raise ReplayDiverged(
            entry.seq, f"{entry.source} -> {dest} by {entry.trigger}", _described(entry)
        )


def _after(operation: OperationState, entry: Entry) -> OperationState:
    """Return the operation after an entry that the chart gives."""
    try:
        after = apply(operation, entry)
        require_invariants(operation, entry, after)
    except InvariantViolated:
        raise
    except Exception as error:  # whatever facts come to that no release wrote
        raise ReplayDiverged(
            entry.seq, f"the facts of {_described(entry)}", _words(error)
        ) from error
    return after


def _words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no {error}"
    plain = isinstance(error, TypeError | ValueError | OverflowError)
    return str(error) if plain else f"{type(error).__name__}: {error}"


def _described(entry: Entry) -> str:
    about = f" of {entry.call} to {entry.instance}" if entry.instance or entry.call else ""
    return f"{entry.source} -> {entry.dest} by {entry.trigger}{about}"
