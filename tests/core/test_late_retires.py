"""
What a discarded restore could not retire is retired once its instance is open again.

Round numbers as everywhere (`driver.settings`): a call has 10 s and 5 s of grace, what is
unconfirmed is tried each 30 s, and a lease ends 600 s after the last deadline.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gymckpt.chart import Ignored
from gymckpt.core.effects import SendCall, Tell
from gymckpt.core.operation import OperationState
from tests.core.driver import DEAD, FATAL, SHAKY, World
from tests.core.histories import reached
from tests.core.planted import planted


def names_of(ask: SendCall) -> list[tuple[str, int]]:
    """Return the attempts that an ask names."""
    assert ask.left is not None
    return [(one.rollout_id, one.attempt) for one in ask.left]


def unretired(count: int = 2, *, failure: Any = FATAL) -> World:
    """Return a discarded restore whose first instance did not confirm its retire, at 0 s."""
    world = reached("restore", "restored", count=count)
    world.verb("discard")
    world.fail("retire", 0, failure=failure)
    world.answer("retire", *range(1, count)) if count > 1 else None
    assert world.operation.state == "discarding"
    return world


def reopened(count: int = 2) -> World:
    """Return the same, with every instance open again and the late retire out, at 0 s."""
    world = unretired(count)
    world.answer("resume")
    world.wait(0.0)
    assert [(ask.call, ask.instance[-1], ask.ask) for ask in world.asks] == [("retire", "0", 2)]
    return world


# --- when it leaves -----------------------------------------------------------------------------


def test_it_leaves_when_the_instance_has_reopened() -> None:
    """A late retire waits for its own instance's resume alone, and names the next attempts."""
    world = unretired()
    world.answer("resume", 1)
    world.wait(5.0)
    assert len(world.sent_to("retire", 0)) == 1
    world.answer("resume", 0)
    world.wait(0.0)
    ask = world.latest("retire", 0)
    assert (ask.ask, world.at_s) == (2, 5.0)
    assert names_of(ask) == [("r0-0", 1), ("r0-1", 3)]
    assert len(world.sent_to("retire", 1)) == 1
    world.answer("retire", 0)
    assert world.operation.state == "discarded"


def test_retires_before_the_reopening_name_no_attempts() -> None:
    """What goes out under the restore's own id is the whole inventory's, and is not told apart."""
    world = unretired()
    assert [ask.left for ask in world.sent] == [None] * len(world.sent)


def test_it_never_leaves_while_an_earlier_one_may_arrive() -> None:
    """A late retire that a dead controller had out holds the next one back for 15 s."""
    world = reopened()
    world.take_over(silent_s=4.0)
    assert not world.asks
    world.wait(10.9)
    assert not world.asks
    world.wait(0.1)
    assert (world.at_s, world.latest("retire", 0).ask) == (15.0, 3)


def test_it_is_tried_each_half_minute() -> None:
    """A late retire that fails or hangs is sent again 30 s later, one at a time."""
    world = reopened()
    world.fail("retire", 0, failure=SHAKY)
    world.wait(29.9)
    assert not world.asks
    world.wait(0.1)
    assert world.latest("retire", 0).ask == 3
    world.wait(30.0)
    assert [ask.ask for ask in world.asks] == [4]
    assert world.at_s == 60.0


def test_one_that_is_out_when_another_instance_reopens_is_left_alone() -> None:
    """The timer that another's resume starts sends nothing where an answer is waited for."""
    world = unretired()
    world.answer("resume", 0)
    world.wait(2.0)
    world.answer("resume", 1)
    world.wait(0.0)
    assert [ask.ask for ask in world.sent_to("retire", 0)] == [1, 2]
    world.wait(13.0)  # the budget of the second ends in this instant
    assert world.operation.call_state("retire", world.operation.instances[0]).state == "unanswered"
    world.fire("also")
    assert world.latest("retire", 0).ask == 3


