"""
The state of one operation, and how an entry moves it.

`apply` is the only function that makes a new state, and it needs nothing but the entry: the live
core, recovery and replay fold the same entries with the same function, so what is replayed is
what was lived (DESIGN, S6). A state shares everything that an entry did not touch with the one
before it: a reply among ten thousand costs a few pointers, not a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

import attrs
from rpds import HashTrieMap

from gymckpt.chart import Chart, Machine, State, load_chart, machine_for
from gymckpt.core.calls import NO_CALLS, Calls, CallState, moved_call
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.opening import (
    AT_OPENING,
    attempts,
    joined,
    require_named,
    required_instances,
    required_text,
)
from gymckpt.core.settings import RENEW, RESUME, Settings
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.values import replaced

__all__ = [
    "AT_OPENING",
    "NO_CALLS",
    "CallState",
    "Calls",
    "Cause",
    "OperationState",
    "apply",
    "machine_of",
    "opened",
    "require_runnable",
]

OPEN_TRIGGER = "open"
"""What the first entry of every operation is called; no chart has it."""

CALL_CHART = "call"
FAILING_TRIGGERS = frozenset({"refuse", "lose_lease", "seal_failed", "discard", "cancel", "settle"})
"""The triggers that give an operation up; the first of them is its cause."""

FileProgress = Literal["none", "pending", "failed", "done"]
_FILE_TRIGGERS: Mapping[str, FileProgress] = {
    "withdrawn": "done",
    "withdraw_failed": "failed",
    "withdraw": "pending",
}


@cache
def machine_of(chart: str) -> Machine:
    """Return the machine of a shipped chart that needs no guards."""
    return machine_for(load_chart(chart))


NOTHING_ACKNOWLEDGED: HashTrieMap[str, float] = HashTrieMap()


@attrs.frozen(kw_only=True)
class Cause:
    """Why an operation was given up: the first cause, not the last symptom."""

    seq: int
    trigger: str
    state: str
    """The state in which it came."""
    call: str | None
    """The call that could not succeed, where one could not."""
    facts: JsonFacts


@attrs.frozen(kw_only=True, slots=False)
class OperationState:
    """One operation after some entry."""

    run: str
    operation_id: str
    chart: str
    chart_version: int
    settings: Settings
    instances: tuple[str, ...]
    opening: JsonFacts
    """The facts of the opening entry."""
    epoch: int
    seq: int
    """The seq of the latest entry."""
    at_s: float
    """When the latest entry was made, by the operation's own clock."""
    opened_ts: float
    state: str
    entered_ts: float
    entered_at_s: float
    """When the present state was entered."""
    calls: Mapping[str, Calls] = attrs.field(factory=dict[str, Calls])
    """Call to its machines."""
    acknowledged_at_s: HashTrieMap[str, float] = NOTHING_ACKNOWLEDGED
    """Instance to the latest deadline that an answer of it acknowledged, by the operation's
    clock."""
    endangered: Mapping[float, int] = attrs.field(factory=dict[float, int])
    """For the renewals that are in trouble, from their first failure until they are answered: when
    the lease must be presumed lost, by the operation's clock, to how many leases that are. 0 stands
    for a lease that is known to be lost."""
    lease_deadline_at_s: float = 0.0
    """The latest deadline that any call which extends the lease has carried."""
    root: str | None = None
    """The directory that a commit was asked to write into."""
    file: FileProgress = "none"
    """How far the file effect of the present state is."""
    cause: Cause | None = None
    calls_before: Calls = NO_CALLS
    """Where the present state's call stood when the state was entered, if it was under way then:
    what was asked before that proves nothing here."""
    superseded: Mapping[str, frozenset[EnvironmentEpisode]] = attrs.field(
        factory=dict[str, frozenset[EnvironmentEpisode]]
    )
    """Instance to the attempts that a later restore retires from then on, should it fail."""

    @property
    def declared(self) -> Chart:
        """The chart that the operation runs."""
        return machine_of(self.chart).chart

    @property
    def row(self) -> State:
        """The chart's row of the present state."""
        return self.declared.states[self.state]

    @property
    def settled(self) -> bool:
        """Whether the operation is in a final state."""
        return self.row.final

    @property
    def cleaning(self) -> bool:
        """Whether all that is left is to reopen, or nothing: settling it would change nothing."""
        return "settle" not in self.row.on

    @property
    def phase_call(self) -> str | None:
        """The call that the present state sends to every instance."""
        return self.call_of(self.state)

    @property
    def also_call(self) -> str | None:
        """The call that the present state sends besides, where it is unconfirmed."""
        return self._named(self.row.also)

    @property
    def phase(self) -> Calls:
        """The machines of the present state's call."""
        call = self.phase_call
        return self.calls_for(call) if call else NO_CALLS

    @property
    def wire_id(self) -> str:
        """The id that instances know the operation by."""
        return str(self.opening.get("wire_id", self.operation_id))

    @property
    def lease_horizon_at_s(self) -> float:
        """When every instance has reopened by itself, by the operation's own clock."""
        return self.lease_deadline_at_s + self.settings.lease_grace_s

    def calls_of(self, state: str) -> frozenset[str]:
        """Return the calls that may be under way in a state."""
        row = self.declared.states[state]
        calls = (self.call_of(state), self._named(row.also), RENEW if row.renews else None)
        return frozenset(call for call in calls if call is not None)

    def call_of(self, state: str) -> str | None:
        """Return the call that a state sends, with the one that the opening named filled in."""
        return self._named(self.declared.states[state].call)

    def _named(self, call: str | None) -> str | None:
        return str(self.opening["call"]) if call == AT_OPENING else call

    def to_retire(self, instance: str) -> tuple[EnvironmentEpisode, ...]:
        """
        Return the attempts of an instance that are still this operation's to retire.

        Raises:
            KeyError: The opening holds no inventory.
            ValueError: It is malformed.
        """
        listed = attempts(self.opening["inventory"].get(instance, ()))
        if self.chart == "restore":
            listed = tuple(episode.next_attempt() for episode in listed)
        gone = self.superseded.get(instance)
        return tuple(one for one in listed if one not in gone) if gone else listed

    def calls_for(self, call: str) -> Calls:
        """Return the machines of `call`."""
        return self.calls.get(call, NO_CALLS)

    def call_state(self, call: str, instance: str) -> CallState:
        """Return where `call` to `instance` stands."""
        return self.calls_for(call).get(instance)

    def in_state(self, call: str, *states: str) -> Iterator[tuple[str, CallState]]:
        """Yield the instances whose `call` is in one of `states`, in the operation's order."""
        calls = self.calls_for(call)
        if not calls.count(*states):
            return
        for instance in self.instances:
            found = calls.get(instance)
            if found.ask and found.state in states:
                yield instance, found


