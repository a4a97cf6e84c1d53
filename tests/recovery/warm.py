"""
Imported once by the process from which controllers are forked: what every life needs first.

A controller that was started from nothing would spend most of its life on imports, charts and
schemas. Nothing is left running here, since a fork takes no thread along.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.journal import open_journal
from gymckpt.journal.memory import MemoryJournal
from tests.recovery.controller import WIRE_ID, dispatched
from tests.recovery.deployments import Station


async def _live_once(base: Path) -> None:
    station = Station(base / "socket")
    await station.open(dispatch=True)

    class Handles:
        checkpoint_handles = station.handles

    journal = MemoryJournal()
    coordinator = GymCheckpointCoordinator(
        Handles(), control_timeout_s=10.0, prepare_timeout_s=10.0, journal=journal, run="warm"
    )
    async with coordinator.prepared(WIRE_ID):
        await coordinator.commit(WIRE_ID, base / "root", dispatched(), restarts={})
    await station.close()
    with open_journal(base / "journal.sqlite3") as stored:
        stored.insert_operation(journal.operations()[0], journal.read("warm", WIRE_ID))
        stored.claim("warm", holder="nobody")


with tempfile.TemporaryDirectory() as _base:
    asyncio.run(_live_once(Path(_base)))
for _thread in threading.enumerate():
    if _thread is not threading.current_thread():
        _thread.join(5.0)