def test_the_timer_may_come_in_the_very_instant_of_a_budget() -> None:
    """Where both timers are due, the order in which they fire does not matter."""
    for first, second in (("also", "budget.retire"), ("budget.retire", "also")):
        world = reopened()
        world.pass_time(15.0)
        world.fire(first)
        world.fire(second)
        assert len(world.asks) <= 1
        world.wait(30.0)
        assert world.latest("retire", 0).ask >= 3


# --- how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["resume", "retire"])
def test_a_dead_instance_owes_nothing(call: str) -> None:
    """An actor that is found dead runs no attempt, whichever call tells of it."""
    world = unretired() if call == "resume" else reopened()
    if call == "resume":
        world.answer("resume", 1)
    world.kill(call, 0)
    assert world.operation.state == "discarded"
    assert world.operation.call_state("retire", world.operation.instances[0]).state == "gone"


def test_it_rests_when_the_lease_horizon_has_passed() -> None:
    """An instance that never confirms is asked each 30 s, and not after its horizon (L2)."""
    world = reopened()
    assert world.operation.lease_horizon_at_s == 610.0
    world.wait_until(lambda world: world.operation.settled)
    last = world.latest("retire", 0)
    assert last.deadline_ts - 10.0 - world.entries[0].ts == 600.0
    assert (world.operation.state, world.at_s, world.timers) == ("discarded", 630.0, {})


def test_one_whose_resume_lapsed_is_asked_once_all_the_same() -> None:
    """An instance that reopened by itself may still run the attempts, so it is asked to stop."""
    for answers in (True, False):
        world = unretired()
        world.answer("resume", 1)
        world.wait_until(lambda world: len(world.sent_to("retire", 0)) == 2)
        found = world.operation.call_state("resume", world.operation.instances[0]).state
        assert (found, world.at_s >= 610.0) == ("lapsed", True)
        if answers:
            world.answer("retire", 0)
        world.wait_until(lambda world: world.operation.settled)
        assert (world.operation.state, len(world.sent_to("retire", 0))) == ("discarded", 2)


def test_late_retires_lengthen_no_lease() -> None:
    """The horizon stays where the last call of the restore itself has put it."""
    world = reopened()
    world.wait(200.0)
    assert world.operation.lease_horizon_at_s == 610.0


def test_the_caller_does_not_wait_for_it() -> None:
    """The verb returns when every instance is open, whatever is still to be retired (L1)."""
    world = unretired()
    world.answer("resume", 1)
    assert not world.released
    world.answer("resume", 0)
    assert (world.released, world.operation.state) == (True, "discarding")


def test_a_takeover_lets_its_own_caller_go() -> None:
    """Where only late retires are left, whoever takes over is let go at once."""
    world = reopened()
    taken = world.take_over(silent_s=1.0)
    assert Tell("discarding", released=True) in taken.effects


def test_an_instance_without_attempts_is_asked_for_nothing() -> None:
    """Where a restore installed nothing, an unconfirmed retire is left at that."""
    inventory: dict[str, Any] = {"main/replica-0": []}
    world = World("restore", 1, facts={"inventory": inventory})
    world.verb("restore")
    world.fail("restore", 0, failure=FATAL)
    world.fail("retire", 0, failure=FATAL)
    world.answer("resume")
    assert (world.operation.state, len(world.sent_to("retire"))) == ("discarded", 1)


# --- a later restore ----------------------------------------------------------------------------


def test_superseded_attempts_are_never_retired() -> None:
    """Once a later restore owes all that is left, the earlier one has ended and sends nothing."""
    world = unretired()
    world.answer("resume")
    taken = world.supersede(0)
    assert [entry.trigger for entry in taken.entries] == ["supersede", "all_settled"]
    assert (world.operation.state, world.timers, world.asks) == ("discarded", {}, [])
    assert len(world.sent_to("retire", 0)) == 1


