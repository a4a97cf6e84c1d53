"""
Renewals and lost leases, in round numbers (`driver.settings`): a round every 10/3 s, 10 s a budget.

Prepare, at 0 s, was acknowledged until 100 s, and the renewal that confirmed it until 10 s.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.settings import RetryPolicy, Settings
from gymckpt.errors import IllegalTransition
from tests.core.driver import DEAD, FATAL, World, settings
from tests.core.histories import opened, reached

BRIEF = settings(prepare_timeout_s=10.0)
"""Prepare is acknowledged no longer than a renewal: until 10 s."""

ROUND_S = 10 / 3


def parked(count: int = 2, numbers: Settings = BRIEF) -> World:
    """Return a checkpoint whose body runs, at 0 s."""
    return reached("checkpoint", "parked", count=count, numbers=numbers)


def in_round(count: int = 2, numbers: Settings = BRIEF) -> World:
    """Return a checkpoint whose first renewal round has just been sent, at 10/3 s."""
    world = parked(count, numbers)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    assert world.at_s == pytest.approx(ROUND_S)
    return world


def endangered(world: World) -> dict[float, int]:
    """Return when leases in trouble end, rounded, and how many at each instant."""
    return {round(ends_s, 3): count for ends_s, count in world.operation.endangered.items()}


# --- rounds -------------------------------------------------------------------------------------


def test_rounds_begin_at_the_interval() -> None:
    """Rounds that are answered begin every third of the control timeout."""
    world, begun = parked(), list[float]()
    while world.at_s < 30:
        if world.outstanding("renew"):
            begun.append(round(world.at_s / ROUND_S, 6))
            world.answer("renew")
        world.advance()
    assert begun == list(range(1, len(begun) + 1))
    assert len(begun) >= 8


def test_rounds_do_not_overlap() -> None:
    """While an instance has not answered its renewal, no instance is sent the next one."""
    world = in_round()
    world.answer("renew", 1)
    world.wait(2 * ROUND_S)
    assert (len(world.sent_to("renew", 0)), len(world.sent_to("renew", 1))) == (2, 2)
    world.answer("renew", 0)
    world.wait(ROUND_S)
    assert (len(world.sent_to("renew", 0)), len(world.sent_to("renew", 1))) == (3, 3)


def test_rounds_go_on_from_parked_to_committed() -> None:
    """Committing and sealing neither stop the renewals nor begin them anew."""
    world = in_round()
    world.answer("renew")
    world.verb("commit")
    world.wait(ROUND_S)
    assert len(world.outstanding("renew")) == 2
    world.answer("renew")
    world.answer("commit")
    world.wait(ROUND_S)
    world.answer("renew")
    world.end_file("write", well=True)
    world.wait(ROUND_S)
    assert world.operation.state == "committed"
    assert len(world.outstanding("renew")) == 2


def test_a_round_can_be_asked_for() -> None:
    """A renew timer that is fired early begins a round at once, and only one."""
    world = parked()
    world.fire("renew")
    assert len(world.outstanding("renew")) == 2
    world.fire("renew")
    assert len(world.outstanding("renew")) == 2


def test_renewals_stop_with_the_body() -> None:
    """Once instances are being reopened no renewal timer runs and none is waited for."""
    world = in_round()
    world.verb("discard")
    assert not world.outstanding("renew")
    assert set(world.timers) == {"budget.resume"}


# --- lost at once -------------------------------------------------------------------------------


def test_no_lease_is_watched_once_instances_reopen() -> None:
    """A body that ends while a renewal is in trouble leaves neither its retry nor its lease set."""
    world = reached("checkpoint", "parked")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    assert {"lease", "renew", "retry.renew", "budget.renew"} <= set(world.timers)
    world.verb("discard")
    assert set(world.timers) == {"budget.resume"}


@pytest.mark.parametrize("failure", [FATAL, DEAD])
def test_a_failure_that_is_not_transient_loses_the_lease(failure: object) -> None:
    """A renewal that fails for good, or of a dead actor, gives the operation up at once."""
    world = in_round()
    world.fail("renew", 0, failure=failure)  # type: ignore[arg-type]
    assert (world.operation.state, world.at_s) == ("discarding", pytest.approx(ROUND_S))
    cause = world.operation.cause
    assert cause is not None
    assert (cause.trigger, cause.call, cause.facts["failed"]) == ("lose_lease", "renew", 1)


def test_a_deadline_of_a_fraction_of_a_second_is_acknowledged_as_it_is() -> None:
    """What an instance has acknowledged is the deadline of its latest answer, however short."""
    numbers = settings(control_timeout_s=0.3, prepare_timeout_s=0.2)
    world = reached("checkpoint", "preparing", numbers=numbers)
    world.answer("prepare")
    first, second = world.operation.instances
    known_s = world.operation.acknowledged_at_s
    assert (known_s[first], known_s[second]) == pytest.approx((0.2, 0.2), abs=1e-6)
    world.wait(0.1)
    world.answer("renew", 0)
    known_s = world.operation.acknowledged_at_s
    assert (known_s[first], known_s[second]) == pytest.approx((0.3, 0.2), abs=1e-6)


def test_a_lease_is_lost_at_once_however_young_the_operation_is() -> None:
    """A renewal that fails for good a tenth of a second after the opening loses the lease then."""
    numbers = settings(control_timeout_s=0.3, prepare_timeout_s=0.3)
    world = reached("checkpoint", "parked", numbers=numbers)
    world.wait(0.1)
    world.fail("renew", 0, failure=FATAL)
    assert (world.operation.state, world.at_s) == ("discarding", 0.1)


def test_not_ready_loses_the_lease() -> None:
    """An instance that answers a renewal with not ready is not parked any more."""
    world = in_round()
    world.refuse("renew", 0)
    assert world.operation.state == "discarding"
    assert world.operation.cause is not None
    assert world.operation.cause.facts["sample"][0]["failure"] == {
        "type": "NotReady",
        "text": "the instance answered: not ready",
        "transient": False,
        "dead": False,
    }


@pytest.mark.parametrize("state", ["parked", "committing", "sealing", "committed"])
def test_a_lease_is_watched_in_every_state_that_renews(state: str) -> None:
    """Whatever the checkpoint is doing while parked, a lost lease gives it up."""
    world = reached("checkpoint", state, numbers=BRIEF)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 1, failure=FATAL)
    assert world.operation.state == "discarding"


def test_a_restore_that_loses_a_lease_retires() -> None:
    """A lease that is lost while restored attempts are held retires them before reopening."""
    world = reached("restore", "restored")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 1, failure=FATAL)
    assert world.operation.state == "retiring"


# --- presumed lost ------------------------------------------------------------------------------


def test_a_transient_failure_is_borne_until_the_acknowledged_deadline() -> None:
    """A renewal that fails transiently is tried until 10 s, the last acknowledged deadline."""
    world = in_round()
    world.answer("renew", 1)
    world.fail("renew", 0)
    while world.operation.state == "parked" and world.at_s < 9.999:
        world.advance()
        if world.operation.state == "parked" and world.outstanding("renew"):
            world.fail("renew", *{ask.instance for ask in world.outstanding("renew")})
    assert (world.operation.state, world.at_s) == ("discarding", pytest.approx(10.0))
    assert len(world.sent_to("renew", 0)) == 3
    assert len(world.sent_to("renew", 1)) == 2


@pytest.mark.parametrize("fails_s", [4.0, 9.0, 9.9, 9.999])
def test_the_lease_ends_when_it_ends_however_late_the_trouble_comes(fails_s: float) -> None:
    """A renewal that fails shortly before the last acknowledged deadline loses the lease at it."""
    world = in_round(count=1)
    world.wait(fails_s - world.at_s)
    world.fail("renew", 0)
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == pytest.approx(10.0, abs=1e-5)


def test_the_end_of_a_lease_is_noticed_without_any_other_timer() -> None:
    """A lease that ends between rounds, retries and budgets is lost at its end all the same."""
    world = opened("checkpoint", 1, BRIEF)
    world.verb("prepare")
    world.answer("prepare")
    world.wait(0.7)
    world.answer("renew")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.wait(9.5 - world.at_s)
    world.fail("renew", 0)
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == pytest.approx(10.0, abs=1e-5)


def test_no_round_begins_while_an_actor_is_dead() -> None:
    """While the failures of a commit are gathered, nobody is renewed beside a dead actor."""
    world = reached("checkpoint", "committing", count=3)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("commit", 0, failure=FATAL)
    world.kill("renew", 0)
    world.answer("renew", 1, 2)
    world.fire("renew")
    assert (world.operation.state, world.outstanding("renew")) == ("committing", [])
    world.wait(1.0)
    assert world.operation.state == "discarding"


def test_an_unanswered_renewal_is_trouble_when_its_budget_is_over() -> None:
    """A renewal that hangs past deadline and grace loses a lease whose acknowledgement is over."""
    world = in_round()
    world.answer("renew", 1)
    world.wait(15.0 - 1e-3)
    assert world.operation.state == "parked"
    world.wait(2e-3)
    assert world.operation.state == "discarding"


def test_an_unanswered_renewal_is_borne_while_prepare_is_acknowledged() -> None:
    """A prepare that was acknowledged until 100 s keeps a lease whose renewals hang until then."""
    world = in_round(numbers=settings())
    world.wait_until(lambda world: world.operation.state != "parked")
    assert world.at_s == pytest.approx(100.0)


def test_an_answered_retry_ends_the_trouble() -> None:
    """A renewal that is answered at the second try is in no trouble, and rounds go on."""
    world = in_round()
    world.fail("renew", 0)
    world.answer("renew", 1)
    assert endangered(world) == {10.0: 1}
    world.wait(ROUND_S)
    world.answer("renew", 0)
    assert not world.operation.endangered
    while world.at_s < 40:
        if world.outstanding("renew"):
            world.answer("renew")
        world.advance()
    assert world.operation.state == "parked"


def test_an_answer_to_commit_acknowledges_its_deadline() -> None:
    """
    An instance that is busy with a commit may fail renewals meanwhile.

    Its answer to the commit, which was sent at 20/3 s, acknowledges the commit's deadline, 50/3 s,
    so that a renewal in trouble loses the lease then and not at 40/3 s.
    """
    world = in_round(count=1)
    world.answer("renew")
    world.wait(ROUND_S)
    world.verb("commit")
    world.wait(1.0)
    world.fail("renew", 0)
    assert endangered(world) == {13.333: 1}
    world.answer("commit")
    assert endangered(world) == {16.667: 1}
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == pytest.approx(5 * ROUND_S)


def test_an_answer_acknowledges_no_deadline_but_its_own() -> None:
    """
    An answer to an older call says nothing of the deadline that a later one carried.

    The commit of 20/3 s carries 50/3 s. A round of 10 s carries 20 s; it fails on one instance,
    which answers the commit afterwards: its lease ends at 50/3 s all the same.
    """
    world = in_round()
    world.answer("renew")
    world.wait(ROUND_S)
    if world.outstanding("renew"):
        world.answer("renew")
    world.verb("commit")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    assert world.at_s == pytest.approx(3 * ROUND_S)
    world.fail("renew", 0)
    world.answer("renew", 1)
    world.answer("commit", 0)
    assert endangered(world) == {16.667: 1}
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == pytest.approx(5 * ROUND_S)


def test_an_earlier_lease_moves_the_lease_timer() -> None:
    """Trouble with a lease that ends earlier than the one that is watched is noticed in time."""
    world = in_round(count=3)
    world.answer("renew", 1)
    world.wait(ROUND_S)
    world.answer("renew", 2)
    world.answer("renew", 0)
    world.wait(ROUND_S)
    world.verb("commit")
    world.answer("commit", 0)
    world.fail("renew", 0)
    assert world.timers["lease"] == pytest.approx(world.at_s + 10.0)
    world.fail("renew", 1)
    assert world.timers["lease"] == pytest.approx(ROUND_S + 10.0)
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == pytest.approx(ROUND_S + 10.0)


def test_a_lease_timer_after_the_trouble_is_harmless() -> None:
    """The timer of a lease whose renewal was answered meanwhile loses nothing."""
    world = in_round(count=1)
    world.fail("renew", 0)
    world.wait(ROUND_S)
    world.answer("renew")
    assert world.timers["lease"] == pytest.approx(10.0)
    while world.at_s < 12.0:
        if world.outstanding("renew"):
            world.answer("renew")
        world.advance()
    assert world.operation.state == "parked"
    assert "lease" not in world.timers


# --- what an instant has brought about comes first ----------------------------------------------


def endangered_past_its_end() -> World:
    """Return a checkpoint whose lease ended at 10 s, at 10.5 s, with the lease's timer late."""
    world = in_round(count=1)
    world.fail("renew", 0)
    world.pass_time(10.5 - world.at_s)
    return world


