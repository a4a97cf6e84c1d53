"""
How long the core waits: budgets, deadlines, retries, and giving up early.

Worlds here use round numbers (`driver.settings`): 100 s for prepare, 10 s for every other call, 5 s
of grace, 1 s to settle, a renewal every 10/3 s, two tries at resuming with 1 s between them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.events import FailureRecord
from gymckpt.core.settings import RetryPolicy, Settings
from tests.core.driver import DEAD, FATAL, SHAKY, START_TS, World, settings
from tests.core.histories import opened, reached, triggers_of


def patient(call: str, attempts: int = 2, pause_s: float = 4.0) -> Settings:
    """Return the round numbers with a policy for one call."""
    return settings(retries={call: RetryPolicy(attempts=attempts, pause_s=pause_s)})


def left_s(world: World, call: str, which: int = 0) -> float:
    """Return how long the latest ask of a call has been given when it was sent just now."""
    return round(world.latest(call, which).deadline_ts - world.moment.ts, 6)


# --- budgets and deadlines ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chart", "state", "call", "budget_s"),
    [
        ("checkpoint", "preparing", "prepare", 100.0),
        ("checkpoint", "confirming", "renew", 10.0),
        ("checkpoint", "committing", "commit", 10.0),
        ("checkpoint", "resuming", "resume", 10.0),
        ("checkpoint", "discarding", "resume", 10.0),
        ("restore", "restoring", "restore", 10.0),
        ("restore", "retiring", "retire", 10.0),
        ("sweep", "calling", "retire", 10.0),
    ],
)
def test_first_ask_carries_the_whole_budget(
    chart: str, state: str, call: str, budget_s: float
) -> None:
    """Entering a state asks every instance under one deadline: now plus the state's budget."""
    world = reached(chart, state)
    assert [ask.instance for ask in world.outstanding(call)] == list(world.operation.instances)
    assert {left_s(world, call, which) for which in (0, 1)} == {budget_s}
    assert world.timers[f"budget.{call}"] == world.at_s + budget_s + 5.0


def test_prepare_expires_after_its_deadline_and_grace() -> None:
    """An unanswered prepare is waited for 105 s to the moment, then the rest is reopened."""
    world = reached("checkpoint", "preparing")
    world.answer("prepare", 1)
    world.wait(104.999)
    assert world.operation.state == "preparing"
    world.wait(0.001)
    assert world.operation.state == "discarding"
    found = world.operation.call_state("prepare", world.operation.instances[0])
    assert (found.state, found.abandoned) == ("unanswered", False)
    assert found.failure == FailureRecord(
        type="TimeoutError", text="no answer to prepare within 105 s", transient=True, dead=False
    )


def test_phase_retry_shares_the_deadline() -> None:
    """A prepare that is sent again after 30 s has the 70 s that are left, and no grace is added."""
    world = opened("checkpoint", numbers=patient("prepare"))
    world.verb("prepare")
    world.wait(26.0)
    world.fail("prepare", 0)
    world.wait(4.0)
    assert [ask.ask for ask in world.sent_to("prepare", 0)] == [1, 2]
    assert [ask.ask for ask in world.sent_to("prepare", 1)] == [1]
    assert {ask.deadline_ts for ask in world.sent} == {START_TS + 100.0}
    world.wait(75.0)
    assert (world.at_s, world.operation.state) == (105.0, "discarding")


def test_resume_retry_gets_a_fresh_deadline() -> None:
    """Each try at reopening has the whole control budget, whenever it is made."""
    world = reached("checkpoint", "discarding")
    world.wait(15.0)
    world.wait(1.0)
    assert (world.at_s, left_s(world, "resume")) == (16.0, 10.0)
    world.wait(15.0)
    assert world.at_s == 31.0
    assert world.released


def test_retire_retry_gets_a_fresh_deadline() -> None:
    """Retiring what a restore installed is tried with the whole control budget each time."""
    world = opened("restore", numbers=patient("retire"))
    world.verb("restore")
    world.verb("discard")
    world.wait(15.0 + 4.0)
    assert (world.at_s, left_s(world, "retire")) == (19.0, 10.0)
    world.wait(15.0)
    assert triggers_of(world)[-1] == "give_up"


