"""What fires, fires as the chart says; everything else leaves no trace."""

import itertools
import logging
import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.chart import (
    Chart,
    ChartMachine,
    CompiledChart,
    Edge,
    Fired,
    Guard,
    Ignored,
    Machine,
    Outcome,
    Refused,
    State,
    Verdict,
    chart_names,
    compile_chart,
    load_chart,
    machine_for,
    parse_chart,
    rows,
)
from gymckpt.errors import ChartError, IllegalTransition
from tests.chart.samples import CALL, OPERATION, PARTICIPANT, broken

YES = Verdict(allowed=True)
NO = Verdict(allowed=False, reason="not today", code="closed")


Build = Callable[[Chart, Mapping[str, Guard]], Machine]

both_machines = pytest.mark.parametrize("build", [ChartMachine, compile_chart])
"""What guards say is heard by the library and by the table that is read out of it."""


def always(verdict: Verdict) -> Guard:
    """Return a guard that says one thing."""
    return lambda facts: verdict


def everything(machine: Machine) -> dict[tuple[str, str], Outcome | tuple[Any, ...]]:
    """Fire the whole product; an illegal pair gives what its error carries."""
    found: dict[tuple[str, str], Outcome | tuple[Any, ...]] = {}
    for state in machine.chart.states:
        for trigger in machine.chart.triggers:
            try:
                found[state, trigger] = machine.fire(state, trigger)
            except IllegalTransition as error:
                found[state, trigger] = (error.state, error.trigger, error.legal, str(error))
    return found


@pytest.mark.parametrize("name", chart_names())
def test_full_product(name: str) -> None:
    """Every pair of state and trigger does what the chart's table says, and nothing else."""
    chart = load_chart(name)
    machine = ChartMachine(chart, {guard: always(YES) for guard in chart.guards})
    found = everything(machine)
    table = list(rows(chart))
    assert len(table) == len(found) == len(chart.states) * len(chart.triggers)
    for row in table:
        outcome = found[row.state, row.trigger]
        if row.kind == "transition":
            dest = chart.states[row.state].on[row.trigger][0].to
            assert outcome == Fired(source=row.state, trigger=row.trigger, dest=dest)
        elif row.kind == "ignored":
            assert outcome == Ignored(source=row.state, trigger=row.trigger, reason=row.detail)
        else:
            assert isinstance(outcome, tuple)
            assert outcome[:3] == (row.state, row.trigger, chart.legal(row.state))


@pytest.mark.parametrize("name", chart_names())
def test_full_product_with_every_guard_refusing(name: str) -> None:
    """With guards that all refuse, only edges without a guard are taken."""
    chart = load_chart(name)
    machine = ChartMachine(chart, {guard: always(NO) for guard in chart.guards})
    for (state, trigger), outcome in everything(machine).items():
        edges = chart.states[state].on.get(trigger, ())
        open_edges = [edge for edge in edges if edge.guard is None]
        if open_edges:
            assert outcome == Fired(source=state, trigger=trigger, dest=open_edges[0].to)
        elif edges:
            assert isinstance(outcome, Refused)
            assert (outcome.guard, outcome.reason, outcome.code) == (
                edges[0].guard,
                "not today",
                "closed",
            )


@pytest.mark.parametrize("name", chart_names())
def test_compiled_table_agrees_with_the_library(name: str) -> None:
    """Table and library agree on each pair for all that the guards may say, and refuse alike."""
    chart = load_chart(name)
    for verdicts in itertools.product((True, False), repeat=len(chart.guards)):
        guards = {
            guard: always(Verdict(allowed=allowed, reason=f"{guard} says no", code=guard))
            for guard, allowed in zip(chart.guards, verdicts, strict=True)
        }
        compiled, library = compile_chart(chart, guards), ChartMachine(chart, guards)
        assert everything(compiled) == everything(library)


