"""What benchmarks put straight into the tables of a journal: one history, many times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gymckpt.core.entry import Entry
from gymckpt.core.events import Event, Moment, Replied, Triggered
from gymckpt.core.settings import Settings
from gymckpt.core.step import open_operation, step

START_TS = 1_700_000_000.0

Phase = tuple[str, Mapping[str, Any], Sequence[str]]
"""A trigger, its facts, and the calls that every instance answers then."""


def lived(
    chart: str, names: Sequence[str], facts: Mapping[str, Any], phases: Iterable[Phase]
) -> list[Entry]:
    """
    Return the history of an operation in which every instance answers every call.

    Args:
        chart: Its chart.
        names: Its instances.
        facts: The facts of its opening.
        phases: What happens.
    """
    opening = open_operation(
        moment=Moment(START_TS, 0.0),
        run="run-0",
        operation_id="op-0",
        chart=chart,
        instances=names,
        settings=Settings(control_timeout_s=30.0, prepare_timeout_s=300.0, reply_grace_s=5.0),
        facts=facts,
    )
    operation, entries = opening.operation, list(opening.entries)

    def now() -> Moment:
        return Moment(START_TS + len(entries) / 100, len(entries) / 100)

    def take(event: Event) -> None:
        nonlocal operation
        taken = step(operation, event)
        operation = taken.operation
        entries.extend(taken.entries)

    for trigger, told, calls in phases:
        take(Triggered(moment=now(), trigger=trigger, facts=told))
        for call in calls:
            for name in names:
                ask = operation.call_state(call, name).ask
                take(Replied(moment=now(), instance=name, call=call, ask=ask, outcome="answered"))
    return entries
