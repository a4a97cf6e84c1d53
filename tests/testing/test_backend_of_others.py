"""The kit, run on a backend that has nothing in common with the shipped one."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.testing.account import Broken
from gymckpt.testing.coordinator_machine import CoordinatorMachine, run_coordinator_machine
from gymckpt.testing.instance import InstanceUnderTest, handle_of
from gymckpt.testing.instance_contract import InstanceContract
from gymckpt.testing.instance_report import checks, run_check
from gymckpt.testing.stage import Held, Stage
from tests.testing.tally import Run, Tally

GRACE_S = 60.0


class TallyUnderTest(InstanceUnderTest):
    """The hands on one tally; its clock is a number."""

    def __init__(self, kind: type[Tally] = Tally) -> None:
        self.instance_id, self.grace_s = "counts/replica-0", GRACE_S
        self._now_ts = 1_000.0
        self.tally = kind(self.instance_id, self.grace_s, self.now_ts)
        self.handle = handle_of(self.tally)
        self._free = threading.Event()
        self._free.set()
        self._error: Exception | None = None
        self.tally.before_publishing = self._pass
        self._tasks: list[asyncio.Task[None]] = []

    def _pass(self) -> None:
        self._free.wait(10)
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        running = self.tally.run(episode, restart_only=restart_only)
        task = asyncio.get_running_loop().create_task(running)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.append(task)
        await self.settle()

    async def turn(self, episode: EnvironmentEpisode) -> bool:
        run = self.tally.runs.get(episode)
        if run is None or run.in_turn is None:
            return False
        run.in_turn.set()
        await self.settle()
        return True

    async def turns(self, episode: EnvironmentEpisode) -> int:
        return self.tally.runs[episode].turns

    def now_ts(self) -> float:
        return self._now_ts

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, by_s: float) -> None:
        self._now_ts += by_s
        self.tally.look_at_clock()
        await self.settle()

    async def step_clock(self, by_s: float) -> None:
        self._now_ts += by_s

    async def hold_storage(self) -> None:
        self._free.clear()

    async def free_storage(self) -> None:
        self._free.set()

    async def break_storage(self, error: Exception) -> None:
        self._error = error

    async def close(self) -> None:
        playing = [run.task for run in self.tally.runs.values() if run.task]
        for task in (*self._tasks, *playing):
            task.cancel()
        left = (*self._tasks, *playing, *self.tally.work.values())
        await asyncio.gather(*left, return_exceptions=True)


class TestTally(InstanceContract):
    """The stranger's backend."""

    def make_instance(self) -> InstanceUnderTest:
        return TallyUnderTest()


# --- it can fail ----------------------------------------------------------------------------------


class Forgetful(Tally):
    """Does not remember whom it was resumed by."""

    def release(self, name: str) -> None:
        super().release(name)
        self.stale.clear()


class Timeless(Tally):
    """Looks at no deadline."""

    def enter(self, call: str, name: str, deadline_ts: float, phases: str) -> None:
        super().enter(call, name, deadline_ts + 1e9, phases)


class Unstoppable(Tally):
    """Publishes what it has begun to write, whoever was resumed meanwhile."""

    def write(self, target: Path, name: str, kept: Any, stop: threading.Event) -> None:
        super().write(target, name, kept, threading.Event())


class Trusting(Tally):
    """Believes what lies on the disk."""

    def read(self, target: Path, source: str) -> dict[EnvironmentEpisode, int]:
        kept = json.loads(target.read_bytes().partition(b" ")[2])["episodes"]
        return {EnvironmentEpisode(name, n): turns for name, n, turns in kept}


class Twofold(Tally):
    """Starts an attempt that a later one has overtaken."""

    def require_current(self, episode: EnvironmentEpisode) -> None:
        self.newest.clear()
        super().require_current(episode)


class Hasty(Tally):
    """Says that it is parked while turns go on."""

    def blocks(self, run: Run) -> bool:
        return False


CAUGHT: dict[type[Tally], str] = {
    Forgetful: "a_late_prepare_is_refused",
    Timeless: "a_late_retire_is_refused_by_its_deadline",
    Unstoppable: "a_commit_that_is_stopped_publishes_nothing",
    Trusting: "flipped_bits_are_found",
    Twofold: "overtaken_attempts_are_refused",
    Hasty: "waits_for_the_end_of_a_turn",
}


@pytest.mark.parametrize("kind", CAUGHT)
def test_a_mistake_of_others_is_found(kind: type[Tally]) -> None:
    """A check that the backend keeps fails when one thing in it is broken."""
    check = next(one for one in checks() if one.name == CAUGHT[kind])
    assert run_check(check, TallyUnderTest).outcome == "passed"
    assert run_check(check, lambda: TallyUnderTest(kind)).outcome == "failed"


# --- under the coordinator machine ----------------------------------------------------------------


async def played(tally: Tally) -> None:
    """End the turns of all episodes, once a second."""
    while True:
        await asyncio.sleep(1.0)
        tally.look_at_clock()
        for run in tally.runs.values():
            if run.in_turn is not None:
                run.in_turn.set()


class TallyMachine(CoordinatorMachine):
    """Tallies, with turns of a second."""

    kind = Tally

    def make_instance(self, stage: Stage, instance_id: str) -> Held:
        tally = self.kind(instance_id, stage.grace_s, stage.now_ts)
        tasks = [stage.loop.start_outside(played(tally))]

        async def dispatch(episode: EnvironmentEpisode) -> None:
            running = tally.run(episode, restart_only=False)
            tasks.append(asyncio.get_running_loop().create_task(running))

        async def close() -> None:
            tally.end(list(tally.runs))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        def is_open() -> bool:
            tally.look_at_clock()
            return tally.holder is None

        return Held(
            handle=handle_of(tally),
            is_open=is_open,
            runs=lambda episode: episode in tally.runs,
            dispatch=dispatch,
            close=close,
        )


SELDOM = {"begin_another", "renewal_goes_wrong", "controller_wakes_up", "forget", "renew"}
"""What short runs need not come to."""


def test_others_keep_the_promises_too() -> None:
    """No order of verbs, faults and crashes breaks a promise over the stranger's backend."""
    chosen = settings(deadline=None, max_examples=15, stateful_step_count=20)
    run_coordinator_machine(TallyMachine, settings=chosen, never=SELDOM)


class ForgetfulMachine(TallyMachine):
    """Tallies that take a late call for a new one."""

    kind = Forgetful


@pytest.mark.parametrize(
    ("machine", "found"), [(TallyMachine, ""), (ForgetfulMachine, "which it had resumed before")]
)
def test_the_machine_finds_an_instance_that_forgets(
    machine: type[TallyMachine], found: str
) -> None:
    """A prepare that comes after the resume of its id must be refused; a run's program says so."""
    state = machine()
    state.fault(call="prepare", fault="it comes when nobody waits any more", number=0)
    state.prepare(deeds=(), pace=None)
    state.promises_hold()
    state.time_passes(seconds=20.0)
    said = ""
    try:
        state.promises_hold()
    except Broken as broken:
        said = str(broken)
    state.stage.close()
    assert (found in said, bool(said)) == (True, bool(found))
