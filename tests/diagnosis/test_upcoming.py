"""What is said to come by itself is what the core then does, at that time."""

from __future__ import annotations

import pytest
from hypothesis import assume, given

from gymckpt.diagnosis.replay import replay
from gymckpt.diagnosis.upcoming import Upcoming, running_timers, upcoming
from tests.core.driver import World
from tests.diagnosis.wandering import worlds

TRIGGERS = {
    "expire": {"expire"},
    "retry": {"retry"},
    "end_phase": {"refuse"},
    "renew": {"ask"},
    "lose_lease": {"lose_lease"},
    "end_file_wait": {"seal_failed", "withdraw_failed"},
    "sweep": {"retry", "withdraw"},
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
    Whether a timer is due at the very instant of the last entry.

    The history does not tell whether it had fired before that, and runs again, or is to fire yet.
    """
    known = [one.at_s for one in foretold(world)]
    told = replay(world.entries)
    known += running_timers(told.entries, told.states).values()
    due = (*known, *world.timers.values())
    return any(abs(at_s - world.operation.at_s) < SAME_S for at_s in due)


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