def test_renewals_get_a_fresh_deadline_each_round() -> None:
    """Every renewal round carries the control budget from its own start."""
    world = reached("checkpoint", "parked")
    for round_ in (1, 2, 3):
        world.wait_until(lambda world: bool(world.outstanding("renew")))
        assert world.at_s == pytest.approx(round_ * 10 / 3)
        assert left_s(world, "renew") == pytest.approx(10.0)
        world.answer("renew")


@pytest.mark.parametrize("offset_s", [-3600.0, 3600.0])
def test_wall_clock_steps_change_only_deadlines(offset_s: float) -> None:
    """A wall clock that is set moves what goes on the wire, and no timer, state or order."""

    def lived(offset_s: float) -> World:
        world = reached("checkpoint", "committing")
        world.wall_offset_s = offset_s
        world.answer("commit", 1)
        world.wait_until(lambda world: world.outstanding_withdrawals())
        world.end_file("withdraw", well=True)
        world.wait_until(lambda world: world.operation.settled)
        return world

    calm, set_back = lived(0.0), lived(offset_s)
    assert set_back.at_s == pytest.approx(calm.at_s)
    seen = [
        [
            (e.instance, e.call, e.ask, e.trigger, e.source, e.dest, round(e.at_s, 3))
            for e in w.entries
        ]
        for w in (set_back, calm)
    ]
    assert seen[0] == seen[1]
    moved = {
        round(one.deadline_ts - other.deadline_ts, 3)
        for one, other in zip(set_back.sent, calm.sent, strict=True)
    }
    assert moved == {0.0, offset_s}


def test_timers_that_fire_a_hair_early_expire_what_is_due() -> None:
    """A budget's timer that fires a tenth of a microsecond early still ends the wait."""
    world = reached("checkpoint", "preparing")
    world.pass_time(105.0 - 1e-7)
    world.fire("budget.prepare")
    assert world.operation.state == "discarding"


def test_timers_that_fire_early_wait_for_the_rest() -> None:
    """A budget's timer that fires long before its time ends nothing and is set again."""
    world = reached("checkpoint", "preparing")
    world.pass_time(60.0)
    world.fire("budget.prepare")
    assert world.operation.state == "preparing"
    assert world.timers["budget.prepare"] == 105.0


def test_sealing_that_hangs_is_given_up() -> None:
    """A manifest that is not durable after 15 s never counts: it is withdrawn, if it ever lands."""
    world = reached("checkpoint", "sealing")
    world.wait_until(lambda world: world.operation.state != "sealing" or bool(world.asks))
    while world.operation.state == "sealing":
        if world.outstanding("renew"):
            world.answer("renew")
        world.advance()
    assert world.at_s == pytest.approx(15.0)
    assert world.operation.state == "discarding"
    assert world.operation.cause is not None
    assert world.operation.cause.facts["failure"] == {
        "type": "TimeoutError",
        "text": "the file system did not answer within 15 s",
        "transient": False,
        "dead": False,
    }
    late = world.end_file("write", well=True)
    assert late.refused is not None
    world.end_file("withdraw", well=True)
    world.answer("resume")
    assert (world.operation.state, world.manifest) == ("discarded", False)


def test_each_ask_expires_by_its_own_deadline() -> None:
    """Of three resumes that were sent at 0, 4 and 8 s each is given up 15 s after its sending."""
    world = reached("checkpoint", "preparing", "discarding", count=3)
    world.wait(3.0)
    world.fail("resume", 1)
    world.wait(4.0)
    world.fail("resume", 2)
    world.wait(30.0)
    expired = {
        (entry.instance[-1], entry.ask): entry.at_s
        for entry in world.entries
        if entry.instance and (entry.call, entry.trigger) == ("resume", "expire")
    }
    assert expired == {("0", 1): 15.0, ("1", 2): 19.0, ("2", 2): 23.0, ("0", 2): 31.0}


# --- giving up early (L3) -----------------------------------------------------------------------


