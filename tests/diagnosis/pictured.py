"""
Histories to be pictured: made by the real core, in virtual time, from what instances answer.

A `Story` says what comes of every ask and when the body goes on; `played` lets the core live it and
returns the entries. Nothing in here decides what is legal.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import attrs

from gymckpt.core.effects import SendCall, StartTimer, StopTimer, WithdrawManifest, WriteManifest
from gymckpt.core.entry import Entry
from gymckpt.core.events import Event, FailureRecord, Moment, Replied, TimerFired, Triggered
from gymckpt.core.settings import RetryPolicy, Settings
from gymckpt.core.step import open_operation, step

START_TS = 1_790_000_000.0

DIED = FailureRecord(
    type="ActorDiedError", text="The actor died: worker killed (SIGKILL)", transient=True, dead=True
)
FULL = FailureRecord(
    type="OSError", text="[Errno 28] No space left on device", transient=False, dead=False
)
SHAKY = FailureRecord(
    type="GymCheckpointUnavailable", text="HTTP 503 from agent", transient=True, dead=False
)


@attrs.frozen
class Answer:
    """What comes of one ask, and when."""

    after_s: float
    outcome: Literal["answered", "refused", "failed"] = "answered"
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    failure: FailureRecord | None = None


Answering = Callable[[str, str, int], Answer | None]
"""(instance, call, ask) to what comes of it; None is silence for ever."""


def settings(**changes: Any) -> Settings:
    """Return what most training jobs would use."""
    values: dict[str, Any] = {
        "control_timeout_s": 30.0,
        "prepare_timeout_s": 120.0,
        "reply_grace_s": 5.0,
        "retries": {"resume": RetryPolicy(attempts=2, pause_s=1.0)},
    }
    return Settings(**(values | changes))


def prompt(instance: str, call: str, ask: int) -> Answer:
    """Answer everything soon, each instance at a pace of its own."""
    pace = random.Random(f"{instance} {call} {ask}").lognormvariate(0.0, 0.5)
    seconds = {"prepare": 6.0, "commit": 2.5, "restore": 4.0, "retire": 0.8}.get(call, 0.15)
    return Answer(pace * seconds)


@attrs.frozen(kw_only=True)
class Story:
    """One operation to be lived."""

    instances: tuple[str, ...]
    answering: Answering = prompt
    chart: str = "checkpoint"
    operation_id: str = "step-120"
    run: str = "llama-grpo-7"
    body: Mapping[str, tuple[float, str] | tuple[float, str, Mapping[str, Any]]] = attrs.field(
        factory=lambda: {
            "open": (0.0, "prepare"),
            "parked": (4.0, "commit"),
            "committed": (2, "resume"),
        }
    )
    """State to how long after its entry which verb comes, with what facts."""
    seal_s: float = 0.4
    seal_failure: FailureRecord | None = None
    until_s: float = 10_000.0
    """When the record ends, by the operation's clock."""
    settings: Settings = attrs.field(factory=settings)
    facts: Mapping[str, Any] = attrs.field(factory=dict)


def names(count: int, shards: Iterable[str] = ("tools",)) -> tuple[str, ...]:
    """Return the ids of `count` instances, spread over shards in turn."""
    kinds = tuple(shards)
    numbers = [f"{kind}/replica-{index}" for index in range(count) for kind in kinds]
    return tuple(sorted(numbers[:count], key=lambda name: (name.split("/")[0], _index(name))))


def _index(name: str) -> int:
    return int(name.rpartition("-")[2])


