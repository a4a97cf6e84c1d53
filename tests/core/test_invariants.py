"""
Every named check can fail, and says what is wrong.

No event makes `step` break most of them: they are there for a core that has a defect, and for logs
that no core has written. So the states here are forged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from gymckpt.chart import load_chart
from gymckpt.core.entry import Entry
from gymckpt.core.invariants import CHECKS, require_invariants
from gymckpt.core.operation import FileProgress, OperationState
from gymckpt.errors import InvariantViolated
from tests.core.driver import FATAL, World
from tests.core.histories import OPERATION_CHARTS, reached

Lived = tuple[OperationState, Entry, OperationState]
"""A state, an entry, and the state after it."""


def lived(world: World, trigger: str) -> Lived:
    """Return the latest entry that a world's operation took for a trigger, with its states."""
    at = max(i for i, e in enumerate(world.entries) if (e.instance, e.trigger) == (None, trigger))
    return world.replayed(at), world.entries[at], world.replayed(at + 1)


def without(state: OperationState, call: str) -> OperationState:
    """Return a state in which a call was never sent."""
    return attrs.evolve(state, calls={k: v for k, v in state.calls.items() if k != call})


def _entry(**changes: Any) -> Callable[[], Lived]:
    def forge() -> Lived:
        before, entry, after = lived(reached("checkpoint", "committing"), "commit")
        return before, attrs.evolve(entry, **changes), after

    return forge


def _lost(*path: str, trigger: str, call: str, chart: str = "checkpoint") -> Callable[[], Lived]:
    """Forge a history in which the call of some state was never sent."""

    def forge() -> Lived:
        before, entry, after = lived(reached(chart, *path), trigger)
        return without(before, call), entry, without(after, call)

    return forge


def _no_root() -> Lived:
    before, entry, after = lived(reached("checkpoint", "committing"), "commit")
    return before, entry, attrs.evolve(after, root=None)


def _not_withdrawn() -> Lived:
    world = reached("checkpoint", "committing", "discarding", "discarded")
    before, entry, after = lived(world, "all_settled")
    return attrs.evolve(before, file="failed"), entry, after


def _withdrawal(trigger: str, file: FileProgress) -> Callable[[], Lived]:
    """Forge what is said of a withdrawal that is as far as `file`."""

    def forge() -> Lived:
        world = reached("checkpoint", "committing", "discarding", "discarded")
        before, entry, after = lived(world, "withdrawn")
        return attrs.evolve(before, file=file), attrs.evolve(entry, trigger=trigger), after

    return forge


def _after_resume(call: str, trigger: str, chart: str = "checkpoint") -> Callable[[], Lived]:
    def forge() -> Lived:
        state = "committed" if chart == "checkpoint" else "restored"
        world = reached(chart, state, "resuming")
        ask = next(entry for entry in world.entries if (entry.call, entry.ask) == (call, 1))
        return world.operation, attrs.evolve(ask, trigger=trigger), world.operation

    return forge


def _commit_under_a_lost_lease(trigger: str) -> Callable[[], Lived]:
    def forge() -> Lived:
        world = reached("checkpoint", "committing")
        ask = next(entry for entry in world.entries if entry.call == "commit")
        endangered = attrs.evolve(world.operation, endangered={0.0: 1})
        return endangered, attrs.evolve(ask, trigger=trigger), endangered

    return forge


def _of_ask(trigger: str, ask: int, *, asked: bool = True) -> Callable[[], Lived]:
    """Forge an entry of a resume that was sent twice, or of a commit that was never sent."""

    def forge() -> Lived:
        world = reached("checkpoint", "discarding")
        world.fail("resume", 0)
        world.wait(1.0)
        sent = world.entries[-1]
        assert (sent.call, sent.ask) == ("resume", 2)
        call = "resume" if asked else "commit"
        entry = attrs.evolve(sent, call=call, trigger=trigger, ask=ask)
        return world.operation, entry, world.operation

    return forge


def _kept_too_early(count: int) -> Callable[[], Lived]:
    """Forge a restore that stands on renewals of which some are no newer than its body."""

    def forge() -> Lived:
        world = reached("restore", "restored", "keeping", "resuming")
        before, entry, after = lived(world, "all_answered")
        earlier = before.calls_before
        for name in before.instances[:count]:
            earlier = earlier.moved(name, before.phase.get(name))
        return attrs.evolve(before, calls_before=earlier), entry, after

    return forge


FIRST = "main/replica-0"


