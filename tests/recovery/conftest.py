"""A journal and a snapshot that many controllers share, and a bound for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymckpt import coordinator as coordinator_module
from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.journal import Journal, open_journal
from gymckpt.journal.memory import MemoryJournal
from tests.recovery.controller import dispatched
from tests.recovery.deployments import Station
from tests.recovery.stage import Stage

NewStage = Callable[..., Stage]


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries to reopen an instance there is next to no pause."""
    monkeypatch.setattr(coordinator_module, "_RESUME_RETRY_PAUSE_S", 0.01)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal in a file, for several processes."""
    with open_journal(tmp_path / "journal.sqlite3") as opened:
        yield opened


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    """A snapshot of everything, by instances that are gone."""
    station = Station(tmp_path / "source-socket")
    await station.open(dispatch=True)

    class Handles:
        checkpoint_handles = station.handles

    coordinator = GymCheckpointCoordinator(
        Handles(),
        control_timeout_s=10.0,
        prepare_timeout_s=10.0,
        journal=MemoryJournal(),
        run="source",
    )
    async with coordinator.prepared("source"):
        await coordinator.commit("source", tmp_path / "source", dispatched(), restarts={})
    await station.close()
    return tmp_path / "source"


@pytest.fixture
def new_stage(tmp_path: Path, journal: Journal, source: Path) -> NewStage:
    """Set stages over one journal."""

    def make(**station: Any) -> Stage:
        return Stage(tmp_path, journal, source, **station)

    return make