@pytest.mark.parametrize("name", chart_names())
def test_library_holds_exactly_the_charts_edges(name: str) -> None:
    """The library has the chart's transitions, states and triggers, and invented none."""
    chart = load_chart(name)
    machine = ChartMachine(chart, {guard: always(YES) for guard in chart.guards})
    held = sorted((link.source, link.trigger, link.dest) for link in machine.links())
    assert held == sorted(
        (state.name, trigger, edge.to)
        for state in chart.states.values()
        for trigger, edges in state.on.items()
        for edge in edges
    )
    library = machine._machine
    assert list(library.states) == list(chart.states)
    assert library.initial == chart.initial
    taken = {trigger for state in chart.states.values() for trigger in state.on}
    assert set(library.events) == taken
    assert library.models == []


def test_operations_stay_on_the_library() -> None:
    """Calls and participants go through a table, operations through the library."""
    for name in chart_names():
        chart = load_chart(name)
        machine = machine_for(chart, {guard: always(YES) for guard in chart.guards})
        expected = ChartMachine if chart.scope == "operation" else CompiledChart
        assert type(machine) is expected
        assert machine.chart is chart


@pytest.mark.parametrize("build", [ChartMachine, machine_for])
@pytest.mark.parametrize("text", [CALL, OPERATION], ids=["call", "operation"])
def test_guards_that_no_edge_asks_are_refused(build: Any, text: str) -> None:
    """A guard that the chart does not name is an error, whichever machine is built."""
    with pytest.raises(ChartError, match="there is no guard 'extra'"):
        build(parse_chart(text, "x.toml"), {"extra": always(YES)})


@both_machines
def test_missing_and_misspelt_guards_are_refused_together(build: Build) -> None:
    """Both the guard that is missing and the one that was meant for it are named."""
    chart = parse_chart(PARTICIPANT, "x.toml")
    with pytest.raises(ChartError) as caught:
        build(chart, {"knwon": always(YES), "paid": always(YES)})
    assert str(caught.value) == (
        "chart door: guard 'known' is not given; there is no guard 'knwon'; did you mean 'known'?"
    )


def test_unsound_chart_is_not_built() -> None:
    """A chart that the checks refuse does not become a machine, however it was made."""
    chart = load_chart("call")
    idle = attrs.evolve(chart.states["idle"], on={"ask": (Edge(to="nowhere"),)})
    wrong = attrs.evolve(chart, states={**chart.states, "idle": idle})
    for build in (ChartMachine, compile_chart, machine_for):
        with pytest.raises(ChartError) as caught:
            build(wrong)
        lines = str(caught.value).splitlines()
        assert len(lines) > 1
        assert lines[0] == (
            "chart call: states.idle.on.ask: target 'nowhere' is not a state; "
            "did you mean 'answered'?"
        )
        assert all(line.startswith("chart call: states.") for line in lines)


def test_call_chart_with_guards_asks_them() -> None:
    """A guard in a call chart is asked, not compiled away."""
    text = broken(CALL, 'on.dial = "ringing"', 'on.dial = [{ to = "ringing", guard = "free" }]')
    text = broken(text, "[states.idle]", '[guards]\nfree = "the line is free"\n[states.idle]')
    machine = machine_for(parse_chart(text, "x.toml"), {"free": always(NO)})
    assert isinstance(machine.fire("idle", "dial"), Refused)


@pytest.mark.parametrize("name", ["call", "checkpoint"])
def test_unknown_names_are_value_errors(name: str) -> None:
    """A state or trigger that the chart has not is told apart from an illegal one."""
    machine = machine_for(load_chart(name))
    trigger, state = next(iter(machine.chart.triggers)), machine.chart.initial
    with pytest.raises(ValueError, match="has no") as caught:
        machine.fire(f"{state}e", trigger)
    assert str(caught.value) == (f"chart {name} has no state '{state}e'; did you mean '{state}'?")
    with pytest.raises(ValueError, match="has no") as caught:
        machine.fire(state, f"{trigger}s")
    assert str(caught.value) == (
        f"chart {name} has no trigger '{trigger}s'; did you mean '{trigger}'?"
    )


def test_illegal_trigger_names_what_is_legal() -> None:
    """The error of an illegal trigger has the facts as fields and survives a pickle."""
    machine = machine_for(load_chart("checkpoint"))
    with pytest.raises(IllegalTransition) as caught:
        machine.fire("preparing", "commit")
    copy = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, copy):
        assert (error.chart, error.state, error.trigger) == ("checkpoint", "preparing", "commit")
        assert error.version == 1
        assert error.legal == ("all_answered", "refuse", "discard", "cancel", "settle")
        assert "legal here: all_answered, refuse, discard, cancel, settle" in str(error)


