"""
The promises of one operation (DESIGN, 3), held against what its core emitted and nothing else.

`Promises` watches a `World`: which calls left in which order, what came back for them, what was
done to the file, and who was told. It keeps its own account of all that and never asks the core,
whose own checks (`gymckpt.core.invariants`) look at entries and states instead: what one of the
two misses, the other may find.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import attrs

from gymckpt.core.effects import CancelCall, Effect, SendCall, StartTimer, Tell, WriteManifest
from gymckpt.core.events import Event, Replied, TakenOver
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import Settings
from gymckpt.core.step import Step
from tests.core.driver import World

DRIVING = frozenset({"prepare", "renew", "commit", "restore"})
CLOSING = frozenset({"prepare", "restore"})
SLACK_S = 1e-3

Key = tuple[str, str]
"""Call and instance."""


@attrs.define
class Ledger:
    """What is known of the calls, from what left and what came back."""

    latest: dict[Key, SendCall] = attrs.field(factory=dict)
    sent: dict[str, set[str]] = attrs.field(factory=dict)
    """Call to the instances that it was sent to."""
    waiting: dict[Key, int] = attrs.field(factory=dict)
    """Call and instance to the ask that is waited for."""
    ends_at_s: dict[tuple[str, str, int], float] = attrs.field(factory=dict)
    """Ask to its deadline, by the operation's clock."""
    answered: dict[Key, int] = attrs.field(factory=dict)
    """Call and instance to which event brought the latest answer."""
    acknowledged_at_s: dict[str, float] = attrs.field(factory=dict)
    trouble: dict[str, bool] = attrs.field(factory=dict)
    """Instance whose renewal is in trouble to whether its lease is known to be lost."""
    confirmed: set[str] = attrs.field(factory=set)
    dead: set[str] = attrs.field(factory=set)
    asked_in: dict[tuple[str, str, int], int] = attrs.field(factory=dict)
    """Ask to the event that it left in."""
    proved: set[str] = attrs.field(factory=set)
    """The instances that have answered a renewal that left after the caller kept the restore."""
    on_its_way_until_s: dict[Key, float] = attrs.field(factory=dict)
    """Call and instance to when the latest ask can no longer arrive, unless it came back."""
    lease_ends_s: float = 0.0
    """The latest deadline that any call which extends a lease has carried."""


