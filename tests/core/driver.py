"""
One operation in a small world of its own, in memory and in virtual time.

A `World` feeds events to `step` and does with the effects what a scheduler would: it keeps timers,
outstanding asks and file jobs, and lets tests decide what comes of each and when. It never looks
into a state to decide what is legal. Everything that was recorded and everything that was to be
done is kept in order, and every step is held against what a scheduler relies on (`steps`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs

from gymckpt.core.effects import (
    CancelCall,
    Effect,
    SendCall,
    StartTimer,
    StopTimer,
    WithdrawManifest,
    WriteManifest,
)
from gymckpt.core.entry import Entry
from gymckpt.core.events import (
    Event,
    FailureRecord,
    Moment,
    Replied,
    TakenOver,
    TimerFired,
    Triggered,
)
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import replay
from gymckpt.core.settings import RetryPolicy, Settings
from gymckpt.core.step import Step, open_operation, step
from gymckpt.topology import to_facts
from tests.core.steps import TAKEN, as_read, hold_step, transitions_of

START_TS = 1_700_000_000.0
"""The wall clock when a world begins."""

ROOT = "snapshots/step-1"

SHAKY = FailureRecord(type="ConnectionError", text="reset", transient=True, dead=False)
FATAL = FailureRecord(type="ValueError", text="bad data", transient=False, dead=False)
DEAD = FailureRecord(type="ActorDiedError", text="gone", transient=True, dead=True)

VERBS = ("prepare", "restore", "run", "commit", "resume", "keep")
"""The verbs with which a caller goes on."""

VERB_FACTS: dict[str, dict[str, Any]] = {"commit": {"root": ROOT}}
"""What a verb must bring along."""


def settings(**changes: Any) -> Settings:
    """Return round numbers: control 10 s, prepare 100 s, grace 5 s, two tries at resuming."""
    values: dict[str, Any] = {
        "control_timeout_s": 10.0,
        "prepare_timeout_s": 100.0,
        "reply_grace_s": 5.0,
        "retries": {"resume": RetryPolicy(attempts=2, pause_s=1.0)},
    }
    return Settings(**(values | changes))


def names(count: int) -> tuple[str, ...]:
    """Return the ids of `count` instances."""
    return tuple(f"main/replica-{index}" for index in range(count))


def inventory(instances: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what an opening names for each instance: two attempts of rollouts of its own."""
    return {
        name: [{"rollout_id": f"r{index}-{n}", "attempt": 2 * n} for n in range(2)]
        for index, name in enumerate(instances)
    }


@attrs.frozen
class FileJob:
    """A file effect that has not ended."""

    kind: Literal["write", "withdraw"]