DOOR = parse_chart(PARTICIPANT, "door.toml")


@both_machines
def test_first_guard_speaks_for_a_refusal(build: Build) -> None:
    """Where every guard refuses, guard, reason and code are those of the first edge."""
    other = Verdict(allowed=False, reason="no coin", code="unpaid")
    machine = build(DOOR, {"known": always(NO), "paid": always(other)})
    assert machine.fire("shut", "knock") == Refused(
        source="shut", trigger="knock", guard="known", reason="not today", code="closed"
    )


@both_machines
def test_second_edge_is_taken_when_the_first_is_refused(build: Build) -> None:
    """A refused first edge leaves nothing in the outcome of the second one."""
    machine = build(DOOR, {"known": always(NO), "paid": always(YES)})
    assert machine.fire("shut", "knock") == Fired(source="shut", trigger="knock", dest="taken")
    assert machine.fire("taken", "knock") == Fired(source="taken", trigger="knock", dest="shut")


@both_machines
def test_guarded_self_transition_fires(build: Build) -> None:
    """An edge back to its own state is a transition, with the guard's word deciding."""
    allowed = build(DOOR, {"known": always(YES), "paid": always(NO)})
    assert allowed.fire("taken", "knock") == Fired(source="taken", trigger="knock", dest="taken")


@both_machines
def test_guards_see_the_facts_and_only_until_one_allows(build: Build) -> None:
    """Guards are asked in order with the caller's facts, and none after the one that allows."""
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def remembering(name: str) -> Guard:
        def guard(facts: Mapping[str, Any]) -> Verdict:
            asked.append((name, facts))
            return Verdict(allowed=facts["who"] == name, reason=f"not {name}")

        return guard

    machine = build(DOOR, {name: remembering(name) for name in DOOR.guards})
    facts = {"who": "known"}
    assert isinstance(machine.fire("shut", "knock", facts), Fired)
    assert asked == [("known", facts)]
    asked.clear()
    assert isinstance(machine.fire("shut", "knock", {"who": "nobody"}), Refused)
    assert [name for name, _ in asked] == ["known", "paid"]


@both_machines
def test_one_machine_serves_threads_and_nested_firings(build: Build) -> None:
    """Firings that overlap in time, or one inside the other, each get their own outcome."""
    both_inside = threading.Barrier(2, timeout=30)

    def known(facts: Mapping[str, Any]) -> Verdict:
        both_inside.wait()
        inner = machine.fire("shut", "leave")
        assert isinstance(inner, Ignored)
        return Verdict(allowed=facts["who"] == "friend", reason=facts["who"])

    machine = build(DOOR, {"known": known, "paid": always(NO)})
    with ThreadPoolExecutor(2) as pool:
        friend = pool.submit(machine.fire, "shut", "knock", {"who": "friend"})
        stranger = pool.submit(machine.fire, "shut", "knock", {"who": "stranger"})
    assert friend.result() == Fired(source="shut", trigger="knock", dest="taken")
    refused = stranger.result()
    assert isinstance(refused, Refused)
    assert refused.reason == "stranger"


@both_machines
def test_guards_see_no_facts_where_none_are_given(build: Build) -> None:
    """A guard is asked with an empty table where whoever fires has nothing to say."""
    asked: list[Mapping[str, Any]] = []

    def guard(facts: Mapping[str, Any]) -> Verdict:
        asked.append(facts)
        return YES

    machine = build(DOOR, {"known": guard, "paid": always(NO)})
    machine.fire("shut", "knock")
    assert asked == [{}]


@both_machines
def test_a_guard_need_not_say_why(build: Build) -> None:
    """A refusal without a reason and a code has neither, not one that nobody gave."""
    bare = always(Verdict(allowed=False))
    machine = build(DOOR, {"known": bare, "paid": bare})
    refused = machine.fire("shut", "knock")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.code) == ("", "")


