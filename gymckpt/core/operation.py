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
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.events import FailureRecord
from gymckpt.core.settings import RESUME, Settings

__all__ = ["CallState", "Calls", "Cause", "OperationState", "apply", "machine_of", "opened"]

OPEN_TRIGGER = "open"
"""What the first entry of every operation is called; no chart has it."""

CALL_CHART = "call"
AT_OPENING = "@opening"
FAILING_TRIGGERS = frozenset({"refuse", "lose_lease", "seal_failed", "discard", "cancel", "settle"})
"""The triggers that give an operation up; the first of them is its cause."""

FileProgress = Literal["none", "pending", "failed", "done"]
_FILE_TRIGGERS: Mapping[str, FileProgress] = {"withdrawn": "done", "withdraw_failed": "failed"}


@cache
def machine_of(chart: str) -> Machine:
    """Return the machine of a shipped chart that needs no guards."""
    return machine_for(load_chart(chart))


@attrs.frozen(kw_only=True)
class CallState:
    """Where one call to one instance stands."""

    state: str = "idle"
    ask: int = 0
    """The number of the latest ask; 0 where none was made."""
    deadline_ts: float = 0.0
    """The deadline that the latest ask carried, epoch seconds."""
    deadline_at_s: float = 0.0
    """The same instant by the operation's own clock."""
    failure: FailureRecord | None = None
    """What the latest ask that ended without an answer ended with; a retry keeps it until an
    answer comes."""
    abandoned: bool = False
    """Whether the wait was ended because the operation moved on, not by its own budget."""


IDLE = CallState()


@attrs.frozen
class Calls:
    """All instances' machines of one call, with a tally that makes joint conditions cheap."""

    by_instance: HashTrieMap[str, CallState]
    tally: Mapping[str, int]
    """State of the call chart to how many instances are in it; the idle ones are not counted."""
    troubled: int = 0
    """How many instances have failed since they last answered."""

    def get(self, instance: str) -> CallState:
        """Return where the call to `instance` stands."""
        return self.by_instance.get(instance, IDLE)

    def count(self, *states: str) -> int:
        """Return how many instances are in one of `states`."""
        return sum(self.tally.get(state, 0) for state in states)

    def moved(self, instance: str, call: CallState) -> Calls:
        """Return these calls with one instance's replaced."""
        tally = dict(self.tally)
        before = self.get(instance)
        if before.ask:
            tally[before.state] -= 1
        tally[call.state] = tally.get(call.state, 0) + 1
        change = (call.failure is not None) - (before.failure is not None)
        return Calls(self.by_instance.insert(instance, call), tally, self.troubled + change)


NO_CALLS = Calls(HashTrieMap(), {})
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


