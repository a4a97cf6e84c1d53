"""
Reopening, whatever happened: late answers, sweeps, lease horizons, withdrawals.

Worlds use round numbers (`driver.settings`): resume has 10 s and 5 s of grace, two tries with 1 s
between them; a sweep comes 30 s later; leases of a checkpoint that got no further than prepare end
600 s after its deadline, at 700 s.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.effects import CancelCall, SendCall
from gymckpt.errors import IllegalTransition, InvariantViolated
from tests.core.driver import DEAD, FATAL, ROOT, SHAKY, World, settings
from tests.core.histories import opened, reached, triggers_of


def discarding(count: int = 2) -> World:
    """Return a checkpoint that was given up while it prepared, at 0 s."""
    return reached("checkpoint", "preparing", "discarding", count=count)


def unconfirmed() -> World:
    """Return a checkpoint whose two instances answered neither try, just released at 31 s."""
    world = discarding()
    world.wait_until(lambda world: world.released)
    assert world.at_s == 31.0
    return world


def where(world: World, which: int = 0) -> str:
    """Return where the resume of an instance stands."""
    return world.operation.call_state("resume", world.operation.instances[which]).state


# --- answers ------------------------------------------------------------------------------------


def test_everybody_is_asked_to_resume_whatever_prepare_came_to() -> None:
    """Instances that refused, failed, died or did not answer are all sent resume."""
    world = opened("checkpoint", 5)
    world.verb("prepare")
    world.answer("prepare", 0)
    world.refuse("prepare", 1)
    world.fail("prepare", 2, failure=FATAL)
    world.kill("prepare", 3)
    world.wait(1.0)
    resumed = [ask.instance for ask in world.outstanding("resume")]
    assert resumed == list(world.operation.instances)


def test_a_late_answer_confirms() -> None:
    """An answer to the first resume that comes while the second is out proves the work done."""
    world = discarding()
    world.answer("resume", 1)
    world.wait(16.0)
    first, second = world.sent_to("resume")
    taken = world.reply(first, "answered")
    assert (where(world), world.operation.state) == ("answered", "discarded")
    assert CancelCall(second.instance, "resume") in taken.effects


def test_a_late_answer_after_both_tries_confirms() -> None:
    """A resume that is answered after its operation was released ends the operation."""
    world = unconfirmed()
    for which in (0, 1):
        world.reply(world.sent_to("resume", which)[0], "answered")
    assert world.operation.state == "discarded"
    assert not world.timers


def test_death_is_believed_whichever_ask_tells_of_it() -> None:
    """An actor that is reported dead by its first resume needs no answer to the second."""
    world = discarding()
    world.answer("resume", 1)
    world.wait(16.0)
    world.reply(world.sent_to("resume")[0], "failed", DEAD)
    assert (where(world), world.operation.state) == ("gone", "discarded")


def test_a_late_failure_of_an_earlier_ask_is_stale() -> None:
    """An earlier resume that fails late says nothing about the one that is out."""
    world = discarding()
    world.wait(16.0)
    first, second = world.sent_to("resume")
    assert world.reply(first, "failed", FATAL).effects == ()
    assert (where(world), second in world.asks) == ("asked", True)
    stale = world.entries[-1]
    assert (stale.trigger, stale.source, stale.dest, stale.ask) == ("stale", "asked", "asked", 1)
    assert stale.facts == {"outcome": "failed"}


@given(
    state=st.sampled_from(("preparing", "confirming", "parked", "committing", "committed")),
    outcome=st.sampled_from(
        (("answered", None), ("refused", None), ("failed", SHAKY), ("failed", FATAL))
    ),
)
def test_answers_that_no_longer_count_move_nothing(state: str, outcome: tuple[str, None]) -> None:
    """Whatever comes once more for an ask that was answered is recorded, and moves nothing."""
    world = reached("checkpoint", state)
    done = [ask for ask in world.sent if ask not in world.asks]
    for ask in done:
        before, timers = world.operation, dict(world.timers)
        taken = world.reply(ask, *outcome)  # type: ignore[arg-type]
        assert [entry.trigger for entry in taken.entries] == ["stale"]
        assert (taken.effects, world.timers) == ((), timers)
        assert world.operation.calls == before.calls
        assert world.operation.state == before.state


def test_not_ready_to_resume_is_a_failure() -> None:
    """An instance that answers a resume with not ready is asked again by the sweeps."""
    world = discarding(count=1)
    world.refuse("resume", 0)
    assert (where(world), world.released) == ("failed", True)
    world.wait(30.0)
    world.answer("resume")
    assert world.operation.state == "discarded"


# --- released, swept, lapsed --------------------------------------------------------------------


def test_two_tries_then_the_caller_is_released() -> None:
    """Two tries of 15 s with a second between them bound what the verb waits for, at 31 s."""
    world = unconfirmed()
    assert (world.operation.state, world.operation.settled) == ("discarding", False)
    assert world.timers == {"sweep": 61.0}


def test_a_released_operation_listens_no_more_between_sweeps() -> None:
    """Nothing stays outstanding for an operation whose next try is a sweep."""
    world = unconfirmed()
    assert world.asks == []


def test_sweeps_ask_only_whom_it_is_owed() -> None:
    """A sweep asks the unconfirmed instances once each, and those that answered not at all."""
    world = discarding(count=3)
    world.answer("resume", 1)
    world.fail("resume", 2, failure=FATAL)
    world.wait_until(lambda world: world.released)
    sent = len(world.sent)
    world.wait(30.0)
    asked = [(ask.instance[-1], ask.ask) for ask in world.sent[sent:]]
    assert asked == [("0", 3), ("2", 2)]


def test_a_sweep_can_be_asked_for() -> None:
    """The next operation may sweep at once; while asks are out, another sweep sends nothing."""
    world = unconfirmed()
    world.fire("sweep")
    assert len(world.outstanding("resume")) == 2
    world.fire("sweep")
    assert len(world.outstanding("resume")) == 2


def test_a_sweep_waits_for_the_one_before() -> None:
    """While one instance is being asked again, a sweep sends nothing to another that failed."""
    world = discarding()
    world.fail("resume", 0, failure=FATAL)
    world.fire("sweep")
    assert len(world.sent_to("resume", 0)) == 1
    world.fail("resume", 1)
    world.wait(1.0)
    world.fire("sweep")
    assert len(world.sent_to("resume", 0)) == 1


def test_the_caller_is_told_once_that_it_may_go() -> None:
    """A late answer of one of two instances starts no second sweep and releases nobody again."""
    world = unconfirmed()
    assert world.reply(world.latest("resume", 0), "answered").effects == (
        CancelCall(world.operation.instances[0], "resume"),
    )


def test_sweeping_goes_on_until_the_horizon_and_not_beyond() -> None:
    """Silent instances are asked every 45 s until 700 s; then they lapse, and it has ended."""
    world = unconfirmed()
    world.wait_until(lambda world: world.operation.settled)
    assert 700.0 <= world.at_s <= 745.0
    assert max(ask.deadline_ts for ask in world.sent) < world.moment.ts
    assert [where(world, which) for which in (0, 1)] == ["lapsed", "lapsed"]
    assert world.entries[-1].trigger == "all_settled"
    assert len(world.sent_to("resume")) == 2 + 15


def test_nobody_lapses_before_the_horizon() -> None:
    """A sweep in the second before the horizon still asks."""
    world = unconfirmed()
    world.wait_until(lambda world: 700.0 - world.at_s < 45.0 and not world.asks)
    world.pass_time(699.0 - world.at_s)
    world.fire("sweep")
    assert len(world.outstanding("resume")) == 2


def test_everybody_lapses_at_the_horizon() -> None:
    """A sweep in the very instant of the horizon lets what is unconfirmed rest."""
    world = unconfirmed()
    world.wait_until(lambda world: 700.0 - world.at_s < 45.0 and not world.asks)
    world.pass_time(700.0 - world.at_s)
    world.fire("sweep")
    assert (world.operation.state, where(world)) == ("discarded", "lapsed")


def test_the_horizon_follows_the_last_deadline_that_was_sent() -> None:
    """Renewals move the horizon; resumes do not, since they hold nothing closed."""
    world = reached("checkpoint", "parked", numbers=settings(prepare_timeout_s=10.0))
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    assert world.operation.lease_horizon_at_s == pytest.approx(10 / 3 + 10 + 600)
    world.verb("discard")
    world.wait(100.0)
    assert world.operation.lease_horizon_at_s == pytest.approx(10 / 3 + 10 + 600)


def test_the_horizon_follows_renewals_that_are_sent_again() -> None:
    """A renewal's second try carries a later deadline, which an instance may act on."""
    world = reached("checkpoint", "parked", numbers=settings(prepare_timeout_s=10.0))
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    world.wait_until(lambda world: len(world.outstanding("renew")) == 2)
    assert world.at_s == pytest.approx(20 / 3)
    assert world.operation.lease_horizon_at_s == pytest.approx(20 / 3 + 10 + 600)


