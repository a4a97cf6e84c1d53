"""
What may happen next in an explored world: its own course, and the faults that are left.

A move of cost 0 needs no fault. Each fault costs 1: a message lost, late or doubled; a call that
fails; an instance that dies, is cut off, breaks, restarts empty or whose lease runs out; a file
that fails or hangs; a caller that cancels or whose body raises; a controller that crashes; another
operation that holds late retires back, or a later restore that takes them over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from gymckpt.core.asking import ALSO
from gymckpt.core.events import Event, FailureRecord, Replied, TimerFired, Triggered
from gymckpt.core.settings import RETIRE
from gymckpt.participant.control import ControlPlane
from gymckpt.testing.account import Broken
from gymckpt.testing.hosts import (
    BROKEN,
    GRACE_S,
    OPERATION_ID,
    SHAKY,
    Outcome,
    Post,
    Status,
    emptied,
    parking_failed,
    take,
    take_stray,
)
from gymckpt.testing.universe import HAIR_S, Job, Universe, World

__all__ = ["Move", "hold_refusals", "moves"]

ROOT = "snapshots/step-1"
STRAYS = (("resume", "op-0"), ("renew", OPERATION_ID), ("forget", OPERATION_ID))
"""What somebody else may send: an operation of before that is late, a controller gone astray."""
VERBS = ("prepare", "restore", "run", "insist", "commit", "resume", "keep")
GIVING_UP = {
    "discard": "the body raises, or an operator gives the operation up",
    "cancel": "the caller is cancelled",
    "settle": "the journal cannot be written any more",
}
AILMENTS: dict[Status, str] = {
    "dead": "dies",
    "deaf": "is cut off for good",
    "broken": "answers every call with an error from now on",
}
LONG_SILENCE_S = 100.0
DECLARED_GONE = FailureRecord(type="DeclaredGone", text="by hand", transient=False, dead=True)


class Move(NamedTuple):
    """One thing that may happen."""

    words: str
    cost: int
    make: Callable[[], World]
    """Returns the world after it; may raise `Broken`, or what the core raises."""


def moves(universe: Universe, world: World) -> Iterator[Move]:
    """Yield everything that may happen in a world."""
    faulty = world.faults > 0
    for post in dict.fromkeys(world.posts):
        yield from _of_post(universe, world, post, faulty=faulty)
    if world.operation.settled:
        return
    for job in dict.fromkeys(world.jobs):
        yield from _of_job(universe, world, job, faulty=faulty)
    yield from _of_caller(universe, world, faulty=faulty)
    if all(post.held for post in world.posts) and all(job.held for job in world.jobs):
        yield from _of_time(universe, world)
    if faulty:
        yield from _of_controller(universe, world)
        for number in range(len(world.hosts)):
            yield from _of_operator(universe, world, number)
            yield from _of_host(universe, world, number)


def _event(universe: Universe, world: World, words: str, cost: int, event: Event) -> Iterator[Move]:
    """Yield an event, and the same with a controller that dies before it acts on it."""
    paid = world._replace(faults=world.faults - cost)
    yield Move(words, cost, partial(universe.feed, paid, event))
    if paid.faults > 0:

        def crash() -> World:
            dead = paid._replace(faults=paid.faults - 1)
            return universe.take_over(universe.feed(dead, event, dies=True), 0.0)

        died = f"{words}; the controller records it and dies before it acts; another takes over"
        yield Move(died, cost + 1, crash)


# --- messages -----------------------------------------------------------------------------------


def _of_post(universe: Universe, world: World, post: Post, *, faulty: bool) -> Iterator[Move]:
    arrived = world.without(post)
    if post.kind == "reply":
        yield from _event(universe, arrived, str(post), 0, universe.replied(world, post))
    else:
        yield Move(str(post), 0, partial(_take, universe, world, arrived, post))
    if not faulty or world.operation.settled:
        return
    cheaper = world._replace(faults=world.faults - 1)
    arrived = arrived._replace(faults=world.faults - 1)
    what = f"of {post.call} #{post.ask} of instance {post.instance}"
    if not post.held:
        late = post._replace(held=True)
        yield Move(f"the {post.kind} {what} is late", 1, lambda: _with(arrived, late))
        if post.kind != "work":
            yield Move(f"the {post.kind} {what} is lost", 1, lambda: arrived)
            yield Move(f"the {post.kind} {what} is doubled", 1, lambda: _with(cheaper, late))
    if post.kind == "request":
        for failure in (SHAKY, BROKEN):
            words = f"the {post.kind} {what} fails ({failure.type})"
            yield Move(words, 1, partial(_answer, arrived, post, "failed", failure))
        words = f"{post}, and its answer becomes an error ({SHAKY.type})"
        yield Move(words, 1, partial(_take, universe, cheaper, arrived, post, garbled=True))
    if post.kind == "work":
        words = f"instance {post.instance} is not ready by the deadline"
        yield Move(words, 1, partial(_answer, arrived, post, "refused", None))
        words = f"the parking of instance {post.instance} raises an error"
        yield Move(words, 1, partial(_fail_parking, universe, arrived, post))


def _with(world: World, post: Post) -> World:
    return world._replace(posts=(*world.posts, post))


def _answer(world: World, post: Post, outcome: Outcome, failure: FailureRecord | None) -> World:
    """Return the world with a reply on its way, if anybody waits for it."""
    if not post.heard:
        return world
    reply = post._replace(
        kind="reply", outcome=outcome, failure=failure, held=False, deadline_ts=0.0
    )
    return _with(world, reply)


def _take(
    universe: Universe, world: World, arrived: World, post: Post, *, garbled: bool = False
) -> World:
    """Let a request or the end of the parking reach its instance."""
    host = world.hosts[post.instance]
    answer = take(host, post, world.now_ts)
    if answer.outcome != "failed":
        trigger = "ready" if post.kind == "work" else post.call
        universe.note_participant(host.control.phase, trigger, answer.host.control.phase)
    arrived = arrived.with_host(post.instance, answer.host)
    proves = post.call == "commit" or (post.call == "renew" and universe.chart == "restore")
    if proves and answer.outcome == "answered":
        post = post._replace(empty=not host.attempt)
    if garbled:
        return _answer(arrived, post, "failed", SHAKY)
    if not answer.outcome:
        return _with(arrived, post._replace(kind="work", held=False))
    return _answer(arrived, post, answer.outcome, answer.failure)


def _fail_parking(universe: Universe, arrived: World, post: Post) -> World:
    host = arrived.hosts[post.instance]
    failed = parking_failed(host)
    universe.note_participant(host.control.phase, "prepare_failed", failed.control.phase)
    return _answer(arrived.with_host(post.instance, failed), post, "failed", SHAKY)


# --- files --------------------------------------------------------------------------------------


def _of_job(universe: Universe, world: World, job: Job, *, faulty: bool) -> Iterator[Move]:
    left = list(world.jobs)
    left.remove(job)
    ended = world._replace(jobs=tuple(left))
    if job.orphan:
        words = "the manifest that the controller before was writing is written, if it still can be"
        yield Move(words, 0, lambda: _landed(ended, job))
        return
    late = "late " if job.held else ""
    done = _landed(ended, job)
    writes = job.kind == "write"
    well = "sealed" if writes and not world.withdrawn else "seal_failed"
    trigger = well if writes else "withdrawn"
    words = f"the {late}{job.kind} of the manifest ends ({trigger})"
    yield from _triggered(universe, done, words, 0, trigger)
    if not faulty:
        return
    failed = "seal_failed" if writes else "withdraw_failed"
    for found, how in ((ended, "fails"), (done, "fails, though it has done its work")):
        words = f"the {late}{job.kind} of the manifest {how}"
        yield from _triggered(universe, found, words, 1, failed)
    if not job.held:
        hung = ended._replace(jobs=(*ended.jobs, job._replace(held=True)), faults=world.faults - 1)
        yield Move(f"the {job.kind} of the manifest hangs", 1, lambda: hung)


def _landed(world: World, job: Job) -> World:
    if job.kind == "write":
        return world._replace(manifest=world.manifest or not world.withdrawn)
    return world._replace(manifest=False, withdrawn=True)


def _triggered(
    universe: Universe,
    world: World,
    words: str,
    cost: int,
    trigger: str,
    *,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[Move]:
    facts = {"root": ROOT} if trigger == "commit" else facts or {}
    event = Triggered(moment=world.moment, trigger=trigger, facts=facts)
    return _event(universe, world, words, cost, event)


# --- the caller, the clock, the controller, the instances ---------------------------------------


def _of_caller(universe: Universe, world: World, *, faulty: bool) -> Iterator[Move]:
    legal = world.operation.row.on
    for verb in VERBS:
        if verb in legal:
            yield from _triggered(universe, world, f"the caller: {verb}", 0, verb)
    if faulty:
        for trigger, words in GIVING_UP.items():
            if trigger in legal:
                yield from _triggered(universe, world, words, 1, trigger)
        if "supersede" in legal and world.operation.also_call == RETIRE:
            for number, notes in enumerate(world.account.notes):
                words = f"a later restore takes over what instance {number} is to retire"
                facts = universe.superseding(number)
                if not notes.superseded:
                    yield from _triggered(universe, world, words, 1, "supersede", facts=facts)


def _of_time(universe: Universe, world: World) -> Iterator[Move]:
    if (ALSO, math.inf) in world.timers:
        going_on = _without_timer(world, ALSO)
        event = TimerFired(moment=world.moment, timer=ALSO)
        words = f"the other operation has ended, timer {ALSO} fires"
        yield from _event(universe, going_on, words, 0, event)
    due_s = min((due_s for _, due_s in world.timers), default=math.inf)
    if due_s == math.inf:
        return
    later = world.at(max(world.at_s, due_s))
    for timer, instant_s in world.timers:
        if instant_s > due_s + HAIR_S:
            continue
        fired = _without_timer(later, timer)
        words = f"{later.at_s - world.at_s:g} s pass, timer {timer} fires"
        event = TimerFired(moment=later.moment, timer=timer)
        yield from _event(universe, fired, words, 0, event)
        if timer == ALSO and world.faults > 0:
            words = f"another checkpoint or restore is open, timer {ALSO} is held back"
            yield Move(words, 1, partial(_hold_back, fired))


def _without_timer(world: World, timer: str) -> World:
    return world._replace(timers=tuple(one for one in world.timers if one[0] != timer))


def _hold_back(world: World) -> World:
    timers = tuple(sorted([*world.timers, (ALSO, math.inf)]))
    return world._replace(timers=timers, faults=world.faults - 1)


def _of_controller(universe: Universe, world: World) -> Iterator[Move]:
    paid = world._replace(faults=world.faults - 1)
    words = "the controller crashes, another takes over"
    yield Move(f"{words} at once", 1, lambda: universe.take_over(paid, 0.0))
    silent_s = LONG_SILENCE_S
    yield Move(f"{words} when all leases are over", 1, lambda: universe.take_over(paid, silent_s))
    if "supersede" in world.operation.row.on and world.operation.opening.get("inventory"):
        left = [n for n, notes in enumerate(world.account.notes) if not notes.superseded]
        later = f"{words}, after a later restore of its own"
        yield Move(later, 1, lambda: universe.take_over(paid, 0.0, superseded=left))
    if any(job.kind == "write" for job in world.jobs):
        landed = _landed(paid, Job("write"))
        done = f"the manifest is written, but before that is recorded {words}"
        yield Move(done, 1, lambda: universe.take_over(landed, 0.0))
        pauses = "the controller stands still while it writes the manifest, another takes over"
        yield Move(pauses, 1, partial(_leave_writing, universe, paid))
    if "discard" in world.operation.row.on:
        by_hand = "an operator takes the operation over to discard it"
        yield Move(by_hand, 1, lambda: universe.take_over(paid, 0.0, "discard"))


def _leave_writing(universe: Universe, paid: World) -> World:
    world = universe.take_over(paid, 0.0)
    return world._replace(jobs=(*world.jobs, Job("write", held=True, orphan=True)))


def _of_operator(universe: Universe, world: World, number: int) -> Iterator[Move]:
    """Let an operator give up on an instance that is to be reopened and has not answered."""
    operation = world.operation
    if not operation.cleaning:
        return
    for call in sorted(operation.calls_of(operation.state)):
        found = operation.call_state(call, operation.instances[number])
        if found.state not in ("asked", "failed", "unanswered"):
            continue
        event = Replied(
            moment=world.moment,
            instance=operation.instances[number],
            call=call,
            ask=found.ask,
            outcome="failed",
            failure=DECLARED_GONE,
        )
        words = f"an operator declares instance {number} gone, whose {call} is {found.state}"
        yield from _event(universe, world, words, 1, event)


def _of_host(universe: Universe, world: World, number: int) -> Iterator[Move]:
    host = world.hosts[number]
    if host.status != "up":
        return
    paid = world._replace(faults=world.faults - 1)
    for status, words in AILMENTS.items():
        ill = paid.with_host(number, host._replace(status=status))
        yield Move(f"instance {number} {words}", 1, partial(_same, ill))
    empty = emptied(host)
    if (empty.control, empty.attempt) != (host.control, host.attempt):
        restarts = f"instance {number} restarts empty"
        yield Move(restarts, 1, partial(_same, paid.with_host(number, empty)))
    if host.control.checkpoint_id is None:
        return

    def run_out() -> World:
        plane = ControlPlane("environment", grace_s=GRACE_S)
        plane.rewind(host.control)
        plane.expire(float("inf"))
        universe.note_participant(host.control.phase, "expire", plane.state.phase)
        return paid.with_host(number, host._replace(control=plane.state))

    yield Move(f"the lease of instance {number} runs out by its own clock", 1, run_out)
    for call, wire_id in STRAYS:
        words = f"a {call} of {wire_id} that nobody here has sent reaches instance {number}"
        yield Move(words, 1, partial(_take_stray, universe, paid, number, (call, wire_id)))


def _take_stray(universe: Universe, paid: World, number: int, stray: tuple[str, str]) -> World:
    call, wire_id = stray
    host = paid.hosts[number]
    after = take_stray(host, call, wire_id, paid.now_ts)
    universe.note_participant(host.control.phase, call, after.control.phase)
    return paid.with_host(number, after)


def _same(world: World) -> World:
    return world


# --- what is refused ----------------------------------------------------------------------------


def hold_refusals(universe: Universe, world: World) -> None:
    """
    Require S8 in one world: what the chart ignores or does not allow changes nothing.

    Raises:
        Broken: It changed something.
    """
    operation, row = world.operation, world.operation.row
    for trigger in row.ignore:
        event = Triggered(moment=world.moment, trigger=trigger)
        taken = universe.step(operation, event)
        if taken.entries and taken.entries[0].trigger in row.when.values():
            continue  # the instant itself has brought something about
        changed = taken.effects or taken.operation is not operation
        if changed or taken.refused is None:
            raise Broken("S8", f"{trigger} is ignored in {operation.state}, and changes something")