def test_no_commit_after_a_lease_must_be_presumed_lost() -> None:
    """A commit in the instant after a lease ended sends nothing, though no timer has fired yet."""
    world = endangered_past_its_end()
    taken = world.verb("commit")
    assert isinstance(taken.refused, IllegalTransition)
    assert "cannot take 'commit' in state 'discarding'" in str(taken.refused)
    assert taken.entries[0].trigger == "lose_lease"
    assert not world.sent_to("commit", 0)
    assert world.operation.state == "discarding"


def test_a_commit_is_not_retried_after_a_lease_must_be_presumed_lost() -> None:
    """A commit's retry that is due after a lease ended gives the operation up instead."""
    numbers = attrs.evolve(BRIEF, retries={"commit": RetryPolicy(attempts=2, pause_s=1.0)})
    world = in_round(count=1, numbers=numbers)
    world.verb("commit")
    world.fail("renew", 0)
    world.fail("commit", 0)
    world.pass_time(10.5 - world.at_s)
    world.fire("retry.commit")
    assert world.operation.state == "discarding"
    assert len(world.sent_to("commit", 0)) == 1


def test_discarding_after_a_lost_lease_keeps_the_lease_as_its_cause() -> None:
    """A body that ends since its lease was lost does not cover that up, however late timers are."""
    world = endangered_past_its_end()
    taken = world.verb("discard", reason="the body failed")
    assert taken.refused is not None
    assert world.operation.cause is not None
    assert world.operation.cause.trigger == "lose_lease"


