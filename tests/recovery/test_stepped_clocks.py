"""A lease is not taken for over because somebody's wall clock was wrong meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.replay import replay
from gymckpt.testing.simulation.plan import draw
from gymckpt.testing.simulation.run import simulate
from tests.faults.virtual import LoopClock, running_loop
from tests.faults.virtual import simulate as simulated
from tests.faults.world import World


@given(step_s=st.floats(-10_000.0, 10_000.0), settled_s=st.floats(0.0, 30.0))
def test_no_lease_is_over_before_its_time(
    step_s: float, settled_s: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A clock that was stepped by anything while its controller lived ends no lease early."""
    root = tmp_path_factory.mktemp("stepped")

    async def main() -> None:
        clock = LoopClock()
        first = World(1, clock=clock, root=root)
        handle = first.shards.checkpoint_handles["tools/replica-0"]
        await first.coordinator.prepare("left")
        asked_s = running_loop().time()
        clock.step_wall(step_s)
        await asyncio.sleep(settled_s)  # renewals go on by the wrong clock
        first.fenced_off.add("left")
        first.coordinator._handles.clear()
        handle.always["resume"] = ConnectionError("no route")
        second = World(1, journal=first.journal, clock=LoopClock(), root=root)
        second.run, second.shards = first.run, first.shards
        await second.new_coordinator().recover(force=True)
        while not first.journal.operations(first.run)[0].settled:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1.0)
        ended = replay(first.journal.read(first.run, "left"))
        assert ended.calls["resume"].count("lapsed") == 1
        horizon_s = ended.settings.prepare_timeout_s + ended.settings.lease_grace_s
        assert running_loop().time() - asked_s >= horizon_s - 1.0

    simulated(main)


def test_seed_that_found_it() -> None:
    """Set back by 21 s before its controller crashed, a clock ends no lease at its successor's."""
    assert simulate(draw(60310)).problems == ()