def opened(entry: Entry) -> OperationState:
    """
    Return the state that an opening entry begins.

    Args:
        entry: The first entry of an operation; its facts hold the chart, the instances and the
            settings.

    Raises:
        KeyError: One of them is missing.
        TypeError: One of them is of the wrong type.
        ValueError: The chart is none of an operation, or of another version than the one that is
            shipped; the instances are none, or one is named twice; a setting is out of range.
    """
    facts: Mapping[str, Any] = entry.facts
    declared = require_runnable(facts["chart"], facts["chart_version"])
    require_named(declared, facts)
    return OperationState(
        run=entry.run,
        operation_id=entry.operation_id,
        chart=declared.name,
        chart_version=declared.version,
        settings=Settings.from_facts(facts["settings"]),
        instances=required_instances(facts["instances"]),
        opening=facts,
        epoch=entry.epoch,
        seq=entry.seq,
        at_s=entry.at_s,
        opened_ts=entry.ts,
        state=entry.dest,
        entered_ts=entry.ts,
        entered_at_s=entry.at_s,
    )


def require_runnable(chart: str, version: object) -> Chart:
    """
    Return the chart that an operation runs, if this release has it in that version.

    Args:
        chart: Its name.
        version: Of which version it was when the operation was opened.

    Raises:
        ValueError: There is no such chart, it is none of an operation, or of another version.
    """
    declared = machine_of(chart).chart
    if declared.scope != "operation":
        raise ValueError(f"chart {declared.name!r} is of scope {declared.scope!r}, not 'operation'")
    if version != declared.version:
        raise ValueError(
            f"chart {declared.name!r} was of version {version!r:.50} when the operation was "
            f"opened, this release has {declared.version}; use one that has that version"
        )
    return declared


def apply(operation: OperationState, entry: Entry) -> OperationState:
    """
    Return the operation after one more entry.

    Args:
        operation: The state before it.
        entry: The next entry of the same operation.

    Raises:
        KeyError: A fact that every entry of its kind has is missing.
        TypeError: A fact is of the wrong type.
        ValueError: A fact is out of range.
    """
    if entry.instance is None:
        return _apply_to_operation(operation, entry)
    return _apply_to_call(operation, entry, entry.instance, str(entry.call))


