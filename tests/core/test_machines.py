"""
Any order of verbs, replies, timers, file outcomes, crashes and takeovers keeps every promise.

One Hypothesis machine per operation chart drives a `World` that `Promises` watches. Between any two
rules the operation is replayed, its tallies are recounted, and it is left alone in a copy of the
world, to see that it comes to its end in time by itself.

The machines run until every transition was taken. What is rare in random runs, as a verb is that
must come in one short state, gets runs that begin with it, and go on at random from there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gymckpt.chart import load_chart
from gymckpt.core.settings import Settings
from gymckpt.errors import IllegalTransition, InvariantViolated
from gymckpt.testing.counted_rules import run_again
from tests.core.driver import DEAD, FATAL, SHAKY, World, names
from tests.core.histories import CALL_HISTORIES, OPERATION_CHARTS, bring_about, opened, path
from tests.core.planted import planted
from tests.core.promises import SLACK_S, Promises
from tests.core.steps import TAKEN, Transition, all_transitions
from tests.core.strategies import policies

FILE_TRIGGERS = frozenset({"sealed", "seal_failed", "withdrawn", "withdraw_failed"})
TIMERS = (
    *(f"{kind}.{call}" for kind in ("budget", "retry") for call in ("prepare", "renew", "commit")),
    *(f"{kind}.{call}" for kind in ("budget", "retry") for call in ("restore", "retire", "resume")),
    *("budget.forget", "retry.forget", "budget.file", "renew", "lease", "settle", "sweep", "also"),
)

OUTCOMES: tuple[tuple[str, Any], ...] = (
    ("answered", None),
    ("answered", None),
    ("failed", SHAKY),
    ("failed", SHAKY),
    ("refused", None),
    ("failed", FATAL),
    ("failed", DEAD),
)

EDGES: dict[str, frozenset[Transition]] = {
    chart: frozenset(all_transitions(chart)) for chart in (*OPERATION_CHARTS, "call")
}
DECLARED = frozenset[Transition]().union(*EDGES.values())

ROUNDS_MAX = 5
"""An edge that no run has taken gets this many chances; two rounds are nearly always enough."""


@st.composite
def numbers(draw: st.DrawFn) -> Settings:
    """Draw settings of any scale whose parts are within a few times of each other."""
    control_s = draw(st.sampled_from((0.05, 1.0, 10.0)))
    return Settings(
        control_timeout_s=control_s,
        prepare_timeout_s=control_s * draw(st.sampled_from((0.5, 1.0, 8.0))),
        reply_grace_s=draw(st.sampled_from((0.0, min(control_s, 5.0)))),
        settle_s=draw(st.sampled_from((0.0, 1.0))),
        lease_grace_s=control_s * draw(st.sampled_from((0.1, 10.0))),
        sweep_interval_s=control_s * draw(st.sampled_from((0.5, 3.0))),
        retries=draw(policies()),
    )


@attrs.frozen
class Opening:
    """How an operation begins."""

    count: int
    numbers: Settings
    call: str
    """What a sweep sends."""
    steps: int
    """How far it is brought before anything else happens."""


def openings() -> st.SearchStrategy[Opening]:
    """Draw how an operation begins."""
    calls = st.sampled_from(("retire", "forget", "resume"))
    return st.builds(Opening, st.integers(1, 4), numbers(), calls, st.integers(0, 9))


def begun(edge: Transition) -> Promises:
    """Return a world that has just taken an edge of an operation's chart or of a call's."""
    chart, state, trigger, _ = edge
    if chart == "call":
        promises = Promises(World("checkpoint"))
        CALL_HISTORIES[state, trigger](promises.world)
        return promises
    world = World(chart, facts={"call": "retire"} if chart == "sweep" else {})
    promises = Promises(world)
    withdraws = load_chart(chart).states[state].effect == "withdraw_manifest"
    for stop in ("committing", state) if withdraws else (state,):
        for step in path(chart, world.operation.state, stop):
            bring_about(world, step)
    bring_about(world, trigger)
    return promises


unended = precondition(lambda machine: not machine.world.operation.settled)


class OperationMachine(RuleBasedStateMachine):
    """One operation of one chart, in a world in which anything may happen at any time."""

    chart: ClassVar[str]
    edges: ClassVar[tuple[Transition, ...]] = ()
    """What a run begins with, one of them; where there are none, with an open operation."""
    world: World
    promises: Promises

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: set[str] = set()

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Begin with an open operation, or with one that has taken an edge already."""
        if not self.edges:
            self._open(data.draw(openings(), label="opening"))
            return
        self.promises = begun(data.draw(st.sampled_from(self.edges), label="edge"))
        self.world = self.promises.world

    def _open(self, opening: Opening) -> None:
        """Open an operation, and bring it some way along the path on which all goes well."""
        facts = {"call": opening.call} if self.chart == "sweep" else {}
        self.world = World(self.chart, names(opening.count), numbers=opening.numbers, facts=facts)
        self.promises = Promises(self.world)
        self.outcomes = set()
        for _ in range(opening.steps):
            self.go_on()

    @precondition(lambda self: self.world.operation.cleaning)
    @rule(opening=openings())
    def open_another(self, opening: Opening) -> None:
        """Begin again: little happens any more to an operation that has ended, or will soon."""
        self._open(opening)

    # --- the caller -----------------------------------------------------------------------------

    @unended
    @rule()
    def go_on(self) -> None:
        """Let happen next what must, so that all goes well."""
        self.world.go_on()

    @unended
    @rule(trigger=st.sampled_from(("cancel", "discard", "settle")))
    def give_up(self, trigger: str) -> None:
        """Give the operation up."""
        self._bring_in(trigger)

    @precondition(lambda self: "insist" in self.world.operation.row.on)
    @rule()
    def insist(self) -> None:
        """Send the call of a sweep until it is confirmed."""
        self.world.verb("insist")

    @precondition(lambda self: "supersede" in load_chart(self.chart).triggers)
    @rule(data=st.data(), of=st.sampled_from((slice(None), slice(1), slice(0))))
    def supersede(self, data: st.DataObject, of: slice) -> None:
        """Let a later restore take over what is to be retired on some instances, or a part."""
        operation = self.world.operation
        row = operation.row
        if "supersede" in (*row.on, *row.ignore) and "inventory" in operation.opening:
            chosen = st.sets(st.sampled_from(operation.instances))
            self.world.supersede(*data.draw(chosen, label="instances"), of=of)

    @precondition(lambda self: "also" in self.world.timers)
    @rule(seconds=st.sampled_from((0.01, 4.0, 100.0)))
    def hold_back(self, seconds: float) -> None:
        """Let another operation be open, so that what is sent besides waits."""
        self.world.timers["also"] += seconds

    @rule(data=st.data())
    def any_verb(self, data: st.DataObject) -> None:
        """Bring in a trigger that is out of place, or fires by itself; it changes nothing."""
        chart, state = load_chart(self.chart), self.world.operation.state
        odd = set(chart.triggers) - FILE_TRIGGERS - set(chart.legal(state))
        odd |= set(chart.states[state].when.values())
        self._bring_in(data.draw(st.sampled_from(sorted(odd)), label="trigger"))

    def _bring_in(self, trigger: str) -> None:
        world, chart = self.world, load_chart(self.chart)
        before, count = world.operation, len(world.entries)
        fires_by_itself = {t for state in chart.states.values() for t in state.when.values()}
        try:
            taken = world.verb(trigger)
        except (IllegalTransition, InvariantViolated) as error:
            assert (world.operation, len(world.entries)) == (before, count)
            refusal: Exception = error
        else:
            if isinstance(taken.refused, IllegalTransition):
                assert taken.entries[0].trigger in fires_by_itself
                assert trigger not in chart.states[taken.refused.state].on
                assert all(entry.trigger != trigger or entry.call for entry in taken.entries)
            elif taken.refused is not None:
                assert trigger in chart.states[taken.refused.source].ignore
                assert all(entry.trigger != trigger or entry.call for entry in taken.entries)
            return
        if isinstance(refusal, IllegalTransition):
            row = chart.states[refusal.state]
            assert trigger not in row.on
            assert trigger not in row.ignore
            assert refusal.subject == "op-1"
        else:
            assert trigger in fires_by_itself or trigger == "withdraw"

    # --- the instances --------------------------------------------------------------------------

    @precondition(lambda self: self.world.asks)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def reply(self, data: st.DataObject, outcome: tuple[Any, Any]) -> None:
        """Let something come back for an ask that is waited for."""
        self.world.reply(data.draw(st.sampled_from(self.world.asks), label="ask"), *outcome)

    @precondition(lambda self: self.world.asks)
    @rule(but=st.integers(0, 4))
    def answer(self, but: int) -> None:
        """Let all answers come that are waited for, except some."""
        for ask in self.world.outstanding()[but:]:
            self.world.reply(ask, "answered")

    @precondition(lambda self: self.world.sent)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def reply_to_any(self, data: st.DataObject, outcome: tuple[Any, Any]) -> None:
        """Let something come back for any ask that was ever sent: late, or once more."""
        self.world.reply(data.draw(st.sampled_from(self.world.sent), label="ask"), *outcome)

    # --- time -----------------------------------------------------------------------------------

    @unended
    @rule(count=st.integers(1, 3))
    def advance(self, count: int) -> None:
        """Let the next timers run out."""
        for _ in range(count):
            self.world.advance()

    @unended
    @rule(seconds=st.sampled_from((0.01, 0.5, 4.0)))
    def lag(self, seconds: float) -> None:
        """Let the loop be busy: timers that fall due meanwhile fire late."""
        self.world.pass_time(seconds)

    @rule(timer=st.sampled_from(TIMERS))
    def fire_any(self, timer: str) -> None:
        """Fire a timer that may not run, as one does that was stopped too late."""
        self.world.fire(timer)

    @unended
    @rule(seconds=st.sampled_from((-3600.0, 3600.0)))
    def step_clock(self, seconds: float) -> None:
        """Set the wall clock."""
        self.world.wall_offset_s += seconds

    # --- the file -------------------------------------------------------------------------------

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), well=st.booleans(), landed=st.booleans())
    def end_file(self, data: st.DataObject, well: bool, landed: bool) -> None:
        """Let a file job end, in time or late."""
        job = data.draw(st.sampled_from(self.world.jobs), label="job")
        well = well and not (job.kind == "write" and self.world.withdrawn)
        self.world.end_file(job.kind, well=well, landed=landed)
        ends = {"write": ("seal_failed", "sealed"), "withdraw": ("withdraw_failed", "withdrawn")}
        self.outcomes.add(ends[job.kind][well])

    @precondition(lambda self: self.outcomes)
    @rule(data=st.data())
    def end_file_again(self, data: st.DataObject) -> None:
        """Let the outcome of a file job come once more."""
        trigger = data.draw(st.sampled_from(sorted(self.outcomes)), label="outcome")
        if self.world.operation.state != "sealing":
            self._bring_in(trigger)

    # --- the controller -------------------------------------------------------------------------

    @rule(data=st.data())
    def replay_prefix(self, data: st.DataObject) -> None:
        """Replay a log that was cut off anywhere, and let another controller settle it."""
        count = data.draw(st.integers(1, len(self.world.entries)), label="entries")
        other = self.world.copied()
        closed = {e.instance for e in other.entries[:count] if e.call in ("prepare", "restore")}
        sent = len(other.sent)
        other.take_over(count)
        for _ in range(1_000):
            while other.outstanding_withdrawals():
                other.end_file("withdraw", well=True)
            if other.operation.settled:
                break
            assert other.advance() is not None
        reopened = {e.instance for e in other.entries if (e.call, e.trigger) == ("resume", "ask")}
        assert other.operation.settled
        assert closed <= reopened
        goes_on = {"retire", "resume", other.operation.opening.get("call")}
        assert all(ask.call in goes_on for ask in other.sent[sent:])
        other.crash_and_replay()

    @unended
    @rule(silent_s=st.sampled_from((0.0, 20.0)), landed=st.booleans())
    def crash(self, silent_s: float, landed: bool) -> None:
        """Let the controller die, whatever its file jobs come to, and another take over."""
        epoch = self.world.operation.epoch
        for job in list(self.world.jobs):
            self.world.work_file(job.kind, well=False, landed=landed)
        taken = self.world.take_over(silent_s=silent_s)
        assert {entry.epoch for entry in taken.entries} <= {epoch + 1}, "S7: its epoch is higher"
        assert self.world.operation.epoch == epoch + 1

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        """Hold every promise, and S6 by replaying all that was recorded."""
        if hasattr(self, "world"):
            self.promises.hold()
            self.world.crash_and_replay()

    @invariant()
    def follows_its_charts(self) -> None:
        """S6: nothing was taken that no chart declares."""
        assert TAKEN <= DECLARED, TAKEN - DECLARED

    @invariant()
    def only_what_is_waited_for_counts(self) -> None:
        """S8: an answer counts for the ask that is waited for; a resume is proved by any."""
        for call, calls in self.world.operation.calls.items() if hasattr(self, "world") else ():
            for instance, found in calls.by_instance.items():
                late = call == "resume" and instance in self.promises.calls.confirmed
                known = (call, instance) in self.promises.calls.answered
                assert known or late or found.state != "answered"

    @invariant()
    def fails_early(self) -> None:
        """L3: a phase in which no try can mend a failure ends soon, whoever has not answered."""
        if not hasattr(self, "world") or "cannot_succeed" not in self.world.operation.row.when:
            return
        operation = self.world.operation
        lost = operation.phase.count("refused", "gone")
        if not lost or operation.phase_call == "resume":
            return
        hasty = self.world.copied()
        hasty.wait_until(lambda world: world.operation.state != operation.state)
        assert hasty.at_s <= self.world.at_s + operation.settings.settle_s + SLACK_S, "L3"

    @invariant()
    def silence_ends_it(self) -> None:
        """L1 and L2: timers alone end it, in time."""
        if hasattr(self, "world"):
            self.promises.hold_silence()