class Promises:
    """An account of one world, and what must hold of it."""

    def __init__(self, world: World) -> None:
        """Begin to watch."""
        self.world = world
        self.calls = Ledger()
        self.kept_in = math.inf
        """The event in which its caller has taken a restore over."""
        self.left = attempts_of(world)
        """Instance to the attempts that are still the operation's to retire."""
        self.writes = 0
        self.ended_in: str | None = None
        self._events = 0
        world.watchers.append(self._watch)

    @property
    def instances(self) -> tuple[str, ...]:
        """Whom the operation concerns."""
        return self.world.operation.instances

    @property
    def numbers(self) -> Settings:
        """What bounds the operation."""
        return self.world.operation.settings

    # --- the account ----------------------------------------------------------------------------

    def _watch(self, event: Event | None, before: OperationState, taken: Step) -> None:
        self._events += 1
        if isinstance(event, Replied):
            self._note_reply(event)
        elif isinstance(event, TakenOver):
            self.calls.waiting.clear()
        for entry in taken.entries:
            if entry.trigger == "keep":
                self.kept_in = self._events
            elif entry.trigger == "supersede":
                for name, attempts in entry.facts["attempts"].items():
                    self.left[name] = [one for one in self.left[name] if one not in attempts]
        for effect in taken.effects:
            self._note_effect(effect, before)
        if before.chart == "restore" and taken.operation.state in ("resuming", "resumed"):
            assert self.calls.proved == set(self.instances), "S5: kept without a renewal after it"
        if self.ended_in is not None:
            assert taken.operation.state == self.ended_in, "S2/S3: what has ended stays as it is"

    def _note_reply(self, reply: Replied) -> None:
        calls, key = self.calls, (reply.call, reply.instance)
        if reply.failure is not None and reply.failure.dead:
            calls.dead.add(reply.instance)
        if reply.call == "resume" and reply.outcome == "answered":
            calls.confirmed.add(reply.instance)
        if calls.waiting.get(key) != reply.ask:
            return
        del calls.waiting[key]
        calls.on_its_way_until_s.pop(key, None)
        asked_in = calls.asked_in[reply.call, reply.instance, reply.ask]
        if reply.call == "renew" and reply.outcome == "answered" and asked_in >= self.kept_in:
            calls.proved.add(reply.instance)
        if reply.outcome == "answered":
            calls.answered[key] = self._events
            ends_s = calls.ends_at_s[reply.call, reply.instance, reply.ask]
            known_s = calls.acknowledged_at_s.get(reply.instance, -math.inf)
            calls.acknowledged_at_s[reply.instance] = max(known_s, ends_s)
        if reply.call == "renew" and reply.outcome == "answered":
            calls.trouble.pop(reply.instance, None)
        elif reply.call == "renew":
            failure = reply.failure
            lost = failure is None or failure.dead or not failure.transient
            calls.trouble[reply.instance] = calls.trouble.get(reply.instance, False) or lost

    def _note_effect(self, effect: Effect, before: OperationState) -> None:
        assert self.ended_in is None or not isinstance(
            effect, SendCall | WriteManifest | StartTimer
        )
        if isinstance(effect, SendCall):
            self._hold_send(effect)
            self._note_send(effect)
        elif isinstance(effect, CancelCall):
            given_up = self.calls.waiting.pop((effect.call, effect.instance), None)
            if effect.call == "renew" and given_up is not None:
                self.calls.trouble.setdefault(effect.instance, False)
        elif isinstance(effect, WriteManifest):
            self.writes += 1
            assert self.writes == 1, "S2: a manifest is written once"
            assert self._all_answered("commit"), "S2: a manifest is written last"
        elif isinstance(effect, Tell):
            self._hold_told(effect)

    def _note_send(self, effect: SendCall) -> None:
        key, moment = (effect.call, effect.instance), self.world.moment
        self.calls.latest[key] = effect
        self.calls.sent.setdefault(effect.call, set()).add(effect.instance)
        self.calls.waiting[key] = effect.ask
        left_s = effect.deadline_ts - moment.ts
        assert -SLACK_S <= left_s <= self._budget_s(effect.call) + SLACK_S
        ask, ends_s = (*key, effect.ask), moment.at_s + left_s
        self.calls.asked_in[ask] = self._events
        self.calls.ends_at_s[ask] = ends_s
        self.calls.on_its_way_until_s[key] = ends_s + self.numbers.reply_grace_s
        if effect.call != "resume" and not (self._besides and self.calls.lease_ends_s):
            self.calls.lease_ends_s = max(self.calls.lease_ends_s, ends_s)

    @property
    def _besides(self) -> bool:
        """Whether what leaves is no part of driving the operation: nobody is closed by it."""
        return "resume" in self.calls.sent or self.world.operation.state == "insisting"

    def _budget_s(self, call: str) -> float:
        numbers = self.numbers
        return numbers.prepare_timeout_s if call == "prepare" else numbers.control_timeout_s

    # --- what must hold when something leaves ---------------------------------------------------

    def _hold_send(self, effect: SendCall) -> None:
        call, instance = effect.call, effect.instance
        latest = self.calls.latest.get((call, instance))
        assert effect.ask == (latest.ask + 1 if latest else 1), "asks are numbered from 1"
        if call != "resume":
            assert (call, instance) not in self.calls.waiting, f"two {call} at once"
        if call in DRIVING:
            assert "resume" not in self.calls.sent, f"S4: {call} after resume"
        if call == "commit":
            self._hold_commit(instance)
        if call == "resume" and "restore" in self.calls.sent:
            retired = self.calls.sent.get("retire", set())
            settled = len(self.instances) in (len(retired), len(self.calls.proved))
            assert settled, "S5: resume before retire"
        assert effect.besides == (call == "retire" and self._besides), "S5: under which id"
        if effect.besides:
            self._hold_retire_besides(effect)
        elif effect.left is not None:
            assert call == "retire", f"{call} names attempts"
            assert self._named(effect) == self.left[instance], "S5: other attempts"

    def _hold_retire_besides(self, effect: SendCall) -> None:
        """S5: what is unconfirmed is retired where the instance is open, one ask at a time."""
        calls, instance, now_s = self.calls, effect.instance, self.world.at_s + SLACK_S
        if self.world.operation.chart == "restore":
            is_open = instance in calls.confirmed or now_s >= self.horizon_s
            assert is_open, "S5: retired anew before it is open"
        free_s = calls.on_its_way_until_s.get(("retire", instance), 0.0)
        assert now_s >= free_s, "S5: two retires on their way"
        assert effect.left, "S5: nothing of it is to be retired"
        assert self._named(effect) == self.left[instance], "S5: other attempts"

    def _named(self, effect: SendCall) -> list[dict[str, object]]:
        return [one.to_dict() for one in effect.left or ()]

    def _hold_commit(self, asked: str) -> None:
        """All are asked in one step, so that what holds for the first of them holds for all."""
        answered = self.calls.answered
        for instance in self.instances if asked == self.instances[0] else (asked,):
            parked = answered.get(("prepare", instance), math.inf)
            assert answered.get(("renew", instance), -1) > parked, "S1: commit while not parked"
        for instance in self.calls.trouble:
            assert not self._is_lost(instance), "S1: commit while a lease is presumed lost"

    def _is_lost(self, instance: str) -> bool:
        if instance not in self.calls.trouble:
            return False
        ends_s = self.calls.acknowledged_at_s.get(instance, -math.inf)
        return self.calls.trouble[instance] or ends_s <= self.world.at_s

    def _hold_told(self, told: Tell) -> None:
        if told.released:
            closed = self._sent(*CLOSING)
            assert closed <= self._sent("resume"), "S3: released before all were to be reopened"
        if told.released and self.world.operation.settled:
            self.ended_in = self.world.operation.state
            unsure = self._sent(*CLOSING) - self.calls.confirmed - self.calls.dead
            passed = self.horizon_s <= self.world.at_s + SLACK_S
            assert not unsure or passed, "S3: not reopened"
            assert passed or not self._unretired(), "S5: ended before all was retired"

    def _unretired(self) -> set[str]:
        """Return the instances on which attempts that were given up may still go on."""
        taken = {entry.trigger for entry in self.world.entries if entry.instance is None}
        owes = {("discarded", "restore"), ("done", "insist")}
        if not any(self.world.operation.state == state and by in taken for state, by in owes):
            return set()
        confirmed = {name for call, name in self.calls.answered if call == "retire"}
        return {name for name in self.instances if self.left[name]} - confirmed - self.calls.dead

    # --- what must hold at any time -------------------------------------------------------------

    def hold(self) -> None:
        """Require what must hold between any two events."""
        operation = self.world.operation
        hold_tallies(operation)
        if operation.chart == "checkpoint" and operation.settled:
            assert self.world.manifest == (operation.state == "resumed"), "S2: the manifest lies"
        ended_well = operation.state in ("resumed", "done")
        if operation.settled:
            assert (operation.cause is None) == ended_well, "what was given up has its cause"
            assert not self.world.timers, "what has ended waits for nothing"
        if self.world.released and operation.chart != "sweep":
            assert self._sent(*CLOSING) <= self._sent("resume"), "S3"

    # --- how long it may take -------------------------------------------------------------------

    @property
    def horizon_s(self) -> float:
        """When every instance has reopened by itself, by the operation's clock."""
        return self.calls.lease_ends_s + self.numbers.lease_grace_s

    def release_bound_s(self) -> float:
        """Return how long it may take until nobody need wait, if nothing is heard any more (L1)."""
        own_s = {
            "preparing": self.numbers.prepare_timeout_s + self.numbers.reply_grace_s,
            "parked": self._lease_bound_s(),
            "committed": self._lease_bound_s(),
            "restored": self._lease_bound_s(),
        }
        call_s = self.numbers.control_timeout_s + self.numbers.reply_grace_s
        cleaning_s = max(self._tries_s("resume"), call_s)
        if self.world.operation.chart == "restore":
            cleaning_s += self._tries_s("retire")
        return own_s.get(self.world.operation.state, call_s) + cleaning_s + self._held_s + SLACK_S

    @property
    def _held_s(self) -> float:
        """How long the surroundings still hold back what is sent besides."""
        return max(0.0, self.world.timers.get("also", 0.0) - self.world.at_s)

    def _lease_bound_s(self) -> float:
        """Return how long a lease may go on to be trusted while nothing is heard."""
        call_s = self.numbers.control_timeout_s + self.numbers.reply_grace_s
        ends_s = max(self.calls.acknowledged_at_s.values(), default=0.0)
        return max(self.numbers.renew_interval_s + call_s, ends_s - self.world.at_s)

    def _tries_s(self, call: str) -> float:
        policy = self.numbers.retry(call)
        call_s = self.numbers.control_timeout_s + self.numbers.reply_grace_s
        return policy.attempts * (call_s + policy.pause_s)

    def end_bound_s(self) -> float:
        """Return by when it must have ended, if nothing is heard but the file system works (L2)."""
        released_s = self.world.at_s + self.release_bound_s()
        # What is sent until then extends the leases by one more budget; then comes the last sweep.
        last_sent_s = released_s + self.numbers.control_timeout_s
        horizon_s = max(self.horizon_s, last_sent_s + self.numbers.lease_grace_s)
        # What is sent besides may be out then, and is sent once more before it rests.
        call_s = self.numbers.control_timeout_s + self.numbers.reply_grace_s
        besides_s = 2 * (call_s + self.numbers.sweep_interval_s)
        return horizon_s + self.numbers.sweep_interval_s + self.release_bound_s() + besides_s

    def hold_silence(self) -> None:
        """Require that it comes to its end in time by itself, if no reply ever comes again."""
        if self.world.operation.state == "open":
            assert not self.world.timers, "nothing is under way before the first verb"
            return
        silent = self.world.copied()
        ends_s = self.world.at_s + self.release_bound_s()
        silent.wait_until(lambda world: world.released)
        assert silent.at_s <= ends_s, "L1: released too late"
        ends_s = self.end_bound_s()
        for _ in range(10_000):
            while silent.outstanding_withdrawals():
                silent.end_file("withdraw", well=True)
            if silent.operation.settled:
                break
            assert silent.advance() is not None, "L2: nothing goes on by itself"
        assert silent.operation.settled
        assert silent.at_s <= ends_s, "L2: ended too late"

    # --- small questions ------------------------------------------------------------------------

    def _sent(self, *calls: str) -> set[str]:
        return set[str]().union(*(self.calls.sent.get(call, ()) for call in calls))

    def _all_answered(self, call: str) -> bool:
        return all((call, instance) in self.calls.answered for instance in self.instances)


