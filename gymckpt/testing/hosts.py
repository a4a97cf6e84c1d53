"""
The instances of an explored operation: real control planes, and what may be wrong with them.

A host is a value. Each delivery builds a `ControlPlane` around the state that it remembers, lets
it take the call, and keeps the state that it has then.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gymckpt.core.events import FailureRecord
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import ParticipantRefused
from gymckpt.participant.control import ControlPlane, ControlState
from gymckpt.testing.account import Broken

__all__ = [
    "BROKEN",
    "DEAD",
    "EPISODE",
    "OPERATION_ID",
    "SHAKY",
    "Answer",
    "Host",
    "Outcome",
    "Post",
    "emptied",
    "expired",
    "parking_failed",
    "require_attempt",
    "take",
    "take_stray",
]

OPERATION_ID = "op-1"
DERIVED_ID = f"{OPERATION_ID}.anew"
"""The id of a retire that is sent after the resume, which fences the operation's own."""
EPISODE = EnvironmentEpisode("rollout", 1)
GRACE_S = 6.0
"""The lease of every host, as short as the bound of the core on it."""

STRAY_S = 3.0
"""The deadline of a call that comes from elsewhere."""

SHAKY = FailureRecord(type="ConnectionError", text="reset", transient=True, dead=False)
BROKEN = FailureRecord(type="ValueError", text="bad data", transient=False, dead=False)
DEAD = FailureRecord(type="ActorDiedError", text="gone", transient=True, dead=True)
REFUSED = FailureRecord(type="ParticipantRefused", text="no", transient=False, dead=False)

Outcome = Literal["", "answered", "refused", "failed"]
"""What comes back for a call; nothing yet while episodes are on their way to a turn boundary."""

Status = Literal["up", "deaf", "broken", "dead"]
"""`deaf`: no call reaches it any more; `broken`: it answers every call with an error."""


class Host(NamedTuple):
    """One instance."""

    control: ControlState
    status: Status = "up"
    restarted: bool = False
    """Whether it has forgotten what it once knew."""
    attempt: bool = True
    """Whether it holds the attempt that the operation is about; what restarts empty has lost it."""


class Post(NamedTuple):
    """A call on its way, episodes on their way to a turn boundary, or a reply on its way."""

    kind: Literal["request", "work", "reply"]
    instance: int
    call: str
    ask: int
    deadline_ts: float
    outcome: Outcome = ""
    failure: FailureRecord | None = None
    heard: bool = True
    """Whether the controller that sent the ask still waits for its reply."""
    held: bool = False
    """Whether it is late: time goes on without it, and it may come whenever it likes."""
    besides: bool = False
    """Whether it is a retire under an id of its own."""
    nothing: bool = False
    """Whether it is a retire that names no attempt: a later restore has superseded it."""
    empty: bool = False
    """Whether it is the answer of an instance that does not hold what it answers for."""

    def __str__(self) -> str:
        late = "late " if self.held else ""
        what = f"{late}{self.call} #{self.ask}"
        if self.kind == "request":
            return f"{what} reaches instance {self.instance}"
        if self.kind == "work":
            return f"instance {self.instance} has parked for {what}"
        kind = self.failure.type if self.failure else self.outcome
        return f"the reply of instance {self.instance} to {what} comes ({kind})"


class Answer(NamedTuple):
    """What a host makes of a call."""

    host: Host
    outcome: Outcome
    failure: FailureRecord | None = None


def emptied(host: Host) -> Host:
    """Return a host that has come back empty under the same handle."""
    plane = ControlPlane("environment", grace_s=GRACE_S)
    return host._replace(control=plane.state, restarted=True, attempt=False)


def _plane(host: Host) -> ControlPlane:
    plane = ControlPlane("environment", grace_s=GRACE_S)
    plane.rewind(host.control)
    return plane


def expired(host: Host, now_ts: float) -> Host:
    """Return a host whose lease has gone, if it has run out."""
    if host.control.checkpoint_id is None or host.status == "dead":
        return host
    plane = _plane(host)
    plane.expire(now_ts)
    return host._replace(control=plane.state)


def parking_failed(host: Host) -> Host:
    """Return a host whose parking has raised an error, where it still was to park."""
    if host.status in ("dead", "broken") or host.control.phase != "preparing":
        return host
    plane = _plane(host)
    plane.prepare_failed(OPERATION_ID)
    return host._replace(control=plane.state)


