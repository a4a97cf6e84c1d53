"""The durable, ordered record of what every operation did; `open_journal` is the way in."""

from gymckpt.journal.base import Journal, Opening, OperationRow, Selection
from gymckpt.journal.locate import default_run, open_journal
from gymckpt.journal.memory import MemoryJournal, MemoryStore

__all__ = [
    "Journal",
    "MemoryJournal",
    "MemoryStore",
    "Opening",
    "OperationRow",
    "Selection",
    "default_run",
    "open_journal",
]
