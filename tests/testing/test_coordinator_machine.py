"""The shipped machine keeps its promises over shipped instances, and fails where one is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import invariant, precondition, rule

from gymckpt.calls import CheckpointCalls
from gymckpt.chart import load_chart
from gymckpt.core.entry import Entry
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import Fenced, GymCheckpointOperationError
from gymckpt.journal import Journal, MemoryJournal, open_journal
from gymckpt.operations import Operations
from gymckpt.recovery import _RecoveredCheckpoint
from gymckpt.running import Running
from gymckpt.runtime.asks import Asks
from gymckpt.runtime.clock import Timers
from gymckpt.runtime.worker import Recorder
from gymckpt.testing.account import Broken
from gymckpt.testing.coordinator_machine import CoordinatorMachine, run_coordinator_machine
from gymckpt.testing.counted_rules import rules_of
from gymckpt.testing.gymnasium import VirtualDeployment
from gymckpt.testing.instance import handle_of
from gymckpt.testing.stage import Held, Stage

ALL_RULES = rules_of(CoordinatorMachine)
RARE = ALL_RULES - {"prepare", "sweep"}
"""What a short run need not come to."""


def small(runs: int, rules: int = 25) -> settings:
    return settings(deadline=None, max_examples=runs, stateful_step_count=rules)


def test_no_order_of_verbs_faults_and_crashes_breaks_a_promise() -> None:
    """Over fake instances and a journal in memory, every rule is executed and all ends well."""
    executed = run_coordinator_machine(CoordinatorMachine, settings=small(30, 30))
    assert sum(executed.values()) > 500
    every = {
        (chart, state, trigger, edge.to)
        for chart in ("checkpoint", "restore", "sweep", "call")
        for state, row in load_chart(chart).states.items()
        for trigger, edges in row.on.items()
        for edge in edges
    }
    assert len(every & set(CoordinatorMachine.taken)) > len(every) / 3, "it hardly goes anywhere"


def test_a_death_that_was_recorded_stands_when_the_next_takes_over() -> None:
    """S3 asks nothing more of an instance that has died, whoever drove the operation then."""
    machine = CoordinatorMachine()
    try:
        machine.prepare(deeds=(), pace=0)
        machine.body_ends(pace=None)
        machine.prepare(deeds=(), pace=0)
        machine.fault(number=1, call="resume", fault="it breaks")
        machine.instance_is_cut_off(number=0)
        for _ in range(3):
            machine.body_ends(pace=3.0)
        machine.instance_dies(number=0)
        machine.body_ends(pace=3.0)
    finally:
        machine.teardown()


class Remembering(CoordinatorMachine):
    """Keeps what its runs have recorded, without the ids that are drawn anew each time."""

    lived: ClassVar[list[tuple[Any, ...]]] = []

    def teardown(self) -> None:
        for row in reversed(self.stage.journal.operations(self.stage.run)):
            for one in self.stage.watch.history(row.operation_id):
                self.lived.append((one.trigger, one.instance, one.call, one.at_s, one.ts))
        super().teardown()


def test_the_same_choices_live_the_same() -> None:
    """Two runs with the same choices record the same, to the instant."""
    found = []
    for _ in range(2):
        Remembering.lived.clear()
        same = settings(small(6, 20), derandomize=True)
        run_coordinator_machine(Remembering, settings=same, never=ALL_RULES)
        found.append(list(Remembering.lived))
    assert found[0] == found[1]
    assert len(found[0]) > 50


# --- over the shipped deployment ------------------------------------------------------------------


class GymnasiumMachine(CoordinatorMachine):
    """Real environments in this process."""

    def make_instance(self, stage: Stage, instance_id: str) -> Held:
        one = VirtualDeployment(instance_id, now_ts=stage.now_ts, grace_s=stage.grace_s)
        running: set[asyncio.Task[Any]] = set()

        async def dispatch(episode: EnvironmentEpisode) -> None:
            run = one.run(episode.rollout_id, episode.attempt, env_id="CartPole-v1", seed=7)
            task = asyncio.get_running_loop().create_task(run)
            running.add(task)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return Held(
            handle=handle_of(one),
            is_open=lambda: one.is_open,
            runs=one.runs,
            dispatch=dispatch,
            close=one.close,
        )


def test_deployments_of_real_environments_keep_the_promises() -> None:
    """Over shipped deployments the same holds; nearly every rule is executed there too."""
    seldom = {"begin_another", "renewal_goes_wrong", "controller_wakes_up", "forget", "renew"}
    run_coordinator_machine(GymnasiumMachine, settings=small(10, 20), never=seldom)


class InFiles(CoordinatorMachine):
    """Keeps its journal in a file."""

    def make_journal(self, stage: Stage) -> Journal:
        return open_journal(stage.root / "journal.sqlite3")


def test_a_journal_in_a_file_keeps_the_promises() -> None:
    """Over SQLite the same holds in the few runs that its disk allows."""
    run_coordinator_machine(InFiles, settings=small(4, 12), never=RARE)


# --- rules and invariants of a user's own ---------------------------------------------------------


class Guarded(CoordinatorMachine):
    """Has one rule and one invariant more."""

    looked = 0
    allowed_ids = 1_000

    @rule()
    def look_at_the_journal(self) -> None:
        """Count what is recorded."""
        assert self.stage.journal.operations("another run") == ()

    @invariant()
    def few_operations(self) -> None:
        """There are no more operations than the class allows."""
        type(self).looked += 1
        assert len(self.stage.journal.operations(self.stage.run)) <= self.allowed_ids


def test_a_subclass_adds_rules_and_invariants() -> None:
    """A rule that was added is among those that must be executed; an invariant is looked at."""
    executed = run_coordinator_machine(Guarded, settings=small(8, 15), never=RARE)
    assert executed["look_at_the_journal"] > 0
    assert Guarded.looked > 50


def test_an_invariant_of_a_subclass_can_fail() -> None:
    """Where the invariant does not hold, the run fails and tells how it came to that."""

    class Strict(Guarded):
        allowed_ids = 0

    with pytest.raises(AssertionError) as caught:
        run_coordinator_machine(Strict, settings=settings(small(5, 10), phases=[Phase.generate]))
    told = "\n".join(caught.value.__notes__)
    assert "state.prepare(" in told or "state.sweep(" in told


def test_a_rule_that_is_never_executed_is_told() -> None:
    """A machine whose rule can never run fails, though nothing else is wrong with it."""

    class Idle(CoordinatorMachine):
        @precondition(lambda _self: False)
        @rule()
        def never_runs(self) -> None:
            """Do nothing."""

    with pytest.raises(AssertionError, match=r"never executed in \d runs: never_runs"):
        run_coordinator_machine(Idle, settings=small(2, 3), never=ALL_RULES)


# --- faults that are planted ----------------------------------------------------------------------


def unrecorded(patch: pytest.MonkeyPatch) -> None:
    """Calls leave without an entry."""

    async def append(*_args: Any, **_kwargs: Any) -> None:
        """Store nothing."""

    patch.setattr(Recorder, "append", append)


def skipped(call: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a fault: one call to one instance never leaves."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        sending = Asks.send

        def send(self: Asks, effect: Any) -> None:
            if (effect.call, effect.instance[-1]) != (call, "1"):
                sending(self, effect)

        patch.setattr(Asks, "send", send)

    plant.__doc__ = f"One {call} never leaves."
    return plant


def twice(patch: pytest.MonkeyPatch) -> None:
    """After a resume the instance is asked to prepare once more."""
    sending = Asks.send

    def send(self: Asks, effect: Any) -> None:
        sending(self, effect)
        if effect.call == "resume":
            sending(self, attrs.evolve(effect, call="prepare"))

    patch.setattr(Asks, "send", send)


def manifest_kept(patch: pytest.MonkeyPatch) -> None:
    """The manifest of a checkpoint that is given up stays."""
    for calls in (CheckpointCalls, _RecoveredCheckpoint):
        patch.setattr(calls, "withdraw", lambda _self, _root: dict)


def wrong_error(patch: pytest.MonkeyPatch) -> None:
    """An error of the cleaning up takes the place of the body's own."""

    async def after_failed_body(*_args: Any) -> None:
        raise GymCheckpointOperationError("resume", {})

    patch.setattr(Running, "after_failed_body", after_failed_body)


