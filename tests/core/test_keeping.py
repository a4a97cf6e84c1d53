"""
A restore is kept only once every instance has answered a renewal that was sent after the body.

Round numbers as everywhere (`driver.settings`): a call has 10 s and 5 s of grace, renewals are
tried again after a third of 10 s. A restore is answered at 0 s, which is good until 10 s.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.driver import DEAD, FATAL, SHAKY, World
from tests.core.histories import opened, reached

EMPTY = FATAL
"""What an instance that has come back empty answers a renewal with: it knows no such restore."""


def kept(count: int = 2) -> World:
    """Return a restore that its caller has just taken over, at 0 s."""
    return reached("restore", "restored", "keeping", count=count)


def test_keeping_renews_every_instance_once_more() -> None:
    """Each instance gets one new renewal with a whole budget; the rounds of the body are over."""
    world = reached("restore", "restored")
    sent = len(world.sent)
    world.verb("keep")
    asked = [(ask.call, ask.instance, ask.deadline_ts - world.moment.ts) for ask in world.asks]
    assert asked == [("renew", name, 10.0) for name in world.operation.instances]
    assert len(world.sent) == sent + 2
    assert set(world.timers) == {"budget.renew"}


def test_a_restore_stands_when_all_have_answered() -> None:
    """Nobody is reopened before the last answer, and everybody is after it."""
    world = kept()
    world.answer("renew", 1)
    assert (world.operation.state, world.sent_to("resume", 1)) == ("keeping", [])
    world.answer("renew", 0)
    assert world.operation.state == "resuming"
    assert [len(world.sent_to("resume", which)) for which in (0, 1)] == [1, 1]
    world.answer("resume")
    assert (world.operation.state, world.operation.cause) == ("resumed", None)


@pytest.mark.parametrize("failure", [EMPTY, DEAD], ids=["restarted empty", "dead"])
def test_an_instance_that_lost_its_state_in_the_body_fails_the_restore(failure: Any) -> None:
    """One that answered all of the body's renewals and then came back empty fails all of it."""
    world = reached("restore", "restored")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.answer("renew")
    world.verb("keep")
    world.answer("renew", 1)
    world.fail("renew", 0, failure=failure)
    assert world.operation.state == "retiring"
    assert {ask.instance for ask in world.outstanding("retire")} == set(world.operation.instances)
    cause = world.operation.cause
    assert cause is not None
    assert (cause.trigger, cause.state, cause.call) == ("refuse", "keeping", "renew")
    world.answer("retire")
    world.answer("resume")
    assert world.operation.state == "discarded"


@pytest.mark.parametrize("outcome", ["answered", "failed"])
def test_a_renewal_from_before_the_end_of_the_body_proves_nothing(outcome: Any) -> None:
    """What comes back for a renewal that was under way at keep is stale; the new one counts."""
    world = reached("restore", "restored", count=1)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    old = world.latest("renew")
    world.verb("keep")
    assert [ask.ask for ask in world.asks] == [old.ask + 1]
    taken = world.reply(old, outcome, EMPTY if outcome == "failed" else None)
    assert [entry.trigger for entry in taken.entries] == ["stale"]
    assert world.operation.state == "keeping"
    world.answer("renew")
    assert world.operation.state == "resuming"


def test_a_renewal_that_failed_before_is_asked_anew() -> None:
    """One whose renewal failed for a moment in the body can still prove that it lost nothing."""
    world = reached("restore", "restored")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.answer("renew", 1)
    world.fail("renew", 0)
    world.verb("keep")
    assert [len(world.outstanding("renew")), "retry.renew" in world.timers] == [2, False]
    world.answer("renew")
    assert world.operation.state == "resuming"


def test_a_renewal_that_fails_for_a_moment_is_tried_again() -> None:
    """A transient failure is retried after the pause, under the deadline of the first ask."""
    world = kept()
    world.answer("renew", 1)
    world.wait(1.0)
    world.fail("renew", 0)
    world.wait(3.0)
    assert not world.asks
    world.wait(0.5)
    ask = world.latest("renew", 0)
    assert (ask.ask, round(ask.deadline_ts - world.moment.ts, 2)) == (2, 5.5)
    world.answer("renew", 0)
    assert world.operation.state == "resuming"