def test_a_dead_actor_ends_a_long_prepare_in_a_second() -> None:
    """With one actor dead, the others are waited for 1 s of their 300, then all are reopened."""
    world = opened("checkpoint", 3, settings(prepare_timeout_s=300.0))
    world.verb("prepare")
    world.wait(2.0)
    world.kill("prepare", 0)
    world.answer("prepare", 1)
    world.wait(0.999)
    assert world.operation.state == "preparing"
    world.wait(0.001)
    assert (world.at_s, world.operation.state) == (3.0, "discarding")
    prepared = world.operation.calls["prepare"]
    assert [prepared.get(name).state for name in world.operation.instances] == [
        "gone",
        "answered",
        "unanswered",
    ]
    assert prepared.get(world.operation.instances[2]).abandoned
    assert {ask.instance for ask in world.outstanding("resume")} == set(world.operation.instances)


@pytest.mark.parametrize("outcome", ["refuse", "fatal"])
def test_what_no_retry_can_mend_ends_a_phase_early(outcome: str) -> None:
    """Not ready, and a failure that a retry would only hide, end a phase as a dead actor does."""
    world = opened("checkpoint", numbers=patient("prepare", attempts=3))
    world.verb("prepare")
    if outcome == "refuse":
        world.refuse("prepare", 0)
    else:
        world.fail("prepare", 0, failure=FATAL)
    world.wait(1.0)
    assert (world.at_s, world.operation.state) == (1.0, "discarding")


def test_failures_that_arrive_together_are_reported_together() -> None:
    """Failures within the settling time are all counted in the cause; later ones are not."""
    world = opened("checkpoint", 4)
    world.verb("prepare")
    world.fail("prepare", 0, failure=FATAL)
    world.wait(0.5)
    world.refuse("prepare", 1)
    world.wait(0.5)
    cause = world.operation.cause
    assert cause is not None
    assert (cause.trigger, cause.call, cause.facts["failed"]) == ("refuse", "prepare", 2)
    assert [found["state"] for found in cause.facts["sample"]] == ["failed", "refused"]
    assert cause.facts["instances"] == 4


def test_the_last_reply_ends_a_phase_at_once() -> None:
    """When nobody is left to wait for, the settling time is not waited for."""
    world = reached("checkpoint", "preparing")
    world.answer("prepare", 1)
    world.fail("prepare", 0, failure=FATAL)
    assert (world.at_s, world.operation.state) == (0.0, "discarding")


def test_settling_ends_with_the_budget_at_the_latest() -> None:
    """A failure half a second before the budget is over does not make the phase a second longer."""
    world = reached("checkpoint", "preparing")
    world.wait(104.5)
    world.fail("prepare", 0, failure=FATAL)
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == 105.0


def test_settling_without_a_doomed_phase_is_harmless() -> None:
    """The settling timer of a phase that was left, fired late, refuses no other phase."""
    world = reached("checkpoint", "confirming")
    world.fire("settle")
    assert world.operation.state == "confirming"
    world.answer("renew")
    assert world.operation.state == "parked"


def test_a_failure_with_tries_left_does_not_end_a_phase() -> None:
    """A transient failure with a try left costs no more than the pause."""
    world = opened("checkpoint", numbers=patient("prepare"))
    world.verb("prepare")
    world.fail("prepare", 0)
    world.answer("prepare", 1)
    world.wait(3.999)
    assert world.operation.state == "preparing"
    assert not world.outstanding("prepare")
    world.wait(0.001)
    world.answer("prepare")
    assert (world.at_s, world.operation.state) == (4.0, "confirming")


def test_tries_that_are_used_up_end_a_phase() -> None:
    """The third transient failure of three tries ends the phase at once."""
    world = opened("checkpoint", 1, patient("prepare", attempts=3, pause_s=1.0))
    world.verb("prepare")
    for _ in range(3):
        assert world.operation.state == "preparing"
        world.fail("prepare", 0)
        world.wait(1.0)
    assert world.operation.state == "discarding"
    assert [ask.ask for ask in world.sent_to("prepare", 0)] == [1, 2, 3]


def test_no_retry_is_waited_for_in_a_phase_that_has_failed() -> None:
    """A transient failure with a try left starts no retry once another one cannot be mended."""
    world = opened("checkpoint", 3, patient("prepare"))
    world.verb("prepare")
    world.fail("prepare", 0, failure=FATAL)
    world.fail("prepare", 1, failure=SHAKY)
    assert set(world.timers) == {"budget.prepare", "settle"}