def _retired_late(
    resume: str = "answered", retire: str = "failed", *, superseded: bool = False
) -> Callable[[], Lived]:
    """Forge a late retire, where resume, an earlier retire and a later restore stand as told."""

    def forge() -> Lived:
        world = reached("restore", "restored", "retiring")
        world.fail("retire", 0, failure=FATAL)
        world.answer("retire", 1)
        world.answer("resume")
        world.wait(0.0)
        sent = world.entries[-1]
        assert (sent.call, sent.instance, sent.trigger) == ("retire", FIRST, "retry")
        before = world.replayed(len(world.entries) - 1)
        if superseded:
            before = attrs.evolve(before, superseded={FIRST: frozenset(before.to_retire(FIRST))})
        for call, state in (("resume", resume), ("retire", retire)):
            calls = before.calls_for(call)
            found = attrs.evolve(calls.get(FIRST), state=state)
            before = attrs.evolve(before, calls={**before.calls, call: calls.moved(FIRST, found)})
        return before, sent, world.operation

    return forge


VIOLATIONS: dict[str, list[tuple[str, Callable[[], Lived]]]] = {
    "S6-seq": [
        ("it is an entry of 'op-1' of run 'run'", _entry(run="other")),
        ("it is an entry of 'op-1' of run 'run'", _entry(operation_id="op-2")),
        ("entry 99 follows entry 12", _entry(seq=99)),
        ("entry 13 of epoch 0 follows one of epoch 1", _entry(epoch=0)),
        ("entry 13 of -1.0 s follows one of 0.0 s", _entry(at_s=-1.0)),
    ],
    "S6-source": [("it starts in 'open', not in 'parked'", _entry(source="open"))],
    "S6-ask": [
        ("'parked' sends no prepare", _entry(instance="i", call="prepare", trigger="ask")),
        ("answer is of ask 1 of 2", _of_ask("answer", 1)),
        ("answer is of ask 3 of 2", _of_ask("answer", 3)),
        ("stale is of ask 0 of 2", _of_ask("stale", 0)),
        ("confirm is of ask 3 of 2", _of_ask("confirm", 3)),
        ("answer is of ask 0 of 0", _of_ask("answer", 0, asked=False)),
        ("an answer to an earlier commit proves nothing", _of_ask("confirm", 1, asked=False)),
        ("ask 2 follows ask 2", _of_ask("retry", 2)),
        ("ask 4 follows ask 2", _of_ask("ask", 4)),
    ],
    "S6-condition": [
        (
            "all_answered does not hold",
            _lost("confirming", trigger="all_answered", call="prepare"),
        )
    ],
    "S1-park-before-commit": [
        (
            "committing with 0 of 2 parked and 2 of 2 renewed",
            _lost("committing", trigger="commit", call="prepare"),
        ),
        (
            "committing with 2 of 2 parked and 0 of 2 renewed",
            _lost("committing", trigger="commit", call="renew"),
        ),
        (
            "committed with 0 of 2 parked and 2 of 2 renewed",
            _lost("committed", trigger="sealed", call="prepare"),
        ),
        ("a lease must be presumed lost", _commit_under_a_lost_lease("ask")),
        ("a lease must be presumed lost", _commit_under_a_lost_lease("retry")),
    ],
    "S2-manifest-last": [
        (
            "sealing with 0 of 2 committed",
            _lost("sealing", trigger="all_answered", call="commit"),
        ),
        (
            "committed with 0 of 2 committed",
            _lost("committed", trigger="sealed", call="commit"),
        ),
        ("committing without a directory for the manifest", _no_root),
    ],
    "S2-manifest-settled": [
        ("discarded while the withdrawal of the manifest is failed", _not_withdrawn)
    ],
    "S2-withdrawal": [
        (
            "withdrawn while the withdrawal of the manifest is 'none'",
            _withdrawal("withdrawn", "none"),
        ),
        (
            "withdraw_failed while the withdrawal of the manifest is 'none'",
            _withdrawal("withdraw_failed", "none"),
        ),
        (
            "withdraw while the withdrawal of the manifest is 'done'",
            _withdrawal("withdraw", "done"),
        ),
    ],
    "S3-everything-reopens": [
        ("resumed with 0 of 2 reopened", _lost("resumed", trigger="all_settled", call="resume")),
        (
            "resumed with 0 of 2 reopened",
            _lost("resumed", trigger="all_settled", call="resume", chart="restore"),
        ),
    ],
    "S4-no-act-after-end": [
        ("prepare is sent to main/replica-0 after resume", _after_resume("prepare", "ask")),
        ("prepare is sent to main/replica-0 after resume", _after_resume("prepare", "retry")),
        ("renew is sent to main/replica-0 after resume", _after_resume("renew", "ask")),
        ("commit is sent to main/replica-0 after resume", _after_resume("commit", "retry")),
        (
            "restore is sent to main/replica-0 after resume",
            _after_resume("restore", "ask", chart="restore"),
        ),
    ],
    "S5-retired-before-reopened": [
        (
            "reopening with 0 of 2 asked to retire",
            _lost("discarding", trigger="all_settled", call="retire", chart="restore"),
        )
    ],
    "S5-kept-after-renewal": [
        ("1 instance(s) were renewed before the body ended only", _kept_too_early(1)),
        ("2 instance(s) were renewed before the body ended only", _kept_too_early(2)),
    ],
    "S5-retired-when-open": [
        (f"retire is sent to {FIRST}, whose resume is {state}", _retired_late(resume=state))
        for state in ("asked", "failed", "unanswered")
    ]
    + [
        (f"nothing of {FIRST} is left to retire", _retired_late(superseded=True)),
        (
            f"retire is sent to {FIRST} while an earlier one may be on its way",
            _retired_late(retire="unanswered"),
        ),
        (
            f"retire is sent to {FIRST} while an earlier one may be on its way",
            _retired_late(retire="asked"),
        ),
    ],
}
"""Check to histories that break it, with what it says of each."""