def test_nothing_is_tried_past_the_last_acknowledged_deadline() -> None:
    """A renewal that fails when the lease ends is not retried: the restore is given up."""
    world = kept(count=1)
    world.wait(9.0)
    world.fail("renew", 0)
    world.wait(1.0)
    assert (world.at_s, world.operation.state) == (10.0, "retiring")
    assert len(world.sent_to("renew")) == 1


def test_an_instance_that_hangs_is_given_up_after_the_budget() -> None:
    """No answer within deadline and grace is none: the restore is given up after 15 s (L1)."""
    world = kept()
    world.answer("renew", 1)
    world.wait(14.9)
    assert world.operation.state == "keeping"
    world.wait(0.1)
    assert world.operation.state == "retiring"


@pytest.mark.parametrize("trigger", ["discard", "cancel", "settle"])
def test_what_gives_a_restore_up_while_it_is_kept_retires_it(trigger: str) -> None:
    """Until the last renewal has been answered a restore can be given up."""
    world = kept()
    world.answer("renew", 1)
    world.verb(trigger)
    assert world.operation.state == "retiring"
    taken = world.reply(world.latest("renew", 0), "answered")
    assert [entry.trigger for entry in taken.entries] == ["stale"]


def test_keeping_twice_changes_nothing() -> None:
    """A second keep is ignored, and renews nobody anew."""
    world = kept()
    before, sent = world.operation, len(world.sent)
    assert world.verb("keep").refused is not None
    assert (world.operation, len(world.sent)) == (before, sent)


def test_a_controller_that_died_while_keeping_leaves_nothing_behind() -> None:
    """Cut off after any entry, what is taken over ends discarded with everything retired."""
    whole = kept()
    keep = next(n for n, entry in enumerate(whole.entries, 1) if entry.trigger == "keep")
    for count in range(keep, len(whole.entries) + 1):
        world = kept()
        world.take_over(count)
        while not world.operation.settled:
            world.answer(world.asks[0].call)
        assert world.operation.state == "discarded"
        assert all(world.sent_to("retire", which) for which in (0, 1))


BEFORE = ("none", "answered", "failed", "out")
"""How the last renewal of the body stands when the caller keeps the restore."""
AFTER = ("answered", "old answer", "failed", "empty", "silent")
"""What comes back while it is kept."""


@given(st.lists(st.tuples(st.sampled_from(BEFORE), st.sampled_from(AFTER)), min_size=1, max_size=4))
def test_only_answers_to_new_renewals_keep_a_restore(stories: list[tuple[str, str]]) -> None:
    """Whatever was under way before, a restore stands exactly if all new renewals are answered."""
    world = opened("restore", len(stories))
    world.verb("restore")
    world.answer("restore")
    if any(before != "none" for before, _ in stories):
        world.wait_until(lambda world: bool(world.outstanding("renew")))
        for which, (before, _) in enumerate(stories):
            if before in ("none", "answered"):
                world.answer("renew", which)
            elif before == "failed":
                world.fail("renew", which, failure=SHAKY)
    old = {which: len(world.sent_to("renew", which)) for which in range(len(stories))}
    world.verb("keep")
    for which, (_, after) in enumerate(stories):
        if world.operation.state != "keeping":
            break
        if after == "old answer" and old[which]:
            world.reply(world.sent_to("renew", which)[old[which] - 1], "answered")
        elif after == "answered":
            world.answer("renew", which)
        elif after in ("failed", "empty"):
            world.fail("renew", which, failure=SHAKY if after == "failed" else EMPTY)
    stands = all(after == "answered" for _, after in stories)
    world.wait_until(lambda world: world.operation.state != "keeping")
    assert world.operation.state == ("resuming" if stands else "retiring")