class CheckpointMachine(OperationMachine):
    chart = "checkpoint"


class RestoreMachine(OperationMachine):
    chart = "restore"


class SweepMachine(OperationMachine):
    chart = "sweep"


MACHINES = {machine.chart: machine for machine in (CheckpointMachine, RestoreMachine, SweepMachine)}


def run(chart: str, edges: Collection[Transition] = (), number: int = 0, **settings: Any) -> None:
    """
    Run the machine of a chart.

    Args:
        chart: The chart.
        edges: What its runs begin with, each about twice; they begin anyhow where there is none.
        number: Which run this is of several.
        settings: Of Hypothesis, over what is usual here.
    """
    machine = MACHINES[chart]
    usual: dict[str, Any] = {"stateful_step_count": 40, "report_multiple_bugs": False}
    if edges:
        usual["max_examples"] = 2 * len(edges)
    machine.edges = tuple(sorted(edges))
    try:
        run_again(machine, number, hypothesis_settings(**{**usual, **settings}))
    finally:
        machine.edges = ()


def wanted_of(chart: str) -> frozenset[Transition]:
    """Return every transition of a chart, and for a checkpoint those of a call besides."""
    return EDGES[chart] | (EDGES["call"] if chart == "checkpoint" else frozenset[Transition]())


def taken_by(chart: str) -> frozenset[Transition]:
    """
    Run the machine of a chart and return every transition that it took.

    It goes on until all that are wanted were taken. Only the checkpoint's machine has all calls.
    """
    before = frozenset(TAKEN)
    TAKEN.clear()
    wanted = wanted_of(chart)
    try:
        for number in range(ROUNDS_MAX):
            missing = wanted - TAKEN
            if missing:
                run(chart, missing if len(missing) < len(wanted) else (), number)
        return frozenset(TAKEN)
    finally:
        TAKEN.update(before)


