"""
Every pair of state and trigger of the operation charts, through `step` and not only the machine.

The pairs are read from the charts; each is tried in an operation that has really reached its state.
"""

from __future__ import annotations

import pytest

from gymckpt.chart import Ignored, load_chart
from gymckpt.chart.check import FILE_ENDS
from gymckpt.errors import IllegalTransition, InvariantViolated
from tests.core.driver import World
from tests.core.histories import (
    FILE_OUTCOMES,
    OPERATION_CHARTS,
    bring_about,
    condition_of,
    reached,
    triggers_of,
)

Pair = tuple[str, str, str]


def _pairs(kind: str) -> list[Pair]:
    """Return the pairs of all operation charts that are edges, ignored, or neither."""
    found: list[Pair] = []
    for chart in OPERATION_CHARTS:
        for state in load_chart(chart).states.values():
            for trigger in load_chart(chart).triggers:
                is_edge, is_ignored = trigger in state.on, trigger in state.ignore
                if kind == ("edge" if is_edge else "ignored" if is_ignored else "illegal"):
                    found.append((chart, state.name, trigger))
    return found


def _world(chart: str, state: str) -> World:
    """Return an operation in a state, with a manifest to withdraw where the state withdraws one."""
    withdraws = load_chart(chart).states[state].effect == "withdraw_manifest"
    return reached(chart, *(("committing", state) if withdraws else (state,)))


@pytest.mark.parametrize(("chart", "state", "trigger"), _pairs("edge"))
def test_edges_lead_where_the_chart_says(chart: str, state: str, trigger: str) -> None:
    """What makes a trigger come about moves the operation along its edge, and records that."""
    world = _world(chart, state)
    count = len(world.entries)
    bring_about(world, trigger)
    taken = next(e for e in world.entries[count:] if (e.instance, e.trigger) == (None, trigger))
    (edge,) = load_chart(chart).states[state].on[trigger]
    assert (taken.source, taken.dest) == (state, edge.to)
    world.crash_and_replay()


@pytest.mark.parametrize(
    ("chart", "state", "trigger"),
    [pair for pair in _pairs("edge") if condition_of(load_chart(pair[0]).states[pair[1]], pair[2])],
)
def test_conditions_cannot_be_claimed(chart: str, state: str, trigger: str) -> None:
    """A trigger that fires by itself is refused from outside while its condition does not hold."""
    world = _world(chart, state)
    before, count = world.operation, len(world.entries)
    with pytest.raises(InvariantViolated, match=r"S6-condition.* does not hold"):
        world.verb(trigger)
    assert (world.operation, len(world.entries)) == (before, count)


@pytest.mark.parametrize(("chart", "state", "trigger"), _pairs("ignored"))
def test_ignored_triggers_leave_no_trace(chart: str, state: str, trigger: str) -> None:
    """An ignored trigger gives its declared reason, and neither an entry nor an effect."""
    world = _world(chart, state)
    before, count = world.operation, len(world.entries)
    taken = world.verb(trigger)
    reason = load_chart(chart).states[state].ignore[trigger]
    assert taken.refused == Ignored(source=state, trigger=trigger, reason=reason)
    assert (taken.entries, taken.effects, taken.operation) == ((), (), before)
    assert len(world.entries) == count


@pytest.mark.parametrize(("chart", "state", "trigger"), _pairs("illegal"))
def test_illegal_triggers_change_nothing(chart: str, state: str, trigger: str) -> None:
    """An illegal trigger raises an error with all facts; nothing is recorded and nothing sent."""
    world = _world(chart, state)
    before, count, sent = world.operation, len(world.entries), len(world.sent)
    with pytest.raises(IllegalTransition) as caught:
        world.verb(trigger)
    error = caught.value
    legal = load_chart(chart).legal(state)
    assert (error.chart, error.state, error.trigger) == (chart, state, trigger)
    assert (error.legal, error.subject) == (legal, "op-1")
    assert (world.operation, len(world.entries), len(world.sent)) == (before, count, sent)


@pytest.mark.parametrize("chart", OPERATION_CHARTS)
def test_unknown_triggers_are_refused(chart: str) -> None:
    """A trigger that the chart does not know is an error that names a near one."""
    world = reached(chart, "open")
    with pytest.raises(ValueError, match="has no trigger 'cancle'; did you mean 'cancel'"):
        world.verb("cancle")


def test_outcomes_of_an_earlier_withdrawal_change_nothing() -> None:
    """A withdrawal that hung and ends after a later one has worked undoes nothing, ever."""
    world = reached("checkpoint", "committing", "discarding")
    world.wait_until(lambda world: "withdraw" in triggers_of(world))
    world.end_file("withdraw", well=True)
    assert world.operation.file == "done"
    world.end_file("withdraw", well=False)
    assert world.operation.file == "done"
    world.answer("resume")
    assert world.operation.state == "discarded"


def test_every_outcome_of_a_file_is_known() -> None:
    """The outcomes of file effects that tests bring about are those that charts must take."""
    assert set(FILE_OUTCOMES) == {end for ends in FILE_ENDS.values() for end in ends}
