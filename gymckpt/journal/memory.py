"""
`memory://`: a journal for tests, which lasts as long as its `MemoryStore` does.

It keeps encoded rows, as a database would, so that what comes back is what a database gives back.
A store outlives the journals opened on it: closing one and opening another on the same store is
what a restarted controller does. It never waits for anything but its own short lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import attrs

from gymckpt.errors import JournalUnavailable
from gymckpt.journal.base import Batch, Journal, OperationRow, Selection
from gymckpt.journal.entry import TAGS, Row
from gymckpt.journal.rules import (
    check_claim,
    fenced,
    id_used,
    remaining,
    unfinished,
    unknown_operation,
)

__all__ = ["MemoryJournal", "MemoryStore"]

_Key = tuple[str, str]
_INSTANCE_COLUMN = TAGS.index("inst")


class MemoryStore:
    """What several memory journals share; nothing of it survives the process."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """
        Make an empty store.

        Args:
            now_s: The clock by which the silence of controllers is measured.
        """
        self.now_s = now_s
        self.lock = threading.Lock()
        self.operations: dict[_Key, OperationRow] = {}
        self.rows: dict[_Key, list[Row]] = {}
        self.removed: set[_Key] = set()
        self.beats_s: dict[_Key, float] = {}


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
            self._store.beats_s.pop(key, None)
            self._store.removed.add(key)

    def _insert(self, operation: OperationRow, rows: Sequence[Row]) -> None:
        self._require_open()
        key = (operation.run, operation.operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            if held is not None or key in self._store.removed:
                raise id_used(held, *key)
            self._store.rows[key] = list(rows)
            self._store.beats_s[key] = self._store.now_s()
            self._store.operations[key] = operation

    def _append(self, batch: Batch) -> None:
        self._require_open()
        key = (batch.run, batch.operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            stored = self._store.rows.get(key, [])
            rows = remaining(batch, held, lambda: stored[batch.expected_seq : batch.last_seq])
            if held is None or not rows:
                return
            moved = attrs.evolve(
                held,
                state=batch.state or held.state,
                settled=batch.settled or held.settled,
                last_seq=batch.last_seq,
                updated_ts=batch.updated_ts,
            )
            stored.extend(rows)
            self._store.operations[key] = moved

    def _heartbeat(self, run: str, operation_id: str, epoch: int) -> None:
        self._require_open()
        key = (run, operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            if held is None or held.epoch != epoch:
                raise fenced(held, run, operation_id, epoch)
            self._store.beats_s[key] = self._store.now_s()

    def _silent_s(self, run: str, operation_id: str) -> float | None:
        self._require_open()
        with self._store.lock:
            return self._age_s((run, operation_id))

    def _age_s(self, key: _Key) -> float | None:
        beat_s = self._store.beats_s.get(key)
        return None if beat_s is None else self._store.now_s() - beat_s

    def _claim(self, run: str, operation_id: str, owner: str, stale_s: float | None) -> int:
        self._require_open()
        key = (run, operation_id)
        with self._store.lock:
            held = self._store.operations.get(key)
            if held is None:
                raise unknown_operation(run, operation_id)
            check_claim(held, self._age_s(key), stale_s)
            self._store.beats_s[key] = self._store.now_s()
            claimed = attrs.evolve(held, epoch=held.epoch + 1, owner=owner)
            self._store.operations[key] = claimed
            return claimed.epoch

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
