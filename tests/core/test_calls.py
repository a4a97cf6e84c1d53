"""
What the machine of one call keeps beside its state: the deadline, and what went wrong.

Round numbers as everywhere (`driver.settings`): prepare has 100 s, resume 10 s and two tries.
"""

from __future__ import annotations

import attrs
import pytest

from gymckpt.core.calls import CallState, moved_call
from gymckpt.core.entry import Entry
from gymckpt.core.events import FailureRecord
from tests.core.driver import FATAL, SHAKY, START_TS, World
from tests.core.histories import opened, reached


def resume_of(world: World, which: int = 0) -> CallState:
    """Return where the resume of an instance stands."""
    return world.operation.call_state("resume", world.operation.instances[which])


def failing() -> World:
    """Return a checkpoint whose first instance failed its first resume transiently, at 0 s."""
    world = reached("checkpoint", "discarding")
    world.fail("resume", 0)
    return world


def test_an_ask_keeps_its_deadline_by_both_clocks() -> None:
    """A wall clock that was set does not move the deadline by the operation's own clock."""
    world = opened("checkpoint")
    world.wait(3.0)
    world.wall_offset_s = 3600.0
    world.verb("prepare")
    asked = world.operation.call_state("prepare", world.operation.instances[1])
    assert (asked.deadline_ts, asked.deadline_at_s) == (START_TS + 3600.0 + 103.0, 103.0)
    assert asked.deadline_ts == world.latest("prepare", 1).deadline_ts
    world.answer("prepare", 1)
    answered = world.operation.call_state("prepare", world.operation.instances[1])
    assert answered == attrs.evolve(asked, state="answered")


def test_a_retry_keeps_the_failure_until_an_answer_comes() -> None:
    """While a call is out once more it is still known what its first ask ended with."""
    world = failing()
    world.wait(1.0)
    assert (resume_of(world).state, resume_of(world).failure) == ("asked", SHAKY)
    world.answer("resume", 0)
    assert (resume_of(world).state, resume_of(world).failure) == ("answered", None)


def test_a_wait_that_is_given_up_keeps_the_failure() -> None:
    """A renewal that was out once more when the body failed still says why it was sent again."""
    world = reached("checkpoint", "parked")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    world.wait_until(lambda world: len(world.outstanding("renew")) == 2)
    world.verb("discard")
    renewal = world.operation.call_state("renew", world.operation.instances[0])
    assert (renewal.state, renewal.abandoned) == ("unanswered", True)
    given_up = [
        entry for entry in world.entries if (entry.call, entry.trigger) == ("renew", "expire")
    ]
    assert [entry.facts for entry in given_up] == [{"abandoned": True}] * 2
    assert renewal.failure == SHAKY


def test_a_stale_reply_takes_nothing_back() -> None:
    """A reply that no longer counts leaves the failure of the call as it was."""
    world = failing()
    before = resume_of(world)
    world.reply(world.latest("resume", 0), "failed", FATAL)
    assert world.entries[-1].trigger == "stale"
    assert resume_of(world) == before
    assert before.failure == SHAKY


def test_what_lapses_keeps_its_failure() -> None:
    """An instance that was never confirmed still says what its last resume ended with."""
    world = failing()
    world.wait_until(lambda world: world.operation.settled)
    assert resume_of(world).state == "lapsed"
    assert resume_of(world).failure == FailureRecord(
        type="TimeoutError", text="no answer to resume within 15 s", transient=True, dead=False
    )


@pytest.mark.parametrize("deadline", ["1700000100.0", True, None, float("inf")])
def test_a_deadline_is_said_with_what_it_is_not(deadline: object) -> None:
    """An entry whose deadline is no instant is refused with what was found."""
    entry = Entry(
        run="run",
        operation_id="op-1",
        seq=2,
        epoch=1,
        ts=START_TS,
        at_s=0.0,
        instance="main/replica-0",
        call="prepare",
        ask=1,
        trigger="ask",
        source="idle",
        dest="asked",
        facts={"deadline_ts": deadline},
    )
    with pytest.raises(TypeError) as caught:
        moved_call(CallState(), entry)
    assert str(caught.value) == f"a deadline is an instant in epoch seconds, not {deadline!r}"


def test_what_a_reply_brings_is_kept() -> None:
    """Entries of replies hold what the replies brought along, and a failure where there is one."""
    world = opened("checkpoint", 3)
    world.verb("prepare")
    world.answer("prepare", 0, episodes=7)
    assert world.entries[-1].facts == {"episodes": 7}
    world.reply(world.latest("prepare", 1), "failed", SHAKY, seen=1)
    failure = {"type": "ConnectionError", "text": "reset", "transient": True, "dead": False}
    assert world.entries[-1].facts == {"seen": 1, "failure": failure}
    world.refuse("prepare", 2)
    refusal = next(entry for entry in world.entries if entry.trigger == "refuse")
    assert refusal.facts == {"blockers": {"agent": ["r-1"]}}


@pytest.mark.parametrize(
    ("late_s", "said"), [(0.0, "15"), (0.0004, "15"), (0.0016, "15.002"), (85.0, "100")]
)
def test_an_expiry_says_how_long_was_waited(late_s: float, said: str) -> None:
    """A budget's timer that is late waited longer, which is said to the millisecond."""
    world = reached("checkpoint", "discarding")
    world.pass_time(15.0 + late_s)
    world.fire("budget.resume")
    failure = resume_of(world).failure
    assert failure is not None
    assert failure.text == f"no answer to resume within {said} s"


def test_not_ready_is_a_failure_where_nothing_may_be_refused() -> None:
    """An instance that is not ready to resume or to renew has failed, and not transiently."""
    world = reached("checkpoint", "discarding")
    world.refuse("resume", 0)
    failure = resume_of(world).failure
    assert failure == FailureRecord(
        type="NotReady", text="the instance answered: not ready", transient=False, dead=False
    )
