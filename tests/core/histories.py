"""
How each state of an operation chart is reached, and how each of its edges comes about.

Paths are read from the charts. What has to happen for an edge to be taken follows from what its
trigger is: a verb, the outcome of a file effect, or a joint condition that must be brought to hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gymckpt.chart import State, load_chart
from gymckpt.core.settings import Settings
from tests.core.driver import FATAL, World
from tests.core.promises import Promises

OPERATION_CHARTS = ("checkpoint", "restore", "sweep")

FILE_OUTCOMES = {
    "sealed": ("write", True),
    "seal_failed": ("write", False),
    "withdrawn": ("withdraw", True),
    "withdraw_failed": ("withdraw", False),
}
"""The triggers that are outcomes of file effects: which job, and whether it went well."""


def path(chart: str, source: str, dest: str) -> list[str]:
    """Return the triggers of a shortest path between two states, the first in the file first."""
    states = load_chart(chart).states
    found: dict[str, list[str]] = {source: []}
    waiting = deque([source])
    while waiting:
        state = waiting.popleft()
        for trigger, edges in states[state].on.items():
            for edge in edges:
                if edge.to not in found:
                    found[edge.to] = [*found[state], trigger]
                    waiting.append(edge.to)
    return found[dest]


def opened(chart: str, count: int = 2, numbers: Settings | None = None) -> World:
    """Return a world with an operation of a chart that is open, and whose promises are held."""
    facts = {"call": "retire"} if chart == "sweep" else {}
    world = World(chart, count, numbers=numbers, facts=facts)
    Promises(world)
    return world


def reached(chart: str, *stops: str, count: int = 2, numbers: Settings | None = None) -> World:
    """Return a world whose operation has gone through some states and is in the last of them."""
    world = opened(chart, count, numbers)
    for stop in stops:
        for trigger in path(chart, world.operation.state, stop):
            bring_about(world, trigger)
        assert world.operation.state == stop
    return world


def bring_about(world: World, trigger: str) -> None:
    """Let happen what makes an operation take a trigger in its present state."""
    row = world.operation.row
    assert trigger in row.on, f"{row.name} has no edge for {trigger}"
    entries = len(world.entries)
    if trigger in FILE_OUTCOMES:
        kind, well = FILE_OUTCOMES[trigger]
        world.end_file(kind, well=well)
    elif trigger == "withdraw":
        world.end_file("withdraw", well=False)
        world.wait_until(lambda world: "withdraw" in triggers_of(world, entries))
    elif condition := condition_of(row, trigger):
        _bring_to_hold(world, condition)
    elif trigger == "supersede":
        world.supersede(0)
    else:
        world.verb(trigger)
    assert trigger in triggers_of(world, entries), f"{trigger} was not taken in {row.name}"


def triggers_of(world: World, after: int = 0) -> list[str]:
    """Return the triggers that the operation itself has taken since `after` entries."""
    return [entry.trigger for entry in world.entries[after:] if entry.instance is None]


def condition_of(row: State, trigger: str) -> str | None:
    """Return the joint condition that fires a trigger in a state, if one does."""
    return next((name for name, fired in row.when.items() if fired == trigger), None)


def _bring_to_hold(world: World, condition: str) -> None:
    call = world.operation.phase_call or world.operation.also_call
    if condition == "lease_lost":
        world.wait_until(lambda world: bool(world.outstanding("renew")))
        world.fail("renew", 0, failure=FATAL)
    elif condition in ("all_answered", "all_settled"):
        while world.outstanding_withdrawals():
            world.end_file("withdraw", well=True)
        world.wait_until(lambda world: bool(world.outstanding(call)))
        world.answer(str(call))
    else:
        world.fail(str(call), *range(len(world.operation.instances)), failure=FATAL)


# --- the edges of call.toml ---------------------------------------------------------------------


def _reopening(world: World) -> None:
    """Give a prepare up, so that every instance is asked to resume."""
    world.verb("prepare")
    world.verb("discard")


def _unanswered(world: World) -> None:
    """Let the first instance's resume stay unanswered; the other one is open."""
    _reopening(world)
    world.answer("resume", 1)
    world.wait_until(lambda world: world.operation.phase.count("unanswered") == 1)


def _after_retry(world: World) -> None:
    """Let a resume stay unanswered and be sent again."""
    _unanswered(world)
    world.wait_until(lambda world: len(world.sent_to("resume", 0)) == 2)


def _answer_first_of_two(world: World) -> None:
    _after_retry(world)
    world.reply(world.sent_to("resume", 0)[0], "answered")


def _answer_after_both(world: World) -> None:
    _after_retry(world)
    world.fail("resume", 0)
    world.reply(world.sent_to("resume", 0)[0], "answered")


def _answer_late(world: World) -> None:
    _unanswered(world)
    world.reply(world.sent_to("resume", 0)[0], "answered")


def _die_late(world: World) -> None:
    _unanswered(world)
    world.kill("resume", 0)


def _die_twice(world: World) -> None:
    _reopening(world)
    world.fail("resume", 0)
    world.kill("resume", 0)


def _lapse_unanswered(world: World) -> None:
    _reopening(world)
    world.wait_until(lambda world: world.operation.settled)


def _lapse_failed(world: World) -> None:
    _reopening(world)
    world.answer("resume", 1)
    while not world.operation.settled:
        world.fail("resume", 0, failure=FATAL)
        asks = len(world.sent)
        world.wait_until(lambda world: world.operation.settled or len(world.sent) > asks)  # noqa: B023


def _retry_failed(world: World) -> None:
    _reopening(world)
    world.fail("resume", 0)
    world.wait(1.0)


def _renew_twice(world: World) -> None:
    for trigger in path("checkpoint", "open", "parked"):
        bring_about(world, trigger)
    world.wait_until(lambda world: bool(world.outstanding("renew")))


def _prepare_then(outcome: str) -> Callable[[World], None]:
    def history(world: World) -> None:
        world.verb("prepare")
        getattr(world, outcome)("prepare", 0)

    return history


def _expire(world: World) -> None:
    world.verb("prepare")
    world.wait(105.0)


CALL_HISTORIES: dict[tuple[str, str], Callable[[World], None]] = {
    ("idle", "ask"): _prepare_then("answer"),
    ("asked", "answer"): _prepare_then("answer"),
    ("asked", "refuse"): _prepare_then("refuse"),
    ("asked", "fail"): _prepare_then("fail"),
    ("asked", "die"): _prepare_then("kill"),
    ("asked", "expire"): _expire,
    ("asked", "confirm"): _answer_first_of_two,
    ("answered", "ask"): _renew_twice,
    ("failed", "retry"): _retry_failed,
    ("failed", "die"): _die_twice,
    ("failed", "confirm"): _answer_after_both,
    ("failed", "lapse"): _lapse_failed,
    ("unanswered", "retry"): _after_retry,
    ("unanswered", "die"): _die_late,
    ("unanswered", "confirm"): _answer_late,
    ("unanswered", "lapse"): _lapse_unanswered,
}
"""Each edge of call.toml to a history of an open checkpoint that takes it."""
