"""
Histories that the real core lives by chance: whatever may happen, happens in some of them.

`wander` moves one operation on by random events. It never asks what is legal: what the core does
not allow is simply not done.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from hypothesis import strategies as st

from gymckpt.core.settings import RetryPolicy
from gymckpt.errors import IllegalTransition, TransitionRefused
from tests.core.driver import DEAD, FATAL, SHAKY, World, settings

VERBS = {
    "checkpoint": ("prepare", "commit", "resume", "discard", "cancel"),
    "restore": ("restore", "keep", "discard", "cancel"),
    "sweep": ("run", "insist", "insist", "discard"),
}


def wander(chance: random.Random, steps: int) -> World:
    """Open an operation and let chance move it on."""
    chart = chance.choice(list(VERBS))
    retries = {
        "resume": RetryPolicy(attempts=2, pause_s=1.0),
        "prepare": RetryPolicy(attempts=chance.choice([1, 3]), pause_s=chance.choice([0.0, 2.0])),
    }
    facts = {"call": chance.choice(["resume", "forget", "retire"])} if chart == "sweep" else {}
    numbers = settings(retries=retries, control_timeout_s=chance.choice([10.0, 10.0, 40.0]))
    world = World(chart, chance.randint(1, 4), facts=facts, numbers=numbers)
    if chance.random() < 0.3:
        _go_wrong(world, chance)
    for _ in range(steps):
        if world.operation.settled:
            break
        with contextlib.suppress(IllegalTransition, TransitionRefused):
            chance.choice(_moves(world, chance))()
    return world


def _go_wrong(world: World, chance: random.Random) -> None:
    """Bring an operation to where retires that nobody confirmed are all that is left, or soon."""
    if world.operation.chart == "checkpoint":
        return
    for _ in range(chance.randint(0, 12)):
        world.go_on()
    if world.operation.chart == "restore" and "discard" in world.operation.row.on:
        world.verb("discard")
        for ask in world.asks:
            if chance.random() < 0.5:
                world.reply(ask, "failed", chance.choice([SHAKY, FATAL, DEAD]))
            else:
                world.reply(ask, "answered")


def _moves(world: World, chance: random.Random) -> list[Callable[[], object]]:
    """Return what may happen, the likely several times."""
    verbs = VERBS[world.operation.chart]
    moves: list[Callable[[], object]] = [
        lambda: world.verb(chance.choice(verbs)),
        lambda: _pass_time(world, chance),
    ]
    if world.asks:
        moves += [lambda: _reply(world, chance)] * 6
    if world.timers:
        moves += [lambda: _advance(world)] * 2
    if world.jobs:
        moves += [lambda: world.end_file(world.jobs[0].kind, well=chance.random() < 0.7)] * 3
    if "supersede" in world.operation.row.on and chance.random() < 0.3:
        moves.append(lambda: _supersede(world, chance))
    if chance.random() < 0.1:
        silent_s = chance.choice([0.0, 50.0, 1000.0])
        moves.append(lambda: world.take_over(silent_s=silent_s))
    return moves


def _reply(world: World, chance: random.Random) -> None:
    ask = chance.choice(world.asks)
    outcome = chance.choice(["answered"] * 8 + ["refused", "failed", "dead"])
    if outcome == "answered":
        world.reply(ask, "answered")
    elif outcome == "refused":
        world.reply(ask, "refused", blockers={"agent": {"count": 1, "sample": ["r-1"]}})
    else:
        failure = DEAD if outcome == "dead" else chance.choice([SHAKY, FATAL])
        world.reply(ask, "failed", failure)


def _supersede(world: World, chance: random.Random) -> None:
    """Let a later restore take some attempts of an instance over."""
    if "inventory" in world.operation.opening:
        world.supersede(chance.choice(world.operation.instances), of=slice(chance.randint(0, 2)))


def _advance(world: World) -> None:
    """Fire the timers of the next instant; other things come a moment later."""
    world.advance()
    while (due := world.next_timer()) is not None and due[0] <= world.at_s:
        world.advance()
    world.pass_time(0.001 if due is None else min(0.001, (due[0] - world.at_s) / 2))


def _pass_time(world: World, chance: random.Random) -> None:
    """Let less time pass than there is to the next timer."""
    due = world.next_timer()
    left_s = 10.0 if due is None else max(0.0, due[0] - world.at_s)
    world.pass_time(chance.uniform(0.001, 0.999) * min(left_s, 10.0))


worlds = st.builds(
    wander, st.randoms(use_true_random=False), st.integers(min_value=0, max_value=60)
)
"""Operations at any point of any legal history."""
