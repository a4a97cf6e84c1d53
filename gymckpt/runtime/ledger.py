"""
What one operation has made durable, and what it could not.

An append that fails in the middle of an operation is said loudly, once. From then on entries are
kept in a backlog and appended when the journal is back; an append that was thought lost and landed
after all is recognised, since the same entries again are no error (`Journal.append`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.errors import Fenced, JournalError, text_of
from gymckpt.runtime.holding import Driven
from gymckpt.runtime.worker import Recorder

__all__ = ["Ledger"]

logger = logging.getLogger("gymckpt")

T = TypeVar("T")


class Ledger:
    """The journal as one operation writes it."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin with nothing recorded."""
        self.failure: JournalError | None = None
        """Why entries are kept back; None while all are durable."""
        self._recorder = recorder
        self._recorded_seq = 0
        self._backlog: list[Entry] = []

    @property
    def behind(self) -> bool:
        """Whether entries are kept back."""
        return bool(self._backlog)

    async def open(self, operation: OperationState, entries: Sequence[Entry]) -> None:
        """
        Make the opening durable.

        Raises:
            OperationIdUsed: The id was used before.
            JournalError: The journal cannot be written.
        """
        await self._recorder.open(operation, entries)
        self._recorded_seq = operation.seq

    def resume(self, operation: OperationState) -> None:
        """Go on after what the journal holds of an operation that was taken over."""
        self._recorded_seq = operation.seq

    async def record(self, entries: Sequence[Entry], after: OperationState) -> JournalError | None:
        """
        Make entries durable.

        Args:
            entries: What happened, in order.
            after: The operation after them.

        Returns:
            What went wrong; None where they are durable.
        """
        if self.behind:
            return self.failure
        try:
            await self._append(entries, after)
        except Fenced as error:
            return error
        except JournalError as error:
            return self._failed(error, after)
        except Exception as error:  # an entry that it cannot take; nothing was stored
            return self._failed(_refusal(error), after)
        return None

    def _failed(self, failure: JournalError, after: OperationState) -> JournalError:
        self.failure = failure
        logger.critical(
            "operation %r: the journal failed; instances are being reopened unrecorded: %s",
            after.operation_id,
            text_of(failure),
        )
        return failure

    def let_drive(self, operation: OperationState, driven: Driven) -> None:
        """
        Let something drive the operation for as long as its run is held.

        Args:
            operation: The operation.
            driven: What drives it.
        """
        self._recorder.drives(operation.run, operation.operation_id, driven)

    async def look(self, operation: OperationState, look: Callable[[Sequence[Entry]], T]) -> T:
        """
        Look at what the journal holds of an operation, off the event loop.

        Args:
            operation: The operation.
            look: Given its entries; may take a while.

        Raises:
            JournalError: The journal cannot be read.
        """
        journal = self._recorder.journal
        return await self._recorder.read(
            lambda: look(journal.read(operation.run, operation.operation_id))
        )

    def keep_back(self, entries: Sequence[Entry]) -> None:
        """Remember entries that could not be recorded when they happened."""
        self._backlog += entries

    async def catch_up(self, operation: OperationState) -> Fenced | None:
        """
        Record what was kept back, if the journal is back.

        Args:
            operation: The operation after all of it.

        Returns:
            The fencing, where another process has taken the run over meanwhile.
        """
        entries = list(self._backlog)
        try:
            await self._append(entries, operation)
        except Fenced as error:
            return error
        except Exception as error:  # the journal's own errors, and an entry that it cannot take
            logger.critical(
                "operation %r: %d entries are still unrecorded: %s",
                operation.operation_id,
                len(entries),
                text_of(error),
            )
            return None
        logger.warning(
            "operation %r: the journal is back, %d entries were recorded afterwards",
            operation.operation_id,
            len(entries),
        )
        del self._backlog[: len(entries)]
        return None

    async def _append(self, entries: Sequence[Entry], after: OperationState) -> None:
        await self._recorder.append(
            entries, expected_seq=self._recorded_seq, epoch=after.epoch, settled=after.settled
        )
        self._recorded_seq = entries[-1].seq


def _refusal(error: Exception) -> JournalError:
    """Return a journal's error for one that no journal should raise, with it as the cause."""
    refusal = JournalError(
        f"the journal refused an entry: {type(error).__name__}: {text_of(error)}"
    )
    refusal.__cause__ = error
    return refusal
