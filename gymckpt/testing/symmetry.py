"""
When two worlds are the same for all that may follow: the key of a world.

Instants count from now, asks from the latest one, instances in any order. What the core and the
account no longer look at is left out: the calls of earlier states once an operation only cleans
up, acknowledgements that have passed, deadlines of calls that have ended.
"""

from __future__ import annotations

import marshal
from hashlib import blake2b
from typing import Any

from gymckpt.core import timing
from gymckpt.core.calls import CallState
from gymckpt.core.effects import SendCall
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import RESUME
from gymckpt.testing.account import Broken, Notes
from gymckpt.testing.hosts import GRACE_S, Host, Post
from gymckpt.testing.universe import START_TS, Universe, World

__all__ = ["digest_of", "key_of", "pruned"]

Key = tuple[object, ...]
NEVER = -1.0


def key_of(world: World) -> Key:
    """Return what tells a world from every other that may go on differently."""
    operation, account, at_s = world.operation, world.account, world.at_s
    if operation.settled:
        return (operation.state, tuple(sorted(map(_ended_key, _numbered(world)))))
    return (
        operation.state,
        operation.file,
        operation.root is None,
        _budget_left_s(world),
        _ahead_s(operation.lease_horizon_at_s, at_s),
        tuple((name, round(due_s - at_s, 6)) for name, due_s in world.timers),
        tuple(sorted(map(tuple, world.jobs))),
        world.manifest,
        world.withdrawn,
        account.writes,
        account.kept and operation.state not in ("retiring", "discarding"),
        world.faults,
        tuple(sorted(_instance_key(world, number) for _, number in _numbered(world))),
    )


def digest_of(world: World) -> bytes:
    """Return 128 bits of a world's key; Python's own hash takes some numbers for others."""
    key: Any = key_of(world)  # of plain tuples, texts and numbers throughout
    return blake2b(marshal.dumps(key, 2), digest_size=16).digest()


def pruned(universe: Universe, world: World) -> World:
    """
    Return a world without the posts that can change nothing any more, each tried once.

    Raises:
        Broken: S8: a reply that no longer counts changes something.
    """
    left = tuple(post for post in world.posts if _counts(universe, world, post))
    return world._replace(posts=left) if len(left) < len(world.posts) else world


def _counts(universe: Universe, world: World, post: Post) -> bool:
    host, operation = world.hosts[post.instance], world.operation
    if post.kind != "reply":
        fenced = bool(host.control.stale_ids) and post.call != RESUME and not post.besides
        over = post.besides and world.now_ts >= post.deadline_ts
        return post.heard or not (fenced or over or host.status in ("dead", "broken"))
    if operation.settled:
        return False
    found = operation.call_state(post.call, operation.instances[post.instance])
    if found.state in ("asked", "failed", "unanswered") and post.call in operation.calls_of(
        operation.state
    ):
        dead = post.failure is not None and post.failure.dead
        late_resume = post.call == RESUME and post.outcome == "answered"
        if dead or late_resume or (found.state == "asked" and post.ask == found.ask):
            return True
    taken = universe.step(operation, universe.replied(world, post))
    if taken.operation.calls is not operation.calls and post.call in operation.calls_of(
        operation.state
    ):
        raise Broken("S8", f"{post} too late, and changes something")
    if any(isinstance(effect, SendCall) for effect in taken.effects):
        raise Broken("S8", f"{post} too late, and calls leave because of it")
    return False


def _numbered(world: World) -> list[tuple[World, int]]:
    return [(world, number) for number in range(len(world.hosts))]


def _ended_key(numbered: tuple[World, int]) -> Key:
    """Return what still matters of an instance when the operation has ended."""
    world, number = numbered
    posts = tuple(sorted(_post_key(world, post) for post in world.posts if post.instance == number))
    return (_host_key(world.hosts[number], world.at_s) if posts else (), posts)


def _ahead_s(instant_s: float, at_s: float) -> float:
    return max(0.0, round(instant_s - at_s, 6))