class _Playing:
    def __init__(self, story: Story) -> None:
        self.story = story
        opening = open_operation(
            moment=Moment(START_TS, 0.0),
            run=story.run,
            operation_id=story.operation_id,
            chart=story.chart,
            instances=story.instances,
            settings=story.settings,
            facts=story.facts,
        )
        self.operation = opening.operation
        self.entries = list(opening.entries)
        self.at_s = 0.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._timers: dict[str, int] = {}
        self._entered(opening.operation.state)

    def run(self) -> tuple[Entry, ...]:
        while self._due and self._due[0][0] <= self.story.until_s:
            self.at_s, _, make = heapq.heappop(self._due)
            event = make()
            if event is not None:
                self._take(event)
        return tuple(self.entries)

    def _moment(self) -> Moment:
        return Moment(START_TS + self.at_s, self.at_s)

    def _later(self, delay_s: float, make: Callable[[], Event | None]) -> None:
        heapq.heappush(self._due, (self.at_s + delay_s, next(self._order), make))

    def _take(self, event: Event) -> None:
        before = self.operation.state
        taken = step(self.operation, event)
        self.operation = taken.operation
        self.entries += taken.entries
        for effect in taken.effects:
            if isinstance(effect, SendCall):
                self._send(effect)
            elif isinstance(effect, StartTimer):
                self._start(effect)
            elif isinstance(effect, StopTimer):
                self._timers.pop(effect.timer, None)
            elif isinstance(effect, WriteManifest):
                self._seal()
            elif isinstance(effect, WithdrawManifest):
                self._later(0.1, lambda: Triggered(moment=self._moment(), trigger="withdrawn"))
        if self.operation.state != before:
            self._entered(self.operation.state)

    def _send(self, effect: SendCall) -> None:
        answer = self.story.answering(effect.instance, effect.call, effect.ask)
        if answer is None:
            return
        self._later(
            answer.after_s,
            lambda: Replied(
                moment=self._moment(),
                instance=effect.instance,
                call=effect.call,
                ask=effect.ask,
                outcome=answer.outcome,
                failure=answer.failure,
                facts=answer.facts,
            ),
        )

    def _start(self, effect: StartTimer) -> None:
        if effect.timer in self._timers:
            return
        token = self._timers[effect.timer] = next(self._order)

        def fire() -> Event | None:
            if self._timers.get(effect.timer) != token:
                return None
            del self._timers[effect.timer]
            return TimerFired(moment=self._moment(), timer=effect.timer)

        self._later(effect.delay_s, fire)

    def _seal(self) -> None:
        failure = self.story.seal_failure
        trigger = "sealed" if failure is None else "seal_failed"
        facts = {"sha256": "0" * 64} if failure is None else {"failure": attrs.asdict(failure)}
        self._later(
            self.story.seal_s,
            lambda: Triggered(moment=self._moment(), trigger=trigger, facts=facts),
        )

    def _entered(self, state: str) -> None:
        if state not in self.story.body:
            return
        delay_s, trigger, *rest = self.story.body[state]
        facts = dict(rest[0]) if rest else {}
        if trigger == "commit":
            facts = {"root": "snapshots/step-120", **facts}

        def verb() -> Event | None:
            if self.operation.state != state:
                return None
            return Triggered(moment=self._moment(), trigger=trigger, facts=facts)

        self._later(delay_s, verb)


def played(story: Story) -> tuple[Entry, ...]:
    """Let the core live a story and return its history."""
    return _Playing(story).run()


# --- what can go wrong --------------------------------------------------------------------------


def but(odd: Mapping[tuple[str, str], Answer | None], otherwise: Answering = prompt) -> Answering:
    """Answer as `otherwise` does, but for some (instance, call)."""

    def answering(instance: str, call: str, ask: int) -> Answer | None:
        if (instance, call) in odd:
            return odd[instance, call]
        return otherwise(instance, call, ask)

    return answering


def good(count: int = 12) -> Story:
    """A checkpoint that goes well."""
    return Story(instances=names(count, ("browser", "swe", "tools")))


def hung() -> Story:
    """One of twelve never answers prepare; the record ends while it is waited for."""
    return attrs.evolve(good(), answering=but({("swe/replica-2", "prepare"): None}), until_s=96.0)


