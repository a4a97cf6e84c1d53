"""
What a chart is, as data, and what firing a trigger in it can come to.

A chart is read from a file of `statecharts/` and never built by hand. It is total: every pair of
state and trigger is a transition, declared ignored with a reason, or illegal. Nothing of it can be
changed, so that every operation of a process may share one. This module knows neither files nor
the library that runs the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import attrs

__all__ = [
    "Budget",
    "Chart",
    "Condition",
    "Edge",
    "Facts",
    "FileEffect",
    "Fired",
    "Guard",
    "Ignored",
    "Machine",
    "Outcome",
    "Refused",
    "Scope",
    "State",
    "Verdict",
]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

Facts = Mapping[str, Any]
"""What a guard may look at; gathered by whoever fires the trigger."""

Scope = Literal["operation", "call", "participant"]
Budget = Literal["prepare", "control"]
FileEffect = Literal["write_manifest", "withdraw_manifest"]
Condition = Literal["all_answered", "cannot_succeed", "all_settled", "exhausted", "lease_lost"]


def _frozen(mapping: Mapping[_Key, _Value]) -> Mapping[_Key, _Value]:
    """Return a read-only copy that keeps the order."""
    return MappingProxyType(dict(mapping))


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
    also: str | None = None
    """A call that is sent besides, to the instances that have not confirmed it: while no other
    checkpoint or restore is open, and again and again until its lease horizon; `@opening` as for
    `call`."""
    budget: Budget | None = None
    """Which of the two timeouts bounds the state's calls or effect."""
    effect: FileEffect | None = None
    """What entering the state does to the outer manifest."""
    renews: bool = False
    """Whether leases are renewed, round after round, while the operation is in the state."""
    reopens: bool = False
    """Whether the verb returns after its attempts while unconfirmed calls are swept later."""
    when: Mapping[Condition, str] = attrs.field(
        factory=dict[Condition, str], converter=_frozen, hash=False
    )
    """Joint conditions over the state's calls and the trigger each fires, in order."""
    on: Mapping[str, tuple[Edge, ...]] = attrs.field(
        factory=dict[str, tuple[Edge, ...]], converter=_frozen, hash=False
    )
    """Trigger to the edges that it may take; the first whose guard allows is taken."""
    ignore: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_frozen, hash=False)
    """Trigger to the reason why it is ignored here."""


@attrs.frozen(kw_only=True)
class Chart:
    """One declared machine."""

    name: str
    version: int
    scope: Scope
    means: str
    initial: str
    triggers: Mapping[str, str] = attrs.field(converter=_frozen, hash=False)
    """Trigger to what it means; in the order of the file."""
    guards: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_frozen, hash=False)
    """Guard to what it means."""
    states: Mapping[str, State] = attrs.field(converter=_frozen, hash=False)
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
    """The guard of the first edge; reason and code are its own too."""
    reason: str
    code: str = ""


Outcome = Fired | Ignored | Refused


class Machine(Protocol):
    """A chart that can be fired; it holds no state of its own and may be shared."""

    @property
    def chart(self) -> Chart:
        """The chart that is fired."""
        ...

    def fire(self, state: str, trigger: str, facts: Facts = ...) -> Outcome:
        """
        Say what `trigger` does in `state`.

        Args:
            state: Where the caller stands.
            trigger: What happened.
            facts: What the guards may look at.

        Raises:
            IllegalTransition: The chart has neither an edge nor an ignore for the pair.
            ValueError: The chart has no such state or no such trigger.
        """
        ...
