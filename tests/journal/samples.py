"""Plain entries and operations for the tests of the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from gymckpt.core.entry import Entry
from gymckpt.journal import Journal, Opening, OperationRow, RunRow

RUN = "run-1"
OPERATION = "op-1"
FOUGHT_FOR = "run-2"
"""A run that several processes take from each other."""
HOLDER = "host-a:1"
"""Who opens the samples."""


def opening(operation_id: str = OPERATION, run: str = RUN, **changes: Any) -> Opening:
    """Return what an operation is."""
    fields = {"chart": "checkpoint", "chart_version": 1} | changes
    return Opening(run=run, operation_id=operation_id, **fields)


def entry(seq: int = 1, **changes: Any) -> Entry:
    """Return an entry of the operation itself; the first opens it."""
    fields = {
        "run": RUN,
        "operation_id": OPERATION,
        "seq": seq,
        "epoch": 1,
        "ts": 1_700_000_000.25 + seq,
        "at_s": seq / 8,
        "trigger": "prepare",
        "source": "" if seq == 1 else "open",
        "dest": "open" if seq == 1 else "preparing",
        "facts": {"deadline_ts": 1.5, "blockers": ["a", "b"], "note": None},
    }
    return Entry(**(fields | changes))


def call_entry(seq: int, **changes: Any) -> Entry:
    """Return an entry of a call to one instance."""
    fields = {
        "instance": "shard/replica-0",
        "call": "prepare",
        "ask": 1,
        "trigger": "answer",
        "source": "asked",
        "dest": "answered",
    }
    return entry(seq, **(fields | changes))


def entries(first: int, last: int, **changes: Any) -> list[Entry]:
    """Return entries of the operation itself from one seq to another, both included."""
    return [entry(seq, **changes) for seq in range(first, last + 1)]


def begun(journal: Journal, count: int = 1, **changes: Any) -> Sequence[Entry]:
    """Claim the run, open an operation with some entries, and return them."""
    first = entries(1, count, **changes)
    journal.claim(first[0].run, holder=HOLDER)
    journal.open_operation(opening(first[0].operation_id, first[0].run), first)
    return first


def row(journal: Journal, operation_id: str = OPERATION, run: str = RUN) -> OperationRow:
    """Return an operation that is there."""
    found = journal.operation(run, operation_id)
    assert found is not None
    return found


def held_by(journal: Journal, run: str = RUN) -> RunRow:
    """Return who holds a run that was claimed."""
    found = journal.held(run)
    assert found is not None
    return found


@contextlib.contextmanager
def nothing_stored(journal: Journal) -> Any:
    """Check that the body leaves the journal's one operation exactly as it was."""
    before = row(journal), journal.read(RUN, OPERATION)
    yield
    assert (row(journal), journal.read(RUN, OPERATION)) == before
