"""Exploration sees every state of small operations, and finds every fault that is planted."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import attrs
import pytest

from gymckpt.chart import load_chart
from gymckpt.core import asking, replay, timing
from gymckpt.core.effects import Effect, SendCall, StartTimer, StopTimer, Tell, WriteManifest
from gymckpt.core.events import Event, Moment, Triggered
from gymckpt.core.operation import OperationState
from gymckpt.core.step import Step, step
from gymckpt.testing import hosts
from gymckpt.testing.explore import SUBJECTS, Found, explore, missing_transitions
from gymckpt.testing.liveness import Graph, hold_liveness
from gymckpt.testing.moves import moves
from gymckpt.testing.symmetry import key_of, pruned
from gymckpt.testing.universe import Universe, World
from tests.core.planted import OF_RESTORES, planted

SWEEPS = ("retire", "forget", "resume")
Planted = Callable[[OperationState, Step], Step]


@pytest.fixture(scope="module")
def runs() -> list[Found]:
    """Explore every subject with a fault, and the smaller ones with more."""
    found = [
        explore("checkpoint", instances=1, faults=1),
        explore("restore", instances=1, faults=1),
        explore("checkpoint", instances=2, faults=0),
        explore("restore", instances=2, faults=0),
    ]
    return found + [explore(subject, instances=2, faults=1) for subject in SWEEPS]


def test_promises_hold_in_every_state(runs: list[Found]) -> None:
    """Every reachable state is seen, and S1 to S9 and L2 hold in all of them."""
    for run in runs:
        assert run.violation is None, str(run.violation)
        assert run.complete
        assert run.transitions > run.states > run.depth > 0


def test_almost_every_transition_is_taken(runs: list[Found]) -> None:
    """Only what needs two faults at once is left for the larger sizes."""
    assert {one[:3] for one in missing_transitions(runs)} <= {
        ("call", "failed", "confirm"),
        ("call", "failed", "die"),
        ("call", "unanswered", "die"),
        ("checkpoint", "discarding", "withdraw"),
        ("checkpoint", "discarding", "withdraw_failed"),
        ("restore", "discarding", "supersede"),
        ("restore", "retiring", "supersede"),
    }


def test_symmetric_instances_are_explored_once() -> None:
    """Two instances that do the same have fewer states than the square of one's."""
    one = explore("resume", instances=1, faults=1)
    two = explore("resume", instances=2, faults=1)
    assert one.states < two.states < one.states**2 / 2


@pytest.mark.parametrize(
    ("subject", "instances", "faults"),
    [("checkpoint", 2, 0), ("restore", 1, 1), ("resume", 2, 1)],
)
def test_worlds_with_one_key_go_on_alike(subject: str, instances: int, faults: int) -> None:
    """Worlds that count as one are followed by the same worlds, and none that differs is missed."""
    chart, facts = SUBJECTS[subject]
    universe = Universe(chart, instances, facts=facts)
    seen: dict[Hashable, set[Hashable]] = {}
    left = [universe.first(faults)]
    compared = 0
    while left:
        world = left.pop()
        following = [pruned(universe, move.make()) for move in moves(universe, world)]
        keys: set[Hashable] = {key_of(one) for one in following}
        if key_of(world) not in seen:
            seen[key_of(world)] = keys
            left += following
        else:
            compared += 1
            assert seen[key_of(world)] == keys
    assert compared > 10
    assert len(seen) == explore(subject, instances=instances, faults=faults).states


def test_time_that_is_over_is_told() -> None:
    """An exploration that ran out of time says that it did not see everything."""
    ticks = iter(range(1000))
    run = explore("checkpoint", instances=1, faults=1, seconds=5.0, clock=lambda: next(ticks))
    assert not run.complete
    assert run.violation is None
    assert "CUT OFF" in str(run)


# --- planted faults -----------------------------------------------------------------------------


