"""
`memory://`: a journal for tests, which lasts as long as its `MemoryStore` does.

It keeps encoded rows, as a database would, so that what comes back is what a database gives back.
A store outlives the journals opened on it: closing one and opening another on the same store is
what a restarted controller does. It never waits for anything but its own short lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence

import attrs

from gymckpt.errors import JournalUnavailable
from gymckpt.journal.base import Batch, Journal, OperationRow, RunRow, Selection
from gymckpt.journal.entry import TAGS, Row
from gymckpt.journal.rules import (
    check_epoch,
    claimed_epoch,
    id_used,
    remaining,
    unfinished,
)

__all__ = ["MemoryJournal", "MemoryStore"]

_Key = tuple[str, str]
_INSTANCE_COLUMN = TAGS.index("inst")


class MemoryStore:
    """What several memory journals share; nothing of it survives the process."""

    def __init__(self, *, now_s: Callable[[], float] = time.time) -> None:
        """
        Make an empty store.

        Args:
            now_s: The clock by which heartbeats are dated.
        """
        self.identity = object()
        """Equal to that of no other store, at any time."""
        self.now_s = now_s
        self.lock = threading.Lock()
        self.operations: dict[_Key, OperationRow] = {}
        self.rows: dict[_Key, list[Row]] = {}
        self.removed: set[_Key] = set()
        self.runs: dict[str, RunRow] = {}


class MemoryJournal(Journal):
    """A journal in this process's memory."""

    url = "memory://"
    blocks = False

    def __init__(self, store: MemoryStore | None = None) -> None:
        """
        Open a journal.

        Args:
            store: Where the entries are; None for an empty one of its own.
        """
        self._store = MemoryStore() if store is None else store
        self._closed = False

    @property
    def shared_as(self) -> Hashable:
        """The same for all journals on one store."""
        return self._store.identity

    @property
    def store(self) -> MemoryStore:
        """What another journal can be opened on, also after this one was closed."""
        return self._store

    def step_rows(self, run: str | None) -> Sequence[Row]:
        """Return what `steps.steps_of` reads, of one run or all, in any order."""
        self._require_open()
        with self._store.lock:
            kept = [rows[1:] for key, rows in self._store.rows.items() if run in (None, key[0])]
        return [row for rows in kept for row in rows if row[_INSTANCE_COLUMN] is None]

    def close(self) -> None:
        """Refuse every later call; the store keeps its entries."""
        self._closed = True

    def _select(self, selection: Selection) -> Sequence[OperationRow]:
        self._require_open()
        with self._store.lock:
            held = tuple(self._store.operations.values())
        meant = [row for row in held if selection.has(row)]
        meant.sort(key=lambda row: (row.opened_ts, row.run, row.operation_id), reverse=True)
        return meant[: selection.latest]

    def _remove(self, run: str, operation_id: str) -> None:
        self._require_open()
        key = (run, operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            if held is None:
                return
            if not (held.settled or held.imported):
                raise unfinished(held)
            del self._store.operations[key], self._store.rows[key]
            self._store.removed.add(key)

    def _insert(self, operation: OperationRow, rows: Sequence[Row], *, driven: bool) -> None:
        self._require_open()
        key = (operation.run, operation.operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            if held is not None or key in self._store.removed:
                raise id_used(held, *key)
            if driven:
                run = check_epoch(self._store.runs.get(key[0]), key[0], operation.epoch)
                operation = attrs.evolve(operation, owner=run.holder)
            self._store.rows[key] = list(rows)
            self._store.operations[key] = operation

    def _append(self, batch: Batch) -> None:
        self._require_open()
        key = (batch.run, batch.operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            stored = self._store.rows.get(key, [])
            run = self._store.runs.get(batch.run)
            rows = remaining(batch, run, held, lambda: stored[batch.expected_seq : batch.last_seq])
            if held is None or run is None or not rows:
                return
            moved = attrs.evolve(
                held,
                epoch=batch.epoch,
                owner=run.holder,
                state=batch.state or held.state,
                settled=batch.settled or held.settled,
                last_seq=batch.last_seq,
                updated_ts=batch.updated_ts,
            )
            stored.extend(rows)
            self._store.operations[key] = moved

    def _claim(self, run: str, holder: str, unmoved: RunRow | None, force: bool) -> int:
        self._require_open()
        with self._store.lock:
            held, now_s = self._store.runs.get(run), self._store.now_s()
            of_run = [row for key, row in self._store.operations.items() if key[0] == run]
            epoch = claimed_epoch(
                held,
                max((row.epoch for row in of_run), default=0),
                holder,
                age_s=0.0 if held is None else now_s - held.beat_ts,
                unmoved=unmoved,
                force=force,
            )
            is_new = held is None or held.epoch != epoch
            self._store.runs[run] = RunRow(
                run=run,
                epoch=epoch,
                holder=holder if held is None or is_new else held.holder,
                since_ts=now_s if held is None or is_new else held.since_ts,
                beats=1 if held is None else held.beats + 1,
                beat_ts=now_s,
            )
            return epoch

    def _heartbeat(self, run: str, epoch: int) -> None:
        self._require_open()
        with self._store.lock:
            held = check_epoch(self._store.runs.get(run), run, epoch)
            self._store.runs[run] = attrs.evolve(
                held, beats=held.beats + 1, beat_ts=self._store.now_s()
            )

    def _release(self, run: str, epoch: int) -> None:
        self._require_open()
        with self._store.lock:
            held = self._store.runs.get(run)
            if held is not None and held.holder and held.epoch == epoch:
                self._store.runs[run] = attrs.evolve(held, holder="", since_ts=self._store.now_s())

    def _held(self, run: str) -> RunRow | None:
        self._require_open()
        with self._store.lock:
            return self._store.runs.get(run)

    def _runs(self) -> Sequence[RunRow]:
        self._require_open()
        with self._store.lock:
            return tuple(self._store.runs.values())

    def _silent_s(self, run: str) -> float | None:
        held = self._held(run)
        return self._store.now_s() - held.beat_ts if held is not None and held.holder else None

    def _operation(self, run: str, operation_id: str) -> OperationRow | None:
        self._require_open()
        with self._store.lock:
            return self._store.operations.get((run, operation_id))

    def _read(
        self, run: str, operation_id: str, after_seq: int, last_seq: int
    ) -> tuple[OperationRow | None, Sequence[Row]]:
        self._require_open()
        with self._store.lock:
            rows = self._store.rows.get((run, operation_id), [])
            return self._store.operations.get((run, operation_id)), tuple(rows[after_seq:last_seq])

    def _require_open(self) -> None:
        if self._closed:
            raise JournalUnavailable(f"the journal {self.url} is closed; open it again")
