"""
An explanation of one operation, as data.

Everything in it is bounded however many instances there are: totals, groups and a sample. Sentences
are complete and name no absolute times; those are epoch seconds in fields of their own, so that
whoever prints an explanation chooses the time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

__all__ = [
    "EXPLANATION_SCHEMA",
    "Behaviour",
    "BlockGroup",
    "Blocking",
    "Controller",
    "Explanation",
    "Finding",
    "Lease",
    "Move",
    "NextStep",
    "Progress",
    "Why",
]

EXPLANATION_SCHEMA = "gymckpt.explanation/1"
"""What `Explanation.to_json` calls its shape; a change that breaks readers raises the number."""


@attrs.frozen(kw_only=True)
class Behaviour:
    """How one instance took one call in earlier operations."""

    operations: int
    """How many earlier operations were looked at."""
    asked: int
    """In how many of them the call was sent to it."""
    answered: int
    refused: int
    failed: int
    """In how many an error came back, or the actor was dead."""
    unanswered: int
    usual_s: float | None
    """The median time of its answers."""
    slowest_s: float | None
    blockers: Literal["none", "same", "changing"]
    """What kept it from parking, where that was said more than once, this time included."""
    words: str


@attrs.frozen(kw_only=True)
class Blocking:
    """One instance that the operation waits for, or that brought it down."""

    instance: str
    call: str
    state: str
    """Where the call's machine stands: `asked`, `refused`, `failed`, `unanswered`, `gone`, …"""
    asks: int
    """How often the call was sent to it in this round."""
    asked_ts: float
    age_s: float
    """How long ago the call was first sent to it in this round."""
    due_ts: float | None
    """Until when an answer is waited for; None where none is."""
    reason: str
    """In the instance's own words, where it said any."""
    behaviour: Behaviour | None
    """How it took this call in earlier operations; None where none were given."""
    words: str


@attrs.frozen(kw_only=True)
class BlockGroup:
    """Instances that are in the same way for the same reason."""

    state: str
    reason: str
    count: int
    sample: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Progress:
    """How far the call of the present state is."""

    call: str
    done: int
    total: int
    tally: Mapping[str, int]
    """State of the call's machine to how many instances are in it."""


@attrs.frozen(kw_only=True)
class NextStep:
    """What happens by itself."""

    kind: str
    what: str
    at_ts: float | None
    """When, by the controller's wall clock; None where that depends on what is not journaled."""
    in_s: float | None
    """How far ahead that is; negative where it is overdue."""
    leads_to: str | None
    """The state to which it leads for certain, where it leads to one."""


@attrs.frozen(kw_only=True)
class Move:
    """What an operator may do."""

    name: str
    command: str
    does: str
    allowed: bool
    why_not: str
    """Why it is refused now, or on what condition it is allowed; empty where it simply is."""


@attrs.frozen(kw_only=True)
class Why:
    """Why an operation was given up: the first cause, not the last symptom."""

    trigger: str
    in_state: str
    """The state in which it was given up."""
    at_ts: float
    call: str | None
    first_instance: str | None
    """The instance that went wrong first, where one did."""
    first_at_ts: float | None
    instances: int
    """How many instances had their part in it."""
    culprits: tuple[Blocking, ...]
    """Those of them that went wrong first; a sample."""
    words: str
    expected: bool
    """Whether it is an ordinary end, such as a body that ended without asking for a commit."""


@attrs.frozen(kw_only=True)
class Controller:
    """Who drives the operation, as far as the journal tells."""

    owner: str
    """Its token; empty where only the entries are known."""
    epoch: int
    status: Literal["ended", "alive", "silent", "unknown"]
    """`ended`: nobody need drive it. `alive`: its heartbeats come in time. `silent`: it counts
    as gone. `unknown`: a heartbeat is late; where the journal keeps none: no entry is due."""
    seen_ts: float
    """Its last heartbeat."""
    due_ts: float | None
    """When the next one must come at the latest, where one must."""
    takeovers: int
    """How often another controller has taken the operation over."""
    words: str


@attrs.frozen(kw_only=True)
class Lease:
    """How long instances stay parked without their controller."""

    instance: str
    """The one whose acknowledged deadline passes first."""
    deadline_ts: float
    left_s: float
    horizon_ts: float
    """When every instance has reopened by itself, whatever happens."""


@attrs.frozen(kw_only=True)
class Finding:
    """Something that was noticed besides."""

    code: str
    """A stable word for programs, such as `clock_step` or `cut_off`."""
    problem: bool
    """Whether it needs attention; else it is only worth knowing."""
    words: str


@attrs.frozen(kw_only=True)
class Explanation:
    """What an operation is doing, why, and what comes next."""

    run: str
    operation_id: str
    chart: str
    """The chart that it runs; empty where not even its opening is known."""
    title: str
    """What to call it in a sentence."""
    as_of_ts: float
    """The moment for which everything here holds."""
    opened_ts: float
    state: str
    means: str
    """What the chart says of the state."""
    since_ts: float
    for_s: float
    """How long it has been in the state."""
    settled: bool
    problem: bool
    """Whether somebody should look at it."""
    summary: str
    """One line."""
    advice: str
    """What to do about it, in a sentence."""
    waits_for: str
    progress: Progress | None
    blocking: tuple[Blocking, ...]
    """The instances in the way now, the worst first; a sample."""
    blocking_total: int
    groups: tuple[BlockGroup, ...]
    """The same by reason, the most frequent first."""
    next: tuple[NextStep, ...]
    moves: tuple[Move, ...]
    cause: Why | None
    controller: Controller
    lease: Lease | None
    parked_s: float
    """How long its instances have been parked in all, or are."""
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; `docs/cli.md` documents the shape."""
        return {"schema": EXPLANATION_SCHEMA, **attrs.asdict(self)}
