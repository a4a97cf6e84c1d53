"""
Every pair of state and trigger of the operation charts, through `step` and not only the machine.

The pairs are read from the charts; each is tried in an operation that has really reached its state.
What comes back for a call is tried in every state of call.toml likewise. The same product on the
machines alone, of all charts, is in tests/chart/test_machine.py, and that of what a participant is
asked in tests/participant/test_control.py.
"""

from __future__ import annotations

import pytest

from gymckpt.chart import Ignored, chart_names, load_chart
from gymckpt.chart.check import FILE_ENDS
from gymckpt.errors import IllegalTransition, InvariantViolated
from tests.core.driver import DEAD, FATAL, SHAKY, World
from tests.core.histories import (
    CALL_HISTORIES,
    FILE_OUTCOMES,
    OPERATION_CHARTS,
    bring_about,
    condition_of,
    opened,
    reached,
    triggers_of,
)
from tests.core.planted import planted

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


def test_no_chart_is_left_out() -> None:
    """Every chart of an operation is among those that are tried, and every pair of it is."""
    operations = [name for name in chart_names() if load_chart(name).scope == "operation"]
    assert sorted(OPERATION_CHARTS) == sorted(operations)
    pairs = [pair for kind in ("edge", "ignored", "illegal") for pair in _pairs(kind)]
    assert sorted(pairs) == sorted(
        (name, state, trigger)
        for name in operations
        for state in load_chart(name).states
        for trigger in load_chart(name).triggers
    )


@pytest.mark.parametrize("pair", CALL_HISTORIES, ids=".".join)
def test_whatever_comes_back_is_taken_or_stale(pair: tuple[str, str]) -> None:
    """After each edge of call.toml any ask may come back with anything: none of it is illegal."""
    lived = opened("checkpoint")
    CALL_HISTORIES[pair](lived)
    replies = (
        ("answered", None),
        ("refused", None),
        *(("failed", f) for f in (SHAKY, FATAL, DEAD)),
    )
    for ask in lived.sent:
        for outcome, failure in replies:
            world = lived.copied()
            source = world.operation.call_state(ask.call, ask.instance).state
            entry = world.reply(ask, outcome, failure).entries[0]  # type: ignore[arg-type]
            row = load_chart("call").states[source]
            assert (entry.instance, entry.call, entry.ask) == (ask.instance, ask.call, ask.ask)
            assert entry.source == source
            assert entry.trigger in (*row.on, "stale")
            assert entry.trigger != "stale" or entry.dest == source


def test_replies_are_tried_in_every_state_of_a_call() -> None:
    """Together those histories end with calls in every state in which one can have been asked."""
    found: set[str] = set()
    for history in CALL_HISTORIES.values():
        world = opened("checkpoint")
        history(world)
        found |= {world.operation.call_state(ask.call, ask.instance).state for ask in world.sent}
    assert found == set(load_chart("call").states) - {"idle"}


def test_planted_faults_are_caught() -> None:
    """An edge that is missing, and one that leads elsewhere, are not what the chart says."""
    test_edges_lead_where_the_chart_says("checkpoint", "parked", "lose_lease")
    with planted("edge_missing"), pytest.raises(IllegalTransition):
        test_edges_lead_where_the_chart_says("checkpoint", "parked", "lose_lease")
    with planted("wrong_dest"), pytest.raises(AssertionError):
        test_edges_lead_where_the_chart_says("checkpoint", "committed", "discard")