class GuardBroke(BaseException):
    """What a guard may raise; not even an Exception."""


@both_machines
@pytest.mark.parametrize("error", [GuardBroke(), KeyError("x"), KeyboardInterrupt()])
def test_what_a_guard_raises_is_passed_on(error: BaseException, build: Build) -> None:
    """An error of a guard leaves as itself, and the machine goes on as before."""
    broken_now = [True]

    def guard(facts: Mapping[str, Any]) -> Verdict:
        if broken_now:
            raise error
        return YES

    machine = build(DOOR, {"known": guard, "paid": always(YES)})
    with pytest.raises(type(error)) as caught:
        machine.fire("shut", "knock")
    assert caught.value is error
    broken_now.clear()
    assert machine.fire("shut", "knock") == Fired(source="shut", trigger="knock", dest="taken")


@both_machines
@pytest.mark.parametrize("answer", [True, 1, "yes", None])
def test_guard_must_return_a_verdict(answer: Any, build: Build) -> None:
    """A bare truth value is refused by name, not taken for consent."""
    machine = build(DOOR, {"known": lambda facts: answer, "paid": always(YES)})
    with pytest.raises(TypeError) as caught:
        machine.fire("shut", "knock")
    assert str(caught.value) == f"guard 'known' returned {answer!r}, not a Verdict"


def test_the_log_of_the_library_names_the_chart(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever turns on the library's log sees of each line which chart it is about."""
    machine = ChartMachine(DOOR, {"known": always(YES), "paid": always(NO)})
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "transitions"):
        machine.fire("shut", "knock")
    assert caplog.messages
    assert [line for line in caplog.messages if not line.startswith("door: ")] == []


NAMES = st.sampled_from(["state", "model", "trigger", "initial", "to_idle", "machine", "events"])


@given(trigger=NAMES, state=NAMES)
def test_names_that_the_library_uses_itself_are_plain_names(trigger: str, state: str) -> None:
    """No name of a state or trigger collides with what the library calls its own parts."""
    chart = Chart(
        name="names",
        version=1,
        scope="participant",
        means="m",
        initial=state,
        triggers={trigger: "m", "back": "m"},
        states={
            state: State(name=state, means="m", on={trigger: (Edge(to="b"),)}),
            "b": State(name="b", means="m", on={"back": (Edge(to=state),)}),
        },
    )
    machine = ChartMachine(chart)
    assert machine.fire(state, trigger) == Fired(source=state, trigger=trigger, dest="b")
    assert everything(machine) == everything(compile_chart(chart))


@given(
    verdicts=st.lists(st.booleans(), min_size=1, max_size=5),
    has_default=st.booleans(),
)
def test_first_allowed_edge_wins(verdicts: list[bool], has_default: bool) -> None:
    """For any verdicts the first edge that is allowed is taken; without one, the first refuses."""
    guards = [f"g{index}" for index in range(len(verdicts))]
    targets = [f"s{index}" for index in range(len(verdicts) + has_default)]
    edges = [Edge(to=to, guard=guard) for to, guard in zip(targets, guards, strict=False)]
    edges += [Edge(to=to) for to in targets[len(guards) :]]
    chart = Chart(
        name="choice",
        version=1,
        scope="participant",
        means="m",
        initial="home",
        triggers={"go": "m", "back": "m"},
        guards=dict.fromkeys(guards, "m"),
        states={"home": State(name="home", means="m", on={"go": tuple(edges)})}
        | {to: State(name=to, means="m", on={"back": (Edge(to="home"),)}) for to in targets},
    )
    given_guards = {
        guard: always(Verdict(allowed=allowed, reason=guard))
        for guard, allowed in zip(guards, verdicts, strict=True)
    }
    outcome = ChartMachine(chart, given_guards).fire("home", "go")
    assert outcome == compile_chart(chart, given_guards).fire("home", "go")
    chosen = next(
        (index for index, allowed in enumerate([*verdicts, has_default]) if allowed), None
    )
    if chosen is None:
        assert outcome == Refused(source="home", trigger="go", guard="g0", reason="g0")
    else:
        assert outcome == Fired(source="home", trigger="go", dest=f"s{chosen}")