def test_a_part_that_is_superseded_is_left_out() -> None:
    """A late retire names exactly those attempts that no later restore has taken over."""
    world = unretired()
    world.supersede(0, of=slice(1))
    world.answer("resume")
    world.wait(0.0)
    assert names_of(world.latest("retire", 0)) == [("r0-1", 3)]
    world.answer("retire", 0)
    assert world.operation.state == "discarded"


def test_other_attempts_of_the_same_rollout_are_not_superseded() -> None:
    """A restore of an earlier or later attempt takes nothing over: instance and attempt count."""
    world = unretired()
    other = {
        "main/replica-0": [{"rollout_id": "r0-0", "attempt": attempt} for attempt in (0, 2)],
        "main/replica-1": [{"rollout_id": "r0-0", "attempt": 1}],
    }
    world.verb("supersede", by="op-2", attempts=other)
    world.answer("resume")
    world.wait(0.0)
    assert names_of(world.latest("retire", 0)) == [("r0-0", 1), ("r0-1", 3)]


def test_what_is_out_is_given_up_when_it_is_superseded() -> None:
    """Nobody waits for a retire of superseded attempts; until when it may arrive stays known."""
    world = reopened()
    world.supersede(0)
    found = world.operation.call_state("retire", world.operation.instances[0])
    assert (world.operation.state, found.state) == ("discarded", "unanswered")
    assert found.deadline_at_s == 10.0


def test_instances_are_reopened_whatever_is_superseded() -> None:
    """Superseding takes retires away and no resume: S3 holds as before."""
    world = unretired()
    world.supersede(0, 1)
    assert world.operation.state == "discarding"
    world.wait(1.0)
    world.answer("resume")
    assert world.operation.state == "discarded"


def test_nothing_is_superseded_in_what_has_ended() -> None:
    """A restore that has ended takes no notice."""
    world = reopened()
    world.answer("retire")
    before = world.operation
    taken = world.verb("supersede", by="op-2", attempts={})
    assert isinstance(taken.refused, Ignored)
    assert world.operation == before


@pytest.mark.parametrize("facts", [{}, {"attempts": [1]}, {"attempts": {"x": [{"attempt": 1}]}}])
def test_bad_attempts_supersede_nothing(facts: dict[str, Any]) -> None:
    """What names attempts badly is refused before anything is recorded."""
    world = unretired()
    before, entries = world.operation, len(world.entries)
    with pytest.raises((KeyError, ValueError, AttributeError)):
        world.verb("supersede", **facts)
    assert (world.operation, len(world.entries)) == (before, entries)


ACTS = ("resume", "retire", "fail", "time", "crash", "supersede one", "supersede all")


COURSES = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 2)), max_size=12)


@given(acts=COURSES)
def test_each_attempt_is_retired_superseded_or_rests(acts: list[tuple[str, int]]) -> None:
    """Whatever happens when, what is retired late is exactly what is left then, to open ones."""
    hold_course(acts)


def hold_course(acts: list[tuple[str, int]]) -> None:
    """Let a restore of three instances be discarded, all of them silent at first, and go on."""
    world = reached("restore", "restored", count=3)
    world.verb("discard")
    world.wait(15.0)
    for act, which in acts:
        if world.operation.settled:
            return
        asks = [ask for ask in world.asks if ask.instance.endswith(str(which))]
        if act == "time":
            world.advance()
        elif act == "crash":
            world.take_over(silent_s=float(which))
        elif act.startswith("supersede"):
            world.supersede(which, of=slice(1 if act.endswith("one") else None))
        elif asks and act == "fail":
            world.reply(asks[0], "failed", SHAKY)
        elif asks and asks[0].call == act:
            world.reply(asks[0], "answered")
        hold_left(world.operation, world.sent)
    world.wait_until(lambda world: world.operation.settled)
    assert world.operation.state == "discarded"