def test_keeping_a_restore_whose_lease_is_lost_retires_it() -> None:
    """A restore is not kept in the instant after a lease ended; that is no defect of the caller."""
    world = reached("restore", "restored", count=1)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    world.pass_time(20.0)
    taken = world.verb("keep")
    assert taken.refused is not None
    assert world.operation.state == "retiring"


# --- confirming ---------------------------------------------------------------------------------


def test_confirming_retries_while_the_lease_lasts() -> None:
    """The renewal before the body is tried again while prepare's deadline lasts, in one budget."""
    world = reached("checkpoint", "confirming", count=1, numbers=settings())
    world.fail("renew", 0)
    world.wait(ROUND_S)
    assert len(world.sent_to("renew", 0)) == 2
    assert world.latest("renew").deadline_ts == world.sent_to("renew", 0)[0].deadline_ts
    world.answer("renew")
    assert world.operation.state == "parked"


def test_confirming_ends_with_the_lease() -> None:
    """A renewal that failed is not tried again once prepare's own deadline has passed."""
    numbers = settings(prepare_timeout_s=3.0)
    world = reached("checkpoint", "confirming", count=2, numbers=numbers)
    world.fail("renew", 0)
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert len(world.sent_to("renew", 0)) == 1
    assert world.at_s == pytest.approx(ROUND_S + 1.0)