def no_recovery(patch: pytest.MonkeyPatch) -> None:
    """A new controller leaves alone what it finds."""

    async def recover(*_args: Any, **_kwargs: Any) -> tuple[()]:
        return ()

    patch.setattr(Operations, "recover", recover)


def no_budgets(patch: pytest.MonkeyPatch) -> None:
    """Nothing bounds the wait for an answer."""
    starting = Timers.start

    def start(self: Timers, timer: str, delay_s: float) -> None:
        if not timer.startswith("budget"):
            starting(self, timer, delay_s)

    patch.setattr(Timers, "start", start)


def two_at_once(patch: pytest.MonkeyPatch) -> None:
    """A second checkpoint begins while one is open."""
    patch.setattr(Operations, "require_none_open", lambda _self, _wanted: None)


def unfenced(patch: pytest.MonkeyPatch) -> None:
    """A controller that was taken for dead believes that it still records."""
    appending = MemoryJournal.append

    def append(self: MemoryJournal, entries: Sequence[Entry], **given: Any) -> None:
        try:
            appending(self, entries, **given)
        except Fenced:
            return

    patch.setattr(MemoryJournal, "append", append)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    unrecorded: "S6",
    skipped("resume"): "S3",
    skipped("retire"): "S5",
    twice: "S4|S6",
    manifest_kept: "S2",
    wrong_error: "S9",
    no_recovery: "L2",
    no_budgets: "L1",
    two_at_once: "a second operation",
    unfenced: "S6",
}
"""What is broken, and what the machine says of it."""

FOUND = settings(
    deadline=None,
    max_examples=200,
    stateful_step_count=30,
    phases=[Phase.generate],
    database=None,
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("plant", PLANTED, ids=[str(plant.__doc__) for plant in PLANTED])
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product that is broken in one way fails, and what is said names the promise."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, Broken), match=PLANTED[plant]):
        run_coordinator_machine(CoordinatorMachine, settings=FOUND)