def not_ready() -> Story:
    """Two of twelve cannot park: they answer with what is in the way."""
    facts = {
        "blockers": {
            "agent": {"count": 3, "sample": ["math-17", "math-18-a1", "web-4"]},
            "browser-pool": {"count": 1, "sample": ["environment-worker-lost"]},
        }
    }
    refusal = Answer(118.0, "refused", facts)
    other = Answer(118.6, "refused", {"blockers": {"agent": {"count": 9, "sample": ["math-3"]}}})
    odd = {("swe/replica-2", "prepare"): refusal, ("tools/replica-0", "prepare"): other}
    return attrs.evolve(good(), answering=but(odd))


def dead() -> Story:
    """An actor dies while it writes; it is gone, and reopening the others is what is left."""
    odd = {
        ("browser/replica-1", "commit"): Answer(1.2, "failed", failure=DIED),
        ("browser/replica-1", "resume"): Answer(0.1, "failed", failure=DIED),
    }
    return attrs.evolve(good(), answering=but(odd))


def lost_lease() -> Story:
    """While the body runs for minutes, one instance stops answering renewals."""

    def answering(instance: str, call: str, ask: int) -> Answer | None:
        silent = instance == "tools/replica-3" and (call, ask > 8) == ("renew", True)
        return None if silent else prompt(instance, call, ask)

    body = {"open": (0.0, "prepare"), "parked": (600.0, "commit")}
    return attrs.evolve(good(), answering=answering, body=body)


def full_disk() -> Story:
    """The manifest cannot be written."""
    return attrs.evolve(good(), seal_failure=FULL)


def unconfirmed() -> Story:
    """It stands, but one instance never confirms that it is open, until its lease has passed."""
    settings_ = settings(lease_grace_s=90.0)
    odd = {("swe/replica-1", "resume"): None, ("swe/replica-3", "resume"): None}
    late = but({("swe/replica-3", "resume"): Answer(38.0)}, but(odd))
    return attrs.evolve(good(), answering=late, settings=settings_)


def restore_discarded() -> Story:
    """A restore fails on one instance: what was restored is retired, and all are reopened."""
    odd = {
        ("swe/replica-0", "restore"): Answer(2.0, "failed", failure=FULL),
        ("tools/replica-1", "retire"): None,
    }
    instances = names(12, ("browser", "swe", "tools"))
    return Story(
        instances=instances,
        chart="restore",
        operation_id="restore-step-120",
        answering=but(odd),
        body={"open": (0.0, "restore")},
        facts={"inventory": {}},
    )


def parked_long() -> Story:
    """The body has been running for twenty minutes, and the record ends there."""
    return attrs.evolve(
        good(),
        body={"open": (0.0, "prepare")},
        until_s=1200.0,
        answering=but({("swe/replica-1", "prepare"): Answer(71.0)}),
    )


def crowd(count: int = 2000) -> Story:
    """Two thousand instances: a few fail, a few are slow, and one never answers."""
    instances = names(count, ("browser", "swe", "tools", "terminal"))
    chance = random.Random(7)
    slow = {name: 30.0 + 60.0 * chance.random() for name in chance.sample(instances, 14)}
    shaky = set(chance.sample(instances, 9))

    def answering(instance: str, call: str, ask: int) -> Answer | None:
        if call == "prepare" and instance in slow:
            return Answer(slow[instance])
        if call == "resume" and instance in shaky and ask == 1:
            return Answer(0.8, "failed", failure=SHAKY)
        if call == "commit" and instance == "terminal/replica-77":
            return None
        if call == "commit" and instance == "swe/replica-401":
            return Answer(28.0, "failed", failure=FULL)
        return prompt(instance, call, ask)

    return Story(instances=instances, answering=answering)


STORIES: Mapping[str, Callable[[], Story]] = {
    "good": good,
    "hung": hung,
    "not_ready": not_ready,
    "dead": dead,
    "lost_lease": lost_lease,
    "full_disk": full_disk,
    "unconfirmed": unconfirmed,
    "restore_discarded": restore_discarded,
    "parked_long": parked_long,
    "crowd": crowd,
}
