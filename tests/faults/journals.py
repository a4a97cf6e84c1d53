"""A journal in memory that fails where a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from gymckpt.errors import JournalOutcomeUnknown, JournalUnavailable
from gymckpt.journal.memory import MemoryJournal

Trouble = Literal["none", "fail", "lose", "refuse"]
"""What a write does: succeeds, stores nothing and says so, stores and says that this is unknown, or
raises what no journal should."""


class EntryRefused(ValueError):
    """No error that a journal should raise."""


class TroubledJournal(MemoryJournal):
    """Numbers its writes from 1 and asks what to do about each."""

    def __init__(self, *, blocks: bool = False) -> None:
        super().__init__()
        self.blocks = blocks
        self.writes = 0
        self.troubles: list[tuple[int, Trouble]] = []
        """What was done, besides succeeding."""
        self.claim_trouble: Trouble = "none"
        """What the next claim does; claims are not numbered."""
        self.trouble: Callable[[int], Trouble] = lambda _number: "none"

    def _claim(self, *args: Any) -> int:
        trouble, self.claim_trouble = self.claim_trouble, "none"
        return self._troubled(trouble, lambda: super(TroubledJournal, self)._claim(*args))

    def _insert(self, operation: Any, rows: Sequence[Any], *, driven: bool) -> None:
        self._write(lambda: super(TroubledJournal, self)._insert(operation, rows, driven=driven))

    def _append(self, batch: Any) -> None:
        self._write(lambda: super(TroubledJournal, self)._append(batch))

    def _write(self, write: Callable[[], Any]) -> Any:
        self.writes += 1
        trouble = self.trouble(self.writes)
        if trouble != "none":
            self.troubles.append((self.writes, trouble))
        return self._troubled(trouble, write)

    def _troubled(self, trouble: Trouble, write: Callable[[], Any]) -> Any:
        if trouble == "fail":
            raise JournalUnavailable("the disk is full, says the test")
        if trouble == "refuse":
            raise EntryRefused("no entry, says the test")
        answer = write()
        if trouble == "lose":
            raise JournalOutcomeUnknown("no answer, says the test")
        return answer