def _kept(taken: Step, keep: Callable[[Effect], bool]) -> Step:
    return attrs.evolve(taken, effects=tuple(one for one in taken.effects if keep(one)))


def _added(taken: Step, effect: Effect) -> Step:
    return attrs.evolve(taken, effects=(*taken.effects, effect))


def _entered(before: OperationState, taken: Step, state: str) -> bool:
    return before.state != state == taken.operation.state


def resume_skipped(before: OperationState, taken: Step) -> Step:
    """Reopen nobody where the caller is cancelled while parked."""
    skips = before.state == "parked" and _entered(before, taken, "discarding")
    return _kept(taken, lambda one: not (skips and isinstance(one, SendCall)))


def never_resumed(before: OperationState, taken: Step) -> Step:
    """Leave out every resume, entries and all but their effects stay."""
    del before
    return _kept(taken, lambda one: not (isinstance(one, SendCall) and one.call == "resume"))


def manifest_early(before: OperationState, taken: Step) -> Step:
    """Write the manifest when the commit is asked for."""
    early = _entered(before, taken, "committing")
    return _added(taken, WriteManifest()) if early else taken


def commit_early(before: OperationState, taken: Step) -> Step:
    """Send the commit before the renewal has come back."""
    if not _entered(before, taken, "confirming"):
        return taken
    instance = taken.operation.instances[0]
    return _added(taken, SendCall(instance, "commit", 1, 2000.0))


def renewed_after_resume(before: OperationState, taken: Step) -> Step:
    """Renew once more when the instances are being reopened."""
    if not _entered(before, taken, "resuming"):
        return taken
    return _added(taken, SendCall(taken.operation.instances[0], "renew", 99, 2000.0))


def effects_swapped(before: OperationState, taken: Step) -> Step:
    """Start timers before the old ones are stopped, so that they are stopped as well."""
    del before
    stops = [one for one in taken.effects if isinstance(one, StopTimer)]
    others = [one for one in taken.effects if not isinstance(one, StopTimer)]
    return attrs.evolve(taken, effects=(*others, *stops))


def sweep_forgotten(before: OperationState, taken: Step) -> Step:
    """Never come back to what is unconfirmed."""
    del before
    return _kept(taken, lambda one: not (isinstance(one, StartTimer) and one.timer == "sweep"))


def released_early(before: OperationState, taken: Step) -> Step:
    """Let the caller go before the resumes leave."""
    if not _entered(before, taken, "resuming"):
        return taken
    return attrs.evolve(taken, effects=(Tell("resuming", released=True), *taken.effects))


def refusal_acts(before: OperationState, taken: Step) -> Step:
    """Do something where a trigger is ignored."""
    return taken if taken.refused is None else _added(taken, StopTimer("sweep"))


def reopened_without_retiring(before: OperationState, taken: Step) -> Step:
    """Leave the retire of a restore that is given up to its second try."""
    skips = _entered(before, taken, "retiring")
    return _kept(taken, lambda one: not (skips and isinstance(one, SendCall)))


def entry_left_out(before: OperationState, taken: Step) -> Step:
    """Never record that the operation is parked."""
    return attrs.evolve(taken, entries=()) if _entered(before, taken, "parked") else taken


def epoch_not_raised(before: OperationState, taken: Step) -> Step:
    """Go on under the epoch of the controller that was taken over."""
    entries = tuple(attrs.evolve(one, epoch=1) for one in taken.entries)
    del before
    return attrs.evolve(taken, entries=entries)


def cause_replaced(before: OperationState, taken: Step) -> Step:
    """Take the last thing that went wrong for the cause."""
    cause = taken.operation.cause
    if before.cause is None or cause is None or not taken.entries:
        return taken
    later = attrs.evolve(cause, trigger=taken.entries[-1].trigger)
    return attrs.evolve(taken, operation=attrs.evolve(taken.operation, cause=later))


