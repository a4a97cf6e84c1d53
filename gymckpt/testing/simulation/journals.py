"""
The journal of a run as each of its processes sees it: in memory, or a file of SQLite.

What is stored is shared by all processes of the run; what goes wrong is each one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from gymckpt.core.entry import Entry
from gymckpt.errors import JournalError, JournalOutcomeUnknown, JournalUnavailable
from gymckpt.journal import Journal, MemoryJournal, MemoryStore, RunRow
from gymckpt.journal.rules import Opening
from gymckpt.journal.sql import SqlJournal
from gymckpt.journal.sqlite import SqliteStore
from gymckpt.testing.simulation.loop import Killed, Process
from gymckpt.testing.simulation.storage import Disk
from gymckpt.testing.simulation.timeline import Timeline

__all__ = ["Recorded", "Seat", "SimulatedFile", "SimulatedMemory"]


class Recorded(Protocol):
    """Told of what one process has asked of its journal."""

    def point(self, what: str) -> None:
        """Pass a point at which a fault may happen."""
        ...

    def recorded(self, process: Process, entries: Sequence[Entry]) -> None:
        """Take note of entries that are durable."""
        ...


@attrs.frozen(kw_only=True)
class Seat:
    """Where a journal is used, and who is told."""

    process: Process
    disk: Disk
    """What is wrong with it."""
    timeline: Timeline
    """Where entries are noted."""
    told: Recorded
    """Told of entries that are durable."""


class _Seated(Journal):
    """What every simulated journal has in front of the store of its kind."""

    blocks = True
    seat: Seat

    def open_operation(self, opening: Opening, entries: Sequence[Entry]) -> None:
        """Open an operation."""
        self._write(
            entries,
            lambda: super(_Seated, self).open_operation(opening, entries),
        )

    def append(
        self, entries: Sequence[Entry], *, expected_seq: int, epoch: int, settled: bool = False
    ) -> None:
        """Append entries."""
        self._write(
            entries,
            lambda: super(_Seated, self).append(
                entries, expected_seq=expected_seq, epoch=epoch, settled=settled
            ),
        )

    def _write(self, entries: Sequence[Entry], store: Callable[[], None]) -> None:
        self._require_alive()
        self.seat.told.point("append.before")
        trouble = self._next_trouble()
        outcome = "refuses"
        try:
            if trouble == "fail":
                raise JournalUnavailable("the disk of the journal is full, says the simulation")
            store()
            outcome = "holds"
            self.seat.told.recorded(self.seat.process, entries)
        finally:
            self.seat.timeline.note_entries(self.seat.process.name, entries, outcome)
        self.seat.told.point("append.after")
        if trouble == "lost":
            raise JournalOutcomeUnknown("the answer of the journal was lost, says the simulation")

    def claim(
        self, run: str, *, holder: str, unmoved: RunRow | None = None, force: bool = False
    ) -> int:
        """Claim the run."""
        self._require_alive()
        by_force = " by force" if force else ""
        try:
            epoch = super().claim(run, holder=holder, unmoved=unmoved, force=force)
        except JournalError as error:
            name = type(error).__name__
            self.seat.timeline.note(self.seat.process.name, f"claims the run{by_force}: {name}")
            raise
        self.seat.timeline.note(self.seat.process.name, f"claims the run{by_force}: epoch {epoch}")
        return epoch

    def heartbeat(self, run: str, *, epoch: int) -> None:
        """Give a heartbeat."""
        self._require_alive()
        super().heartbeat(run, epoch=epoch)

    def release(self, run: str, *, epoch: int) -> None:
        """Give the run back."""
        self._require_alive()
        super().release(run, epoch=epoch)

    def _next_trouble(self) -> str | None:
        if self.seat.disk.journal not in ("fail", "lost") or not self.seat.disk.journal_count:
            return None
        self.seat.disk.journal_count -= 1
        return self.seat.disk.journal

    def _require_alive(self) -> None:
        if self.seat.process.dead:
            raise Killed


class SimulatedMemory(_Seated, MemoryJournal):
    """A journal in memory."""

    def __init__(self, store: MemoryStore, seat: Seat) -> None:
        """
        Open it.

        Args:
            store: Where the entries are.
            seat: Where it is used.
        """
        super().__init__(store)
        self.seat = seat


class _Store(SqliteStore):
    """A file of SQLite whose host has the time of the run."""

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        super().__init__(path)

    def now_ts(self, connection: Any) -> float:
        """Return the time of the run."""
        return self._now_s()


class SimulatedFile(_Seated, SqlJournal):
    """A journal in a file."""

    def __init__(self, path: Path, seat: Seat, *, now_s: Callable[[], float]) -> None:
        """
        Open it.

        Args:
            path: The file.
            seat: Where it is used.
            now_s: The time of the run, by which silence is measured.
        """
        super().__init__(_Store(path, now_s))
        self.seat = seat