def attempts_of(world: World) -> dict[str, list[dict[str, Any]]]:
    """Return what an operation is to retire: the listed attempts, or those that follow them."""
    operation = world.operation
    on = operation.chart == "restore"
    listed = operation.opening.get("inventory", {})
    return {
        name: [{**one, "attempt": one["attempt"] + on} for one in listed.get(name, ())]
        for name in operation.instances
    }


def hold_tallies(operation: OperationState) -> None:
    """Require that every tally of a state is what a recount gives."""
    ends: Counter[float] = Counter()
    for call, calls in operation.calls.items():
        found = dict(calls.by_instance.items())
        assert set(found) <= set(operation.instances)
        counted = Counter(state.state for state in found.values())
        assert counted == Counter({state: n for state, n in calls.tally.items() if n})
        tries = math.inf if call == "renew" else operation.settings.retry(call).attempts
        mendable = [
            state
            for state in found.values()
            if state.state in ("failed", "unanswered")
            and not state.abandoned
            and (state.failure is None or state.failure.transient)
            and state.ask < tries
        ]
        assert calls.mendable == len(mendable)
        if call == "renew":
            for instance, state in found.items():
                if state.failure is not None:
                    lost = state.state == "gone" or not state.failure.transient
                    ends[0.0 if lost else operation.acknowledged_at_s.get(instance, 0.0)] += 1
    assert dict(ends) == dict(operation.endangered)