def _apply_to_operation(operation: OperationState, entry: Entry) -> OperationState:
    changes: dict[str, Any] = {"seq": entry.seq, "at_s": entry.at_s, "epoch": entry.epoch}
    if "root" in entry.facts:
        changes["root"] = required_text(entry.facts["root"], "root")
    # An attempt that hung may fail after a later one has done the work for good.
    if entry.trigger in _FILE_TRIGGERS and operation.file != "done":
        changes["file"] = _FILE_TRIGGERS[entry.trigger]
    if operation.cause is None and _gives_up(operation, entry):
        changes["cause"] = Cause(
            seq=entry.seq,
            trigger=entry.trigger,
            state=entry.source,
            call=entry.facts.get("call"),
            facts=entry.facts,
        )
    if entry.trigger == "supersede":
        changes["superseded"] = joined(operation.superseded, entry.facts["attempts"])
    if entry.dest != operation.state:
        effect = operation.declared.states[entry.dest].effect
        named = operation.root is not None
        call = operation.call_of(entry.dest)
        anew = call is not None and call in operation.calls_of(operation.state)
        changes |= {
            "state": entry.dest,
            "entered_ts": entry.ts,
            "entered_at_s": entry.at_s,
            "file": "pending" if effect and named else "none",
            "calls_before": operation.calls_for(str(call)) if anew else NO_CALLS,
        }
    return replaced(operation, changes)


def _gives_up(operation: OperationState, entry: Entry) -> bool:
    """
    Whether an entry gives its operation up.

    A trigger that leads where an ordinary one leads as well, as `settle` and `resume` do from
    `committed`, lets the operation stand.
    """
    if entry.trigger not in FAILING_TRIGGERS:
        return False
    ordinary = (
        edge.to
        for trigger, edges in operation.row.on.items()
        if trigger not in FAILING_TRIGGERS
        for edge in edges
    )
    return entry.dest not in ordinary


def _apply_to_call(
    operation: OperationState, entry: Entry, instance: str, call: str
) -> OperationState:
    changes: dict[str, Any] = {"seq": entry.seq, "at_s": entry.at_s, "epoch": entry.epoch}
    calls = operation.calls.get(call)
    if calls is None:
        calls = attrs.evolve(NO_CALLS, tries=operation.settings.tries(call))
    before = calls.get(instance)
    after = moved_call(before, entry)
    if after is before:
        return replaced(operation, changes)
    changes["calls"] = {**operation.calls, call: calls.moved(instance, after)}
    if call == RESUME:
        return replaced(operation, changes)
    # What is sent besides extends no lease: the instance is open.
    besides = call == operation.also_call and operation.lease_deadline_at_s > 0
    if entry.trigger in ("ask", "retry") and not besides:
        deadline = max(operation.lease_deadline_at_s, after.deadline_at_s)
        changes["lease_deadline_at_s"] = deadline
    elif entry.trigger == "answer":
        known = operation.acknowledged_at_s.get(instance, 0.0)
        changes["acknowledged_at_s"] = operation.acknowledged_at_s.insert(
            instance, max(known, after.deadline_at_s)
        )
    moved = replaced(operation, changes)
    ends_s, ended_s = _lease_end_s(moved, instance), _lease_end_s(operation, instance)
    if ends_s == ended_s:
        return moved
    return replaced(moved, {"endangered": _recounted(operation.endangered, ended_s, ends_s)})


def _lease_end_s(operation: OperationState, instance: str) -> float | None:
    """Return when a lease must be presumed lost; None where its renewal is in no trouble."""
    renewal = operation.call_state(RENEW, instance)
    if renewal.failure is None:
        return None
    if renewal.state == "gone" or not renewal.failure.transient:
        return 0.0
    return operation.acknowledged_at_s.get(instance, 0.0)


def _recounted(
    tally: Mapping[float, int], before_s: float | None, after_s: float | None
) -> Mapping[float, int]:
    """Return a tally in which one lease has changed its end."""
    counts = dict(tally)
    if before_s is not None:
        counts[before_s] -= 1
        if not counts[before_s]:
            del counts[before_s]
    if after_s is not None:
        counts[after_s] = counts.get(after_s, 0) + 1
    return counts
