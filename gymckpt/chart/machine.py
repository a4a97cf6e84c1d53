"""
Fire a trigger in a chart: the one door to the `transitions` library.

A machine here holds no state. Whoever drives an operation says where it stands and what happened,
and learns where it goes; the caller keeps the state, so that one machine serves every operation
of a process, from any thread. `ChartMachine` runs on one `transitions.Machine` per chart, with
every option spelled out and no model registered: the library moves a cursor that lives for one
firing. Its callbacks are the chart's guards and one recorder, nothing else, because a callback
that fails after the move would leave half a transition.

`CompiledChart` is the same table read out of the library once. It exists for the charts that every
message passes through, those of calls and of participants; the charts of operations, which are
fired a few times in an operation, stay on the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import transitions

from gymckpt.chart.check import check_chart
from gymckpt.chart.model import (
    Chart,
    Facts,
    Fired,
    Guard,
    Ignored,
    Machine,
    Outcome,
    Refused,
    Verdict,
)
from gymckpt.errors import ChartError, IllegalTransition, did_you_mean

__all__ = ["ChartMachine", "CompiledChart", "compile_chart", "machine_for"]

NO_FACTS: Facts = MappingProxyType({})
NO_GUARDS: Mapping[str, Guard] = MappingProxyType({})

STATE_ATTRIBUTE = "_state"
"""Where the library keeps the cursor's state; no trigger can be called so."""


class _Cursor:
    """What the library moves during one firing, and what was seen on the way."""

    __slots__ = ("_state", "facts", "fired", "refused", "trigger")

    def __init__(self, state: str, trigger: str, facts: Facts) -> None:
        self._state = state
        self.trigger = trigger
        self.facts = facts
        self.fired: Fired | None = None
        self.refused: Refused | None = None

    @property
    def at(self) -> str:
        """Where the library has moved it."""
        return self._state


class _Condition:
    """A guard as the library asks it: the library compares what it gets with True."""

    def __init__(self, name: str, guard: Guard) -> None:
        self.name = name
        self._guard = guard

    def __call__(self, event: transitions.EventData) -> bool:
        cursor = event.model
        assert isinstance(cursor, _Cursor)
        verdict = _require_verdict(self.name, self._guard(cursor.facts))
        if not verdict.allowed and cursor.refused is None:
            cursor.refused = _refusal(cursor.at, cursor.trigger, self.name, verdict)
        return bool(verdict.allowed)


class Link(NamedTuple):
    """One transition as the library holds it."""

    source: str
    trigger: str
    dest: str | None
    guard: str | None


class ChartMachine:
    """
    A chart on the `transitions` library.

    Attributes:
        chart: The chart that is fired.
    """

    def __init__(self, chart: Chart, guards: Mapping[str, Guard] = NO_GUARDS) -> None:
        """
        Build the library's machine.

        Args:
            chart: A sound chart.
            guards: Every guard that the chart names, and no other.

        Raises:
            ChartError: The chart has problems, or the guards are not those that it names.
        """
        if problems := check_chart(chart):
            raise ChartError("\n".join(f"chart {chart.name}: {problem}" for problem in problems))
        _require_guards(chart, guards)
        self.chart = chart
        self._machine = transitions.Machine(
            model=None,
            states=list(chart.states),
            initial=chart.initial,
            transitions=[
                {
                    "trigger": trigger,
                    "source": state.name,
                    "dest": edge.to,
                    "conditions": [_Condition(edge.guard, guards[edge.guard])]
                    if edge.guard
                    else [],
                }
                for state in chart.states.values()
                for trigger, edges in state.on.items()
                for edge in edges
            ],
            send_event=True,
            auto_transitions=False,
            ordered_transitions=False,
            ignore_invalid_triggers=False,
            after_state_change=[_record],
            queued=False,
            model_attribute=STATE_ATTRIBUTE,
            name=chart.name,
        )

    def fire(self, state: str, trigger: str, facts: Facts = NO_FACTS) -> Outcome:
        """
        Say what `trigger` does in `state`; nothing is changed by it.

        Args:
            state: Where the caller stands.
            trigger: What happened.
            facts: What the guards may look at.

        Returns:
            `Fired` with the new state; `Ignored` with the declared reason; `Refused` with what
            the guard of the first edge said, where no guard allowed its edge.

        Raises:
            IllegalTransition: The chart has neither an edge nor an ignore for the pair.
            ValueError: The chart has no such state or no such trigger.
            TypeError: A guard returned something other than a `Verdict`.

        Whatever a guard raises is passed on as it is.
        """
        _require_known(self.chart, state, trigger)
        event = self._machine.events.get(trigger)
        if event is None or state not in event.transitions:
            return _without_edge(self.chart, state, trigger)
        cursor = _Cursor(state, trigger, facts)
        moved = event.trigger(cursor)
        outcome = cursor.fired if moved else cursor.refused
        assert outcome is not None, f"{self.chart.name}: {trigger} in {state} came to nothing"
        return outcome

    def links(self) -> Iterator[Link]:
        """Yield the transitions that the library holds, in its order."""
        for trigger, event in self._machine.events.items():
            for found in self._machine.get_transitions(trigger):
                asked = [condition.func for condition in found.conditions]
                guard = next((one.name for one in asked if isinstance(one, _Condition)), None)
                yield Link(found.source, event.name, found.dest, guard)


class _Way(NamedTuple):
    """One edge as a table holds it, with the guard that it asks, if any."""

    fired: Fired
    guard: tuple[str, Guard] | None