def test_every_check_is_shown_a_violation() -> None:
    """No check is without a history that breaks it."""
    assert list(VIOLATIONS) == [name for name, _ in CHECKS]


@pytest.mark.parametrize(
    ("name", "message", "forge"),
    [
        pytest.param(name, message, forge, id=f"{name}: {message}")
        for name, forged in VIOLATIONS.items()
        for message, forge in forged
    ],
)
def test_a_violation_is_found(name: str, message: str, forge: Callable[[], Lived]) -> None:
    """Each check finds the history that breaks it, and says with numbers what is wrong."""
    assert dict(CHECKS)[name](*forge()) == message


@pytest.mark.parametrize(
    ("trigger", "ask"), [("stale", 1), ("die", 1), ("confirm", 1), ("answer", 2), ("retry", 3)]
)
def test_asks_that_may_be_told_of_are_let_pass(trigger: str, ask: int) -> None:
    """Death, proof and what is stale may come of an earlier ask; all else of the latest one."""
    assert dict(CHECKS)["S6-ask"](*_of_ask(trigger, ask)()) is None


@pytest.mark.parametrize("resume", ["answered", "lapsed"])
def test_retires_to_open_instances_are_let_pass(resume: str) -> None:
    """What has reopened, or must have by itself, may be told to stop what is left of it."""
    assert dict(CHECKS)["S5-retired-when-open"](*_retired_late(resume)()) is None


@pytest.mark.parametrize("trigger", ["withdrawn", "withdraw_failed"])
@pytest.mark.parametrize("file", ["pending", "failed", "done"])
def test_attempts_that_hung_may_tell_of_their_end(trigger: str, file: FileProgress) -> None:
    """An attempt to withdraw may end while a later one is under way, has failed or has done it."""
    assert dict(CHECKS)["S2-withdrawal"](*_withdrawal(trigger, file)()) is None


def test_the_error_names_check_operation_and_entry() -> None:
    """Whoever reads the error knows which promise, of which operation, at which entry."""
    forged = _withdrawal("withdrawn", "none")()
    with pytest.raises(InvariantViolated) as caught:
        require_invariants(*forged)
    assert caught.value.invariant == "S2-withdrawal"
    assert f"operation 'op-1', entry {forged[1].seq} (withdrawn): " in str(caught.value)


def test_withdrawing_in_vain_is_refused() -> None:
    """Nobody can withdraw a manifest that was never to be written, or is gone already."""
    world = reached("checkpoint", "preparing", "discarding")
    with pytest.raises(InvariantViolated, match="S2-withdrawal"):
        world.verb("withdraw")
    assert not world.jobs
    world = reached("checkpoint", "committing", "discarding")
    world.end_file("withdraw", well=True)
    with pytest.raises(InvariantViolated, match="S2-withdrawal"):
        world.verb("withdraw")


@pytest.mark.parametrize("chart", OPERATION_CHARTS)
def test_conditions_lead_nowhere_twice(chart: str) -> None:
    """The edges that joint conditions take form no cycle, so that running them ends."""
    states = load_chart(chart).states
    onward = {
        name: {edge.to for trigger in row.when.values() for edge in row.on[trigger]}
        for name, row in states.items()
    }
    for start in states:
        reachable, waiting = set[str](), [start]
        while waiting:
            waiting += onward[waiting.pop()] - reachable
            reachable.update(waiting)
        assert start not in reachable