def take(host: Host, post: Post, now_ts: float) -> Answer:
    """
    Let a call, or the end of the parking that it began, reach a host.

    Args:
        host: The host.
        post: What reaches it.
        now_ts: The wall clock.

    Raises:
        Broken: S4 or S8: a resumed id has closed the host again, or a refusal changed it.
    """
    if host.status == "dead":
        return Answer(host, "failed", DEAD)
    if host.status == "broken":
        return Answer(host, "failed", BROKEN)
    host = expired(host, now_ts)
    plane = _plane(host)
    try:
        done = _parked(plane) if post.kind == "work" else _asked(plane, post, now_ts)
        if post.call == "commit":
            require_attempt(host)
    except ParticipantRefused:
        if plane.state != host.control and post.call != "commit":
            raise Broken("S8", f"{post.call} was refused and has changed its host") from None
        return Answer(host, "failed", REFUSED)
    if OPERATION_ID in host.control.stale_ids and not plane.is_open:
        raise Broken("S4", f"{post.call} has closed instance {post.instance} after its resume")
    installed = post.call == "restore" and "restore" not in host.control.answers
    attempt = installed or (host.attempt and post.call != "retire")
    after = host._replace(control=plane.state, attempt=attempt)
    return Answer(after, "answered" if done else "")


def take_stray(host: Host, call: str, wire_id: str, now_ts: float) -> Host:
    """
    Let a call reach a host that its operation has not sent.

    Args:
        host: A host that is up.
        call: `resume`, `renew` or `forget`.
        wire_id: The id that it comes with.
        now_ts: The wall clock.

    Raises:
        Broken: S8: it was refused, and has changed the host.
    """
    plane = _plane(expired(host, now_ts))
    before = plane.state
    try:
        if call == "resume":
            plane.resume(wire_id, now_ts=now_ts)
        elif call == "renew":
            plane.renew(wire_id, deadline_ts=now_ts + STRAY_S, now_ts=now_ts)
        else:
            plane.forget(wire_id, ["rollout"], deadline_ts=now_ts + STRAY_S, now_ts=now_ts)
    except ParticipantRefused:
        if plane.state != before:
            raise Broken("S8", f"a stray {call} was refused and has changed its host") from None
    return host._replace(control=plane.state)


def require_attempt(host: Host) -> None:
    """Refuse to write what the host does not hold, as a deployment does."""
    if not host.attempt:
        raise ParticipantRefused("unknown_episode", "the attempt is not here")


def _parked(plane: ControlPlane) -> bool:
    plane.ready(OPERATION_ID)
    plane.record("prepare", OPERATION_ID, "parked")
    return True


def _asked(plane: ControlPlane, post: Post, now_ts: float) -> bool:
    call, deadline_ts = post.call, post.deadline_ts
    if call == "prepare":
        known = plane.prepare(OPERATION_ID, deadline_ts=deadline_ts, now_ts=now_ts)
        return known is not None
    if call == "renew":
        plane.renew(OPERATION_ID, deadline_ts=deadline_ts, now_ts=now_ts)
    elif call == "commit":
        plane.commit(OPERATION_ID, "root", deadline_ts=deadline_ts, now_ts=now_ts)
        plane.record("commit", OPERATION_ID, "written")
    elif call == "restore":
        _install(plane, deadline_ts, now_ts)
    elif call == "retire":
        wire_id = DERIVED_ID if post.besides else OPERATION_ID
        named = [] if post.nothing else [EPISODE]
        plane.retire(wire_id, named, deadline_ts=deadline_ts, now_ts=now_ts)
    elif call == "forget":
        plane.forget(OPERATION_ID, ["rollout"], deadline_ts=deadline_ts, now_ts=now_ts)
    else:
        plane.resume(OPERATION_ID, now_ts=now_ts)
    return True


def _install(plane: ControlPlane, deadline_ts: float, now_ts: float) -> None:
    """Install the saved attempt; one that was retired leaves no trace, as in a deployment."""
    before, was_open = plane.state, plane.is_open
    known = plane.restore(OPERATION_ID, "root", deadline_ts=deadline_ts, now_ts=now_ts)
    try:
        if was_open:
            plane.require_current(EPISODE)
    except ParticipantRefused:
        plane.rewind(before)
        raise
    if known is None:
        plane.install(OPERATION_ID, [EPISODE])
        plane.record("restore", OPERATION_ID, "installed")
