"""
One explored operation with everything around it, as a value, and what an event makes of it.

The core is the real `step`; the hosts run real control planes; the rest is what a scheduler and a
file system hold: timers, calls on their way, file jobs. Time stands still while anything is on
its way that is not late, and then goes on to the next timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import attrs

from gymckpt.chart import load_chart
from gymckpt.core.effects import (
    CancelCall,
    Effect,
    SendCall,
    StartTimer,
    StopTimer,
    Tell,
    WithdrawManifest,
    WriteManifest,
)
from gymckpt.core.entry import Entry
from gymckpt.core.events import Event, Moment, Replied, TakenOver
from gymckpt.core.operation import OperationState, machine_of
from gymckpt.core.settings import RetryPolicy, Settings
from gymckpt.core.step import Step, open_operation, step
from gymckpt.participant.control import ControlPlane
from gymckpt.testing.account import (
    Account,
    Broken,
    Notes,
    began_file,
    note_cancel,
    note_reply,
    note_send,
)
from gymckpt.testing.hosts import EPISODE, GRACE_S, OPERATION_ID, Host, Post, expired
from gymckpt.testing.steps import hold_step

__all__ = ["START_TS", "Job", "Stepper", "Transition", "Universe", "World"]

PARTICIPANT = load_chart("participant")
START_TS = 1000.0
HAIR_S = 1e-6

Stepper = Callable[[OperationState, Event], Step]
Transition = tuple[str, str, str, str]
"""Chart, source, trigger, dest."""

SETTINGS = Settings(
    control_timeout_s=3.0,
    prepare_timeout_s=3.0,
    reply_grace_s=1.0,
    settle_s=1.0,
    lease_grace_s=GRACE_S,
    sweep_interval_s=4.0,
    retries={"resume": RetryPolicy(attempts=2, pause_s=1.0)},
)
"""Small whole numbers, so that few instants differ; two tries at reopening, as by default."""


class Job(NamedTuple):
    """A file effect that has not ended."""

    kind: Literal["write", "withdraw"]
    held: bool = False
    """Whether the file system hangs on it."""
    orphan: bool = False
    """Whether the controller that began it has been taken over, and nobody hears of its end."""


class World(NamedTuple):
    """An operation, its surroundings, and how many faults may still come."""

    operation: OperationState
    at_s: float
    hosts: tuple[Host, ...]
    account: Account
    faults: int
    posts: tuple[Post, ...] = ()
    timers: tuple[tuple[str, float], ...] = ()
    jobs: tuple[Job, ...] = ()
    manifest: bool = False
    withdrawn: bool = False
    """Whether no manifest can appear any more."""

    @property
    def moment(self) -> Moment:
        """Now."""
        return Moment(START_TS + self.at_s, self.at_s)

    @property
    def now_ts(self) -> float:
        """The wall clock, which every host shares."""
        return START_TS + self.at_s

    def without(self, post: Post) -> World:
        """Return the world after one post has arrived or was lost."""
        left = list(self.posts)
        left.remove(post)
        return self._replace(posts=tuple(left))

    def with_host(self, number: int, host: Host) -> World:
        """Return the world with one host replaced."""
        return self._replace(hosts=(*self.hosts[:number], host, *self.hosts[number + 1 :]))

    def at(self, at_s: float) -> World:
        """Return the world at a later instant; leases that have run out by then are gone."""
        hosts = tuple(expired(host, START_TS + at_s) for host in self.hosts)
        return self._replace(at_s=at_s, hosts=hosts)


class Universe:
    """
    The rules by which worlds of one chart follow each other.

    Attributes:
        taken: The transitions that were taken, of the operation's chart, of the call chart and of
            the participant chart.
        steps: How often the core was asked.
    """

    def __init__(
        self,
        chart: str,
        instances: int,
        *,
        stepper: Stepper = step,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Name what is explored.

        Args:
            chart: The chart of the operation.
            instances: How many instances it concerns.
            stepper: The core, or one with a planted fault.
            facts: What its opening entry holds besides.
        """
        self.chart = chart
        self.taken: set[Transition] = set()
        self.steps = 0
        self._names = tuple(f"main/replica-{number}" for number in range(instances))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._step = stepper
        self._facts = dict(facts or {})
        if self._may_retire:
            self._facts["inventory"] = {name: [self._listed] for name in self._names}

    @property
    def _may_retire(self) -> bool:
        return self.chart == "restore" or self._facts.get("call") == "retire"

    @property
    def _listed(self) -> dict[str, Any]:
        """What the opening lists for each instance: a restore installs the attempt after it."""
        return attrs.evolve(EPISODE, attempt=EPISODE.attempt - (self.chart == "restore")).to_dict()

    def superseding(self, number: int) -> dict[str, Any]:
        """Return the facts with which a later restore takes over what is to be retired."""
        return {"by": "op-2", "attempts": {self._names[number]: [EPISODE.to_dict()]}}

    def opening(self, run: str = "run") -> Step:
        """Return the step that opens the operation."""
        return open_operation(
            moment=Moment(START_TS, 0.0),
            run=run,
            operation_id=OPERATION_ID,
            chart=self.chart,
            instances=self._names,
            settings=SETTINGS,
            facts=self._facts,
        )

    def first(self, faults: int) -> World:
        """Return the world in which the operation has just been opened."""
        opening = self.opening()
        control = ControlPlane("environment", grace_s=GRACE_S).state
        host = Host(control, attempt=self.chart != "restore")
        return World(
            opening.operation,
            0.0,
            (host,) * len(self._names),
            Account((Notes(),) * len(self._names)),
            faults,
        )

    # --- events ---------------------------------------------------------------------------------

    def feed(self, world: World, event: Event, *, dies: bool = False) -> World:
        """
        Let the core take an event, and perform the effects.

        Args:
            world: Where it happens.
            event: What happens.
            dies: Whether the controller dies once the entries are durable, before any effect.

        Raises:
            Broken: A promise does not hold.
        """
        if isinstance(event, Replied):
            number = self._numbers[event.instance]
            world = world._replace(account=note_reply(world.account, number, event))
        taken = self.step(world.operation, event)
        self._note_taken(taken)
        before = world.operation
        for entry in taken.entries:
            world = world._replace(account=self._noted(world.account, entry))
        world = world._replace(operation=taken.operation)
        for effect in () if dies else taken.effects:
            world = self._perform(world, effect)
        hold_step(before, taken)
        if dies:
            return world
        if taken.operation.settled:
            self._hold_ended(world)
        return world

    def step(self, operation: OperationState, event: Event) -> Step:
        """Ask the core."""
        self.steps += 1
        return self._step(operation, event)

    def take_over(
        self,
        world: World,
        silent_s: float,
        trigger: str = "settle",
        superseded: Iterable[int] = (),
    ) -> World:
        """
        Let the controller die, and another go on.

        Args:
            world: Where it happens.
            silent_s: How long the other comes after it.
            trigger: What it brings to an operation that is not being cleaned up.
            superseded: The instances whose attempts a later restore has taken over meanwhile.

        Calls that were sent are still on their way; replies to them reach nobody any more. What
        has settled is not taken over.
        """
        posts = tuple(post._replace(heard=False) for post in world.posts if post.kind != "reply")
        notes = tuple(one._replace(waiting=()) for one in world.account.notes)
        world = world._replace(
            posts=tuple(post._replace(held=True) for post in posts) if silent_s else posts,
            timers=(),
            jobs=(),
            account=world.account._replace(notes=notes),
        ).at(world.at_s + silent_s)
        if world.operation.settled:
            return world
        event = TakenOver(
            moment=world.moment,
            epoch=world.operation.epoch + 1,
            owner="controller-2",
            trigger=trigger,
            superseded=tuple(self.superseding(number) for number in superseded),
        )
        return self.feed(world, event)

    def note_participant(self, source: str, trigger: str, dest: str) -> None:
        """Note a transition of a participant, where its chart has it."""
        edges = PARTICIPANT.states[source].on.get(trigger, ())
        if any(edge.to == dest for edge in edges):
            self.taken.add((PARTICIPANT.name, source, trigger, dest))

    def _note_taken(self, taken: Step) -> None:
        for entry in taken.entries:
            chart = self.chart if entry.instance is None else "call"
            if entry.trigger in machine_of(chart).chart.states[entry.source].on:
                self.taken.add((chart, entry.source, entry.trigger, entry.dest))

    def _noted(self, account: Account, entry: Entry) -> Account:
        if entry.trigger == "keep":
            return account.keeping()
        if entry.trigger == "supersede":
            for name in entry.facts["attempts"]:
                number = self._numbers[name]
                notes = account.notes[number]._replace(superseded=True)
                account = account.changed(number, notes)
        return account

    def _hold_ended(self, world: World) -> None:
        operation = world.operation
        stands = operation.state == "resumed"
        if not (stands or world.withdrawn) and any(job.orphan for job in world.jobs):
            raise Broken("S2", f"ended in {operation.state} while a manifest may still appear")
        horizon_passed = world.at_s + HAIR_S >= operation.lease_horizon_at_s
        world.account.hold_ended(
            self.chart, operation.state, manifest=world.manifest, horizon_passed=horizon_passed
        )
        gave_up = operation.state == "discarded" and world.account.ever_sent("restore")
        if gave_up or (operation.state == "done" and self._may_retire):
            runs = (host.attempt and not host.restarted for host in world.hosts)
            world.account.hold_retired(runs, horizon_passed=horizon_passed)
        for number, host in enumerate(world.hosts):
            reopened = world.account.notes[number].confirmed and not host.restarted
            if reopened and host.status != "dead" and host.control.phase != "idle":
                raise Broken("S3", f"ended while instance {number} is {host.control.phase}")

    # --- effects --------------------------------------------------------------------------------

    def _perform(self, world: World, effect: Effect) -> World:
        if isinstance(effect, SendCall):
            return self._send(world, effect)
        if isinstance(effect, CancelCall):
            return self._cancel(world, effect)
        if isinstance(effect, StartTimer | StopTimer):
            return _with_timer(world, effect)
        if isinstance(effect, WriteManifest):
            return world._replace(
                account=began_file(world.account), jobs=(*world.jobs, Job("write"))
            )
        if isinstance(effect, WithdrawManifest):
            return world._replace(jobs=(*world.jobs, Job("withdraw")))
        assert isinstance(effect, Tell)
        if effect.released:
            world.account.hold_released()
        return world

    def _send(self, world: World, effect: SendCall) -> World:
        number, call = self._numbers[effect.instance], effect.call
        now = (world.at_s, effect.deadline_ts - START_TS)
        if call == "resume":
            world.account.hold_reopening()
        elif call == "retire":
            self._hold_retire(world, number, effect)
        account = note_send(world.account, number, call, effect.ask, now)
        world = world._replace(account=account)
        if world.hosts[number].status == "deaf":
            return world
        post = Post("request", number, call, effect.ask, effect.deadline_ts)
        post = post._replace(besides=effect.besides, nothing=effect.left == ())
        return world._replace(posts=(*world.posts, post))

    def _hold_retire(self, world: World, number: int, effect: SendCall) -> None:
        """Require S5 of a retire: after a resume it needs another id, and an open instance."""
        account, operation = world.account, world.operation
        if not effect.besides:
            if account.ever_sent("resume"):
                raise Broken("S5", "a retire goes under an id that instances refuse since resume")
            if account.notes[number].superseded != (effect.left == ()):
                raise Broken("S5", f"instance {number} is told to retire {effect.left}")
            return
        passed = world.at_s + HAIR_S >= operation.lease_horizon_at_s
        is_open = self.chart != "restore" or account.notes[number].confirmed or passed
        grace_s = SETTINGS.reply_grace_s
        account.hold_anew(number, at_s=world.at_s + HAIR_S, grace_s=grace_s, is_open=is_open)
        if effect.left != (EPISODE,):
            raise Broken("S5", f"instance {number} is told to retire {effect.left}")

    def _cancel(self, world: World, effect: CancelCall) -> World:
        number = self._numbers[effect.instance]
        posts = tuple(
            post._replace(heard=False)
            if (post.instance, post.call) == (number, effect.call) and post.kind != "reply"
            else post
            for post in world.posts
        )
        return world._replace(posts=posts, account=note_cancel(world.account, number, effect.call))

    def replied(self, world: World, post: Post) -> Replied:
        """Return the event that a reply is."""
        assert post.outcome
        return Replied(
            moment=world.moment,
            instance=self._names[post.instance],
            call=post.call,
            ask=post.ask,
            outcome=post.outcome,
            failure=post.failure,
            facts={"empty": True} if post.empty else {},
        )


def _with_timer(world: World, effect: StartTimer | StopTimer) -> World:
    timers = dict(world.timers)
    if isinstance(effect, StopTimer):
        timers.pop(effect.timer, None)
    else:
        timers.setdefault(effect.timer, world.at_s + effect.delay_s)
    return world._replace(timers=tuple(sorted(timers.items())))