@pytest.mark.parametrize("chart", MACHINES)
def test_promises_hold_in_any_world(chart: str) -> None:
    """No order of events breaks a promise, and every declared transition is taken in some."""
    taken = taken_by(chart)
    assert sorted(wanted_of(chart) - taken) == []


@pytest.mark.parametrize("pair", CALL_HISTORIES, ids=".".join)
def test_calls_take_every_edge(pair: tuple[str, str]) -> None:
    """Each edge of call.toml is taken in some history, which keeps every promise."""
    world = opened("checkpoint")
    promises = Promises(world)
    CALL_HISTORIES[pair](world)
    assert pair in {(entry.source, entry.trigger) for entry in world.entries if entry.call}
    promises.hold()
    promises.hold_silence()
    world.crash_and_replay()


CAUGHT: dict[str, tuple[str, str, str]] = {
    "edge_missing": ("checkpoint", "parked", "discard"),
    "wrong_dest": ("checkpoint", "committed", "discard"),
    "resume_skipped": ("checkpoint", "parked", "cancel"),
    "retried_too_often": ("checkpoint", "open", "prepare"),
    "late_answer_counts": ("call", "asked", "expire"),
    "deadline_ignored": ("checkpoint", "open", "prepare"),
    "failures_not_gathered": ("call", "asked", "refuse"),
    "epoch_not_raised": ("checkpoint", "parked", "commit"),
    "discard_not_recorded": ("checkpoint", "preparing", "discard"),
    "manifest_left": ("checkpoint", "committing", "refuse"),
    "lease_never_lost": ("checkpoint", "committed", "lose_lease"),
    "retire_skipped": ("restore", "restored", "discard"),
    "sweep_forgotten": ("call", "unanswered", "lapse"),
    "kept_without_renewal": ("restore", "restoring", "all_answered"),
    "old_renewal_counts": ("restore", "restored", "keep"),
    "late_retire_while_closed": ("restore", "retiring", "give_up"),
    "late_retires_forgotten": ("restore", "retiring", "give_up"),
}
"""Fault to an edge from which it does harm sooner or later."""


@pytest.mark.parametrize("fault", CAUGHT)
def test_planted_faults_are_caught(fault: str) -> None:
    """The machines find each fault that is planted in the core."""
    chart, state, trigger = CAUGHT[fault]
    edges = {edge for edge in EDGES[chart] if edge[1:3] == (state, trigger)}
    broken = (AssertionError, IllegalTransition, InvariantViolated)
    with planted(fault), pytest.raises(broken):
        run(
            "checkpoint" if chart == "call" else chart,
            edges,
            max_examples=100,
            phases=(Phase.generate,),
            derandomize=True,
            database=None,
            print_blob=False,
        )
