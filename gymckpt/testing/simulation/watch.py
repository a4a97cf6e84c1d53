"""
What is held against the promises while a run goes on: what left, what came back, what was stored.

The accounts are those of the exploration (`gymckpt.testing.account`): they know messages and share
no code with the core. There is one for each operation and controller. A controller that takes an
operation over begins with what is known to have left before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import orjson

from gymckpt.core.entry import Entry
from gymckpt.core.events import Moment, Replied
from gymckpt.core.operation import machine_of
from gymckpt.errors import is_actor_dead
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME
from gymckpt.replies import GymCheckpointPrepareSummary
from gymckpt.runtime.asks import record_of
from gymckpt.runtime.virtual import VirtualClock
from gymckpt.testing.account import (
    DRIVING,
    Account,
    Broken,
    Notes,
    began_file,
    note_cancel,
    note_reply,
    note_send,
)
from gymckpt.testing.simulation.loop import Process
from gymckpt.testing.simulation.network import Message

__all__ = ["KnownOperation", "Watch", "holds_manifest"]

CONTROL = DRIVING | {"resume", "retire"}
STANDING = frozenset({"committed", "resuming", "resumed"})


def holds_manifest(root: str | None, wire_id: str) -> bool:
    """
    Whether a directory holds the manifest of a checkpoint.

    Only its id is looked at; that it is whole is held at the end of a run.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON.
        KeyError: It is no manifest.
    """
    if root is None:
        return False
    try:
        with open(os.path.join(root, GYM_CHECKPOINT_MANIFEST_FILENAME), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return False
    return bool(orjson.loads(data)["checkpoint_id"] == wire_id)


@attrs.define(eq=False)
class KnownOperation:
    """What the journal was seen to hold of one operation."""

    chart: str
    operation_id: str
    wire_id: str
    instances: tuple[str, ...]
    opening: Mapping[str, Any]
    opened_s: float
    state: str = "open"
    root: str | None = None
    settled_s: float | None = None
    lease_s: float = 0.0
    """The latest deadline that a call which extends leases has carried, by the run's time."""
    gone: set[str] = attrs.field(factory=set[str])
    """The instances that an operator has declared gone."""
    drivers: dict[str, None] = attrs.field(factory=dict[str, None])
    """The processes that have recorded anything of it, in the order in which they took it."""
    sealing: set[str] = attrs.field(factory=set[str])
    """The processes that have recorded that the manifest is to be written, and have not begun."""
    installed: dict[str, int] = attrs.field(factory=dict[str, int])
    """Instance to the life in which it has installed the restore."""
    at_the_end: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """Instance to the life that it was in as the body of the restore ended."""


class Clocked(Protocol):
    """A controller, for its clock."""

    @property
    def clock(self) -> VirtualClock:
        """Its clock."""
        ...