def _budget_left_s(world: World) -> float:
    row, operation = world.operation.row, world.operation
    if "cannot_succeed" not in row.when or operation.phase_call == RESUME:
        return 0.0
    ends_s = operation.entered_at_s + operation.settings.budget_s(row.budget)
    return _ahead_s(ends_s, world.at_s)


def _instance_key(world: World, number: int) -> Key:
    operation, at_s = world.operation, world.at_s
    name = operation.instances[number]
    calls = {
        call: operation.call_state(call, name)
        for call in sorted(operation.calls)
        if not operation.cleaning or call in operation.calls_of(operation.state)
    }
    acknowledged_s = operation.acknowledged_at_s.get(name, 0.0)
    return (
        _host_key(world.hosts[number], at_s),
        tuple(_call_key(operation, call, name, found, at_s) for call, found in calls.items()),
        NEVER if operation.cleaning else _ahead_s(acknowledged_s, at_s),
        tuple(sorted(_post_key(world, post) for post in world.posts if post.instance == number)),
        bool(operation.superseded.get(name)),
        operation.phase.get(name).ask > operation.calls_before.get(name).ask,
        _notes_key(world.account.notes[number], at_s, operation),
    )


def _host_key(host: Host, at_s: float) -> Key:
    control = host.control
    expires_ts = control.lease_expires_ts
    return (
        host.status,
        host.restarted,
        host.attempt,
        control.phase,
        bool(control.stale_ids),
        NEVER if expires_ts is None else round(expires_ts - START_TS - at_s, 6),
        tuple(sorted(control.answers.keys())),
        bool(control.marks),
        bool(control.newest),
    )


def _call_key(
    operation: OperationState, call: str, name: str, found: CallState, at_s: float
) -> Key:
    tries = operation.settings.tries(call)
    failure = found.failure
    if call == operation.also_call:
        free_s = timing.free_at_s(operation, call, name)
        first_s = operation.entered_at_s + timing.budget_s(operation, call)
        left_s = _ahead_s(found.deadline_at_s, at_s) if found.state == "asked" else NEVER
        here = found.deadline_at_s > first_s
        return (call, found.state, left_s, _ahead_s(free_s, at_s), here)
    return (
        call,
        found.state,
        min(found.ask, 1 if tries == float("inf") else int(tries) + 1),
        round(found.deadline_at_s - at_s, 6) if found.state == "asked" else NEVER,
        0 if failure is None else 1 + failure.transient + 2 * failure.dead,
        found.abandoned,
    )


def _post_key(world: World, post: Post) -> Key:
    operation = world.operation
    latest = operation.call_state(post.call, operation.instances[post.instance]).ask
    failure = post.failure
    left_s = 0.0
    if post.kind == "request":  # one that is past its lease is as good as any other such
        left_s = max(-GRACE_S - 1.0, round(post.deadline_ts - world.now_ts, 6))
    return (
        post.kind,
        post.call,
        min(1, latest - post.ask) if post.heard else 0,
        left_s,
        post.outcome,
        0 if failure is None else 1 + failure.transient + 2 * failure.dead,
        post.heard,
        post.held,
        post.besides,
        post.nothing,
        post.empty,
    )


def _notes_key(notes: Notes, at_s: float, operation: OperationState) -> Key:
    waiting = tuple((call, round(ends_s - at_s, 6)) for call, _, ends_s in notes.waiting)
    if operation.cleaning:
        sent = tuple(sorted(notes.sent & {"prepare", "restore", "retire", "resume"}))
        counts = ("restore", "retire", "renew")[: 2 + (operation.state == "resuming")]
        answered = tuple(call for call in counts if call in notes.answered)
        ends_s = _ahead_s(notes.ends_at_s + operation.settings.reply_grace_s, at_s)
        retire = (ends_s if notes.ends_at_s else 0.0, notes.superseded)
        return (sent, answered, notes.confirmed, notes.dead, waiting, retire)
    return (
        tuple(sorted(notes.sent)),
        tuple(sorted(notes.answered)),
        notes.trouble,
        _ahead_s(notes.acknowledged_at_s, at_s),
        notes.confirmed,
        notes.dead,
        waiting,
    )
