"""The durable, ordered record of what every operation did; `open_journal` is the way in."""

from gymckpt.journal.base import Damaged, Journal, Opening, OperationRow, RunRow, Selection
from gymckpt.journal.locate import default_run, open_journal, warn_of_generated
from gymckpt.journal.memory import MemoryJournal, MemoryStore

__all__ = [
    "Damaged",
    "Journal",
    "MemoryJournal",
    "MemoryStore",
    "Opening",
    "OperationRow",
    "RunRow",
    "Selection",
    "default_run",
    "open_journal",
    "warn_of_generated",
]