def test_an_old_sweep_timer_sends_nothing_while_parked() -> None:
    """A sweep timer in a state that does not reopen does nothing."""
    world = reached("checkpoint", "parked")
    sent = len(world.sent)
    world.fire("sweep")
    assert len(world.sent) == sent


def test_what_has_ended_waits_for_nothing() -> None:
    """A settled operation has neither timers nor asks left."""
    world = reached("checkpoint", "committing", "discarding", "discarded")
    assert (world.timers, world.asks, world.jobs) == ({}, [], [])


# --- the manifest -------------------------------------------------------------------------------


def test_nothing_is_withdrawn_where_nothing_was_to_be_written() -> None:
    """A checkpoint that is given up before commit touches no file."""
    world = discarding()
    assert (world.jobs, world.operation.file) == ([], "none")


@pytest.mark.parametrize("state", ["committing", "sealing", "committed"])
def test_the_manifest_is_withdrawn_once_a_commit_was_sent(state: str) -> None:
    """From the commit on, giving up withdraws the manifest, whether or not it was written."""
    world = reached("checkpoint", state)
    world.verb("discard")
    assert world.operation.root == ROOT
    assert world.outstanding_withdrawals()


def test_a_failed_withdrawal_is_tried_again_by_the_sweep() -> None:
    """Instances that are all open do not end it while the manifest may still exist."""
    world = reached("checkpoint", "committed")
    world.verb("discard")
    world.answer("resume")
    world.end_file("withdraw", well=False)
    assert (world.operation.state, world.released, world.manifest) == ("discarding", True, True)
    world.wait(30.0)
    assert triggers_of(world)[-1] == "withdraw"
    world.end_file("withdraw", well=True)
    assert (world.operation.state, world.manifest) == ("discarded", False)


