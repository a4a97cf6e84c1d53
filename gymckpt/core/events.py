"""
What can happen to an operation, in the past tense: the only way into the core.

Time arrives inside events. `at_s` is monotonic and counts from the moment when the operation was
opened, so that waiting is immune to steps of the wall clock and replay sees the same numbers.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from gymckpt.core.entry import JsonFacts

__all__ = ["Event", "FailureRecord", "Moment", "Replied", "TakenOver", "TimerFired", "Triggered"]


@attrs.frozen
class Moment:
    """One instant by both clocks."""

    ts: float
    """Epoch seconds, as deadlines on the wire are."""
    at_s: float
    """Seconds since the operation was opened, monotonic."""


_TEXT = attrs.validators.instance_of(str)
_BOOL = attrs.validators.instance_of(bool)


@attrs.frozen(kw_only=True)
class FailureRecord:
    """
    What is kept of an exception: plain text and what it means for the call.

    Raises:
        TypeError: A field is of the wrong type.
    """

    type: str = attrs.field(validator=_TEXT)
    text: str = attrs.field(validator=_TEXT)
    transient: bool = attrs.field(validator=_BOOL)
    dead: bool = attrs.field(validator=_BOOL)
    """Whether it says that the actor is gone for good."""


@attrs.frozen(kw_only=True)
class Triggered:
    """A verb was called, or a file effect ended; named by a trigger of the operation's chart."""

    moment: Moment
    trigger: str
    facts: JsonFacts = attrs.field(factory=dict[str, Any])


@attrs.frozen(kw_only=True)
class Replied:
    """One ask came back."""

    moment: Moment
    instance: str
    call: str
    ask: int
    outcome: Literal["answered", "refused", "failed"]
    failure: FailureRecord | None = None
    """Set exactly where the outcome is `failed`."""
    facts: JsonFacts = attrs.field(factory=dict[str, Any])
    """What the journal should keep of the answer."""


@attrs.frozen(kw_only=True)
class TimerFired:
    """A timer that the core started has run out; one that no longer matters is harmless."""

    moment: Moment
    timer: str


@attrs.frozen(kw_only=True)
class TakenOver:
    """Another controller has claimed the operation; the one before is fenced."""

    moment: Moment
    """By the new controller's clocks; `at_s` goes on from the latest entry."""
    epoch: int
    """The epoch that the claim gave."""
    owner: str
    """The token of the new controller."""
    trigger: str = "settle"
    """What it brings to an operation that is not being cleaned up yet: `settle`, or an operator's
    `discard`."""
    facts: JsonFacts = attrs.field(factory=dict[str, Any])
    """What the first entry of it should keep besides: who did it by hand, and why."""
    superseded: tuple[JsonFacts, ...] = ()
    """What later restores have taken over from a restore: the facts of one `supersede` each."""


Event = Triggered | Replied | TimerFired | TakenOver