def hold_left(operation: OperationState, sent: list[SendCall]) -> None:
    """Require that nothing is out which names an attempt that was superseded when it left."""
    for ask in sent:
        if ask.left is not None:
            assert operation.call_state("resume", ask.instance).state in ("answered", "lapsed")
            assert set(operation.to_retire(ask.instance)) <= set(ask.left)


@pytest.mark.parametrize("fault", ["late_retires_at_once", "superseded_is_retired"])
def test_planted_faults_are_found(fault: str) -> None:
    """Random courses find a retire that races another one, and one of superseded attempts."""
    search = hypothesis_settings(
        max_examples=500, derandomize=True, database=None, phases=(Phase.generate,)
    )
    with planted(fault), pytest.raises((AssertionError, ExceptionGroup)):
        search(given(acts=COURSES)(hold_course))()


# --- broadcasts that are sent until they are confirmed ------------------------------------------


def insisting(call: str = "retire", count: int = 2) -> World:
    """Return a sweep that is sent until it is confirmed, and was sent once, at 0 s."""
    world = reached("sweep", "insisting", count=count)
    if call != "retire":
        world = World("sweep", count, facts={"call": call})
        world.verb("insist")
    world.wait(0.0)
    assert [(ask.call, ask.ask) for ask in world.asks] == [(call, 1)] * count
    return world


def test_an_insistent_retire_names_its_attempts() -> None:
    """Each instance is told the attempts that the opening lists for it, as they are."""
    world = insisting()
    assert [names_of(ask) for ask in world.asks] == [
        [("r0-0", 0), ("r0-1", 2)],
        [("r1-0", 0), ("r1-1", 2)],
    ]
    world.answer("retire")
    assert world.operation.state == "done"


@pytest.mark.parametrize("call", ["retire", "forget", "resume"])
def test_it_is_sent_until_all_have_confirmed(call: str) -> None:
    """One that failed is asked each 30 s by itself; who has confirmed is left alone."""
    world = insisting(call)
    world.answer(call, 1)
    world.fail(call, 0, failure=FATAL)
    assert (world.operation.state, world.released) == ("insisting", True)
    world.wait(30.0)
    assert [(ask.instance[-1], ask.ask) for ask in world.asks] == [("0", 2)]
    world.answer(call, 0)
    assert world.operation.state == "done"


def test_its_caller_waits_for_one_try() -> None:
    """Whoever insists is let go when each instance was asked and has answered or hung (L1)."""
    world = insisting()
    world.answer("retire", 1)
    world.wait(14.9)
    assert not world.released
    world.wait(0.1)
    assert world.released


def test_its_caller_does_not_wait_for_what_was_superseded_meanwhile() -> None:
    """An instance that was never asked, since nothing is left there, holds nobody up."""
    world = reached("sweep", "insisting")
    world.supersede(0)
    world.wait(0.0)
    assert [ask.instance[-1] for ask in world.asks] == ["1"]
    world.fail("retire", 1)
    assert (world.released, world.operation.state) == (True, "insisting")


def test_it_rests_past_its_horizon() -> None:
    """Who never answers is asked no more some time after the horizon of the first ask (L2)."""
    world = insisting(count=1)
    assert world.operation.lease_horizon_at_s == 610.0
    world.wait_until(lambda world: world.operation.settled)
    assert (world.operation.state, world.at_s < 700.0) == ("done", True)


def test_an_operator_may_end_it() -> None:
    """A discard ends it as failed; cancel and settle do not, it goes on without its caller."""
    world = insisting()
    for trigger in ("cancel", "settle"):
        assert isinstance(world.verb(trigger).refused, Ignored)
    world.verb("discard")
    assert (world.operation.state, world.asks, world.timers) == ("failed", [], {})


def test_a_dead_instance_is_left_out() -> None:
    """One whose actor is dead has nothing to retire; the other decides."""
    world = insisting()
    world.fail("retire", 0, failure=DEAD)
    world.answer("retire", 1)
    assert world.operation.state == "done"