@pytest.mark.parametrize(
    ("subject", "plant", "promise"),
    [
        ("checkpoint", resume_skipped, "S6"),
        ("checkpoint", never_resumed, "S6"),
        ("checkpoint", manifest_early, "S2"),
        ("checkpoint", commit_early, "S1"),
        ("checkpoint", renewed_after_resume, "S4"),
        ("checkpoint", effects_swapped, "L2"),
        ("restore", sweep_forgotten, "L2"),
        ("checkpoint", released_early, "S3"),
        ("checkpoint", refusal_acts, "S8"),
        ("restore", reopened_without_retiring, "S6"),
        ("checkpoint", entry_left_out, "S6"),
        ("restore", epoch_not_raised, "S7"),
        ("restore", cause_replaced, "S9"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_planted_fault_is_found(subject: str, plant: Planted, promise: str) -> None:
    """Each planted fault breaks its promise, and the course that leads there can be read."""

    def faulty(operation: OperationState, event: Event) -> Step:
        return plant(operation, step(operation, event))

    run = explore(subject, instances=1, faults=1, stepper=faulty)
    assert run.violation is not None
    assert run.violation.promise == promise, str(run.violation)
    assert run.violation.course[0] == "it is opened"
    assert not run.complete
    assert str(run.violation).startswith(f"{promise} is broken: ")


@pytest.mark.parametrize(
    ("subject", "condition", "phase_call", "promise"),
    [
        ("checkpoint", "all_answered", "prepare", "S1"),
        ("checkpoint", "all_answered", "renew", "S1"),
        ("checkpoint", "all_answered", "commit", "S2"),
        ("checkpoint", "all_settled", "resume", "S3"),
        ("restore", "all_answered", "restore", "S5"),
        ("restore", "all_answered", "renew", "S5"),
        ("restore", "all_settled", "resume", "S3"),
    ],
)
def test_condition_that_lies_is_found(
    monkeypatch: pytest.MonkeyPatch,
    subject: str,
    condition: str,
    phase_call: str,
    promise: str,
) -> None:
    """A joint condition that lies breaks its promise, even where the core's own checks are off."""
    real = timing.CONDITIONS[condition]

    def lie(operation: OperationState, now: Moment) -> bool:
        return operation.phase_call == phase_call or real(operation, now)

    monkeypatch.setitem(timing.CONDITIONS, condition, lie)
    checked = explore(subject, instances=1, faults=1).violation
    for module in (asking, replay):
        monkeypatch.setattr(module, "require_invariants", lambda *_: None)
    unchecked = explore(subject, instances=1, faults=1).violation
    assert checked is not None
    assert unchecked is not None
    assert unchecked.promise == promise, str(unchecked)


@pytest.mark.parametrize("fault", OF_RESTORES)
def test_fault_of_keeping_and_retiring_is_found(fault: str) -> None:
    """A restore that stands unproved, and a late retire that does harm, break S5."""
    faults = 1 if fault in ("kept_without_renewal", "old_renewal_counts") else 2
    with planted(fault):
        violation = explore("restore", instances=1, faults=faults).violation
    assert violation is not None
    assert violation.promise == "S5", str(violation)


def test_late_retire_under_the_operations_own_id_is_found() -> None:
    """An instance refuses the id since its resume, so that it would never be retired."""

    def faulty(operation: OperationState, event: Event) -> Step:
        taken = step(operation, event)
        effects = [
            attrs.evolve(one, besides=False) if isinstance(one, SendCall) else one
            for one in taken.effects
        ]
        return attrs.evolve(taken, effects=tuple(effects))

    violation = explore("restore", instances=1, faults=1, stepper=faulty).violation
    assert violation is not None
    assert (violation.promise, "id" in violation.what) == ("S5", True), str(violation)


def test_instance_that_says_it_has_what_it_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came back empty and commits breaks S2; one that renews all the same breaks S5."""
    monkeypatch.setattr(hosts, "require_attempt", lambda _host: None)
    violation = explore("checkpoint", instances=1, faults=2).violation
    assert violation is not None
    assert violation.promise == "S2", str(violation)
    assert any("restarts empty" in words for words in violation.course)
    monkeypatch.setattr(hosts.ControlPlane, "renew", lambda *_args, **_named: None)
    violation = explore("restore", instances=1, faults=1).violation
    assert violation is not None
    assert violation.promise == "S5", str(violation)
    assert any("restarts empty" in words for words in violation.course)


def test_instances_may_restart_empty_in_every_state() -> None:
    """No state of a checkpoint or restore is left out, and none that has ended is tried."""
    for chart in ("checkpoint", "restore"):
        universe = Universe(chart, 1)
        seen, found = set[Hashable](), set[str]()
        left = [universe.first(1)]
        while left:
            world = left.pop()
            if key_of(world) in seen:
                continue
            seen.add(key_of(world))
            for move in moves(universe, world):
                if "restarts empty" in move.words:
                    found.add(world.operation.state)
                if not move.cost:
                    left.append(pruned(universe, move.make()))
            left += [_given_up(universe, world)] if "discard" in world.operation.row.on else []
        states = {name for name, row in load_chart(chart).states.items() if not row.final}
        assert found == states - ({"open"} if chart == "restore" else set())


def _given_up(universe: Universe, world: World) -> World:
    return universe.feed(world, Triggered(moment=world.moment, trigger="discard"))


def test_lost_lease_that_is_not_seen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that never takes a lease for lost commits under one that is."""
    monkeypatch.setitem(timing.CONDITIONS, "lease_lost", lambda *_: False)
    for module in (asking, replay):
        monkeypatch.setattr(module, "require_invariants", lambda *_: None)
    violation = explore("checkpoint", instances=1, faults=1).violation
    assert violation is not None
    assert violation.promise == "S1", str(violation)
    assert "lease" in violation.what


def test_course_is_a_shortest_one() -> None:
    """A manifest that is written early is shown by the plain course to the commit alone."""

    def faulty(operation: OperationState, event: Event) -> Step:
        return manifest_early(operation, step(operation, event))

    violation = explore("checkpoint", instances=1, faults=1, stepper=faulty).violation
    assert violation is not None
    assert violation.course == (
        "it is opened",
        "the caller: prepare  [open -> preparing]",
        "prepare #1 reaches instance 0",
        "instance 0 has parked for prepare #1",
        "the reply of instance 0 to prepare #1 comes (answered)  [preparing -> confirming]",
        "renew #1 reaches instance 0",
        "the reply of instance 0 to renew #1 comes (answered)  [confirming -> parked]",
        "the caller: commit",
    )


# --- liveness -----------------------------------------------------------------------------------


def _graph(states: str, *links: tuple[int, int]) -> Graph:
    """Return a graph whose states are `.`, `r` (the body runs) or `e` (an end)."""
    graph = Graph()
    for state in states:
        graph.add(ended=state == "e", running=state == "r")
    for source, dest in links:
        graph.link(source, dest)
    return graph


@pytest.mark.parametrize(
    ("states", "links", "stuck"),
    [
        ("..e", [(0, 1), (1, 2)], None),
        ("..e", [(0, 2)], 1),
        (".re", [(0, 1), (1, 0), (1, 2)], None),
        ("..e", [(0, 1), (1, 0), (1, 2)], 0),
        ("e.", [(0, 0), (1, 0)], 0),
        ("rre", [(0, 1), (1, 0)], 0),
    ],
)
def test_liveness(states: str, links: list[tuple[int, int]], stuck: int | None) -> None:
    """A state without a way to an end is found, and one that can go round without its caller."""
    found = hold_liveness(_graph(states, *links))
    assert (found and found[0]) == stuck


def test_subjects_cover_every_call_of_a_sweep() -> None:
    """Every call that a sweep may send is explored."""
    calls = {facts.get("call") for _, facts in SUBJECTS.values()}
    assert calls == {None, "retire", "forget", "resume"}
