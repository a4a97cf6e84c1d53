"""Plain operations and entries, legal but of no chart in particular, to try journals with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymckpt.core.entry import Entry
from gymckpt.journal import Journal, Opening, OperationRow, RunRow

__all__ = [
    "HOLDER",
    "OPERATION",
    "RUN",
    "begun",
    "call_entry",
    "entries",
    "entry",
    "held_by",
    "opening",
    "row_of",
]

RUN = "run-1"
OPERATION = "op-1"
HOLDER = "host-a:1"
"""Who opens the samples."""


def opening(operation_id: str = OPERATION, run: str = RUN) -> Opening:
    """Return what an operation is."""
    return Opening(run=run, operation_id=operation_id, chart="checkpoint", chart_version=1)


def entry(seq: int = 1, **changes: Any) -> Entry:
    """Return an entry of the operation itself; the first opens it."""
    fields: dict[str, Any] = {
        "run": RUN,
        "operation_id": OPERATION,
        "seq": seq,
        "epoch": 1,
        "ts": 1_700_000_000.123457 + seq,
        "at_s": seq / 7,
        "trigger": "prepare",
        "source": "" if seq == 1 else "open",
        "dest": "open" if seq == 1 else "preparing",
        "facts": {"deadline_ts": 1.5, "blockers": ["a", "B"], "note": None},
    }
    return Entry(**(fields | changes))


def call_entry(seq: int, **changes: Any) -> Entry:
    """Return an entry of a call to one instance."""
    fields: dict[str, Any] = {
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


def row_of(journal: Journal, operation_id: str = OPERATION, run: str = RUN) -> OperationRow:
    """Return an operation's row; a failed assertion where the journal knows none."""
    found = journal.operation(run, operation_id)
    assert found is not None, f"the journal does not know operation {operation_id!r}"
    return found


def held_by(journal: Journal, run: str = RUN) -> RunRow:
    """Return who holds a run; a failed assertion where nobody has claimed it."""
    found = journal.held(run)
    assert found is not None, f"the journal does not know run {run!r}"
    return found
