"""
A Hypothesis machine over a coordinator: any order of verbs, faults, crashes and takeovers.

Subclass `CoordinatorMachine`, say what your instances and your journal are, add rules and
invariants of your own, and run it with `run_coordinator_machine`. Everything runs on a loop whose
time takes none, so that a run is as fast as its code and always the same. After every rule the
promises are held; at the end of every run the faults stop, a controller recovers, and all must be
open and settled again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeVar

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.errors import OperationOpen
from gymckpt.testing.controllers import Controller
from gymckpt.testing.counted_rules import count_rules, rules_of, run_again
from gymckpt.testing.faults import FAULTS
from gymckpt.testing.histories import CALLS
from gymckpt.testing.promises import Promises
from gymckpt.testing.stage import Held, Stage

__all__ = ["CoordinatorMachine", "Held", "run_coordinator_machine"]

Pace = int | float | None
"""How long a rule waits for what it has begun: so many rounds of the loop (an int), so many
seconds (a float), or until it has come to its end."""

PACES = st.sampled_from([None, None, None, None, 0, 1, 2, 3, 5, 8, 13, 21, 0.5, 3.0, 9.0])
SECONDS = st.sampled_from([0.5, 2.0, 7.0, 20.0, 60.0])

TRIES = 8
"""How often the machine is run until every rule was executed: a run leaves some out by chance."""

Rule = TypeVar("Rule", bound=Callable[..., Any])

Deeds = tuple[str, ...]
"""What a body does at once when it is inside; each is the name of a rule."""

OF_CHECKPOINT: st.SearchStrategy[Deeds] = st.sampled_from([
    (), ("commit", "body_ends"), (), ("commit",), (), ("commit", "body_ends"), ("commit", "resume"),
    ("commit", "body_raises"), ("renew", "commit", "body_ends"),
])  # fmt: skip
OF_RESTORE: st.SearchStrategy[Deeds] = st.sampled_from([
    (), ("body_ends",), ("body_raises",), ("body_ends",), ("resume",), ("renew", "body_raises"),
])  # fmt: skip

ROLLOUTS_MAX = 6
SWEEPS_MAX = 2
FAULTS_MAX = 3
"""How many faults may be due at once; with more of them nothing gets far."""


def _at(condition: Callable[[Controller], bool]) -> Callable[[Rule], Rule]:
    return precondition(lambda self: condition(self.controller))


_free = _at(lambda one: one.is_free)
_bound = _at(lambda one: not one.is_free)
_busy = _at(lambda one: one.is_busy)
_inside = _at(lambda one: one.body is not None and one.body.is_idle)
_open = _at(lambda one: one.body is not None)
_may_commit = _at(lambda one: one.body is not None and one.body.kind == "checkpoint")


class CoordinatorMachine(RuleBasedStateMachine):
    """
    One training run: instances, a journal, and one controller after the other.

    Attributes:
        executed: Rule to how often it was executed, over all runs of the class.
        taken: Chart, source, trigger and dest to how often that was recorded, likewise.
        instances: How many instances there are.
        coordinator_settings: What every coordinator is given; the times are in virtual seconds.
        stage: Everything that a run consists of; see `gymckpt.testing.stage.Stage`.
    """

    executed: ClassVar[Counter[str]] = Counter()
    taken: ClassVar[Counter[tuple[str, str, str, str]]] = Counter()
    instances: ClassVar[int] = 2
    coordinator_settings: ClassVar[Mapping[str, Any]] = {
        "control_timeout_s": 4.0,
        "prepare_timeout_s": 8.0,
        "lease_grace_s": 30.0,
        "sweep_interval_s": 10.0,
    }

    def __init__(self) -> None:
        count_rules(type(self))
        super().__init__()
        self.fenced = 0
        self.stage = Stage(
            self.make_instance,
            self.make_journal,
            count=self.instances,
            settings=self.coordinator_settings,
        )
        self.stage.open()
        self.promises = Promises(self.stage, type(self).taken)

    # --- what a subclass says -------------------------------------------------------------------

    def make_instance(self, stage: Stage, instance_id: str) -> Held:
        """
        Make an instance that is open and has no episode; called again for one that restarts empty.

        By default it is a `FakeInstance`.

        Args:
            stage: Where it lives: `stage.now_ts` is its clock, `stage.grace_s` its grace.
            instance_id: Its id.
        """
        return stage.fake(instance_id)

    def make_journal(self, stage: Stage) -> Any:
        """
        Open the journal; called for every controller, each time upon the same entries.

        By default it is in memory.
        """
        return stage.memory()

    # --- what rules and invariants look at ------------------------------------------------------

    @property
    def controller(self) -> Controller:
        """The controller that drives the run now."""
        return self.stage.controller

    @property
    def coordinator(self) -> GymCheckpointCoordinator:
        """Its coordinator."""
        return self.controller.coordinator

    # --- the trainer ----------------------------------------------------------------------------

    @precondition(lambda self: self.controller.is_free and len(self.stage.rollouts) < ROLLOUTS_MAX)
    @rule(number=st.integers(0, 7))
    def dispatch(self, number: int) -> None:
        """Let a rollout begin on an instance."""
        self.stage.dispatch(number)

    @_free
    @rule(deeds=OF_CHECKPOINT, pace=PACES)
    def prepare(self, deeds: Deeds, pace: Pace) -> None:
        """Enter a checkpoint, and perhaps go on at once."""
        self.stage.enter_checkpoint()
        self._begin(deeds)
        self.stage.wait(pace)

    @precondition(lambda self: self.controller.is_free and self.stage.saved)
    @rule(number=st.integers(0, 7), deeds=OF_RESTORE, pace=PACES)
    def restore(self, number: int, deeds: Deeds, pace: Pace) -> None:
        """Go back to a checkpoint that stands, and perhaps go on at once."""
        self.stage.enter_restore(number)
        self._begin(deeds)
        self.stage.wait(pace)

    @_may_commit
    @rule(pace=PACES)
    def commit(self, pace: Pace) -> None:
        """Save everything."""
        self._go_on_with("commit", pace)

    @_open
    @rule(pace=PACES)
    def renew(self, pace: Pace) -> None:
        """Renew the leases by hand."""
        self._go_on_with("renew", pace)

    @_open
    @rule(pace=PACES)
    def resume(self, pace: Pace) -> None:
        """Reopen everything by the verb, before the body ends."""
        self._go_on_with("resume", pace)

    @_open
    @rule(pace=PACES)
    def body_ends(self, pace: Pace) -> None:
        """Let the body end well."""
        self._go_on_with("body_ends", pace)

    @_open
    @rule(pace=PACES)
    def body_raises(self, pace: Pace) -> None:
        """Give the operation up by an error of the body."""
        self._go_on_with("body_raises", pace)

    def _go_on_with(self, deed: str, pace: Pace) -> None:
        self._begin((deed,))
        self.stage.wait(pace)

    def _begin(self, deeds: Deeds) -> None:
        stage = self.stage
        acts: Mapping[str, Callable[[], None]] = {
            "commit": stage.commit,
            "renew": lambda: stage.in_body(lambda one, body: one.coordinator.renew(body.wire_id)),
            "resume": lambda: stage.in_body(
                lambda one, body: one.coordinator.resume(body.wire_id), ends=True
            ),
            "body_ends": stage.body.end,
            "body_raises": stage.body.fail,
        }
        for deed in deeds:
            acts[deed]()

    @_open
    @rule(pace=PACES)
    def cancel(self, pace: Pace) -> None:
        """Cancel whoever runs the body, wherever that is."""
        self.stage.body.cancel()
        self.stage.wait(pace)

    @precondition(lambda self: self.controller.is_free and self.stage.rollouts)
    @rule(number=st.integers(0, 7), pace=PACES)
    def retire(self, number: int, pace: Pace) -> None:
        """Stop a rollout for good."""
        self.stage.retire(number)
        self.stage.wait(pace)

    @precondition(lambda self: self.controller.is_free and self.stage.finished)
    @rule(pace=PACES)
    def forget(self, pace: Pace) -> None:
        """Let instances stop refusing what was retired."""
        self.stage.forget()
        self.stage.wait(pace)

    @precondition(lambda self: self.controller.is_free and self.fenced < SWEEPS_MAX)
    @rule(pace=PACES)
    def sweep(self, pace: Pace) -> None:
        """Fence an id that nobody knows."""
        self.fenced += 1
        self.controller.start(self.coordinator.resume(self.stage.new_id("fenced")))
        self.stage.wait(pace)

    @_inside
    @rule()
    def begin_another(self) -> None:
        """S8: a second operation is refused, and nothing of it is sent or recorded."""
        name = self.stage.new_id("second")
        error = self.stage.outcome_of(self.coordinator.prepare(name))
        assert isinstance(error, OperationOpen), f"a second operation came to {error!r}"
        assert self.stage.watch.account_of(name) is None
        assert self.stage.journal.operation(self.stage.run, name) is None

    # --- time and faults ------------------------------------------------------------------------

    @_busy
    @rule(pace=PACES)
    def go_on(self, pace: Pace) -> None:
        """Wait for the verb that is under way."""
        self.stage.wait(pace)

    @precondition(lambda self: self.promises.unsettled or self.stage.asleep)
    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        """Let time pass."""
        self.stage.pass_time(seconds)

    @precondition(lambda self: self.stage.faults_due < FAULTS_MAX)
    @rule(
        number=st.integers(0, 7), call=st.sampled_from(CALLS), fault=st.sampled_from(sorted(FAULTS))
    )
    def fault(self, number: int, call: str, fault: str) -> None:
        """Let something happen to the next call of a kind to an instance."""
        self.stage.handle(number).script(call, FAULTS[fault]())

    @precondition(lambda self: not (self.stage.dead or self.controller.is_free))
    @rule(number=st.integers(0, 7))
    def instance_dies(self, number: int) -> None:
        """Let an instance die; it stays dead until it is started again."""
        self.stage.handle(number).die()

    @precondition(lambda self: self.stage.dead or not self.controller.is_free)
    @rule(number=st.integers(0, 7))
    def instance_restarts(self, number: int) -> None:
        """Let an instance start again, the dead one if there is one; it knows nothing."""
        dead = self.stage.dead
        self.stage.restart(dead[0] if dead else number)

    # --- controllers ----------------------------------------------------------------------------

    @_inside
    @rule(number=st.integers(0, 7), fault=st.sampled_from(sorted(FAULTS)), seconds=SECONDS)
    def renewal_goes_wrong(self, number: int, fault: str, seconds: float) -> None:
        """Let something happen to the next renewal, and time pass while the body runs."""
        self.stage.handle(number).script("renew", FAULTS[fault]())
        self.stage.pass_time(seconds)

    @_bound
    @rule(number=st.integers(0, 7))
    def instance_is_cut_off(self, number: int) -> None:
        """Let no call reach an instance any more, until it is restarted or all is healed."""
        for call in CALLS:
            self.stage.handle(number).always(call, FAULTS["the request is lost"]())

    @_bound
    @rule(pace=PACES)
    def controller_crashes(self, pace: Pace) -> None:
        """Let the controller die, wherever it is, and a new one recover."""
        self.controller.process.kill()
        self.stage.take_over()
        self.stage.wait(pace)

    @_bound
    @rule(pace=PACES)
    def controller_is_paused(self, pace: Pace) -> None:
        """Let the controller be stopped, wherever it is, and a new one take it for dead."""
        self.controller.process.stop()
        self.stage.asleep.append(self.controller)
        self.stage.take_over()
        self.stage.wait(pace)

    @precondition(lambda self: self.stage.asleep)
    @rule(pace=PACES)
    def controller_wakes_up(self, pace: Pace) -> None:
        """Let a controller go on that was taken for dead: it is fenced."""
        self.stage.wake()
        self.stage.wait(pace)

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        """S1, S3 to S6: nothing has left that should not have left."""
        self.promises.look()

    @invariant()
    def histories_replay(self) -> None:
        """S2, S6, S7: each log replays to its row, and a manifest tells the truth."""
        self.promises.hold_histories()

    def teardown(self) -> None:
        """Hold what must come to be so once no new fault comes, and let everything go."""
        try:
            if sys.exc_info()[0] is None:
                self.promises.come_to_rest()
        finally:
            self.stage.close()


def run_coordinator_machine(
    machine: type[CoordinatorMachine],
    *,
    settings: hypothesis_settings | None = None,
    never: Collection[str] = (),
) -> Counter[str]:
    """
    Run a machine as a test, and require that each of its rules was executed.

    Args:
        machine: The machine.
        settings: For Hypothesis; None is 50 runs of 30 rules.
        never: Rules that need not be executed.

    Returns:
        Rule to how often it was executed.

    Raises:
        AssertionError: A promise does not hold, or a rule was never executed.
    """
    chosen = settings or hypothesis_settings(deadline=None, max_examples=50, stateful_step_count=30)
    machine.executed, machine.taken = Counter(), Counter()
    left = rules_of(machine) - set(never)
    for number in range(TRIES):
        run_again(machine, number, chosen)
        left -= set(machine.executed)
        if not left:
            return machine.executed
    raise AssertionError(f"never executed in {TRIES} runs: {', '.join(sorted(left))}")
