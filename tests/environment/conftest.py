"""What every test of the facade gets: scenes, a guard of some seconds, a look at what is left."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gymckpt import coordinator as coordinator_module
from tests.environment.source import Scene

GUARD_S = 20.0
GUARD_RAY_S = 90.0

NewScene = Callable[..., Scene]


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


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries to reopen an instance there is next to no pause."""
    monkeypatch.setattr(coordinator_module, "_RESUME_RETRY_PAUSE_S", 0.01)


@pytest.fixture
async def new_scene(tmp_path: Path) -> AsyncIterator[NewScene]:
    """Make scenes; afterwards hold each against every promise, and leave no task behind."""
    scenes: list[Scene] = []
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context))

    def make(count: int = 2, **options: Any) -> Scene:
        scenes.append(Scene(tmp_path / f"scene-{len(scenes)}", count, **options))
        return scenes[-1]

    yield make
    for scene in scenes:
        await scene.world.examine()
    gc.collect()
    assert reported == []
