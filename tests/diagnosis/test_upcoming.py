"""What is said to come by itself is what the core then does, at that time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given

from gymckpt.diagnosis.replay import replay
from gymckpt.diagnosis.upcoming import Upcoming, running_timers, upcoming
from tests.core.driver import FATAL, SHAKY, World
from tests.core.histories import reached
from tests.diagnosis.wandering import worlds

TRIGGERS = {
    "expire": {"expire"},
    "retry": {"retry"},
    "end_phase": {"refuse"},
    "renew": {"ask"},
    "lose_lease": {"lose_lease"},
    "end_file_wait": {"seal_failed", "withdraw_failed"},
    "sweep": {"retry", "withdraw"},
    "insist": {"ask", "retry"},
    "lapse": {"lapse"},
}
"""What is foretold to the triggers of the entries that it makes."""

SAME_S = 1e-5


def foretold(world: World) -> tuple[Upcoming, ...]:
    """Return what is said to come after a world's history."""
    told = replay(world.entries)
    assert told.divergence is None
    return upcoming(told.entries, told.states)


def is_tied(world: World) -> bool:
    """
    Whether a timer is due at the very instant of the last entry, or no entry tells of a takeover.

    The history does not tell whether it had fired before that, and runs again, or is to fire yet.
    What is sent besides at once has not been sent yet, or it waits for an instant that is known.
    """
    last = world.entries[-1]
    if world.operation.epoch != last.epoch:
        return True
    told = replay(world.entries)
    due = {one.timer: one.at_s for one in reversed(foretold(world))}
    due |= running_timers(told.entries, told.states) | world.timers
    if (last.call, last.trigger) in FRESH:
        due.pop("also", None)
    return any(abs(at_s - world.operation.at_s) < SAME_S for at_s in due.values())


FRESH = {
    (None, "insist"),
    ("resume", "answer"),
    ("resume", "confirm"),
    ("resume", "lapse"),
}
"""After what the state's other call is sent at once: its instance is open."""


@given(world=worlds)
def test_what_comes_first_is_what_the_core_does_first(world: World) -> None:
    """Where nothing else happens, the next entry is the foretold one, at the foretold time."""
    last_at_s = world.operation.at_s
    assume(not is_tied(world))
    ahead = foretold(world)
    entries = len(world.entries)
    for _ in range(100):
        if world.advance() is None or len(world.entries) > entries:
            break
    made = world.entries[entries:]
    assert bool(made) == bool(ahead)
    if made:
        first = made[0]
        assert first.at_s == pytest.approx(max(ahead[0].at_s, last_at_s), abs=SAME_S)
        together = [one for one in ahead if one.at_s <= ahead[0].at_s + SAME_S]
        assert first.trigger in set().union(*(TRIGGERS[one.kind] for one in together))


@given(world=worlds)
def test_timers_of_a_history_are_those_that_run(world: World) -> None:
    """The names are those of the core's running timers, but for ones that would do nothing."""
    assume(not is_tied(world))
    told = replay(world.entries)
    known = running_timers(told.entries, told.states)
    for timer, at_s in known.items():
        if not timer.startswith("budget.") or timer == "budget.file":
            assert timer in world.timers
            fired = at_s <= world.at_s + SAME_S  # and was put off, which no entry tells
            if timer not in ("retry.renew", "lease") and not fired:
                assert at_s == pytest.approx(world.timers[timer], abs=SAME_S)


def unretired() -> World:
    """Return a restore of two that is being discarded at 0 s; the first one's retire failed."""
    world = reached("restore", "restored")
    world.verb("discard")
    world.fail("retire", 0, failure=FATAL)
    world.answer("retire", 1)
    return world


def reopened() -> World:
    """Return the same with both open again; the late retire is out, with 15 s."""
    world = unretired()
    world.answer("resume")
    world.wait(0.0)
    return world


def failed() -> World:
    """Return the same after the late retire has failed at 5 s."""
    world = reopened()
    world.pass_time(5.0)
    world.fail("retire", 0, failure=SHAKY)
    return world


def silent() -> World:
    """Return the same after a late retire that was not answered within its budget."""
    world = reopened()
    world.wait(15.0)
    return world


def taken_over() -> World:
    """Return the same after another controller has gone on at 4 s, and gave the late retire up."""
    world = reopened()
    world.take_over(silent_s=4.0)
    return world


def past_the_horizon() -> World:
    """Return the same at 615 s, where the late retire has failed again and again."""
    world = reopened()
    world.wait_until(lambda world: world.at_s >= 615.0)
    return world


def insisted() -> World:
    """Return a forget that is insisted on, of which nothing was sent yet."""
    world = World("sweep", 2, facts={"call": "forget"})
    world.verb("insist")
    return world


@pytest.mark.parametrize(
    ("lived", "kind", "at_s"),
    [
        (lambda: _answered(unretired()), "insist", 0.0),
        (reopened, "expire", 15.0),
        (failed, "insist", 30.0),
        (silent, "insist", 30.0),
        (taken_over, "insist", 15.0),
        (past_the_horizon, "lapse", 630.0),
        (insisted, "insist", 0.0),
    ],
)
def test_what_is_sent_besides_is_foretold(
    lived: Callable[[], World], kind: str, at_s: float
) -> None:
    """A late retire comes at once, 30 s after the one before, or once that cannot be on its way."""
    first = foretold(lived())[0]
    assert (first.kind, first.at_s) == (kind, pytest.approx(at_s))
    assert first.call in ("retire", "forget")
    assert first.may_wait is (kind != "expire")


def _answered(world: World) -> World:
    world.answer("resume", 0)
    return world


def test_nothing_is_foretold_of_attempts_that_were_superseded() -> None:
    """Where a later restore has taken over what was to be retired, only the resume is due."""
    world = unretired()
    world.answer("resume", 0)
    world.supersede(0)
    assert {one.kind for one in foretold(world)} == {"expire"}