def test_no_retry_after_the_deadline() -> None:
    """A failure whose pause reaches the deadline is not retried; others get the settling time."""
    world = opened("checkpoint", numbers=patient("prepare"))
    world.verb("prepare")
    world.wait(98.0)
    world.fail("prepare", 0)
    world.wait(2.0)
    assert world.operation.state == "preparing"
    world.wait(1.0)
    assert (world.at_s, world.operation.state) == (101.0, "discarding")
    assert len(world.sent_to("prepare", 0)) == 1


def test_an_unanswered_phase_is_not_retried() -> None:
    """An ask that used up the whole budget leaves nothing for another one."""
    world = opened("checkpoint", numbers=patient("prepare"))
    world.verb("prepare")
    world.wait(200.0)
    assert world.sent_to("prepare", 0)[-1].ask == 1


@pytest.mark.parametrize("failure", [FATAL, DEAD])
def test_only_transient_failures_are_retried(failure: object) -> None:
    """A failure that is not transient, and death, use up no further try."""
    world = reached("checkpoint", "discarding")
    world.answer("resume", 1)
    world.fail("resume", 0, failure=failure)  # type: ignore[arg-type]
    world.wait(20.0)
    assert len(world.sent_to("resume", 0)) == 1


def test_a_retry_that_was_stopped_too_late_sends_nothing() -> None:
    """
    The retry timer of a state that was left sends nothing, in any state.

    It may have run out in the same instant in which the operation was given up.
    """
    world = opened("restore", numbers=patient("restore"))
    world.verb("restore")
    world.fail("restore", 0)
    world.verb("cancel")
    sent = len(world.sent)
    world.fire("retry.restore")
    assert (world.operation.state, len(world.sent)) == ("retiring", sent)


def test_a_renewal_retry_that_was_stopped_too_late_sends_nothing() -> None:
    """After a body failed while a renewal was in trouble, its retry does not renew after resume."""
    world = reached("checkpoint", "parked")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    world.verb("discard")
    sent = len(world.sent)
    for timer in ("retry.renew", "lease", "renew", "budget.renew"):
        world.fire(timer)
    assert len(world.sent) == sent
    assert not {"lease", "renew", "retry.renew"} & set(world.timers)


def test_retries_rest_between_tries() -> None:
    """A second resume leaves a second after the first one failed, to whom it failed."""
    world = reached("checkpoint", "discarding")
    world.wait(3.0)
    world.fail("resume", 0)
    world.wait(0.999)
    assert len(world.sent_to("resume", 0)) == 1
    world.wait(0.001)
    assert (len(world.sent_to("resume", 0)), len(world.sent_to("resume", 1))) == (2, 1)


# --- formulas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control_s", "interval_s"),
    [(0.001, 0.01), (0.03, 0.01), (0.3, 0.1), (10.0, 10 / 3), (30.0, 10.0), (3600.0, 10.0)],
)
def test_renew_interval(control_s: float, interval_s: float) -> None:
    """A round begins every third of the control timeout, but within 10 ms and 10 s."""
    assert settings(control_timeout_s=control_s).renew_interval_s == pytest.approx(interval_s)


@given(
    fails_s=st.lists(st.floats(0, 99), min_size=1, max_size=5),
    settle_s=st.floats(0, 5),
)
def test_a_doomed_phase_ends_within_the_settling_time(
    fails_s: list[float], settle_s: float
) -> None:
    """However failures spread, a phase ends `settle_s` after the first that no retry can mend."""
    world = opened("checkpoint", 6, settings(settle_s=settle_s))
    world.verb("prepare")
    first_s = min(fails_s)
    for which, at_s in sorted(enumerate(fails_s), key=lambda found: found[1]):
        world.wait(max(0.0, at_s - world.at_s))
        if world.operation.state == "preparing":
            world.fail("prepare", which, failure=FATAL)
    world.wait_until(lambda world: world.operation.state == "discarding")
    entered_s = world.operation.entered_at_s
    assert entered_s == pytest.approx(first_s + settle_s)


def test_transient_failures_alone_do_not_start_the_settling_time() -> None:
    """While every failure may still be mended, nothing is given up before the tries are used."""
    world = opened("checkpoint", numbers=patient("prepare", attempts=2, pause_s=30.0))
    world.verb("prepare")
    world.fail("prepare", 0, 1, failure=SHAKY)
    world.wait(29.0)
    assert world.operation.state == "preparing"
    assert "settle" not in world.timers