@given(
    committed=st.lists(st.booleans(), min_size=4, max_size=4),
    failing=st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
)
def test_the_first_lease_to_end_is_the_one_that_counts(
    committed: list[bool], failing: list[bool]
) -> None:
    """Whoever has answered the commit, the operation is given up when the first lease ends."""
    world = in_round(count=4)
    world.answer("renew")
    ends_s = [world.at_s + 10.0] * 4
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.verb("commit")
    for which in range(4):
        if committed[which]:
            world.answer("commit", which)
            ends_s[which] = world.at_s + 10.0
        if failing[which]:
            world.fail("renew", which)
        else:
            world.answer("renew", which)
    first_s = min(end for end, fails in zip(ends_s, failing, strict=True) if fails)
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.operation.entered_at_s == pytest.approx(first_s, abs=1e-3)
    assert world.operation.cause is not None
    assert world.operation.cause.trigger == "lose_lease"


def test_leases_that_end_together_are_counted() -> None:
    """Of two renewals in trouble one that is answered leaves the other's lease endangered."""
    world = in_round(count=3)
    world.fail("renew", 0, 1)
    world.answer("renew", 2)
    assert endangered(world) == {10.0: 2}
    world.wait(ROUND_S)
    world.answer("renew", 0)
    assert endangered(world) == {10.0: 1}
    world.answer("renew", 1)
    assert endangered(world) == {}


def test_a_doomed_commit_is_not_retried_while_its_failures_are_gathered() -> None:
    """
    Nobody is asked to commit again once the commit cannot succeed and a lease is lost.

    An instance that dies fails its commit and then its renewal. For a second other failures of the
    commit are waited for, and in that second another instance's retry falls due.
    """
    numbers = settings(retries={"commit": RetryPolicy(attempts=3, pause_s=0.5)})
    world = in_round(count=3, numbers=numbers)
    world.verb("commit")
    world.fail("commit", 1)
    world.kill("commit", 0)
    world.kill("renew", 0)
    assert world.operation.state == "committing"
    world.wait(0.9)
    assert len(world.sent_to("commit", 1)) == 1
    world.wait(0.2)
    cause = world.operation.cause
    assert cause is not None
    assert (cause.trigger, cause.call, cause.facts["failed"]) == ("refuse", "commit", 2)
