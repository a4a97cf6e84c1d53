"""
What a chart is, as data, and what firing a trigger in it can come to.

A chart is read from a file of `statecharts/` and never built by hand. It is total: every pair of
state and trigger is a transition, declared ignored with a reason, or illegal. This module knows
neither files nor the library that runs the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

__all__ = [
    "Chart",
    "Edge",
    "Facts",
    "Fired",
    "Guard",
    "Ignored",
    "Outcome",
    "Refused",
    "State",
    "Verdict",
]

Facts = Mapping[str, Any]
"""What a guard may look at; gathered by whoever fires the trigger."""

Scope = Literal["operation", "call", "participant"]
Budget = Literal["prepare", "control"]
FileEffect = Literal["write_manifest", "withdraw_manifest"]
Condition = Literal["all_answered", "cannot_succeed", "all_settled", "exhausted"]


@attrs.frozen(kw_only=True)
class Verdict:
    """What a guard says, with the reason in words for whoever is refused."""

    allowed: bool
    reason: str = ""
    code: str = ""
    """A stable word for programs, such as `stale_checkpoint`; empty where allowed."""


Guard = Callable[[Facts], Verdict]


@attrs.frozen(kw_only=True)
class Edge:
    """One way out of a state for one trigger."""

    to: str
    guard: str | None = None


@attrs.frozen(kw_only=True)
class State:
    """One row of a chart."""

    name: str
    means: str
    final: bool = False
    call: str | None = None
    """The call that entering the state sends to every instance; `@opening` means that the
    operation names it when it is opened."""
    budget: Budget | None = None
    """Which of the two timeouts bounds the state's call or effect."""
    effect: FileEffect | None = None
    """What entering the state does to the outer manifest."""
    renews: bool = False
    """Whether leases are renewed, round after round, while the operation is in the state."""
    reopens: bool = False
    """Whether the verb returns after its attempts while unconfirmed calls are swept later."""
    when: Mapping[Condition, str] = attrs.field(factory=dict)
    """Joint conditions over the state's calls and the trigger each fires, in order."""
    on: Mapping[str, tuple[Edge, ...]] = attrs.field(factory=dict)
    """Trigger to the edges that it may take; the first whose guard allows is taken."""
    ignore: Mapping[str, str] = attrs.field(factory=dict)
    """Trigger to the reason why it is ignored here."""


@attrs.frozen(kw_only=True)
class Chart:
    """One declared machine."""

    name: str
    version: int
    scope: Scope
    means: str
    initial: str
    triggers: Mapping[str, str]
    """Trigger to what it means; in the order of the file."""
    guards: Mapping[str, str] = attrs.field(factory=dict)
    """Guard to what it means."""
    states: Mapping[str, State]
    """Name to state; in the order of the file."""

    @property
    def final_states(self) -> frozenset[str]:
        """The states that no transition leaves for good."""
        return frozenset(name for name, state in self.states.items() if state.final)

    def legal(self, state: str) -> tuple[str, ...]:
        """Return the triggers that have an edge in `state`, in the order of the file."""
        on = self.states[state].on
        return tuple(trigger for trigger in self.triggers if trigger in on)


@attrs.frozen(kw_only=True)
class Fired:
    """The trigger was taken."""

    source: str
    trigger: str
    dest: str


@attrs.frozen(kw_only=True)
class Ignored:
    """The chart declares that the trigger does nothing in this state."""

    source: str
    trigger: str
    reason: str


@attrs.frozen(kw_only=True)
class Refused:
    """Every edge's guard said no; nothing changed."""

    source: str
    trigger: str
    guard: str
    reason: str
    code: str = ""


Outcome = Fired | Ignored | Refused