def test_a_hanging_withdrawal_does_not_hold_the_caller() -> None:
    """A withdrawal that does not end within 15 s counts as failed; it may still end well, late."""
    world = reached("checkpoint", "committing")
    world.verb("discard")
    world.answer("resume")
    world.wait(15.0)
    assert (world.operation.file, world.released) == ("failed", True)
    world.end_file("withdraw", well=True)
    assert world.operation.state == "discarded"


def test_each_withdrawal_has_its_whole_budget() -> None:
    """The second withdrawal is not cut short by the timer of the first, which failed early."""
    numbers = settings(sweep_interval_s=3.0)
    world = reached("checkpoint", "committing", numbers=numbers)
    world.verb("discard")
    world.answer("resume")
    world.wait(1.0)
    world.end_file("withdraw", well=False)
    world.wait(3.0)
    assert world.operation.file == "pending"
    assert world.timers["budget.file"] == 4.0 + 15.0


def test_an_old_file_timer_is_harmless() -> None:
    """The timer of a file effect that has ended fails nothing."""
    world = reached("checkpoint", "committed")
    world.fire("budget.file")
    assert world.operation.state == "committed"


# --- restores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [SHAKY, FATAL, DEAD])
def test_retiring_that_fails_somewhere_does_not_stop_reopening(failure: object) -> None:
    """Every instance is retired and then reopened, whatever comes of another one's retirement."""
    world = reached("restore", "restored")
    world.verb("discard")
    world.fail("retire", 0, failure=failure)  # type: ignore[arg-type]
    world.answer("retire", 1)
    assert world.operation.state == "discarding"
    assert len(world.outstanding("resume")) == 2


def test_retiring_that_hangs_is_given_up_after_its_budget() -> None:
    """An instance that never answers a retire delays reopening by 15 s, not for ever."""
    world = reached("restore", "restored")
    world.verb("discard")
    world.answer("retire", 1)
    began_s = world.at_s
    world.wait_until(lambda world: world.operation.state == "discarding")
    assert world.at_s == began_s + 15.0
    assert "give_up" in triggers_of(world)


def test_a_kept_restore_retires_nothing() -> None:
    """A restore that its caller keeps is reopened without a retire, and has no cause."""
    world = reached("restore", "resumed")
    assert not world.sent_to("retire")
    assert world.operation.cause is None


# --- replies that cannot be ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance", "call", "ask", "error"),
    [
        ("main/replica-0", "commit", 1, IllegalTransition),
        ("main/replica-9", "prepare", 1, IllegalTransition),
        ("main/replica-0", "prepare", 2, InvariantViolated),
        ("main/replica-0", "prepare", 0, InvariantViolated),
    ],
)
def test_a_reply_to_what_was_never_asked_is_refused(
    instance: str, call: str, ask: int, error: type[Exception]
) -> None:
    """A reply of an instance, a call or an ask that does not exist changes nothing."""
    world = reached("checkpoint", "preparing")
    before, count = world.operation, len(world.entries)
    with pytest.raises(error):
        world.reply(SendCall(instance, call, ask, 0.0), "answered")
    assert (world.operation, len(world.entries)) == (before, count)


def test_an_ordinary_answer_has_no_effects() -> None:
    """An answer that ends no phase, to a first ask, cancels nothing and starts nothing."""
    world = reached("checkpoint", "preparing")
    assert world.reply(world.latest("prepare", 0), "answered").effects == ()
    world = discarding()
    assert world.reply(world.latest("resume", 0), "answered").effects == ()
