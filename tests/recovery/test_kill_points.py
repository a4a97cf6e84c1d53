"""A controller dies or stops at every point of an operation; the next one puts all in order."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable

import pytest

from tests.faults.world import until
from tests.recovery.conftest import NewStage
from tests.recovery.deployments import IDS
from tests.recovery.stage import Stage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

AT_ONCE = 4
"""How many controllers live at the same time."""

SCENARIOS = {
    "checkpoint": {"discarded", "resumed"},
    "checkpoint_and_fail": {"discarded", "resumed"},
    "park_and_fail": {"discarded"},
    "restore": {"discarded", "resumed"},
    "restore_and_fail": {"discarded"},
    "retire": {"done", "failed"},
}
"""What a controller does, and how that may end after all."""

SHORTER = {"park_and_fail", "checkpoint", "restore"}
"""Those whose points, but for those of a good end, are among those of longer ones."""

LONGEST = {"checkpoint_and_fail", "restore_and_fail"}
"""Those that have the points of the shorter ones."""

Life = Callable[[Stage, int | str], Awaitable[None]]


async def dry_run(new_stage: NewStage, scenario: str) -> list[str]:
    """Let a controller live to its end, and return the points that it reached."""
    async with new_stage() as stage:
        await stage.begin(scenario)
        assert await stage.ended() == 0
        assert stage.told("outcome") in (["well"], ["Deliberate"])
        await stage.examine()
        return stage.told("point")


async def at_every_point(new_stage: NewStage, scenario: str, life: Life, *, thorough: bool) -> None:
    """
    Live one life for every point, and hold the ways in which they end against what may be.

    Points are numbered in the order in which a life reaches them, which depends a little on which
    replies arrive together; those that no life met by its number are met by their name. All are met
    by their name alone, each the first time it is reached, unless the tests are to be thorough.
    """
    points = await dry_run(new_stage, scenario)
    gate = asyncio.Semaphore(AT_ONCE)
    hit: set[str] = set()
    ended: set[str] = set()

    async def one(point: int | str) -> None:
        async with gate, new_stage() as stage:
            await life(stage, point)
            hit.update(stage.told("hit"))
            ended.add(await stage.examine())

    async def all_of(wanted: Iterable[int | str]) -> None:
        async with asyncio.TaskGroup() as lives:
            for point in wanted:
                lives.create_task(one(point))

    if thorough:
        await all_of(range(1, len(points) + 1))
    await all_of(sorted(set(points) - hit))
    chance = {name for name in points if "Timer" in name or name == "appended replies"}
    assert set(points) - chance <= hit
    assert ended - {""} == SCENARIOS[scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_killed_at_every_point(new_stage: NewStage, scenario: str, thorough: bool) -> None:
    """After SIGKILL at any point a recovery leaves everything as the design promises."""
    if scenario in SHORTER and not thorough:
        pytest.skip("its points are among those of longer scenarios: run pytest with --thorough")

    async def life(stage: Stage, point: int | str) -> None:
        await stage.begin(scenario, point)
        code = await stage.ended()
        assert code == (-signal.SIGKILL if stage.told("hit") else 0), stage.story()
        await stage.recovered()

    await at_every_point(new_stage, scenario, life, thorough=thorough)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_paused_at_every_point(new_stage: NewStage, scenario: str, thorough: bool) -> None:
    """A controller that is taken over at any point, and then goes on, changes nothing any more."""
    if not (thorough or scenario in LONGEST):
        pytest.skip("its points are among those of longer scenarios: run pytest with --thorough")

    async def life(stage: Stage, point: int | str) -> None:
        await stage.begin(scenario, point, signal=int(signal.SIGSTOP))
        if not await stage.stopped():
            return
        if not stage.journal_is_free(1.0):  # it stopped in a transaction on another thread
            stage.send(signal.SIGKILL)
            await stage.ended()
            await stage.recovered()
            return
        recovering = asyncio.create_task(stage.recovered(force=True))
        if any(name.startswith("inside") for name in stage.told("hit")):
            # It holds the snapshot's directory, which the withdrawal of the manifest waits for.
            await until(lambda: _resumed_everywhere(stage))
            stage.send(signal.SIGCONT)
        taken = await recovering
        stage.send(signal.SIGCONT)
        assert await stage.ended() == 0
        await until(lambda: stage.settled)
        [outcome] = stage.told("outcome")
        own = ("Deliberate",) if scenario.endswith("fail") else ()
        if any(one.found_in not in CLEANING for one in taken):
            assert outcome.startswith(("Fenced: ", *own)), stage.story()
        else:  # nothing was to be given up any more: its caller is told what it is told anyway
            assert outcome in (own or ("well",)), stage.story()

    await at_every_point(new_stage, scenario, life, thorough=thorough)


CLEANING = ("resuming", "discarding", "retiring")
"""The states in which nothing is left but to reopen."""


def _resumed_everywhere(stage: Stage) -> bool:
    resumed = {call.instance for call in stage.station.calls if call.op == "resume"}
    return resumed == set(IDS)
