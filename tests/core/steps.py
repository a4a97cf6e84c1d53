"""
What a scheduler relies on in every step, and which transitions a step took.

`hold_step` looks at one step alone; what must hold of a whole operation is in `promises`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs

from gymckpt.chart import Fired, Ignored, Refused, load_chart
from gymckpt.core.effects import SendCall, Tell, WithdrawManifest, WriteManifest
from gymckpt.core.entry import Entry
from gymckpt.core.operation import CALL_CHART, OperationState, machine_of
from gymckpt.core.step import Step
from gymckpt.errors import IllegalTransition

Transition = tuple[str, str, str, str]
"""Chart, source, trigger, dest."""

TAKEN: set[Transition] = set()
"""Every transition that any world of this process has taken."""


def as_read(entry: Entry) -> Entry:
    """Return an entry as a journal gives it back; its facts must be plain JSON."""
    stored = json.dumps(dict(entry.facts), allow_nan=False)
    assert json.loads(stored) == entry.facts
    return attrs.evolve(entry, facts=json.loads(stored))


def transitions_of(before: OperationState, entries: Iterable[Entry]) -> set[Transition]:
    """Return the transitions that entries took; those that only record something took none."""
    found: set[Transition] = set()
    for entry in entries:
        chart = before.chart if entry.instance is None else CALL_CHART
        if isinstance(machine_of(chart).fire(entry.source, entry.trigger), Fired):
            found.add((chart, entry.source, entry.trigger, entry.dest))
    return found


def all_transitions(chart: str) -> set[Transition]:
    """Return every transition that a chart declares."""
    return {
        (chart, state.name, trigger, edge.to)
        for state in load_chart(chart).states.values()
        for trigger, edges in state.on.items()
        for edge in edges
    }


def hold_step(before: OperationState, taken: Step) -> None:
    """
    Hold a step against what a scheduler relies on to record first and act then (S6).

    Every call that leaves has its entry in the same step, with the same number and deadline, and
    every such entry its call; a file is touched only by a step that recorded something; a step
    without entries leaves the state as it was, apart from the epoch that a claim has given; a verb
    that the chart ignores or a guard refuses is said to be, and one that it does not allow any more
    after what time has brought about, and nothing else is.
    """
    late = isinstance(taken.refused, IllegalTransition) and bool(taken.entries)
    assert late or taken.refused is None or isinstance(taken.refused, Ignored | Refused)
    asked = [
        (entry.instance, entry.call, entry.ask, entry.facts["deadline_ts"])
        for entry in taken.entries
        if entry.instance is not None and entry.trigger in ("ask", "retry")
    ]
    sent = [
        (effect.instance, effect.call, effect.ask, effect.deadline_ts)
        for effect in taken.effects
        if isinstance(effect, SendCall)
    ]
    assert asked == sent
    touches = [
        effect for effect in taken.effects if isinstance(effect, WriteManifest | WithdrawManifest)
    ]
    moves = [entry for entry in taken.entries if entry.instance is None]
    assert len(touches) <= len(moves)
    if not taken.entries:
        assert taken.operation == attrs.evolve(before, epoch=taken.operation.epoch)
    told = [effect.state for effect in taken.effects if isinstance(effect, Tell)]
    entered = [entry.dest for entry in moves if entry.source != entry.dest]
    assert told[: len(entered)] == entered
    assert all(state == taken.operation.state for state in told[len(entered) :])
