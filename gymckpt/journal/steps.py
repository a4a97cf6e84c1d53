"""
The history of many operations: what they did themselves, and nothing of their calls.

That is a few entries of each operation however many instances it has.
"""

from __future__ import annotations

from gymckpt.core.entry import Entry
from gymckpt.journal.base import Journal
from gymckpt.journal.entry import decode_row
from gymckpt.journal.records import Selection

__all__ = ["steps_of"]


def steps_of(journal: Journal, run: str | None = None) -> tuple[Entry, ...]:
    """
    Return what operations themselves did after they were opened, by run, operation and seq.

    Nothing about gaps is checked; see `Journal.read` for that.

    Args:
        journal: Where they are.
        run: Only those of this run; None for all runs.

    Raises:
        JournalCorrupt: An entry is damaged.
        JournalUnavailable: Locked past the timeout, gone, or closed.
        JournalError: A newer release wrote an entry.
    """
    rows = journal.step_rows(run) if Selection(run=run).possible else ()
    found = (decode_row(row) for row in rows)
    return tuple(sorted(found, key=lambda entry: (entry.run, entry.operation_id, entry.seq)))
