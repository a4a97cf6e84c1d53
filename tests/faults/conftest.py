"""What every fault test gets: worlds, a guard of some seconds, and a look at what is left."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymckpt import coordinator as coordinator_module
from gymckpt.journal import Journal, open_journal
from gymckpt.journal.memory import MemoryJournal
from tests.faults import virtual
from tests.faults.world import World

GUARD_S = 5.0
GUARD_RAY_S = 60.0

NewWorld = Callable[..., World]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound every asynchronous test of this directory: one that hangs has failed."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(Path(__file__).parent):
            bound_s = GUARD_RAY_S if item.get_closest_marker("ray") else GUARD_S
            if inspect.iscoroutinefunction(item.obj):
                item.obj = _guarded(item.obj, bound_s)


def _guarded(test: Callable[..., Any], bound_s: float) -> Callable[..., Any]:
    @functools.wraps(test)
    async def guarded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(bound_s):
            await test(*args, **kwargs)

    return guarded


class _Errors(logging.Handler):
    """Keeps what asyncio logs as an error, such as an exception that was never retrieved."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


@pytest.fixture(autouse=True)
def nothing_reported() -> Iterator[None]:
    """After a test no event loop has reported anything, not even when garbage is collected."""
    errors = _Errors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(errors)
    virtual.reports.clear()
    yield
    gc.collect()
    logger.removeHandler(errors)
    assert virtual.reports == []
    assert errors.records == []


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries to reopen an instance there is next to no pause."""
    monkeypatch.setattr(coordinator_module, "_RESUME_RETRY_PAUSE_S", 0.01)


@pytest.fixture
def journals() -> Iterator[list[Journal]]:
    """Journals to be closed after everything was examined."""
    opened: list[Journal] = []
    yield opened
    for journal in opened:
        journal.close()


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path, journals: list[Journal]) -> Journal:
    """A journal of each kind: a test that takes it is run with both."""
    opened = (
        MemoryJournal()
        if request.param == "memory"
        else open_journal(tmp_path / "journal.sqlite3", busy_timeout_s=1.0)
    )
    journals.append(opened)
    return opened


@pytest.fixture
async def new_world(tmp_path: Path, journals: list[Journal]) -> AsyncIterator[NewWorld]:
    """Make worlds, and examine each of them after the test, which must leave no task."""
    worlds: list[World] = []
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context))

    def make(count: int = 2, **options: Any) -> World:
        worlds.append(World(count, **{"root": tmp_path, **options}))
        return worlds[-1]

    yield make
    for world in worlds:
        await world.examine()
    gc.collect()
    assert reported == []