@attrs.frozen(kw_only=True)
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
    lease_deadline_at_s: float = 0.0
    """The latest deadline that any call which extends the lease has carried."""
    root: str | None = None
    """The directory that a commit was asked to write into."""
    file: FileProgress = "none"
    """How far the file effect of the present state is."""
    cause: Cause | None = None

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
    def phase(self) -> Calls:
        """The machines of the present state's call."""
        call = self.phase_call
        return self.calls.get(call, NO_CALLS) if call else NO_CALLS

    @property
    def wire_id(self) -> str:
        """The id that instances know the operation by."""
        return str(self.opening.get("wire_id", self.operation_id))

    @property
    def lease_horizon_at_s(self) -> float:
        """When every instance has reopened by itself, by the operation's own clock."""
        return self.lease_deadline_at_s + self.settings.lease_grace_s

    def call_of(self, state: str) -> str | None:
        """Return the call that a state sends, with the one that the opening named filled in."""
        call = self.declared.states[state].call
        return str(self.opening["call"]) if call == AT_OPENING else call

    def call_state(self, call: str, instance: str) -> CallState:
        """Return where `call` to `instance` stands."""
        return self.calls.get(call, NO_CALLS).get(instance)

    def in_state(self, call: str, *states: str) -> Iterator[tuple[str, CallState]]:
        """Yield the instances whose `call` is in one of `states`, in the operation's order."""
        calls = self.calls.get(call, NO_CALLS)
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
    """
    facts: Mapping[str, Any] = entry.facts
    return OperationState(
        run=entry.run,
        operation_id=entry.operation_id,
        chart=facts["chart"],
        chart_version=facts["chart_version"],
        settings=Settings.from_facts(facts["settings"]),
        instances=tuple(facts["instances"]),
        opening=facts,
        epoch=entry.epoch,
        seq=entry.seq,
        at_s=entry.at_s,
        opened_ts=entry.ts,
        state=entry.dest,
        entered_ts=entry.ts,
        entered_at_s=entry.at_s,
    )


def apply(operation: OperationState, entry: Entry) -> OperationState:
    """
    Return the operation after one more entry.

    Args:
        operation: The state before it.
        entry: The next entry of the same operation.
    """
    if entry.instance is None:
        return _apply_to_operation(operation, entry)
    return _apply_to_call(operation, entry, entry.instance, str(entry.call))


def _apply_to_operation(operation: OperationState, entry: Entry) -> OperationState:
    changes: dict[str, Any] = {"seq": entry.seq, "at_s": entry.at_s, "epoch": entry.epoch}
    if "root" in entry.facts:
        changes["root"] = entry.facts["root"]
    if entry.trigger in _FILE_TRIGGERS:
        changes["file"] = _FILE_TRIGGERS[entry.trigger]
    elif entry.trigger == "withdraw":
        changes["file"] = "pending"
    if entry.trigger in FAILING_TRIGGERS and operation.cause is None:
        changes["cause"] = Cause(
            seq=entry.seq,
            trigger=entry.trigger,
            state=entry.source,
            call=entry.facts.get("call"),
            facts=entry.facts,
        )
    if entry.dest != operation.state:
        effect = operation.declared.states[entry.dest].effect
        written = changes.get("root", operation.root) is not None
        changes |= {
            "state": entry.dest,
            "entered_ts": entry.ts,
            "entered_at_s": entry.at_s,
            "file": "pending" if effect and written else "none",
        }
    return attrs.evolve(operation, **changes)


def _apply_to_call(
    operation: OperationState, entry: Entry, instance: str, call: str
) -> OperationState:
    calls = operation.calls.get(call, NO_CALLS)
    before = calls.get(instance)
    changes: dict[str, Any] = {"seq": entry.seq, "at_s": entry.at_s, "epoch": entry.epoch}
    after = _moved_call(before, entry)
    if after is not before:
        changes["calls"] = {**operation.calls, call: calls.moved(instance, after)}
    if entry.trigger in ("ask", "retry") and call != RESUME:
        deadline = max(operation.lease_deadline_at_s, after.deadline_at_s)
        changes["lease_deadline_at_s"] = deadline
    if entry.trigger in ("answer", "confirm"):
        known = operation.acknowledged_at_s.get(instance, 0.0)
        changes["acknowledged_at_s"] = operation.acknowledged_at_s.insert(
            instance, max(known, after.deadline_at_s)
        )
    return attrs.evolve(operation, **changes)


def _moved_call(before: CallState, entry: Entry) -> CallState:
    """Return one call's state after an entry of it; the same object where it only records."""
    if entry.trigger in ("ask", "retry"):
        deadline_ts = float(entry.facts["deadline_ts"])
        return CallState(
            state=entry.dest,
            ask=int(entry.ask or 0),
            deadline_ts=deadline_ts,
            deadline_at_s=entry.at_s + (deadline_ts - entry.ts),
            failure=before.failure if entry.trigger == "retry" else None,
        )
    if entry.trigger == "stale":
        return before
    raw = entry.facts.get("failure")
    abandoned = bool(entry.facts.get("abandoned", False))
    failure = before.failure if abandoned else FailureRecord(**raw) if raw else None
    return attrs.evolve(before, state=entry.dest, failure=failure, abandoned=abandoned)
