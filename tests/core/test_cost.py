"""
What one reply costs does not grow with the number of instances.

Costs are counted as lines of Python that `step` runs, which needs no clock. How long that takes is
what `benchmarks/core_step.py` measures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gymckpt.core.events import Event, Replied, TimerFired
from gymckpt.core.settings import RetryPolicy
from gymckpt.core.step import step
from tests.core.driver import FATAL, SHAKY, World, settings

FEW, MANY = 10, 1_000

NUMBERS = settings(
    retries={call: RetryPolicy(attempts=2, pause_s=1.0) for call in ("prepare", "resume")}
)


def lines_of(world: World, event: Event) -> int:
    """Return how many lines of Python a step runs."""
    count = 0

    def trace(_frame: FrameType, what: str, _arg: Any) -> Any:
        nonlocal count
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step(world.operation, event)
    finally:
        sys.settrace(before)
    return count


def replied(world: World, call: str, which: int, *, shaky: bool = False) -> Replied:
    """Return the event that the latest ask of a call has come back."""
    ask = world.latest(call, which)
    return Replied(
        moment=world.moment,
        instance=ask.instance,
        call=call,
        ask=ask.ask,
        outcome="failed" if shaky else "answered",
        failure=SHAKY if shaky else None,
    )


def an_answer(count: int) -> int:
    """Half of the prepares have been answered; one more is."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    world.answer("prepare", *range(count // 2))
    return lines_of(world, replied(world, "prepare", count // 2))


def a_failure_among_failures(count: int) -> int:
    """Half of the prepares have failed and will be tried again; one more fails."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    world.fail("prepare", *range(count // 2, count))
    return lines_of(world, replied(world, "prepare", 0, shaky=True))


def an_answer_in_a_doomed_phase(count: int) -> int:
    """Half of the prepares have failed for good; one more is answered."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    world.fail("prepare", *range(count // 2, count), failure=FATAL)
    return lines_of(world, replied(world, "prepare", 0))


def _committing(count: int) -> World:
    """Return a checkpoint whose renewals failed while every instance is asked to commit."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    world.answer("prepare")
    world.answer("renew")
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.verb("commit")
    world.fail("renew", *range(1, count))
    return world


def an_answer_while_leases_are_in_trouble(count: int) -> int:
    """All renewals but one have failed; a commit is answered."""
    world = _committing(count)
    return lines_of(world, replied(world, "commit", count - 1))


def one_more_renewal_in_trouble(count: int) -> int:
    """All renewals but one have failed; the last one fails."""
    world = _committing(count)
    return lines_of(world, replied(world, "renew", 0, shaky=True))


def a_late_answer(count: int) -> int:
    """Every resume stayed unanswered twice; one is answered after all."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    world.verb("discard")
    world.wait_until(lambda world: world.released)
    return lines_of(world, replied(world, "resume", count // 2))


def a_stale_answer(count: int) -> int:
    """Every prepare was answered; one answer comes once more."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    world.answer("prepare")
    return lines_of(world, replied(world, "prepare", count // 2))


def a_timer_that_no_longer_matters(count: int) -> int:
    """The settling timer fires in a phase in which nothing has failed."""
    world = World("checkpoint", count, numbers=NUMBERS)
    world.verb("prepare")
    return lines_of(world, TimerFired(moment=world.moment, timer="settle"))


@pytest.mark.parametrize(
    "scenario",
    [
        an_answer,
        a_failure_among_failures,
        an_answer_in_a_doomed_phase,
        an_answer_while_leases_are_in_trouble,
        one_more_renewal_in_trouble,
        a_late_answer,
        a_stale_answer,
        a_timer_that_no_longer_matters,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_a_reply_costs_the_same_among_many(scenario: Callable[[int], int]) -> None:
    """One event runs as many lines among a thousand instances as it does among ten."""
    few, many = scenario(FEW), scenario(MANY)
    assert many == few
    assert few > 10
