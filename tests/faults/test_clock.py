"""Clocks that step, or that differ between hosts: waits are monotonic, deadlines are absolute."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import GymCheckpointOperationError, is_transient_gym_checkpoint_failure
from gymckpt.journal import Journal
from tests.fakes import HANG, Late
from tests.faults.conftest import NewWorld
from tests.faults.virtual import EPOCH_TS, LoopClock, running_loop, simulate
from tests.faults.world import World, new_id


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_b41_wall_clock_steps_in_a_hanging_commit(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, journal: Journal, step_s: float
) -> None:
    """B41: a step of an hour either way right after the deadline was made changes no wait."""
    world = new_world(1, journal=journal, control_timeout_s=0.05)
    real, stepped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + stepped[0])

    def commit(*_args: Any, **_kwargs: Any) -> Any:
        stepped[0] = step_s
        return HANG

    world.actors[0].scripts["commit"] = [commit]
    began_s = time.monotonic()
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.committed("b41", world.root()):
            pytest.fail("the commit succeeded")
    assert {type(failure) for failure in caught.value.failures.values()} == {TimeoutError}
    assert time.monotonic() - began_s < 2.0


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_b41_wall_clock_steps_in_a_good_commit(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """B41: an instance that answers in time is heard, whatever the wall clock says by then."""
    world = new_world(2)
    real, stepped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + stepped[0])

    def commit(*_args: Any, **_kwargs: Any) -> Any:
        stepped[0] = step_s
        return Late(0.02)

    world.actors[1].scripts["commit"] = [commit]
    async with world.committed("b41", world.root()):
        pass
    assert world.operation("b41").state == "resumed"


BOUNDS_S = {"prepare": 65.0, "renew": 35.0, "commit": 35.0, "restore": 35.0, "resume": 71.0}


@given(
    verb=st.sampled_from(sorted(BOUNDS_S)),
    steps=st.lists(st.tuples(st.floats(0.0, 80.0), st.floats(-1e6, 1e6)), min_size=1, max_size=6),
    hangs=st.booleans(),
)
def test_b41_any_steps_change_no_wait(
    verb: str, steps: list[tuple[float, float]], hangs: bool, tmp_path_factory: Any
) -> None:
    """B41: whenever and however far the wall clock steps, waits and renewals keep their pace."""
    root = tmp_path_factory.mktemp("b41")

    async def lived(*, stepping: bool) -> tuple[float, list[str]]:
        clock, loop = LoopClock(), running_loop()
        settings = {"control_timeout_s": 30.0, "prepare_timeout_s": 60.0}
        world = World(2, clock=clock, root=root, **settings)
        name, began_s = new_id(), loop.time()
        world.actors[1].always[verb] = HANG if hangs else Late(25.0)
        for at_s, by_s in steps if stepping else ():
            loop.call_later(at_s, clock.step_wall, by_s)
        try:
            if verb == "restore":
                await world.operate("restore", name)
            else:
                async with world.committed(name, root / name):
                    await asyncio.sleep(45)
        except GymCheckpointOperationError as error:
            assert error.operation == verb
            assert hangs
        ended_s = round(loop.time() - began_s, 6)
        await world.examine()
        sent = [f"{call.at_s - began_s:.3f} {call.op}" for call in world.actors[0].calls]
        return ended_s, sent

    still = simulate(lambda: lived(stepping=False))
    assert simulate(lambda: lived(stepping=True)) == still


def test_deadlines_on_the_wire(tmp_path: Path) -> None:
    """Every call carries the wall clock's now plus its budget, as a finite float."""

    async def main() -> None:
        clock = LoopClock()
        settings = {"control_timeout_s": 30.0, "prepare_timeout_s": 300.0}
        world = World(1, clock=clock, root=tmp_path, **settings)
        clock.step_wall(5e6)
        for kind in ("checkpoint", "restore", "retire", "forget", "resume"):
            await world.operate(kind, new_id())
        for call in world.actors[0].calls:
            budget_s = 300.0 if call.op == "prepare" else 30.0
            now_ts = call.at_s + EPOCH_TS + 5e6
            assert call.kwargs["deadline_ts"] == pytest.approx(now_ts + budget_s, abs=0.01)
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("verb", ["commit", "restore", "retire", "forget"])
def test_b42_instance_is_ahead(verb: str, tmp_path: Path) -> None:
    """B42: a host whose clock is a minute ahead refuses; but for a restore, that is transient."""

    async def main() -> None:
        clock = LoopClock()
        world = World(2, clock=clock, root=tmp_path, fenced=True, control_timeout_s=30.0)
        world.actors[1].wall = lambda: clock.wall_ts() + 60.0
        kind = "checkpoint" if verb == "commit" else verb
        with pytest.raises(GymCheckpointOperationError, match="deadline_exceeded") as caught:
            await world.operate(kind, "ahead")
        assert caught.value.operation == verb
        assert set(caught.value.failures) == {"tools/replica-1"}
        assert is_transient_gym_checkpoint_failure(caught.value) is (verb != "restore")
        assert world.actors[1].holder is None  # a resume has no deadline to miss
        await world.examine()

    simulate(main)


@given(
    skew_s=st.floats(-7_200.0, 25.0),
    steps=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(-500.0, 500.0)), max_size=4),
)
def test_b42_instance_is_behind(
    skew_s: float, steps: list[tuple[float, float]], tmp_path_factory: Any
) -> None:
    """B42: on a host that is behind, or a little ahead, nothing is refused."""
    root = tmp_path_factory.mktemp("b42")

    async def main() -> None:
        clock = LoopClock()
        world = World(2, clock=clock, root=root, fenced=True, control_timeout_s=30.0)
        world.actors[1].wall = lambda: running_loop().time() + EPOCH_TS + skew_s
        for at_s, by_s in steps:
            if skew_s + abs(by_s) < 0:  # only where no step makes it seem to be ahead
                running_loop().call_later(at_s, clock.step_wall, abs(by_s) if at_s else 0.0)
        async with world.committed("behind", root / new_id()):
            await asyncio.sleep(120)
        for actor in world.actors:
            assert actor.refusals == []
        assert world.operation("behind").state == "resumed"
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("control_s", [0.06, 3.0, 12.0, 30.0, 600.0])
def test_b42_renewals_start_in_time(control_s: float, tmp_path: Path) -> None:
    """B42: leases are renewed within a third of the control budget, and every 10 s at most."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, control_timeout_s=control_s)
        interval_s = max(0.01, min(control_s / 3, 10.0))
        async with world.committed("paced", tmp_path):
            await asyncio.sleep(20 * interval_s)
        for actor in world.actors:
            times = [call.at_s for call in actor.of("renew")]
            gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
            assert max(gaps) <= interval_s * 1.01 + 0.002
            assert 18 <= len(times) <= 23
        await world.examine()

    simulate(main)


def test_rounds_of_renewals_do_not_overlap(tmp_path: Path) -> None:
    """While a slow instance has not answered a renewal, nobody is asked for the next one."""

    async def main() -> None:
        world = World(3, clock=LoopClock(), root=tmp_path, control_timeout_s=30.0)
        world.actors[1].always["renew"] = Late(23.0)
        async with world.committed("slow", tmp_path):
            await asyncio.sleep(200)
        times = [[call.at_s for call in actor.of("renew")] for actor in world.actors]
        assert times[0] == times[1] == times[2]
        gaps = [later - sooner for sooner, later in itertools.pairwise(times[0])]
        assert min(gaps[1:]) >= 23.0
        assert world.operation("slow").state == "resumed"
        await world.examine()

    simulate(main)