class Watch:
    """
    Holds S1 to S5 against one run.

    Attributes:
        operations: Operation id to what is known of it.
        without_handles: The processes that have no handle of any instance.
    """

    def __init__(
        self,
        *,
        instances: Sequence[str],
        grace_s: float,
        now_s: Callable[[], float],
        wall_ts: Callable[[Process], float],
        lives: Callable[[], Mapping[str, int]],
        broken: Callable[[Broken], None],
    ) -> None:
        """
        Begin with nothing known.

        Args:
            instances: The instance ids.
            grace_s: How long leases last beyond their deadlines.
            now_s: The run's time.
            wall_ts: Process to what its wall clock shows.
            lives: Returns which life each instance is in.
            broken: Told of each promise that does not hold.
        """
        self.operations: dict[str, KnownOperation] = {}
        self.without_handles: set[str] = set()
        self._index = {instance: number for number, instance in enumerate(instances)}
        self._grace_s = grace_s
        self._now_s = now_s
        self._wall_ts = wall_ts
        self._lives = lives
        self._broken = broken
        self._accounts: dict[str, dict[str, Account]] = {}
        """Wire id to process to account; the latest process comes last."""
        self._asks: dict[Message, int] = {}
        self._latest: dict[tuple[str, str, str, int], list[Message]] = {}

    # --- messages -------------------------------------------------------------------------------

    def sends(self, message: Message) -> None:
        """Hold a call that leaves against S1, S4 and S5."""
        if message.call not in CONTROL:
            return
        name, wire_id = message.sender.name, message.wire_id
        number = self._index[message.instance.instance_id]
        key = (name, wire_id, message.call, number)
        earlier = self._latest.setdefault(key, [])
        account = self._account(name, wire_id)
        if earlier and all(one.answer.done() for one in earlier):
            account = note_cancel(account, number, message.call)
        earlier.append(message)
        self._asks[message] = len(earlier)
        now_s = self._now_s()
        ends_s = now_s + message.kwargs["deadline_ts"] - self._wall_ts(message.sender)
        known = self._known(wire_id)
        if known is not None and message.call != "resume":
            known.lease_s = max(known.lease_s, now_s + self._lease_ahead_s(message))
        if self._is_sweep(message, known):
            return
        try:
            account = note_send(account, number, message.call, len(earlier), (now_s, ends_s))
        except Broken as broken:
            self._broken(broken)
        self._accounts[wire_id][name] = account

    def _lease_ahead_s(self, message: Message) -> float:
        """
        Return how far ahead a deadline is, by the later of the sender's clock and the run's.

        The sender's may have been set back after it stamped the call. The skew of an instance is
        left out: no controller can know it.
        """
        clocks = (message.sender, message.instance.process)
        return float(message.kwargs["deadline_ts"]) - max(map(self._wall_ts, clocks))

    def _is_sweep(self, message: Message, known: KnownOperation | None) -> bool:
        """Whether a call is of a retire or resume that goes by the id of another operation."""
        return known is None or known.chart == "sweep"

    def _known(self, wire_id: str) -> KnownOperation | None:
        return self.operations.get(wire_id)

    def _account(self, name: str, wire_id: str) -> Account:
        accounts = self._accounts.setdefault(wire_id, {})
        if name not in accounts:
            # What a controller that was overtaken still sends, instances refuse: it is no new act.
            known = self._known(wire_id)
            drivers = [] if known is None else list(known.drivers)
            earlier = drivers[: drivers.index(name)] if name in drivers else drivers
            before = [accounts[one] for one in earlier if one in accounts]
            last = before[-1] if before else None
            notes = (
                tuple(Notes() for _ in self._index)
                if last is None
                else tuple(one._replace(waiting=()) for one in last.notes)
            )
            accounts[name] = Account(notes, kept=last is not None and last.kept)
        return accounts[name]

    def comes_back(self, message: Message, result: Any, error: BaseException | None) -> None:
        """Note an answer; what proves nothing is left to the core to judge."""
        ask = self._asks.get(message)
        if ask is None:
            return
        wire_id, number = message.wire_id, self._index[message.instance.instance_id]
        account = self._account(message.sender.name, wire_id)
        if message.answer.done():
            account = note_cancel(account, number, message.call)
        ready = not isinstance(result, GymCheckpointPrepareSummary) or result.prepared
        if error is None and ready:
            reply = Replied(
                moment=Moment(0.0, self._now_s()),
                instance=message.instance.instance_id,
                call=message.call,
                ask=ask,
                outcome="answered",
            )
            account = note_reply(account, number, reply)
        elif error is not None and is_actor_dead(error):
            reply = Replied(
                moment=Moment(0.0, self._now_s()),
                instance=message.instance.instance_id,
                call=message.call,
                ask=ask,
                outcome="failed",
                failure=record_of(error),
            )
            account = note_reply(account, number, reply)
        self._accounts[wire_id][message.sender.name] = account

    def installed(self, message: Message) -> None:
        """Note that an instance has installed a restore."""
        known = self._known(message.wire_id)
        if known is not None:
            known.installed[message.instance.instance_id] = message.life

    def seals(self, process: Process) -> None:
        """Hold S2 and S6 against a manifest that is written, or was begun."""
        allowed = [one for one in self.operations.values() if process.name in one.sealing]
        if not allowed:
            what = f"{process.name} writes a manifest, and no entry of it says so"
            self._broken(Broken("S6", what))
        else:  # which one it is cannot be told; jobs that hung come later, each with its own entry
            allowed[-1].sealing.discard(process.name)
        for known in reversed(self.operations.values()):
            if known.state == "sealing" and process.name in known.drivers:
                account = self._account(process.name, known.wire_id)
                try:
                    account = began_file(account)
                except Broken as broken:
                    self._broken(broken)
                self._accounts[known.wire_id][process.name] = account
                return  # of earlier ones it only failed to record the end

    # --- entries --------------------------------------------------------------------------------

    def recorded(self, process: Process, entries: Sequence[Entry]) -> None:
        """Note entries that are durable, and hold S2, S3 and S5 against an end among them."""
        for entry in entries:
            known = self.operations.get(entry.operation_id)
            if known is None:
                known = self.operations[entry.operation_id] = self._opened(entry)
            known.drivers.setdefault(process.name)
            if entry.instance is not None:
                self._recorded_call(process, known, entry, entry.instance)
                continue
            known.root = entry.facts.get("root", known.root)
            if entry.dest == "sealing" != entry.source:
                known.sealing.add(process.name)
            known.state = entry.dest
            if known.chart == "restore" and entry.dest == "resuming":
                self._hold_kept(known)
                for name, account in self._accounts.get(known.wire_id, {}).items():
                    self._accounts[known.wire_id][name] = account._replace(kept=True)
            if machine_of(known.chart).chart.states[entry.dest].final and known.settled_s is None:
                known.settled_s = self._now_s()
                self._hold_ended(known)

    def _recorded_call(
        self, process: Process, known: KnownOperation, entry: Entry, instance: str
    ) -> None:
        failure: Any = entry.facts.get("failure") or {}
        if failure.get("type") == "DeclaredGone":
            known.gone.add(instance)
        if entry.call == "retire" and process.name in self.without_handles:
            # Who has no handles can ask nobody: the next recovery retires, once it has reopened.
            account, number = self._account(process.name, known.wire_id), self._index[instance]
            notes = account.notes[number]
            notes = notes._replace(sent=notes.sent | {"retire"})
            self._accounts[known.wire_id][process.name] = account.changed(number, notes)

    def keeps(self, process: Process) -> None:
        """Note that the body of a restore has ended well: its caller takes over what it has."""
        for known in self.operations.values():
            if known.chart == "restore" and known.state in ("restoring", "restored"):
                account = self._accounts.get(known.wire_id, {}).get(process.name)
                if account is not None:
                    self._accounts[known.wire_id][process.name] = account._replace(kept=True)
                    known.at_the_end = self._lives()

    def _hold_kept(self, known: KnownOperation) -> None:
        """Hold S5: a restore stands only where all that installed it lived on beyond its body."""
        for instance in known.instances:
            if known.installed.get(instance) != known.at_the_end.get(instance):
                what = (
                    f"{known.wire_id} stands, and {instance} began anew before its body had ended"
                )
                self._broken(Broken("S5", what))

    def hold_alone(self, process: Process, operation_id: str) -> None:
        """Hold S7 against an operation that a controller has just opened."""
        if self.operations[operation_id].chart == "sweep":
            return
        for known in self.operations.values():
            if known.settled_s is not None or known.operation_id == operation_id:
                continue
            if list(known.drivers) != [process.name]:
                continue
            row = machine_of(known.chart).chart.states[known.state]
            if known.chart != "sweep" and "settle" in row.on:
                what = f"{operation_id} is opened while {known.operation_id} is {known.state}"
                self._broken(Broken("S7", what))

    def _opened(self, entry: Entry) -> KnownOperation:
        return KnownOperation(
            chart=entry.facts["chart"],
            operation_id=entry.operation_id,
            wire_id=entry.facts.get("wire_id", entry.operation_id),
            instances=tuple(entry.facts["instances"]),
            opening=entry.facts,
            opened_s=self._now_s(),
        )

    def _hold_ended(self, known: KnownOperation) -> None:
        if known.chart == "sweep" or known.wire_id not in self._accounts:
            return
        account = self.merged(known)
        horizon_passed = self._now_s() + 1e-3 >= known.lease_s + self._grace_s
        manifest = known.chart == "checkpoint" and holds_manifest(known.root, known.wire_id)
        try:
            account.hold_ended(
                known.chart, known.state, manifest=manifest, horizon_passed=horizon_passed
            )
        except Broken as broken:
            self._broken(Broken(broken.promise, f"{known.wire_id}: {broken.what}"))
        except (OSError, ValueError, KeyError) as error:
            self._broken(Broken("S2", f"the manifest of {known.wire_id} is unreadable: {error}"))

    def merged(self, known: KnownOperation) -> Account:
        """Return what all controllers together know of an operation."""
        accounts = list(self._accounts[known.wire_id].values())
        notes: list[Notes] = []
        for instance, number in self._index.items():
            each = [account.notes[number] for account in accounts]
            empty = frozenset[str]()
            notes.append(
                Notes(
                    sent=empty.union(*(one.sent for one in each)),
                    answered=empty.union(*(one.answered for one in each)),
                    confirmed=any(one.confirmed for one in each),
                    dead=any(one.dead for one in each) or instance in known.gone,
                )
            )
        return Account(tuple(notes), kept=any(account.kept for account in accounts))
