"""A clock of the tests, and deployments that are closed when a test ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gymckpt.participant.store import RecordsStore
from tests.participant.stores import RECORDS, never, store_at
from tests.participant.support import (
    E0,
    E1,
    CountingDeployment,
    Make,
    ManualTime,
    Saved,
    commit,
    prepared,
)


@pytest.fixture
def time() -> ManualTime:
    """Time that passes only when a test says so."""
    return ManualTime()


HANGS_AFTER_S = 60.0
"""No test of a deployment waits so long for anything, however busy the machine is."""


def end_what_hangs(test: str) -> None:
    """Cancel a test, so that its traceback shows what it waits for in vain."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__name__", "") == test:
            task.cancel(f"{test} hangs")


@pytest.fixture
async def make(time: ManualTime, request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Make deployments; at the end nothing of any of them may be left behind."""
    running = asyncio.get_running_loop()
    hanging = running.call_later(HANGS_AFTER_S, end_what_hangs, request.function.__name__)
    made: list[CountingDeployment] = []
    reports: list[dict[str, Any]] = []
    running.set_exception_handler(lambda _loop, context: reports.append(context))

    def factory(own_time: ManualTime | None = None, **settings: Any) -> CountingDeployment:
        made.append(CountingDeployment(own_time or time, **settings))
        return made[-1]

    yield factory
    hanging.cancel()
    for deployment in made:
        await deployment.close()
        for body in deployment.bodies.values():
            assert body.closed == 1, f"{body.episode} was closed {body.closed} time(s)"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert time.armed == 0
    assert reports == []
    assert not [t for t in threading.enumerate() if t.name.startswith("gymckpt-files")]


@pytest.fixture
async def deployment(make: Make) -> CountingDeployment:
    """One deployment of counting bodies."""
    return make()


@pytest.fixture
async def saved(make: Make, time: ManualTime, tmp_path: Path) -> Saved:
    """Save two episodes of a deployment that is gone afterwards."""
    deployment = make()
    await prepared(deployment, time, "r0", "r1")
    await commit(deployment, time, tmp_path, E0, E1)
    await deployment.close()
    return Saved(tmp_path)


@pytest.fixture
def written(tmp_path: Path) -> RecordsStore:
    """A store that holds RECORDS for checkpoint `c1`."""
    store = store_at(tmp_path)
    store.write("c1", RECORDS, stop=never)
    return store