class World:
    """An operation, its surroundings, and everything that has happened."""

    def __init__(
        self,
        chart: str,
        instances: int | Iterable[str] = 2,
        *,
        numbers: Settings | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """
        Open an operation.

        Args:
            chart: The chart that it runs.
            instances: How many instances there are, or their ids.
            numbers: Its settings.
            facts: What its opening entry keeps besides; an inventory where it must hold one.
        """
        ids = names(instances) if isinstance(instances, int) else tuple(instances)
        facts = dict(facts or {})
        if chart == "restore" or facts.get("call") == "retire":
            facts.setdefault("inventory", inventory(ids))
        self.at_s = 0.0
        self.wall_offset_s = 0.0
        """How far the wall clock has been set off its start."""
        self.timers: dict[str, float] = {}
        """Running timer to when it is due."""
        self.sent: list[SendCall] = []
        """Everything that was ever sent."""
        self._waiting: dict[SendCall, None] = {}
        self._sent_to: dict[tuple[str, str], list[SendCall]] = {}
        self.jobs: list[FileJob] = []
        self.manifest = False
        """Whether a manifest exists."""
        self.withdrawn = False
        """Whether none can appear any more."""
        self.entries: list[Entry] = []
        self.effects: list[Effect] = []
        self.released = False
        self.watchers: list[Callable[[Event | None, OperationState, Step], None]] = []
        """Called after each step with the event, the state before it, and the step."""
        opening = open_operation(
            moment=self.moment,
            run="run",
            operation_id="op-1",
            chart=chart,
            instances=ids,
            settings=numbers or settings(),
            facts=facts,
        )
        self.operation = opening.operation
        self.entries += opening.entries

    # --- the clocks -----------------------------------------------------------------------------

    @property
    def moment(self) -> Moment:
        """Now."""
        return Moment(START_TS + self.wall_offset_s + self.at_s, self.at_s)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; timers that fall due meanwhile are late and fire at the next chance."""
        self.at_s += seconds

    def next_timer(self) -> tuple[float, str] | None:
        """Return when the next timer is due, and its name."""
        return min(((due, name) for name, due in self.timers.items()), default=None)

    def advance(self) -> str | None:
        """Go on to the next timer and fire it; return its name, or None where none runs."""
        due = self.next_timer()
        if due is None:
            return None
        due_s, name = due
        self.at_s = max(self.at_s, due_s)
        self.fire(name)
        return name

    def fire(self, timer: str) -> Step:
        """Fire a timer now, whether it runs or not."""
        self.timers.pop(timer, None)
        return self.feed(TimerFired(moment=self.moment, timer=timer))

    def wait(self, seconds: float) -> None:
        """Let time pass and fire every timer at its instant."""
        end_s = self.at_s + seconds
        while (due := self.next_timer()) is not None and due[0] <= end_s:
            self.advance()
        self.at_s = max(self.at_s, end_s)

    def wait_until(self, reached: Callable[[World], bool], limit: int = 10_000) -> None:
        """Fire timers until `reached`; fail where none is left or `limit` were not enough."""
        for _ in range(limit):
            if reached(self):
                return
            fired = self.advance()
            assert fired is not None, f"nothing goes on by itself in {self.operation.state!r}"
        raise AssertionError(f"not reached after {limit} timers, in {self.operation.state!r}")

    # --- what happens ---------------------------------------------------------------------------

    def verb(self, trigger: str, **facts: Any) -> Step:
        """Bring a trigger of the operation's chart in."""
        known = VERB_FACTS.get(trigger, {})
        return self.feed(Triggered(moment=self.moment, trigger=trigger, facts={**known, **facts}))

    def reply(
        self,
        ask: SendCall,
        outcome: Literal["answered", "refused", "failed"],
        failure: FailureRecord | None = None,
        **facts: Any,
    ) -> Step:
        """Let any ask that was ever sent come back, for the first time or again."""
        self._waiting.pop(ask, None)
        return self.feed(
            Replied(
                moment=self.moment,
                instance=ask.instance,
                call=ask.call,
                ask=ask.ask,
                outcome=outcome,
                failure=failure,
                facts=facts,
            )
        )

    @property
    def asks(self) -> list[SendCall]:
        """What is waited for, in the order of sending."""
        return list(self._waiting)

    def outstanding(self, call: str | None = None) -> list[SendCall]:
        """Return what is waited for, of one call or of all."""
        return [ask for ask in self._waiting if call in (None, ask.call)]

    def sent_to(self, call: str, instance: str | int = 0) -> list[SendCall]:
        """Return every ask of a call to an instance, given by its id or place."""
        name = self.operation.instances[instance] if isinstance(instance, int) else instance
        return self._sent_to.get((call, name), [])

    def latest(self, call: str, instance: str | int = 0) -> SendCall:
        """Return the latest ask of a call to an instance, given by its id or place."""
        return self.sent_to(call, instance)[-1]

    def answer(self, call: str, *instances: str | int, **facts: Any) -> None:
        """Answer the latest ask of a call to some instances; to all that wait, where none given."""
        asks = [self.latest(call, which) for which in instances] or self.outstanding(call)
        assert asks, f"nobody waits for an answer to {call}"
        for ask in asks:
            self.reply(ask, "answered", **facts)

    def refuse(self, call: str, *instances: str | int) -> None:
        """Let instances answer that they are not ready."""
        for which in instances:
            self.reply(self.latest(call, which), "refused", blockers={"agent": ["r-1"]})

    def fail(self, call: str, *instances: str | int, failure: FailureRecord = SHAKY) -> None:
        """Let the latest ask of a call to some instances fail."""
        for which in instances:
            self.reply(self.latest(call, which), "failed", failure)

    def kill(self, call: str, *instances: str | int) -> None:
        """Let the latest ask of a call say that the actors are dead."""
        self.fail(call, *instances, failure=DEAD)

    def supersede(self, *instances: str | int, of: slice = slice(None)) -> Step:
        """Let a later restore take over the attempts of some instances, or some of these."""
        ids = [self.operation.instances[x] if isinstance(x, int) else x for x in instances]
        left = {name: self.operation.to_retire(name)[of] for name in ids}
        return self.verb("supersede", by="op-2", attempts=to_facts(left))

    def go_on(self) -> None:
        """Let happen next what must happen for all to go well, if there is anything."""
        row = self.operation.row
        verb = next((trigger for trigger in VERBS if trigger in row.on), None)
        waiting = self.outstanding(self.operation.phase_call) or self.asks
        if row.effect == "write_manifest" and self.jobs:
            self.end_file("write", well=True)
        elif waiting:
            self.answer(waiting[0].call)
        elif verb is not None:
            self.verb(verb)

    def end_file(self, kind: str, *, well: bool, landed: bool = False) -> Step:
        """
        End the oldest file job of a kind.

        Args:
            kind: `write` or `withdraw`.
            well: Whether it succeeds; a write does not, once the manifest was withdrawn.
            landed: Whether a job that fails has done its work all the same.
        """
        self.jobs.remove(FileJob(kind))
        self.work_file(kind, well=well, landed=landed)
        if kind == "write":
            return self.verb("sealed" if well and not self.withdrawn else "seal_failed")
        return self.verb("withdrawn" if well else "withdraw_failed")

    def work_file(self, kind: str, *, well: bool, landed: bool = False) -> None:
        """Let a file job touch the file, without anybody being told."""
        if kind == "write":
            self.manifest = self.manifest or ((well or landed) and not self.withdrawn)
        elif well or landed:
            self.manifest, self.withdrawn = False, True

    def outstanding_withdrawals(self) -> bool:
        """Whether a withdrawal of the manifest has not ended."""
        return FileJob("withdraw") in self.jobs

    # --- crashes --------------------------------------------------------------------------------

    def replayed(self, count: int | None = None) -> OperationState:
        """Return what replay makes of the first `count` entries, read back from their JSON."""
        return replay(as_read(entry) for entry in self.entries[:count])

    def crash_and_replay(self) -> None:
        """Require that what was recorded gives exactly the state that was lived."""
        replayed = self.replayed()
        claimed = {"epoch": replayed.epoch, "at_s": replayed.at_s}  # which a claim alone may raise
        assert replayed == attrs.evolve(self.operation, **claimed)
        assert replayed.at_s == self.entries[-1].at_s <= self.operation.at_s
        assert replayed.epoch == self.entries[-1].epoch <= self.operation.epoch

    def take_over(
        self,
        count: int | None = None,
        silent_s: float = 0.0,
        *,
        trigger: str = "settle",
        **facts: Any,
    ) -> Step:
        """
        Let another controller go on from the journal, with none of this one's timers and asks.

        Args:
            count: How many entries had become durable; all where None.
            silent_s: How long after the last of them it comes.
            trigger: What it brings, where the operation is not being cleaned up yet.
            facts: What it notes besides.
        """
        replayed = self.replayed(count)
        if count is not None:
            self.watchers = []  # they have seen what now never happened
        del self.entries[count if count is not None else len(self.entries) :]
        self.at_s = max(self.at_s if count is None else 0.0, replayed.at_s) + silent_s
        self.timers.clear()
        self._waiting.clear()
        self.jobs.clear()
        self.released = False
        epoch = self.operation.epoch + 1
        self.operation = attrs.evolve(replayed, at_s=self.at_s)
        owner, moment = "controller-2", self.moment
        return self.feed(
            TakenOver(moment=moment, epoch=epoch, owner=owner, trigger=trigger, facts=facts)
        )

    def copied(self) -> World:
        """Return a world that goes its own way from here."""
        other = copy.copy(self)
        for name in ("timers", "sent", "jobs", "entries", "effects", "_waiting"):
            setattr(other, name, copy.copy(getattr(self, name)))
        other._sent_to = {key: list(asks) for key, asks in self._sent_to.items()}
        other.watchers = []
        return other

    # --- the loop of a scheduler ----------------------------------------------------------------

    def feed(self, event: Event) -> Step:
        """Step, record, and only then let the state count and perform the effects."""
        before = self.operation
        taken = step(before, event)
        hold_step(before, taken)
        self.entries += taken.entries
        TAKEN.update(transitions_of(before, taken.entries))
        self.operation = taken.operation
        self.effects += taken.effects
        for effect in taken.effects:
            self._perform(effect)
        for watcher in self.watchers:
            watcher(event, before, taken)
        return taken

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendCall):
            self._waiting[effect] = None
            self.sent.append(effect)
            self._sent_to.setdefault((effect.call, effect.instance), []).append(effect)
        elif isinstance(effect, CancelCall):
            for ask in self.sent_to(effect.call, effect.instance):
                self._waiting.pop(ask, None)
        elif isinstance(effect, StartTimer):
            assert effect.delay_s >= 0
            self.timers.setdefault(effect.timer, self.at_s + effect.delay_s)
        elif isinstance(effect, StopTimer):
            self.timers.pop(effect.timer, None)
        elif isinstance(effect, WriteManifest):
            self.jobs.append(FileJob("write"))
        elif isinstance(effect, WithdrawManifest):
            assert effect.root == ROOT
            self.jobs.append(FileJob("withdraw"))
        else:
            assert effect.state == self.operation.state or not effect.released
            self.released = self.released or effect.released