class CompiledChart:
    """
    A chart as one dictionary: a look-up per firing, and whatever its guards take.

    Attributes:
        chart: The chart that is fired.
    """

    def __init__(
        self, chart: Chart, table: Mapping[tuple[str, str], Fired | Ignored | tuple[_Way, ...]]
    ) -> None:
        self.chart = chart
        self._table = dict(table)

    def fire(self, state: str, trigger: str, facts: Facts = NO_FACTS) -> Outcome:
        """
        Say what `trigger` does in `state`, as `ChartMachine.fire` does.

        Args:
            state: Where the caller stands.
            trigger: What happened.
            facts: What the guards may look at.

        Raises:
            IllegalTransition: The chart has neither an edge nor an ignore for the pair.
            ValueError: The chart has no such state or no such trigger.
            TypeError: A guard returned something other than a `Verdict`.

        Whatever a guard raises is passed on as it is.
        """
        found = self._table.get((state, trigger))
        if found is None:
            _require_known(self.chart, state, trigger)
            return _without_edge(self.chart, state, trigger)
        return _chosen(found, facts) if isinstance(found, tuple) else found


def _chosen(ways: tuple[_Way, ...], facts: Facts) -> Fired | Refused:
    """Ask the guards of one pair in order, and none after the one that allows."""
    refused: Refused | None = None
    for fired, guard in ways:
        if guard is None:
            return fired
        name, ask = guard
        verdict = _require_verdict(name, ask(facts))
        if verdict.allowed:
            return fired
        refused = refused or _refusal(fired.source, fired.trigger, name, verdict)
    assert refused is not None, "a pair without ways is not in the table"
    return refused


def compile_chart(chart: Chart, guards: Mapping[str, Guard] = NO_GUARDS) -> CompiledChart:
    """
    Read a chart's table out of the library, for charts that are fired very often.

    Args:
        chart: A sound chart.
        guards: Every guard that the chart names, and no other.

    Raises:
        ChartError: The chart has problems, or the guards are not those that it names.
    """
    machine = ChartMachine(chart, guards)
    ways: dict[tuple[str, str], list[_Way]] = {}
    for source, trigger, dest, name in machine.links():
        assert dest is not None, "every edge of a chart has a target"
        fired = Fired(source=source, trigger=trigger, dest=dest)
        guard = None if name is None else (name, guards[name])
        ways.setdefault((source, trigger), []).append(_Way(fired, guard))
    table: dict[tuple[str, str], Fired | Ignored | tuple[_Way, ...]] = {
        pair: found[0].fired if found[0].guard is None else tuple(found)
        for pair, found in ways.items()
    }
    for state in chart.states.values():
        for trigger in state.ignore:
            table[state.name, trigger] = _without_edge(chart, state.name, trigger)
    return CompiledChart(chart, table)


def machine_for(chart: Chart, guards: Mapping[str, Guard] = NO_GUARDS) -> Machine:
    """
    Return the machine to use for a chart; build it once and keep it.

    Args:
        chart: A sound chart.
        guards: Every guard that the chart names, and no other.

    Raises:
        ChartError: The chart has problems, or the guards are not those that it names.

    Charts of calls and participants are compiled, they are fired with every message; those of
    operations a few times in each.
    """
    if chart.scope == "operation":
        return ChartMachine(chart, guards)
    return compile_chart(chart, guards)


def _refusal(state: str, trigger: str, guard: str, verdict: Verdict) -> Refused:
    return Refused(
        source=state, trigger=trigger, guard=guard, reason=verdict.reason, code=verdict.code
    )


def _require_verdict(name: str, value: object) -> Verdict:
    if not isinstance(value, Verdict):
        raise TypeError(f"guard {name!r} returned {value!r:.100}, not a Verdict")
    return value


def _record(event: transitions.EventData) -> None:
    """Keep what was taken; the library calls it once, after the move."""
    cursor, taken = event.model, event.transition
    assert isinstance(cursor, _Cursor)
    assert taken is not None
    assert (cursor.fired, cursor.at) == (None, taken.dest)
    cursor.fired = Fired(source=taken.source, trigger=cursor.trigger, dest=cursor.at)


def _require_guards(chart: Chart, guards: Mapping[str, Guard]) -> None:
    problems = [f"guard {name!r} is not given" for name in chart.guards if name not in guards]
    problems += [
        f"there is no guard {name!r:.100}{did_you_mean(name, chart.guards)}"
        for name in guards
        if name not in chart.guards
    ]
    if problems:
        raise ChartError(f"chart {chart.name}: {'; '.join(problems)}")


def _require_known(chart: Chart, state: str, trigger: str) -> None:
    if state not in chart.states:
        hint = did_you_mean(state, chart.states)
        raise ValueError(f"chart {chart.name} has no state {state!r:.100}{hint}")
    if trigger not in chart.triggers:
        hint = did_you_mean(trigger, chart.triggers)
        raise ValueError(f"chart {chart.name} has no trigger {trigger!r:.100}{hint}")


def _without_edge(chart: Chart, state: str, trigger: str) -> Ignored:
    """Return what the chart declares for a pair that has no edge, or refuse the pair."""
    reason = chart.states[state].ignore.get(trigger)
    if reason is None:
        raise IllegalTransition(chart.name, chart.version, state, trigger, chart.legal(state))
    return Ignored(source=state, trigger=trigger, reason=reason)
